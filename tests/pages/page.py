"""Reads a page back the way a browser would: its tables, its text, and everything that could reach outside."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from ffnmem.pages.rendering import TABLES, content_hash, script_of
from ffnmem.show.notebook import HERE

SCRIPT = re.compile(r"<script>(.*?)</script>\n?", re.DOTALL)
VOID = {"meta", "br", "hr", "img", "link", "input", "source"}


def unscripted(html: str, *own: str, policy: str = "") -> str:
    """A page without its scripts: the one of its tables and its ``own``, as they stand in the package, and no others.

    Its policy admits these alone, nothing from anywhere else, and what ``policy`` says besides.
    """
    scripts = SCRIPT.findall(html)
    assert scripts == [script_of(TABLES, HERE), *map(script_of, own)]
    hashes = " ".join(f"'{content_hash(script)}'" for script in scripts)
    styles, rest = "style-src 'unsafe-inline'", "base-uri 'none'; form-action 'none'"
    expected = f"default-src 'none'; {policy}{styles}; script-src {hashes}; {rest}"
    assert re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html) == [expected]
    assert not any(word in script for script in scripts for word in ("<!--", "innerHTML", "eval(", "fetch("))
    return SCRIPT.sub("", html)


@dataclass
class Cell:
    text: str = ""
    values: list[float] = field(default_factory=list)
    chips: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """``tables[class]`` holds rows of cells, ``below[heading]`` those of the tables below a heading; ``headings``,
    ``titles`` of drawings, ``tags`` with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.listed: list[tuple[str, str, list[list[Cell]]]] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.headings: list[str] = []
        self.titles: list[str] = []
        self.text = ""
        self.open: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[Cell]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def inside(self, tag: str) -> bool:
        return any(name == tag for name, _ in self.open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag == "table":
            self.rows = []
            self.listed.append((self.headings[-1] if self.headings else "", found["class"], self.rows))
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(Cell())
        elif tag == "data" and self.inside("tr"):
            self.rows[-1][-1].values.append(float(found["value"]))
        elif tag in ("h1", "h2"):
            self.headings.append("")
        elif tag == "title":
            self.titles.append("")
        elif "fm-chip" in found.get("class", "").split() and self.inside("tr"):
            self.rows[-1][-1].chips.append("")
        if tag not in VOID:
            self.open.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"closes nothing: {tag}"
        assert self.open[-1][0] == tag, f"{tag} closes {self.open[-1]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.inside("style") or self.inside("script"):
            return
        if self.inside("title"):
            self.titles[-1] += data
            return
        self.text += data
        if self.inside("h1") or self.inside("h2"):
            self.headings[-1] += data
        if self.inside("td") or self.inside("th"):
            cell = self.rows[-1][-1]
            cell.text += data
            if any("fm-chip" in attrs.get("class", "").split() for _, attrs in self.open):
                cell.chips[-1] += data

    @property
    def tables(self) -> dict[str, list[list[Cell]]]:
        """The rows of all tables of a class."""
        found: dict[str, list[list[Cell]]] = {}
        for _, kind, rows in self.listed:
            found.setdefault(kind, []).extend(rows)
        return found

    def below(self, heading: str) -> list[list[list[Cell]]]:
        """The tables below a heading."""
        return [rows for at, _, rows in self.listed if at == heading]

    @property
    def words(self) -> str:
        """All text with runs of whitespace as one space."""
        return " ".join(self.text.split())
