"""How layers compose memories and refine predictions, against loops over single positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.models.residual import passed_on
from ffnmem.scanning import Store
from ffnmem.studies.agreement import predictions, unigram
from ffnmem.studies.composition import (
    CASES,
    FREQUENT,
    SHARES,
    Predicted,
    Readings,
    cases,
    composition_table,
    read_positions,
    refinement_table,
    update_table,
    updates_needed,
)
from ffnmem.studies.prefixes import Layer, Lens, Places, Positions, random_places

from ..helpers import allclose

NOTHING = np.zeros((0, 64), np.int64)


@pytest.fixture(scope="module")
def places(tiny_store: Store) -> Places:
    return random_places(tiny_store, 25, 1)


@pytest.fixture(scope="module")
def tops(tiny: fm.Model) -> list[np.ndarray]:
    return [predictions(tiny, layer, NOTHING).token for layer in range(2)]


@pytest.fixture(scope="module")
def readings(tiny: fm.Model, places: Places, tops: list[np.ndarray]) -> Readings:
    return read_positions(tiny, places, tops, lead=1, updates=10)


def test_readings_of_single_prompts(tiny: fm.Model, places: Places, tops: list[np.ndarray], readings: Readings) -> None:
    """Every number of every layer, from a capture of the prefix alone."""
    check_readings(tiny, places, tops, readings)


def test_readings_of_gated_models(gated: fm.Model, gated_store: Store) -> None:
    """The same with gates, RMSNorm, and what a norm behind the FFN lets through as the FFN's write."""
    places = random_places(gated_store, 25, 1)
    tops = [predictions(gated, layer, NOTHING).token for layer in range(2)]
    check_readings(gated, places, tops, read_positions(gated, places, tops, lead=1, updates=10))


def check_readings(tiny: fm.Model, places: Places, tops: list[np.ndarray], readings: Readings) -> None:
    lens = Lens(tiny)
    predicted: list[list[set[int]]] = [[], []]
    for row, prefix in enumerate(places.prefixes):
        captured = fm.capture(tiny, prefix.tolist(), logits=True)
        assert captured.residual is not None
        stream = captured.residual.embedding[0, -1]
        if captured.residual.position is not None:
            stream = stream + captured.residual.position[0, -1]
        final = int(captured.logits_at(0, -1).argmax())
        assert readings.final[row] == final
        assert readings.lengths[row] == len(prefix) - 1
        for layer in range(2):
            stream = stream + captured.residual.attention[layer][0, -1]
            logits = lens.logits(stream.unsqueeze(0))[0]
            assert readings.residual[row, layer] == int(logits.argmax())
            assert readings.probability[row, layer] == pytest.approx(float(logits.softmax(-1)[final]), abs=1e-5)
            norm = tiny.norm_after(layer)
            y = captured.ffn_out[layer][0, -1] if norm is None else norm(captured.ffn_out[layer][0, -1])
            written = int(lens.written(y.unsqueeze(0)).argmax())
            assert readings.ffn[row, layer] == written
            stream = stream + y
            assert readings.out[row, layer] == int(lens.logits(stream.unsqueeze(0)).argmax())
            m = captured.coefficients[layer][0, -1].numpy()
            assert readings.active[row, layer] == (m > 0).sum()
            assert readings.by_all[row, layer] == any(top == written for top in tops[layer])
            predicted[layer].append({int(t) for t, c in zip(tops[layer], m, strict=True) if c > 0})
            active = any(top == written and c > 0 for top, c in zip(tops[layer], m, strict=True))
            assert readings.by_active[row, layer] == active
    assert (readings.out[:, -1] == readings.final).all()
    for layer in range(2):
        others = [int(readings.ffn[i, layer]) in predicted[layer][j] for i in range(25) for j in range(25) if i != j]
        assert readings.by_chance[layer] == pytest.approx(np.mean(others))


def test_updates_are_counted_at_some(tiny: fm.Model, places: Places, readings: Readings) -> None:
    """Spread evenly over the sample, in its order."""
    chosen = np.unique(np.linspace(0, 24, 10).round().astype(int))
    assert readings.by_output.shape == readings.by_weight.shape == (10, 2, 3)
    for place, row in enumerate(chosen.tolist()):
        captured = fm.capture(tiny, places.prefixes[row].tolist())
        for layer in range(2):
            m = captured.coefficients[layer][0, -1:].numpy()
            by_output, by_weight = updates_needed(m, tiny.ffn[layer].values.detach().numpy())
            assert np.abs(readings.by_output[place, layer] - by_output[0]).max() <= 1  # rounding at a border
            assert np.abs(readings.by_weight[place, layer] - by_weight[0]).max() <= 1


