"""Ways to v* on the same facts: how many passes each takes, and what its edits score.

A pass runs the layers above the edited one forward and back, over all contexts of a fact. ``small steps`` is
Adam as edits take it where settings are derived, ``large steps`` Adam with 20 steps of .2, ``lbfgs`` scipy's L-BFGS on
the same loss until it is below the same bound, ``projections`` steps to the smallest δ with every context
taken as linear (Gauss–Newton on margins), six of the contexts at first, and a quarter as long again for rare keys;
``as found`` the same without that, the next two longer. Each makes ROME's edit of the fact, with consistent keys, and
lets δ act as ΔW does while it is looked for; ``at the subject`` at the subject's last token alone.
``published`` is ROME's published procedure, original keys and all. ``--half`` takes every other fact: settings are
chosen on the ones and reported on the others; so does ``--skip``.

    python benchmarks/optimisers.py --limit 60 --seed 77
    python benchmarks/optimisers.py --model smollm2 --facts known_1000.json --moment FILE --layer 3 --limit 20
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import machine
from scipy.optimize import minimize

import ffnmem as fm
from ffnmem.editing.closed_forms import find_directions
from ffnmem.editing.preparing import EditPlan, find_values, plan_edits
from ffnmem.editing.rank_one import edit_rank_one
from ffnmem.editing.values import Descent, FoundValue, RequestBatch

ADAM = {"optimiser": "adam"}
LARGE = {**ADAM, "steps": 20, "rate": 0.2, "stop": 0.05, "relative": True}
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "small steps": (ADAM, "consistent"),
    "large steps": (LARGE, "consistent"),
    "lbfgs": (ADAM, "consistent"),
    "projections": ({"optimiser": "projections"}, "consistent"),
    "as found": ({"optimiser": "projections", "stretch": 1.0}, "consistent"),
    "half as long again": ({"optimiser": "projections", "stretch": 1.5}, "consistent"),
    "twice as long": ({"optimiser": "projections", "stretch": 2.0}, "consistent"),
    "projections from all": ({"optimiser": "projections", "first": None}, "consistent"),
    "at the subject": ({"optimiser": "projections"}, "consistent"),
    "published": ({}, "original"),
}

SCORED = ("S", "ES", "PS", "NS", "NS_plus")
WRITTEN = ("says", "says_paraphrase", "says_attacked", "says_negated", "neighbours_right")


class Enough(Exception):
    """The loss is below the bound."""


def by_lbfgs(plan: EditPlan) -> list[FoundValue]:
    """δ of each request by itself, until the loss is below the settings' bound or their steps are done."""
    settings = plan.settings
    found = []
    for request in plan.requests:
        batch = RequestBatch(plan.layers, [request], settings)
        rows, passes = batch.every, 0
        scale = float(batch.scales[0])
        best: tuple[float, float, Any] = (math.inf, math.inf, None)

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal passes, best
            passes += 1
            moving = torch.tensor(x * scale, dtype=batch.scales.dtype).unsqueeze(0).requires_grad_()  # noqa: B023
            with torch.enable_grad():
                whole, nll = batch.losses(moving, rows)  # noqa: B023
                (slope,) = torch.autograd.grad(whole.sum(), moving)
            value = float(whole.detach()[0])
            if value < best[0]:
                best = (value, float(nll.detach()[0]), moving.detach())
            if value < settings.stop or passes >= settings.steps:
                raise Enough
            return value, slope[0].double().numpy() * scale  # noqa: B023

        with suppress(Enough):
            minimize(loss, np.zeros(batch.written.shape[1]), jac=True, method="L-BFGS-B")
        found += batch.found(Descent(best[2], [passes - 1], [passes], [best[0]], [best[1]]))
    return found


