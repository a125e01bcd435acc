"""What a circuit costs: seconds, memory above the model's own, and beside a forward pass.

    OMP_NUM_THREADS=2 python -m benchmarks.circuit --model gpt2-shape --tokenizer FOLDER
    OMP_NUM_THREADS=2 python -m benchmarks.circuit --model smollm2 --heads

GPT-2 small's shape has random weights: every firing is about as influential as the next, which is the hardest case.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

import ffnmem as fm

from .common import cpu, machine, seconds, subject

TEXT = (
    "The Eiffel Tower, which was built for the World's Fair of 1889 by the company of the engineer whose name it "
    "bears, and which many people in the city at first disliked, stands in the capital of"
)


def resident(name: str) -> int:
    """The memory of this process in bytes, now ("VmRSS") or the most since it was last reset ("VmHWM"; Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2-shape", choices=("gpt2-shape", "smollm2"))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--heads", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    _, model = subject(args.model, args.tokenizer)
    weights = sum(parameter.nbytes for parameter in model.hf_model.parameters())
    tokens = torch.tensor((model.tokenize(TEXT) * 4)[: args.tokens])
    capture = fm.capture(model, tokens)
    forward = statistics.median(seconds(lambda: model.body(tokens.unsqueeze(0))) for _ in range(7))
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted from here
    before = resident("VmRSS")
    fm.circuit(capture, nodes=5, heads=args.heads)  # what is only done once
    times, began = [], cpu()
    for _ in range(args.rounds):
        times.append(seconds(lambda: fm.circuit(capture, nodes=args.nodes, heads=args.heads)))
    processor = (cpu() - began) / args.rounds
    found = fm.circuit(capture, nodes=args.nodes, node_threshold=1.0, edge_threshold=1.0, heads=args.heads)
    grown = resident("VmHWM") - before
    took = statistics.median(times)
    print(f"{machine()}, {torch.get_num_threads()} threads")
    print(f"{args.model}, {len(tokens)} tokens, {args.nodes} firings expanded{', with heads' * args.heads}")
    print(f"a circuit          {took:8.2f} s ({min(times):.2f} to {max(times):.2f})")
    print(f"processor time     {processor:8.2f} s")
    print(f"a forward pass     {forward:8.4f} s; a circuit is {took / forward:,.0f} of them")
    print(f"memory above       {grown / 2**20:8.0f} MiB; the weights are {weights / 2**20:,.0f} MiB")
    print(f"unpruned           {len(found.firings)} firings, {len(found.edges):,} edges, error {found.error:.1e}")


if __name__ == "__main__":
    main()
