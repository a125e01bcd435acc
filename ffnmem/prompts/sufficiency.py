"""``faithfulness`` and ``minimal_circuit``: how much of an answer is left where only some firings are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.arguments import public
from ..core.errors import InputError, OutOfRangeError, check_count, check_seed, counted
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Facts, Origin, Sheet, Table, rows
from ..models.hooks import listening
from ..models.layout import inner
from ..models.turns import in_turn
from ..show.result import Result
from .attribution import plain_records
from .captures import Capture
from .causal import answer_logits, causal_scores, check_plain
from .firings import Asked, Firings, answer_facts, answer_values
from .means import references

BATCH_TOKENS = 1024
DRAWS = 5  # random sets of each size
BOOTSTRAP = 2000
LEAST = 1e-4  # of the answer that the firings must make, for shares of it to mean anything
ONE_BY_ONE = 512  # firings at most that are each left out alone
STEPS = (1, 2, 5)
GRID = 16  # sizes at once in a search

Set = Bool[Tensor, "layer pos d_mlp"]


# Sets of firings kept, each a row of a batch.


class Keeping:
    """A prompt run with chosen firings as they come, and all others at their reference.

    A kept firing is what its neuron computes from what then stands below it, or ``recorded``, what it was in the
    capture. The beginning-of-sequence token's firings are kept always.

    Attributes:
        everything, nothing: Δ with all firings kept, and with none.
        runs: how many sets were run so far.
    """

    def __init__(self, asked: Asked, mean: Any, recorded: bool = False, batch_tokens: int = BATCH_TOKENS) -> None:
        self.asked, self.model, self.recorded = asked, asked.model, recorded
        self.reference, self.words = references(mean, asked.model)
        self.own = [
            asked.capture.coefficients[layer][asked.row, : asked.position + 1] for layer in range(asked.model.n_layers)
        ]
        self.always = int(asked.capture.starts_with_bos)
        self.shape = (self.model.n_layers, len(asked.tokens), self.model.d_mlp)
        self.total = self.shape[0] * (self.shape[1] - self.always) * self.shape[2]
        self.batch = max(1, batch_tokens // len(asked.tokens))
        self.runs = 0
        if not self.total:
            raise InputError("the answer is read at the beginning-of-sequence token, whose firings are always kept")
        ends = torch.ones(2, *self.shape, dtype=torch.bool, device=self.model.device)
        ends[1] = False
        self.everything, self.nothing = self.answers(iter(ends)).tolist()
        difference = abs(self.everything - self.nothing)
        if not difference > LEAST * max(1.0, abs(self.everything)):
            raise InputError(
                f"without any firing this answer has a logit of {self.nothing:.4g}, with all of them "
                f"{self.everything:.4g}: there is nothing that firings could be enough for"
            )

    @property
    def values(self) -> str:
        """What kept firings are, in words."""
        return "as recorded" if self.recorded else "as computed"

    def shares(self, sets: Iterator[Set]) -> Float[np.ndarray, " n"]:
        """The share of the answer that each set keeps: (Δ − Δ(none)) / (Δ(all) − Δ(none))."""
        return (self.answers(sets) - self.nothing) / (self.everything - self.nothing)

    def answers(self, sets: Iterator[Set]) -> Float[np.ndarray, " n"]:
        """Δ of each set."""
        found: list[Tensor] = []
        while some := [one for _, one in zip(range(self.batch), sets, strict=False)]:
            with torch.no_grad():
                found.append(self.run(torch.stack(some)))
        return torch.cat(found).cpu().numpy() if found else np.zeros(0)

    def run(self, kept: Bool[Tensor, "rows layer pos d_mlp"], places: dict[int, Tensor] | None = None) -> Tensor:
        """Δ of one batch; ``places`` gets what each down projection reads, for gradients."""
        kept[:, :, : self.always] = True
        self.runs += len(kept)
        final: list[Tensor] = []
        tokens = self.asked.tokens.expand(len(kept), -1)
        with self.replacing(kept, places), listening(outputs=[(self.model.layout.final_norm, final.append)]):
            self.model.layout.body(input_ids=tokens, use_cache=False)
        return answer_logits(self.asked, final[-1].reshape(*tokens.shape, -1)[:, -1])

    @contextmanager
    def replacing(self, kept: Bool[Tensor, "rows layer pos d_mlp"], places: dict[int, Tensor] | None) -> Iterator[None]:
        me = threading.get_ident()

        def replace(layer: int, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != me:
                return None
            m: Tensor = args[0]  # which some models flatten
            own = self.own[layer].expand(len(kept), -1, -1).reshape(m.shape) if self.recorded else m
            m = torch.where(kept[:, layer].reshape(m.shape), own, self.reference[layer])
            if places is not None:
                places[layer] = m = m if m.requires_grad else m.detach().requires_grad_()
            return (m, *args[1:])

        handles = []
        try:
            for layer, block in enumerate(self.model.layout.blocks):
                handles.append(inner(block.project_out).register_forward_pre_hook(partial(replace, layer)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def worth(self, kept: Set) -> Float[Tensor, " all"]:
        """Of one set, (m − m̄)·∂Δ/∂m of each firing as it is there, for the share that the set keeps: with its sign
        turned where firings lower Δ. 0 of those that are not in it."""
        places: dict[int, Tensor] = {}
        with torch.enable_grad():
            logit = self.run(kept.clone().unsqueeze(0), places).sum()
            found = torch.autograd.grad(logit, [places[layer] for layer in range(self.shape[0])], allow_unused=True)
        worth = torch.zeros(self.shape, dtype=torch.float64, device=self.model.device)
        for layer, gradient in enumerate(found):
            if gradient is not None:
                away = places[layer].detach() - self.reference[layer]
                worth[layer] = (away * gradient).reshape(self.shape[1:])
        return (worth * kept).flatten() * (1.0 if self.everything > self.nothing else -1.0)

    # -- sets ----------------------------------------------------------------------------------------------------

    def of(self, places: Int[np.ndarray, " n"]) -> Set:
        """The set of these firings, by their places in ``[layer, pos, d_mlp]``."""
        found = torch.zeros(self.shape, dtype=torch.bool, device=self.model.device)
        found.view(-1)[torch.as_tensor(places, device=self.model.device)] = True
        return found

    def counted(self) -> Int[np.ndarray, " total"]:
        """The places of all firings that are not always kept."""
        every = np.arange(int(np.prod(self.shape))).reshape(self.shape)
        return every[:, self.always :].ravel()

    def ranked(self, firings: Any) -> tuple[Int[np.ndarray, " n"], str, bool]:
        """The places of firings, most important first; what they are in words; and whether their order says anything.

        ``firings``: None for those of RelP against the same reference. Raises InputError: none, or of another prompt.
        OutOfRangeError: a firing that this prompt does not have.
        """
        if firings is None:
            asked = self.asked
            firings = causal_scores(
                asked.capture, asked.target, asked.foil, "relp", mean=self.reference, position=asked.position,
                prompt=asked.row,
            )  # fmt: skip
        if isinstance(firings, Firings):
            return self.by_score(firings)
        found = [
            int(np.ravel_multi_index((layer, position, neuron), self.shape))
            for layer, neuron, position in self.asked.triples(firings)
            if position >= self.always
        ]
        if not found:
            raise InputError("firings is empty, or of the beginning-of-sequence token alone, whose are always kept")
        return np.array(found), "given", False

    def by_score(self, firings: Firings) -> tuple[Int[np.ndarray, " n"], str, bool]:
        scores = firings.of_firings
        other = firings.provenance.fingerprint != self.model.fingerprint
        if other or tuple(scores.shape) != self.shape or firings.tokens != self.asked.texts:
            raise InputError("these scores are of another prompt, position or model than the capture")
        places = self.counted()
        size = np.abs(scores.double().cpu().numpy().ravel()[places])
        rule = getattr(firings, "rule", "paths")
        return places[np.argsort(-size, kind="stable")], f"largest |score| by {rule} first", True


def sizes_of(sizes: Iterable[int] | None, count: int, ordered: bool) -> list[int]:
    """How many firings to keep, ascending: 1, 2, 5, 10, … and all of them; of a set without order all of it."""
    if sizes is not None:
        found = sorted({check_count("sizes", size) for size in sizes})
        if not found or found[-1] > count:
            raise InputError(f"sizes must name at least one size, none above {count:,}, the firings that there are")
        return found
    if not ordered:
        return [count]
    steps = [step * 10**power for power in range(10) for step in STEPS]
    return [*(step for step in steps if step < count), count]


# The results.


@public
@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness(Result):
    """How much of an answer the first firings of a ranking keep, by their number. Made by :func:`ffnmem.faithfulness`.

    With Δ(K) the answer's logit where the firings K are kept and all others are at their reference,
    f(K) = (Δ(K) − Δ(∅)) / (Δ(all) − Δ(∅)).

    Attributes:
        curve: one row a size: ``size``, ``share`` (of all firings), ``faithfulness`` f(K), ``completeness`` f of all
            but K (0 where the answer hangs on K alone), ``random`` f of as many drawn at random (the mean of the
            draws), ``random_low`` and ``random_high``, the least and the largest draw.
        total: all firings, those of the beginning-of-sequence token left out, which are always kept.
        logit, without: Δ(all) and Δ(∅).
        reference: what all others were set to; order: the ranking, in words.
        runs: how many sets were run.
    """

    curve: pd.DataFrame
    total: int
    logit: float
    without: float
    reference: str
    order: str
    runs: int
    tokens: tuple[str, ...]
    starts_with_bos: bool
    position: int
    target: str
    foil: str | None
    provenance: Provenance

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

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``curve``."""
        return self.curve.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **answer_values(self),
            "without": self.without,
            "total": self.total,
            "reference": self.reference,
            "order": self.order,
            "cpr": self.cpr,
            "cmd": self.cmd,
            "curve": plain_records(self.curve),
            "provenance": self.provenance.to_dict(),
        }

    def summary(self) -> str:
        last = self.curve[self.curve["size"] < self.total].tail(1)
        kept = "" if last.empty else f", {int(last['size'].item()):,} keep {last['faithfulness'].item():.2f}"
        return f"{areas_of(self.cpr, self.cmd)}{counted(self.total, 'firing')}{kept}"

    def sheet(self) -> Sheet:
        """The answer, with all firings and with none, and the curve."""
        answered = answer_facts(self.tokens, self.position, self.starts_with_bos, self.target, self.foil, self.logit)
        facts: dict[str, Content] = answered | {
            "kept": f"of {counted(self.total, 'firing')}, {self.order}; all others at {self.reference}",
            "none kept": f"a logit of {self.without:.3f}",
        }
        if self.cpr is not None and self.cmd is not None:
            facts["area"] = f"CPR {self.cpr:.3f}, CMD {self.cmd:.3f}"
        return Sheet.of(Facts(facts), curve_table(self.curve), Origin(self.provenance.to_dict()))


