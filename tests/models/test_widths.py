"""Layers of different widths: tables of all layers hold every neuron once, and no other, and their sums stay exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError

from ..architectures import DECODERS
from ..helpers import PROMPT, allclose, refuses


@pytest.fixture(scope="module", params=["Qwen 3 MoE with a dense layer", "DeepSeek V3 with a dense layer"])
def capture(request: pytest.FixtureRequest, tokenizer: Any) -> fm.prompts.Capture:
    """Of a model whose first layer is the wider, or the narrower one."""
    model = fm.load(DECODERS[request.param](), tokenizer=tokenizer, dtype="float64")
    assert len({*model.widths}) == 2
    return fm.capture(model, PROMPT, logits=True)


def neurons_of(model: fm.Model) -> set[tuple[int, int]]:
    return {(layer, neuron) for layer, ffn in enumerate(model.ffn) for neuron in range(len(ffn.values))}


def test_tables_have_every_neuron_once(capture: fm.prompts.Capture) -> None:
    """A neuron would be missing, or one be named that its layer does not have."""
    model, every = capture.model, neurons_of(capture.model)
    frames = [
        fm.attribute(capture, " Paris").neurons,
        fm.attribute_paths(capture, " Paris").neurons,
        fm.causal_scores(capture, " Paris", " Rome", exact=0).neurons,
        fm.interventions.knowledge_neurons(capture, " Paris").neurons,
    ]
    for frame in frames:
        assert len(frame) == len(every)
        assert {*zip(frame["layer"], frame["neuron"], strict=True)} == every
    firings = fm.attribute_paths(capture, " Paris").top(None)
    assert (
        len(firings)
        == len(every) * capture.tokens.shape[1]
        == len(firings.drop_duplicates(["layer", "neuron", "position"]))
    )
    for row in firings.head(20).itertuples():
        assert row.coefficient == capture.coefficients[row.layer][0, row.position, row.neuron]
    assert fm.models.anatomy(model).neurons == fm.models.anatomy(model.hf_model.config).neurons == len(every)


def test_sums_are_exact(capture: fm.prompts.Capture) -> None:
    """What stands behind a narrower layer's neurons would count, or a neuron not."""
    reference = {layer: 0.01 * torch.ones(width).double() for layer, width in enumerate(capture.model.widths)}
    assert fm.attribute(capture, " Paris", " Rome").error < 1e-10
    assert fm.attribute_paths(capture, " Paris", " Rome").error < 1e-10
    assert fm.circuit(capture, " Paris", " Rome", nodes=20).error < 1e-10
    relp = fm.causal_scores(capture, " Paris", " Rome", rule="relp")
    assert relp.completeness_error is not None
    assert relp.completeness_error < 1e-10
    scores = fm.causal_scores(capture, " Paris", " Rome", rule="ig", steps=400, mean=reference)
    assert scores.completeness_error is not None
    assert scores.completeness_error < 1e-3
    for row in scores.top(3).itertuples():
        change = {(row.layer, row.neuron): fm.interventions.Set(0.01)}
        with fm.intervene(capture.model, change, positions=row.position):
            without = fm.attribute(fm.capture(capture.model, PROMPT), " Paris", " Rome").logit
        assert allclose(row.exact, scores.logit - without, 1e-10)


def test_sets_are_of_neurons_that_there_are(capture: fm.prompts.Capture) -> None:
    """Nulls drawn from what is no neuron would change nothing, and make every finding look strong."""
    model, first = capture.model, capture.starts_with_bos
    total = len(neurons_of(model)) * (capture.tokens.shape[1] - first)
    found = fm.faithfulness(capture, " Paris", " Rome", random=2, sizes=[total])
    assert found.total == total
    last = found.curve.iloc[-1]
    assert allclose([last["faithfulness"], last["random_low"], last["completeness"]], [1.0, 1.0, 0.0], 1e-10)
    decided = fm.contrast(model, PROMPT, "The city of the Eiffel Tower is", random=2)
    for row in decided.firings.itertuples():
        assert (row.layer, row.neuron) in neurons_of(model)
    assert decided.total <= total


def test_means_are_of_every_layers_width(capture: fm.prompts.Capture) -> None:
    """Numbers would be taken for those of another layer's neurons."""
    wrong = {layer: torch.zeros(capture.model.d_mlp) for layer in range(capture.model.n_layers)}
    with refuses(InputError, ValueError, "mean must", f"{capture.model.widths[0]}, {capture.model.widths[1]} by layer"):
        fm.causal_scores(capture, " Paris", " Rome", mean=wrong)
