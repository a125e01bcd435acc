"""256 neurons of a prompt removed one at a time by ``ablate``, against one forward pass for each, in one paired run.

GPT-2 small's shape with random weights (speed does not depend on them), a prompt of 32 tokens, the neurons drawn from
all layers alike. The other way is the same Hugging Face model with its own fused attention, run once a neuron with a
hook that sets its coefficient to zero; what both say is compared. The two ways take turns, so that whatever else the
machine does hits both; the figure is the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from typing import Any

import torch
from common import gpt2_small, machine, paired, seconds, toy_tokenizer

import ffnmem as fm

TARGET = 11


def ablated_logits(plain: Any, tokens: torch.Tensor, neurons: list[tuple[int, int]], keep: int = 0) -> torch.Tensor:
    """The target's logit after one forward pass a neuron; ``keep``: unembed only so many last positions (0: all)."""

    def remove(neuron: int, _module: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        m = args[0].clone()
        m[..., neuron] = 0.0
        return (m,)

    found = []
    with torch.no_grad():
        for layer, neuron in neurons:
            handle = plain.transformer.h[layer].mlp.c_proj.register_forward_pre_hook(partial(remove, neuron))
            found.append(plain(tokens, logits_to_keep=keep).logits[0, -1, TARGET])
            handle.remove()
    return torch.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--neurons", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = gpt2_small()
    model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), device="cpu")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50_000, (1, arguments.tokens), generator=generator)
    drawn = torch.randperm(model.n_layers * model.d_mlp, generator=generator)[: arguments.neurons]
    neurons = sorted((int(i) // model.d_mlp, int(i) % model.d_mlp) for i in drawn)

    def ours() -> fm.interventions.Ablation:
        return fm.ablate(fm.capture(model, tokens), TARGET, neurons=neurons)

    found = ours()
    by_neuron = found.neurons.set_index(["layer", "neuron"])["logit"]
    theirs = ablated_logits(plain, tokens, neurons)
    ablated = found.logit - torch.tensor([by_neuron[pair] for pair in neurons])
    off = float((ablated - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))
    times = paired(ours, lambda: ablated_logits(plain, tokens, neurons), arguments.rounds, warmups=0)
    some = neurons[:: max(1, len(neurons) // 32)]
    spare = statistics.median(seconds(lambda: ablated_logits(plain, tokens, some, keep=1)) for _ in range(3))
    ablate_s = statistics.median(a for a, _ in times)
    result = {
        "ratio": round(statistics.median(b / a for a, b in times), 2),
        "off": off,
        "capture_ablate_s": round(ablate_s, 3),
        "forward_passes_s": round(statistics.median(b for _, b in times), 3),
        "ratio_last_position_unembedded": round(spare / len(some) * len(neurons) / ablate_s, 2),
        "neurons": len(neurons),
        "rounds": arguments.rounds,
        "tokens": arguments.tokens,
        "shape": "GPT-2 small, 12 x 768 x 3072, float32",
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"capture + ablate, {len(neurons)} neurons                 {result['capture_ablate_s']} s")
    print(f"one forward pass a neuron                    {result['forward_passes_s']} s")
    print(f"median ratio                                 {result['ratio']}   (bar: 4)")
    print(f"largest difference of a logit                {off:.1e}   (bar: 1e-05)")
    print(f"ratio if those unembed the last position only  {result['ratio_last_position_unembedded']}")
    print(f"{result['shape']}, {arguments.tokens} tokens, {arguments.rounds} paired rounds")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
