"""What docs/results/smollm2_neurons.md says of the roles of SmolLM2's neurons.

STORE is what ``ffnmem scan FILE --model smollm2 --out STORE`` wrote, TEXT any prose: how many neurons of five layers
each have each role, what the rules of gated neurons rest on, and over some positions of TEXT by which way entropy
neurons move the entropy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import ffnmem as fm
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.neurons.verdicts import share_interval

FIVE = 5  # layers in a column
POSITIONS, CONTEXT, DRAWN = 100, 128, 50  # of TEXT; random neurons beside those that are entropy neurons


def relative(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column over its layer's median."""
    return frame[column] / frame.groupby("layer")[column].transform("median")


@torch.no_grad()
def by_norm(model: fm.Model, neurons: list[int], text: str) -> pd.DataFrame:
    """What mean-ablating neurons of the last layer does to the entropy of the prediction, in nats: in all, and with the
    final norm's scale as it was (Stolfo et al. 2024, §3). Means of the size over random positions."""
    hf, last = model.hf_model, model.ffn[-1]
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    bos = model.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    rows = torch.tensor([[bos, *ids[i : i + CONTEXT - 1]] for i in range(0, 8 * (CONTEXT - 1), CONTEXT - 1)])
    kept: dict[str, torch.Tensor] = {}
    places = {"m": hf.model.layers[-1].mlp.down_proj, "stream": hf.model.norm}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: kept.__setitem__(name, given[0][:, 1:].flatten(0, 1))
        )
        for name, module in places.items()
    ]
    hf(rows)
    for hook in hooks:
        hook.remove()
    chosen = torch.randperm(len(kept["m"]), generator=torch.Generator().manual_seed(0))[:POSITIONS]
    m, stream, mean = kept["m"][chosen], kept["stream"][chosen], kept["m"].mean(dim=0)
    norm, unembedding = hf.model.norm, hf.lm_head.weight

    def scale(x: torch.Tensor) -> torch.Tensor:
        return (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    def entropy(x: torch.Tensor) -> torch.Tensor:
        logs = (x * norm.weight @ unembedding.T).log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)

    before, found = entropy(stream * scale(stream)), []
    for neuron in neurons:
        without = stream + (mean[neuron] - m[:, neuron])[:, None] * last.values[neuron]
        total = entropy(without * scale(without)) - before
        direct = entropy(without * scale(stream)) - before
        found.append((float(total.abs().mean()), float(direct.abs().mean())))
    return pd.DataFrame(found, columns=["total", "direct"], index=neurons)


def roles(store_folder: Path, text: Path) -> None:
    model, store = fm.load("smollm2"), fm.open_store(store_folder)
    frame = fm.roles(model, store).neurons
    groups = frame["layer"] // FIVE
    names = [f"{g * FIVE}-{g * FIVE + FIVE - 1}" for g in sorted(groups.unique())]
    print(
        f"{store.n_tokens:,} tokens; neurons that each role applies to, by layer\n{'':<16}"
        + "".join(f"{n:>8}" for n in names)
    )
    for role in ROLES:
        print(f"{role.name:<16}" + "".join(f"{n:>8,}" for n in frame.groupby(groups)[role.column].sum()))
    peaked = frame[frame["is_prediction"] | frame["is_suppression"]]
    for what, part in (("all neurons", frame), ("prediction and suppression neurons", peaked)):
        same = int((np.sign(part["gate_key_cosine"]) == part["coefficient_sign"]).sum())
        low, high = share_interval(same, len(part))
        share = f"{same / len(part):.1%} ({low:.1%} to {high:.1%})"
        print(f"sign of cos(g, k) is that of E[m³]: {share} of {len(part):,} {what}")
    top = peaked[peaked["layer"] == model.n_layers - 1]
    by_gate = int((np.sign(top["gate_key_cosine"]) * top["cosine_skew"] < 0).sum())
    print(f"suppression in the last layer: {int(top['is_suppression'].sum())} of {len(top)}, by cos(g, k) {by_gate}")
    ends = peaked.merge(store.stats()[["layer", "neuron", "min", "max"]], on=["layer", "neuron"])[["min", "max"]].abs()
    weaker = (ends.min(axis=1) / ends.max(axis=1)).median()
    print(f"the largest coefficient of the weaker sign over that of the stronger: {weaker:.2f}")
    write = relative(frame, "write_norm")
    shut = frame["firing_rate"] == 0
    amounts = ", ".join(f"{amount:.1f}" for amount in write[shut])
    print(f"gate never open: {int(shut.sum())} neurons, which write {amounts} of their layer's median")
    print(f"the least that a neuron writes: {write.min():.2f} of it")
    last = frame[(frame["layer"] == model.n_layers - 1)].assign(write=write)
    flat = last["cosine_variance"] < 0.75 * last["cosine_variance"].median()
    chosen = flat & (last["write"] > 1.25) & (last["null_share"] > 0.5)
    mine = last[chosen]
    rest = last[~chosen & last["write"].between(mine["write"].min(), mine["write"].max())]
    drawn = rest.sample(min(DRAWN, len(rest)), random_state=0)
    for what, part in (("entropy neurons", mine), (f"{len(drawn)} others of the layer that write as much", drawn)):
        moved = by_norm(model, part["neuron"].tolist(), text.read_text())
        share = 1 - moved["direct"] / moved["total"]
        low, middle, high = share.quantile([0.25, 0.5, 0.75])
        print(
            f"{what}: entropy moves by {moved['total'].median():.4f} nats, by the norm {middle:.0%} of it (quartiles "
            f"{low:.0%} and {high:.0%}); the most {', '.join(f'{n} {share[n]:.0%}' for n in share.nlargest(3).index)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("store", "text"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    roles(given.store, given.text)


if __name__ == "__main__":
    main()
