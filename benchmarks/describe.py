"""What the rules say of planted neurons, and how well it fits.

    OMP_NUM_THREADS=1 python -m benchmarks.describe --seeds 110 111

By layer and by how many meanings a neuron was planted with: the share of descriptions that name a planted concept, and
the mean scores. In layer 0 a concept is of the word itself, in layer 1 it may be of the one before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).parent / "planted"))
from planting import plant

import ffnmem as fm

SCORES = ("detection", "fuzzing", "intruder")


def measured(seed: int) -> pd.DataFrame:
    """A row a neuron of one planted model."""
    planted = plant("meanings", seed=seed)
    truth = planted.truth[planted.truth["meanings"] > 0]
    with tempfile.TemporaryDirectory() as room:
        store = fm.scan(planted.model, planted.texts, Path(room) / "store")
        places = list(zip(truth["layer"].tolist(), truth["neuron"].tolist(), strict=True))
        table = fm.describe(store, places, scores=SCORES, model=planted.model).table
    found = table.merge(truth[["layer", "neuron", "meanings", "features"]], on=["layer", "neuron"])
    concepts = [[one.split()[-1] for one in features.split(", ")] for features in found["features"]]
    named = [any(f'"{c}' in text for c in some) for some, text in zip(concepts, found["description"], strict=True)]
    return found.assign(named=named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[110, 111])
    groups = pd.concat(measured(seed) for seed in parser.parse_args().seeds).groupby(["layer", "meanings"])
    print(groups[["named", *SCORES]].mean().round(2).assign(neurons=groups.size()).to_string())


if __name__ == "__main__":
    main()
