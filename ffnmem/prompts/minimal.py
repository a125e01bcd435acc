"""``minimal_circuit``: a small set of firings that is enough for an answer, and how it was searched for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ..core.errors import InputError, counted
from ..core.progress import Progress
from ..core.types import Count, FiringNames, Means, Whole, checked
from .answer_text import AnswerResult
from .captures import Capture, Target
from .causal import check_plain
from .firings import PromptQuestion
from .keeping import BATCH_TOKENS, CARRIES, Keeping
from .means import references

ONE_BY_ONE = 512  # firings at most that are each left out alone


@checked
@dataclass(frozen=True, eq=False, repr=False)
class MinimalCircuit(AnswerResult):
    """A small set of firings that is enough for an answer. Made by :func:`ffnmem.minimal_circuit`.

    Attributes:
        firings: one row a firing, the one the set can spare least first: layer, neuron, position, token, coefficient
            (of the capture), and ``without``, the share of the answer that the set keeps without it, each tried; of a
            set that is too large for that (``minimal`` is False) ``worth``, about what its share would lose, by the
            set's own gradient.
        faithfulness, completeness: f of the set, and of all others.
        wanted: the faithfulness that was asked for. total: all firings.
        found, pruned: how many firings the search began to prune with, and how many it took away.
        minimal: whether no single firing can be left out, each tried.
        search: how it was found, in words. runs: how many sets were run for it.
        logit, without: Δ with all firings and with none. reference: what all others are set to.
    """

    tables: ClassVar = {"firings": "neuron fired_at position coefficient without worth promotes | suppresses"}
    in_full, only_data = "firings", "total"

    firings: pd.DataFrame
    faithfulness: float
    completeness: float
    wanted: float
    total: int
    found: int
    pruned: int
    minimal: bool
    search: str
    runs: int
    logit: float
    without: float
    reference: str

    @property
    def heading(self) -> str:  # type: ignore[override]
        return f"prompt after target foil {self.quantity} none_kept reference minimal search runs"

    @property
    def verdict(self) -> str:
        """How small a set keeps how much of the answer."""
        carry = "" if self.faithfulness >= CARRIES else ", less than half: they do not carry it"
        return (
            f"{len(self.firings):,} of {counted(self.total, 'firing')} keep {self.faithfulness:.1%} of the answer"
            f"{carry}. Without them {self.completeness:.1%} is left."
        )


# The functions.


@checked
def minimal_circuit(
    capture: Capture,
    target: Target = None,
    foil: str | int | None = None,
    *,
    faithfulness: float = 0.9,
    firings: FiringNames = None,
    mean: Means = None,
    recorded: bool = False,
    position: int = -1,
    one_by_one: Whole = ONE_BY_ONE,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> MinimalCircuit:
    """The fewest firings that keep a share of an answer.

    The search: the fewest first ones of a ranking that keep the share (sizes are tried in a grid that closes in on
    where it is first reached); of these, as many as can go together are taken away, those first that are worth least
    in the set itself by its own gradient, again and again; then firings are left out one at a time, each tried, until
    none can be. No search that is quicker than trying all sets finds the smallest one surely; the result says how far
    this one went.

    Args:
        capture, target, foil, firings, mean, recorded, position, prompt, first_token, batch_tokens: as
            :func:`ffnmem.faithfulness` takes them.
        faithfulness: the share of the answer to keep, above 0.
        one_by_one: the largest set of which single firings are still left out, each tried; larger ones are pruned by
            gradients alone.
        progress: called with "prune", what was taken away, and the firings that pruning began with; and with "exact",
            the firings that were left out one by one.

    Returns: A :class:`MinimalCircuit`: ``.firings``, ``.faithfulness``, ``.search``, ``.minimal``.

    Raises: as :func:`ffnmem.faithfulness`; InputError for a share that the given firings do not keep.

    Example:
        $ ffnmem minimal "The capital of France is" --faithfulness .9 --json
    """
    if not isinstance(faithfulness, int | float) or not faithfulness > 0:
        raise InputError(f"faithfulness must be a share above 0, such as 0.9, not {faithfulness!r}")
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    check_plain(capture)
    keeping = Keeping(question, *references(mean, question.model), recorded, batch_tokens)
    keeping.check_matters()
    order, words, ordered = keeping.ranked(firings)
    search = Search(keeping, float(faithfulness), progress)
    began = search.prefix(order) if ordered else search.whole(order)
    kept, rounds = search.pruned(began)
    kept, spared, minimal = search.left_out(kept, one_by_one)
    every = keeping.of(kept)
    share, rest = keeping.shares(iter([every, ~every]))
    if spared is None:  # too many to try each
        worth = search.worth(kept) / abs(keeping.everything - keeping.nothing)
    by_need = np.argsort(-worth if spared is None else spared, kind="stable")
    layer, place, neuron = np.unravel_index(kept[by_need], keeping.shape)
    texts = question.texts
    told = [
        f"the first {len(began):,} firings, {words}" if ordered else f"the {len(began):,} firings given",
        f"{len(began) - len(kept):,} of them taken away, in {counted(rounds, 'round')} by the set's own gradient",
        "no single one can be left out" if minimal else f"not tried one by one, being more than {one_by_one:,}",
    ]
    return MinimalCircuit(
        firings=pd.DataFrame(
            {
                "layer": layer,
                "neuron": neuron,
                "position": place,
                "token": [texts[p] for p in place],
                "coefficient": question.coefficients[layer, place, neuron].tolist(),
                **({"worth": worth[by_need]} if spared is None else {"without": spared[by_need]}),
            }
        ),
        faithfulness=float(share),
        completeness=float(rest),
        wanted=float(faithfulness),
        total=keeping.total,
        found=len(began),
        pruned=len(began) - len(kept),
        minimal=minimal,
        search="; ".join(told),
        runs=keeping.runs,
        logit=keeping.everything,
        without=keeping.nothing,
        reference=keeping.words,
        **question.result_fields(),
        provenance=capture.provenance.with_settings(
            kept=words,
            values=keeping.values,
            reference=keeping.words,
            faithfulness=float(faithfulness),
            one_by_one=one_by_one,
        ),
    )


class Search:
    """The steps of a search for a small set that keeps a share. ``grid``: sizes that are tried at once."""

    grid = 16

    def __init__(self, keeping: Keeping, wanted: float, progress: Progress | None) -> None:
        self.keeping, self.wanted, self.progress = keeping, wanted, progress

    def measure(self, sets: Iterable[Int[np.ndarray, " _"]]) -> Float[np.ndarray, " sets"]:
        """What each set keeps, a share."""
        return self.keeping.shares(self.keeping.of(places) for places in sets)

    def worth(self, kept: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """About what each firing of a set is worth in it."""
        return self.keeping.worth(self.keeping.of(kept)).cpu().numpy()[kept]

    def enough(self, sets: Iterable[Int[np.ndarray, " _"]]) -> Bool[np.ndarray, " sets"]:
        return self.measure(sets) >= self.wanted

    def prefix(self, order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """The fewest first firings of a ranking that are enough, as far as a grid of sizes shows."""
        low, high = 0, len(order)
        grid = sorted({round(high ** (i / (2 * self.grid))) for i in range(2 * self.grid + 1)})
        while grid:
            enough = self.enough([order[:size] for size in grid])
            if not enough.any():
                if high == len(order) and grid[-1] == high:
                    raise InputError(f"all {high:,} firings keep less than {self.wanted:g} of this answer")
                low = grid[-1]
            else:
                first = int(enough.argmax())
                high = grid[first]
                low = grid[first - 1] if first else low
            grid = between(low, high, self.grid)
        return order[:high]

    def whole(self, order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        if not self.enough([order])[0]:
            raise InputError(f"these {len(order):,} firings keep less than {self.wanted:g} of this answer")
        return order

    def pruned(self, kept: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " m"], int]:
        """As many as can go together, worth least in the set first; again until none can. And in how many rounds."""
        began, rounds = len(kept), 0
        while len(kept) > 1:
            by_worth = kept[np.argsort(self.worth(kept), kind="stable")]
            gone, most = 0, len(kept)  # so many can go; so many cannot
            grid = sorted({round((len(kept) - 1) ** (i / self.grid)) for i in range(self.grid + 1)})
            while grid:
                enough = self.enough([by_worth[size:] for size in grid])
                gone = grid[int(np.flatnonzero(enough)[-1])] if enough.any() else gone
                beyond = [size for size, fine in zip(grid, enough, strict=True) if not fine and size > gone]
                most = min(beyond, default=most)
                grid = between(gone, most, self.grid)
            if not gone:
                break
            kept, rounds = by_worth[gone:], rounds + 1
            if self.progress is not None:
                self.progress("prune", began - len(kept), began)
        return kept, rounds

    def without_parts(
        self, kept: Int[np.ndarray, " n"], parts: int
    ) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " parts"]]:
        """The set without as many of its parts as can go together, those that it can spare most first; and what it
        keeps without each part alone."""
        chunks = np.array_split(kept, parts)

        def without() -> Iterator[Int[np.ndarray, " _"]]:
            for done, chunk in enumerate(chunks):
                if self.progress is not None:
                    self.progress("exact", done, parts)
                yield np.setdiff1d(kept, chunk, assume_unique=True)

        shares = self.measure(without())
        spare = np.flatnonzero(shares >= self.wanted)
        if not len(spare):
            return kept, shares
        spare = spare[np.argsort(-shares[spare], kind="stable")]
        counts = sorted({round(len(spare) ** (i / self.grid)) for i in range(self.grid + 1)})
        fewer = [
            np.setdiff1d(kept, np.concatenate([chunks[i] for i in spare[:count]]), assume_unique=True)
            for count in counts
        ]
        enough = [True, *self.enough(fewer[1:])]  # one alone was tried
        return fewer[int(np.flatnonzero(enough)[-1])], shares

    def left_out(
        self, kept: Int[np.ndarray, " n"], most: int
    ) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"] | None, bool]:
        """Single firings left out, each tried, until none can be."""
        if len(kept) > most:
            return kept, None, False
        while True:
            fewer, shares = self.without_parts(kept, len(kept))
            if len(fewer) in (0, len(kept)):
                return kept, shares, True
            kept = fewer


def between(low: int, high: int, grid: int) -> list[int]:
    """So many sizes between two, both left out."""
    return sorted({round(x) for x in np.linspace(low, high, grid + 2)} - {low, high})
