"""Architectures without a description: read by the names of their parts, and tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.models.checking import check_undescribed

from ..architectures import DECODERS
from ..helpers import build, refuses


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Gemma 2", "Granite", "Pythia", "OLMo 2", "Cohere"])
def test_what_is_described_rightly_passes(name: str, tokenizer: Any) -> None:
    """The check itself would refuse good models."""
    check_undescribed(fm.load(DECODERS[name](), tokenizer=tokenizer))


WRONG: dict[str, tuple[str, Callable[[fm.Model], None], str]] = {
    "another activation": ("Llama", lambda m: set_activation(m, "relu"), "coefficients of layer 0"),
    "a multiplier": ("Llama", lambda m: change_layout(m, write_scale=0.5), "output of layer 0"),
    "a norm behind": ("Gemma 2", lambda m: change_blocks(m, post=None), "output of layer 0"),
    "scaled logits": ("Llama", lambda m: change_layout(m, logit_scale=2.0), "logits"),
    "a soft cap": ("Gemma 2", lambda m: change_layout(m, soft_cap=None), "logits"),
}


def set_activation(model: fm.Model, name: str) -> None:
    model.ffn = tuple(replace(ffn, activation=name) for ffn in model.ffn)


def change_layout(model: fm.Model, **changes: Any) -> None:
    model.layout = replace(model.layout, **changes)


def change_blocks(model: fm.Model, **changes: Any) -> None:
    change_layout(model, blocks=tuple(replace(block, **changes) for block in model.layout.blocks))


@pytest.mark.parametrize("what", WRONG)
def test_what_is_otherwise_is_named(what: str, tokenizer: Any) -> None:
    """A part that nobody told of would make every number wrong, and nothing say so."""
    name, wrong, named = WRONG[what]
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)
    wrong(model)
    with refuses(UnsupportedModelError, ValueError, type(model.hf_model).__name__, named, "off by"):
        check_undescribed(model)


def test_a_part_that_never_runs_is_an_error(tokenizer: Any) -> None:
    model = fm.load(DECODERS["Llama"](), tokenizer=tokenizer)
    change_blocks(model, attention_out=model.hf_model.lm_head)
    with refuses(UnsupportedModelError, ValueError, "attention of layer 0 did not run"):
        check_undescribed(model)


def test_real_ones(tokenizer: Any) -> None:
    """One that has no description here and works, and one whose activation has weights of its own."""
    model = fm.load(build("SeedOss", head_dim=8), tokenizer=tokenizer)
    assert not model.layout.described
    assert model.gated
    with refuses(UnsupportedModelError, ValueError, "Apertus"):
        fm.load(build("Apertus"), tokenizer=tokenizer)
