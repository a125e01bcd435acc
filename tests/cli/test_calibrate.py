"""``ffnmem calibrate``: options as the library has them, and every number of the calibration."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.types import PLANTED_KINDS

from ..helpers import printed
from ..planted.made import made
from .running import data, lines, run

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

    def calibrate(*arguments: Any, **options: Any) -> fm.planted.Calibration:
        calls.append((arguments, options))
        options["progress"]("calibrate", 1, 2)
        tables = {name: made().tables[name] for kind in arguments[0] for name in TABLES[kind]}
        return fm.planted.Calibration(**tables, settings=made().settings)

    monkeypatch.setattr(fm.planted, "calibrate", calibrate)
    return calls


def test_options_reach_the_library(asked: Asked) -> None:
    few = ("--superposition", 2, "--superposition", 1.5, "--neurons", 48, "--draws", 30)
    run("calibrate", "--kind", "meanings", "--kind", "roles", "--seed", 7, "--seed", 8, *few)
    ((arguments, options),) = asked
    assert arguments == (("meanings", "roles"),)
    assert {k: v for k, v in options.items() if k != "progress"} == {
        "seeds": (7, 8), "superposition": (2.0, 1.5), "draws": 30, "neurons": 48,
    }  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_the_sheet_is_printed(width: int) -> None:
    assert lines("calibrate", width=width) == printed(made().sheet(), width)


def test_json_is_all_of_it() -> None:
    found = data("calibrate")
    expected = made().to_dict()
    assert list(found) == list(expected)
    assert found["settings"] == expected["settings"]
    assert found["verdicts"] == expected["verdicts"]
    assert found["roles"][0]["precision"] is None
    assert found["curves"][-1] == pytest.approx(expected["curves"][-1])


def test_csv_has_every_number() -> None:
    found = pd.read_csv(io.StringIO(run("calibrate", "--csv").stdout))
    expected = pd.read_csv(io.StringIO(made().to_frame().to_csv(index=False)))
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize("kinds", [PLANTED_KINDS, ("facts",), ("roles",)])
def test_plot(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    picture = tmp_path / "calibration.png"
    run("calibrate", *(part for kind in kinds for part in ("--kind", kind)), "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
