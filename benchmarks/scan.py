"""A scan's tokens a second against the bare Hugging Face body, and against TransformerLens as its documentation shows.

GPT-2 small's shape with random weights, sequences of 128 tokens in batches of 2,048. Three ways take turns on the same
batches: the body of ``GPT2Model`` alone with its own attention; our pass with everything that a store keeps; and
``run_with_cache`` on all MLP layers with ``torch.topk`` over all positions, which keeps the 20 best only. Figures are
medians of paired ratios, after warm-up batches that fill the lists of winners (their own ratio is told too).

``--bfloat16`` adds a whole bfloat16 scan, candidates run again in float32 included, on a corpus whose winners are under
5% of the text; its bar stands for machines with bfloat16 units.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import gpt2_small, machine, seconds, toy_tokenizer

import ffnmem as fm
from ffnmem.corpus import pack
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import Page
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning.reduction import Planner, Reducer, Workers, choose
from ffnmem.scanning.settings import make_settings
from ffnmem.scanning.state import ScanState

ROWS, WINDOW, K = 16, 127, 20
BARS = {"scan": 0.90, "bfloat16": 1.8, "run_with_cache": 4.0}


def documents(count: int, vocab: int, seed: int) -> list[str]:
    """Texts of WINDOW random words."""
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in draw.integers(0, vocab, WINDOW)) for _ in range(count)]


class OurPass:
    """The pass of a scan: body and reduction."""

    def __init__(self, model: fm.Model, sequences: Sequences) -> None:
        frequent = tuple(int(i) for i in np.argsort(-np.array(sequences.packed.token_counts))[:128])
        settings = make_settings(
            model,
            context=WINDOW + 1,
            prepend_bos=True,
            dtype="float32",
            batch_tokens=ROWS * (WINDOW + 1),
            seed=0,
            k=K,
            sample=8,  # as rare as 128 are in a million tokens
            draws=64,
            frequent=frequent,
        )
        sample = choose(sequences, 0, 8, 64)
        self.state = ScanState.empty(settings, [ffn.d_mlp for ffn in model.ffn], sample.sequences, sample.draws)
        self.body, self.special = LayerPass(model), np.array(settings.special)
        self.reducer = Reducer(self.state, Planner(self.state, sample), Workers())

    def __call__(self, batch: Batch) -> None:
        plan = self.reducer.begin(Page(batch, 1, self.special))
        self.body.run(torch.from_numpy(batch.tokens), lambda layer, pre, m: self.reducer.layer(plan, layer, pre, m))


class Cached:
    """What a reader of TransformerLens' documentation writes: hook_post of every layer, topk over all positions."""

    def __init__(self, model: fm.Model) -> None:
        self.bridge, self.n_layers = model.bridge, model.n_layers
        self.best: dict[int, torch.Tensor] = {}

    def __call__(self, batch: Batch) -> None:
        with torch.no_grad():
            _, cache = self.bridge.run_with_cache(
                torch.from_numpy(batch.tokens), names_filter=lambda name: name.endswith("mlp.hook_post")
            )
        for layer in range(self.n_layers):
            values = cache[f"blocks.{layer}.mlp.hook_post"].flatten(0, 1)
            known = [self.best[layer]] if layer in self.best else []
            self.best[layer] = torch.cat([values, *known]).topk(K, dim=0).values


