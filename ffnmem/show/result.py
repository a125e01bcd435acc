"""``Result``: what every result can do, once it says what it is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sized
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..core.errors import InputError, counted, quoted
from ..core.json_values import plain
from ..core.neuron_names import Experts, add_experts
from ..core.number_text import format_value
from ..core.pictures import picture
from ..core.provenance import Live, experts_in
from ..core.sheets import Sheet
from ..core.types import checked

if TYPE_CHECKING:
    import pandas as pd

ResultKind = TypeVar("ResultKind", bound="Result")
BRIEF = 20
"""Rows of the main table in :meth:`Result.brief`."""


class Result:
    """A result declares what it consists of, and is shown, printed as data, drawn and saved everywhere for it.

    A class names its attributes (fields or properties) in a few texts, and writes one method, ``sheet()``, with what
    people see. A class whose main table is large may have a method ``top(k)`` that gives its first ``k`` rows, or all
    of them for None.
    """

    main: ClassVar[str] = ""
    """Its main table: of :meth:`to_frame`, and in JSON as many of its rows as are asked for."""
    in_json: ClassVar[str] = ""
    """What JSON has, in this order, before the provenance: fields, properties, and methods that need no arguments; by
    default all fields."""
    not_brief: ClassVar[str] = ""
    """What of it :meth:`brief` leaves out."""
    in_repr: ClassVar[str] = ""
    """What ``repr`` says, see :meth:`describe`."""
    no_file: ClassVar[str] = ""
    """Of a result that no single file holds: where it is kept, and how it is found again."""

    @abstractmethod
    def sheet(self) -> Sheet:
        """What it is, in blocks."""

    if TYPE_CHECKING:
        provenance: Any

    def first_rows(self, top: int | None = None) -> pd.DataFrame:
        """A copy of the first rows of the main table, or of all."""
        if hasattr(self, "top"):
            frame: pd.DataFrame = self.top(top)
            return frame
        frame = getattr(self, self.main)
        return frame.copy() if top is None else frame.head(top)

    def to_frame(self) -> pd.DataFrame:
        """The main table, a copy."""
        return self.naming_experts(self.first_rows())

    def naming_experts(self, value: Any) -> Any:
        """A table of neurons with the column ``expert`` if the model has some; anything else as it is."""
        return add_experts(value.copy(), self.experts) if self.experts and hasattr(value, "columns") else value

    @property
    def experts(self) -> Experts:
        """The sizes of layers with experts, by layer."""
        return experts_in(getattr(self, "provenance", None))

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON. ``top``: only so many rows of the main table."""
        names = self.in_json.split() or [field.name for field in fields(self) if not field.metadata]  # type: ignore[arg-type]
        if "provenance" not in names and hasattr(self, "provenance"):
            names.append("provenance")
        values = {name: self.first_rows(top) if name == self.main else getattr(self, name) for name in names}
        called = {name: value() if callable(value) else value for name, value in values.items()}
        return {name: plain(self.naming_experts(value)) for name, value in called.items()}

    def brief(self, top: int = BRIEF) -> dict[str, Any]:
        """What JSON says of it unless all is asked for: the first rows of the main table, and less of the rest."""
        left_out = self.not_brief.split()
        return {name: value for name, value in self.to_dict(top).items() if name not in left_out}

    def summary(self) -> str:
        """What it is, in less than a line."""
        return self.describe(self.in_repr)

    def describe(self, names: str) -> str:
        """Some attributes in words: numbers and texts by their names, tables and tuples by how long they are."""
        parts = []
        for name in names.split():
            value, words = getattr(self, name), name.replace("_", " ")
            if isinstance(value, str):
                parts.append(f"{words} {quoted(value)}" if value else "")
            elif isinstance(value, Sized):
                noun = words.removesuffix("s")
                parts.append(counted(len(value), noun) if noun != words else f"{len(value):,} {words}")
            elif value is not None and value is not False:
                capped = self.provenance.before_cap if name == "logit" else ""
                parts.append(words if value is True else f"{words} {format_value(value)}{capped}")
        return ", ".join(filter(None, parts))

    def plot(self, *args: Any, **options: Any) -> Any:
        """Draw its first picture, see :func:`ffnmem.plots.draw`; :func:`ffnmem.plots.figure` draws all of them.

        Raises InputError: nothing draws it.
        """
        return picture("draw")(self, *args, **options)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write all of it as one file (a zip of JSON, arrays and tables), whole or not at all; returns the path.

        A model or store that it holds is not written, only which one it is.

        Raises: FileError: it cannot be written. InputError: a result that no single file holds.
        """
        from ..core.saved import save_result  # torch and pandas: only where something is saved

        check_fits_a_file(type(self))
        return save_result(self, path)

    @classmethod
    @checked
    def load(cls: type[ResultKind], path: str | Path, *live: Live) -> ResultKind:
        """The result in a file that :meth:`save` wrote, to the last bit; tensors are on the CPU, or where a model is.

        Args:
            path: of the file.
            live: the model or store that it holds, where it holds one.

        Raises:
            FileError: no such file, another kind of file, one of another version of ffnmem, or a damaged one.
            InputError: the model or store is missing, or it holds none. ModelError: it is of another one.
        """
        from ..core.saved import load_result

        check_fits_a_file(cls)
        return load_result(cls, path, live)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def _repr_html_(self) -> str:
        from .notebook import html  # the templates' library: only where something is shown

        return html(self.sheet())

    def to_markdown(self) -> str:
        """The same as Markdown, for notes, issues and pull requests; token text is escaped."""
        from .markdown import markdown

        return markdown(self.sheet())


def check_fits_a_file(cls: type[Result]) -> None:
    """Raise InputError for results that no single file holds."""
    if cls.no_file:
        raise InputError(f"a {cls.__name__} is no single file: {cls.no_file}")
