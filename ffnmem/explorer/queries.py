"""Queries: what an address asks of a view, as models whose fields are those of the view's form.

Fields are texts, numbers and tuples of texts, spelled as the address spells them: so an address is made from a query
by leaving out what is at its default. What a text names (a neuron, a token, a variant) is checked when it is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, SupportsIndex, TypeVar, get_origin
from urllib.parse import quote, urlencode

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..core.errors import InputError, check_choice, quoted
from ..core.neuron_names import read_neuron
from ..core.token_text import token_id

CHANGES = 64  # neurons of a variant


def address(path: str, *pairs: tuple[str, Any], **named: Any) -> str:
    """A path with parameters, in this order; what is None, False or empty is left out, True is 1."""
    given = [(name, 1 if value is True else value) for name, value in (*pairs, *named.items())]
    kept = [(name, value) for name, value in given if not (value is None or value is False or value == "")]
    shown = urlencode(kept, quote_via=quote)
    return f"{path}?{shown}" if shown else path


def memory_address(layer: int, neuron: int) -> str:
    """The address of a neuron's view."""
    return f"/memory/{layer}.{neuron}"


def form_field(label: str, default: Any = "", *, hint: str = "", words: Mapping[str, str] | None = None,
               number: bool = False, wide: bool = False, lines: int = 1, required: bool = False, folded: bool = False,
               most: int = 0, **limits: Any) -> Any:  # fmt: skip
    """A field of a query that its view's form shows.

    Args:
        label: what the form and messages call it. hint: shown while it is empty.
        words: of a choice, what each value is called; "" stands for none.
        number, wide, lines, required: how it is typed. folded: among settings that are shown on request.
        most: of a tuple, how many it may have.
        limits: as pydantic's ``Field`` takes them.
    """
    look: dict[str, Any] = {"hint": hint, "words": words, "number": number, "wide": wide, "lines": lines,
                            "required": required, "folded": folded, "most": most, "carried": False}  # fmt: skip
    bounds: dict[str, Any] = limits | ({"max_length": most} if most else {})
    return Field(default=default, title=label, json_schema_extra=look, **bounds)


CARRIED: Any = {"carried": True, "folded": False}
"""Of a field that is part of what a page shows and not typed (``json_schema_extra``): its form carries it along."""

AnyQuery = TypeVar("AnyQuery", bound="Query")


class Query(BaseModel):
    """The parameters of a view's address; ``path``: of the view."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    path: ClassVar[str] = "/"

    @classmethod
    def read(cls: type[AnyQuery], typed: Mapping[str, Sequence[str]]) -> AnyQuery:
        """A query from the parameters as typed; raises InputError with one line on the first that cannot be used."""
        given: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            if values := tuple(one.replace("\r\n", "\n") for one in typed.get(name, ())):
                given[name] = values if get_origin(field.annotation) is tuple else values[-1]
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise InputError(cls.mistake(error.errors(include_url=False)[0])) from None

    @classmethod
    def mistake(cls, error: ErrorDetails) -> str:
        """What is wrong with a field, in one line that names it as the form does."""
        if error["type"] == "value_error":  # one of ours
            return str(error["ctx"]["error"])
        name = str(error["loc"][0])
        due = re.sub(r"^\w+ should", "must", error["msg"]).partition(", unable")[0]
        what = quoted(cls.model_fields[name].title or name)
        return f"{what} {due}, not {quoted(error['input'])}"

    def pairs(self, *left_out: str) -> list[tuple[str, Any]]:
        """The parameters that are not at their defaults, without some, as an address or a form has them."""
        given = self.model_dump(exclude_defaults=True, exclude=set(left_out))
        return [
            (name, 1 if one is True else one)
            for name, value in given.items()
            for one in (value if isinstance(value, tuple | list) else [value])
        ]

    def address(self, *more: tuple[str, Any], **changes: Any) -> str:
        """The address of this query, or of one with some parameters changed; then ``more`` parameters."""
        return address(self.path, *self.model_copy(update=changes).pairs(), *more)

    def moved(self) -> str:
        """Of a query that changes what a page shows: the address with that done. Else empty."""
        return ""


def choice_of(name: str, choices: Collection[str]) -> AfterValidator:
    """A check that a text is one of some names."""
    return AfterValidator(lambda typed: check_choice(name, typed, choices))


def read_token(typed: str) -> str | int | None:
    """A token as text, or by its number: ``id:417``; None where none is typed."""
    number = token_id(typed.strip())
    return typed or None if number is None else number


def spell_neuron(typed: str) -> str:
    """A neuron as ``3.17``, typed so or as ``L3N17``; raises InputError. Whether the model has it is asked later."""
    return "{}.{}".format(*read_neuron(typed.strip()))


def read_variant(typed: str) -> dict[tuple[int, SupportsIndex], float]:
    """What each neuron's coefficient is multiplied by: ``3.17:0,5.97:2`` switches one off and doubles another.

    Raises: InputError.
    """
    parts = [part.strip() for part in typed.split(",") if part.strip()]
    if not 1 <= len(parts) <= CHANGES:
        raise InputError(f"a variant names 1 to {CHANGES} neurons, such as 3.17:0,5.97:2, not {quoted(typed)}")
    factors: dict[tuple[int, SupportsIndex], float] = {}
    for part in parts:
        name, colon, factor = part.partition(":")
        place = read_neuron(name.strip())
        if place in factors:
            raise InputError(f"a variant names neuron {place[0]}.{place[1]} twice: {quoted(typed)}")
        try:
            factors[place] = float(factor) if colon else 0.0
        except ValueError:
            factors[place] = math.nan
        if not -100 <= factors[place] <= 100:
            raise InputError(f"the factor of {name.strip()} must be a number from -100 to 100, not {quoted(factor)}")
    return factors


def spell_variant(factors: Mapping[tuple[int, SupportsIndex], float]) -> str:
    """A variant as an address has it."""
    return ",".join(f"{layer}.{neuron}:{factor:g}" for (layer, neuron), factor in factors.items())


Text = Annotated[str, Field(max_length=4000)]
Token = Annotated[str, Field(max_length=200)]
NeuronName = Annotated[str, AfterValidator(spell_neuron)]
Variant = Annotated[str, AfterValidator(lambda typed: spell_variant(read_variant(typed)))]
