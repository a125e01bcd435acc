"""``Result``: what every result can do, once it says what it is."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ..core.sheets import Sheet

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A result describes itself by four methods, and is shown everywhere for it.

    ``summary()`` is one line, for ``repr``; ``sheet()`` what people see; ``to_dict()`` plain values ready for JSON;
    ``to_frame()`` its main table.
    """

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def _repr_html_(self) -> str:
        from .notebook import html  # the templates' library: only where something is shown

        return html(self.sheet())

    def to_markdown(self) -> str:
        """The same as Markdown, for notes, issues and pull requests; token text is escaped."""
        from .markdown import markdown

        return markdown(self.sheet())
