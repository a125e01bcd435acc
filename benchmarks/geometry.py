"""Near-duplicate neurons of a whole model by blocks and a screen, against the products of all pairs of layers.

GPT-2 small's shape with random weights: every pair of 36,864 keys and of as many values. Ours is ``find_duplicates``;
the other multiplies each layer's unit rows with each later layer's, whole ``[3072, 3072]`` matrices, and looks for
entries above the threshold. In ``--plain`` weights no direction stands out, so there is nothing to screen by; else the
rows lie mostly in a few directions, as trained ones may. The two take turns; the figure is the median of the paired
ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import numpy as np
import torch
from common import gpt2_small, machine, paired, toy_tokenizer
from projection import forget_peak, status

import ffnmem as fm
from ffnmem.neurons.duplicates import find_duplicates
from ffnmem.neurons.overlap import SIDES, memory_rows, unit_rows

THRESHOLD = 0.9
PLANTED = 12  # pairs that are there to be found
ALL_AT_ONCE_GB = 36_864**2 * 4 / 1e9


def naive(units: Callable[[str, int], torch.Tensor], layers: int) -> int:
    """How many pairs are above the threshold, from whole products of layers."""
    total = 0
    for side in SIDES:
        rows = [units(side, layer) for layer in range(layers)]
        for one in range(layers):
            for other in range(one, layers):
                found = rows[one] @ rows[other].T > THRESHOLD
                total += int(found.triu(1).sum() if one == other else found.sum())
    return total


def squeeze(model: fm.Model, seed: int = 0) -> None:
    """Let all keys and values lie mostly in a few directions, each layer's in the same."""
    scale = torch.from_numpy(np.random.default_rng(seed).permutation(1 / np.sqrt(np.arange(1, model.d_model + 1))))
    with torch.no_grad():
        for ffn in model.ffn:
            ffn.keys.mul_(scale.to(ffn.keys))
            ffn.values.mul_(scale.to(ffn.values))


def plant(model: fm.Model) -> None:
    """Neurons of the first layer again in the last."""
    with torch.no_grad():
        for side in ("keys", "values"):
            getattr(model.ffn[model.n_layers - 1], side)[:PLANTED] = getattr(model.ffn[0], side)[:PLANTED]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--plain", action="store_true", help="weights without any direction that stands out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = fm.load(gpt2_small(n_layer=arguments.layers), tokenizer=toy_tokenizer(50_257), device="cpu")
    if not arguments.plain:
        squeeze(model)
    plant(model)
    kept = {
        (side, layer): unit_rows(memory_rows(model, layer, side)) for side in SIDES for layer in range(model.n_layers)
    }

    def units(side: str, layer: int) -> torch.Tensor:
        return kept[side, layer]

    def ours() -> object:
        return find_duplicates(units, range(model.n_layers), THRESHOLD, limit=100)

    before = status("VmRSS")
    forget_peak()
    found = find_duplicates(units, range(model.n_layers), THRESHOLD, limit=100)
    peak = status("VmHWM") - before
    pairs = int(found.counts.loc[found.counts["by"] != "both", "pairs"].sum())
    assert pairs == naive(units, model.n_layers) >= 2 * PLANTED
    times = paired(ours, lambda: naive(units, model.n_layers), arguments.rounds, warmups=0)
    result = {
        "ratio": round(statistics.median(a / b for a, b in times), 3),
        "ours_s": round(statistics.median(a for a, _ in times), 2),
        "whole_products_s": round(statistics.median(b for _, b in times), 2),
        "peak_memory_gb": round(peak, 2),
        "all_pairs_at_once_gb": round(ALL_AT_ONCE_GB, 1),
        "pairs_found": pairs,
        "rounds": arguments.rounds,
        "shape": f"GPT-2 small's, {model.n_layers} x 3072 keys and values of 768, float32",
        "weights": "random" if arguments.plain else "random, in few directions",
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"near-duplicates above {THRESHOLD}            {result['ours_s']} s, {pairs} pairs")
    print(f"whole products of layers             {result['whole_products_s']} s, as many pairs")
    print(f"median ratio                         {result['ratio']}")
    print(f"peak memory over the rows            {result['peak_memory_gb']} GB   (all pairs: {ALL_AT_ONCE_GB:.1f})")
    print(f"{result['shape']}, weights {result['weights']}, {arguments.rounds} paired rounds")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
