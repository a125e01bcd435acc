"""``ffnmem project``: memories by name, in the order asked."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from cyclopts import Token

import ffnmem as fm
from ffnmem.cli.options import read_neurons
from ffnmem.core.number_text import decimals, format_number

from .running import data, run, table


@pytest.mark.parametrize(
    ("texts", "neurons"),
    [
        (["3.17"], [(3, 17)]),
        (["3.17,3.18"], [(3, 17), (3, 18)]),
        (["3.17", "0.1, 3.18"], [(3, 17), (0, 1), (3, 18)]),
        (["3.170", "3.17", "3.17"], [(3, 170), (3, 17)]),
        (["03.007"], [(3, 7)]),
    ],
)
def test_reading_neurons(texts: list[str], neurons: list[tuple[int, int]]) -> None:
    """3.17 and 3.170 are two neurons, whatever they are as numbers."""
    assert read_neurons(None, [Token(value=text) for text in texts]) == neurons


@pytest.mark.parametrize("side", ["value", "key", "both"])
@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_csv_is_the_librarys(side: str, basis: str, tiny: fm.Model, tiny_folder: Path) -> None:
    """Neurons of several layers come in the order asked, with exactly the library's rows."""
    asked = ["project", "1.5", "0.63,1.0", "--model", tiny_folder, "--side", side, "--basis", basis, "--top", 3]
    sides = ("value", "key") if side == "both" else side
    frames = [fm.project(tiny, layer, n, k=3, basis=basis, side=sides) for layer, n in ((1, 5), (0, 63), (1, 0))]
    found = pd.read_csv(io.StringIO(run(*asked, "--csv").stdout), keep_default_na=False)
    pd.testing.assert_frame_equal(found, pd.concat(frames, ignore_index=True), rtol=1e-6)


def test_json(tiny: fm.Model, tiny_folder: Path) -> None:
    found = data("project", "1.5", "--model", tiny_folder, "--top", 2)
    assert [row["token"] for row in found["tokens"]] == fm.project(tiny, 1, 5, k=2)["token"].tolist()
    assert found["provenance"]["basis"] == "folded"
    assert "prepend_bos" not in found["provenance"]


def test_table(tiny: fm.Model, tiny_folder: Path) -> None:
    """Both ends of both rankings, each under its neuron's name."""
    out = table("project", "1.5,0.7", "--model", tiny_folder, "--top", 2)
    assert [line.split(":")[0] for line in out.splitlines() if ": what" in line] == [
        "1.5 value",
        "1.5 key",
        "0.7 value",
        "0.7 key",
    ]
    for _, rows in fm.project(tiny, 0, 7, k=2).groupby("side"):
        for score in rows["score"]:
            assert format_number(score, decimals(rows["score"]), sign=True) in out
    assert "basis folded" in out


def test_needs_no_beginning_of_sequence_token(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    """Nothing is read, so a tokenizer without that token must not matter."""
    import copy

    plain = copy.deepcopy(tokenizer)
    plain.bos_token = None  # type: ignore[attr-defined]
    tiny_hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    plain.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert run("project", "0.1", "--model", tmp_path, "--csv").stdout
