"""Templates of the explorer, and the files that its views give to download."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..core.json_values import plain
from ..core.sheets import Sheet
from ..pages.rendering import ROOM as PAGES
from ..pages.rendering import script_of
from ..show import notebook
from ..show.records import csv_text
from .queries import address
from .views import Download

ROOM = "ffnmem.explorer"

render = partial(notebook.render, room=(ROOM, PAGES), address=address)


def fragment(template: str, **values: Any) -> Markup:
    """A template filled in, as part of a page."""
    return Markup(render(template, **values))


def of_sheet(sheet: Sheet) -> Markup:
    """A result's sheet, as part of a page."""
    return Markup('<div class="sheet">{}</div>').format(fragment("sheet.html", sheet=sheet))


@cache
def asset(name: str) -> str:
    """A script or style of this room."""
    return files(ROOM).joinpath("templates", name).read_text("utf-8")


@cache
def styles() -> str:
    """What every page of the explorer is styled by: what pages are, then sheets, then its own."""
    # Without the frame's own rule, which is the first: the page has a frame.
    _, rules = files(notebook.HERE).joinpath("templates", "notebook.css").read_text("utf-8").split("}\n", 1)
    return (
        render("styles.css")
        + script_of("tables.css", notebook.HERE)
        + rules.replace(".ffnmem ", ".ffnmem .sheet ")
        + asset("explorer.css")
    )


# Downloads: each is a function, called when it is asked for.


def csv_of(frame: Callable[[], pd.DataFrame], name: str) -> Callable[[], Download]:
    """A table. Cells are as they are: import them as text where one may begin with "="."""

    def made() -> Download:
        return Download(f"{name}.csv", "text/csv; charset=utf-8", csv_text(frame()).encode())

    return made


def json_of(values: Callable[[], Mapping[str, Any]], name: str) -> Callable[[], Download]:
    """Plain values."""
    return lambda: Download(
        f"{name}.json", "application/json", json.dumps(plain(values()), ensure_ascii=False).encode()
    )


def png_of(draw: Callable[[], Any], name: str) -> Callable[[], Download]:
    """A figure of matplotlib, or axes of one."""

    def made() -> Download:
        import matplotlib

        matplotlib.use("agg")  # a window could not be drawn from the worker's thread
        import matplotlib.pyplot as plt

        drawn = draw()
        figure, buffer = getattr(drawn, "figure", drawn), io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        plt.close(figure)
        return Download(f"{name}.png", "image/png", buffer.getvalue())

    return made


def html_of(page: Callable[[], str], name: str) -> Callable[[], Download]:
    """A whole page that needs nothing but a browser."""
    return lambda: Download(f"{name}.html", "text/html; charset=utf-8", page().encode())


def saved_page(title: str, body: Markup, provenance: Mapping[str, Any]) -> str:
    """A page to keep, of a view's content: without scripts, forms or links to the explorer."""
    return render(
        "saved.html", title=title, body=body, styles=styles(), provenance=provenance, scripts=(), script_hashes=()
    )
