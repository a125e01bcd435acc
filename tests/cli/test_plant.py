"""``ffnmem plant``: a folder that every command takes, a summary of the truth, and one line where it cannot be."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.cli.planted import FactSettings, MeaningSettings, RoleSettings
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.planted.planting import defaults

from .running import csv, data

SMALL = {
    "meanings": ("--n-features", 12, "--neurons", 16, "--n-tokens", 2000, "--words", 3, "--n-layers", 1),
    "roles": ("--neurons", 54, "--per-role", 6, "--n-words", 768, "--n-tokens", 15_360, "--n-layers", 1),
    "facts": ("--n-subjects", 8, "--n-relations", 2, "--n-objects", 2, "--n-none", 3, "--site", "late"),
}


def test_options_are_the_librarys() -> None:
    """They are written twice, because the library's need torch."""
    for kind, settings in zip(PLANTED_KINDS, (MeaningSettings(), RoleSettings(), FactSettings()), strict=True):
        assert {"seed": 0, **vars(settings)} == defaults(kind)


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    """A folder that every command takes, and a summary of the truth."""
    found = data("plant", kind, "--out", tmp_path / "planted", "--seed", 3, *SMALL[kind])
    planted = fm.planted.load_planted(tmp_path / "planted")
    assert (found["kind"], found["settings"]) == (kind, dict(planted.settings))
    assert planted.seed == 3
    assert found["fingerprint"] == planted.model.fingerprint
    assert (found["texts"], found["facts"]) == (len(planted.texts), len(planted.facts))
    by = {"meanings": "verdict", "roles": "role", "facts": "role"}[kind]
    counts: Counter[tuple[int, str]] = Counter()
    for row in found["counts"]:
        counts[row["layer"], row[by]] += row["neurons"]
    assert counts == Counter(zip(planted.truth.layer, planted.truth[by], strict=True))
    suggested = shlex.split(planted.sheet(str(tmp_path / "planted")).blocks[1].rows["try"])
    assert suggested.pop(0) == "ffnmem"
    assert data(*suggested)
    rows = csv("plant", kind, "--out", tmp_path / "again", "--seed", 3, *SMALL[kind])
    assert rows["neurons"].sum() == len(planted.truth)
    if planted.facts:
        fact = planted.facts[0]
        answer = data("attribute", fact.text, "--model", tmp_path / "planted")
        assert answer["target_tokens"] == [f" {fact.target_true}"]
        assert len(data("facts", tmp_path / "planted" / "facts.jsonl")) == len(planted.facts)
