"""How layers compose memories and refine predictions, against loops over single positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.models.residual import passed_on
from ffnmem.scanning import Store
from ffnmem.studies import composition
from ffnmem.studies.agreement import predictions, unigram
from ffnmem.studies.prefixes import Lens, Places, Positions, random_places

from ..architectures import DECODERS
from ..helpers import OTHER_PROMPT, PROMPT, allclose

NOTHING = np.zeros((0, 64), np.int64)


@pytest.fixture(scope="module")
def places(tiny_store: Store) -> Places:
    return random_places(tiny_store, 25, 1)


@pytest.fixture(scope="module")
def tops(tiny: fm.Model) -> list[np.ndarray]:
    return [predictions(tiny, layer, NOTHING).token for layer in range(2)]


@pytest.fixture(scope="module")
def readings(tiny: fm.Model, places: Places, tops: list[np.ndarray]) -> composition.Readings:
    return composition.read_positions(tiny, places, tops, lead=1, updates=10)


def test_readings_of_every_architecture(architecture: fm.Model) -> None:
    """With gates, RMSNorm, parallel layers, and what a norm behind the FFN lets through as the FFN's write."""
    check_architecture(architecture)


@pytest.mark.parametrize("name", ["Granite", "StableLM parallel", "Gemma 3"])
def test_other_ways_to_add_up(name: str, tokenizer: Any) -> None:
    """Writes that are scaled, normed behind, or added beside attention's."""
    check_architecture(fm.load(DECODERS[name](), tokenizer=tokenizer))


def check_architecture(model: fm.Model) -> None:
    """Of prefixes captured alone: streams as sums of captures, predictions by the model's own norm and unembedding."""
    ids = [np.array(model.tokenize(text)) for text in (PROMPT, OTHER_PROMPT)]
    prefixes = tuple(one[:length] for one in ids for length in (3, 5, len(one)))
    places = Places(np.arange(6), np.array([len(one) - 1 for one in prefixes]), prefixes)
    none = np.zeros((0, model.ffn[0].d_mlp), np.int64)
    tops = [predictions(model, layer, none).token for layer in range(model.n_layers)]
    readings = composition.read_positions(model, places, tops, lead=1, updates=3)
    lens, n = Lens(model), len(places)
    predicted: list[list[set[int]]] = [[] for _ in tops]

    def close(scores: torch.Tensor, token: int) -> bool:
        """Whether a token is the top one, up to rounding."""
        return bool(scores[token] >= scores.max() - 1e-4 * scores.abs().max())

    for row, prefix in enumerate(places.prefixes):
        captured = fm.capture(model, prefix.tolist(), logits=True)
        assert captured.residual is not None
        stream = captured.residual.embedding[0, -1]
        if captured.residual.position is not None:
            stream = stream + captured.residual.position[0, -1]
        final = int(captured.logits_at(0, -1).argmax())
        assert readings.final[row] == final
        assert readings.lengths[row] == len(prefix) - 1
        assert allclose(lens.logits(captured.residual.final_in[0, -1:])[0], captured.logits_at(0, -1), 1e-5)
        for layer, own in enumerate(tops):
            stream = stream + captured.residual.attention[layer][0, -1]
            logits = lens.logits(stream.unsqueeze(0))[0]
            assert close(logits, int(readings.residual[row, layer]))
            assert readings.probability[row, layer] == pytest.approx(float(logits.softmax(-1)[final]), abs=1e-5)
            norm = model.norm_after(layer)
            y = captured.ffn_out[layer][0, -1] if norm is None else norm(captured.ffn_out[layer][0, -1])
            y = y * model.layout.write_scale
            written = int(readings.ffn[row, layer])
            assert close(lens.written(y.unsqueeze(0))[0], written)
            stream = stream + y
            assert close(lens.logits(stream.unsqueeze(0))[0], int(readings.out[row, layer]))
            m = captured.coefficients[layer][0, -1].numpy()
            assert readings.active[row, layer] == (m > 0).sum()
            assert readings.by_all[row, layer] == (own == written).any()
            assert readings.by_active[row, layer] == ((own == written) & (m > 0)).any()
            predicted[layer].append({int(t) for t, c in zip(own, m, strict=True) if c > 0})
    assert (readings.out[:, -1] == readings.final).all()
    for layer in range(len(tops)):
        others = [int(readings.ffn[i, layer]) in predicted[layer][j] for i in range(n) for j in range(n) if i != j]
        assert readings.by_chance[layer] == pytest.approx(np.mean(others))


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_writes_are_scored_as_projections_are(architecture: fm.Model, basis: Any) -> None:
    """A write is a value as the stream gets it: through the gain of a norm behind the FFN, if it is folded."""
    rows = fm.project(architecture, 1, k=1, basis=basis, side="value").query("sign == 'promoted'")
    values = architecture.ffn[1].values.detach()
    values = passed_on(architecture, 1, values) if basis == "folded" else values
    scores, tokens = Lens(architecture).written(values, basis).max(dim=-1)
    assert tokens.tolist() == rows["token_id"].tolist()
    assert allclose(scores, rows["score"].to_numpy(), 1e-5)


