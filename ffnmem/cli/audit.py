"""``ffnmem audit``: what an edit left behind in a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import Dtype
from ..show.records import emit
from .options import Count, Device, FactSource, Full, LensName, Output, ReaderChoice
from .progress import show_progress

Text = Annotated[str, Parameter(metavar="TEXT")]


def audit(
    before: str,
    after: str,
    /,
    *,
    facts: FactSource | None = None,
    prompt: Text | None = None,
    subject: Text | None = None,
    ranks: Count = 64,
    parts: Count = 4,
    lens: LensName = "logit",
    full: Full = False,
    device: Device | None = None,
    dtype: Dtype = "float32",
    output: Output = Output(),
) -> None:
    """What an edit left behind: the matrices, ranks and facts that it changed.

    Names the matrices in which checkpoint AFTER differs from BEFORE, which it was made of: by how much, by what rank,
    and which neurons and tokens the parts of the change consist of. Facts are asked of both. It does not matter who
    made the edit, and no record of it is needed. Both are atlas, folders or Hugging Face ids.

    Examples
      ffnmem audit atlas edited
      ffnmem audit atlas edited --subject "Eiffel Tower" \\
          --prompt "The Eiffel Tower is in" --json

    --csv has one row a matrix that changed: layer (-1 outside of layers), matrix, parameter, norm, of_norm, rank, more,
    tolerance. --json has the conclusion, matrices, parts with their neurons and tokens, and the facts whose answer
    changed (with --full, all).

    Args:
        before: The checkpoint that the other was made of.
        after: The checkpoint to look into.
        facts: Facts to ask both.
        prompt: A text to ask about in place of facts.
        subject: What it is about, spelled as it is there.
        ranks: Singular values to count of each matrix.
        parts: Parts of each matrix to read.
        dtype: Numeric type of the weights.
    """
    if (prompt is None) != (subject is None) or (prompt is not None and facts is not None):
        raise InputError("--prompt TEXT goes with --subject TEXT, and stands in place of --facts")
    asked = prompt if facts is None else fm.load_facts(facts)
    first = ReaderChoice(model=before, device=device, dtype=dtype, prepend_bos=None)
    models = first.load(), replace(first, model=after).load()
    with show_progress() as report:
        found = fm.editing.audit(*models, asked, subject=subject, ranks=ranks, parts=parts, lens=lens, progress=report)
    emit(found, output.form, full=full)
