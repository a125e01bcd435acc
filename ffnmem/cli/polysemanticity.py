"""``ffnmem polysemanticity`` and ``describe``: is a neuron one concept or many, and words for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, JUDGED_TOGETHER
from ..core.types import CoefficientSign, Dtype
from ..show.records import emit
from .options import (
    AnswersFile,
    Count,
    Device,
    Neurons,
    Output,
    ReaderChoice,
    Seed,
    StoreFolder,
)
from .progress import show_progress

if TYPE_CHECKING:
    pass

Contexts = Annotated[int, Parameter(validator=Number(gte=4), metavar="N")]


def describe(
    neurons: Neurons,
    /,
    *,
    store: StoreFolder,
    with_: Annotated[str, Parameter(name="--with", metavar="MODEL")],
    device: Device | None = None,
    dtype: Dtype = "float32",
    sign: CoefficientSign | None = None,
    shown: Contexts = CONTEXTS_SHOWN,
    tested: Contexts = CONTEXTS_TESTED,
    together: Count = JUDGED_TOGETHER,
    out: AnswersFile | None = None,
    seed: Seed = 0,
    output: Output = Output(),
) -> None:
    """Descriptions of neurons in words, and how well they fit contexts that were held back.

    A language model on this machine is shown contexts in which a neuron fires, and describes it in a sentence. It is
    then asked to which of other contexts, half of them firing and half quiet, the description applies: the score, a
    balanced accuracy. The null is the same with the description of another neuron. Both are 50% by chance.

    Examples
      ffnmem describe --store runs/atlas 3.17,5.97 --with smollm2

    --csv has one row a neuron: layer, neuron, sign, description, why, score and null with their _low and _high,
    null_of, n, shown, unread. --json has besides every question and answer.

    Args:
        with_: The model that is asked, as --model takes it elsewhere; one that was trained for chats answers best.
        dtype: Numeric type of its weights.
        sign: Which coefficients. [default: those of the side on which each neuron is stronger]
        shown: Contexts that are shown, at most.
        tested: Contexts held back of each kind, firing and quiet, at most.
        together: Contexts in a question of the score.
        out: Keep questions and answers in this file (JSON lines); what it has is not asked again.
    """
    opened = fm.open_store(store)
    opened.places(neurons)  # refuse before a model is loaded
    ask = fm.describing.ask_model(ReaderChoice(model=with_, device=device, dtype=dtype).load())
    with show_progress() as report:
        found = fm.describe(
            opened, neurons, ask, sign=sign, shown=shown, tested=tested, together=together, out=out, seed=seed,
            progress=report,
        )  # fmt: skip
    emit(found, output.form)
