"""A scan's tokens a second against the bare Hugging Face body, and against TransformerLens as its documentation shows.

GPT-2 small's shape with random weights, sequences of 128 tokens in batches of 2,048. Three ways take turns on the same
batches: the body of ``GPT2Model`` alone with its own attention; our pass with everything that a store keeps; and
``run_with_cache`` on all MLP layers with ``torch.topk`` over all positions, which keeps the 20 best only. Figures are
medians of paired ratios, after warm-up batches that fill the lists of winners (their own ratio is told too). With
``--model mixture-shape`` the same of a mixture of experts, which TransformerLens does not run as one FFN.

``--bfloat16`` adds a whole bfloat16 scan, candidates run again in float32 included, on a corpus whose winners are under
5% of the text; its bar stands for machines with bfloat16 units.

``--model smollm2`` (or ``gpt2-shape``, random weights with the tokenizer of a folder) ``--text FILE`` measures the
whole call instead, from a text file to an opened store: ``fm.scan`` against the bare body over the same batches, each
batch of the body right after the scan's, so that the machine's other work hits both. In CPU seconds, which other
programs disturb less, and in wall-clock seconds; and where the scan's go: packing, reduction, state, tables, checksums.
Then what a card of a neuron takes and, with ``--projection``, projecting all values, which a scan of a large model
leaves for when it is asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SHAPES, cpu, cpu_seconds, machine, seconds, subject, toy_tokenizer

import ffnmem as fm
from ffnmem.core.threads import Threads
from ffnmem.corpus import pack
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import BATCH_TOKENS, Page, Stretch, TextSettings
from ffnmem.corpus.passes import CHECKPOINT_SECONDS, Forward
from ffnmem.scanning import kernels, passes, scanning
from ffnmem.scanning.projected import sides_kept
from ffnmem.scanning.reduction import Reducer, choose
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import ScanState
from ffnmem.vocabulary.vectors import matrix_of, side_tokens

ROWS, WINDOW, K = 16, 127, 20
BARS = {"whole": 0.90, "card": 50, "projection": 0.6, "scan": 0.90, "bfloat16": 1.8, "run_with_cache": 4.0}


def documents(count: int, vocab: int, seed: int) -> list[str]:
    """Texts of WINDOW random words."""
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in draw.integers(0, vocab, WINDOW)) for _ in range(count)]


class OurPass:
    """The pass of a scan: body and reduction."""

    def __init__(self, model: fm.Model, sequences: Sequences) -> None:
        frequent = tuple(int(i) for i in np.argsort(-np.array(sequences.packed.token_counts))[:128])
        text = TextSettings.checked(model, WINDOW + 1, True, ROWS * (WINDOW + 1))
        # A sample of 8 is as rare as 128 are in a million tokens.
        settings = ScanSettings(**vars(text), k=K, dtype="float32", seed=0, sample=8, draws=64, frequent=frequent)
        sample = choose(sequences, settings.special, 0, 8, 64)
        widths = [ffn.d_mlp for ffn in model.ffn]
        kept = len(sample.inputs), model.d_model
        state = ScanState.empty(settings, widths, sample.sequences, sample.draws, model.gated, model.experts, kept)
        self.special = np.array(settings.special)
        self.forward = Forward(model, [Reducer(state, sample, Threads(whole=kernels.WIDTH))])

    def __call__(self, batch: Batch) -> None:
        self.forward(Page(batch, 1, self.special))


class Cached:
    """What a reader of TransformerLens' documentation writes: hook_post of every layer, topk over all positions."""

    def __init__(self, model: fm.Model) -> None:
        self.bridge, self.n_layers = model.to_bridge(), model.n_layers
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
    ours, body = OurPass(model, sequences), plain.base_model
    cached = Cached(model) if not model.experts else None

    def bare(batch: Batch) -> None:
        with torch.no_grad():
            body(torch.from_numpy(batch.tokens), use_cache=False)

    ours(batches[0]), bare(batches[0])  # compiles
    times = []
    for number, batch in enumerate(batches):
        ways = [bare, ours] if number % 2 else [ours, bare]
        took = {way: seconds(lambda way=way, batch=batch: way(batch)) for way in ways}
        now = cached is not None and number >= warmups and number % 3 == 0
        slow = seconds(lambda batch=batch: cached(batch)) if now else None
        times.append((took[bare], took[ours], slow))
    steady, tokens = times[warmups:], ROWS * (WINDOW + 1)
    found = {
        "scan_ratio": round(statistics.median(a / b for a, b, _ in steady), 3),
        "first_batches_ratio": round(statistics.median(a / b for a, b, _ in times[:warmups]), 3),
        "bare_tokens_per_s": round(tokens / statistics.median(a for a, _, _ in steady)),
        "scan_tokens_per_s": round(tokens / statistics.median(b for _, b, _ in steady)),
        "batches": len(batches),
    }
    if cached is not None:
        theirs = [(b, c) for _, b, c in steady if c is not None]
        found["run_with_cache_ratio"] = round(statistics.median(c / b for b, c in theirs), 2)
        found["run_with_cache_tokens_per_s"] = round(tokens / statistics.median(c for _, c in theirs))
    return found


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
                plain.base_model(torch.from_numpy(batch.tokens), use_cache=False)

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


