"""The text around a position, and the model's coefficients at every token of an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import ModelError, UnsupportedModelError
from ffnmem.core.sheets import Context, Table
from ffnmem.core.types import CASES
from ffnmem.ffn.activations import activation
from ffnmem.models.hooks import keeper, listening
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning import Store, open_store, scan, shading
from ffnmem.scanning.contexts import TOLD
from ffnmem.scanning.shading import shown_examples

from ..helpers import allclose, refuses
from ..tokenizers import model_with
from .texts import tiny_texts

# -- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 5, 100])
def test_windows(tiny_store: Store, tiny: fm.Model, width: int) -> None:
    """The mark would be on another token, or BOS shown as text, or text cut off without a sign."""
    sequences = tiny_store.sequences
    for sequence in range(0, len(sequences), 3):
        ids = sequences.sequence_tokens(sequence).tolist()
        strings = tiny.token_strings(ids)
        if "�" in "".join(strings):  # see below
            continue
        for position in {1, len(ids) // 2, len(ids) - 1}:
            window = tiny_store.contexts.window(sequence, position, width)
            assert window.tokens[window.at] == strings[position]
            before, after = window.tokens[: window.at], window.tokens[window.at + 1 :]
            around = ids[max(1, position - width) : position], ids[position + 1 : position + 1 + width]
            for texts, there in zip((before, after), around, strict=True):
                assert len(texts) == len(there)
                assert "".join(texts) == tiny.tokenizer.decode(there)
            assert window.cut_before == (position - width > 1)
            assert window.cut_after == (position + width < len(ids) - 1)
            assert window.text == "".join(window.tokens)


@pytest.mark.parametrize("name", ["byte-level", "Llama 2", "Unigram with bytes (Gemma)"])
def test_characters_of_several_tokens_are_whole(name: str, tmp_path: Path) -> None:
    """Cards would show "caf��" and "����" for an accent and an emoji; nothing of a character is shown twice."""
    model, text = model_with(name), "The 🗼 café of 中国的 é\u0301! is"
    store = fm.scan(model, [text, "The capital of France is in Paris"], tmp_path / "store", k=2)
    ids = store.sequences.sequence_tokens(0).tolist()
    whole = store.contexts.window(0, 1, 99)
    assert len(whole.tokens) == len(ids) - 1
    assert "" in whole.tokens
    for position in range(1, len(ids)):
        window, near = (store.contexts.window(0, position, width) for width in (99, 2))
        assert window.text.strip() == text
        assert window.tokens[window.at] == near.tokens[near.at] != ""
        assert near.text in window.text
    middle = next(at for at, token in enumerate(model.token_strings(ids)) if token in ("�", "<0x9F>"))
    window = store.contexts.window(0, middle, 99)
    assert window.tokens[window.at] == "🗼"
    if name == "Llama 2":  # a word begins with its space: "in" would be any "in", within words too
        assert store.contexts.window(1, 3, 2).tokens == (" The", " capital", " of", " France", " is")
        assert set(fm.neurons.search(store, " Paris").neurons["token"]) == {" Paris"}
    (shaded,) = store.shaded([store.neuron(0, int(store.stats(0)["max"].idxmax()), kind="top")])
    tables = [block for block in shaded.sheet(1).blocks if isinstance(block, Table)]
    shown = [cell for table in tables for row in table.rows for cell in row if isinstance(cell, Context)]
    for one in shown:
        assert one.shades is not None
        around = ["".join(shade.text for shade in some) for some in (one.shades.before, one.shades.after)]
        assert any(
            (around[0] + one.token + around[1]).strip() in whole
            for whole in (text, "The capital of France is in Paris")
        )
    assert shown


# -- shades ----------------------------------------------------------------------------------------------------------


def what_the_model_computes(model: fm.Model, store: Store, layer: int, sequence: int) -> torch.Tensor:
    """``[pos, d_mlp]``, by hooks in the model's own pass over one sequence alone, BOS left out."""
    found: dict[int, torch.Tensor] = {}
    tokens = torch.from_numpy(store.sequences.sequence_tokens(sequence)).unsqueeze(0)
    with listening([(model.ffn[layer].project_out, keeper(found, layer, lambda m: m.flatten(0, -2)))]), torch.no_grad():
        model.body(tokens)
    return found[layer][store.sequences.lead :]


def test_every_token_has_the_coefficient_that_the_model_computes(
    tiny: fm.Model, tiny_store: Store, gated: fm.Model, gated_store: Store
) -> None:
    """Shades would be of another layer, neuron or token; a gated coefficient is act(gate) times the linear part."""
    for model, store in ((tiny, tiny_store), (gated, gated_store)):
        agree(model, store)


