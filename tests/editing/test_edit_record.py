"""Sums of edits, against the edits one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import Edit, EditedLayer

from ..helpers import allclose, refuses
from .edits import COLOSSEUM, change, made, same_bits, weights


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