def measure(model: fm.Model, plain: Any, sequences: Sequences, warmups: int) -> dict[str, Any]:
    batches = [b for unit in sequences.units for b in sequences.batches(unit, ROWS * (WINDOW + 1))]
    ours, cached, body = OurPass(model, sequences), Cached(model), plain.transformer

    def bare(batch: Batch) -> None:
        with torch.no_grad():
            body(torch.from_numpy(batch.tokens), use_cache=False)

    ours(batches[0]), bare(batches[0])  # compiles
    times = []
    for number, batch in enumerate(batches):
        ways = [bare, ours] if number % 2 else [ours, bare]
        took = {way: seconds(lambda way=way, batch=batch: way(batch)) for way in ways}
        slow = seconds(lambda batch=batch: cached(batch)) if number >= warmups and number % 3 == 0 else None
        times.append((took[bare], took[ours], slow))
    steady, tokens = times[warmups:], ROWS * (WINDOW + 1)
    return {
        "scan_ratio": round(statistics.median(a / b for a, b, _ in steady), 3),
        "first_batches_ratio": round(statistics.median(a / b for a, b, _ in times[:warmups]), 3),
        "bare_tokens_per_s": round(tokens / statistics.median(a for a, _, _ in steady)),
        "scan_tokens_per_s": round(tokens / statistics.median(b for _, b, _ in steady)),
        "run_with_cache_ratio": round(statistics.median(c / b for _, b, c in steady if c is not None), 2),
        "run_with_cache_tokens_per_s": round(tokens / statistics.median(c for _, _, c in steady if c is not None)),
        "batches": len(batches),
    }


def half(model: fm.Model, plain: Any, folder: Path, count: int) -> dict[str, Any]:
    """A whole bfloat16 scan against the float32 body: all but a few documents repeat 40 words, so few can win."""
    texts = documents(count, 40, 1)
    few = max(1, count // 50)
    for place, text in zip(range(0, count, max(1, count // few)), documents(few, 50_000, 2), strict=False):
        texts[place] = text
    packed = pack(texts, model, folder / "half")
    sequences = Sequences(packed, WINDOW + 1, model.bos_token_id)
    batches = [b for unit in sequences.units for b in sequences.batches(unit, ROWS * (WINDOW + 1))]
    again: list[int] = []

    def bare() -> None:
        with torch.no_grad():
            for batch in batches:
                plain.transformer(torch.from_numpy(batch.tokens), use_cache=False)

    def ours() -> None:
        fm.scan(
            model,
            packed,
            folder / f"store{len(again)}",
            dtype="bfloat16",
            k=1,
            sample=8,
            draws=8,
            context=WINDOW + 1,
            progress=lambda phase, _done, total: again.append(total) if phase == "rescore" else None,
        )

    body, scan = seconds(bare), seconds(ours)
    return {"bfloat16_ratio": round(body / scan, 3), "winners_share": round(again[-1] / count, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=18)
    parser.add_argument("--warmups", type=int, default=6)
    parser.add_argument("--bfloat16", type=int, default=0, metavar="DOCUMENTS")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = gpt2_small()
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        packed = pack(documents(ROWS * arguments.batches, 50_000, 0), model, Path(folder) / "packed")
        sequences = Sequences(packed, WINDOW + 1, model.bos_token_id)
        result = measure(model, plain, sequences, arguments.warmups)
        if arguments.bfloat16:
            result |= half(model, plain, Path(folder), arguments.bfloat16)
    result |= machine()
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"bare body, float32             {result['bare_tokens_per_s']} tokens/s (the limit)")
    print(f"scan, float32                  {result['scan_tokens_per_s']} tokens/s")
    print(f"median ratio                   {result['scan_ratio']}   (bar: {BARS['scan']})")
    print(f"while the winners' lists fill  {result['first_batches_ratio']}")
    print(f"run_with_cache and topk        {result['run_with_cache_tokens_per_s']} tokens/s")
    print(f"scan is faster by              {result['run_with_cache_ratio']}   (bar: {BARS['run_with_cache']})")
    if arguments.bfloat16:
        print(f"scan, bfloat16 and re-score    {result['bfloat16_ratio']} x the float32 body (bar: {BARS['bfloat16']})")
        print(f"winners                        {result['winners_share']:.1%} of the sequences")
    print(f"GPT-2 small's shape, {result['batches']} batches of {ROWS} x {WINDOW + 1} tokens")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
