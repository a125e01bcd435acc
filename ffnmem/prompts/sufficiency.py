"""``faithfulness``: how much of an answer is left where only some firings are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex

import numpy as np
import pandas as pd

from ..core.errors import InputError, OutOfRangeError, counted
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.types import Count, FiringNames, Means, Seed, Whole, checked
from .answer_text import AnswerResult
from .captures import Capture, Target
from .causal import check_plain
from .firings import PromptQuestion
from .keeping import BATCH_TOKENS, CARRIES, Keeping, Set
from .means import references

DRAWS = 5  # random sets of each size
STEPS = (1, 2, 5)
SWINGS = -0.05  # a share of an answer below which it is said that some firings lower it


def choose_sizes(sizes: Iterable[int] | None, count: int, ordered: bool) -> list[int]:
    """How many firings to keep, ascending: 1, 2, 5, 10, … and all of them; of a set without order all of it."""
    if sizes is not None:
        found = sorted(set(sizes))
        if not found or found[-1] > count:
            raise InputError(f"sizes must name at least one size, none above {count:,}, the firings that there are")
        return found
    if not ordered:
        return [count]
    steps = [step * 10**power for power in range(10) for step in STEPS]
    return [*(step for step in steps if step < count), count]


# The results.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness(AnswerResult):
    """How much of an answer the first firings of a ranking keep, by their number. Made by :func:`ffnmem.faithfulness`.

    With Δ(K) the answer's logit where the firings K are kept and all others are at their reference,
    f(K) = (Δ(K) − Δ(∅)) / (Δ(all) − Δ(∅)).

    Attributes:
        curve: one row a size: ``size``, ``share`` (of all firings), ``faithfulness`` f(K), ``completeness`` f of all
            but K (0 where the answer hangs on K alone), ``random`` f of as many drawn at random (the mean of the
            draws), ``random_low`` and ``random_high``, the least and the largest draw; of a set, too,
            ``random_without``, ``random_without_low`` and ``random_without_high``: f of all but as many at random.
        total: all firings, those of the beginning-of-sequence token left out, which are always kept.
        logit, without: Δ(all) and Δ(∅).
        reference: what all others were set to; order: the ranking, in words.
        runs: how many sets were run.
    """

    tables: ClassVar = {
        "curve": "size share faithfulness completeness random random_low random_high random_without random_without_low "
        "random_without_high"
    }
    only_data = "total"

    curve: pd.DataFrame
    total: int
    logit: float
    without: float
    reference: str
    order: str
    runs: int

    @property
    def cpr(self) -> float | None:
        """∫ f over the share kept, by the trapezoid rule (MIB's CPR: high is good, and above 1 where helpers come
        first); None where the ranking leaves firings out."""
        return self.area(lambda f: f)

    @property
    def cmd(self) -> float | None:
        """∫ |1 − f| (MIB's CMD: 0 is a perfect circuit at every size); None where the ranking leaves firings out."""
        return self.area(lambda f: np.abs(1 - f))

    def area(self, of: Callable[[np.ndarray], np.ndarray], column: str = "faithfulness") -> float | None:
        """The integral of a function of a column over the share kept, from nothing kept on."""
        share, f = (np.concatenate([[0.0], self.curve[name].to_numpy(float)]) for name in ("share", column))
        return float(np.trapezoid(of(f), share)) if share[-1] == 1.0 else None

    def at(self, size: int) -> dict[str, float]:
        """The curve's row of a size. Raises OutOfRangeError: it was not asked for."""
        found = self.curve[self.curve["size"] == size]
        if found.empty:
            raise OutOfRangeError(f"no size {size}: the curve has {self.curve['size'].tolist()}")
        return {str(name): float(value) for name, value in found.iloc[0].items()}

    @property
    def carrying(self) -> pd.DataFrame:
        """The sizes of ``curve`` that carry the answer: they and all larger ones keep at least half of it, the smallest
        more than any random set of as many. Of all firings, which keep it anyway, nothing is said."""
        some = self.curve[self.curve["size"] < self.total]
        enough = (some["faithfulness"] >= CARRIES)[::-1].cummin()[::-1]
        chance = some.get("random_high", -np.inf)
        return some[(enough & (some["faithfulness"] > chance)).cummax()]

    @property
    def heading(self) -> str:  # type: ignore[override]
        return f"prompt after target foil {self.quantity} none_kept reference order cpr cmd"

    @property
    def verdict(self) -> str:
        """Whether the firings carry the answer, beside as many at random, in a sentence; see :attr:`carrying`."""
        some, found = self.curve[self.curve["size"] < self.total], self.carrying
        if some.empty:
            return "All firings are kept, which says nothing about some of them."
        one = (found if len(found) else some.loc[[some["faithfulness"].idxmax()]]).iloc[0]
        alone, size = len(self.curve) == 1, counted(int(one["size"]), "firing")
        these = f"these {size}" if alone else f"the first {size}"
        keep = f"{format_share(one['faithfulness'])} of it is kept"
        if "random" in one:
            keep += f", with as many at random {format_share(one['random'])}"
        if len(found):
            carry = f"({format_fine_share(one['share'])} of all) {'carries' if one['size'] == 1 else 'carry'}"
            words = f"{these[0].upper()}{these[1:]} {carry} the answer: {keep}"
        elif alone:
            words = f"{these[0].upper()}{these[1:]} do not carry the answer: {keep}"
        else:
            words = f"No number listed carries the answer, short of all firings: at best, with {these}, {keep}"
        if "random_without" in one:
            words += f"; without them {format_share(one['completeness'])} is left"
        low = some.loc[some["faithfulness"].idxmin()]
        if not alone and low["faithfulness"] < SWINGS:
            words += f"; with {int(low['size']):,} kept it is lower than with none"
        return f"{words}."


def format_fine_share(share: float) -> str:
    """A share in percent, a small one with a digit that is not 0."""
    return format_share(share) if share >= 0.0995 / 100 else f"{100 * share:.1g}%"


@checked
def faithfulness(
    capture: Capture,
    target: Target = None,
    foil: str | int | None = None,
    firings: FiringNames = None,
    *,
    mean: Means = None,
    recorded: bool = False,
    position: int = -1,
    sizes: Iterable[Count] | None = None,
    random: Whole = DRAWS,
    seed: Seed = 0,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Faithfulness:
    """How much of an answer the largest firings keep.

    Keeps some firings, sets all others to a reference (zero, or with ``mean`` each neuron's mean), and says how much of
    the answer is left, beside as many random ones.

    A firing is a neuron at a position. A kept one is whatever its neuron computes from what is then below it, so that
    what made it fire must be kept, too; or, ``recorded``, what it was. Those of the beginning-of-sequence token are
    always kept, and not counted. Every set is one row of a batch, run whole.

    Args:
        capture: of all layers, without an intervention.
        target, foil, position, prompt, first_token: as :func:`ffnmem.attribute_paths` takes them.
        firings: a set of firings to keep, each ``3.17@5`` (layer, neuron, position), or ``3.17`` for every position;
            default: those with the largest scores of :func:`ffnmem.causal_scores` first. In Python, also a table with
            layer, neuron and position, or scores of this answer: a :class:`CausalScores` or a :class:`PathAttribution`,
            of which the largest in size are kept first; by default those with the same ``mean``.
        mean: what all others are set to. None is zero, which no neuron of a trained model need be near; a Store, a
            Capture or numbers are taken as :func:`ffnmem.causal_scores` takes them. The result says which it was.
        recorded: keep firings at the coefficients of the capture, whatever then stands below them: the weaker question
            which ones the answer reads, not which ones bring it about.
        sizes: how many firings to keep; default 1, 2, 5, 10, … and all, or of a set the whole of it.
        random: how many random sets of each size are the null; 0 for none. Of a given set they are kept, and removed.
        seed: of the random sets.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "faithfulness", the sets run and all of them.

    Returns: A :class:`Faithfulness`: ``.verdict``, ``.curve``, ``.cpr``, ``.cmd``, ``.at(size)``. Shares need not rise
        with size: a kept firing reacts to what is missing, so that a set may keep less than none does.

    Raises: as :func:`ffnmem.causal_scores`; InputError for firings of another prompt, sizes above their number, or an
        answer that is the same with all firings and with none.

    Source: MIB, Mueller et al. 2025 (2504.13151), for CPR and CMD; faithfulness and completeness of Marks et al. 2024
        (2403.19647).

    Example:
        $ ffnmem faithfulness "The capital of France is"
    """
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    check_plain(capture)
    keeping = Keeping(question, *references(mean, question.model), recorded, batch_tokens)
    keeping.check_matters()
    order, words, ordered = keeping.ranked(firings)
    chosen = choose_sizes(sizes, len(order), ordered)
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(keeping.counted()) for _ in range(random)]
    shown = 2 + random * (1 if ordered else 2)  # of a set, what is left without random ones, too

    def sets() -> Iterator[Set]:
        for i, size in enumerate(chosen):
            kept = keeping.of(order[:size])
            yield kept
            yield ~kept
            for one in drawn:
                yield keeping.of(one[:size])
            for one in () if ordered else drawn:
                yield ~keeping.of(one[:size])
            if progress is not None:
                progress("faithfulness", (i + 1) * shown, len(chosen) * shown)

    shares = keeping.shares(sets()).reshape(len(chosen), shown)
    curve = pd.DataFrame(
        {
            "size": chosen,
            "share": [size / keeping.total for size in chosen],
            "faithfulness": shares[:, 0],
            "completeness": shares[:, 1],
        }
    )
    if random:
        for name, nulls in (("random", shares[:, 2 : 2 + random]), ("random_without", shares[:, 2 + random :])):
            if nulls.size:
                ends = {name: nulls.mean(1), f"{name}_low": nulls.min(1), f"{name}_high": nulls.max(1)}
                curve = curve.assign(**ends)
    return Faithfulness(
        curve=curve,
        total=keeping.total,
        logit=keeping.everything,
        without=keeping.nothing,
        reference=keeping.words,
        order=f"{words}, {keeping.values}",
        runs=keeping.runs,
        **question.result_fields(),
        provenance=capture.provenance.with_settings(
            kept=words,
            values=keeping.values,
            reference=keeping.words,
            random=random,
            seed=seed,
            always="beginning of sequence",
        ),
    )
