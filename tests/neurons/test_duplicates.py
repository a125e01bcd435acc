"""Near-duplicate neurons: all pairs above the threshold, as whole matrices have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ffnmem.neurons import duplicates as module
from ffnmem.neurons.duplicates import Screen, find_duplicates, kinds
from ffnmem.neurons.overlap import SIDES, unit_rows

Rows = dict[tuple[str, int], Tensor]
PAIR = ["layer", "neuron", "other_layer", "other_neuron"]
THREE = (*SIDES, "gate")


def layers_of(n_layers: int, n: int, d: int, seed: int, clusters: int, sides: tuple[str, ...]) -> Rows:
    """Unit rows around a few centres shared by all layers, so that there are pairs of every closeness; of gated neurons
    with key and value turned round together in half of them."""
    generator = torch.Generator().manual_seed(seed)
    found: Rows = {}
    of = [torch.randint(0, clusters, (n + layer,), generator=generator) for layer in range(n_layers)]
    for side in sides:
        centres = torch.randn(clusters, d, generator=generator)
        for layer in range(n_layers):
            own = of[layer] if len(sides) > 2 else torch.randint(0, clusters, (n + layer,), generator=generator)
            spread = torch.rand(n + layer, 1, generator=generator)
            found[side, layer] = unit_rows(centres[own] + spread * torch.randn(n + layer, d, generator=generator))
            if len(sides) > 2 and side != "gate":
                found[side, layer][::2] *= -1
            found[side, layer][3] = 0.0  # nothing is like nothing
    return found


def naive(rows: Rows, n_layers: int, threshold: float, sides: tuple[str, ...]) -> pd.DataFrame:
    """Every pair above the threshold, from whole matrices in float64."""
    owners = [(layer, neuron) for layer in range(n_layers) for neuron in range(len(rows["key", layer]))]
    whole = {side: torch.cat([rows[side, layer] for layer in range(n_layers)]).double() for side in sides}
    cosines = {side: (matrix @ matrix.T).numpy() for side, matrix in whole.items()}
    cosines["both"] = np.minimum(cosines["key"], cosines["value"])
    if "gate" in cosines:
        opposite = -np.maximum(cosines["key"], cosines["value"])
        cosines["both"] = np.minimum(np.maximum(cosines["both"], opposite), cosines["gate"])
    found = []
    for by in kinds(sides):
        for one, other in zip(*np.nonzero(np.triu(cosines[by] > threshold, 1)), strict=True):
            pair = [cosines[side][one, other] for side in sides]
            found.append((by, *owners[one], *owners[other], *pair, cosines[by][one, other]))
    return pd.DataFrame(found, columns=["by", *PAIR, *(f"{side}_cosine" for side in sides), "score"])


@given(
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.3, 0.6, 0.8, 0.9, 0.95]),
    block=st.integers(1, 40),
    clusters=st.sampled_from([1, 4, 30]),
    d=st.sampled_from([3, 24]),
    sides=st.sampled_from([SIDES, THREE]),
    limit=st.sampled_from([5, 10**4]),
)
@settings(max_examples=30)
def test_equals_all_pairs(
    seed: int, threshold: float, block: int, clusters: int, d: int, sides: tuple[str, ...], limit: int
) -> None:
    """None missed by the screen, none twice, none of a neuron with itself; whatever block and screen. Of each kind the
    best are kept, and all counted."""
    rows = layers_of(3, 13, d, seed, clusters, sides)
    found = find_duplicates(lambda s, at: rows[s, at], range(3), threshold, limit, block=block, sides=sides)
    expected = naive(rows, 3, threshold - 1e-5, sides)  # float32 may see those nearest to it on either side
    sure = expected[expected["score"] > threshold + 1e-5]
    joined = found.pairs.merge(expected, on=["by", *PAIR], suffixes=("", "_expected"))
    assert len(joined) == len(found.pairs) == len(found.pairs[["by", *PAIR]].drop_duplicates())
    for side in sides:
        assert np.allclose(joined[f"{side}_cosine"], joined[f"{side}_cosine_expected"], atol=1e-6)
    for by in kinds(sides):
        kept, every = joined[joined["by"] == by], found.counts.loc[found.counts["by"] == by, "pairs"].sum()
        assert (sure["by"] == by).sum() <= every <= (expected["by"] == by).sum()
        assert kept["rank"].tolist() == list(range(1, min(limit, every) + 1))
        best = expected[expected["by"] == by]["score"].nlargest(len(kept))
        assert np.allclose(kept["score"], best, atol=2e-5)
    apart = sure[sure["layer"] != sure["other_layer"]].groupby(["layer", "other_layer"]).size()
    counted = found.counts.groupby(["layer", "other_layer"])["pairs"].sum()
    assert all(counted[at] >= number for at, number in apart.items())


def test_the_screen_bounds_every_cosine_and_spares_unrelated_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else pairs are missed, or the search is slow; where it lets most through, rows would be multiplied twice."""
    generator = torch.Generator().manual_seed(3)
    some = torch.randn(300, 64, generator=generator) / torch.arange(1, 65).sqrt()
    rows = unit_rows(torch.cat([some, some[:9] + 0.1 * some[9:18]]))
    for threshold in (0.9, 0.97):
        few = Screen(lambda layer: rows, [0], threshold).rows(rows)
        assert few.shape[1] < 64
        assert bool((few @ few.T >= rows @ rows.T - 1e-6).all())
    crowded = unit_rows(torch.randn(600, 64, generator=generator) + 1.0)
    assert Screen(lambda layer: crowded, [0], 0.5).basis is None
    assert Screen(lambda layer: crowded, [0], 0.95).basis is not None
    unrelated = {side: unit_rows(torch.randn(600, 512, generator=generator)) for side in SIDES}
    multiplied: list[int] = []
    whole = module.multiply_rows

    def counting(one: Tensor, other: Tensor, chosen: Tensor, same: bool) -> Tensor:
        multiplied.append(len(chosen))
        return whole(one, other, chosen, same)

    monkeypatch.setattr(module, "multiply_rows", counting)
    found = find_duplicates(lambda side, layer: unrelated[side], [0], 0.9, 10)
    assert (len(found.pairs), len(found.counts)) == (0, 0)
    assert list(found.pairs.columns) == ["by", "rank", *PAIR, "key_cosine", "value_cosine"]
    assert sum(multiplied) < 0.02 * 2 * 600