def areas_of(cpr: float | None, cmd: float | None) -> str:
    return "" if cpr is None or cmd is None else f"CPR {cpr:.3f}, CMD {cmd:.3f} of "


def curve_table(curve: pd.DataFrame) -> Table:
    """A row a size; intervals of means where there are any."""
    shown = rows(
        Column("kept", "count"),
        Column("share", "percent"),
        Column("faithful", "percent"),
        *([Column("interval", left=False)] if "low" in curve else []),
        Column("without them", "percent"),
        Column("random", "percent"),
    )
    for row in curve.to_dict("records"):
        interval = [f"{row['low']:.0%} to {row['high']:.0%}"] if "low" in row else []
        random = float(row.get("random", float("nan")))
        shown.add(int(row["size"]), row["share"], row["faithfulness"], *interval, row["completeness"], random)
    return shown.table(caption="shares of the answer: with those alone, with all others alone, with as many at random")


@public
@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessOver(Result):
    """Faithfulness over several answers, with intervals. Made by :func:`ffnmem.prompts.faithfulness_over`.

    Attributes:
        curve: one row a size that every answer has: ``size``, ``share`` (mean), ``faithfulness``, ``low``, ``high``
            (95% bootstrap over answers), ``completeness``, ``random``, ``random_low``, ``random_high`` (the same of the
            random sets' mean).
        areas: one row for ``cpr`` and ``cmd`` each (``area``): ``mean``, ``low``, ``high``, and ``random``; empty where
            rankings leave firings out.
        n: how many answers.
    """

    curve: pd.DataFrame
    areas: pd.DataFrame
    n: int
    reference: str
    order: str
    provenance: Provenance

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``curve``."""
        return self.curve.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "n": self.n,
            "reference": self.reference,
            "order": self.order,
            "areas": plain_records(self.areas),
            "curve": plain_records(self.curve),
            "provenance": self.provenance.to_dict(),
        }

    def summary(self) -> str:
        means = [f"{row['area'].upper()} {row['mean']:.3f}" for row in self.areas.to_dict("records")]
        return ", ".join([*means, f"{counted(self.n, 'answer')}"])

    def sheet(self) -> Sheet:
        """How many, the areas, and the curve."""
        facts: dict[str, Content] = {
            "answers": str(self.n),
            "kept": f"{self.order}; all others at {self.reference}",
        }
        for row in self.areas.to_dict("records"):
            facts[row["area"].upper()] = (
                f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f}), of random sets {row['random']:.3f}"
            )
        return Sheet.of(Facts(facts), curve_table(self.curve), Origin(self.provenance.to_dict()))


@public
@dataclass(frozen=True, eq=False, repr=False)
class MinimalCircuit(Result):
    """A small set of firings that is enough for an answer. Made by :func:`ffnmem.minimal_circuit`.

    Attributes:
        firings: one row a firing: layer, neuron, position, token, ``without``: the share of the answer that the set
            keeps without it; the one it can spare least first.
        faithfulness, completeness: f of the set, and of all others.
        wanted: the faithfulness that was asked for. total: all firings.
        found, pruned: how many firings the search began to prune with, and how many it took away.
        minimal: whether no single firing can be left out, each tried.
        search: how it was found, in words. runs: how many sets were run for it.
        logit, without: Δ with all firings and with none. reference: what all others are set to.
    """

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
    tokens: tuple[str, ...]
    starts_with_bos: bool
    position: int
    target: str
    foil: str | None
    provenance: Provenance

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``firings``."""
        return self.firings.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **answer_values(self),
            "without": self.without,
            "size": len(self.firings),
            "total": self.total,
            "faithfulness": self.faithfulness,
            "completeness": self.completeness,
            "wanted": self.wanted,
            "minimal": self.minimal,
            "search": self.search,
            "runs": self.runs,
            "reference": self.reference,
            "firings": plain_records(self.firings),
            "provenance": self.provenance.to_dict(),
        }

    def summary(self) -> str:
        of = counted(self.total, "firing")
        return f"{len(self.firings):,} of {of} keep {self.faithfulness:.2f} of {self.target!r}"

    def sheet(self, top: int = 20) -> Sheet:
        """The answer, how small a set keeps it, how that was found, and its firings."""
        answered = answer_facts(self.tokens, self.position, self.starts_with_bos, self.target, self.foil, self.logit)
        facts: dict[str, Content] = answered | {
            "enough": f"{len(self.firings):,} of {counted(self.total, 'firing')} keep {self.faithfulness:.1%}",
            "all others": f"at {self.reference}",
            "without them": f"{self.completeness:.1%} is left",
            "none kept": f"a logit of {self.without:.3f}, the 0% of these shares",
            "search": f"{self.search}; {counted(self.runs, 'run')}",
        }
        shown = rows(
            Column("neuron", "neuron"),
            Column("fired at", "token", limit=20),
            Column("position", "count"),
            Column("left without it", "percent"),
        )
        for row in self.firings.head(top).to_dict("records"):
            at = (int(row["layer"]), int(row["neuron"]))
            shown.add(at, row["token"], int(row["position"]), row["without"])
        more = len(self.firings) - top
        table = shown.table(caption=f"{more:,} more in .firings" if more > 0 else "")
        return Sheet.of(Facts(facts), table, Origin(self.provenance.to_dict()))


