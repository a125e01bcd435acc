"""``make fuzz``: the hostile suite with new inputs for as long as told; prints how many, and every failure once.

Usage: ``python -m tests.hostile.fuzz [--seconds 600] [--only WORD] [--seed N]``. Exit status 1 where anything failed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

from hypothesis import HealthCheck, Phase, given, seed, settings

from .judging import OUTCOMES, TARGETS, Target

ROUND = 50  # inputs of a part before the next one has its turn


def tried(target: Target, draw: int, examples: int) -> tuple[int, str | None]:
    """Try new inputs of one part: how many, and the traceback of the smallest one that failed."""
    count = 0

    def attempt(**drawn: object) -> None:
        nonlocal count
        count += 1
        target.attempt(**drawn)

    run = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )(seed(draw)(given(**target.strategies)(attempt)))
    try:
        run()
    except Exception:  # noqa: BLE001 (whatever it is, it is what this program looks for)
        return count, traceback.format_exc(limit=-12)
    return count, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long (600)")
    parser.add_argument("--only", default="", help="only parts with this in their name")
    parser.add_argument("--seed", type=int, default=None, help="where to begin drawing; printed, random if left out")
    options = parser.parse_args()
    for module in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"{__package__}.{module.stem}")
    targets = [target for target in TARGETS if options.only in target.name]
    if not targets:
        print(f"no part has {options.only!r} in its name: {', '.join(target.name for target in TARGETS)}")
        return 2
    begin = random.randrange(2**32) if options.seed is None else options.seed
    print(f"{len(targets)} parts, {options.seconds:g} s, --seed {begin}")
    inputs: Counter[str] = Counter()
    failures: dict[str, str] = {}
    end, turn = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        for target in targets:
            if time.monotonic() >= end:
                break
            count, failure = tried(target, begin + turn, ROUND)
            inputs[target.name] += count
            if failure is not None:
                if target.name not in failures:
                    print(f"\nFAILED {target.name} (--seed {begin + turn} --only {target.name})\n{failure}", flush=True)
                failures[target.name] = failure
        turn += 1
    for name, count in sorted(inputs.items()):
        print(f"{count:8,} inputs  {name}{'  FAILED' if name in failures else ''}")
    print(f"{inputs.total():8,} inputs in all, {len(failures)} of {len(targets)} parts failed")
    for outcome, count in sorted(OUTCOMES.items()):
        print(f"{count:8,} × {outcome}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
