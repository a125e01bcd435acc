"""``ffnmem project`` of a whole model, of a token, and in a file."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.vocabulary import read_projection

from .running import data, mistake, run, table


@pytest.fixture(scope="module")
def file(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("projection") / "values.parquet"
    run("project", "all", "--out", out, "--model", tiny_folder, "--top", 3)
    return out


def csv(*args: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(run(*args, "--csv").stdout), keep_default_na=False)


def test_all_is_the_librarys(tiny: fm.Model, file: Path) -> None:
    """The command would write another table than the library."""
    expected = fm.project(tiny, k=3)
    found = read_projection(file)
    for column in expected.columns:
        assert found[column].tolist() == expected[column].tolist()


def test_all_says_what_it_wrote(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The path by itself on a line, so that it can be copied; the counts are those of the file."""
    out = tmp_path / "one layer.parquet"
    asked = ["project", "all", "--layer", 1, "--out", out, "--model", tiny_folder, "--top", 2, "--side", "value"]
    shown = run(*asked)
    assert shown.stdout.splitlines()[:3] == [f"model  {tiny_folder}", "", str(out)]
    assert "64 neurons, value, 2 + 2 tokens: 256 rows" in shown.stdout
    assert shown.stderr == ""
    rows = read_projection(out)
    assert set(rows["layer"]) == {1}
    found = data(*asked)
    assert found["rows"] == len(rows) == 256
    assert found["neurons"] == 64
    assert found["bytes"] == out.stat().st_size
    assert found["provenance"]["basis"] == "folded"
    assert csv(*asked).iloc[0].to_dict() == {name: found[name] for name in ("file", "neurons", "rows", "bytes")}


@pytest.mark.parametrize("side", [None, "value", "key", "both"])
def test_token_is_the_librarys(side: str | None, tiny: fm.Model, tiny_folder: Path) -> None:
    asked = ["project", "token", " Paris", "--model", tiny_folder, "--top", 3, *(["--side", side] if side else [])]
    expected = fm.vocabulary.promoters(
        tiny, " Paris", k=3, side=("value", "key") if side == "both" else side or "value"
    )
    pd.testing.assert_frame_equal(csv(*asked), expected, rtol=1e-6)
    out = table(*asked)
    for row in expected.itertuples():
        assert f"{row.layer}.{row.neuron}" in out
    assert "' Paris'" in out


def test_several_tokens_and_one_layer(tiny: fm.Model, tiny_folder: Path) -> None:
    asked = ["project", "token", " Paris", " Rome", "--layer", 1, "--basis", "raw", "--model", tiny_folder]
    expected = fm.vocabulary.promoters(tiny, [" Paris", " Rome"], layer=1, basis="raw")
    found = data(*asked)
    assert [row["neuron"] for row in found["neurons"]] == expected["neuron"].tolist()
    assert found["neurons"][0]["tokens"] == [" Paris", " Rome"]
    assert csv(*asked)["tokens"].iloc[0] == '[" Paris", " Rome"]'
    assert "' Paris', ' Rome'" in table(*asked)
    assert run("project", "token", " Colosseum", "--first-token", "--model", tiny_folder, "--csv").stdout


def test_search_is_the_librarys(file: Path) -> None:
    """Without loading any model."""
    word = next(t for t in read_projection(file)["token"] if t.isalpha())
    for extra, options in (
        (["--side", "key"], {"side": "key"}),
        (["--exact"], {"exact": True}),
        (["--side", "both"], {}),
        ([], {}),
    ):
        text = word if extra == ["--exact"] else "a"
        asked = ["project", "search", text, "--in", file, "--top", 4, *extra]
        expected = fm.vocabulary.search_projection(file, text, limit=4, **options)
        assert len(expected)
        pd.testing.assert_frame_equal(csv(*asked), expected, rtol=1e-6)
    assert [row["rank"] for row in data(*asked)["tokens"]] == expected["rank"].tolist()
    first = expected.iloc[0]
    assert f"{first['layer']}.{first['neuron']}" in table(*asked)
    assert "no token in this file matches" in table("project", "search", "zzzz", "--in", file)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], ("NEURONS",)),
        (["0.1", "--exact"], ("Unknown option: --exact",)),
        (["all"], ("--out",)),
        (["search", "x"], ("--in",)),
        (["search", "x", "--in", "no/such/file"], ("no/such/file",)),
        (["search", "", "--in", "y"], ("empty",)),
        (["token", " Colosseum", "--model", "{tiny}"], ("' Colosseum'", "--first-token")),
        (["token", "", "--model", "{tiny}"], ("empty",)),
        (["token", " Paris", "--layer", "9", "--model", "{tiny}"], ("layer 9",)),
        (["all", "--out", "no/such/folder.parquet"], ("no/such",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(args: list[str], named: tuple[str, ...], tiny_folder: Path) -> None:
    """An option that does nothing would let its user believe that it did."""
    mistake("project", *(arg.format(tiny=tiny_folder) for arg in args), named=named)