PARTS = {
    "pack": [(scanning, "packed_corpus")],
    "reduction": [(Reducer, "begin"), (Reducer, "add")],
    "state": [(passes, "save_state"), (scanning, "save_state")],
    "tables": [(scanning, "write_stats")],
    "checksums": [(scanning, "write_manifest"), (scanning, "open_store")],
}


@contextmanager
def watched(parts: dict[str, float]) -> Iterator[None]:
    """Adds up the CPU seconds of the parts of a scan."""
    originals = [(owner, name, getattr(owner, name)) for places in PARTS.values() for owner, name in places]

    def timed(part: str, function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            began = cpu()
            try:
                return function(*arguments, **more)
            finally:
                parts[part] = parts.get(part, 0.0) + cpu() - began

        return call

    for part, places in PARTS.items():
        for owner, name in places:
            setattr(owner, name, timed(part, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def whole_call(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole call of a scan, the bare body after each of its batches; then cards, and the values' projection."""
    plain, model = subject(arguments.model, arguments.tokenizer)
    text = excerpt(model, arguments.text, arguments.tokens, folder / "text.txt")
    fm.scan(model, [" ".join(["learn"] * 200)], folder / "warm", project=False)  # compiles
    settings = TextSettings.checked(model, None, None, BATCH_TOKENS)
    body = plain.base_model

    def bare(page: Page) -> None:
        with torch.no_grad():
            body(torch.from_numpy(page.batch.tokens), use_cache=False)

    packed = pack(text, model, folder / "packed")
    bare(next(Stretch(settings.sequences(packed), settings).pages()))
    rounds = []
    for number in range(arguments.rounds):
        pages = Stretch(settings.sequences(packed), settings).pages()
        parts: dict[str, float] = {}
        took = {"cpu": 0.0, "wall": 0.0}

        def beside(phase: str, _done: int, _total: int, pages: Any = pages, took: Any = took) -> None:
            if phase == "scan":
                began, wall = cpu(), time.perf_counter()
                bare(next(pages))
                took["cpu"] += cpu() - began
                took["wall"] += time.perf_counter() - wall

        began, wall = cpu(), time.perf_counter()
        with watched(parts):
            # of its time half is the body's, so that it saves itself as often as alone
            rare = 2 * CHECKPOINT_SECONDS
            out = folder / f"store{number}"
            store = fm.scan(model, text, out, project=False, checkpoint_seconds=rare, progress=beside)
        scan_cpu, scan_wall = cpu() - began - took["cpu"], time.perf_counter() - wall - took["wall"]
        rounds.append(
            {"bare": took["cpu"], "scan": scan_cpu, "bare_wall": took["wall"], "scan_wall": scan_wall, **parts}
        )
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    result = {
        "model": arguments.model,
        "tokens": store.n_tokens,
        "rounds": arguments.rounds,
        "bare_cpu_s": round(found["bare"], 1),
        "scan_cpu_s": round(found["scan"], 1),
        "whole_ratio": round(statistics.median(one["bare"] / one["scan"] for one in rounds), 3),
        "whole_ratio_wall": round(statistics.median(one["bare_wall"] / one["scan_wall"] for one in rounds), 3),
        "parts_cpu_s": {name: round(found[name], 2) for name in PARTS},
    }
    fixed = sum(found[name] for name in PARTS if name != "reduction")
    result["pass_ratio"] = round(found["bare"] / (found["scan"] - fixed), 3)
    result["card_cpu_ms"] = cards(store)
    if arguments.projection:
        result["projection_cpu_s"] = round(cpu_seconds(store.keep_values), 1)
        result["product_cpu_s"] = round(cpu_seconds(lambda: product(model)), 1)
        result["card_with_table_cpu_ms"] = cards(fm.open_store(store.folder, model=model))
    return result


def cards(store: fm.scanning.Store) -> dict[str, float]:
    """CPU milliseconds of one neuron's card, medians of 20: of layers that nothing was asked of, and of these again."""
    store.neuron(0, 0)
    layers = range(1, min(store.n_layers, 21))
    found = {}
    for which, neuron in (("first_of_its_layer", 0), ("later", 1)):
        times = [cpu_seconds(lambda at=at, neuron=neuron: store.neuron(at, neuron)) for at in layers]
        found[which] = round(1000 * statistics.median(times), 1)
    return found


def product(model: fm.Model) -> None:
    """All vectors that the table is of with what they are scored against, in float32, thrown away."""
    for side in sides_kept(model.gated):
        tokens = side_tokens(model, side).float()
        for layer in range(model.n_layers):
            for block in matrix_of(model, layer, side).detach().float().split(256):
                block @ tokens.T


def show_whole(result: dict[str, Any], as_json: bool) -> None:
    result |= machine()
    if as_json:
        print(json.dumps(result))
        return
    print(f"bare body                      {result['bare_cpu_s']} CPU s")
    print(f"fm.scan, whole call            {result['scan_cpu_s']} CPU s")
    print(f"ratio                          {result['whole_ratio']}   (bar: {BARS['whole']} at 50,000 tokens)")
    print(f"ratio of wall-clock seconds    {result['whole_ratio_wall']}")
    print(f"ratio of the pass alone        {result['pass_ratio']}")
    for name, spent in result["parts_cpu_s"].items():
        print(f"  {name:<28} {spent} CPU s")
    told = "{later} CPU ms, the first of its layer {first_of_its_layer}".format
    print(f"a card, no table of values     {told(**result['card_cpu_ms'])}   (bar: {BARS['card']})")
    if "projection_cpu_s" in result:
        ratio = f"{result['projection_cpu_s'] / result['product_cpu_s']:.2f} of it (bar: {BARS['projection']})"
        print(f"projecting values, keys, gates {result['projection_cpu_s']} CPU s, when first asked for")
        print(f"the float32 products           {result['product_cpu_s']} CPU s; {ratio}")
        print(f"a card, with the table         {told(**result['card_with_table_cpu_ms'])}")
    threads = f"{result['threads']} threads, torch {result['torch']}"
    print(f"{result['model']}, {result['tokens']} tokens, {result['rounds']} rounds; {threads}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=18)
    parser.add_argument("--warmups", type=int, default=6)
    parser.add_argument("--bfloat16", type=int, default=0, metavar="DOCUMENTS")
    parser.add_argument(
        "--model",
        choices=["smollm2", "gpt2-shape", "mixture-shape"],
        help="the whole call of a scan of it instead; mixture-shape: the pass alone, of a mixture of experts",
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="with --model gpt2-shape: GPT-2's")
    parser.add_argument("--rounds", type=int, default=1, help="with --model: whole calls, of which the median is told")
    parser.add_argument("--projection", action="store_true", help="with --model: project all values too")
    parser.add_argument("--text", type=Path, metavar="FILE", help="with --model: what to scan")
    parser.add_argument("--tokens", type=int, default=12_000, help="with --model: of that text")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shape = arguments.model if arguments.model == "mixture-shape" else "gpt2-shape"
    if arguments.model not in (None, "mixture-shape"):
        if arguments.text is None:
            parser.error("--model needs --text FILE")
        with tempfile.TemporaryDirectory() as folder:
            show_whole(whole_call(arguments, Path(folder)), arguments.json)
        return
    plain = SHAPES[shape]()
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
    if "run_with_cache_ratio" in result:
        print(f"run_with_cache and topk        {result['run_with_cache_tokens_per_s']} tokens/s")
        print(f"scan is faster by              {result['run_with_cache_ratio']}   (bar: {BARS['run_with_cache']})")
    if arguments.bfloat16:
        print(f"scan, bfloat16 and re-score    {result['bfloat16_ratio']} x the float32 body (bar: {BARS['bfloat16']})")
        print(f"winners                        {result['winners_share']:.1%} of the sequences")
    print(f"{shape}, {result['batches']} batches of {ROWS} x {WINDOW + 1} tokens")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