# The functions.


@public
@in_turn
def faithfulness(
    capture: Capture,
    target: str | int | None = None,
    foil: str | int | None = None,
    firings: Any = None,
    *,
    mean: Any = None,
    recorded: bool = False,
    position: int = -1,
    sizes: Iterable[int] | None = None,
    random: int = DRAWS,
    seed: int = 0,
    prompt: int = 0,
    first_token: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Faithfulness:
    """Is it enough? Keep some firings, set all others to their means, and see how much of the answer is left.

    A firing is a neuron at a position. A kept one is whatever its neuron computes from what is then below it, so that
    what made it fire must be kept, too; or, ``recorded``, what it was. Those of the beginning-of-sequence token are
    always kept, and not counted. Every set is one row of a batch, run whole.

    Args:
        capture: of all layers, without an intervention.
        target, foil, position, prompt, first_token: as :func:`ffnmem.attribute_paths` takes them.
        firings: scores, of which the largest in size are kept first: a :class:`CausalScores` or a
            :class:`PathAttribution` of this answer; or a set: a table with layer, neuron and position, or (layer,
            neuron, position) of each. Default: :func:`ffnmem.causal_scores` by "relp" with the same ``mean``.
        mean: what all others are set to. None is zero, which no neuron of a trained model need be near; a Store, a
            Capture or numbers are taken as :func:`ffnmem.causal_scores` takes them. The result says which it was.
        recorded: keep firings at the coefficients of the capture, whatever then stands below them: the weaker question
            which ones the answer reads, not which ones bring it about.
        sizes: how many firings to keep; default 1, 2, 5, 10, … and all, or of a set the whole of it.
        random: how many random sets of each size are the null; 0 for none.
        seed: of these.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "faithfulness", the sets run and all of them.

    Returns: A :class:`Faithfulness`: ``.curve``, ``.cpr``, ``.cmd``, ``.at(size)``.

    Raises: as :func:`ffnmem.causal_scores`; InputError for firings of another prompt, sizes above their number, or an
        answer that is the same with all firings and with none.

    Source: MIB, Mueller et al. 2025 (2504.13151), for CPR and CMD; faithfulness and completeness of Marks et al. 2024
        (2403.19647).
    """
    check_seed(seed)
    check_count("batch_tokens", batch_tokens)
    if random != 0:
        check_count("random", random)
    asked = Asked.of(capture, target, foil, position, prompt, first_token)
    check_plain(capture)
    keeping = Keeping(asked, mean, recorded, batch_tokens)
    order, words, ordered = keeping.ranked(firings)
    chosen = sizes_of(sizes, len(order), ordered)
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(keeping.counted()) for _ in range(random)]
    count = len(chosen) * (2 + random)

    def sets() -> Iterator[Set]:
        for i, size in enumerate(chosen):
            kept = keeping.of(order[:size])
            yield kept
            yield ~kept
            for one in drawn:
                yield keeping.of(one[:size])
            if progress is not None:
                progress("faithfulness", (i + 1) * (2 + random), count)

    shares = keeping.shares(sets()).reshape(len(chosen), 2 + random)
    curve = pd.DataFrame(
        {
            "size": chosen,
            "share": [size / keeping.total for size in chosen],
            "faithfulness": shares[:, 0],
            "completeness": shares[:, 1],
        }
    )
    if random:
        nulls = shares[:, 2:]
        curve = curve.assign(random=nulls.mean(1), random_low=nulls.min(1), random_high=nulls.max(1))
    return Faithfulness(
        curve=curve,
        total=keeping.total,
        logit=keeping.everything,
        without=keeping.nothing,
        reference=keeping.words,
        order=f"{words}, {keeping.values}",
        runs=keeping.runs,
        **asked.answer(),
        provenance=capture.provenance.with_settings(
            kept=words,
            values=keeping.values,
            reference=keeping.words,
            random=random,
            seed=seed,
            always="beginning of sequence",
        ),
    )