def test_updates_are_counted_at_some(tiny: fm.Model, places: Places, readings: composition.Readings) -> None:
    """Spread evenly over the sample, in its order."""
    chosen = np.unique(np.linspace(0, 24, 10).round().astype(int))
    assert readings.by_output.shape == readings.by_weight.shape == (10, 2, 3)
    for place, row in enumerate(chosen.tolist()):
        captured = fm.capture(tiny, places.prefixes[row].tolist())
        for layer in range(2):
            m = captured.coefficients[layer][0, -1:].numpy()
            by_output, by_weight = composition.updates_needed(m, tiny.ffn[layer].values.detach().numpy())
            assert np.abs(readings.by_output[place, layer] - by_output[0]).max() <= 1  # rounding at a border
            assert np.abs(readings.by_weight[place, layer] - by_weight[0]).max() <= 1


def test_sub_updates_make_up_what_the_stream_gets(gated: fm.Model, gated_store: Store) -> None:
    """Σ mᵢvᵢ with the gain of a norm behind is what the FFN adds, but for that norm's scale."""
    places = random_places(gated_store, 6, 2)
    reader = Positions(gated)
    shares = composition.read_positions(gated, places, [np.zeros(64, np.int64)] * 2, lead=1, updates=6).by_output
    for row, prefix in enumerate(places.prefixes):
        last = torch.tensor([len(prefix) - 1])
        for index, layer in enumerate(reader.layers(torch.tensor(prefix).unsqueeze(0), last)):
            terms = layer.coefficients[0, :, None] * passed_on(gated, index, gated.ffn[index].values.detach())
            total, added = terms.sum(dim=0), layer.ffn[0]
            assert allclose(total / total.norm(), added / added.norm(), 1e-4)
            order = terms.norm(dim=1).argsort(descending=True)
            sums = [terms[order[:k]].sum(dim=0) for k in range(65)]
            left = [float((total - one).square().sum() / total.square().sum()) for one in sums]
            expected = [next(k for k in range(65) if left[k] <= 1 - share) for share in composition.SHARES]
            assert np.abs(shares[row, index] - expected).max() <= 1  # rounding at a border


def test_composition_table(tiny_store: Store, tops: list[np.ndarray], readings: composition.Readings) -> None:
    table = composition.composition_table(readings, tops, tiny_store, 0)
    frequent = set(np.argsort(-unigram(tiny_store), kind="stable")[: composition.FREQUENT].tolist())
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


def test_refinement_table(readings: composition.Readings) -> None:
    table = composition.refinement_table(readings, 0)
    for row in table.itertuples():
        assert row.match == pytest.approx((readings.residual[:, row.layer] == readings.final).mean())
        assert row.probability == pytest.approx(readings.probability[:, row.layer].mean())
        assert row.probability_low <= row.probability <= row.probability_high
        assert row.residual + row.agreement + row.composition + row.ffn == pytest.approx(1)


def test_update_table(tiny: fm.Model, readings: composition.Readings) -> None:
    table = composition.update_table(readings, tiny)
    assert len(table) == 2 * 3 * 3
    for row in table.itertuples():
        counts = {"output": readings.by_output, "weight": readings.by_weight, "random": readings.by_random}[row.measure]
        mine = counts[:, row.layer, (0.5, 0.8, 0.95).index(row.share)]
        assert row.needed_50 == np.median(mine)
        assert row.part == np.median(mine) / 64
        assert row.positions == 10