@dataclass
class Way:
    """An editor of one fact after another that counts its passes and its time."""

    name: str
    moment: fm.editing.SecondMoment | str | None
    layer: int | None
    seed: int
    stop: float | None = None

    def __post_init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        self.__name__ = self.name
        self.contexts: tuple[str, ...] | None = None

    def __call__(self, model: fm.Model, facts: list[fm.facts.Fact]) -> list[fm.Edit]:
        changes, keys = WAYS[self.name]
        if self.stop is not None and self.name != "published":
            changes = {**changes, "stop": self.stop}
        if self.contexts is None:
            self.contexts = fm.editing.sample_contexts(model, seed=self.seed)
        plan = plan_edits(
            model, facts, layer=self.layer, moment=self.moment, contexts=self.contexts, procedure="rome",
            settings="published" if self.name == "published" else changes or None,
        )  # fmt: skip
        begin = time.perf_counter()
        directions = None if self.name == "at the subject" else find_directions(plan, keys, None)
        found = by_lbfgs(plan) if self.name == "lbfgs" else find_values(plan, directions=directions)
        self.seconds += time.perf_counter() - begin
        edits = [edit_rank_one(plan, i, one, keys, None, True) for i, one in enumerate(found)]
        for one, edit in zip(found, edits, strict=True):
            told = edit.numbers.iloc[0]
            self.rows.append(
                {
                    "passes": one.passes,
                    "length": float(told["delta"]),
                    "reached": float(told["reached"]),
                    "after": float(told["after"]),
                    "change": float(told["change"]),
                }
            )
        return edits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--facts", default="atlas")
    parser.add_argument("--moment", default=None)
    parser.add_argument("--layer", type=int, default=None)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, with commas between")
    parser.add_argument("--stop", default=None, help="other losses to stop at than each way's own, with commas between")
    parser.add_argument("--half", type=int, choices=(1, 2), help="every other fact alone, from the first or the second")
    parser.add_argument(
        "--skip", type=int, default=0, help="so many of the facts first: those that something was set on"
    )
    parser.add_argument("--known", action="store_true", help="only facts that the model says by itself")
    parser.add_argument("--written", action="store_true", help="let the edited models write answers, too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    metrics = SCORED + (WRITTEN if asked.written else ())
    ways = [way.strip() for way in asked.ways.split(",")]
    model = fm.load(asked.model)
    facts = [fact for fact in fm.facts.with_targets(fm.load_facts(asked.facts)) if fact.target_new]
    order = np.random.default_rng(asked.seed).permutation(len(facts))
    facts = [facts[i] for i in order]
    if asked.known:
        facts = list(fm.facts.filter_known(model, facts).facts)
    facts = facts[asked.skip :] if asked.half is None else facts[asked.skip :][asked.half - 1 :: 2]
    facts = facts[: asked.limit]
    moment = None if asked.moment is None else fm.editing.SecondMoment.load(asked.moment)
    table = []
    stops = [None] if asked.stop is None else [float(stop) for stop in asked.stop.split(",")]
    for name, stop in itertools.product(ways, stops):
        way = Way(name, moment, asked.layer, asked.seed, stop)
        scores = fm.evaluate(
            model,
            facts,
            way,
            metrics=metrics,
            protocol="generated" if asked.written else "teacher_forced",
            seed=asked.seed,
            drift=False,
        )
        own = pd.DataFrame(way.rows)
        means = scores.summary.set_index("metric")
        table.append(
            {
                "way": name if stop is None else f"{name}, stop {stop:g}",
                "passes": float(own["passes"].median()),
                "most": round(float(own["passes"].max()), 1),
                "length": round(float(own["length"].median()), 2),
                "change": round(100 * float(own["change"].median()), 1),
                "reached": round(100 * float(own["reached"].mean()), 1),
                "p": round(float(own["after"].median()), 2),
                "seconds": round(way.seconds / len(own), 2),
                **{
                    metric: [round(float(means.loc[metric, end]), 1) for end in ("mean", "low", "high")]
                    for metric in metrics
                },
            }
        )
        if asked.json:
            continue
        row = table[-1]
        found = (
            f"passes {row['passes']:.1f} (at most {row['most']:.1f})",
            f"{row['seconds']:.2f} s",
            f"‖δ‖/‖v₀‖ {row['length']:.2f}",
            f"‖ΔW‖/‖W‖ {row['change']:.0f}%",
            f"reached {row['reached']:.0f}%, p {row['p']:.2f}",
            *(f"{name} {row[name][0]:.1f} ({row[name][1]:.1f} to {row[name][2]:.1f})" for name in metrics),
        )
        print(f"{row['way']:24}", *found, sep="  ", flush=True)
    about = {
        "model": asked.model,
        "facts": len(facts),
        "seed": asked.seed,
        "layer": asked.layer,
        "stop": asked.stop,
        "half": asked.half,
        "skipped": asked.skip,
        **machine(),
    }
    print(json.dumps({"ways": table, **about}) if asked.json else about)


if __name__ == "__main__":
    main()
