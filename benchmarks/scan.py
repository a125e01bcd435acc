"""A scan's tokens a second against the bare Hugging Face body, and against TransformerLens as its documentation shows.

GPT-2 small's shape with random weights, sequences of 128 tokens in batches of 2,048. Three ways take turns on the same
batches: the body of ``GPT2Model`` alone with its own attention; our pass with everything that a store keeps; and
``run_with_cache`` on all MLP layers with ``torch.topk`` over all positions, which keeps the 20 best only. Figures are
medians of paired ratios, after warm-up batches that fill the lists of winners (their own ratio is told too).

``--bfloat16`` adds a whole bfloat16 scan, candidates run again in float32 included, on a corpus whose winners are under
5% of the text; its bar stands for machines with bfloat16 units.

``--model smollm2 --text FILE`` measures the whole call instead, from a text file to an opened store, of a real model:
``fm.scan`` against the bare body over the same batches, half of them before and half after it; then what projecting all
of its values takes, which a scan of a large model leaves for when it is asked for. In CPU seconds, which other programs
on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
from collections.abc import Callable
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
BARS = {"whole": 0.90, "scan": 0.90, "bfloat16": 1.8, "run_with_cache": 4.0}


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


def cpu_seconds(run: Callable[[], object]) -> float:
    """Of all threads of this process."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    run()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def excerpt(model: fm.Model, source: Path, most: int, out: Path) -> Path:
    """The first paragraphs of a text, as many as have ``most`` tokens."""
    kept, tokens = [], 0
    for line in source.read_text(encoding="utf-8").splitlines():
        if tokens >= most:
            break
        kept.append(line)
        tokens += len(model.tokenizer(line, add_special_tokens=False)["input_ids"]) if line.strip() else 0
    out.write_text("\n".join(kept), encoding="utf-8")
    return out


def whole_call(name: str, source: Path, most: int, folder: Path) -> dict[str, Any]:
    """The whole call of a scan of a real model, and the projection of all its values."""
    model = fm.load(name, device="cpu")
    text = excerpt(model, source, most, folder / "text.txt")
    fm.scan(model, [" ".join(["learn"] * 200)], folder / "warm", project=False)  # compiles
    context = make_settings(
        model, context=None, prepend_bos=None, dtype="float32", batch_tokens=2048, seed=0, k=K, sample=8, draws=8,
        frequent=(),
    ).context  # fmt: skip
    packed = pack(text, model, folder / "packed")
    bos = model.bos_token_id if model.prepend_bos else None
    sequences = Sequences(packed, context, bos)
    batches = [b for unit in sequences.units for b in sequences.batches(unit, 2048)]

    def bare(part: list[Batch]) -> None:
        with torch.no_grad():
            for batch in part:
                model.hf_model.base_model(torch.from_numpy(batch.tokens), use_cache=False)

    bare(batches[:1])
    first = cpu_seconds(lambda: bare(batches[::2]))
    took = cpu_seconds(lambda: fm.scan(model, text, folder / "store", project=False))
    body = first + cpu_seconds(lambda: bare(batches[1::2]))
    store = fm.open_store(folder / "store", model=model)
    store.neuron(0, 0)
    cards = [cpu_seconds(lambda at=at: store.neuron(at % model.n_layers, at)) for at in range(20)]
    projection = cpu_seconds(store.keep_values)
    return {
        "model": name,
        "tokens": store.n_tokens,
        "bare_cpu_s": round(body, 1),
        "scan_cpu_s": round(took, 1),
        "projection_cpu_s": round(projection, 1),
        "whole_ratio": round(body / took, 3),
        "whole_ratio_projected": round(body / (took + projection), 3),
        "card_cpu_ms": round(1000 * statistics.median(cards), 1),
    }


def show_whole(result: dict[str, Any], as_json: bool) -> None:
    result |= machine()
    if as_json:
        print(json.dumps(result))
        return
    print(f"bare body                      {result['bare_cpu_s']} CPU s")
    print(f"fm.scan, whole call            {result['scan_cpu_s']} CPU s")
    print(f"ratio                          {result['whole_ratio']}   (bar: {BARS['whole']})")
    print(f"projecting all values          {result['projection_cpu_s']} CPU s, when first asked for")
    print(f"ratio with it                  {result['whole_ratio_projected']}")
    print(f"a card, no table               {result['card_cpu_ms']} CPU ms")
    print(f"{result['model']}, {result['tokens']} tokens; {result['threads']} threads, torch {result['torch']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=18)
    parser.add_argument("--warmups", type=int, default=6)
    parser.add_argument("--bfloat16", type=int, default=0, metavar="DOCUMENTS")
    parser.add_argument("--model", metavar="NAME", help="the whole call of a scan of this model instead")
    parser.add_argument("--text", type=Path, metavar="FILE", help="with --model: what to scan")
    parser.add_argument("--tokens", type=int, default=12_000, help="with --model: of that text")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.model:
        if arguments.text is None:
            parser.error("--model needs --text FILE")
        with tempfile.TemporaryDirectory() as folder:
            show_whole(whole_call(arguments.model, arguments.text, arguments.tokens, Path(folder)), arguments.json)
        return
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
