"""Templates of the explorer, and files made of what its views give."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from ..core.json_values import plain
from ..pages.rendering import PACKAGE as PAGES
from ..pages.rendering import script_of
from ..show import notebook
from ..show.records import csv_text
from .queries import address

PACKAGE = "ffnmem.explorer"

render = partial(notebook.render, package=(PACKAGE, PAGES), address=address)


def fragment(template: str, **values: Any) -> Markup:
    """A template filled in, as part of a page."""
    return Markup(render(template, **values))


@cache
def asset(name: str) -> str:
    """A script or style of the explorer."""
    return files(PACKAGE).joinpath("templates", name).read_text("utf-8")


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


@dataclass(frozen=True)
class Download:
    """A file: its name, its media type and its content."""

    name: str
    media: str
    content: bytes


def figure_png(drawn: Any) -> bytes:
    """A figure of matplotlib, or axes of one; the figure is closed."""
    import matplotlib.pyplot as plt

    figure, buffer = getattr(drawn, "figure", drawn), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


FORMATS: Mapping[str, tuple[str, Callable[[Any], bytes]]] = {
    "csv": ("text/csv; charset=utf-8", lambda frame: csv_text(frame).encode()),
    "png": ("image/png", figure_png),
    "html": ("text/html; charset=utf-8", str.encode),
    "json": ("application/json", lambda values: json.dumps(plain(values), ensure_ascii=False).encode()),
    "zip": ("application/zip", bytes),
}
"""By the name in the address: a file's media type, and how it is written from what a view gives."""


def download(form: str, name: str, make: Callable[[], Any]) -> Download:
    """A file of a view, made now. Cells of a table are data as they are, those that begin with "=" too."""
    import matplotlib

    matplotlib.use("agg")  # a window could not be drawn from the worker's thread
    media, written = FORMATS[form]
    return Download(f"{name}.{form}", media, written(make()))


def saved_page(title: str, body: Markup, provenance: Mapping[str, Any]) -> str:
    """A page to keep, of a view's content: without scripts, forms or links to the explorer."""
    return render(
        "saved.html",
        title=title,
        body=Markup(re.sub("<form.*?</form>", "", body, flags=re.DOTALL)),
        styles=Markup(styles()),
        provenance=provenance,
        scripts=(),
        script_hashes=(),
    )
