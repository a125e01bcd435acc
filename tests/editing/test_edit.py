"""The edit as an object: its algebra, what it refuses to be made of, and what it shows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError
from ffnmem.editing import Edit, EditedLayer
from ffnmem.facts import Fact

from ..helpers import allclose, refuses
from .edits import COLOSSEUM, EIFFEL, change, made, same_bits, weights


@pytest.mark.parametrize("rank", [1, 5])
def test_norm_without_the_matrix(tiny: fm.Model, rank: int) -> None:
    """A norm of the factors instead of their product, or cross terms left out."""
    found = change(tiny, 0, rank)
    assert allclose(found.norm, found.delta().norm(), 1e-12)
    assert found.delta().shape == (tiny.d_mlp, tiny.d_model)
    assert found.rank == rank


def test_orientation(tiny: fm.Model) -> None:
    """The FFN must write (m leftᵀ) right more: a transposed change would fit a square layer and be another edit."""
    found = change(tiny, 0, 3)
    m = torch.randn(4, tiny.d_mlp, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert allclose(m @ found.delta(), (m @ found.left.T) @ found.right, 1e-12)


def test_factors_are_copies_in_float64(tiny: fm.Model) -> None:
    """Factors that alias the editor's tensors would change after the edit was made."""
    left, right = torch.ones(1, tiny.d_mlp), torch.ones(1, tiny.d_model, dtype=torch.float64)
    found = EditedLayer(0, left, right)
    right.zero_()
    assert found.left.dtype == found.right.dtype == torch.float64
    assert bool((found.right == 1).all())


def test_what_it_is(tiny: fm.Model) -> None:
    edit = made(tiny, (1, 0))
    assert edit.layers == (0, 1)
    assert edit.rank == 2
    assert edit.fingerprint == tiny.fingerprint == edit.provenance.fingerprint
    assert edit.parts == (edit.digest,)
    assert edit.under == ()
    assert allclose(edit.norm**2, sum(c.delta().square().sum() for c in edit.changes), 1e-12)
    assert edit.title == "rome: Eiffel Tower → Rome"
    assert "\n" not in repr(edit)
    with pytest.raises(dataclasses.FrozenInstanceError):
        edit.method = "memit"  # type: ignore[misc]


def test_digest_tells_edits_apart(tiny: fm.Model) -> None:
    """Two edits with one digest could not be told apart in a model."""
    assert made(tiny).digest == made(tiny, clamp=9.0).digest
    others = [made(tiny, seed=1), made(tiny, (0,)), made(tiny, rank=2), made(tiny, (0, 1))]
    assert len({edit.digest for edit in [made(tiny), *others]}) == 5


def test_tables_and_json(tiny: fm.Model) -> None:
    """A number that is lost, or one that JSON does not hold."""
    edit = made(tiny)
    frame = edit.to_frame()
    assert list(frame.columns) == [
        "fact",
        "subject",
        "prompt",
        "target_true",
        "target",
        "k_u",
        "steps",
        "stopped",
        "loss",
    ]
    assert frame.loc[0, "target"] == "Rome"
    assert frame.loc[0, "k_u"] == 0.7
    record = json.loads(json.dumps(edit.to_dict(), allow_nan=False))
    assert record["layers"] == [{"layer": 1, "rank": 1, "norm": edit.changes[0].norm}]
    assert record["numbers"] == [{"k_u": 0.7, "steps": 20, "stopped": True, "loss": None}]
    assert record["settings"]["clamp"] == 4.0


def test_without_facts(tiny: fm.Model) -> None:
    """An edit of a memory that stands for no fact."""
    edit = Edit.of(tiny, [change(tiny, 0)], method="embedding_swap")
    assert edit.title == "embedding_swap"
    assert edit.to_frame().empty
    assert "embedding_swap" in edit._repr_html_()


def test_html_escapes(tiny: fm.Model) -> None:
    """A subject from a file must not run in a notebook."""
    hostile = Fact("<script>x</script>", "r", "{} is in", "<b>", "<i>", id="<id>")
    html = made(tiny, fact=hostile, note="<u>")._repr_html_()
    assert not any(tag in html for tag in ("<script>", "<i>", "<id>", "<u>"))
    assert "&lt;script&gt;" in html


