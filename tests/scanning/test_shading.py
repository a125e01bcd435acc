"""Every token of an example: the model's coefficients there, and at the example itself the store's, or an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import ModelError, UnsupportedModelError
from ffnmem.core.types import CASES
from ffnmem.ffn.activations import activation
from ffnmem.models.hooks import keeper, listening
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning import Store, open_store, scan, shading
from ffnmem.scanning.contexts import TOLD
from ffnmem.scanning.neuron import Neuron
from ffnmem.scanning.shading import shown_examples

from ..helpers import allclose, refuses
from .texts import tiny_texts


def what_the_model_computes(model: fm.Model, store: Store, layer: int, sequence: int) -> torch.Tensor:
    """``[pos, d_mlp]``, by hooks in the model's own pass over one sequence alone, BOS left out."""
    found: dict[int, torch.Tensor] = {}
    tokens = torch.from_numpy(store.sequences.sequence_tokens(sequence)).unsqueeze(0)
    with listening([(model.ffn[layer].project_out, keeper(found, layer, lambda m: m.flatten(0, -2)))]), torch.no_grad():
        model.body(tokens)
    return found[layer][store.sequences.lead :]


def agrees(model: fm.Model, store: Store, one: Neuron) -> None:
    assert one.passages
    for sequence, passage in one.passages.items():
        expected = what_the_model_computes(model, store, one.layer, sequence)[:, one.neuron]
        assert passage.coefficients.dtype == np.float32
        assert allclose(torch.from_numpy(passage.coefficients), expected, 1e-6 * max(one.largest, 1.0))
        assert passage.first == store.sequences.lead
        assert len(passage.tokens) == len(passage.coefficients) == len(expected)
    for window, found, example in zip(one.windows, one.coefficients, one.examples.itertuples(), strict=True):
        if found is not None:
            assert len(found) == len(window.tokens)
            assert found[window.at] == pytest.approx(example.coefficient, abs=1e-5)
            passage = one.passages[example.sequence]
            start = example.position - passage.first - window.at
            assert passage.tokens[start : start + len(window.tokens)] == window.tokens


def test_atlas(atlas: fm.Model, atlas_store: Store) -> None:
    """Shades would be of another layer, neuron or token."""
    for place in ((0, 18), (3, 17)):
        agrees(atlas, atlas_store, atlas_store.neuron(*place, shade=True))


def test_gated_models_have_both_parts(gated: fm.Model, gated_store: Store) -> None:
    """A coefficient is act(gate) times the linear part, at every token."""
    one = gated_store.neuron(1, 3, kind=(*CASES, "quantile"), shade=True)
    agrees(gated, gated_store, one)
    act = activation(gated.ffn[1].activation)
    for passage in one.passages.values():
        assert passage.gate is not None
        assert passage.linear is not None
        product = act(torch.from_numpy(passage.gate)) * torch.from_numpy(passage.linear)
        assert allclose(torch.from_numpy(passage.coefficients), product, 1e-6)


def test_only_what_cards_show_is_read(tiny_store: Store) -> None:
    """A store keeps more examples than a card shows, and reading them takes the model's time."""
    plain = tiny_store.neuron(1, 5)
    assert plain.passages == {}
    assert set(plain.coefficients) == {None}
    one = tiny_store.shaded([plain], listed=1)[0]
    wanted = {example.sequence for example in shown_examples(plain, 1)}
    assert set(one.passages) == wanted < set(plain.examples["sequence"])
    assert [found is not None for found in one.coefficients] == one.examples["sequence"].isin(wanted).tolist()


