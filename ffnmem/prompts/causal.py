"""``causal_scores``: what the removal of every neuron's every firing does to an answer, told by one backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, counted
from ..core.progress import Progress
from ..core.types import CausalRule, Count, Means, Whole, checked
from ..models.norms import at_least_float32
from .attribution import largest
from .captures import Capture, Target
from .firings import Firings, PromptQuestion
from .means import references

STEPS = 20
EXACT = 10  # firings that are removed exactly, too
BATCH, BATCH_TOKENS = 16, 1024  # steps of an integral at once, and the tokens of a batch


@checked
@dataclass(frozen=True, eq=False, repr=False)
class CausalScores(Firings):
    """About how much of an answer each firing is worth: what would go with it. Made by :func:`ffnmem.causal_scores`.

    Attributes:
        scores: ``[layer, pos, d_mlp]``, an estimate of Δ − Δ(this firing at its reference), Δ the logit below.
        coefficients: ``[layer, pos, d_mlp]``.
        logit: Δ, the model's own logit of the target (minus the foil's) at ``position``; of an answer of several tokens
            the log-probability of all of them.
        rule: "gradient" or "ig"; reference: what a firing is compared with, in words.
        expected: of "ig" what the sum of all scores should be, Δ − Δ(all firings at their reference). None of
            "gradient", whose scores have no sum.
        exact: of the largest firings, in the order of :meth:`top`, Δ − Δ(this firing at its reference), each removed in
            a run of its own; as many as were asked for.
    """

    column: ClassVar[str] = "score"
    tables: ClassVar = {
        "firings": "neuron fired_at position coefficient score exact share promotes | suppresses",
        "by_position": "token position score share strongest_layer written_there",
        "map": "",
    }

    rule: str
    reference: str
    expected: float | None
    exact: tuple[float, ...]

    @property
    def shared(self) -> float:
        """The logit; NaN of a log-probability, of which nothing is a share."""
        return math.nan if self.answer.whole else super().shared

    @property
    def completeness_error(self) -> float | None:
        """\\|sum − ``expected``\\|; None of a rule that has no sum."""
        if self.expected is None:
            return None
        return abs(float(self.map.sum()) - self.expected)

    def top(self, k: Count | None = 20) -> pd.DataFrame:
        """The ``k`` largest firings (all for None): layer, neuron, position, token, coefficient, score, exact, share;
        ``exact`` is missing where it was not asked for."""
        found = super().top(k)
        found.insert(
            found.columns.get_loc("score") + 1, "exact", pd.Series(self.exact, dtype=float).reindex(found.index)
        )
        return found

    @property
    def heading(self) -> str:  # type: ignore[override]
        return f"prompt after target foil {self.quantity} rule reference expected completeness_error"

    def agreement(self, top: Count | None = None) -> str:
        """How the scores of the firings that were removed exactly agree with that, in words; empty if none was."""
        found = self.top(len(self.exact) if top is None else top).dropna(subset="exact")
        if found.empty:
            return ""
        opposed = int((np.sign(found["score"]) * np.sign(found["exact"]) < 0).sum())
        wrong = f"{opposed:,} with a score of the other sign" if opposed else "all with a score of the same sign"
        many = len(found) > 2 and min(found["score"].std(), found["exact"].std()) > 0
        rank = f" (correlation {found['score'].corr(found['exact']):.2f})" if many else ""
        return f"{counted(len(found), 'firing')} removed one by one, exactly: {wrong}{rank}"

    @property
    def verdict(self) -> str:
        """How far the scores can be trusted."""
        words = self.agreement() if self.exact else ""
        return f"{words}." if words else ""


@checked
def causal_scores(
    capture: Capture,
    target: Target = None,
    foil: str | int | None = None,
    rule: CausalRule = "gradient",
    *,
    mean: Means = None,
    steps: Count = STEPS,
    position: int = -1,
    prompt: int | None = None,
    first_token: bool = False,
    exact: Whole = EXACT,
    progress: Progress | None = None,
) -> CausalScores:
    """Which firings an answer depends on.

    Says about what an answer would lose without each firing of each neuron, all of them from one backward pass. A
    firing is a neuron at a position. :func:`ffnmem.ablate` removes neurons one at a time, exactly; here later layers'
    reactions are followed too, to first order, at the cost of about two more forward passes for all firings. First
    order can be wrong, even in sign, so the largest firings are removed exactly as well.

    Note:
        With Δ the logit, m a firing's coefficient and m̄ its reference, the rules are:

        - ``"gradient"``, attribution patching: (m − m̄)·∂Δ/∂m. Best for the effect of removing one firing.
        - ``"ig"``, integrated gradients: (m − m̄)·∂Δ/∂m averaged while all coefficients go from m̄ to m together, at the
          midpoints of ``steps`` parts; those of the beginning-of-sequence token stay as they are and score 0. Their sum
          is Δ minus the Δ of all firings at their reference, but for what the steps miss. With a norm behind the FFN
          (Gemma 2) the way from zero begins with a jump, which no number of steps sees: give a ``mean``.

    Args:
        capture: of all layers, without an intervention.
        target, foil, position, prompt, first_token: as :func:`ffnmem.attribute_paths` takes them.
        rule: gradient is best for the effect of single firings, ig sums to the change of all.
        mean: m̄, what a firing is compared with: None for zero; a Store or a Capture, for its neuron's mean over the
            content positions; or numbers ``[layer, d_mlp]`` or ``{layer: [d_mlp]}``.
        steps: into how many the way of "ig" is cut.
        exact: how many of the largest firings are removed exactly, each in one row of a batch: as many more runs of the
            prompt. 0 for none.
        progress: called with "causal", the steps done and all of them, and with "exact", the firings.

    Returns:
        A :class:`CausalScores`: ``.top(k)`` (layer, neuron, position, token, coefficient, score, exact, share),
        ``.neurons``,
        ``.map`` ``[layer, pos]``, ``.scores`` ``[layer, pos, d_mlp]``, ``.completeness_error``.

    Raises: as :func:`ffnmem.attribute_paths`; InputError for an unknown rule, means of another model, or a capture made
        under an intervention.

    Source: attribution patching, Nanda 2023 and Syed et al. 2023 (2310.10348); integrated gradients, Sundararajan et
        al. 2017 (1703.01365).

    Example:
        $ ffnmem causal "The Eiffel Tower is located in the city of" \\
            --target " Paris" --foil " Rome"
        $ ffnmem causal "The capital of France is" --rule ig --plot causal.png
    """
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    check_plain(capture)
    reference, words = references(mean, question.model)
    expected: float | None = None
    if rule == "ig":
        slopes, logit, expected = integrate_gradients(question, reference, steps, progress)
    else:
        gradients, _, logits = question.gradients(1, lambda _, m: m)
        slopes, logit = question.model.stack_layers(one[0] for one in gradients), float(logits)
    coefficients = at_least_float32(question.coefficients)
    scores = (coefficients - at_least_float32(reference).unsqueeze(1)) * at_least_float32(slopes)
    if rule == "ig" and capture.starts_with_bos:
        scores[:, 0] = 0.0  # its firings stay as they are
    largest_ones = largest(at_least_float32(scores).cpu().numpy().ravel(), max(exact, 1))[:exact]
    return CausalScores(
        scores=scores,
        coefficients=coefficients,
        logit=logit,
        rule=rule,
        reference=words,
        expected=expected,
        exact=remove_each(question, reference, largest_ones, progress),
        **question.result_fields(),
        widths=question.model.widths,
        provenance=capture.provenance.with_settings(
            rule=rule, reference=words, **({"steps": steps} if rule == "ig" else {})
        ),
    )


def check_plain(capture: Capture) -> None:
    """Raise InputError for a capture under an intervention: what changes its coefficients would change ours."""
    made_under = dict(capture.provenance.settings).get("interventions")
    if made_under:
        raise InputError(f"the capture was made under an intervention ({made_under}): capture the prompt without it")


def remove_each(
    question: PromptQuestion,
    reference: Float[Tensor, "layer d_mlp"],
    firings: Int[np.ndarray, " n"],
    progress: Progress | None,
) -> tuple[float, ...]:
    """Δ − Δ(without this firing) of each of some, by their places in ``[layer, pos, d_mlp]``, as rows of a batch."""
    found: list[float] = []
    at_once = max(1, BATCH_TOKENS // len(question.tokens))
    for start in range(0, len(firings), at_once):
        layers, places, neurons = np.unravel_index(firings[start : start + at_once], question.coefficients.shape)

        def change(layer: int, m: Tensor, of: Any = (layers, places, neurons)) -> Tensor:
            rows = np.flatnonzero(of[0] == layer)
            places, neurons = of[1][rows], of[2][rows]
            m = m.clone()
            m[rows + 1, places, neurons] = reference[layer, neurons]
            return m

        with torch.no_grad():
            whole, *without = question.rerun(len(layers) + 1, change).tolist()  # the first row is the prompt as it is
        found += [whole - one for one in without]
        if progress is not None:
            progress("exact", len(found), len(firings))
    return tuple(found)


def integrate_gradients(
    question: PromptQuestion, reference: Float[Tensor, "layer d_mlp"], steps: int, progress: Progress | None
) -> tuple[Float[Tensor, "layer pos d_mlp"], float, float]:
    """Mean slopes, Δ, and Δ minus the Δ of every firing at its reference, but for the first token if BOS."""
    m = question.coefficients
    away = m - reference.unsqueeze(1)
    if question.capture.starts_with_bos:
        away[:, 0] = 0.0
    parts = (torch.arange(steps, dtype=m.dtype, device=m.device) + 0.5) / steps
    total = torch.zeros_like(at_least_float32(m))

    def at(shares: Tensor, layer: int, own: Tensor) -> Tensor:
        """Coefficients with these shares of the way from the reference gone, a row each."""
        return (m[layer] - (1 - shares).reshape(-1, 1, 1) * away[layer])[..., : own.shape[-1]]

    done = 0
    for some in torch.split(parts, max(1, min(BATCH, BATCH_TOKENS // len(question.tokens)))):
        gradients, _, _ = question.gradients(len(some), partial(at, some))
        total += question.model.stack_layers(at_least_float32(one).sum(0) for one in gradients)
        done += len(some)
        if progress is not None:
            progress("causal", done, steps)
    with torch.no_grad():
        clean, without = question.rerun(2, partial(at, parts.new_tensor([1.0, 0.0]))).tolist()
    return total / steps, clean, clean - without
