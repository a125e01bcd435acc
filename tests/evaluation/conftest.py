"""What tests of evaluations share: the tiny model in float64, and its second moment."""

from __future__ import annotations

from typing import Any

import pytest

import ffnmem as fm
from ffnmem.editing import SecondMoment
from ffnmem.evaluation import Scores

from ..helpers import build_gpt2
from .made import tiny_moment
from .test_scores import made_scores


@pytest.fixture(scope="package")
def tiny64(tokenizer: Any) -> fm.Model:
    """Of three layers, for what the last one writes at a subject reaches no answer. Shared: put its weights back."""
    return fm.load(build_gpt2(n_layer=3), tokenizer=tokenizer, dtype="float64")


@pytest.fixture(scope="package")
def moment(tiny64: fm.Model) -> SecondMoment:
    return tiny_moment(tiny64)


@pytest.fixture(scope="package")
def scores(tiny: fm.Model) -> Scores:
    """Made-up numbers of two editors."""
    return made_scores(tiny)
