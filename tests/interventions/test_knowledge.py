"""Integrated gradients, against autograd through the untouched model, and against what they must sum to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.core.sheets import Table

from ..helpers import PROMPT, Pair, allclose, refuses
from .naive import IDS, exact, logits, run

TARGET = 17


def naive(pair: Pair, layer: int, position: int, steps: int) -> tuple[torch.Tensor, float]:
    """mᵢ times the mean of ∂P/∂mᵢ at the midpoints, by whole passes; P with the layer's coefficients 0."""
    held: dict[str, torch.Tensor] = {}

    def edit(m: torch.Tensor) -> None:
        held["m"] = m[0, position].detach().clone()
        held["leaf"] = (held["m"] * held["share"]).requires_grad_()
        m[0, position] = held["leaf"]

    total = torch.zeros(())
    for step in range(steps):
        held["share"] = torch.tensor((step + 0.5) / steps).double()
        probability = run(pair, IDS, {layer: edit})[0, position].softmax(-1)[TARGET]
        total = total + torch.autograd.grad(probability, held["leaf"])[0] / steps

    def nothing(m: torch.Tensor) -> None:
        m[0, position] = 0.0

    return held["m"] * total, float(logits(pair, IDS, {layer: nothing})[0, position].softmax(-1)[TARGET])


@pytest.mark.parametrize("position", [-1, 4])
def test_equals_whole_passes(pair64: Pair, position: int) -> None:
    found = fm.interventions.knowledge_neurons(fm.capture(pair64.model, IDS), TARGET, position, steps=3)
    for layer in range(2):
        attributions, without = naive(pair64, layer, position, 3)
        assert allclose(found.attributions[layer], attributions, exact(pair64))
        assert allclose(found.without[layer], without, exact(pair64))
    assert allclose(found.probability, logits(pair64, IDS)[0, position].softmax(-1)[TARGET], exact(pair64))


def test_completeness(model64: fm.Model) -> None:
    """A layer's attributions sum to what its coefficients add to the probability, as the steps grow."""
    capture = fm.capture(model64, PROMPT)
    best = int(capture.logits_at(0, -1).argmax())
    coarse, fine = (fm.interventions.knowledge_neurons(capture, best, steps=steps) for steps in (200, 400))
    assert fine.error < 1e-4
    assert fine.error < coarse.error / 3  # with the square of the steps
    for row in fine.layers.itertuples():
        with fm.intervene(model64, {(row.layer, None): 0.0}, positions=-1):
            without = fm.capture(model64, PROMPT).logits_at(0, -1).softmax(-1)[best]
        assert row.expected == pytest.approx(fine.probability - float(without), abs=1e-10)
        assert row.attribution == pytest.approx(float(fine.attributions[row.layer].sum()))


def test_batches_change_nothing(model64: fm.Model) -> None:
    capture = fm.capture(model64, PROMPT)
    whole, single = (fm.interventions.knowledge_neurons(capture, TARGET, batch=batch) for batch in (64, 1))
    assert allclose(whole.attributions, single.attributions, 1e-12)
    assert allclose(whole.without, single.without, 1e-12)


def test_tables(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    found = fm.interventions.knowledge_neurons(capture, " Paris", threshold=0.5)
    values = found.attributions.numpy()
    frame = found.neurons
    assert len(frame) == values.size
    assert frame["attribution"].abs().is_monotonic_decreasing
    for row in found.top(5).itertuples():
        assert row.attribution == pytest.approx(float(values[row.layer, row.neuron]))
        assert row.coefficient == pytest.approx(float(capture.coefficients[row.layer][0, -1, row.neuron]), abs=1e-5)
        assert row.share == pytest.approx(row.attribution / values.max())
    assert len(found.selected) == (values >= 0.5 * values.max()).sum()
    record = json.loads(json.dumps(found.to_dict(4), allow_nan=False))
    assert (record["target"], len(record["selected"]), len(record["neurons"])) == (" Paris", len(found.selected), 4)
    assert record["provenance"]["rule"] == "midpoint"
    assert repr(found).startswith("KnowledgeNeurons(target ' Paris', probability ")
    assert len(found.to_frame()) == len(frame)
    neurons, layers = (block for block in found.sheet(20).blocks if isinstance(block, Table))
    for row, expected in zip(neurons.rows, found.top(20).itertuples(), strict=True):
        assert (row[0], row[2]) == ((expected.layer, expected.neuron), expected.attribution)
    assert [row[0] for row in layers.rows] == [0, 1]
    assert f"{len(found.selected)} with at least" in found.to_markdown()


def test_refinement(tiny: fm.Model) -> None:
    """By the share of prompts in which a neuron passes; the own prompt counts once, however often it is asked."""
    texts = [PROMPT, "The city of", "The Tower is in", PROMPT, "The city of"]
    found = fm.interventions.knowledge_neurons(fm.capture(tiny, PROMPT), " Paris")
    all_of = [fm.interventions.knowledge_neurons(fm.capture(tiny, text), " Paris") for text in texts[:3]]
    counts: dict[tuple[int, int], int] = {}
    for one in all_of:
        for row in one.selected.itertuples():
            counts[row.layer, row.neuron] = counts.get((row.layer, row.neuron), 0) + 1
    refined = found.refine(texts, share=0.6)
    assert {(r.layer, r.neuron): round(r.prompts * 3) for r in refined.itertuples()} == counts
    assert refined["kept"].tolist() == [share >= 0.6 for share in refined["prompts"]]
    assert refined["prompts"].is_monotonic_decreasing
    for row in refined.head(5).itertuples():
        mean = np.mean([float(one.attributions[row.layer, row.neuron]) for one in all_of])
        assert row.attribution == pytest.approx(mean, abs=1e-6)
    assert refined.attrs["provenance"]["prompts"] == 3
    fact = fm.Fact("Tower", "in", "The {} is in", "Paris", paraphrases=("The city of {}",))
    assert found.refine(fact).attrs["provenance"]["prompts"] == 3


def test_what_is_refused(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({"threshold": 0.0}, InputError, "threshold"),
        ({"threshold": 1.5}, InputError, "1.5"),
        ({"steps": 0}, InputError, "steps"),
        ({"batch": 0}, InputError, "batch"),
        ({"target": " Parisian"}, InputError, "' Parisian'"),
        ({"position": 99}, OutOfRangeError, "position 99"),
    ]
    for options, kind, named in cases:
        with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, named):
            fm.interventions.knowledge_neurons(capture, **options)
    found = fm.interventions.knowledge_neurons(capture)
    for prompts, share, named in (([], 0.7, "prompts is empty"), ("The city", 0.7, "a list"), ([PROMPT], 0.0, "share")):
        with refuses(InputError, ValueError, named):
            found.refine(prompts, share)
    with fm.intervene(tiny, {(0, 3): 1.0}), refuses(InputError, ValueError, "0.3 = 1"):
        fm.interventions.knowledge_neurons(capture)