def agree(model: fm.Model, store: Store) -> None:
    for place in ((0, 18), (model.n_layers - 1, 17)):
        one = store.neuron(*place, kind=(*CASES, "quantile") if model.gated else None, shade=True)
        assert one.passages
        for sequence, passage in one.passages.items():
            expected = what_the_model_computes(model, store, one.layer, sequence)[:, one.neuron]
            assert passage.coefficients.dtype == np.float32
            assert allclose(passage.coefficients, expected, 1e-6 * max(one.largest, 1.0))
            assert passage.first == store.sequences.lead
            assert len(passage.tokens) == len(passage.coefficients)
            if model.gated:
                gate, linear = (torch.from_numpy(part) for part in (passage.gate, passage.linear))
                product = activation(model.ffn[one.layer].activation)(gate) * linear
                assert allclose(passage.coefficients, product, 1e-6)
        for window, found, example in zip(one.windows, one.coefficients, one.examples.itertuples(), strict=True):
            if found is not None:
                assert len(found) == len(window.tokens)
                assert found[window.at] == pytest.approx(example.coefficient, abs=1e-5)
                passage = one.passages[example.sequence]
                start = example.position - passage.first - window.at
                assert "".join(passage.tokens[start : start + len(window.tokens)]) == window.text


def test_each_sequence_that_cards_show_is_read_once_and_no_deeper_than_needed(
    tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of many neurons would take the time of many pages; a store keeps more examples than a card shows."""
    runs: list[tuple[int, int]] = []
    run = LayerPass.run

    def counted(self: LayerPass, tokens: torch.Tensor, *hooks: Any, until: int, **more: Any) -> None:
        runs.append((until, len(tokens)))
        run(self, tokens, *hooks, until=until, **more)

    monkeypatch.setattr(LayerPass, "run", counted)
    told: list[tuple[str, int, int]] = []
    some = [tiny_store.neuron(*place) for place in ((0, 3), (0, 9), (1, 5))]
    assert all(one.passages == {} and set(one.coefficients) == {None} for one in some)
    found = tiny_store.shaded(some, listed=1, progress=lambda *now: told.append(now))
    for plain, one in zip(some, found, strict=True):
        wanted = {example.sequence for example in shown_examples(plain, 1)}
        assert set(one.passages) == wanted < set(plain.examples["sequence"])
        assert [part is not None for part in one.coefficients] == one.examples["sequence"].isin(wanted).tolist()
    deep = set(found[2].passages)
    shallow = {n for one in found[:2] for n in one.passages} - deep
    for layer, wanted in ((0, shallow), (1, deep)):
        assert sum(rows for until, rows in runs if until == layer) == len(wanted)
    total = sum(tiny_store.sequences.locate(n)[2] for n in shallow | deep)
    assert told[-1] == ("shade", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    for one, alone in zip(found, some, strict=True):
        for sequence, passage in tiny_store.shaded([alone], listed=1)[0].passages.items():
            assert np.allclose(passage.coefficients, one.passages[sequence].coefficients, atol=1e-6)


def test_other_weights_are_refused(tmp_path: Path, make_tiny: Callable[..., fm.Model], tiny_store: Store) -> None:
    """Shades of one model would stand around coefficients of another; rounding is none."""
    model = make_tiny()
    store = scan(model, tiny_texts(), tmp_path / "store", k=3, sample=8, draws=4, frequent=8)
    one = store.neuron(1, 5)
    fingerprint = store.fingerprint
    model.ffn[1].keys.data.mul_(1.05)  # which nobody notices, by the docstring of the fingerprint
    assert model.fingerprint == fingerprint
    with refuses(ModelError, ValueError, "1.5", str(store.folder), "sequence", "as it was scanned"):
        store.shaded([one])
    one = tiny_store.neuron(1, 5)
    allowed = shading.TOLERANCE * max(one.largest, 1.0)
    near, far = (
        replace(one, examples=one.examples.assign(coefficient=one.examples["coefficient"] + share * allowed))
        for share in (0.5, 2.0)
    )
    assert tiny_store.shaded([near])[0].passages
    with refuses(ModelError, ValueError, "rounding"):
        tiny_store.shaded([far])


def test_without_the_model_or_under_an_intervention(tiny: fm.Model, tiny_store: Store) -> None:
    """A card as it is would look as if all tokens but one had no coefficient."""
    store = open_store(tiny_store.folder)
    with refuses(ModelError, ValueError, "every token", store.model, "model=", "--model"):
        store.neuron(1, 5, shade=True)
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
