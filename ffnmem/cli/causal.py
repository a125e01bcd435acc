"""``ffnmem causal``: which firings an answer depends on, and whether a few of them are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.types import CausalRule
from ..show.records import emit
from .options import Answer, Directory, Output, PlottedOutput, Positive, Prompt, PromptChoice, Seed, Top, option_group
from .progress import show_progress

if TYPE_CHECKING:
    from ..core.progress import Progress
    from ..prompts.captures import Capture
    from ..prompts.causal import CausalScores

causal = App(name="causal")
Recorded = Annotated[bool, Parameter(help="Kept firings stay as they were, whatever then stands below them.")]


@option_group
class Scoring:
    """How firings are scored.

    Attributes:
        rule: gradient is best for the effect of single firings, ig sums to the change of all.
        mean: A firing's reference is its neuron's mean over this store, in place of zero.
    """

    rule: CausalRule = "gradient"
    mean: Directory | None = None

    def score(
        self, prompt: str, model: PromptChoice, answer: Answer, exact: int, progress: Progress
    ) -> tuple[Capture, CausalScores, dict[str, Any]]:
        """The prompt's run, the scores of its firings, and what a set of them is measured with."""
        mean = None if self.mean is None else fm.open_store(self.mean)
        capture = model.capture(prompt)
        shared: dict[str, Any] = {**vars(answer), "mean": mean, "progress": progress}
        scores = fm.causal_scores(capture, rule=self.rule, exact=exact, **shared)
        return capture, scores, {**shared, "firings": scores}


@causal.default
def score_firings(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    scoring: Scoring = Scoring(),
    top: Top = 20,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which firings an answer depends on, and how few are enough.

    Says what the answer to PROMPT would lose without each firing of each neuron, all of them from one backward pass. A
    firing is a neuron at a position. "ablate" removes neurons one at a time, exactly; this tells about the same of all
    firings at once, later layers' reactions included, to first order. That can be wrong, even in sign: the firings
    listed are also removed one by one, exactly, at the cost of one run of PROMPT each (--top of them).

    Examples
      ffnmem causal "The Eiffel Tower is located in the city of" \\
          --target " Paris" --foil " Rome"
      ffnmem causal "The capital of France is" --rule ig --plot causal.png

    --csv has the firings: layer, neuron, position, token, coefficient, score, exact, share. --json has these and more.
    """
    with show_progress() as progress:
        _, scores, _ = scoring.score(prompt, model, answer, top, progress)
    output.emit(scores, top=top, full=False, frame=lambda: scores.top(top), drawn={"top": min(top, 40)})


@causal.command
def faithfulness(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    scoring: Scoring = Scoring(),
    recorded: Recorded = False,
    seed: Seed = 0,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """How much of an answer the largest firings keep.

    Keeps the largest firings of PROMPT, sets all others to their reference, and prints how much of the answer is left.

    Examples
      ffnmem causal faithfulness "The capital of France is"

    --csv has the curve: size, share, faithfulness, completeness (what all others keep), random and its range. --json
    has these and more.
    """
    with show_progress() as progress:
        capture, _, settings = scoring.score(prompt, model, answer, 0, progress)
        found = fm.faithfulness(capture, recorded=recorded, seed=seed, **settings)
    output.emit(found)


@causal.command
def minimal(
    prompt: Prompt,
    /,
    *,
    share: Annotated[Positive, Parameter(metavar="SHARE")],
    answer: Answer = Answer(),
    scoring: Scoring = Scoring(),
    recorded: Recorded = False,
    top: Top = 20,
    model: PromptChoice = PromptChoice(),
    output: Output = Output(),
) -> None:
    """The fewest firings that keep a share of an answer.

    Looks for the fewest firings of PROMPT that keep --share of the answer, such as .9.

    Examples
      ffnmem causal minimal "The capital of France is" --share .9 --json

    --csv has the firings of the set: layer, neuron, position, token, without (what the set keeps without it; in a set
    too large to try each, worth in its place). --json has these and more.

    Args:
        share: Of the answer, such as .9.
    """
    with show_progress() as progress:
        capture, _, settings = scoring.score(prompt, model, answer, 0, progress)
        found = fm.minimal_circuit(capture, faithfulness=share, recorded=recorded, **settings)
    emit(found, output.form, top=top)
