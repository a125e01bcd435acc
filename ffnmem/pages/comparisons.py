"""The page of two models compared: what became of the memories, layer by layer, and which moved most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..comparing.comparison import Comparison
from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.sheets import Block, Column, Sheet, Table, tokens
from ..core.types import Count, checked
from ..models.model import Model
from ..vocabulary.projections import end_tokens
from .rendering import sheet_html

TOKENS = 6


@checked
def comparison(
    comparison: Comparison, out: str | Path = "comparison.html", first: Model | None = None, *, top: Count = 20
) -> Path:
    """Write a comparison as one HTML file that needs nothing but a browser.

    Args:
        comparison: from :func:`ffnmem.compare`.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        first: the first model as it was compared, without the edit, for what memories promote.
        top: how many memories to list of each kind.

    Returns: The path written.

    Raises: FileError: ``out`` is a folder, its folder is missing, or it cannot be written. InputError: another model.
    """
    path = check_destination(out)
    if first is not None and first.fingerprint != comparison.provenance.fingerprint:
        raise InputError(
            f"the comparison is of {comparison.first} {comparison.provenance.fingerprint}, the model given is "
            f"{first.name} {first.fingerprint}"
        )
    sheet = comparison.sheet(top)
    if first is not None:
        sheet = Sheet(tuple(add_promoted(block, first) for block in sheet.blocks))
    write_whole(path, sheet_html(sheet, "Two models, memory by memory"))
    return path


def add_promoted(block: Block, model: Model) -> Block:
    """A table of neurons with the tokens that each promotes in the first model; of matches, those of the match."""
    places = (
        [i for i, column in enumerate(block.columns) if column.kind == "neuron"] if isinstance(block, Table) else []
    )
    if not isinstance(block, Table) or not places:
        return block
    ends = [(*row[places[-1]], "value", "promoted") for row in block.rows]
    found = end_tokens(model, ends, TOKENS)
    rows = tuple((*row, tokens(found[end])) for row, end in zip(block.rows, ends, strict=True))
    return replace(block, columns=(*block.columns, Column("promotes", wraps=True)), rows=rows)
