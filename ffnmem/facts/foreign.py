"""Records of other programs' data sets: what all of them share. A data set declares its fields as a subclass."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, model_validator

from ..core.errors import InputError, listed, quoted
from .fact import Fact
from .templates import prompt_template


class LeftOut(InputError):
    """A whole record that no fact can be made of; the others of its file are read."""


def flatten_texts(value: Any, depth: int = 3) -> tuple[str, ...]:
    """The texts of a text, of a list of texts or of lists of such lists, in their order, each once.

    Spaces at their ends go; empty ones and null are none. Raises InputError for anything else.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value.strip(),) if value.strip() else ()
    if not isinstance(value, list | tuple) or not depth:
        raise InputError(f"it must be a text or lists of texts, not {quoted(value)}")
    return tuple(dict.fromkeys(text for one in value for text in flatten_texts(one, depth - 1)))


def name_case(value: Any) -> str:
    """What a record calls its case. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"it must be a number or text, not {quoted(value)}")
    return str(value).strip()


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Sentence = Annotated[str, StringConstraints(pattern=r"\S")]
"""A text with the spaces at its ends."""
Texts = Annotated[tuple[str, ...], BeforeValidator(flatten_texts)]
Word = Annotated[Text, BeforeValidator(lambda value: value.get("str") if isinstance(value, dict) else value)]
"""A target: a text, or an object with ``str`` and an ``id``."""
CaseName = Annotated[str, BeforeValidator(name_case)]


class ForeignRecord(BaseModel):
    """A record of a data set. What is null or empty in it is not there."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def drop_empty(cls, record: Any) -> Any:
        if not isinstance(record, dict):
            return record
        return {
            name: value
            for name, value in record.items()
            if not (value is None or value in ([], {}) or (isinstance(value, str) and not value.strip()))
        }

    def facts(self, number: int) -> list[Fact]:
        """The facts of the record of this number, which counts from 1. Raises LeftOut or InputError."""
        raise NotImplementedError

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that have no place in a fact."""
        return self.model_extra or {}

    def note_rest(self) -> tuple[str, ...]:
        """A note on these fields, where there are any."""
        return (f"fields left out: {listed([quoted(name)[1:-1] for name in self.rest], 12)}",) if self.rest else ()


def prompt_of(text: str, subject: str) -> tuple[str, tuple[str, ...]]:
    """As :func:`prompt_template`; raises LeftOut where the subject is not in the prompt."""
    try:
        return prompt_template(text, subject)
    except InputError:
        raise LeftOut("its subject does not stand in its prompt, spelled the same") from None
