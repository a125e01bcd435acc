"""Causal tracing by ``trace_fact``, against one whole forward pass a cell as the published program does, in one run.

GPT-2 small's shape with random weights (speed does not depend on them), a prompt of 8 tokens with a subject of two, 10
corrupted runs. The other way runs the same Hugging Face model with its own fused attention, 11 rows a cell (one clean,
ten corrupted), for every layer and position, the subject's and those before it. That takes long, so some of its cells
are timed, spread over all of them, and counted for all: each costs the same. What both say of these cells is compared.
The two ways take turns; the figure is the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from common import gpt2_small, machine, paired, toy_tokenizer

import ffnmem as fm
from ffnmem.tracing import Trace, trace_fact
from ffnmem.tracing.restoring import standard_noise
from ffnmem.tracing.settings import KINDS

PROMPT, SUBJECT = "w101 w2002 w303 w4004 w55 w660 w7007 w88", "w2002 w303"
POSITIONS = range(1, 3)  # of the subject
SAMPLES, NOISE = 10, 0.1
WINDOW = 10  # as the paper's; of twelve layers that is most
BARS = {"state": 6, "ffn": 4, "attention": 4}


def first_of(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def whole_pass(
    plain: Any, tokens: torch.Tensor, noise: torch.Tensor, restored: list[Any], position: int
) -> torch.Tensor:
    """Probabilities of the next token in the corrupted rows of one forward pass with hooks on the restored modules."""

    def corrupt(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        output[1:, POSITIONS.start : POSITIONS.stop] += noise
        return output

    def restore(_module: Any, _args: Any, output: Any) -> Any:
        x = first_of(output)
        x[1:, position] = x[0, position]
        return output

    handles = [plain.transformer.wte.register_forward_hook(corrupt)]
    handles += [module.register_forward_hook(restore) for module in restored]
    with torch.no_grad():
        found = plain(tokens, use_cache=False).logits[1:, -1].softmax(-1)
    for handle in handles:
        handle.remove()
    return found


def modules(plain: Any, kind: str, layer: int) -> list[Any]:
    """What a cell restores, as in the published program."""
    blocks = plain.transformer.h
    if kind == "state":
        return [blocks[layer]]
    inside = range(max(0, layer - WINDOW // 2), min(len(blocks), layer - (-WINDOW // 2)))
    return [blocks[i].mlp if kind == "ffn" else blocks[i].attn for i in inside]


def compare(plain: Any, model: fm.Model, kind: str, rounds: int, timed: int) -> dict[str, Any]:
    tokens = torch.tensor([model.tokenize(PROMPT)])
    n_layers, length = model.n_layers, tokens.shape[1]
    cells = [(layer, position) for layer in range(n_layers) for position in range(length)]
    some = cells[:: max(1, len(cells) // timed)]
    noise = (NOISE * standard_noise(0, PROMPT, SAMPLES, len(POSITIONS), model.d_model)).float()
    rows = tokens.repeat(SAMPLES + 1, 1)

    def ours() -> Trace:
        return trace_fact(
            model, PROMPT, SUBJECT, kinds=(kind,), window=WINDOW, samples=SAMPLES, noise=NOISE, prepend_bos=False
        )

    def theirs(answer: int = 0) -> list[float]:
        return [
            float(whole_pass(plain, rows, noise, modules(plain, kind, layer), at)[:, answer].mean())
            for layer, at in some
        ]

    found = ours()
    pairs = zip(some, theirs(found.answer_ids[0]), strict=True)
    off = max(abs(float(found.scores[kind][cell]) - score) for cell, score in pairs)
    times = paired(ours, theirs, rounds, warmups=0)
    scale = len(cells) / len(some)
    return {
        "kind": kind,
        "ratio": round(statistics.median(scale * b / a for a, b in times), 2),
        "bar": BARS[kind],
        "off": off,
        "indirect": float(abs(found.indirect(kind)).max()),
        "trace_s": round(statistics.median(a for a, _ in times), 3),
        "passes_s": round(scale * statistics.median(b for _, b in times), 3),
        "cells": len(cells),
        "timed": len(some),
    }


def main(show: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timed", type=int, default=16, help="cells of the other way that are timed (96: all)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = gpt2_small()
    with torch.no_grad():
        plain.transformer.ln_f.weight.mul_(10)  # else all tokens are as likely, and differences of nothing are nothing
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu", prepend_bos=False)
    results = [compare(plain, model, kind, arguments.rounds, arguments.timed) for kind in KINDS]
    about = {"shape": "GPT-2 small, 12 x 768 x 3072, float32", "rounds": arguments.rounds, **machine()}
    if arguments.json:
        show(json.dumps({"kinds": results, **about}))
        return
    for result in results:
        show(f"{result['kind']}: trace_fact, {result['cells']} cells".ljust(45) + f"{result['trace_s']} s")
        label = f"one forward pass a cell ({result['timed']} timed)"
        show(label.ljust(45) + f"{result['passes_s']} s")
        show("median ratio".ljust(45) + f"{result['ratio']}   (bar: {result['bar']})")
        label = f"largest difference (of effects to {result['indirect']:.0e})"
        show(label.ljust(45) + f"{result['off']:.1e}   (bar: 1e-05)")
    show(f"{about['shape']}, 8 tokens, {SAMPLES} corrupted runs, window {WINDOW}, {about['rounds']} paired rounds")
    show(f"{about['threads']} threads, torch {about['torch']}, {about['machine']}")


if __name__ == "__main__":
    main()
