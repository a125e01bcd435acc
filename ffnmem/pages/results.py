"""The page of any result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.files import check_destination, write_whole
from ..core.pictures import picture
from ..core.types import Count, checked
from ..show.result import Result
from .links import Links, nowhere, to_cards, to_site
from .rendering import picture_source, sheet_html


@checked
def page(
    result: Result, out: str | Path, *, top: Count | None = 40, full: bool = True, site: str | Path | None = None
) -> Path:
    """Write a result as one HTML file that needs nothing but a browser.

    Args:
        result: one that says what is shown of it.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many rows of each table; None for all.
        full: all columns of each.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.

    Returns: The path written.

    Raises: FileError: ``out`` is a folder, its folder is missing, or it cannot be written; or there is no such site.
    """
    path = check_destination(out)
    provenance = getattr(result, "provenance", None)
    found = provenance.get("fingerprint") if isinstance(provenance, Mapping) else getattr(provenance, "fingerprint", "")
    links = to_site(site, path, found or "")
    write_whole(path, result_html(result, top, full, links))
    return path


def result_html(result: Result, top: int | None, full: bool, links: Links = nowhere) -> str:
    """A result as a page."""
    result = result.on_page(top)
    more: dict[str, Any] = {"lead": result.lead} if hasattr(result, "lead") else {}
    if result.pictured:
        figure = picture("figure")(result, **({} if top is None else {"top": top}))
        more |= {"template": "circuit.html", "source": picture_source(figure)}
    cards = [(one.layer, one.neuron) for one in getattr(result, "cards", ())]
    return sheet_html(result.sheet(top, full), result.title, links=to_cards(cards, links), **more)