@public
def faithfulness_over(results: Iterable[Faithfulness], *, draws: int = BOOTSTRAP, seed: int = 0) -> FaithfulnessOver:
    """Faithfulness over several answers at the sizes that all of them have, with intervals over answers.

    As MIB has it, differences of logits are averaged before they are divided: f = Σ(Δ(K) − Δ(∅)) / Σ(Δ(all) − Δ(∅)). A
    single answer to which firings hardly matter has shares of almost nothing, which would rule a mean of shares. So an
    answer's CPR and CMD count by what firings make of it.

    Args:
        results: from :func:`ffnmem.faithfulness`, by one ranking and reference.
        draws, seed: of the bootstrap.

    Raises: InputError: none, of several rankings, references or models, or without a size in common.

    Source: percentile bootstrap, Efron 1979.
    """
    given = list(results)
    if not given:
        raise InputError("results is empty: give at least one, from ffnmem.faithfulness")
    ways = {(one.order, one.reference) for one in given}
    if len(ways) > 1:
        raise InputError(f"results are of different rankings or references: {'; '.join(map(', '.join, sorted(ways)))}")
    if len({one.provenance.fingerprint for one in given}) > 1:
        raise InputError("results are of several models: give those of one")
    sizes = sorted(set.intersection(*({*one.curve["size"].tolist()} for one in given)))
    if not sizes:
        raise InputError("these results have no size in common: ask each for the same sizes=")
    picks = np.random.default_rng(check_seed(seed)).integers(len(given), size=(check_count("draws", draws), len(given)))
    weight = np.array([one.logit - one.without for one in given])

    def pooled(values: Any, weight: np.ndarray) -> tuple[float, float, float]:
        """Of shares of each answer the share of all answers' sum, and its interval."""
        wide = np.array(values, dtype=float) * weight
        low, high = np.quantile(wide[picks].sum(1) / weight[picks].sum(1), [0.025, 0.975])
        return float(wide.sum() / weight.sum()), float(low), float(high)

    found = [one.curve.set_index("size").loc[sizes] for one in given]
    with_null = all("random" in one for one in found)
    listed = []
    for size in sizes:
        here = {name: [one.loc[size, name] for one in found] for name in found[0] if all(name in one for one in found)}
        row = {"size": size, "share": float(np.mean(here["share"]))}
        row |= dict(zip(("faithfulness", "low", "high"), pooled(here["faithfulness"], weight), strict=True))
        row["completeness"] = pooled(here["completeness"], weight)[0]
        if with_null:
            row |= dict(zip(("random", "random_low", "random_high"), pooled(here["random"], weight), strict=True))
        listed.append(row)
    areas = []
    for name, of, by in (("cpr", lambda f: f, weight), ("cmd", lambda f: np.abs(1 - f), np.abs(weight))):
        if all(one.area(of) is not None for one in given):
            null = pooled([one.area(of, "random") for one in given], by)[0] if with_null else float("nan")
            areas.append((name, *pooled([one.area(of) for one in given], by), null))
    order, reference = ways.pop()
    return FaithfulnessOver(
        curve=pd.DataFrame(listed),
        areas=pd.DataFrame(areas, columns=["area", "mean", "low", "high", "random"]),
        n=len(given),
        reference=reference,
        order=order,
        provenance=given[0].provenance.with_settings(answers=len(given), draws=draws, bootstrap_seed=seed),
    )


