"""The page of a contrast: the firings that decide between the answers to two prompts, where they are, and the proof."""

from __future__ import annotations

from pathlib import Path

from ..core.files import check_destination, write_whole
from ..core.sheets import Grid, Sheet, Words, line, token
from ..core.types import Count, checked
from ..interventions.contrasts import Contrast
from .links import to_site
from .rendering import Section, page_html, split_sheet, without_origin


@checked
def contrast(
    contrast: Contrast, out: str | Path = "contrast.html", *, top: Count = 40, site: str | Path | None = None
) -> Path:
    """Write a contrast as one HTML file that needs nothing but a browser.

    Args:
        contrast: from :func:`ffnmem.contrast` or :func:`ffnmem.patch`.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many firings to list.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.

    Returns: The path written.

    Raises: FileError: ``out`` is a folder, its folder is missing, or it cannot be written; or there is no such site.
    """
    path = check_destination(out)
    links = to_site(site, path, contrast.provenance.fingerprint)
    sections = contrast_sections(contrast, top)
    sections[0] = Section("", Sheet.of(Words(line(f"{contrast.verdict}.")), *sections[0].sheet.blocks))
    write_whole(path, page_html("Two prompts, one difference", sections, contrast.provenance.to_dict(), links=links))
    return path


def contrast_sections(contrast: Contrast, top: int) -> list[Section]:
    """Both prompts and the proof, where the firings are, and the ``top`` ones."""
    first, *rest = split_sheet(without_origin(contrast.sheet(top, verdict=False)))
    *facts, firings = first.sheet.blocks
    where = Section("Where they are", Sheet((firing_grid(contrast),)), "Their scores, summed by layer and position.")
    return [Section("", Sheet(tuple(facts))), where, Section("Which they are", Sheet((firings,))), *rest]


def firing_grid(contrast: Contrast) -> Grid:
    """The scores of the firings found, by the layers that have any, the last one first, and such positions."""
    summed = contrast.firings.pivot_table("score", "layer", "position", "sum")[::-1]
    return Grid(
        rows=tuple(f"layer {layer}" for layer in summed.index),
        columns=tuple(token(contrast.tokens[position]) for position in summed),
        values=tuple(tuple(row) for row in summed.to_numpy().tolist()),
        limit=float(summed.abs().max(axis=None)) or 1.0,
        unit="logits",
    )
