"""``plant``: by name, the same for the same seed, and clear about what it does not take."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.planted.planting import defaults

from ..helpers import refuses

SMALL: dict[str, dict[str, Any]] = {
    "meanings": {"n_features": 12, "neurons": 16, "n_tokens": 2000},
    "roles": {"n_layers": 1, "neurons": 54, "per_role": 6, "n_words": 768, "n_tokens": 15_360},
    "facts": {"n_subjects": 6, "n_relations": 1, "n_objects": 2},
}


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_every_kind(kind: str) -> None:
    """Settings that are not kept or have no default, words that no text may have, or chance that no seed decides."""
    assert all(isinstance(value, int | float | str) for value in defaults(kind).values())
    planted = fm.planted.plant(kind, seed=3, **SMALL[kind])
    assert (planted.kind, planted.seed) == (kind, 3)
    assert set(planted.settings) == set(defaults(kind))
    assert len(planted.truth) == planted.model.n_layers * planted.model.d_mlp
    assert bool(planted.facts) == (kind == "facts")
    known = {word.strip() for word in planted.model.token_strings(range(planted.model.d_vocab))}
    assert set(" ".join(planted.texts).split()) <= known
    same, other = (fm.planted.plant(kind, seed=seed, **SMALL[kind]) for seed in (3, 4))
    assert planted.model.fingerprint == same.model.fingerprint != other.model.fingerprint
    assert (planted.texts, planted.facts) == (same.texts, same.facts)
    assert planted.texts != other.texts
    pd.testing.assert_frame_equal(planted.truth, same.truth)


REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("fact", {}, ("kind", "fact", "meanings", "roles", "facts")),
    ("facts", {"neurons": 4}, ("facts", "neurons", "n_subjects", "site")),
    *((kind, {"seed": -1}, ("seed", "0", "-1")) for kind in SMALL),
    *((kind, {"noise": float("nan")}, ("noise", "nan")) for kind in SMALL),
    ("facts", {"noise": "much"}, ("noise", "number", "much")),
    ("meanings", {"n_features": 7}, ("n_features", "8", "7")),
    ("meanings", {"n_features": 400_000}, ("concepts", "400000")),
    ("meanings", {"words": 71}, ("words", "70", "71")),
    ("meanings", {"n_tokens": 100}, ("n_tokens", "2,000", "100")),
    ("meanings", {"superposition": float("inf")}, ("superposition", "inf")),
    ("meanings", {"superposition": 1e-4}, ("superposition", "0.0001", "4,096")),
    ("meanings", {"superposition": 5e-324}, ("superposition", "4,096")),
    ("meanings", {"experts": 1}, ("experts", "2", "1")),
    ("meanings", {"experts": 5}, ("experts", "divide 192 neurons", "5")),
    ("meanings", {"experts": 64}, ("n_features", "256", "64 experts", "128")),
    ("roles", {"neurons": 20}, ("neurons", "108", "20")),
    ("roles", {"n_words": 500}, ("n_words", "768", "500")),
    ("roles", {"n_words": 3000}, ("n_words", "2,000", "3000")),
    ("roles", {"n_tokens": 100}, ("n_tokens", "100")),
    ("facts", {"site": "middle"}, ("site", "middle", "early", "late", "both")),
    ("facts", {"site": "both", "n_relations": 1}, ("n_relations", "2", "1")),
    ("facts", {"n_subjects": 5}, ("n_subjects", "6", "5")),
    ("facts", {"n_objects": 7, "n_subjects": 12}, ("n_objects", "6", "12 subjects", "7")),
    ("chains", {"n_chains": 1}, ("n_chains",)),
    ("chains", {"noise": -1.0}, ("noise",)),
]


@pytest.mark.parametrize(("kind", "wrong", "named"), REFUSED)
def test_what_cannot_be_is_refused(kind: str, wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        if kind == "chains":
            fm.planted.plant_chains(**wrong)
        else:
            fm.planted.plant(kind, **wrong)
