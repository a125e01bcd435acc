"""``plant``: by name, the same for the same seed, and clear about what it does not take."""

from __future__ import annotations

from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.planted.planting import builder, defaults

from ..helpers import refuses

SMALL: dict[str, dict[str, Any]] = {
    "meanings": {"n_features": 12, "neurons": 16, "n_tokens": 2000},
    "roles": {"n_layers": 1, "neurons": 54, "per_role": 6, "n_words": 768, "n_tokens": 15_360},
    "facts": {"n_subjects": 6, "n_relations": 1, "n_objects": 2},
}


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_every_kind(kind: str) -> None:
    planted = fm.planted.plant(kind, seed=3, **SMALL[kind])
    assert (planted.kind, planted.seed) == (kind, 3)
    assert set(planted.settings) == set(defaults(kind))
    assert len(planted.truth) == planted.model.n_layers * planted.model.d_mlp
    assert bool(planted.facts) == (kind == "facts")
    known = {word.strip() for word in planted.model.token_strings(range(planted.model.d_vocab))}
    assert set(" ".join(planted.texts).split()) <= known
    assert planted.model.fingerprint == fm.planted.plant(kind, seed=3, **SMALL[kind]).model.fingerprint
    assert planted.model.fingerprint != fm.planted.plant(kind, seed=4, **SMALL[kind]).model.fingerprint


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_every_parameter_has_a_default(kind: str) -> None:
    """Else ``plant(kind)`` alone would not do, and the settings of a folder could not be told from the signature."""
    assert builder(kind).__name__ == f"plant_{kind}"
    assert defaults(kind)["seed"] == 0
    assert all(isinstance(value, int | float | str) for value in defaults(kind).values())


@pytest.mark.parametrize(
    ("kind", "wrong", "named"),
    [
        ("fact", {}, ("kind", "fact", "meanings", "roles", "facts")),
        ("facts", {"seed": -1}, ("seed", "0", "-1")),
        ("meanings", {"seed": -1}, ("seed", "0", "-1")),
        ("meanings", {"neurons": 0}, ("neurons", "1", "0")),
        ("roles", {"neurons": 0}, ("neurons", "1", "0")),
        ("facts", {"neurons": 4}, ("facts", "neurons", "n_subjects", "site")),
        ("meanings", {"noise": -0.1}, ("noise", "0", "-0.1")),
        ("roles", {"noise": -0.1}, ("noise", "0", "-0.1")),
        ("facts", {"noise": -0.1}, ("noise", "0", "-0.1")),
        ("facts", {"noise": "much"}, ("noise", "number", "much")),
        ("facts", {"site": 1}, ("site", "text", "1")),
        ("meanings", {"noise": float("inf")}, ("noise", "finite", "inf")),
        ("meanings", {"superposition": float("nan")}, ("superposition", "finite", "nan")),
    ],
)
def test_what_cannot_be_is_refused(kind: str, wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        fm.planted.plant(kind, **wrong)
