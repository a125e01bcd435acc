"""Gated models and their stores, for the tests of this room."""

from __future__ import annotations

from typing import Any

import pytest

import ffnmem as fm
from ffnmem.scanning import Store
from tests.semantics.gated import GATED, made, scanned, turn


@pytest.fixture(scope="session", params=GATED)
def gated_kind(request: pytest.FixtureRequest) -> str:
    """RMSNorm and gates, alone (llama) and with a norm behind the FFN and a soft cap (gemma2)."""
    return str(request.param)


@pytest.fixture(scope="session")
def gated(gated_kind: str, tokenizer: Any) -> fm.Model:
    """A random gated model. Shared: do not change it."""
    return made(gated_kind, tokenizer)


@pytest.fixture(scope="session")
def gated_store(gated: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of it. Shared: copy its folder before breaking it."""
    return scanned(gated, tmp_path_factory.mktemp("stores") / "gated")


@pytest.fixture(scope="session")
def turned(gated_kind: str, tokenizer: Any) -> fm.Model:
    """The same model with key and value of every second neuron turned round. Shared: do not change it."""
    return turn(made(gated_kind, tokenizer))


@pytest.fixture(scope="session")
def turned_store(turned: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of it. Shared: copy its folder before breaking it."""
    return scanned(turned, tmp_path_factory.mktemp("stores") / "turned")
