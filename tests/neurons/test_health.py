"""``NeuronHealth``: its summary, its ends, and what it shows of itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffnmem.core.errors import InputError
from ffnmem.neurons import NeuronHealth, neuron_health
from ffnmem.neurons.health import flags_of, half_share

from ..helpers import printed, refuses
from .made import TEXTS, pushed


@pytest.fixture(scope="module")
def health(tokenizer: Any) -> NeuronHealth:
    return neuron_health(pushed("opt", tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0}), TEXTS)


def test_half_share() -> None:
    """Half of the gradient would be said to lie in more or fewer neurons than it does."""
    assert half_share(np.array([1.0, 1, 1, 1])) == 0.5
    assert half_share(np.array([0.0, 0, 0, 9])) == 0.25
    assert half_share(np.array([3.0, 1, 2, 2])) == 0.5
    assert math.isnan(half_share(np.zeros(3)))


def test_layers_summarise_neurons(health: NeuronHealth) -> None:
    """A layer's row would be of another layer, or a sum for a mean."""
    for layer, frame in health.neurons.groupby("layer"):
        row = health.layers.set_index("layer").loc[layer]
        assert row["neurons"] == len(frame) == 64
        for column in ("fires", "dead", "stuck", "saturated", "local_gradient", "flow_pre", "flow_coefficient"):
            assert row[column] == pytest.approx(frame[column].mean())
        assert row["saturated_linear"] == pytest.approx((frame["linear"] >= 0.99).mean())
        most = frame["flow_pre"].nlargest(round(row["half_flow"] * len(frame)))
        assert most.sum() >= frame["flow_pre"].sum() / 2 > most.iloc[:-1].sum()


def test_extremes(health: NeuronHealth, tokenizer: Any) -> None:
    """The wrong end of the ranking."""
    found = health.extremes(4)
    assert found["kind"].tolist() == ["most gradient"] * 4 + ["least gradient"] * 4
    flows = health.neurons["flow_pre"]
    assert found["flow_pre"].tolist() == [*flows.nlargest(4), *flows.nsmallest(4)]
    without = neuron_health(pushed("gpt2", tokenizer, {(1, 2): 1000.0, (0, 9): -1000.0}), TEXTS, flow=False)
    flat, linear = without.extremes(1).itertuples()
    assert (flat.kind, flat.layer, flat.neuron) == ("most flat", 0, 9)
    assert (linear.kind, linear.layer, linear.neuron) == ("most linear", 1, 2)
    with refuses(InputError, ValueError, "top", "0"):
        health.extremes(0)


def test_shows_itself(health: NeuronHealth) -> None:
    """A result that does not fit a line, or JSON."""
    assert repr(health).startswith("NeuronHealth(")
    assert "\n" not in repr(health)
    assert f"{health.positions} positions" in repr(health)
    values = json.loads(json.dumps(health.to_dict(), allow_nan=False))
    assert len(values["neurons"]) == len(health.neurons) == len(health.to_frame())
    assert len(values["layers"]) == len(health.layers)
    assert values["loss"] == health.loss
    assert values["provenance"]["model"] == health.provenance.model
    assert health.to_frame() is not health.neurons


def test_sheet(health: NeuronHealth) -> None:
    """A number of another layer or neuron; a stuck neuron that looks like any other; a name that runs as HTML."""
    layers, neurons, whole, _ = health.sheet(3).blocks
    names = ("layer", "neurons", "fires", "dead", "stuck", "saturated", "local_gradient", "flow_pre", "half_flow")
    assert list(layers.rows) == [tuple(row[name] for name in names) for row in health.layers.to_dict("records")]
    assert f"{health.positions:,} positions" in layers.title
    ends = health.extremes(3).to_dict("records")
    assert [row[0] for row in neurons.rows] == ["most gradient", "", "", "least gradient", "", ""]
    for line, row in zip(neurons.rows, ends, strict=True):
        numbers = (row[name] for name in ("fires", "flat", "linear", "local_gradient", "flow_pre"))
        assert line[1:] == ((row["layer"], row["neuron"]), *numbers, ", ".join(flags_of(row)))
    assert "dead, stuck" in " ".join(printed(neurons))
    assert [column.name for column in whole.columns] == list(health.layers.columns)
    assert flags_of(health.neurons.to_dict("records")[3]) == ["dead", "stuck"]  # saturated goes without saying
    assert flags_of({"dead": False, "stuck": False, "saturated": True}) == ["saturated"]
    provenance = replace(health.provenance, model="<script>x</script>")
    page = replace(health, provenance=provenance, activation="<b>gelu</b>")._repr_html_()
    assert "<script>" not in page
    assert "<b>gelu" not in page
