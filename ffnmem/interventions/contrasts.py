"""``contrast``: the few firings that decide between the answers to two prompts, found and proved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, counted, quoted, warn
from ..core.progress import Progress
from ..core.sheets import Grid, Prompt, token
from ..core.types import Count, Seed, checked
from ..models.model import Model
from ..prompts.answer_text import AnswerResult
from ..prompts.captures import Target, capture
from ..prompts.circuits import Circuit, circuit_between
from ..prompts.firings import PromptQuestion
from ..prompts.keeping import BATCH_TOKENS, Keeping
from ..prompts.minimal import Search
from ..vocabulary.projections import promoted_tokens

DRAWS = 10  # random sets
BEGIN, PART = 8, 4  # the search begins with so many firings, and a step adds a part of those that there are
WIDENED = 3  # rounds of widening the set and pruning it again
PARTS = (16, 32)  # of a set that is thinned, at first and at last
ONE_BY_ONE = 64  # firings at most that are each left out alone
EXACT = 50  # firings at most that are each exchanged alone
ALIKE = 10  # how many times as many firings as the set has those next by score are drawn from
NODES = 48  # of a graph
PROMOTED = 5  # tokens a firing
PARTLY = 0.02  # of the difference that FFNs do not carry, from which on the verdict says so
CURVE = ["step", "size", "sufficiency", "necessity"]
MEASURES = ("sufficiency", "necessity", "transfer")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Contrast(AnswerResult):
    """The firings that decide between the answers to a prompt and to its counterfactual. Made by
    :func:`ffnmem.contrast`.

    Δ is the target's logit minus the foil's. A firing is a neuron at a position; m is its coefficient in the prompt's
    run, m′ in the counterfactual's at the position that is aligned with its own.

    Attributes:
        firings: those found, largest \\|score\\| first, what the difference loses with each alone as in the
            counterfactual (exact), and what coefficient − counterfactual promotes: layer, neuron, position, token,
            other_token (the counterfactual's), coefficient (m), counterfactual (m′), difference (m − m′), score (its
            difference times the mean of the gradients of both runs, in logits), exact (Δ minus the Δ with it alone at
            m′; of the first 50).
        promotes: for each, the tokens that its difference promotes.
        proof: shares of the difference, and what as many firings reach, on the mean and at most (high), that are drawn
            from all (random) or from those next by score (alike): a row each for ``sufficiency``, ``necessity`` and
            ``transfer`` (``measure``): ``share``; ``random``, ``random_low``, ``random_high``: mean, least and largest
            of as many firings drawn from all; ``alike``, ``alike_low``, ``alike_high``: of as many drawn from those
            that come next by score.
        curve: the search's steps: step ("added", "pruned", or "given"), size, sufficiency, necessity.
        scores: ``[layer, pos, d_mlp]``, the score of every firing.
        logit, counterfactual_logit: Δ of both prompts. without: Δ of the prompt with all its firings at m′.
        carried: the share of the difference of Δ that passes through FFNs; attention and embeddings carry the rest.
        carried_over: the share of it that all firings at m bring into the counterfactual's run, what transfer is of.
        total: firings that could be chosen. goal: the sufficiency and necessity asked for; None of given firings.
        minimal: whether no single firing can be left out, each tried. search: how it was found, in words.
        kept: positions of the prompt that have none of the counterfactual aligned with them; their firings stay.
        alignment: by the prompt's position, the counterfactual's; -1 for none.
        says: the model's likeliest token after each prompt, whatever target and foil are.
        tokens, counterfactual_tokens: of both prompts, up to where the answer is read. model: of the answers.
    """

    heading = (
        "prompt counterfactual_prompt target foil likeliest logit counterfactual_logit carried carried_over "
        "not_aligned search"
    )
    tables: ClassVar = {
        "proof": "measure share random random_high alike alike_high | random_low alike_low",
        "firings": "neuron fired_at position coefficient counterfactual exact promotes | other_token score",
        "where": "",
        "curve": "| *",
    }
    main, uncut, in_full, only_data = "firings", "proof", "firings", "total"

    firings: pd.DataFrame
    promotes: tuple[tuple[str, ...], ...]
    proof: pd.DataFrame
    curve: pd.DataFrame
    scores: Float[Tensor, "layer pos d_mlp"]
    logit: float
    counterfactual_logit: float
    without: float
    carried: float
    carried_over: float
    total: int
    goal: float | None
    minimal: bool
    search: str
    values: str
    alignment: tuple[int, ...]
    says: tuple[str, str]
    counterfactual_tokens: tuple[str, ...]
    counterfactual_ids: tuple[int, ...]

    def top(self, k: Count | None = 20) -> pd.DataFrame:
        """The ``k`` first firings (all for None), with what each ``promotes``."""
        found = self.firings if k is None else self.firings.head(k)
        return found.assign(promotes=list(self.promotes[: len(found)]))

    def share(self, measure: str) -> float:
        """``sufficiency``, ``necessity`` or ``transfer`` of the firings."""
        return float(self.proof.set_index("measure").loc[measure, "share"])

    def graph(self, top: Count = NODES) -> Circuit:
        """How the ``top`` first firings make one another differ: see :class:`ffnmem.prompts.Circuit`."""
        here, there = (self.ask_again(ids) for ids in (self.answer.tokens, self.counterfactual_ids))
        drawn = self.firings.head(top)
        return circuit_between(here, there, self.alignment, drawn, len(self.firings), self.provenance)

    def ask_again(self, ids: tuple[int, ...]) -> PromptQuestion:
        """Its answer after the tokens of one of its prompts."""
        if self.model is None:
            raise InputError("this contrast was loaded without its model: fm.interventions.Contrast.load(path, model)")
        prompt = ids[: len(ids) - self.answer.parting]
        return PromptQuestion(capture(self.model, torch.tensor([ids])), 0, replace(self.answer, prompt=prompt))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(place for place, other in enumerate(self.alignment) if other < 0)

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        share = self.proof.set_index("measure")["share"]
        target, foil = self.target.strip(), (self.foil or "").strip()
        found, total = f"{len(self.firings):,}", counted(self.total, "firing")
        head = f"{found} of {total} decide between" if self.goal else f"{found} given of {total}, as to"
        carried = "" if abs(1 - self.carried) < PARTLY else f" that passes through FFNs ({self.carried:.0%} of all)"
        left = f"{max(0.0, 1 - share['necessity']):.0%}"
        return (
            f"{head} “{target}” and “{foil}”: these alone keep {share['sufficiency']:.0%} of the difference{carried}; "
            f"without them {'nothing' if left == '0%' else left} of it is left."
        )

    @property
    def counterfactual_prompt(self) -> Prompt:
        """The other prompt."""
        return Prompt(self.counterfactual_tokens, len(self.counterfactual_tokens) - 1, self.starts_with_bos)

    @property
    def likeliest(self) -> list[str]:
        """The model's likeliest token after each prompt."""
        return list(self.says)

    @property
    def not_aligned(self) -> list[str]:
        """Tokens that have none of the counterfactual aligned with them; the firings there stay as they are."""
        return [self.tokens[place] for place in self.kept if place or not self.starts_with_bos]

    def shown_firings(self, top: int | None) -> pd.DataFrame:
        """Those that decide, largest \\|score\\| first; exact: logits lost with it alone as in the other run."""
        return self.top(top)

    @property
    def count(self) -> int:
        return len(self.firings)

    @property
    def where(self) -> Grid | None:
        """Their scores, summed by layer and position."""
        if self.firings.empty:
            return None
        summed = self.firings.pivot_table("score", "layer", "position", "sum")[::-1]
        return Grid(
            rows=tuple(f"layer {layer}" for layer in summed.index),
            columns=tuple(token(self.tokens[position]) for position in summed),
            values=tuple(tuple(row) for row in summed.to_numpy().tolist()),
            limit=float(summed.abs().max(axis=None)) or 1.0,
            unit="logits",
            leads={
                (row, column): (int(layer), int(position))
                for row, layer in enumerate(summed.index)
                for column, position in enumerate(summed)
            },
        )


