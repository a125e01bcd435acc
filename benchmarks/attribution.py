"""``capture`` + ``attribute`` against one plain forward pass of the same Hugging Face model, in one paired run.

GPT-2 small's shape with random weights (speed does not depend on them), a prompt of 32 tokens. The two ways take turns,
so that whatever else the machine does hits both; the figure is the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from common import gpt2_small, machine, paired, seconds, toy_tokenizer

import ffnmem as fm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = gpt2_small()
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    tokens = torch.randint(0, 50_000, (1, arguments.tokens))

    def forward() -> object:
        with torch.no_grad():
            return plain(tokens)

    def ours() -> object:
        return fm.attribute(fm.capture(model, tokens), target=11, foil=12).top(20)

    times = paired(ours, forward, arguments.rounds)
    # The least any attribution of all neurons must do besides the forward pass: read every value once.
    values = [ffn.values for ffn in model.ffn]
    direction = torch.randn(model.d_model)
    floor = statistics.median(seconds(lambda: [v @ direction for v in values]) for _ in range(arguments.rounds))
    result = {
        "ratio": round(statistics.median(a / b for a, b in times), 3),
        "capture_attribute_ms": round(1e3 * statistics.median(a for a, _ in times), 1),
        "forward_ms": round(1e3 * statistics.median(b for _, b in times), 1),
        "reading_all_values_ms": round(1e3 * floor, 1),
        "rounds": arguments.rounds,
        "tokens": arguments.tokens,
        "shape": "GPT-2 small, 12 x 768 x 3072, float32",
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"capture + attribute, all {model.n_layers * model.d_mlp} neurons   {result['capture_attribute_ms']} ms")
    print(f"one plain forward pass                {result['forward_ms']} ms")
    print(f"median ratio                          {result['ratio']}   (bar: 1.25)")
    print(f"limit: reading all values once        {result['reading_all_values_ms']} ms on top of the layers")
    print(f"{result['shape']}, {arguments.tokens} tokens, {arguments.rounds} paired rounds")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
