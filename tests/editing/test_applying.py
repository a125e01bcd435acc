"""Edits in weights and out again, bit for bit, in whatever order; as hooks, and one for each row of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError, UnsupportedModelError
from ffnmem.editing import Edit, EditedLayer, ledger
from ffnmem.editing.edit import row_changes, with_edit
from ffnmem.editing.ledger import MANY
from ffnmem.models.answers import Question, answer, generate, padded
from ffnmem.models.replaying import PlainLayers, Replay

from ..helpers import ARCHITECTURES, Pair, allclose, hook_count, refuses
from .edits import change, logits, made, same_bits, weights

TOKENS = torch.tensor([[0, 50, 120, 7, 8]])
Make = Callable[..., fm.Model]


@contextmanager
def unchanged(model: fm.Model) -> Iterator[None]:
    """The block leaves every bit and the ledger as they were."""
    before, edits = weights(model), list(model.edits)
    yield
    assert same_bits(model, before)
    assert list(model.edits) == edits


def values_of(model: fm.Model) -> list[Tensor]:
    return [ffn.values.detach().double().clone() for ffn in model.ffn]


def check_values(model: fm.Model, values: Sequence[Tensor], edits: Sequence[Edit]) -> None:
    """The pristine values and each edit's change, added up in float64 in their order and rounded once."""
    assert list(model.edits) == list(edits)
    for layer, total in enumerate(values):
        for one in (one for edit in edits for one in edit.changes if one.layer == layer):
            total = total + one.delta()
        assert torch.equal(model.ffn[layer].values, total.to(model.dtype))


