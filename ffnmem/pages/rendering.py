"""Sheets and templates to HTML: the pages of this subpackage."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from .._version import __version__
from ..core.provenance import experts_in
from ..core.sheets import Facts, Grid, Histogram, Line, Origin, Sheet, Span, Table, Words, line
from ..core.token_text import visible
from ..show import notebook
from ..show.notebook import chip_html, running_html
from .links import Links, anchor, nowhere

PACKAGE = "ffnmem.pages"
TABLES = "tables.js"


def render(template: str, *, scripts: tuple[str, ...] = (), **values: Any) -> str:
    """A page, filled in, with the script that sorts and filters its tables and ``scripts`` of this subpackage; its
    policy admits these and no other."""
    texts = [script_of(TABLES, notebook.HERE), *map(script_of, scripts)]
    return notebook.render(
        template,
        package=PACKAGE,
        scripts=[Markup(text) for text in texts],  # ours, and without anything filled in
        script_hashes=[content_hash(text) for text in texts],
        **values,
    )


@cache
def script_of(name: str, package: str = PACKAGE) -> str:
    """A script of this subpackage, or of another."""
    return files(package).joinpath("templates", name).read_text("utf-8")


@cache
def content_hash(script: str) -> str:
    """The source expression of a content security policy that admits this script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def picture_source(figure: Any) -> str:
    """A figure of matplotlib as the source of an image: an SVG whose texts are texts."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ffnmem"}):
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# Pages of sheets: sections, each with a heading, how to read it, and the blocks of a sheet.


@dataclass(frozen=True)
class Section:
    """A part of a page: its heading, its blocks, and how to read them. ``anchor``: its id, for links to it."""

    title: str
    sheet: Sheet
    note: str = ""
    anchor: str = ""


def page_html(
    title: str | Line,
    sections: Sequence[Section],
    provenance: Mapping[str, Any],
    *,
    template: str = "sections.html",
    links: Links = nowhere,
    **values: Any,
) -> str:
    """Sections as a page that needs nothing but a browser.

    Args:
        title: of the page; its tokens are shown as tokens. links: where neurons' names lead.
        template: one that extends ``sections.html``. values: what it takes besides.
    """
    parts = line(title) if isinstance(title, str) else title
    return render(
        template,
        title="".join(visible(part.text) if part.token else part.text for part in parts),
        heading=Markup("").join(
            chip_html(part.text, named=True) if part.token else running_html(part.text) for part in parts
        ),
        sections=[replace(one, sheet=one.sheet.naming_experts(experts_in(provenance))) for one in sections],
        provenance=provenance,
        links={"neuron": lambda place: links(*place)},
        **values,
    )


def sheet_html(sheet: Sheet, title: str | Line = "", **values: Any) -> str:
    """A sheet as a page; ``title``: default its own. ``values`` as :func:`page_html` takes them."""
    origin = next((block.fields for block in sheet.blocks if isinstance(block, Origin)), {"ffnmem": __version__})
    return page_html(title or sheet.title, list(split_sheet(without_origin(sheet))), origin, **values)


def without_origin(sheet: Sheet) -> Sheet:
    """A sheet's blocks without where its numbers come from, which a page says at its end."""
    return Sheet(sheet.without_origin().blocks)


def without_verdict(sheet: Sheet) -> Sheet:
    """A sheet without the sentence that it begins with, which a page of the explorer says above."""
    return Sheet(sheet.blocks[isinstance(sheet.blocks[0], Words) :], sheet.title)


def split_sheet(sheet: Sheet) -> Iterator[Section]:
    """A sheet as sections: each block with a title begins one, but for those that are folded, and but for contexts,
    which stay together: they share a legend. Where it is several sheets, each of these is one."""
    section = Section("", Sheet(()))
    columns = [column for block in sheet.blocks if isinstance(block, Table) for column in block.columns]
    together = any(column.kind == "context" for column in columns)
    for block in sheet.blocks:
        if isinstance(block, Words) and block.line == (Span(title := block.line[0].text, "strong"),):
            yield section  # before a sheet among several
            named = re.match(r"Neuron (\d+)\.(\d+)\b", title)
            section = Section(title, Sheet(()), anchor=anchor(*map(int, named.groups())) if named else "")
            continue
        if together:
            pass
        elif (
            isinstance(block, Facts | Table | Grid | Histogram) and block.title and not getattr(block, "folded", False)
        ):
            yield section
            section = Section(block.title, Sheet(()), getattr(block, "note", ""))
            block = replace(block, title="", note="") if isinstance(block, Table) else replace(block, title="")
        section = replace(section, sheet=Sheet((*section.sheet.blocks, block)))
    yield section
