"""The tables of an attribution."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.prompts.attribution import ComponentLogits, largest

from ..helpers import PROMPT, allclose, refuses


@pytest.fixture(scope="module")
def one(tiny: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")


@pytest.fixture(scope="module")
def many(tiny: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(tiny, PROMPT), fm.prompts.NEXT)


def by_hand(one: fm.prompts.Attribution, logits: list[float], neurons: list[list[float]]) -> fm.prompts.Attribution:
    """An attribution at as many positions as there are logits, each with the same given neurons, [layer][neuron]."""
    n, values = len(logits), torch.tensor(neurons)
    parts = [ComponentLogits("ffn", layer, row.double().sum().repeat(n)) for layer, row in enumerate(values)]
    return dataclasses.replace(
        one,
        neuron_logits=values.repeat(n, 1, 1),
        coefficients=values.repeat(n, 1, 1),
        component_logits=tuple(parts),
        logits=torch.tensor(logits),
        positions=tuple(range(n)),
        target_ids=(1,) * n,
        target_tokens=("b",) * n,
    )


def test_neurons_table(one: fm.prompts.Attribution) -> None:
    """A column renamed, a neuron missing, or the weakest first: everything downstream reads this table."""
    table = one.neurons
    assert list(table.columns) == ["layer", "neuron", "coefficient", "logit", "share"]
    assert len(table) == 2 * 64
    assert not table.duplicated(["layer", "neuron"]).any()
    assert (np.diff(table["logit"].abs()) <= 0).all()
    assert allclose(table["share"] * one.logit, table["logit"], 1e-6)
    for row in table.head(5).itertuples():
        assert allclose(row.logit, one.neuron_logits[0, row.layer, row.neuron], 1e-7)
        assert allclose(row.coefficient, one.coefficients[0, row.layer, row.neuron], 1e-7)


def test_tables_of_given_numbers(one: fm.prompts.Attribution) -> None:
    """Two runs would rank equal neurons differently, shares of 0 be infinite, a broken position hide in a mean."""
    table = by_hand(one, [4.0], [[1.0, -2.0, 1.0, 2.0], [2.0, 0.0, -1.0, 0.0]]).neurons
    order = list(zip(table["layer"], table["neuron"], strict=True))
    assert order == [(0, 1), (0, 3), (1, 0), (0, 0), (0, 2), (1, 2), (1, 1), (1, 3)]
    assert by_hand(one, [0.0], [[1.0, -1.0]]).neurons["share"].isna().all()
    assert by_hand(one, [3.0], [[1.0, 1.0]]).error == pytest.approx(1.0)
    assert by_hand(one, [2.0, 7.0, 2.0], [[1.0, 1.0]]).error == pytest.approx(5.0)


def test_top(one: fm.prompts.Attribution, many: fm.prompts.Attribution) -> None:
    """`top` would be another order than `neurons`."""
    assert one.top(7).equals(one.neurons.head(7))
    assert len(one.top(10**6)) == 128
    assert len(many.top(3)) == 8 * 3
    with refuses(InputError, ValueError, "top", "at least 1"):
        one.top(0)


def test_tables_of_many_positions(many: fm.prompts.Attribution) -> None:
    """Positions would be mixed."""
    assert list(many.neurons.columns) == ["position", "layer", "neuron", "coefficient", "logit", "share"]
    assert list(many.components.columns) == ["position", "component", "layer", "logit"]
    for i, position in enumerate(many.positions):
        rows = many.neurons[many.neurons["position"] == position]
        assert len(rows) == 128
        assert allclose(rows["logit"].sum(), many.neuron_logits[i].double().sum(), 1e-6)
        parts = many.components[many.components["position"] == position]
        assert allclose(parts["logit"].sum(), many.sums[i], 1e-9)


def test_components_table(one: fm.prompts.Attribution) -> None:
    """The ledger would not be in the residual stream's order, or not sum to the logit."""
    table = one.components
    assert list(table.columns) == ["component", "layer", "logit"]
    assert table["component"].tolist() == [
        "embedding",
        "position",
        *["attention", "ffn", "ffn bias"] * 2,
        "final bias",
    ]
    assert table["layer"].isna().tolist() == [True, True, *[False] * 6, True]
    assert table["layer"].dropna().tolist() == [0, 0, 0, 1, 1, 1]
    assert allclose(table["logit"].sum(), one.logit, 1e-5)
    assert allclose(one.sums, [table["logit"].sum()], 1e-9)
    assert abs(table["logit"].sum() - one.logit) == pytest.approx(one.error, abs=1e-9)


def test_tables_carry_their_origin(one: fm.prompts.Attribution, many: fm.prompts.Attribution, tiny: fm.Model) -> None:
    """A table saved on its own would say nothing about its model; `.logit` of many positions would be the first's."""
    for table in (one.neurons, one.top(3), one.components):
        assert (table.attrs["target"], table.attrs["foil"]) == ((" Paris",), " Rome")
        origin = table.attrs["provenance"]
        assert (origin["fingerprint"], origin["dtype"], origin["prepend_bos"]) == (tiny.fingerprint, "float32", True)
    assert many.neurons.attrs["target"] == many.target_tokens
    assert (one.target, one.foil, one.position) == (" Paris", " Rome", 8)
    for name in ("logit", "target", "position"):
        with refuses(InputError, ValueError, "8 positions"):
            getattr(many, name)
    assert repr(one).startswith(f"Attribution(target ' Paris', foil ' Rome', logit {one.logit:.4g}, error ")
    assert repr(many).startswith("Attribution(8 target tokens, error ")


def test_to_dict_is_strict_json(one: fm.prompts.Attribution, many: fm.prompts.Attribution) -> None:
    """The command line's data would not be JSON (NaN, <NA>, NumPy numbers)."""
    record = json.loads(json.dumps(one.to_dict(top=5), allow_nan=False))
    assert record["target_tokens"] == [" Paris"]
    assert record["foil"] == " Rome"
    assert record["tokens"] == list(one.tokens)
    assert len(record["neurons"]) == 5
    assert record["components"][0]["layer"] is None
    assert allclose(sum(part["logit"] for part in record["components"]), one.logit, 1e-5)
    assert len(json.loads(json.dumps(many.to_dict(top=2), allow_nan=False))["neurons"]) == 16
    zero = by_hand(one, [0.0], [[1.0, -1.0]])
    assert json.loads(json.dumps(zero.to_dict(), allow_nan=False))["neurons"][0]["share"] is None


def test_the_largest_are_those_of_a_whole_sort() -> None:
    # found without one: if it failed, tables would lack a strong neuron, or put equal ones in another order
    rng = np.random.default_rng(0)
    for size in (10, 64, 1000, 1003):
        values = rng.integers(-40, 40, size).astype(float)
        values[rng.integers(0, size, 5)] = np.nan
        values[3] = -np.inf
        whole = np.argsort(-np.where(np.isnan(values), -1.0, np.abs(values)), kind="stable")
        for k in (1, 3, 15, 16, size, None):
            assert largest(values, k).tolist() == whole[:k].tolist()
