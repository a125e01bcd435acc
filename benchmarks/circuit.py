"""What a circuit costs: seconds, and beside a forward pass.

    OMP_NUM_THREADS=2 python -m benchmarks.circuit --model gpt2-shape --tokenizer FOLDER
    OMP_NUM_THREADS=2 python -m benchmarks.circuit --model smollm2

The firings are those of the largest scores. GPT-2 small's shape has random weights.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

import ffnmem as fm

from .common import machine, seconds, subject

TEXT = (
    "The Eiffel Tower, which was built for the World's Fair of 1889 by the company of the engineer whose name it "
    "bears, and which many people in the city at first disliked, stands in the capital of"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2-shape", choices=("gpt2-shape", "smollm2"))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    _, model = subject(args.model, args.tokenizer)
    tokens = torch.tensor((model.tokenize(TEXT) * 4)[: args.tokens])
    capture = fm.capture(model, tokens)
    forward = statistics.median(seconds(lambda: model.body(tokens.unsqueeze(0))) for _ in range(7))
    firings = fm.causal_scores(capture, exact=0).top(args.nodes)
    found = fm.circuit(capture, firings, nodes=args.nodes)
    took = [seconds(lambda: fm.circuit(capture, firings, nodes=args.nodes)) for _ in range(args.rounds)]
    middle = statistics.median(took)
    print(f"{machine()}, {torch.get_num_threads()} threads")
    print(f"{args.model}, {len(tokens)} tokens, {len(found.firings)} firings, {len(found.edges):,} edges")
    print(f"a circuit          {middle:8.2f} s ({min(took):.2f} to {max(took):.2f})")
    print(f"a forward pass     {forward:8.4f} s; a circuit is {middle / forward:,.0f} of them")
    print(f"error              {found.error:.1e}")


if __name__ == "__main__":
    main()