@public
@in_turn
def minimal_circuit(
    capture: Capture,
    target: str | int | None = None,
    foil: str | int | None = None,
    *,
    faithfulness: float = 0.9,
    firings: Any = None,
    mean: Any = None,
    recorded: bool = False,
    position: int = -1,
    one_by_one: int = ONE_BY_ONE,
    prompt: int = 0,
    first_token: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> MinimalCircuit:
    """The smallest set of firings that this search finds to keep a share of an answer.

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
        progress: called with "prune", what was taken away, and the firings that pruning began with.

    Returns: A :class:`MinimalCircuit`: ``.firings``, ``.faithfulness``, ``.search``, ``.minimal``.

    Raises: as :func:`ffnmem.faithfulness`; InputError for a share that the given firings do not keep.
    """
    if not isinstance(faithfulness, int | float) or not faithfulness > 0:
        raise InputError(f"faithfulness must be a share above 0, such as 0.9, not {faithfulness!r}")
    check_count("batch_tokens", batch_tokens)
    asked = Asked.of(capture, target, foil, position, prompt, first_token)
    check_plain(capture)
    keeping = Keeping(asked, mean, recorded, batch_tokens)
    order, words, ordered = keeping.ranked(firings)
    search = Search(keeping, float(faithfulness), progress)
    began = search.prefix(order) if ordered else search.whole(order)
    kept, rounds = search.pruned(began)
    kept, spared, minimal = search.left_out(kept, one_by_one)
    every = keeping.of(kept)
    share, rest = keeping.shares(iter([every, ~every]))
    if spared is None:
        spared = search.without(kept) if len(kept) <= one_by_one else np.full(len(kept), np.nan)
    by_need = np.argsort(spared, kind="stable")
    layer, place, neuron = np.unravel_index(kept[by_need], keeping.shape)
    texts = asked.texts
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
                "without": spared[by_need],
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
        **asked.answer(),
        provenance=capture.provenance.with_settings(
            kept=words,
            values=keeping.values,
            reference=keeping.words,
            faithfulness=float(faithfulness),
            one_by_one=one_by_one,
        ),
    )


