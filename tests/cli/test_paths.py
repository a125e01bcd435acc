"""``ffnmem paths``: the logit as a sum over memories of every position."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm

from .running import PROMPT, data, mistake, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["paths", PROMPT, "--target", " Paris", "--foil", " Rome", "--model", tiny_folder]


@pytest.fixture
def expected(tiny: fm.Model) -> fm.prompts.PathAttribution:
    return fm.attribute_paths(fm.capture(tiny, PROMPT), " Paris", " Rome")


def test_json_is_the_librarys(asked: list[Any], expected: fm.prompts.PathAttribution) -> None:
    found, wanted = data(*asked, "--top", 4), expected.to_dict(4)
    assert found["firings"] == wanted["firings"]
    assert found["map"] == wanted["map"]
    assert found["components"] == wanted["components"]
    assert found["foil"] == " Rome"
    assert found["error"] < 1e-4


def test_csv_is_the_firings(asked: list[Any], expected: fm.prompts.PathAttribution) -> None:
    result = run(*asked, "--top", 6, "--csv")
    assert result.stderr == ""
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected.top(6))


def test_table_tells_positions_and_firings(asked: list[Any], expected: fm.prompts.PathAttribution) -> None:
    out = table(*asked, "--top", 3)
    first = expected.top(1).iloc[0]
    assert re.search(
        rf"^{first['layer']}\.{first['neuron']} +{re.escape(first['token'].replace(' ', '·'))} ", out, re.M
    )
    memories = float(expected.map.sum())
    assert f"wrote {memories:+.3f} of it" in out
    assert "logit     " in out
    by_position = out[out.index("fired at") : out.index("neuron")]
    assert len(by_position.strip().splitlines()) == 2 + len(expected.tokens)


def test_a_long_prompt_sums_up_the_rest(tiny_folder: Path) -> None:
    out = table("paths", "The city of Paris is in the city of Rome in the city of", "--model", tiny_folder)
    assert re.search(r"^\d+ more", out, re.M)


def test_a_position_out_of_range(asked: list[Any]) -> None:
    mistake(*asked, "--position", "99", named=("position 99", "0 to 8"))


def test_plot(asked: list[Any], tmp_path: Path) -> None:
    figure = tmp_path / "paths.svg"
    result = run(*asked, "--plot", figure, "--json")
    assert "wrote" in result.stderr
    assert figure.read_text().count("<svg") == 1
    mistake(*asked, "--plot", "paths.bmp", named=("paths.bmp", ".png"))
