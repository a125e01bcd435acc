"""``ffnmem plant``: a folder that every command takes, a summary of the truth, and one line where it cannot be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.cli.planted import FactSettings, MeaningSettings, RoleSettings
from ffnmem.core.types import PLANTED_KINDS
from ffnmem.planted.planting import defaults

from .running import csv, data, run

SMALL = {
    "meanings": ("--n-features", 12, "--neurons", 16, "--n-tokens", 2000, "--words", 3, "--n-layers", 1),
    "roles": ("--neurons", 54, "--per-role", 6, "--n-words", 768, "--n-tokens", 15_360, "--n-layers", 1),
    "facts": ("--n-subjects", 8, "--n-relations", 2, "--n-objects", 2, "--n-none", 3, "--site", "late"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planted") / "facts"
    run("plant", "facts", "--out", place, "--seed", 2, *SMALL["facts"])
    return place


# -- the same as the library -------------------------------------------------------------------------------------------


def test_options_are_the_librarys() -> None:
    """They are written twice, because the library's need torch."""
    for kind, settings in zip(PLANTED_KINDS, (MeaningSettings(), RoleSettings(), FactSettings()), strict=True):
        assert {"seed": 0, **vars(settings)} == defaults(kind)


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
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


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_csv_counts_neurons(tmp_path: Path) -> None:
    rows = csv("plant", "facts", "--out", tmp_path / "p", *SMALL["facts"])
    assert rows.columns.tolist() == ["layer", "role", "position", "neurons"]
    assert rows["neurons"].sum() == 3 * 19


# -- every command takes it --------------------------------------------------------------------------------------------


def test_commands_take_the_folder(folder: Path, tmp_path: Path) -> None:
    fact = fm.load_facts(folder / "facts.jsonl")[0]
    truth = fm.planted.load_planted(folder).truth
    row = truth[(truth.subject == fact.subject) & (truth.target == fact.target_true)].iloc[0]
    found = data("attribute", fact.text, "--model", folder)
    assert found["target_tokens"] == [f" {fact.target_true}"]
    assert [found["neurons"][0][name] for name in ("layer", "neuron")] == [row.layer, row.neuron]
    first = data("decompose", fact.text, "--model", folder, "--layer", 2)["neurons"][0]
    assert first["neuron"] == row.neuron
    assert len(data("facts", folder / "facts.jsonl")) == 16
    store = tmp_path / "store"
    run("scan", folder / "corpus.txt", "--model", folder, "--out", store)
    assert data("neuron", f"2.{row.neuron}", "--store", store)
    run("report", fact.text, "--model", folder, "--out", tmp_path / "r.html")
    assert fact.target_true in (tmp_path / "r.html").read_text("utf-8")
