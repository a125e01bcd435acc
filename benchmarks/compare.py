"""How often models of random weights match: beyond random neurons, at a chance of 1%.

Two models of each kind, ``--pairs`` times, whose weights are Gaussian draws, read the first ``--tokens`` tokens of
random sequences of the bundled corpus. A calibrated baseline lets 1% of neurons through.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import transformers

import ffnmem as fm

LAYERS, WIDTH, NEURONS = 3, 64, 512


def random_model(gated: bool, seed: int) -> fm.Model:
    """A GPT-2 or a Llama, of weights that keep what passes at its size."""
    tokenizer = fm.load("atlas").tokenizer
    if gated:
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
            num_attention_heads=4, max_position_embeddings=128,
        )  # fmt: skip
        hf = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer), n_embd=WIDTH, n_inner=NEURONS, n_layer=LAYERS, n_head=4, n_positions=128
        )
        hf = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / WIDTH**0.5)
    return fm.load(hf.eval(), tokenizer=tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=3000)
    asked = parser.parse_args()
    for gated in (False, True):
        above = []
        for pair in range(asked.pairs):
            first, second = (random_model(gated, 2 * pair + i) for i in range(2))
            found = fm.compare(first, second, "atlas", tokens=asked.tokens, reach=0, seed=pair)
            above.append(float(np.mean(found.layers["above_null"])))
        each = ", ".join(f"{share:.1%}" for share in above)
        print(f"{'gated' if gated else 'classic'}: {np.mean(above):.1%} ({each})")


if __name__ == "__main__":
    main()
