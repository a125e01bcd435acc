"""How much text ROME's second moment needs on atlas: ``python docs/convergence.py`` (some minutes).

Prints how far edits' directions are from where they end, and what the edits score, by the tokens of the second moment;
``--plot FILE`` draws it. v* is found once: only the second moment differs between rows.
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

import ffnmem as fm
from ffnmem.cli.options import save_axes
from ffnmem.editing.closed_forms import average_keys
from ffnmem.editing.preparing import plan_edits
from ffnmem.facts import Fact
from ffnmem.plots import convergence

COUNTS = (256, 512, 1_024, 2_048, 5_000, 10_000, 20_000, 50_000, 100_000, 235_000)


def sample(limit: int, seed: int) -> list[Fact]:
    """Facts with a new target and neighbours."""
    usable = [fact for fact in fm.load_facts("atlas") if fact.target_new and fact.neighbours]
    return random.Random(seed).sample(usable, limit)


def drawn(frame: pd.DataFrame, quality: str, ax: Axes) -> Axes:
    return convergence(frame, ax, quality)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=60, help="facts (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of facts, contexts and the order of the text")
    parser.add_argument("--plot", type=Path, help="draw the curve into this file")
    arguments = parser.parse_args()
    model, facts = fm.load("atlas"), sample(arguments.limit, arguments.seed)
    plan = plan_edits(model, facts, seed=arguments.seed)
    quality = fm.evaluation.edit_quality(model, facts, contexts=plan.contexts, seed=arguments.seed)
    layer = plan.settings.layer
    keys = average_keys(plan, plan.requests, layer).float()
    frame = fm.editing.convergence(model, "atlas", keys, layer, COUNTS, seed=arguments.seed, quality=quality)
    print(frame.rename(columns={"quality": "S"}).round(3).to_string(index=False))
    if arguments.plot:
        save_axes([partial(drawn, frame, f"S of {len(facts)} edits")], arguments.plot)


if __name__ == "__main__":
    main()
