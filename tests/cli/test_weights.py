"""``ffnmem weights``: the library's numbers."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm

from .running import data, mistake, run, table


def test_the_librarys_numbers(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    mine = fm.virtual_weights(tiny, "1.5", k=6)
    asked = ("weights", "1.5", "--model", tiny_folder, "--top", 6)
    assert data(*asked)["edges"] == mine.to_dict()["edges"]
    frame = pd.read_csv(io.StringIO(run(*asked, "--csv").stdout), keep_default_na=False)
    pd.testing.assert_frame_equal(frame, mine.to_frame(), check_dtype=False)
    out = " ".join(table(*asked, "--plot", tmp_path / "one.png", width=100).split())
    for part in ("1.5", "what makes it fire", "head 1.", "promotes"):
        assert part in out
    assert (tmp_path / "one.png").stat().st_size > 10_000
    assert {row["via"] for row in data(*asked, "--no-heads")["edges"]} == {"direct"}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["9.3"], ["layer 9"]),
        (["1.999"], ["neuron 999"]),
        (["one"], ["'one'"]),
        (["1.3,1.4"], ["one neuron"]),
        (["1.3", "--draws", "0"], ["--draws"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes(args: list[str], named: list[str], tiny_folder: Path) -> None:
    mistake("weights", *args, "--model", tiny_folder, named=named)