@pytest.mark.parametrize("kind", ["gpt2", "gpt2 untied", "gpt-neox parallel", "opt"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_applied_and_reverted(tokenizer: Any, kind: str, dtype: str) -> None:
    """A transposed change, one in a copy of the weights, a revert by subtraction, one that leaves another bit."""
    model = fm.load(ARCHITECTURES[kind](), tokenizer=tokenizer, dtype=dtype)
    pristine, values, fingerprint = weights(model), values_of(model), model.fingerprint
    edit = made(model, (0, 1))
    with edit.applied(model) as same:
        assert same is model
        check_values(model, values, [edit])
        assert sum(not torch.equal(weights(model)[name], old) for name, old in pristine.items()) == 2
        assert model.fingerprint != fingerprint
    assert same_bits(model, pristine)
    assert model.fingerprint == fingerprint
    assert len(model.edits) == 0


@pytest.mark.parametrize("count", [3, MANY + 4])
def test_what_stays_is_what_the_others_alone_give(make_tiny: Make, count: int) -> None:
    """Whatever goes out first, to the last bit; sums that are kept for many edits must not be those of others."""
    model = make_tiny()
    pristine, values = weights(model), values_of(model)
    edits = [made(model, ((1,), (0, 1), (0,))[i % 3], seed=i) for i in range(count)]
    fingerprints: dict[tuple[str, ...], str] = {}
    for order in permutations([0, 1, 2]) if count == 3 else [(3, count - 1, 0)]:
        left = list(edits)
        for edit in edits:
            edit.apply(model)
        for place in order:
            edits[place].revert(model)
            left.remove(edits[place])
            check_values(model, values, left)
            held = tuple(edit.digest for edit in left)
            assert model.fingerprint == fingerprints.setdefault(held, model.fingerprint)
        edits[order[0]].apply(model)
        check_values(model, values, [*left, edits[order[0]]])
        for edit in list(model.edits):
            edit.revert(model)
        assert same_bits(model, pristine)


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
    Edit.load(edit.save(tmp_path / "edit.zip")).revert(model)
    assert same_bits(model, pristine)
    with torch.inference_mode(), edit.applied(model):
        assert not torch.equal(logits(model, TOKENS), clean)
        assert model.fingerprint != fingerprint
    assert same_bits(model, pristine)
    assert model.fingerprint == fingerprint


def test_with_edit(make_tiny: Make) -> None:
    """A look at the model with or without an edit must put back the others in their order, bit for bit."""
    model = make_tiny()
    pristine, edits = weights(model), [made(model, seed=seed) for seed in range(3)]
    with with_edit(edits[0], model, present=False):
        assert same_bits(model, pristine)
    for edit in edits:
        edit.apply(model)
    before = weights(model)
    for edit in edits:
        with with_edit(edit, model, present=False):
            assert list(model.edits) == [e for e in edits if e is not edit]
        with with_edit(edit, model):
            assert same_bits(model, before)
        assert same_bits(model, before)
        assert list(model.edits) == edits


# -- what is refused changes nothing -----------------------------------------------------------------------------------


def test_refuses_twice_and_never(make_tiny: Make, tmp_path: Path) -> None:
    model = make_tiny()
    first, second = made(model), made(model, seed=1)
    with refuses(InputError, ValueError, "Eiffel Tower", "not applied"), unchanged(model):
        first.revert(model)
    first.apply(model)
    for again in (first, Edit.load(first.save(tmp_path / "edit.zip")), first + second):
        with refuses(InputError, ValueError, "already"), unchanged(model):
            again.apply(model)
    first.revert(model)
    with (first + second).applied(model):
        with refuses(InputError, ValueError, "by itself"), unchanged(model):
            first.revert(model)
        with refuses(InputError, ValueError, "already"), unchanged(model):
            second.apply(model)


def test_refuses_another_model(make_tiny: Make, atlas: fm.Model) -> None:
    edit, half, other = made(make_tiny()), make_tiny(dtype="bfloat16"), make_tiny()
    with torch.no_grad():
        other.ffn[0].keys[0, 0] += 1
    for model, named in ((other, other.fingerprint), (half, edit.fingerprint), (atlas, "layer 1 of atlas")):
        with refuses(ModelError, ValueError, named), unchanged(model):
            edit.apply(model)


def test_refuses_what_the_dtype_cannot_hold(make_tiny: Make) -> None:
    model = make_tiny(dtype="float16")
    large = EditedLayer(1, torch.full((1, 64), 1e6), torch.ones(1, 16))
    edit = Edit.of(model, [change(model, 0), large], method="ft_l")
    with refuses(InputError, ValueError, "layer 1", "float16"), unchanged(model):
        edit.apply(model)


def test_refuses_weights_that_somebody_changed(make_tiny: Make) -> None:
    """To revert then would throw away what they did, and to apply would hide it, or build on other weights."""
    model = make_tiny()
    edit, other, fingerprint = made(model), made(model, (0,), seed=1), model.fingerprint
    edit.apply(model)
    kept = model.ffn[1].values.detach().clone()
    with torch.no_grad():
        model.ffn[1].values.data[3, 3] += 1  # which not even torch counts
    for act in (edit.revert, other.apply):
        with refuses(InputError, ValueError, "layer 1", "something else"), unchanged(model):
            act(model)
    with torch.no_grad():
        model.ffn[1].values.copy_(kept)
        model.embedding[0] += 1
    with refuses(InputError, ValueError, "something else"), unchanged(model):
        other.apply(model)
    edit.revert(model)
    assert model.fingerprint != fingerprint  # which is not taken on trust
    with refuses(ModelError, ValueError, other.fingerprint), unchanged(model):
        other.apply(model)


def test_an_interrupt_between_two_layers(make_tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an edit in the weights that no ledger knows of."""
    model = make_tiny()
    edit, write, calls = made(model, (0, 1)), ledger.write_values, []

    def halfway(model: fm.Model, values: dict[int, Tensor]) -> None:
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


# -- one for each row --------------------------------------------------------------------------------------------------

PROMPTS = [[3, 50, 120, 7, 8, 200, 33], [3, 11, 60, 41], [3, 77, 12, 150, 99, 32]]


def edits_of(model: fm.Model) -> list[Edit]:
    """Of other ranks, in other layers."""
    return [made(model, (1,)), made(model, (0, 1), rank=2, seed=1), made(model, (0,), seed=2)]


@contextmanager
def holding(model: fm.Model, edits: Sequence[Edit], row: int) -> Iterator[None]:
    """A model with one of some edits in its weights, or with none."""
    if row == -1:
        yield
    else:
        with edits[row].applied(model):
            yield


@pytest.mark.parametrize("rows", [[1, -1, 0], [2, 2, 2], [-1, -1, -1]])
def test_each_row_has_its_own(pair64: Pair, rows: list[int]) -> None:
    """Another row's edit, another layer's factors, padded ranks that are not zero, a row that should have none."""
    model, edits = pair64.model, edits_of(pair64.model)
    row_change = row_changes(model, edits, torch.tensor(rows))
    replay = Replay(PlainLayers(model), *padded(PROMPTS, model.device))
    assert row_change.lowest == 0
    with torch.no_grad():
        found = replay.finish([-1] * 3, replay.stream[0], last=2, change=row_change)
    for i, row in enumerate(rows):
        with holding(model, edits, row):
            expected = fm.capture(model, torch.tensor([PROMPTS[i]])).residual
        assert expected is not None
        assert allclose(found[i], expected.final_in[0, -2:], pair64.exact())


def test_questions_have_their_own(pair64: Pair) -> None:
    """Questions are sorted and packed into batches: an edit must follow its question."""
    model, edits, rows = pair64.model, edits_of(pair64.model), [1, -1, 0, 0, 1, 2]
    questions = [Question(tuple(p), ((9, 5), (40, 41))) for p in [*PROMPTS, *PROMPTS[::-1]]]
    row_change, layers = row_changes(model, edits, rows), PlainLayers(model)
    _, changed = answer(layers, questions, row_change.changing, start=row_change.lowest, batch_tokens=12)
    for row, after, question in zip(rows, changed, questions, strict=True):
        with holding(model, edits, row):
            expected = answer(layers, [question])[0][0]
        for one, other in zip(after.log_probabilities, expected.log_probabilities, strict=True):
            assert allclose(one, other, 1e-5)  # they are taken in float32


def test_rows_in_bfloat16(make_tiny: Make) -> None:
    """Factors rounded to eight bits before they are used would be another edit."""
    model = make_tiny(dtype="bfloat16")
    edit = made(model, (0,))
    m = torch.randn(2, 3, model.d_mlp, generator=torch.Generator().manual_seed(0)).bfloat16()
    written = torch.zeros(2, 3, model.d_model, dtype=torch.bfloat16)
    found = row_changes(model, [edit], [0, -1])(0, "ffn", 0, written, m)
    assert found.dtype == torch.bfloat16
    expected = (m[0].double() @ edit.changes[0].left.T) @ edit.changes[0].right
    assert allclose(found[0], expected, 2**-8)
    assert torch.equal(found[1], written[1])


def test_rows_refused(tiny: fm.Model, make_tiny: Make) -> None:
    edits, half = edits_of(tiny), make_tiny(dtype="bfloat16")
    other = made(half)
    stream, m = torch.zeros(3, 1, tiny.d_model), torch.zeros(3, 1, tiny.d_mlp)
    refused: tuple[tuple[type[Exception], type[Exception], Callable[[], object], tuple[str, ...]], ...] = (
        (OutOfRangeError, IndexError, lambda: row_changes(tiny, edits, [0, 3]), ("3", "0 to 2")),
        (OutOfRangeError, IndexError, lambda: row_changes(tiny, edits, [-2]), ("-2",)),
        (InputError, ValueError, lambda: row_changes(tiny, [], []), ("no edits",)),
        (InputError, ValueError, lambda: row_changes(tiny, [edits[0], other], [0, 1]), (other.fingerprint,)),
        (ModelError, ValueError, lambda: row_changes(half, edits[:1], [0]), (other.fingerprint,)),
        (InputError, ValueError, lambda: row_changes(tiny, edits, [0, 1])(0, "ffn", 0, stream, m), ("3 rows", "2")),
    )
    for kind, builtin, call, named in refused:
        with refuses(kind, builtin, *named):
            call()


# -- as hooks ----------------------------------------------------------------------------------------------------------


def test_hooks_are_the_edit(pair64: Pair) -> None:
    """In every pass, over flattened batches and with a cache too, the weights untouched and nothing left behind."""
    model, tokens = pair64.model, torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    edit = edits_of(model)[1]
    clean, before, hooks = logits(model, tokens), model.fingerprint, hook_count(model.hf_model)
    with edit.applied(model):
        expected, written = logits(model, tokens), generate(model, [0, 50, 120], 6)
    with edit.hooks(model) as same:
        assert same is model
        assert allclose(logits(model, tokens), expected, 1e-11)
        assert generate(model, [0, 50, 120], 6) == written
        assert model.fingerprint == before
        # What runs the layers by themselves would not see them, and results must say that they were there.
        assert edit.digest in dict(model.provenance().settings)["interventions"]
        with refuses(UnsupportedModelError, ValueError, edit.digest):
            PlainLayers(model)
    assert torch.equal(logits(model, tokens), clean)
    assert hook_count(model.hf_model) == hooks
    assert model.interventions == ()


def test_hooks_refused(tiny: fm.Model, make_tiny: Make) -> None:
    """On another model, or where the edit acts already: it would be added twice, and nothing would say so."""
    edit, other = made(tiny), make_tiny(dtype="bfloat16")
    both, before = edit + made(tiny, seed=3), hook_count(other.hf_model)
    with refuses(ModelError, ValueError, other.fingerprint), edit.hooks(other):
        pass
    assert hook_count(other.hf_model) == before
    with edit.hooks(tiny):
        for again in (edit, both):
            with refuses(InputError, ValueError, "hooks", "already"), again.hooks(tiny):
                pass
            with refuses(InputError, ValueError, "hooks", "already"):
                again.apply(tiny)
        with refuses(InputError, ValueError, "hooks", "already"):
            edit.diff(tiny, "The city of Paris is")
        with made(tiny, seed=3).hooks(tiny):
            assert len(tiny.interventions) == 2
    with edit.applied(tiny), refuses(InputError, ValueError, "applied", "already"), both.hooks(tiny):
        pass
    assert not tiny.interventions
