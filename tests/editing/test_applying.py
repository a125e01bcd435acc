"""Edits in weights and out again, bit for bit, in whatever order; what is refused changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError
from ffnmem.editing import Edit, EditedLayer, ledger
from ffnmem.editing.edit import with_edit
from ffnmem.editing.ledger import MANY

from ..helpers import ARCHITECTURES, allclose, refuses
from .edits import change, logits, made, same_bits, weights

TOKENS = torch.tensor([[0, 50, 120, 7, 8]])
Make = Callable[..., fm.Model]


@pytest.fixture(params=["gpt2", "gpt2 untied", "gpt-neox parallel", "opt"])
def fresh(request: pytest.FixtureRequest, tokenizer: Any) -> Make:
    """Conv1D and Linear, tied and not, with and without another path beside the FFN."""
    hf = ARCHITECTURES[request.param]()
    return lambda **options: fm.load(hf, tokenizer=tokenizer, **options)


@contextmanager
def unchanged(model: fm.Model) -> Iterator[None]:
    """The block leaves every bit and the ledger as they were."""
    before, edits = weights(model), list(model.edits)
    yield
    assert same_bits(model, before)
    assert list(model.edits) == edits


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_applied_and_reverted(fresh: Make, dtype: str) -> None:
    """A transposed change, one in a copy of the weights, a revert by subtraction, one that leaves another bit."""
    model = fresh(dtype=dtype)
    pristine, fingerprint = weights(model), model.fingerprint
    edit = made(model, (0, 1))
    values = [ffn.values.detach().clone() for ffn in model.ffn]
    with edit.applied(model) as same:
        assert same is model
        assert list(model.edits) == [edit]
        for ffn, old, layer_change in zip(model.ffn, values, edit.changes, strict=True):
            assert torch.equal(ffn.values, (old.double() + layer_change.delta()).to(model.dtype))
        touched = [name for name, old in pristine.items() if not torch.equal(weights(model)[name], old)]
        assert len(touched) == 2
        assert model.fingerprint != fingerprint
    assert same_bits(model, pristine)
    assert model.fingerprint == fingerprint
    assert len(model.edits) == 0


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_out_of_order(make_tiny: Make, order: tuple[int, ...]) -> None:
    """Whatever goes out first, what stays is what applying the others alone gives, to the last bit."""
    model = make_tiny()
    pristine = weights(model)
    edits = [made(model, layers, seed=seed) for seed, layers in enumerate([(1,), (0, 1), (0,)])]
    for edit in edits:
        edit.apply(model)
    left = list(edits)
    for place in order:
        edits[place].revert(model)
        left.remove(edits[place])
        other = make_tiny()
        for edit in left:
            edit.apply(other)
        assert same_bits(model, weights(other))
        assert model.fingerprint == other.fingerprint
        assert list(model.edits) == left
    assert same_bits(model, pristine)


def test_many_edits_are_summed_as_few_are(make_tiny: Make) -> None:
    """Sums that are kept for the next edit, and are not those of the edits that stay, or of a layer that one left."""
    model = make_tiny(dtype="float32")
    edits = [made(model, ((0,), (0, 1), (1,))[i % 3], seed=i) for i in range(MANY + 4)]
    values = [ffn.values.detach().clone().double() for ffn in model.ffn]
    for edit in edits:
        edit.apply(model)
    for gone in (edits[3], edits[-1], edits[0]):
        gone.revert(model)
        for layer in range(model.n_layers):
            total = values[layer]
            for one in (c for edit in model.edits for c in edit.changes if c.layer == layer):
                total = total + one.delta()
            assert torch.equal(model.ffn[layer].values, total.float())
    edits[3].apply(model)
    assert list(model.edits)[-1] is edits[3]
    expected = sum((c.delta() for edit in model.edits for c in edit.changes if c.layer == 1), values[1])
    assert allclose(model.ffn[1].values.double(), expected, 1e-6)


def test_reverted_however_a_block_ends(make_tiny: Make, tmp_path: Path) -> None:
    """By an exception, by the block itself, by its like from a file, or where torch counts changes in another way."""
    model = make_tiny()
    pristine, edit, fingerprint = weights(model), made(model, (0, 1)), model.fingerprint
    clean = logits(model, TOKENS)
    with pytest.raises(ZeroDivisionError), edit.applied(model):
        raise ZeroDivisionError
    assert same_bits(model, pristine)
    with edit.applied(model):
        edit.revert(model)
    assert same_bits(model, pristine)
    edit.apply(model)
    loaded(edit, tmp_path).revert(model)
    assert same_bits(model, pristine)
    with torch.inference_mode(), edit.applied(model):
        assert not torch.equal(logits(model, TOKENS), clean)
        assert model.fingerprint != fingerprint
    assert same_bits(model, pristine)
    assert model.fingerprint == fingerprint


def test_made_on_top_of_another(make_tiny: Make) -> None:
    """A sequence of edits: each is made for the model that has those before it."""
    model = make_tiny()
    pristine, first, pristine_values = weights(model), made(model), model.ffn[1].values.detach().double()
    first.apply(model)
    second = made(model, seed=1)
    second.apply(model)
    first.revert(model)
    assert torch.equal(model.ffn[1].values, (pristine_values + second.changes[0].delta()).to(model.dtype))
    second.revert(model)
    assert same_bits(model, pristine)
    with refuses(ModelError, ValueError, second.fingerprint, model.fingerprint), unchanged(model):
        second.apply(model)


def test_a_capture_from_before_notices(make_tiny: Make) -> None:
    """Attribution of old numbers with new values would be wrong without a word."""
    model = make_tiny()
    old = fm.capture(model, TOKENS)
    with made(model).applied(model):
        with refuses(InputError, ValueError, "weights have changed"):
            fm.attribute(old)
        assert fm.attribute(fm.capture(model, TOKENS)).error < 1e-4
    assert fm.attribute(old).error < 1e-4


def test_the_fingerprint_after_is_not_taken_on_trust(make_tiny: Make) -> None:
    """Reverting gives the values back, not what somebody else changed elsewhere meanwhile."""
    model = make_tiny()
    fingerprint, edit = model.fingerprint, made(model)
    edit.apply(model)
    with torch.no_grad():
        model.ffn[0].keys[0] += 1
    edit.revert(model)
    assert model.fingerprint != fingerprint


def test_with_edit(make_tiny: Make) -> None:
    """A look at the model with or without an edit must put back the others in their order, bit for bit."""
    model = make_tiny()
    pristine = weights(model)
    edits = [made(model, seed=seed) for seed in range(3)]
    with with_edit(edits[0], model, present=False):
        assert same_bits(model, pristine)
    for edit in edits:
        edit.apply(model)
    assert list(model.edits[:1]) == edits[:1]
    assert "Eiffel Tower → Rome" in repr(model.edits)
    before = weights(model)
    for edit in edits:
        with with_edit(edit, model, present=False):
            assert list(model.edits) == [e for e in edits if e is not edit]
        with with_edit(edit, model):
            assert same_bits(model, before)
        assert same_bits(model, before)
        assert list(model.edits) == edits


def loaded(edit: Edit, folder: Path) -> Edit:
    """The same edit by way of a file."""
    return Edit.load(edit.save(folder / "edit.zip"))


def test_refuses_twice_and_never(make_tiny: Make, tmp_path: Path) -> None:
    model = make_tiny()
    first, second = made(model), made(model, seed=1)
    with refuses(InputError, ValueError, "Eiffel Tower", "not applied"), unchanged(model):
        first.revert(model)
    first.apply(model)
    for again in (first, loaded(first, tmp_path)):
        with refuses(InputError, ValueError, "already"), unchanged(model):
            again.apply(model)
    with refuses(InputError, ValueError, "a part of it", "already"), unchanged(model):
        (first + second).apply(model)
    first.revert(model)
    with (first + second).applied(model):
        with refuses(InputError, ValueError, "by itself"), unchanged(model):
            first.revert(model)
        with refuses(InputError, ValueError, "already"), unchanged(model):
            second.apply(model)


def test_refuses_another_model(make_tiny: Make, atlas: fm.Model) -> None:
    model = make_tiny()
    edit = made(model)
    other = make_tiny()
    with torch.no_grad():
        other.ffn[0].keys[0, 0] += 1
    with refuses(ModelError, ValueError, edit.fingerprint, other.fingerprint), unchanged(other):
        edit.apply(other)
    with refuses(ModelError, ValueError, edit.fingerprint), unchanged(model):
        edit.apply(make_tiny(dtype="bfloat16"))
    with refuses(ModelError, ValueError, "layer 1 of atlas"):
        edit.apply(atlas)


def test_refuses_values_that_somebody_changed(make_tiny: Make) -> None:
    """To revert then would throw away what they did, and to apply would hide it."""
    model = make_tiny()
    edit, other = made(model), made(model, (0,), seed=1)
    edit.apply(model)
    kept = model.ffn[1].values.detach().clone()
    with torch.no_grad():
        model.ffn[1].values.data[3, 3] += 1  # which not even torch counts
    for act in (edit.revert, other.apply):
        with refuses(InputError, ValueError, "layer 1", "something else"), unchanged(model):
            act(model)
    with torch.no_grad():
        model.ffn[1].values.copy_(kept)
    edit.revert(model)


def test_refuses_to_build_on_weights_that_somebody_changed(make_tiny: Make) -> None:
    """Of any other weight: the second edit was made for other ones."""
    model = make_tiny()
    edit, other = made(model), made(model, (0,), seed=1)
    edit.apply(model)
    with torch.no_grad():
        model.embedding[0] += 1
    with refuses(InputError, ValueError, "something else"), unchanged(model):
        other.apply(model)
    edit.revert(model)
    with refuses(ModelError, ValueError, other.fingerprint), unchanged(model):
        other.apply(model)


def test_refuses_what_the_dtype_cannot_hold(make_tiny: Make) -> None:
    model = make_tiny(dtype="float16")
    edit = Edit.of(
        model, [change(model, 0), EditedLayer(1, torch.full((1, 64), 1e6), torch.ones(1, 16))], method="ft_l"
    )
    with refuses(InputError, ValueError, "layer 1", "float16"), unchanged(model):
        edit.apply(model)


def test_an_interrupt_between_two_layers(make_tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an edit in the weights that no ledger knows of."""
    model = make_tiny()
    edit, write, calls = made(model, (0, 1)), ledger.write_values, []

    def halfway(model: fm.Model, values: dict[int, torch.Tensor]) -> None:
        calls.append(values)
        if len(calls) > 1:
            write(model, values)
            return
        write(model, {0: values[0]})
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "write_values", halfway)
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        edit.apply(model)
    assert len(calls) == 2
