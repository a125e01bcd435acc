"""``ffnmem compare``: two models, or one before and after an edit, memory by memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.defaults import CHANCE, COMPARED_TOKENS, REACH
from ..core.errors import InputError
from ..core.types import Dtype
from .guard import note
from .options import (
    BOS,
    CorpusReading,
    Count,
    CountOrAll,
    Device,
    Full,
    Page,
    PlottedOutput,
    ReaderChoice,
    Seed,
    Share,
    Top,
    option_group,
)
from .progress import show_progress


@option_group
class ComparedText(CorpusReading):
    """How both models read a corpus, as the library's arguments of it.

    Attributes:
        tokens: Read whole sequences, drawn at random, until they hold so many tokens; all reads everything.
        reach: Look for a neuron in layers up to N away from its own depth; -1 for all layers.
        chance: A match is better than that of all but this share of neurons among random ones.
        batch_tokens: Tokens of one pass; fewer need less memory.
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """

    tokens: CountOrAll = COMPARED_TOKENS
    reach: Annotated[int, Parameter(validator=Number(gte=-1), metavar="N")] = REACH
    chance: Share = CHANCE
    batch_tokens: Count = 2048
    seed: Seed = 0
    prepend_bos: Annotated[bool | None, BOS] = None


def compare(
    a: str,
    b: str | None = None,
    /,
    *,
    edit: Annotated[str | None, Parameter(metavar="FILE")] = None,
    corpus: str | None = None,
    reading: ComparedText = ComparedText(),
    html: Page | None = None,
    top: Top = 10,
    full: Full = False,
    device: Device | None = None,
    dtype: Dtype = "float32",
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Two models memory by memory: what moved, what matches, what is new.

    Says which memories of model B are those of A, which moved, which are at another place, and which are new. Weights
    are compared place by place, exactly. With --corpus both read the same tokens: a neuron of B is looked for among
    those of A by the correlation of what they do, beside its best among random neurons. A and B are atlas, folders or
    Hugging Face ids, two checkpoints or two seeds; or an edit takes B's place.

    Examples
      ffnmem compare atlas --edit eiffel.zip
      ffnmem compare atlas --edit eiffel.zip --corpus atlas --plot a.png
      ffnmem compare checkpoint-1000 checkpoint-2000 --corpus texts.jsonl
      ffnmem compare seed-1 seed-2 --corpus texts.jsonl --html seeds.html
      ffnmem compare atlas --edit eiffel.zip --csv > neurons.csv

    same: weights as in its place, to rounding. moved: changed, and still most like the neuron of its place. permuted:
    most like another. new: like none beyond chance. silent: changed, and never varies on the text.

    --csv has one row a neuron of B: layer, neuron, with --corpus match_layer, match_neuron, correlation, baseline,
    excess and more, then cosines with the match, changes and verdict. --json has the counts, layers, the neurons that
    moved most (with --full all) and verdicts at other thresholds.

    Args:
        a: The first model.
        b: The second.
        edit: Compare A with itself and this edit, in place of B.
        corpus: Both read it: what fires alike, and what they say. What ffnmem scan takes. [default: weights alone]
        html: Also write the comparison as a page.
        dtype: Numeric type of the weights.
    """
    if (b is None) == (edit is None):
        raise InputError("what to compare A with: give B, or --edit FILE to compare it with itself and the edit")
    if corpus is None and reading != ComparedText():
        raise InputError("a comparison of weights alone reads no text: give --corpus, or leave out how it is read")
    saved = None if edit is None else fm.Edit.load(edit)
    choice = ReaderChoice(
        model=a, device=device, dtype=dtype, prepend_bos=False if corpus is None else reading.prepend_bos
    )
    first = choice.load()
    second = first if b is None else replace(choice, model=b).load()
    settings = {**vars(reading), "reach": None if reading.reach < 0 else reading.reach}
    with show_progress() as report:
        result = fm.compare(first, second, corpus, edit=saved, progress=report, **settings)
    output.emit(result, top=top, full=full)
    if html is not None:
        note(f"wrote {fm.pages.comparison(result, html, first)}")
