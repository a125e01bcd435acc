"""The edit as an object: its algebra, its tables, and what it refuses to be made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError
from ffnmem.editing import Edit, EditedLayer

from ..helpers import allclose, refuses
from .edits import COLOSSEUM, EIFFEL, change, made, same_bits, weights


@pytest.mark.parametrize("rank", [1, 5])
def test_a_change_is_what_its_factors_say(tiny: fm.Model, rank: int) -> None:
    """A norm of the factors instead of their product, a transposed change, or factors that alias the editor's."""
    found = change(tiny, 0, rank)
    assert (found.rank, tuple(found.delta().shape)) == (rank, (tiny.d_mlp, tiny.d_model))
    assert allclose(found.delta(), found.left.T @ found.right, 1e-12)
    assert allclose(found.norm, found.delta().norm(), 1e-12)
    assert allclose(found.norms, found.delta().norm(dim=1), 1e-12)
    right = torch.ones(1, tiny.d_model, dtype=torch.float64)
    kept = EditedLayer(0, torch.ones(1, tiny.d_mlp), right)
    right.zero_()
    assert kept.left.dtype == torch.float64
    assert bool((kept.right == 1).all())


def test_what_it_is(tiny: fm.Model) -> None:
    edit = made(tiny, (1, 0))
    assert (edit.layers, edit.rank, edit.under, edit.parts) == ((0, 1), 2, (), (edit.digest,))
    assert edit.fingerprint == tiny.fingerprint == edit.provenance.fingerprint
    assert allclose(edit.norm**2, sum(c.delta().square().sum() for c in edit.changes), 1e-12)
    assert edit.title == "rome: Eiffel Tower → Rome"


def test_digest_tells_edits_apart(tiny: fm.Model) -> None:
    """Two edits with one digest could not be told apart in a model."""
    assert made(tiny).digest == made(tiny, clamp=9.0).digest
    others = [made(tiny, seed=1), made(tiny, (0,)), made(tiny, rank=2), made(tiny, (0, 1))]
    assert len({edit.digest for edit in [made(tiny), *others]}) == 5


def test_tables_and_json(tiny: fm.Model) -> None:
    """A number that is lost, or one that JSON does not hold; an edit of a memory that stands for no fact."""
    edit = made(tiny)
    frame = edit.to_frame()
    assert " ".join(frame.columns) == "fact subject prompt target_true target k_u steps stopped loss"
    assert frame.loc[0, ["target", "k_u"]].tolist() == ["Rome", 0.7]
    record = json.loads(json.dumps(edit.to_dict(), allow_nan=False))
    assert list(record)[:4] == ["method", "digest", "fingerprint", "layers"]
    assert record["layers"] == [{"layer": 1, "rank": 1, "norm": edit.changes[0].norm}]
    assert record["facts"] == [edit.facts[0].to_dict()]
    assert record["numbers"] == [{"k_u": 0.7, "steps": 20, "stopped": True, "loss": None}]
    assert record["settings"]["clamp"] == 4.0
    bare = Edit.of(tiny, [change(tiny, 0)], method="embedding_swap")
    assert bare.title == "embedding_swap"
    assert bare.to_frame().empty
    assert (bare + Edit.of(tiny, [change(tiny, 1)], method="embedding_swap")).to_dict()["numbers"] == []


def test_refusals(tiny: fm.Model) -> None:
    right, left = torch.ones(1, tiny.d_model), torch.ones(1, tiny.d_mlp)

    def of(*changes: EditedLayer, **more: Any) -> Edit:
        return Edit.of(tiny, changes, method="rome", **more)

    one = change(tiny, 0)
    refused: tuple[tuple[Callable[[], object], tuple[str, ...]], ...] = (
        (lambda: EditedLayer(2, left * float("nan"), right), ("layer 2", "left")),
        (lambda: EditedLayer(2, left[:0], right[:0]), ("layer 2", "no rows")),
        (lambda: EditedLayer(0, torch.cat([left, left]), right), ("layer 0", "2", "1")),
        (lambda: EditedLayer(-1, left, right), ("layer", "-1")),
        (of, ("at least one change",)),
        (lambda: of(one, one), ("0, 0",)),
        (lambda: of(one, facts=[EIFFEL]), ("1 facts", "0 targets")),
        (lambda: of(one, numbers=pd.DataFrame({"loss": [0.0, 0.1]})), ("2 rows", "0 facts")),
        (lambda: made(tiny, hook=lambda: None), ("settings.hook", "function")),
    )
    for call, named in refused:
        with refuses(InputError, ValueError, *named):
            call()
    with refuses(OutOfRangeError, IndexError, "layer 7", "0 to 1"):
        of(EditedLayer(7, left, right))
    with refuses(ModelError, ValueError, "[3, 16]", "[64, 16]"):
        of(EditedLayer(0, left[:, :3], right))


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
    assert (first + made(tiny, seed=1)).settings == first.settings  # equal ones stay one
    bare = Edit.of(tiny, [change(tiny, 0)], method="mine", facts=[COLOSSEUM], targets=["London"])
    assert (bare + first).numbers["k_u"].isna().tolist() == [True, False]
    for again in (first, second):
        with refuses(InputError, ValueError, again.digest):
            both + again
    narrow = EditedLayer(1, torch.ones(1, 3), torch.ones(1, tiny.d_model))  # only hand-made edits can be so
    other = Edit((narrow,), first.fingerprint, "rome", (), (), {}, first.numbers.head(0), first.provenance)
    with refuses(InputError, ValueError, "layer 1", "[3, 16]"):
        first + other


def test_one_on_top_of_the_other(make_tiny: Callable[..., fm.Model]) -> None:
    """The chain from one edit to the next is what lets them add up though their fingerprints differ."""
    model = make_tiny()
    first = made(model)
    with first.applied(model):
        second = made(model, seed=1)
        assert second.under == (first.digest,)
        assert second.fingerprint == model.fingerprint != first.fingerprint
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
