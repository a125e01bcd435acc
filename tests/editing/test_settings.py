"""Derived settings by size, and what is refused; published ones: test_published.py."""

from __future__ import annotations

import math

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.editing.settings import EditSettings, default_settings, settings_for

from ..helpers import refuses


def test_derived_ones_follow_the_models_size() -> None:
    shallow, deep = default_settings("mine", 6), default_settings("mine", 24)
    assert shallow.source == deep.source == "derived"
    assert 0 <= shallow.layer < 2 <= deep.layer < 12
    scales = torch.tensor([10.0, 1.0])
    relative = EditSettings(0, rate=0.03, relative=True)
    assert torch.allclose(relative.step_size(scales, 64), 0.03 * scales / math.sqrt(64))
    assert torch.equal(EditSettings(0).step_size(scales, 64), torch.tensor([0.5, 0.5]))


def test_weights_sum_to_one_and_the_plain_prompt_has_its_share() -> None:
    """A context counted twice, or the plain prompt lost among twenty."""
    assert torch.allclose(EditSettings(0).weights(4), torch.full((4,), 0.25, dtype=torch.float64))
    found = EditSettings(0, plain=0.4).weights(4)
    assert found[0] == 0.4
    assert float(found.sum()) == pytest.approx(1.0)
    assert EditSettings(0, plain=0.4).weights(1).tolist() == [1.0]
    assert torch.equal(EditSettings(0, plain=0.4).key_weights(4), found)
    apart = EditSettings(0, key_plain=0.5)  # MEMIT's: keys by kinds of contexts, losses by contexts
    assert torch.allclose(apart.weights(4), torch.full((4,), 0.25, dtype=torch.float64))
    assert apart.key_weights(3).tolist() == [0.5, 0.25, 0.25]


def test_an_early_stop_belongs_to_its_editor(tiny: fm.Model) -> None:
    assert default_settings("mine", 6, "encore").likeliest == 4
    assert default_settings("gpt2", 12, "encore").likeliest == 4
    assert default_settings("gpt2", 12).likeliest == default_settings("mine", 6).likeliest == 0
    assert settings_for(tiny, 0, {"likeliest": 2}, "encore").likeliest == 2


def test_changes_are_recorded_as_given(tiny: fm.Model) -> None:
    for changes in ({"optimiser": "projections", "stop": 0.2}, {"stop": 0.2}):
        found = settings_for(tiny, 0, changes)
        assert (found.optimiser, found.steps, found.rate, found.decay) == ("projections", 30, 1.0, 0.0)
        assert (found.stop, found.source) == (0.2, "given")
    found = settings_for(tiny, 0, {"optimiser": "adam", "steps": 9})  # projections' numbers would not do
    assert (found.steps, found.rate, found.relative, found.decay) == (9, 0.03, True, 0.5)
    found = settings_for(tiny, -1, {"steps": 3})
    assert (found.layer, found.steps, found.source) == (1, 3, "given")
    assert EditSettings(1, **found.changed()) == found
    assert found.to_dict()["layer"] == 1


def test_a_length_that_is_asked_for_holds_for_every_key(tiny: fm.Model) -> None:
    """Derived settings lengthen δ of rare keys alone; an anchor sets the length itself, and Adam goes far enough."""
    derived = settings_for(tiny, 0)
    assert derived.stretch > 1
    assert derived.rare > 1
    assert derived.first == 6
    asked = settings_for(tiny, 0, {"stretch": 1.5})
    assert (asked.stretch, asked.rare) == (1.5, 0.0)
    assert settings_for(tiny, 0, {"stretch": 1.5, "rare": 3.0}).rare == 3.0
    for little in ({"anchor": 2.0}, {"likeliest": 4}):
        assert (settings_for(tiny, 0, little).stretch, settings_for(tiny, 0, little).rare) == (1.0, 0.0)
        assert settings_for(tiny, 0, {"stretch": 1.0, **little}).stretch == 1.0
    assert settings_for(tiny, 0, editor="encore").stretch == 1.0
    assert settings_for(tiny, 0, {"likeliest": 0}, "encore").stretch == derived.stretch
    published = {"optimiser": "projections"}
    assert settings_for(tiny, 0, published, "encore", as_published=True).stretch == 1.0
    assert settings_for(tiny, 0, {"optimiser": "adam"}).stretch == 1.0
    assert settings_for(tiny, 0, {"stop": 0.2}).stretch == derived.stretch


def test_layers_that_ship(atlas: fm.Model) -> None:
    """By fingerprint: a copy under another name has it, other weights have not."""
    assert settings_for(atlas).layer_by == "shipped"
    assert settings_for(atlas, 2).layer_by == "given"
    assert settings_for(atlas, None, {"layer": 2}).layer_by == "given"


def test_refusals(tiny: fm.Model) -> None:
    for changes, named_ in (
        ({"step": 3}, "'step'"), ({"source": "mine"}, "'source'"), ({"steps": 0}, "steps"), ({"rate": 0.0}, "rate"),
        ({"optimiser": "projections", "decay": 0.5}, "decay is Adam's"), ({"optimiser": "sgd"}, "sgd"),
        ({"optimiser": "projections", "relative": True}, "relative is Adam's"),
        ({"optimiser": "adam", "first": 3}, "first is of projections"), ({"first": 0}, "first"),
        ({"clamp": -1.0}, "clamp"), ({"stop": -0.1}, "stop"), ({"kl": -1.0}, "kl"), ({"decay": -1.0}, "decay"),
        ({"plain": 1.0}, "plain"), ({"key_plain": 0.0}, "key_plain"), ({"kl_at": "first"}, "kl_at"),
        ({"scale_of": "head"}, "scale_of"), ({"likeliest": -1}, "likeliest"), ({"likeliest": 1.5}, "likeliest"),
        ({"anchor": 0.0}, "anchor"), ({"anchor": math.inf}, "anchor"),
        ({"rare": -1.0}, "rare"),
        ({"rare": 3.0, "optimiser": "adam"}, "rare is of stretch"),
        ({"stretch": 0.9}, "stretch"), ({"stretch": math.inf}, "stretch"),
        ({"stretch": 1.5, "anchor": 2.0}, "leave one out"),
    ):  # fmt: skip
        with refuses(InputError, ValueError, named_):
            settings_for(tiny, None, changes)
    with refuses(OutOfRangeError, IndexError, "layer 2"):
        settings_for(tiny, 2)
