"""What the tests of interventions share."""

from __future__ import annotations

from typing import Any

import pytest

import ffnmem as fm


@pytest.fixture(scope="session")
def model64(tiny_hf: Any, tokenizer: Any) -> fm.Model:
    """``tiny`` in float64, in which identities hold to rounding. Shared: do not change it."""
    return fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")
