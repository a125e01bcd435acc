"""Near-duplicate neurons."""

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

from ..helpers import allclose

Rows = dict[tuple[str, int], Tensor]


THREE = (*SIDES, "gate")


def layers_of(n_layers: int, n: int, d: int, seed: int, clusters: int, sides: tuple[str, ...] = SIDES) -> Rows:
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
    return found


def naive(rows: Rows, n_layers: int, threshold: float, sides: tuple[str, ...] = SIDES) -> pd.DataFrame:
    """Every pair above the threshold, from whole matrices in float64."""
    owners = [(layer, neuron) for layer in range(n_layers) for neuron in range(len(rows["key", layer]))]
    whole = {side: torch.cat([rows[side, layer] for layer in range(n_layers)]).double() for side in sides}
    cosines = {side: (matrix @ matrix.T).numpy() for side, matrix in whole.items()}
    cosines["both"] = np.minimum(cosines["key"], cosines["value"])
    if "gate" in cosines:
        opposite = -np.maximum(cosines["key"], cosines["value"])
        cosines["both"] = np.minimum(np.maximum(cosines["both"], opposite), cosines["gate"])
    found = []
    for by in (*sides, "both"):
        for one, other in zip(*np.nonzero(np.triu(cosines[by] > threshold, 1)), strict=True):
            pair = [cosines[side][one, other] for side in sides]
            found.append((by, *owners[one], *owners[other], *pair, cosines[by][one, other]))
    names = ["by", "layer", "neuron", "other_layer", "other_neuron", *(f"{side}_cosine" for side in sides), "score"]
    return pd.DataFrame(found, columns=names)


@given(
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.3, 0.6, 0.8, 0.9, 0.95]),
    block=st.integers(1, 40),
    clusters=st.sampled_from([1, 4, 30]),
    d=st.sampled_from([3, 24]),
    sides=st.sampled_from([SIDES, THREE]),
)
@settings(max_examples=20)
def test_equals_all_pairs(
    seed: int, threshold: float, block: int, clusters: int, d: int, sides: tuple[str, ...]
) -> None:
    """None missed by the screen, none twice, none of a neuron with itself; whatever block and screen."""
    rows = layers_of(3, 13, d, seed, clusters, sides)
    found = find_duplicates(lambda side, layer: rows[side, layer], range(3), threshold, 10**4, block=block, sides=sides)
    expected = naive(rows, 3, threshold - 1e-5, sides)  # float32 may see those nearest to it on either side
    sure = expected["score"] > threshold + 1e-5
    names = ["by", "layer", "neuron", "other_layer", "other_neuron"]
    got = {tuple(row) for row in found.pairs[names].itertuples(index=False)}
    assert {tuple(row) for row in expected.loc[sure, names].itertuples(index=False)} <= got
    assert got <= {tuple(row) for row in expected[names].itertuples(index=False)}
    assert len(got) == len(found.pairs) == found.counts["pairs"].sum()
    joined = found.pairs.merge(expected, on=names, suffixes=("", "_expected"))
    for side in sides:
        assert np.allclose(joined[f"{side}_cosine"], joined[f"{side}_cosine_expected"], atol=1e-6)


def test_limit_keeps_the_best_and_counts_all() -> None:
    rows = layers_of(2, 40, 16, 0, 3)
    expected = naive(rows, 2, 0.5)
    found = find_duplicates(lambda side, layer: rows[side, layer], range(2), 0.5, 5, block=7)
    for by in kinds(SIDES):
        best = expected[expected["by"] == by].nlargest(5, "score")
        kept = found.pairs[found.pairs["by"] == by]
        assert kept["rank"].tolist() == [1, 2, 3, 4, 5]
        score = kept[["key_cosine", "value_cosine"]].min(axis=1) if by == "both" else kept[f"{by}_cosine"]
        assert score.tolist() == pytest.approx(best["score"].tolist(), abs=1e-6)
        assert found.counts.loc[found.counts["by"] == by, "pairs"].sum() == (expected["by"] == by).sum()
    apart = found.counts[found.counts["layer"] != found.counts["other_layer"]]
    across = expected[(expected["layer"] != expected["other_layer"]) & (expected["by"] == "key")]
    assert apart.loc[apart["by"] == "key", "pairs"].sum() == len(across)


