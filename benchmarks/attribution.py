"""``capture`` + ``attribute``, directly and along paths, against a plain forward pass of the same Hugging Face model.

GPT-2 small's shape with random weights (speed does not depend on them), a mixture of experts or SmolLM2, a prompt of 32
tokens. The ways take
turns, so that whatever else the machine does hits all; figures are medians of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from common import SHAPES, in_turn, machine, seconds, subject, toy_tokenizer

import ffnmem as fm

BARS = {"attribute": 1.1, "paths": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*SHAPES, "smollm2"], default="gpt2-shape")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.model == "smollm2":
        plain, model = subject(arguments.model, None)
    else:
        plain = SHAPES[arguments.model]()
        model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    tokens = torch.randint(0, model.d_vocab - 300, (1, arguments.tokens))

    def forward() -> object:
        with torch.no_grad():
            return plain(tokens, use_cache=False)

    ways = {
        "forward": forward,
        "attribute": lambda: fm.attribute(fm.capture(model, tokens), target=11, foil=12).top(20),
        "paths": lambda: fm.attribute_paths(fm.capture(model, tokens), target=11, foil=12).top(20),
    }
    for run in ways.values():  # warm
        run()
    times = in_turn(ways, arguments.rounds)
    # The least any attribution of all neurons must do besides the forward pass: read every value once.
    values = [ffn.values for ffn in model.ffn]
    direction = torch.randn(model.d_model)
    floor = statistics.median(seconds(lambda: [v @ direction for v in values]) for _ in range(arguments.rounds))
    result = {
        "model": arguments.model,
        "ratio": {
            name: round(statistics.median(a / b for a, b in zip(times[name], times["forward"], strict=True)), 3)
            for name in BARS
        },
        "ms": {name: round(1e3 * statistics.median(took), 1) for name, took in times.items()},
        "reading_all_values_ms": round(1e3 * floor, 1),
        "rounds": arguments.rounds,
        "tokens": arguments.tokens,
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"one plain forward pass                {result['ms']['forward']} ms")
    for name, what in (("attribute", "capture + attribute"), ("paths", "capture + attribute_paths")):
        of = f"{result['ratio'][name]} x a forward pass   (bar: {BARS[name]})"
        print(f"{what:<37} {result['ms'][name]} ms, {of}")
    print(f"limit: reading all values once        {result['reading_all_values_ms']} ms on top of the layers")
    neurons = sum(ffn.d_mlp for ffn in model.ffn)
    print(f"{result['model']}, all {neurons} neurons, {arguments.tokens} tokens, {arguments.rounds} rounds in turns")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