def test_each_sequence_is_read_once_and_no_deeper_than_needed(
    tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of many neurons would take the time of many pages."""
    runs: list[tuple[int, int]] = []
    run = LayerPass.run

    def counted(self: LayerPass, tokens: torch.Tensor, *hooks: Any, until: int, **more: Any) -> None:
        runs.append((until, len(tokens)))
        run(self, tokens, *hooks, until=until, **more)

    monkeypatch.setattr(LayerPass, "run", counted)
    told: list[tuple[str, int, int]] = []
    some = [tiny_store.neuron(*place) for place in ((0, 3), (0, 9), (1, 5))]
    found = tiny_store.shaded(some, progress=lambda *now: told.append(now))
    deep = set(found[2].passages)
    shallow = {n for one in found[:2] for n in one.passages} - deep
    for layer, wanted in ((0, shallow), (1, deep)):
        assert sum(rows for until, rows in runs if until == layer) == len(wanted)
    total = sum(tiny_store.sequences.locate(n)[2] for n in shallow | deep)
    assert told[-1] == ("shade", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    for one, alone in zip(found, some, strict=True):
        for sequence, passage in tiny_store.shaded([alone])[0].passages.items():
            assert np.allclose(passage.coefficients, one.passages[sequence].coefficients, atol=1e-6)


def test_other_weights_are_refused(tmp_path: Path, make_tiny: Callable[..., fm.Model]) -> None:
    """Shades of one model would stand around coefficients of another."""
    model = make_tiny()
    store = scan(model, tiny_texts(), tmp_path / "store", k=3, sample=8, draws=4, frequent=8)
    one = store.neuron(1, 5)
    fingerprint = store.fingerprint
    model.ffn[1].keys.data.mul_(1.05)  # which nobody notices, by the docstring of the fingerprint
    assert model.fingerprint == fingerprint
    with refuses(ModelError, ValueError, "1.5", str(store.folder), "sequence", "as it was scanned"):
        store.shaded([one])
    model.ffn[1].keys.data.div_(1.05)
    assert store.shaded([one])[0].passages


def test_a_difference_beyond_rounding_is_refused(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5)
    allowed = shading.TOLERANCE * max(one.largest, 1.0)
    for share, refused in ((0.5, False), (2.0, True)):
        moved = replace(one, examples=one.examples.assign(coefficient=one.examples["coefficient"] + share * allowed))
        if refused:
            with refuses(ModelError, ValueError, "rounding"):
                tiny_store.shaded([moved])
        else:
            assert tiny_store.shaded([moved])[0].passages


def test_without_the_model(tiny_store: Store) -> None:
    """A card as it is would look as if all tokens but one had no coefficient."""
    store = open_store(tiny_store.folder)
    with refuses(ModelError, ValueError, "every token", store.model, "model=", "--model"):
        store.neuron(1, 5, shade=True)
    assert store.neuron(1, 5).passages == {}


def test_under_an_intervention(tiny: fm.Model, tiny_store: Store) -> None:
    with fm.intervene(tiny, {(1, 5): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        tiny_store.neuron(1, 5, shade=True)


def test_notebooks_shade_unasked_what_is_quick(
    tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model is held; a card that takes long, or has no model, is shown at once."""
    one = tiny_store.neuron(1, 5)
    shaded = tiny_store.shaded([one])[0]._repr_html_()
    assert "<i " in shaded
    assert one._repr_html_() == shaded
    assert "<i " not in open_store(tiny_store.folder).neuron(1, 5)._repr_html_()
    with fm.intervene(tiny, {(1, 5): 0.0}):
        assert "<i " not in one._repr_html_()
    monkeypatch.setattr(shading, "AT_ONCE", 10)
    assert "<i " not in one._repr_html_()


def test_strengths_are_shares_of_the_largest(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5, shade=True)
    for group in one.groups():
        for example in group.examples():
            shades, passage = example.shades, one.passages[example.sequence]
            assert shades is not None
            every = [*shades.further_before, *shades.before, None, *shades.after, *shades.further_after]
            assert every.index(None) == example.position - passage.first
            for shade, text, value in zip(every, passage.tokens, passage.coefficients.tolist(), strict=True):
                if shade is None:
                    assert text == example.token
                    continue
                assert shade.text == text
                assert shade.strength == pytest.approx(abs(value) / one.largest, abs=0.006)
                assert shade.negative == (value < 0)
                assert ("position" in shade.note) == (shade.strength >= TOLD)
            assert "".join(shade.text for shade in shades.before) == example.before
            assert "".join(shade.text for shade in shades.after) == example.after


def test_plain_values(gated_store: Store, tmp_path: Path) -> None:
    one = gated_store.neuron(0, 3, kind="gate+ linear+", shade=True)
    found = one.brief()["passages"]
    assert [passage["sequence"] for passage in found] == sorted(one.passages)
    for told in found:
        passage = one.passages[told["sequence"]]
        assert told["tokens"] == list(passage.tokens)
        assert told["coefficients"] == passage.coefficients.tolist()
        assert len(told["gate"]) == len(told["linear"]) == len(told["tokens"])
    assert "passages" not in gated_store.neuron(0, 3).to_dict()
    again = Neuron.load(one.save(tmp_path / "one"), gated_store)
    assert repr(again.to_dict()) == repr(one.to_dict())


def test_meanings_are_shaded_too(tiny: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    """On a card their examples stand beside shaded ones."""
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path / "tiny"), model=tiny)
    fm.polysemanticity(store, tiny, draws=20, budget=None)
    one = store.neuron(1, 5, kind="bottom", k=1, shade=True)
    (found,) = one.meanings
    examples = [e for m in found.first(5, one.passages, one.largest) for e in m.examples]
    assert examples
    assert all(example.shades is not None for example in examples)
    assert {example.sequence for example in examples} - set(one.examples["sequence"])
