"""Kinds of what is typed: how a text becomes a layer, a neuron, a token or a number. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter as Option
from cyclopts import Token

from ..core import types
from ..core.errors import InputError, quoted
from ..core.neuron_names import is_place, layer_of, read_neuron
from ..core.token_text import token_id
from .operations import Kind


def read_layer(typed: str) -> int:
    """A layer by number, or by TransformerLens' name of a place in it."""
    if is_place(typed):
        return layer_of(typed)
    try:
        return int(typed)
    except ValueError:
        raise InputError(f"{quoted(typed)} is no layer: write a whole number, -1 for the last") from None


def read_token(typed: str) -> str | int:
    """A token as text, or by its number: ``id:417``."""
    if not typed.strip(" "):
        raise InputError("the token is empty: name one, such as ' Paris', or its number, such as id:220 for a space")
    number = token_id(typed)
    return typed if number is None else number


def read_neurons(typed: Sequence[str]) -> list[Any]:
    """(layer, neuron) of ``3.17`` or ``3.17,3.18``, each once."""
    return list(dict.fromkeys(read_neuron(name.strip()) for name in ",".join(typed).split(",")))


ONE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "layer": ("LAYER", read_layer),
    "neuron": ("LAYER.NEURON", lambda typed: read_neuron(typed.strip())),
    "token": ("TOKEN", read_token),
}
SEVERAL: Mapping[str, tuple[str, Callable[[Sequence[str]], list[Any]]]] = {
    "neurons": ("LAYER.NEURON", read_neurons),
    "firings": ("FIRING", lambda typed: [name.strip() for name in ",".join(typed).split(",")]),
    "tokens": ("TOKEN", lambda typed: [read_token(one) for one in typed]),
}
PLAIN: Mapping[str, type] = {"text": str, "int": int, "float": float, "bool": bool}


def type_of(kind: Kind) -> Any:
    """The type of an option, as cyclopts takes it; ranges and choices are checked before anything is loaded."""
    many = kind.many
    if kind.name in ONE:
        metavar, one = ONE[kind.name]

        def read(_type: Any, tokens: Sequence[Token]) -> Any:
            return [one(token.value) for token in tokens] if many else one(tokens[0].value)

        return Annotated[list[Any] if many else Any, option(read, metavar)]
    if kind.name in SEVERAL:
        metavar, several = SEVERAL[kind.name]
        return Annotated[
            list[Any] | None, option(lambda _type, tokens: several([one.value for one in tokens]), metavar)
        ]
    if kind.choices:
        base: Any = Literal[kind.choices]
    else:
        base = PLAIN.get(kind.name) or getattr(types, kind.name)
    checks = (
        [note for note in get_args(base)[1:] if isinstance(note, types.Range)] if get_origin(base) is Annotated else []
    )
    base = get_args(base)[0] if checks else base
    whole: Any = list[base] if many else base
    if not checks:
        return whole

    def check(_type: Any, value: Any) -> None:
        for one in [] if value is None else value if many else [value]:
            checks[0].check("it", one)

    return Annotated[whole, Option(validator=check)]


def option(read: Callable[[Any, Sequence[Token]], Any], metavar: str) -> Option:
    return Option(converter=read, metavar=metavar, n_tokens=1, allow_leading_hyphen=True)
