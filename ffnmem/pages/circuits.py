"""The page of a circuit: its picture, and the firings with what each read."""

from __future__ import annotations

from pathlib import Path

from ..core.files import check_destination, write_whole
from ..core.pictures import picture
from ..core.sheets import line, token
from ..core.types import Count, checked
from ..prompts.circuits import Circuit
from .links import to_site
from .rendering import page_html, picture_source, split_sheet, without_origin


@checked
def circuit(
    circuit: Circuit, out: str | Path = "circuit.html", *, top: Count = 40, site: str | Path | None = None
) -> Path:
    """Write a circuit as one HTML file that needs nothing but a browser.

    Args:
        circuit: from :func:`ffnmem.circuit`, or the graph of a contrast.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many firings to draw and to list.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.

    Returns: The path written.

    Raises: FileError: ``out`` is a folder, its folder is missing, or it cannot be written; or there is no such site.
    """
    path = check_destination(out)
    links = to_site(site, path, circuit.provenance.fingerprint)
    foil = () if circuit.foil is None else line(" rather than ", token(circuit.foil))
    html = page_html(
        line("The circuit of ", token(circuit.target), *foil),
        list(split_sheet(without_origin(circuit.sheet(top)))),
        circuit.provenance.to_dict(),
        template="circuit.html",
        links=links,
        source=picture_source(picture("figure")(circuit, top=top)),
    )
    write_whole(path, html)
    return path
