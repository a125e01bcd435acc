"""How alike neurons' examples are, block by block, against one neuron and one draw at a time with SciPy.

Random inputs of GPT-2 small's width: 128 neurons of 40 examples, 200 draws of bootstrap and null each. Ours is
``ffnmem.neurons.clustering``; the other calls ``linkage`` and ``fcluster`` in a Python loop over
draws, is timed on a few of the neurons and counted for all. What both say is compared. The two take turns; the
figure is the median of the paired ratios.

``--whole`` instead scans so many tokens with a model of GPT-2 small's shape and random weights, times
``ffnmem.polysemanticity`` of all its neurons by phase, and then one neuron by itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import gpt2_small, machine, paired, seconds, toy_tokenizer
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import entropy

import ffnmem as fm
from ffnmem.neurons.clustering import Draws, Examples, estimate_measure, estimate_number
from ffnmem.neurons.inputs import MOST, Background, Firing, background_of
from ffnmem.neurons.verdicts import Estimate

D_MODEL, POSITIONS, MEANINGS = 768, 4096, 3
PARTS = ("value", "low", "high", "null", "p")
WORDS = 127  # of a document, as many as a sequence holds
BARS = {"whole": 600.0, "one": 1.0}


class Data:
    """Neurons whose examples are of a few kinds each, and the inputs that they are compared with."""

    def __init__(self, neurons: int, draws: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.background: Background = background_of(rng.standard_normal((POSITIONS, D_MODEL)).astype(np.float32))
        kinds = rng.standard_normal((neurons, MEANINGS, D_MODEL))
        which = rng.integers(MEANINGS, size=(neurons, MOST))
        own = rng.standard_normal((neurons, MOST, D_MODEL))
        self.inputs = (np.take_along_axis(kinds, which[..., None], 1) + own).astype(np.float32)
        strengths = np.sort(rng.uniform(0.5, 1.0, (neurons, MOST)))[:, ::-1].copy()
        places = np.arange(neurons * MOST).reshape(neurons, MOST)
        self.firing = Firing(0, np.arange(neurons), places, strengths, strengths[:, 0].copy())
        self.draws = Draws(draws, seed, len(self.background.units))

    def ours(self) -> dict[str, Estimate]:
        rows = self.inputs.reshape(-1, D_MODEL)
        examples = Examples(self.firing, lambda places: rows[places], self.background, self.draws)
        return examples.estimates("meanings", "ms")

    def plain(self, neurons: int) -> dict[str, Estimate]:
        found = [self.one(neuron) for neuron in range(neurons)]
        meanings, ms = (np.array([row[i] for row in found]) for i in range(2))
        draws = self.draws.draws
        return {
            "meanings": estimate_number(meanings, draws, self.firing.counts[:neurons]),
            "ms": estimate_measure(ms, draws, "greater"),
        }

    def one(self, neuron: int) -> tuple[list[float], list[float]]:
        """Meanings and MS of a neuron: the value, its bootstrap draws, its null draws."""
        weights, draws = self.firing.strengths[neuron], self.draws
        units = self.background.unit(self.inputs[neuron])
        similarity, unrelated = units @ units.T, self.background.cosines
        every = np.arange(MOST)
        meanings, ms = [linked(similarity, every, weights, self.background.cut)], [pairs(similarity, every, weights)]
        for times in draws.multiplicity[MOST]:
            rows = np.repeat(every, times)
            meanings.append(linked(similarity, rows, weights[rows], self.background.cut))
            ms.append(pairs(similarity, every, weights * times))
        for picks in draws.picks:
            meanings.append(linked(unrelated, picks, weights, self.background.cut))
            ms.append(pairs(unrelated, picks, weights))
        return meanings, ms


def linked(similarity: np.ndarray, rows: np.ndarray, weights: np.ndarray, cut: float) -> float:
    distance = np.clip(1 - similarity[np.ix_(rows, rows)].astype(np.float64), 0, None)
    distance[rows[:, None] == rows] = 0
    labels = fcluster(linkage(squareform(distance, checks=False), "average"), 1 - cut, "distance")
    return float(np.exp(entropy(np.bincount(labels, weights))))


def pairs(similarity: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> float:
    first, second = np.triu_indices(len(rows), 1)
    product = weights[first] * weights[second]
    return float((product * similarity[rows[first], rows[second]]).sum() / product.sum())


def off(ours: dict[str, Estimate], plain: dict[str, Estimate], neurons: int) -> float:
    """The largest difference of any number."""
    return max(
        float(np.abs(getattr(ours[name], part)[:neurons] - getattr(plain[name], part)).max())
        for name in plain
        for part in PARTS
    )


def blocks(arguments: argparse.Namespace) -> dict[str, Any]:
    data = Data(arguments.neurons, arguments.draws)
    difference = off(data.ours(), data.plain(arguments.some), arguments.some)
    times = paired(data.ours, lambda: data.plain(arguments.some), arguments.rounds, warmups=0)
    scale = arguments.neurons / arguments.some
    return {
        "ratio": round(statistics.median(scale * b / a for a, b in times), 1),
        "ours_ms_a_neuron": round(1e3 * statistics.median(a for a, _ in times) / arguments.neurons, 2),
        "scipy_ms_a_neuron": round(1e3 * statistics.median(b for _, b in times) / arguments.some, 1),
        "off": difference,
        "neurons": arguments.neurons,
        "draws": arguments.draws,
        "rounds": arguments.rounds,
    }


def documents(tokens: int, vocab: int, seed: int = 0) -> list[str]:
    """Random words whose frequencies fall as those of text do (Zipf's law)."""
    shares = 1 / np.arange(1, vocab + 1)
    drawn = np.random.default_rng(seed).choice(vocab, (max(1, tokens // WORDS), WORDS), p=shares / shares.sum())
    return [" ".join(f"w{i}" for i in row) for row in drawn]


def peak_gb() -> float:
    """The most memory that this process has held so far; Linux counts it in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class Phases:
    """Seconds by phase, from the reports of progress: what passes until a report is of its phase."""

    def __init__(self) -> None:
        self.last, self.seconds = time.perf_counter(), dict[str, float]()

    def report(self, phase: str, _done: int, _total: int) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now


def whole(arguments: argparse.Namespace) -> dict[str, Any]:
    plain = gpt2_small(n_layer=arguments.layers)
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        store = fm.scan(model, documents(arguments.tokens, 50_000), Path(folder) / "store")
        scan_s, before = time.perf_counter() - began, peak_gb()
        phases = Phases()
        took = seconds(lambda: fm.polysemanticity(store, model, draws=arguments.draws, progress=phases.report))
        peak = peak_gb()
        asked = [(n % model.n_layers, n) for n in range(9)]
        kept = [seconds(lambda one=one: fm.meanings(store, *one)) for one in asked]
        # Other settings than those kept: the neuron's examples are read again, of all layers up to its own.
        anew = [seconds(lambda one=one: fm.meanings(store, *one, model, draws=arguments.draws + 1)) for one in asked]
    return {
        "scan_s": round(scan_s, 1),
        "polysemanticity_s": round(took, 1),
        "by_phase_s": {name: round(value, 1) for name, value in phases.seconds.items()},
        "peak_gb_after_scan": round(before, 2),
        "peak_gb": round(peak, 2),
        "one_neuron_s": round(statistics.median(anew), 3),
        "one_neuron_longest_s": round(max(anew), 3),
        "one_neuron_kept_s": round(statistics.median(kept), 3),
        "neurons": model.n_layers * model.d_mlp,
        "tokens": arguments.tokens,
        "draws": arguments.draws,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--neurons", type=int, default=128)
    parser.add_argument("--some", type=int, default=2, help="neurons that the other way is timed on")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--tokens", type=int, default=60_000, help="of --whole")
    parser.add_argument("--layers", type=int, default=12, help="of --whole")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = (whole if arguments.whole else blocks)(arguments) | machine()
    if arguments.json:
        print(json.dumps(result))
        return
    if arguments.whole:
        phases = ", ".join(f"{name} {value}" for name, value in result["by_phase_s"].items())
        print(f"scan of {result['tokens']:,} tokens              {result['scan_s']} s")
        print(f"polysemanticity                     {result['polysemanticity_s']} s   (bar: {BARS['whole']:g})")
        print(f"  by phase                          {phases} s")
        print(f"one neuron, examples read again     {result['one_neuron_s']} s   (bar: {BARS['one']:g})")
        print(f"  the longest of nine               {result['one_neuron_longest_s']} s")
        print(f"one neuron, from the kept table     {result['one_neuron_kept_s']} s")
        print(f"peak memory after scan, after all   {result['peak_gb_after_scan']}, {result['peak_gb']} GB")
        print(f"GPT-2 small's shape, {arguments.layers} layers, random weights, {result['neurons']:,} neurons")
    else:
        print(f"alike, blocks of neurons             {result['ours_ms_a_neuron']} ms a neuron")
        print(f"SciPy, neuron by neuron              {result['scipy_ms_a_neuron']} ms a neuron")
        print(f"median ratio                         {result['ratio']}")
        print(f"largest difference of a number       {result['off']:.1e}   (bar: 1e-06)")
        print(
            f"{result['neurons']} neurons of {MOST} examples, {result['draws']} draws, {result['rounds']} paired rounds"
        )
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
