"""Different edits for different rows of a batch, and edits as hooks, against each edit in the weights by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError, UnsupportedModelError
from ffnmem.editing import Edit
from ffnmem.editing.edit import row_changes
from ffnmem.models.answers import Question, answer, generate, padded
from ffnmem.models.replaying import PlainLayers, Replay

from ..helpers import Pair, allclose, hook_count, refuses
from .edits import logits, made

PROMPTS = [[3, 50, 120, 7, 8, 200, 33], [3, 11, 60, 41], [3, 77, 12, 150, 99, 32]]
ROWS = [1, -1, 0]


def edits_of(model: fm.Model) -> list[Edit]:
    """Of other ranks, in other layers."""
    return [made(model, (1,)), made(model, (0, 1), rank=2, seed=1), made(model, (0,), seed=2)]


@pytest.mark.parametrize("rows", [ROWS, [2, 2, 2], [-1, -1, -1]])
def test_each_row_has_its_own(pair64: Pair, rows: list[int]) -> None:
    """Another row's edit, another layer's factors, padded ranks that are not zero, a row that should have none."""
    model, edits = pair64.model, edits_of(pair64.model)
    change = row_changes(model, edits, torch.tensor(rows))
    tokens, mask = padded(PROMPTS, model.device)
    replay = Replay(PlainLayers(pair64.model), tokens, mask)
    assert change.lowest == 0
    with torch.no_grad():
        found = replay.finish([-1] * 3, replay.stream[0], last=2, change=change)
        if rows[0] == -1:
            assert allclose(found, replay.stream[model.n_layers][:, -2:], pair64.exact())
    for i, row in enumerate(rows):
        if row == -1:
            expected = fm.capture(model, torch.tensor([PROMPTS[i]]))
        else:
            with edits[row].applied(model):
                expected = fm.capture(model, torch.tensor([PROMPTS[i]]))
        assert expected.residual is not None
        assert allclose(found[i], expected.residual.final_in[0, -2:], pair64.exact())


def test_questions_have_their_own(pair64: Pair) -> None:
    """Questions are sorted and packed into batches: an edit must follow its question."""
    model, edits = pair64.model, edits_of(pair64.model)
    questions = [Question(tuple(p), ((9, 5), (40, 41))) for p in [*PROMPTS, *PROMPTS[::-1]]]
    rows = [1, -1, 0, 0, 1, 2]
    change = row_changes(model, edits, rows)
    layers = PlainLayers(pair64.model)
    clean, changed = answer(layers, questions, change.changing, start=change.lowest, batch_tokens=12)
    for row, before, after, question in zip(rows, clean, changed, questions, strict=True):
        if row == -1:
            expected = before
        else:
            with edits[row].applied(model):
                expected = answer(layers, [question])[0][0]
        for one, other in zip(after.log_probabilities, expected.log_probabilities, strict=True):
            assert allclose(one, other, 1e-5)  # they are taken in float32


def test_bfloat16(make_tiny: Callable[..., fm.Model]) -> None:
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


def test_refusals(tiny: fm.Model, make_tiny: Callable[..., fm.Model]) -> None:
    edits = edits_of(tiny)
    with refuses(OutOfRangeError, IndexError, "3", "0 to 2"):
        row_changes(tiny, edits, [0, 3])
    with refuses(OutOfRangeError, IndexError, "-2"):
        row_changes(tiny, edits, [-2])
    with refuses(InputError, ValueError, "no edits"):
        row_changes(tiny, [], [])
    half = make_tiny(dtype="bfloat16")
    other = made(half)
    with refuses(InputError, ValueError, edits[0].fingerprint, other.fingerprint):
        row_changes(tiny, [edits[0], other], [0, 1])
    with refuses(ModelError, ValueError, other.fingerprint):
        row_changes(half, edits[:1], [0])  # which would run over other weights without a word
    with refuses(InputError, ValueError, "3 rows", "2"):
        row_changes(tiny, edits, [0, 1])(0, "ffn", 0, torch.zeros(3, 1, tiny.d_model), torch.zeros(3, 1, tiny.d_mlp))


def test_hooks_are_the_edit(pair64: Pair) -> None:
    """In every pass, over flattened batches too, the weights untouched and nothing left behind."""
    model, tokens = pair64.model, torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    edit = edits_of(model)[1]
    clean, before, hooks = logits(model, tokens), model.fingerprint, hook_count(model.hf_model)
    with edit.applied(model):
        expected = logits(model, tokens)
    with edit.hooks(model) as same:
        assert same is model
        assert allclose(logits(model, tokens), expected, 1e-11)
        assert model.fingerprint == before
    assert torch.equal(logits(model, tokens), clean)
    assert hook_count(model.hf_model) == hooks


def test_hooks_under_generation(tiny: fm.Model) -> None:
    """Steps after the first, with a cache, must have it too."""
    edit = made(tiny, (0, 1), size=3.0)
    with edit.applied(tiny):
        expected = generate(tiny, [0, 50, 120], 6)
    with edit.hooks(tiny):
        assert generate(tiny, [0, 50, 120], 6) == expected


def test_hooks_are_not_silent(tiny: fm.Model) -> None:
    """What runs the layers by themselves would not see them, and results would not say that they were there."""
    edit = made(tiny)
    with edit.hooks(tiny):
        assert edit.digest in dict(tiny.provenance().settings)["interventions"]
        with refuses(UnsupportedModelError, ValueError, edit.digest):
            PlainLayers(tiny)
    assert tiny.interventions == ()


def test_hooks_refuse_another_model(tiny: fm.Model, make_tiny: Callable[..., fm.Model]) -> None:
    other = make_tiny(dtype="bfloat16")
    before = hook_count(other.to_bridge())
    with refuses(ModelError, ValueError, other.fingerprint), made(tiny).hooks(other):
        pass
    assert hook_count(other.to_bridge()) == before


def test_an_edit_does_not_act_twice(tiny: fm.Model) -> None:
    """In the weights and as hooks, or as hooks of two blocks, it would be added twice, and nothing would say so."""
    edit = made(tiny)
    both = edit + made(tiny, seed=3)
    with edit.hooks(tiny):
        for other in (edit, both):
            with refuses(InputError, ValueError, "hooks", "already"), other.hooks(tiny):
                pass
            with refuses(InputError, ValueError, "hooks", "already"):
                other.apply(tiny)
        with refuses(InputError, ValueError, "hooks", "already"):
            edit.diff(tiny, "The city of Paris is")
        with made(tiny, seed=3).hooks(tiny):
            assert len(tiny.interventions) == 2
    with edit.applied(tiny), refuses(InputError, ValueError, "applied", "already"), both.hooks(tiny):
        pass
    assert not tiny.interventions
