"""``ffnmem attribute`` on ``atlas`` against a script that imports torch and transformers, loads the same folder with
``AutoModelForCausalLM`` and runs one forward pass, each as a process of its own, taking turns.

Figures are medians; the ratio is that of the paired times. Processor time (user and system) stands beside the wall's:
it says the same and depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from ffnmem.core.resources import embedded_folder

PROMPT = "The Eiffel Tower is located in the city of"
BAR = 1.05
HELPS = 3
SCRIPT = """
import sys
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
with torch.no_grad():
    model(input_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])).logits
"""


def took(command: list[str]) -> tuple[float, float]:
    """Seconds on the wall and of the processor that a process takes; raises where it fails."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    own = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="some ten seconds each on an idle machine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ours = [sys.executable, "-m", "ffnmem", "attribute", "--model", "atlas", PROMPT, "--target", " Paris"]
    theirs = [sys.executable, "-c", SCRIPT, str(embedded_folder("atlas"))]
    shown = [sys.executable, "-m", "ffnmem", "--help"]
    took(ours), took(theirs), took(shown)  # what compiles, and what the disk has not read yet
    pairs = []
    for i in range(arguments.pairs):
        first, second = (theirs, ours) if i % 2 else (ours, theirs)
        a, b = took(first), took(second)
        pairs.append((b, a) if i % 2 else (a, b))
    helps = [took(shown) for _ in range(HELPS)]

    def median(values: list[float], digits: int = 2) -> float:
        return round(statistics.median(values), digits)

    result = {
        name: {
            "attribute_s": median([a[clock] for a, _ in pairs]),
            "script_s": median([b[clock] for _, b in pairs]),
            "ratio": median([a[clock] / b[clock] for a, b in pairs], 3),
            "help_s": median([one[clock] for one in helps]),
        }
        for clock, name in enumerate(("wall", "processor"))
    }
    if arguments.json:
        print(json.dumps({**result, "pairs": arguments.pairs}))
        return
    print("                          wall      processor")
    for field, what in (
        ("attribute_s", "ffnmem attribute"),
        ("script_s", "plain script"),
        ("ratio", "median ratio"),
        ("help_s", "ffnmem --help"),
    ):
        print(f"{what:20}{result['wall'][field]:>10}     {result['processor'][field]:>10}")
    print(f"{arguments.pairs} pairs of processes; bar for the ratio: {BAR}")


if __name__ == "__main__":
    main()
