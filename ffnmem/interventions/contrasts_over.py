"""``contrast_over``: the firings that decide between many pairs of prompts; those that recur, tried on other pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import InputError, counted, quoted
from ..core.folders import Kind
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.run_folders import run_folder
from ..core.types import Count, Seed, checked
from ..models.model import Model
from ..show.result import Result
from .contrasts import DRAWS, MEASURES, Contrast, contrast, patch, promoted_by

CONTRASTS = Kind("manifest.json", "ffnmem contrasts", 1, "the contrasts", subfolders=("pairs",))
RECUR = 0.25  # the share of pairs in which a memory recurs
BOOTSTRAP = 2000

Pair = Sequence[Any]


@checked
@dataclass(frozen=True, eq=False, repr=False)
class ContrastTask(Result):
    """Contrasts of many pairs of prompts, and the memories that they share. Made by
    :func:`ffnmem.interventions.contrast_over`.

    A place is where a firing stands in its prompt: ``"last"``, the last token; ``"differing"``, tokens that differ from
    the counterfactual's; ``"after"``, those behind them; ``"before"``.

    Attributes:
        pairs: one row a pair: prompt, counterfactual, target, foil, firings (how many), total, sufficiency, necessity,
            transfer, random (sufficiency of as many at random).
        recurring: one row a neuron at a place that is in at least a quarter of the pairs, those in most first: layer,
            neuron, place, pairs (the share of them), difference (the mean of m − m′ where it is found), score (the
            mean).
        fires_at: for each of these, the tokens there, those of most pairs first; promotes: the tokens that its
            difference promotes.
        held_out: one row a pair: what those that recur in the other half of the pairs do in it: size, sufficiency,
            necessity, transfer, random. A half in which none recurs gives 0.
        seed: of the halves.
    """

    heading = "firings"
    tables: ClassVar = {
        "other_half": "measure share share_low share_high",
        "recurring": "neuron place fires_at in_pairs difference score promotes",
        "pairs": "| *",
        "held_out": "| *",
    }
    main, uncut = "recurring", "other_half"

    pairs: pd.DataFrame
    recurring: pd.DataFrame
    fires_at: tuple[tuple[str, ...], ...]
    promotes: tuple[tuple[str, ...], ...]
    held_out: pd.DataFrame
    seed: Seed
    provenance: Provenance

    @property
    def n(self) -> int:
        """How many pairs there are."""
        return len(self.pairs)

    @property
    def firings(self) -> float:
        """How many firings decide in the middle of the pairs."""
        return float(self.pairs["firings"].median())

    @property
    def summary_of_held_out(self) -> dict[str, tuple[float, float, float]]:
        """Mean sufficiency, necessity and transfer of what recurs in the other half, with 95% intervals over pairs."""
        draw = np.random.default_rng(self.seed).integers(self.n, size=(BOOTSTRAP, self.n))

        def interval(name: str) -> tuple[float, float, float]:
            values = self.held_out[name].to_numpy(float)
            low, high = np.quantile(values[draw].mean(1), [0.025, 0.975])
            return float(values.mean()), float(low), float(high)

        return {name: interval(name) for name in (*MEASURES, "random")}

    def top(self, k: Count | None = 20) -> pd.DataFrame:
        """The ``k`` first recurring memories (all for None), with what each ``fires_at`` and ``promotes``."""
        found = self.recurring if k is None else self.recurring.head(k)
        lists = {name: list(getattr(self, name)[: len(found)]) for name in ("fires_at", "promotes")}
        return found.assign(**lists)

    @property
    def verdict(self) -> str:
        """How many firings decide, and what those that recur do in other pairs."""
        kept, random = (format_share(self.summary_of_held_out[name][0]) for name in ("sufficiency", "random"))
        return (
            f"In {counted(self.n, 'pair')} {self.pairs['firings'].min():,} to {self.pairs['firings'].max():,} firings "
            f"decide; {counted(len(self.recurring), 'neuron')} recur at a place in {RECUR:.0%} of the pairs or more. "
            f"Those of one half of the pairs alone keep {kept} of the difference in the other half, as many at random "
            f"{random}."
        )

    @property
    def other_half(self) -> pd.DataFrame:
        """What recurs in one half of the pairs, tried on the other: means over pairs with 95% intervals."""
        found = self.summary_of_held_out
        return pd.DataFrame(
            [(name, *found[name]) for name in found], columns=["measure", "share", "share_low", "share_high"]
        )

    def shown_recurring(self, top: int | None) -> pd.DataFrame:
        """Neurons that decide at a place of many pairs, those in most first, and what their difference promotes."""
        return self.top(top)

    @property
    def count_recurring(self) -> int:
        return len(self.recurring)


@checked
def contrast_over(
    model: Model,
    pairs: Iterable[Pair],
    goal: float = 0.9,
    *,
    random: Count = DRAWS,
    seed: Seed = 0,
    out: str | Path | None = None,
    prepend_bos: bool | None = None,
    progress: Progress | None = None,
) -> ContrastTask:
    """Contrast many pairs of prompts, and find the memories that recur.

    What recurs in one half of the pairs, drawn with ``seed``, is tried on the other half, and the other way round: each
    such neuron, at all positions of its place, is exchanged as :func:`ffnmem.patch` does.

    Args:
        model: from :func:`ffnmem.load`.
        pairs: (prompt, counterfactual) or (prompt, counterfactual, target, foil) of each; at least two.
        goal, random, prepend_bos: as :func:`ffnmem.contrast` takes them.
        seed: of the halves and of the random firings.
        out: a folder to keep each pair's result in as soon as it is there, made if missing. The same call goes on
            where one was stopped.
        progress: called with "contrasts", the pairs done and all of them, which are gone through twice.

    Returns: A :class:`ContrastTask`: ``.pairs``, ``.recurring``, ``.held_out``.

    Raises: as :func:`ffnmem.contrast`; InputError, too: fewer than two pairs, or what is none. FileError: a folder that
        cannot be written, or holds another run.
    """
    asked = [read_pair(pair) for pair in pairs]
    if len(asked) < 2:
        raise InputError("pairs must be two or more, of (prompt, counterfactual) each")
    settings = {"goal": goal, "random": random, "seed": seed, "prepend_bos": prepend_bos}
    run = {"model": model.name, "fingerprint": model.fingerprint, **settings}
    options: dict[str, Any] = {"random": random, "seed": seed, "prepend_bos": prepend_bos}
    total, found = 2 * len(asked), list[Contrast]()

    def report(done: int) -> None:
        if progress is not None:
            progress("contrasts", done, total)

    with run_folder(out, CONTRASTS, run) as folder:
        for number, pair in enumerate(asked):
            make = partial(contrast, model, *pair, goal, **options)
            try:
                found.append(folder.kept(f"pairs/{number:05}", Contrast, list(pair), make, (model,)))
            except InputError as error:
                raise InputError(f"pair {number + 1}, {quoted(pair[0])}: {error}") from None
            report(number + 1)
    return compare_pairs(model, asked, found, options, lambda done: report(len(asked) + done))


def compare_pairs(
    model: Model,
    pairs: Sequence[Pair],
    found: Sequence[Contrast],
    options: Mapping[str, Any],
    report: Callable[[int], None] = lambda done: None,
) -> ContrastTask:
    """What the contrasts of pairs have in common, tried on one another. ``options``: random, seed, prepend_bos."""
    seed = options["seed"]
    half = np.random.default_rng(seed).permutation(len(found)) % 2
    rows = []
    for number, (pair, one) in enumerate(zip(pairs, found, strict=True)):
        others = [other for other, side in zip(found, half, strict=True) if side != half[number]]
        firings = find_at_places(one, find_recurring(others))
        row: dict[str, Any] = {"size": len(firings)} | dict.fromkeys((*MEASURES, "random"), 0.0)
        if firings:
            (prompt, counterfactual, *_), answer = pair, one.answer
            tried = patch(model, prompt, counterfactual, firings, answer.target_text, answer.foil_text, **options)
            row |= {name: tried.share(name) for name in MEASURES}
            row["random"] = float(tried.proof["random"].iloc[0])
        rows.append(row)
        report(number + 1)
    recurring = find_recurring(found)
    fires_at = tuple(map(tuple, recurring.pop("fires_at")))
    return ContrastTask(
        pairs=pd.DataFrame([summarise_pair(one) for one in found]),
        recurring=recurring,
        fires_at=fires_at,
        promotes=promoted_by(model, recurring),
        held_out=pd.DataFrame(rows),
        seed=seed,
        provenance=model.provenance(
            found[0].provenance.prepend_bos,
            pairs=len(found),
            goal=found[0].goal,
            random=options["random"],
            seed=seed,
        ),
    )


def read_pair(pair: Pair) -> tuple[str, str, Any, Any]:
    """Prompt, counterfactual, target and foil, None where they are not given; raises InputError."""
    found = tuple(pair)
    if len(found) not in (2, 4) or not all(isinstance(text, str) for text in found[:2]):
        raise InputError(
            f"a pair is (prompt, counterfactual), or (prompt, counterfactual, target, foil), not {quoted(found)}"
        )
    return (*found[:2], *(found[2:] or (None, None)))


def summarise_pair(one: Contrast) -> dict[str, Any]:
    """A pair in short."""
    skip = int(one.starts_with_bos)
    return {
        "prompt": "".join(one.tokens[skip:]),
        "counterfactual": "".join(one.counterfactual_tokens[skip:]),
        "target": one.target,
        "foil": one.foil,
        "firings": len(one.firings),
        "total": one.total,
        **{name: one.share(name) for name in MEASURES},
        "random": float(one.proof["random"].iloc[0]),
    }


def name_places(one: Contrast) -> list[str]:
    """The place of each position of a prompt."""
    others = [one.counterfactual_tokens[at] if at >= 0 else None for at in one.alignment]
    differs = [place for place, (a, b) in enumerate(zip(one.tokens, others, strict=True)) if a != b]
    names = ["before" if not differs or place < differs[0] else "after" for place in range(len(one.tokens))]
    for place in differs:
        names[place] = "differing"
    names[-1] = "last"
    return names


def find_recurring(some: Sequence[Contrast]) -> pd.DataFrame:
    """The neurons at a place that a quarter of some contrasts or more have, at least two: those in most first."""
    columns = ["layer", "neuron", "place", "pairs", "difference", "score", "fires_at"]
    if not some:
        return pd.DataFrame(columns=columns)
    listed = [
        one.firings.assign(place=[name_places(one)[p] for p in one.firings["position"]], pair=number)
        for number, one in enumerate(some)
    ]
    groups = pd.concat(listed).groupby(["layer", "neuron", "place"], sort=True)
    found = groups.agg(
        pairs=("pair", "nunique"),
        difference=("difference", "mean"),
        score=("score", "mean"),
        fires_at=("token", lambda there: there.value_counts().index.tolist()),
    ).reset_index()
    found = found[found["pairs"] >= max(2, RECUR * len(some))]
    found = found.assign(pairs=found["pairs"] / len(some), size=found["score"].abs())
    return found.sort_values(["pairs", "size"], ascending=False, kind="stable", ignore_index=True)[columns]


def find_at_places(one: Contrast, memories: pd.DataFrame) -> list[tuple[int, int, int]]:
    """The firings of some neurons at all positions of their places that can be exchanged in a contrast."""
    names = name_places(one)
    free = [place for place, other in enumerate(one.alignment) if other >= 0 and place >= int(one.starts_with_bos)]
    return [
        (int(row.layer), int(row.neuron), place)
        for row in memories.itertuples()
        for place in free
        if names[place] == row.place
    ]
