"""Every value of a model in tokens, 20 promoted and 20 suppressed, against the bare float32 product of the same size.

GPT-2 small's shape with random weights. Ours is ``project(model, side="value", k=20)``, exact; the other is
``values @ W_Uᵀ`` in the same blocks, its result thrown away. The two take turns; the figure is the median of the paired
ratios. The bar stands for machines with bfloat16 units; the limit is what the candidates' product alone takes on this
one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from common import gpt2_small, machine, paired, seconds, toy_tokenizer

import ffnmem as fm
from ffnmem.vocabulary.scoring import BLOCK, choose

BAR = 0.6
MEMORY = 1.5
K = 20


def status(field: str) -> float:
    """A line of Linux's account of this process, in GB; NaN elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith(field))


def forget_peak() -> None:
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def bare(model: fm.Model, dtype: torch.dtype) -> None:
    """The product alone, in blocks, in one buffer."""
    tokens = model.unembedding.detach().to(dtype)
    buffer = torch.empty(BLOCK, len(tokens), dtype=dtype)
    for ffn in model.ffn:
        for block in ffn.values.detach().to(dtype).split(BLOCK):
            torch.mm(block, tokens.T, out=buffer[: len(block)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neurons", type=int, default=36_864, help="in whole layers of 3072")
    parser.add_argument("--candidates", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = gpt2_small(n_layer=max(1, round(arguments.neurons / 3072)))
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    del plain
    neurons = model.n_layers * model.d_mlp
    products = choose(model.unembedding.detach(), arguments.candidates, neurons)

    def ours() -> object:
        return fm.project(model, side="value", k=K, candidates=products[0].name)

    before = status("VmRSS")
    forget_peak()
    ours()
    peak = status("VmHWM") - before
    times = paired(ours, lambda: bare(model, torch.float32), arguments.rounds, warmups=1)
    limit = min(seconds(lambda: bare(model, products[0].matrix.dtype)) for _ in range(2))
    result = {
        "ratio": round(statistics.median(a / b for a, b in times), 3),
        "bar": BAR,
        "project_s": round(statistics.median(a for a, _ in times), 2),
        "bare_float32_s": round(statistics.median(b for _, b in times), 2),
        "candidates": products[0].name,
        "limit_candidates_product_s": round(limit, 2),
        "peak_memory_gb": round(peak, 2),
        "neurons": neurons,
        "rounds": arguments.rounds,
        "shape": f"GPT-2 small's, {model.n_layers} x 768 x 3072, vocabulary {model.d_vocab}, float32",
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"project, {neurons} values, {K} + {K} tokens  {result['project_s']} s, candidates by {result['candidates']}")
    print(f"bare float32 product                 {result['bare_float32_s']} s")
    print(f"median ratio                         {result['ratio']}   (bar: {BAR} with bfloat16 units)")
    print(f"limit: the candidates' product       {result['limit_candidates_product_s']} s")
    print(f"peak memory over the model           {result['peak_memory_gb']} GB   (bar: {MEMORY})")
    print(f"{result['shape']}, {arguments.rounds} paired rounds")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
