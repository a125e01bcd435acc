"""Neurons held at a strength: the coefficients that are stated, and judges that say what they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.concepts.steering import AT_RANDOM, NEURONS, PLAIN, RESIDUAL, plan
from ffnmem.concepts.writing import Run, mean_logs
from ffnmem.core.errors import FfnmemError
from ffnmem.models.replaying import PlainLayers

from .test_finding import MINE, OTHERS

PAIRS = [(0, 3), (1, 5), (1, 9)]
FEW: dict[str, Any] = {"neurons": PAIRS, "strengths": [0, 1, 3], "prompts": ["The city", "Rome is in the"], "new": 4}


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> fm.concepts.Concept:
    return fm.concept(tiny, MINE, OTHERS, draws=20)


@pytest.fixture(scope="module")
def steered(tiny: fm.Model, found: fm.concepts.Concept) -> fm.concepts.Steering:
    return fm.steer(tiny, found, **FEW)


def test_strengths_are_between_the_means_and_controls_move_as_far(tiny: fm.Model, found: fm.concepts.Concept) -> None:
    table = found.neurons.set_index(["layer", "neuron"]).loc[PAIRS].reset_index()
    whole = found.neurons.set_index(["layer", "neuron"])
    runs = list(plan(tiny, found, table, [0.0, 1.0, 3.0], 2, 0))
    assert [run.what for run in runs[:5]] == [NEURONS, NEURONS, AT_RANDOM, AT_RANDOM, RESIDUAL]
    values = {pair: tiny.ffn[pair[0]].values[pair[1]].detach().double() for pair in whole.index}
    parts = [(row.layer, row.difference * values[row.layer, row.neuron]) for row in table.itertuples()]
    moved = {layer: torch.stack([one for at, one in parts if at == layer]).sum(0) for layer in (0, 1)}
    for run in runs:
        if run.what == NEURONS and run.strength <= 1:
            name = "mean_with" if run.strength else "mean_without"
            assert [run.held[pair] for pair in PAIRS] == pytest.approx(table[name].tolist())
        elif run.what == AT_RANDOM:
            assert not {*run.held} & {*PAIRS}
            assert [layer for layer, _ in run.held] == [layer for layer, _ in PAIRS]
            steps = [
                abs(value - whole["mean_without"][pair]) * float(values[pair].norm())
                for pair, value in run.held.items()
            ]
            expected = [
                abs(run.strength * row.difference) * float(values[row.layer, row.neuron].norm())
                for row in table.itertuples()
            ]
            assert steps == pytest.approx(expected, rel=1e-4, abs=1e-6)
        elif run.what == RESIDUAL:
            for layer, own in moved.items():
                assert float(run.push[layer].norm()) == pytest.approx(run.strength * float(own.norm()), rel=1e-4)


def test_neurons_are_held_as_intervene_holds_them(tiny: fm.Model) -> None:
    """At every token but the beginning of sequence."""
    held, ids = {(0, 3): 1.5, (1, 5): -2.0}, tiny.tokenize(MINE[0])
    with fm.intervene(tiny, held, positions=range(1, len(ids))):
        run = fm.capture(tiny, MINE[0], logits=True)
    logs = run.logits[0].log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    layers = PlainLayers(tiny)
    changed = mean_logs(layers, ids[:1], [ids[1:], ids[1:4]], Run("", 1.0, 0, held))
    assert changed.tolist() == pytest.approx([float(logs.mean()), float(logs[:3].mean())], abs=1e-5)
    plain = mean_logs(layers, ids[:4], [ids[4:]])
    whole = fm.capture(tiny, MINE[0], logits=True).logits[0].log_softmax(-1)
    assert float(plain) == pytest.approx(
        float(whole[torch.arange(3, len(ids) - 1), torch.tensor(ids[4:])].mean()), abs=1e-5
    )


def test_judges_and_controls(tiny: fm.Model, found: fm.concepts.Concept, steered: fm.concepts.Steering) -> None:
    """The sets exchanged, judges say the opposite; the same seed writes the same."""
    assert steered.written.equals(fm.steer(tiny, found, **FEW).written)
    counts = steered.written.groupby("what").size()
    assert counts.to_dict() == {PLAIN: 2, NEURONS: 6, AT_RANDOM: 4, RESIDUAL: 4}
    for _, row in steered.curve.iterrows():
        same = steered.written[
            (steered.written["what"] == row["what"]) & (steered.written["strength"] == row["strength"])
        ]
        assert row["reader"] == pytest.approx(same["reader"].mean())
        assert row["perplexity"] == pytest.approx(np.exp(same["loss"].mean()))
    order = np.concatenate([np.flatnonzero(~found.labels), np.flatnonzero(found.labels)])
    from dataclasses import replace

    turned = replace(found, texts=found.against, against=found.texts, chosen=found.chosen[order])
    other = fm.steer(tiny, turned, **FEW).written
    assert other["reader"].tolist() == pytest.approx((-steered.written["reader"]).tolist(), abs=1e-5)
    assert other["words"].tolist() == pytest.approx((-steered.written["words"]).tolist(), abs=1e-5)


def test_the_window_is_where_judges_agree_and_text_is_fluent(steered: fm.concepts.Steering) -> None:
    from dataclasses import replace

    judges = steered.judges.assign(held_out_low=[0.9, 0.4])  # of which one can tell the sets apart
    curve = steered.curve.copy()
    mine = curve["what"] == NEURONS
    curve.loc[mine, "reader"] = [0.0, 10.0, 10.0]
    curve.loc[curve["what"] != NEURONS, ["reader", "reader_high"]] = 1.0
    curve["perplexity"], curve["repeated"] = 10.0, 0.1
    found = replace(steered, curve=curve, judges=judges)
    assert found.strengths(NEURONS) == [1.0, 3.0]
    assert found.window == "1, 3"
    curve.loc[mine, "perplexity"] = [10.0, 15.0, 16.0]
    assert replace(found, curve=curve).window == "none"
    curve.loc[mine, ["perplexity", "repeated"]] = 10.0, 0.5
    assert replace(found, curve=curve).window == "none"
    assert "perplexity is 1.5 times" in replace(found, curve=curve).verdict
    curve.loc[curve["what"] == PLAIN, "reader_high"] = 11.0
    assert "at no strength" in replace(found, curve=curve).verdict


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"neurons": ["9.1"], "new": 4}, "layer"),
        ({"neurons": ["1.9999"], "new": 4}, "neuron 9999"),
        ({"new": 4}, "no neuron"),
        ({"prompts": []}, "prompts"),
        ({"neurons": ["1.3"], "new": 10_000}, "prompts"),
    ],
)
def test_refused(options: dict[str, Any], named: str, tiny: fm.Model, found: fm.concepts.Concept) -> None:
    with pytest.raises(FfnmemError, match=named):
        fm.steer(tiny, found, **options)