def planted() -> Rows:
    generator = torch.Generator().manual_seed(0)
    rows = {(side, layer): torch.randn(20, 30, generator=generator) for side in SIDES for layer in range(2)}
    rows["key", 1][4] = 3 * rows["key", 0][9]  # the same key, another value
    rows["value", 0][2] = 0.5 * rows["value", 0][17]
    for side in SIDES:
        rows[side, 1][11] = rows[side, 0][6] + 0.1 * torch.randn(30, generator=generator)
    rows["key", 1][7] = -rows["key", 0][1]  # opposite is not the same
    rows["key", 0][13] = 0.0  # and nothing is like nothing
    rows["key", 1][13] = 0.0
    return {place: unit_rows(matrix) for place, matrix in rows.items()}


def test_planted_duplicates_are_found_as_what_they_are() -> None:
    rows = planted()
    seen: list[tuple[str, int, int]] = []
    found = find_duplicates(lambda s, layer: rows[s, layer], [0, 1], 0.9, 10, lambda *step: seen.append(step))
    pairs = found.pairs[["by", "layer", "neuron", "other_layer", "other_neuron"]].to_numpy().tolist()
    assert pairs == [
        ["key", 0, 9, 1, 4],
        ["key", 0, 6, 1, 11],
        ["value", 0, 2, 0, 17],
        ["value", 0, 6, 1, 11],
        ["both", 0, 6, 1, 11],
    ]
    assert seen == [("duplicates", done, 3) for done in (1, 2, 3)]
    alone = find_duplicates(lambda s, layer: rows[s, layer], [1], 0.9, 10)
    assert list(alone.pairs.columns) == list(found.pairs.columns)
    assert alone.pairs.empty
    assert alone.counts.empty


def test_a_gated_neuron_turned_round_is_the_same() -> None:
    """act(g·x)(−k·x)(−v) is no other neuron, though its key and its value point the other way; with the gate turned
    round, or one of the two only, it is another."""
    rows = {(side, 0): unit_rows(torch.randn(12, 40, generator=torch.Generator().manual_seed(5))) for side in THREE}
    rows = {place: matrix.roll(7 * number, dims=1) for number, (place, matrix) in enumerate(rows.items())}
    for neuron, signs in ((7, (-1, -1, 1)), (8, (1, 1, -1)), (9, (-1, 1, 1)), (10, (1, 1, 1))):
        for side, sign in zip(THREE, signs, strict=True):
            rows[side, 0][neuron] = sign * rows[side, 0][neuron - 6]
    found = find_duplicates(lambda side, layer: rows[side, layer], [0], 0.9, 10, sides=THREE)
    pairs = found.pairs[found.pairs["by"] == "both"]
    assert pairs[["neuron", "other_neuron"]].to_numpy().tolist() == [[1, 7], [4, 10]]
    assert allclose(pairs[["key_cosine", "value_cosine", "gate_cosine"]], [[-1, -1, 1], [1, 1, 1]])
    assert found.counts.set_index("by")["pairs"].to_dict() == {"key": 2, "value": 3, "gate": 3, "both": 2}


def test_screen_bounds_every_cosine() -> None:
    """Else pairs are missed."""
    drawn = torch.randn(300, 64, generator=torch.Generator().manual_seed(3)) / torch.arange(1, 65).sqrt()
    rows = unit_rows(torch.cat([drawn, drawn[:9] + 0.1 * drawn[9:18]]))
    for threshold in (0.9, 0.97):
        screen = Screen(lambda layer: rows, [0], threshold)
        few = screen.rows(rows)
        assert few.shape[1] < 64
        assert bool((few @ few.T >= rows @ rows.T - 1e-6).all())


def test_screen_spares_unrelated_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes the search quick: nothing is multiplied in full where nothing is alike."""
    generator = torch.Generator().manual_seed(0)
    rows = {(side, 0): unit_rows(torch.randn(600, 512, generator=generator)) for side in SIDES}
    multiplied: list[int] = []
    whole = module.multiply_rows

    def counting(one: Tensor, other: Tensor, chosen: Tensor, same: bool) -> Tensor:
        multiplied.append(len(chosen))
        return whole(one, other, chosen, same)

    monkeypatch.setattr(module, "multiply_rows", counting)
    assert find_duplicates(lambda side, layer: rows[side, layer], [0], 0.9, 10).pairs.empty
    assert sum(multiplied) < 0.02 * 2 * 600


def test_no_screen_where_it_lets_most_through() -> None:
    """Rows that crowd together would be multiplied twice: few coordinates, then all."""
    rows = unit_rows(torch.randn(600, 64, generator=torch.Generator().manual_seed(1)) + 1.0)
    assert Screen(lambda layer: rows, [0], 0.5).basis is None
    assert Screen(lambda layer: rows, [0], 0.95).basis is not None