def test_sub_updates_make_up_what_the_stream_gets(gated: fm.Model, gated_store: Store) -> None:
    """Σ mᵢvᵢ with the gain of a norm behind the FFN is what the FFN adds, but for that norm's scale, which no share of
    it sees; bare values would add up to something else."""
    places = random_places(gated_store, 6, 2)
    reader = Positions(gated)
    shares = read_positions(gated, places, [np.zeros(64, np.int64)] * 2, lead=1, updates=6).by_output
    for row, prefix in enumerate(places.prefixes):
        for index, layer in enumerate(
            reader.layers(torch.tensor(prefix).unsqueeze(0), torch.tensor([len(prefix) - 1]))
        ):
            terms = layer.coefficients[0, :, None] * passed_on(gated, index, gated.ffn[index].values.detach())
            total, added = terms.sum(dim=0), layer.ffn[0]
            assert allclose(total / total.norm(), added / added.norm(), 1e-4)
            order = terms.norm(dim=1).argsort(descending=True)
            left = [
                float((total - terms[order[:k]].sum(dim=0)).square().sum() / total.square().sum()) for k in range(65)
            ]
            expected = [next(k for k in range(65) if left[k] <= 1 - share) for share in SHARES]
            assert np.abs(shares[row, index] - expected).max() <= 1  # rounding at a border


def test_members() -> None:
    """Memories 0 and 2 predict token 7, of which only memory 2 is active in the first row and none in the second."""
    coefficients = torch.tensor([[-0.1, 1.0, 0.5], [-1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    layer = Layer(coefficients, torch.zeros(3, 2), torch.zeros(3, 2))
    memories = Predicted(torch.tensor([7, 5, 7]))
    by_all, by_active = memories.members(layer, torch.tensor([7, 7, 4]))
    assert by_all.tolist() == [True, True, False]
    assert by_active.tolist() == [True, False, False]
    # Token 7 is predicted at positions 0 and 2, so the prediction 7 of position 0 is shared by 1 of the other two,
    # that of position 1 by both; the 4 of position 2 by none.
    assert memories.positions.tolist() == [3, 2]
    assert memories.by_chance(np.array([7, 7, 4]), by_active.numpy()) == pytest.approx((1 + 2 + 0) / 6)
    assert np.isnan(memories.by_chance(np.array([7]), by_active.numpy()[:1]))


def test_every_position_is_one_case(readings: Readings) -> None:
    found = cases(readings)
    assert tuple(sorted(found)) == tuple(sorted(CASES))
    assert (sum(mask.astype(int) for mask in found.values()) == 1).all()
    kept, wrote = readings.out == readings.residual, readings.out == readings.ffn
    assert ((found["residual"] | found["agreement"]) == kept).all()
    assert ((found["ffn"] | found["agreement"]) == wrote).all()


def test_composition_table(tiny_store: Store, tops: list[np.ndarray], readings: Readings) -> None:
    table = composition_table(readings, tops, tiny_store, 0)
    frequent = set(np.argsort(-unigram(tiny_store), kind="stable")[:FREQUENT].tolist())
    for row in table.itertuples():
        assert row.positions == 25
        assert row.active == pytest.approx(readings.active[:, row.layer].mean())
        assert row.active_share == pytest.approx(row.active / 64)
        assert row.active_share_50 == np.median(readings.active[:, row.layer]) / 64
        assert row.zero_agreement == pytest.approx(1 - readings.by_all[:, row.layer].mean())
        assert row.zero_agreement_active == pytest.approx(1 - readings.by_active[:, row.layer].mean())
        assert row.zero_agreement_low <= row.zero_agreement <= row.zero_agreement_high
        assert row.zero_agreement <= row.zero_agreement_active
        assert row.zero_agreement_shuffled == 1 - readings.by_chance[row.layer]
        agreeing = np.flatnonzero(readings.by_all[:, row.layer])
        if len(agreeing):
            assert row.frequent_share == np.mean([int(readings.ffn[n, row.layer]) in frequent for n in agreeing])
            assert row.short_share == np.mean([readings.lengths[n] < 5 for n in agreeing])
        assert row.predicted == len(set(tops[row.layer].tolist()))


def test_refinement_table(readings: Readings) -> None:
    table = refinement_table(readings, 0)
    for row in table.itertuples():
        assert row.match == pytest.approx((readings.residual[:, row.layer] == readings.final).mean())
        assert row.probability == pytest.approx(readings.probability[:, row.layer].mean())
        assert row.probability_low <= row.probability <= row.probability_high
        assert row.residual + row.agreement + row.composition + row.ffn == pytest.approx(1)


def test_update_table(tiny: fm.Model, readings: Readings) -> None:
    table = update_table(readings, tiny)
    assert len(table) == 2 * 3 * 3
    for row in table.itertuples():
        counts = {"output": readings.by_output, "weight": readings.by_weight, "random": readings.by_random}[row.measure]
        mine = counts[:, row.layer, (0.5, 0.8, 0.95).index(row.share)]
        assert row.needed_50 == np.median(mine)
        assert row.part == np.median(mine) / 64
        assert row.positions == 10


def test_progress(tiny: fm.Model, places: Places, tops: list[np.ndarray]) -> None:
    told: list[tuple[str, int, int]] = []
    read_positions(tiny, places, tops, lead=1, updates=1, progress=lambda *call: told.append(call))
    assert told[-1] == ("positions", 25, 25)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