def test_refusals(tiny: fm.Model) -> None:
    right, left = torch.ones(1, tiny.d_model), torch.ones(1, tiny.d_mlp)
    with refuses(InputError, ValueError, "layer 2", "left"):
        EditedLayer(2, left * float("nan"), right)
    with refuses(InputError, ValueError, "layer 2", "no rows"):
        EditedLayer(2, left[:0], right[:0])
    with refuses(InputError, ValueError, "layer 0", "2", "1"):
        EditedLayer(0, torch.cat([left, left]), right)
    with refuses(InputError, ValueError, "layer", "-1"):
        EditedLayer(-1, left, right)
    with refuses(InputError, ValueError, "at least one change"):
        Edit.of(tiny, [], method="rome")
    with refuses(InputError, ValueError, "0, 0"):
        Edit.of(tiny, [change(tiny, 0), change(tiny, 0)], method="rome")
    with refuses(InputError, ValueError, "1 facts", "0 targets"):
        Edit.of(tiny, [change(tiny, 0)], method="rome", facts=[EIFFEL])
    with refuses(InputError, ValueError, "2 rows", "0 facts"):
        Edit.of(tiny, [change(tiny, 0)], method="rome", numbers=pd.DataFrame({"loss": [0.0, 0.1]}))
    with refuses(InputError, ValueError, "settings.hook", "function"):
        made(tiny, hook=lambda: None)
    with refuses(OutOfRangeError, IndexError, "layer 7", "0 to 1"):
        Edit.of(tiny, [EditedLayer(7, left, right)], method="rome")
    with refuses(ModelError, ValueError, "[3, 16]", "[64, 16]"):
        Edit.of(tiny, [EditedLayer(0, left[:, :3], right)], method="rome")


def test_under_names_what_the_model_had(make_tiny: Callable[..., fm.Model]) -> None:
    """Without it nobody could tell that the second edit was made on top of the first."""
    model = make_tiny()
    first = made(model)
    with first.applied(model):
        second = made(model, seed=1)
        assert second.under == (first.digest,)
        assert second.fingerprint == model.fingerprint != first.fingerprint


# -- sums of edits, against the edits one after the other --------------------------------------------------------------


def test_sum_is_both(make_tiny: Callable[..., fm.Model]) -> None:
    """A layer that only one of them changes, ranks in the wrong order, a change counted twice."""
    model = make_tiny(dtype="float64")
    pristine = weights(model)
    first, second = made(model, (0, 1)), made(model, (1,), rank=2, seed=1, fact=COLOSSEUM)
    both = first + second
    assert [(c.layer, c.rank) for c in both.changes] == [(0, 1), (1, 4)]
    with first.applied(model), second.applied(model):
        one_by_one = [ffn.values.detach().clone() for ffn in model.ffn]
    with both.applied(model):
        for ffn, expected in zip(model.ffn, one_by_one, strict=True):
            assert allclose(ffn.values, expected, 1e-14)
    assert same_bits(model, pristine)


def test_sum_knows_its_parts(tiny: fm.Model) -> None:
    first, second = made(tiny), made(tiny, seed=1, fact=COLOSSEUM, clamp=2.0)
    third = Edit.of(tiny, [change(tiny, 0, seed=5)], method="ft_l")
    both = first + second + third
    assert both.parts == (first.digest, second.digest, third.digest)
    assert [fact.id for fact in both.facts] == ["eiffel", "colosseum"]
    assert both.targets == ("Rome", "London")
    assert both.method == "rome + ft_l"
    assert both.numbers["k_u"].tolist() == [0.7, 1.7]
    assert [settings.get("clamp") for settings in both.settings["edits"]] == [4.0, 2.0, None]
    assert both.provenance.to_dict()["edits"] == both.parts
    assert both.fingerprint == first.fingerprint


def test_equal_settings_stay_one(tiny: fm.Model) -> None:
    assert (made(tiny) + made(tiny, seed=1)).settings == made(tiny).settings


def test_one_on_top_of_the_other(make_tiny: Callable[..., fm.Model]) -> None:
    """The chain from one edit to the next is what lets them add up though their fingerprints differ."""
    model = make_tiny()
    first = made(model)
    with first.applied(model):
        second = made(model, seed=1)
        with second.applied(model):
            third = made(model, seed=2)
    chain = first + second + third
    assert chain.fingerprint == model.fingerprint
    with chain.applied(model):
        assert len(model.edits) == 1
    assert (first + (second + third)).parts == chain.parts
    with refuses(InputError, ValueError, first.fingerprint, third.fingerprint):
        first + third
    with refuses(InputError, ValueError, first.fingerprint, second.fingerprint):
        second + first


@pytest.mark.parametrize("twice", [0, 1])
def test_refuses_an_edit_twice(tiny: fm.Model, twice: int) -> None:
    edits = made(tiny), made(tiny, seed=1)
    with refuses(InputError, ValueError, edits[twice].digest):
        edits[0] + edits[1] + edits[twice]


def test_refuses_other_sizes(tiny: fm.Model) -> None:
    """Only hand-made edits can be so."""
    first = made(tiny, (0,))
    narrow = EditedLayer(0, torch.ones(1, 3), torch.ones(1, tiny.d_model))
    other = Edit((narrow,), first.fingerprint, "rome", (), (), {}, first.numbers.head(0), first.provenance)
    with refuses(InputError, ValueError, "layer 0", "[3, 16]"):
        first + other
