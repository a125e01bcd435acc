"""``ffnmem calibrate``: options as the library has them, and every number of the calibration."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.calibration import calibrating, meaning_scores
from ffnmem.cli.calibrate import DRAWS, KINDS, OF_MEANINGS, SEEDS, SUPERPOSITION, K
from ffnmem.semantics import polysemanticity
from tests.calibration.made import made
from tests.cli.running import data, mistake, run, table

TABLES = {
    "meanings": ("measures", "verdicts", "random_keys", "nulls", "curves"),
    "roles": ("roles",),
    "facts": ("facts",),
}
Asked = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the library was asked for; it answers with made-up numbers. The manual's example runs the real one."""
    calls: Asked = []

    def calibrate(*arguments: Any, **options: Any) -> fm.Calibration:
        calls.append((arguments, options))
        options["progress"]("calibrate", 1, 2)
        tables = {name: made().tables[name] for kind in arguments[0] for name in TABLES[kind]}
        return fm.Calibration(**tables, settings=made().settings)

    monkeypatch.setattr(fm, "calibrate", calibrate)
    return calls


def test_names_and_defaults_are_the_librarys(asked: Asked) -> None:
    """They are repeated in the command because the library is too slow to import for a manual."""
    assert KINDS == calibrating.KINDS
    assert SEEDS == calibrating.SEEDS
    assert SUPERPOSITION == calibrating.SUPERPOSITION
    assert DRAWS == polysemanticity.DRAWS
    assert K == meaning_scores.K
    run("calibrate")
    ((arguments, options),) = asked
    assert arguments == (KINDS,)
    assert {k: v for k, v in options.items() if k != "progress"} == {
        "seeds": SEEDS, "superposition": SUPERPOSITION, "draws": DRAWS,
    }  # fmt: skip


def test_options_reach_the_library(asked: Asked) -> None:
    few = ("--superposition", 2, "--superposition", 1.5, "--neurons", 48, "--draws", 30)
    run("calibrate", "--kind", "meanings", "--kind", "roles", "--seed", 7, "--seed", 8, *few)
    ((arguments, options),) = asked
    assert arguments == (("meanings", "roles"),)
    assert {k: v for k, v in options.items() if k != "progress"} == {
        "seeds": (7, 8), "superposition": (2.0, 1.5), "draws": 30, "neurons": 48,
    }  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables(width: int) -> None:
    out = table("calibrate", width=width)
    lines = [line.split() for line in out.splitlines()]
    found = made()
    assert found.measures is not None
    for row in found.measures.to_dict("records"):
        ranges = [
            f"{row[name]:.3f} {row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}".split()
            for name in ("auroc", "spearman", "precision_at_k")
        ]
        assert [row["measure"], *(word for words in ranges for word in words)] in lines
    assert ["dead", "0", "0", "0", "1,234"] in lines
    assert ["1", "15", "2", "3", "0"] in lines
    assert "10.0% of monosemantic neurons" in " ".join(out.split())
    assert ["meanings", "1.0%", "0.2%", "to", "3.0%", "346"] in lines
    assert ["dead", "–", "0.00", "30", "39"] in lines
    assert ["ablate", "early", "0.20", "0.05", "to", "0.37", "0.30", "10"] in lines
    assert "seeds 7, 8 · superposition 1, 1.5 · draws 20" in " ".join(out.split())
    assert f"precision at {K}" in out


def test_only_what_was_asked_for() -> None:
    out = table("calibrate", "--kind", "facts")
    assert "attribute" in out
    for other in ("AUROC", "verdicts", "p < .05", "precision"):
        assert other not in out


def test_json_is_all_of_it() -> None:
    found = data("calibrate")
    expected = made().as_dict()
    assert list(found) == list(expected)
    assert found["settings"] == expected["settings"]
    assert found["verdicts"] == expected["verdicts"]
    assert found["roles"][0]["precision"] is None
    assert found["curves"][-1] == pytest.approx(expected["curves"][-1])


def test_csv_has_every_number_once() -> None:
    text = run("calibrate", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["table", "name", "setting", "score", "value", "low", "high"]
    keys = [(row["table"], row["name"], row["setting"], row["score"]) for row in rows]
    assert len(set(keys)) == len(keys)
    by_key = dict(zip(keys, rows, strict=True))
    found = made()
    for name, labels in (
        ("measures", ("measure",)), ("verdicts", ("true_meanings",)), ("nulls", ("measure",)),
        ("curves", ("measure", "superposition")), ("roles", ("role",)), ("facts", ("measure", "site")),
    ):  # fmt: skip
        for record in found.tables[name].to_dict("records"):
            label, setting = (str(record.get(part, "")) for part in (*labels, "none")[:2])
            scores = {k: v for k, v in record.items() if k not in labels and not k.endswith(("low", "high"))}
            assert sum(key[:3] == (name, label, setting) for key in keys) == len(scores)
            for score, value in scores.items():
                row = by_key[name, label, setting, str(score)]
                assert row["value"] == ("" if value != value else str(value))
                ends = ("low", "high") if score in ("rate", "first") else (f"{score}_low", f"{score}_high")
                assert [row["low"], row["high"]] == [str(record.get(end, "")) for end in ends]


@pytest.mark.parametrize("kinds", [KINDS, ("facts",), ("roles",)])
def test_plot(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    picture = tmp_path / "calibration.png"
    run("calibrate", *(part for kind in kinds for part in ("--kind", kind)), "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", OF_MEANINGS)
def test_an_option_that_would_do_nothing(asked: Asked, name: str) -> None:
    mistake("calibrate", "--kind", "facts", f"--{name}", 50, named=(f"--{name}", "meanings"))
    run("calibrate", "--kind", "facts", "--kind", "meanings", f"--{name}", 50)
    assert len(asked) == 1


def test_mistakes(asked: Asked, tmp_path: Path) -> None:
    mistake("calibrate", "--kind", "poems", named=("poems", "meanings", "facts"))
    mistake("calibrate", "--seed", -1, named=("-1",))
    mistake("calibrate", "--draws", 3, named=("3", "20"))
    mistake("calibrate", "--superposition", 0, named=("0",))
    mistake("calibrate", "--plot", tmp_path / "a.txt", named=("a.txt", ".png"))
    assert not asked