# Which positions belong together.


def align(prompt: Sequence[int], counterfactual: Sequence[int]) -> tuple[int, ...]:
    """By position of a prompt, the counterfactual's; -1 for none.

    What both begin with is aligned, and of what follows the last tokens, one by one: what both end with is among them.
    """
    n, m = len(prompt), len(counterfactual)
    begin = 0
    while begin < min(n, m) - 1 and prompt[begin] == counterfactual[begin]:
        begin += 1
    paired = min(n, m) - begin
    return (*range(begin), *[-1] * (n - begin - paired), *range(m - paired, m))


def check_alignment(given: Sequence[int | None], length: int, other: int) -> tuple[int, ...]:
    """A user's alignment with -1 for None. Raises InputError: another length, or positions that are none or twice."""
    found = tuple(-1 if place is None else int(place) for place in given)
    named = [place for place in found if place != -1]
    if len(found) != length or len(set(named)) < len(named) or not all(0 <= place < other for place in named):
        raise InputError(
            f"alignment has for each of the prompt's {length} tokens a position of the counterfactual, 0 to "
            f"{other - 1}, each at most once, or None; not {given!r}"
        )
    return found


# The search.


class Both(Search):
    """The search for a set that is sufficient and necessary."""

    grid = 6

    def __init__(self, between: Between, goal: float, progress: Progress | None) -> None:
        super().__init__(between.keeping, goal, progress)
        self.between, self.away = between, between.away
        self.curve: list[tuple[str, int, float, float]] = []

    def measure(self, sets: Iterable[Int[np.ndarray, " _"]]) -> Float[np.ndarray, " sets"]:
        """The lesser of sufficiency and necessity; of a set whose sufficiency is not enough that alone."""
        given, keeping = list(sets), self.keeping
        shares = keeping.shares(keeping.of(places) for places in given)
        fine = np.flatnonzero(shares >= self.wanted)
        lost = 1 - keeping.shares(~keeping.of(given[i]) for i in fine)
        shares[fine] = np.minimum(shares[fine], lost)
        return shares

    def slopes(self, kept: Tensor) -> tuple[Float[Tensor, "2 layer pos d_mlp"], Tensor, Float[np.ndarray, "2"]]:
        """What exchanging each firing changes, to first order, in the run that keeps a set and in that which lacks it;
        the coefficients of the first; sufficiency and necessity."""
        gradients, m, logits = self.keeping.gradients([kept, ~kept])
        span = self.keeping.everything - self.keeping.nothing
        shares = (logits - self.keeping.nothing) / span
        return gradients * self.keeping.sign, m[0], np.array([shares[0], 1 - shares[1]])

    def worth(self, kept: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        slopes, m, _ = self.slopes(self.keeping.of(kept))
        worth = (m - self.keeping.reference) * slopes[0] + self.away * slopes[1]
        return worth.flatten().double().cpu().numpy()[kept]

    def next(self, kept: Tensor, count: int) -> tuple[Int[Tensor, " count"], Float[np.ndarray, "2"]]:
        """The firings outside of a set that add most to what it lacks; and its sufficiency and necessity."""
        slopes, _, reached = self.slopes(kept)
        lacking = reached < self.wanted if (reached < self.wanted).any() else np.ones(2, bool)
        gain = sum(self.away * slope for slope, lacks in zip(slopes, lacking, strict=True) if lacks)
        assert isinstance(gain, Tensor)
        free = self.keeping.choosable & ~kept
        return gain.masked_fill(~free, -torch.inf).flatten().topk(min(count, int(free.sum()))).indices, reached

    def grown(self) -> Int[np.ndarray, " n"]:
        """A set that is enough: those that add most by the gradients of the runs as they are now, again and again."""
        kept, size = self.keeping.of(np.zeros(0, np.int64)), 0
        while True:
            found, reached = self.next(kept, max(BEGIN, size // PART))
            self.curve.append(("added", size, *reached.tolist()))
            if self.progress is not None:
                self.progress("contrast", round(100 * min(1, max(0, reached.min() / self.wanted))), 100)
            if reached.min() >= self.wanted or size == self.keeping.total:
                return np.flatnonzero(kept.flatten().cpu().numpy())
            kept = kept.clone()
            kept.view(-1)[found] = True
            size += len(found)

    def thinned(self, kept: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """The set without parts that it can do without, each tried: of one that is near its largest a gradient says
        little of what its removal does. Parts are halved down to one of so many."""
        parts = PARTS[0]
        while len(kept) > ONE_BY_ONE and parts <= PARTS[1]:
            fewer, _ = self.without_parts(kept[np.argsort(self.worth(kept), kind="stable")], parts)
            parts = parts if len(fewer) < len(kept) else 2 * parts
            kept = fewer
        return kept

    def smallest(self) -> tuple[Int[np.ndarray, " n"], str, bool]:
        """The set, how it was found in words, and whether no single firing can be left out."""
        began = self.grown()
        kept, _ = self.pruned(began)
        rounds = 0
        while rounds < WIDENED:  # others in their place may do with fewer
            found, _ = self.next(self.keeping.of(kept), max(BEGIN, len(kept) // 2))
            wider = np.union1d(kept, found.cpu().numpy())
            fewer = self.pruned(wider)[0] if self.enough([wider])[0] else wider
            if len(fewer) >= len(kept):
                break
            kept, rounds = fewer, rounds + 1
        kept, _, minimal = self.left_out(self.thinned(kept), ONE_BY_ONE)
        self.curve.append(("pruned", len(kept), *self.between.kept_and_lost([kept])[0].tolist()))
        words = [
            f"{counted(len(began), 'firing')} added in {counted(len(self.curve) - 2, 'step')} by the gradients of the "
            "runs with them alone and without them",
            f"pruned to {len(kept):,}",
            "no single one can be left out" if minimal else f"not tried one by one, being more than {ONE_BY_ONE}",
        ]
        return kept, "; ".join(words), minimal


class Between:
    """Two answers of aligned prompts, and what exchanging firings between their runs does.

    Attributes:
        says: the model's likeliest token after each prompt.
        keeping: the prompt's run, others at m′. transfer: the counterfactual's run, others at m.
        places: the alignment. own: m, ``[layer, pos, d_mlp]``. away: m − m′, 0 where nothing is exchanged.

    Raises InputError: an answer that the prompt makes no likelier, or a difference that FFNs do not carry.
    """

    def __init__(
        self,
        here: PromptQuestion,
        there: PromptQuestion,
        places: tuple[int, ...],
        says: tuple[str, str],
        recorded: bool,
        batch_tokens: int,
    ) -> None:
        self.here, self.there, self.places, self.says = here, there, places, says
        self.own, others = here.coefficients, there.coefficients
        self.at = torch.tensor(places, device=self.own.device).clamp(min=0)
        met = torch.tensor(places, device=self.own.device) >= 0
        back = others.clone()
        back[:, self.at[met]] = self.own[:, met]
        words = "their coefficients in the counterfactual’s run"
        alone = [place for place, partner in enumerate(places) if partner < 0]
        self.keeping = Keeping(here, others[:, self.at], words, recorded, batch_tokens, alone)
        unmet = sorted(set(range(others.shape[1])) - set(places))
        self.transfer = Keeping(there, back, "those of the prompt’s run", recorded, batch_tokens, unmet)
        logit, counterfactual = self.keeping.everything, self.transfer.everything
        if logit <= counterfactual:
            raise InputError(
                f"{quoted(here.answer.target_text)} is no likelier than {quoted(str(here.answer.foil_text))} after "
                f"the prompt than after the counterfactual (logits of {logit:.3f} and {counterfactual:.3f}): exchange "
                "the prompts, or the target and the foil"
            )
        self.keeping.check_matters()
        if not logit > 0 > counterfactual:
            target, foil = quoted(here.answer.target_text), quoted(str(here.answer.foil_text))
            liked, other = (target, foil) if logit > 0 else (foil, target)
            warn(
                f"the model prefers {liked} to {other} after both prompts, by {abs(logit):.3f} and "
                f"{abs(counterfactual):.3f} logits: the activations found make {target} likelier, but do not decide "
                "which of the two the model says"
            )
        self.away = self.own - self.keeping.reference
        self.away[:, self.keeping.always] = 0.0

    def scores(self) -> Float[Tensor, "layer pos d_mlp"]:
        """Of every firing, its difference times the mean of the gradients of both runs."""
        every = torch.ones(1, dtype=torch.bool, device=self.own.device)
        gradients = [run.gradients([every.expand(run.shape)])[0][0] for run in (self.keeping, self.transfer)]
        return self.away * (gradients[0] + gradients[1][:, self.at]) / 2

    def kept_and_lost(self, sets: Iterable[Int[np.ndarray, " _"]]) -> Float[np.ndarray, "sets 2"]:
        """Sufficiency and necessity of each set."""

        def both() -> Iterator[Tensor]:
            for places in sets:
                kept = self.keeping.of(places)
                yield kept
                yield ~kept

        shares = self.keeping.shares(both()).reshape(-1, 2)
        return np.stack([shares[:, 0], 1 - shares[:, 1]], 1)

    def brought(self, sets: Iterable[Int[np.ndarray, " n"]]) -> Float[np.ndarray, " sets"]:
        """What each set, of the prompt's run, brings into the counterfactual's."""

        def exchanged() -> Iterator[Tensor]:
            for some in sets:
                layer, place, neuron = np.unravel_index(some, self.keeping.shape)
                kept = torch.ones(self.transfer.shape, dtype=torch.bool, device=self.own.device)
                kept[layer, np.array(self.places)[place], neuron] = False
                yield kept

        return 1 - self.transfer.shares(exchanged())

    def exact(self, chosen: Int[np.ndarray, " n"], progress: Progress | None) -> Float[np.ndarray, " n"]:
        """Δ minus the Δ with each firing alone at m′."""

        def sets() -> Iterator[Tensor]:
            for done, place in enumerate(chosen, 1):
                yield ~self.keeping.of(np.array([place]))
                if progress is not None:
                    progress("exact", done, len(chosen))

        return self.keeping.everything - self.keeping.answers(sets())

    def result(
        self,
        chosen: Int[np.ndarray, " n"],
        scores: Float[Tensor, "layer pos d_mlp"],
        random: int,
        seed: int,
        progress: Progress | None,
        **about: Any,
    ) -> Contrast:
        """What some firings are, and their shares beside those of others."""
        here, there, keeping = self.here, self.there, self.keeping
        by_score = scores.flatten().double().cpu().numpy()
        chosen = chosen[np.argsort(-np.abs(by_score[chosen]), kind="stable")]
        generator = np.random.default_rng(seed)
        free = np.setdiff1d(keeping.counted(), chosen)
        alike = free[np.argsort(-by_score[free], kind="stable")[: ALIKE * len(chosen)]]
        sizes = {"random": (free, min(len(chosen), len(free))), "alike": (alike, min(len(chosen), len(alike)))}
        nulls = [generator.choice(pool, n, replace=False) for pool, n in sizes.values() for _ in range(random)]
        sets = [chosen, *nulls]
        shares = np.concatenate([self.kept_and_lost(sets), self.brought(sets).reshape(-1, 1)], 1).T
        layer, place, neuron = np.unravel_index(chosen, keeping.shape)
        exact = np.full(len(chosen), np.nan)
        exact[:EXACT] = self.exact(chosen[:EXACT], progress)
        texts, others = here.texts, there.texts

        def numbers(of: Tensor) -> Float[np.ndarray, " n"]:
            return of[layer, place, neuron].double().cpu().numpy()

        firings = pd.DataFrame(
            {
                "layer": layer,
                "neuron": neuron,
                "position": place,
                "token": [texts[p] for p in place],
                "other_token": [others[self.places[p]] for p in place],
                "coefficient": numbers(self.own),
                "counterfactual": numbers(keeping.reference),
                "difference": numbers(self.away),
                "score": by_score[chosen],
                "exact": exact,
            }
        )
        logit, counterfactual = keeping.everything, self.transfer.everything
        return Contrast(
            firings=firings,
            promotes=promoted_by(here.model, firings),
            proof=proof_of(shares, random),
            scores=scores,
            logit=logit,
            counterfactual_logit=counterfactual,
            without=keeping.nothing,
            carried=(logit - keeping.nothing) / (logit - counterfactual),
            carried_over=(self.transfer.nothing - counterfactual) / (logit - counterfactual),
            total=keeping.total,
            values=keeping.values,
            alignment=self.places,
            says=self.says,
            counterfactual_tokens=others,
            counterfactual_ids=tuple(there.tokens.tolist()),
            **about,
            **here.result_fields(),
            provenance=here.capture.provenance.with_settings(
                goal=about["goal"], values=keeping.values, random=random, seed=seed, always="beginning of sequence"
            ),
        )


@checked
def contrast(
    model: Model,
    prompt: str,
    counterfactual: str,
    target: Target = None,
    foil: str | int | None = None,
    goal: float = 0.9,
    *,
    alignment: Sequence[int | None] | None = None,
    recorded: bool = False,
    random: Count = DRAWS,
    seed: Seed = 0,
    chat: bool = False,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Contrast:
    """Which few firings decide between the answers to two prompts.

    Finds the fewest firings that it can (a firing is a neuron at a position) such that, with every other one as in the
    run of the counterfactual, most of the difference between target and foil stays, and without which it is lost. Both
    shares, and what these firings bring into the run of the counterfactual, stand beside those of as many random ones.

    Note:
        With every other firing at its coefficient in the counterfactual's run, the firings found keep the share
        ``goal`` of the difference between the two answers (sufficiency); with only them at those coefficients, that
        share is lost (necessity). Against a counterfactual prompt a few firings are often enough, as all that both
        prompts share, such as syntax and positions, is left out of the question.

        The search adds those firings that gain most to first order, by the gradients of the run that keeps the set and
        of the run that lacks it, a quarter more each step, until both shares reach the goal; then takes away all that
        can go together, those worth least first; widens the set and prunes it again while that makes it smaller; and
        leaves out parts of it, each tried, and single firings where there are at most 64. It need not find the smallest
        set.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: a text that ends where the answer begins.
        counterfactual: one that differs from it and is answered otherwise.
        target: what the model says after the prompt; default: its own top token.
        foil: what it says after the counterfactual; default: its own top token.
        goal: the sufficiency and necessity that the set must reach.
        alignment: for each of the prompt's tokens (with a beginning-of-sequence token, where there is one) the
            counterfactual's position. Default: what both begin with and end with, and of what differs the last
            tokens one by one. Firings at positions without a partner stay as they are, and are not counted. In
            Python, None is for a token that has none.
        recorded: keep firings at the coefficients that they have in the run they are kept in, the prompt's or (for
            transfer) the counterfactual's; by default a kept firing is what its neuron computes from what is then below
            it. Gradients are of the same kind: of FFNs that stay as they were, or react.
        random: how many sets of as many other firings stand beside each share.
        seed: of the random sets.
        chat: ask both as a user's message, by the model's chat template.
        prepend_bos: put the beginning-of-sequence token before the texts, or not; default: the model's own way.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "contrast", percent of the goal, 100; then with "prune" and "exact".

    Returns: A :class:`Contrast`: ``.verdict``, ``.firings``, ``.proof``, ``.curve``, ``.scores``, ``.graph()``.

    Raises: as :func:`ffnmem.attribute_paths`; InputError, too: prompts that are the same or answered the same, a target
        that the prompt makes no likelier, no such alignment, or a difference that FFNs do not carry.

    Source: activation patching against a counterfactual, Vig et al. 2020 (2004.12265), and attribution patching, Nanda
        2023; sufficiency and necessity as faithfulness and completeness of Marks et al. 2024 (2403.19647); the search
        is ours.

    Example:
        $ ffnmem contrast "The Eiffel Tower is located in the city of" \\
            "The Kremlin is located in the city of"
        $ ffnmem contrast "The capital of France is" "The capital of Italy is" \\
            --target " Paris" --foil " Rome" --plot capitals.png
        $ ffnmem contrast "The capital of France is" "The capital of Italy is" \\
            --html capitals.html
    """
    if chat:
        prompt, counterfactual = (
            model.chat_text([{"role": "user", "content": text}]) for text in (prompt, counterfactual)
        )
    if not 0 < goal <= 1:
        raise InputError(f"goal must be a share above 0 and at most 1, not {goal!r}")
    between = align_both(model, prompt, counterfactual, target, foil, alignment, recorded, prepend_bos, batch_tokens)
    scores = between.scores()
    search = Both(between, goal, progress)
    chosen, words, minimal = search.smallest()
    curve = pd.DataFrame(search.curve, columns=CURVE)
    about = {"goal": goal, "curve": curve, "minimal": minimal, "search": words}
    return between.result(chosen, scores, random, seed, progress, **about)


@checked
def patch(
    model: Model,
    prompt: str,
    counterfactual: str,
    firings: Any,
    target: Target = None,
    foil: str | int | None = None,
    *,
    alignment: Sequence[int | None] | None = None,
    recorded: bool = False,
    random: Count = DRAWS,
    seed: Seed = 0,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Contrast:
    """Exchange given firings between the runs of two prompts: :func:`ffnmem.contrast` of a set without the search.

    Args:
        firings: a table with layer, neuron and position (of the prompt), such triples, or a result of this prompt that
            has them as ``.firings``. To try those of another prompt at the same positions, give its table.

    The others, what it returns and what it raises: as :func:`ffnmem.contrast`; InputError, too: no firing, or one at a
    position that has no partner.
    """
    between = align_both(model, prompt, counterfactual, target, foil, alignment, recorded, prepend_bos, batch_tokens)
    keeping = between.keeping
    triples = between.here.triples(firings)
    fixed = next((position for _, _, position in triples if keeping.always[position]), None)
    if not triples or fixed is not None:
        at = f"at position {fixed}, which has no partner in the counterfactual or is the beginning of sequence"
        raise InputError("firings is empty" if not triples else f"firings has one {at}")
    shape = keeping.shape
    chosen = np.array([np.ravel_multi_index((layer, place, neuron), shape) for layer, neuron, place in triples])
    shares = between.kept_and_lost([chosen])[0].tolist()
    curve = pd.DataFrame([("given", len(chosen), *shares)], columns=CURVE)
    about = {"goal": None, "curve": curve, "minimal": False, "search": "given"}
    return between.result(chosen, between.scores(), random, seed, progress, **about)


def align_both(
    model: Model, prompt: str, counterfactual: str, target: Target, foil: str | int | None,
    alignment: Sequence[int | None] | None, recorded: bool, prepend_bos: bool | None, batch_tokens: int,
) -> Between:  # fmt: skip
    """The same target and foil after both prompts, by default what the model says after each; and which positions
    belong together."""
    one, other = (capture(model, text, prepend_bos=prepend_bos) for text in (prompt, counterfactual))
    if one.tokens.tolist() == other.tokens.tolist():
        raise InputError("the prompt and the counterfactual have the same tokens: there is nothing to contrast")
    first, second = (int(each.predictions(-1, 1)["token_id"].iloc[0]) for each in (one, other))
    says = model.token_strings([first, second])
    if (target is None or foil is None) and first == second:
        raise InputError(
            f"the model says {quoted(says[0])} after both prompts: give a target and a foil, or another counterfactual"
        )
    here = PromptQuestion.of(
        one, first if target is None else target, second if foil is None else foil, -1, None, False
    )
    answered = replace(here.answer, prompt=tuple(other.tokens[0].tolist()))
    there = PromptQuestion.of(other, answered, None, -1, None, False)
    ids, other_ids = here.tokens.tolist(), there.tokens.tolist()
    if alignment is None:
        places = align(ids, other_ids)
    else:
        more = len(ids) - one.tokens.shape[1]  # the tokens that target and foil begin with alike
        given = check_alignment(alignment, len(ids) - more, len(other_ids) - more)
        places = (*given, *range(len(other_ids) - more, len(other_ids)))
    return Between(here, there, places, (says[0], says[1]), recorded, batch_tokens)


def proof_of(shares: Float[np.ndarray, "measure sets"], random: int) -> pd.DataFrame:
    """The table of shares; sets are the firings, then random ones, then those next by score."""
    listed: list[dict[str, Any]] = []
    for name, row in zip(MEASURES, shares, strict=True):
        one: dict[str, Any] = {"measure": name, "share": row[0]}
        for null, drawn in (("random", row[1 : 1 + random]), ("alike", row[1 + random :])):
            one |= {null: drawn.mean(), f"{null}_low": drawn.min(), f"{null}_high": drawn.max()}
        listed.append(one)
    return pd.DataFrame(listed)


def promoted_by(model: Model, firings: pd.DataFrame) -> tuple[tuple[str, ...], ...]:
    """The tokens that each firing's difference promotes: of a negative one, those that its value suppresses."""
    found: list[tuple[str, ...]] = [()] * len(firings)
    for negative in (False, True):
        some = firings[(firings["difference"] < 0) == negative]
        listed = promoted_tokens(model, some, PROMOTED, fired="difference")
        for row in some.itertuples():
            found[row.Index] = tuple(listed[row.layer, row.neuron])
    return tuple(found)
