"""``Result``: what every result can do, once it says what it is."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..core.errors import InputError
from ..core.provenance import Live
from ..core.sheets import Sheet
from ..core.types import checked

if TYPE_CHECKING:
    import pandas as pd

ResultKind = TypeVar("ResultKind", bound="Result")


class Result:
    """A result describes itself by four methods, and is shown everywhere for it.

    ``summary()`` is one line, for ``repr``; ``sheet()`` what people see; ``to_dict()`` plain values ready for JSON;
    ``to_frame()`` its main table. ``save()`` and ``load()`` keep all of it, as a file.
    """

    no_file: ClassVar[str] = ""
    """Of a result that no single file holds: where it is kept, and how it is found again."""

    @abstractmethod
    def summary(self) -> str:
        """What it is, in less than a line."""

    @abstractmethod
    def sheet(self) -> Sheet:
        """What it is, in blocks."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The main table."""

    def brief(self) -> dict[str, Any]:
        """What JSON says of it unless all is asked for: as much as the sheet shows; all of it where that is short."""
        return self.to_dict()

    @checked
    def save(self, path: str | Path) -> Path:
        """Write all of it as one safetensors file with checksums, whole or not at all; returns the path.

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
            FileError: no such file, another kind of file, one of a newer ffnmem, or a damaged one.
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