class Search:
    """The steps of a search for a small set that keeps a share."""

    def __init__(self, keeping: Keeping, wanted: float, progress: Progress | None) -> None:
        self.keeping, self.wanted, self.progress = keeping, wanted, progress

    def enough(self, sets: Sequence[Int[np.ndarray, " n"]]) -> Bool[np.ndarray, " sets"]:
        return self.keeping.shares(self.keeping.of(places) for places in sets) >= self.wanted

    def prefix(self, order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
        """The fewest first firings of a ranking that are enough, as far as a grid of sizes shows."""
        low, high = 0, len(order)
        grid = sorted({round(high ** (i / (2 * GRID))) for i in range(2 * GRID + 1)})
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
            grid = between(low, high)
        return order[:high]

    def whole(self, order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        if not self.enough([order])[0]:
            raise InputError(f"these {len(order):,} firings keep less than {self.wanted:g} of this answer")
        return order

    def pruned(self, kept: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " m"], int]:
        """As many as can go together, worth least in the set first; again until none can. And in how many rounds."""
        began, rounds = len(kept), 0
        while len(kept) > 1:
            worth = self.keeping.worth(self.keeping.of(kept)).cpu().numpy()[kept]
            by_worth = kept[np.argsort(worth, kind="stable")]
            gone, most = 0, len(kept)  # so many can go; so many cannot
            grid = sorted({round((len(kept) - 1) ** (i / GRID)) for i in range(GRID + 1)})
            while grid:
                enough = self.enough([by_worth[size:] for size in grid])
                gone = grid[int(np.flatnonzero(enough)[-1])] if enough.any() else gone
                beyond = [size for size, fine in zip(grid, enough, strict=True) if not fine and size > gone]
                most = min(beyond, default=most)
                grid = between(gone, most)
            if not gone:
                break
            kept, rounds = by_worth[gone:], rounds + 1
            if self.progress is not None:
                self.progress("prune", began - len(kept), began)
        return kept, rounds

    def without(self, kept: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """What the set keeps without each of its firings."""
        return self.keeping.shares(self.keeping.of(np.delete(kept, i)) for i in range(len(kept)))

    def left_out(
        self, kept: Int[np.ndarray, " n"], most: int
    ) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"] | None, bool]:
        """Single firings left out, each tried, until none can be; as many at once as can go together."""
        if len(kept) > most:
            return kept, None, False
        while True:
            shares = self.without(kept)
            spare = np.flatnonzero(shares >= self.wanted)
            if not len(spare) or len(kept) == 1:
                return kept, shares, True
            spare = spare[np.argsort(-shares[spare], kind="stable")]
            counts = sorted({round(len(spare) ** (i / GRID)) for i in range(GRID + 1)})
            enough = self.enough([np.delete(kept, spare[:count]) for count in counts])
            gone = counts[int(np.flatnonzero(enough)[-1])] if enough.any() else 1
            kept = np.delete(kept, spare[:gone])


def between(low: int, high: int) -> list[int]:
    """Some sizes between two, both left out."""
    return sorted({round(x) for x in np.linspace(low, high, GRID + 2)} - {low, high})
