"""``ffnmem activations``: table, data, figure."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest

from ffnmem.cli.activations import BETA
from ffnmem.ffn import activations
from ffnmem.ffn.activations import activation_table, curves

from .running import data, run, table


@pytest.mark.parametrize("width", [80, 120])
def test_table_shows_the_numbers(width: int) -> None:
    lines = table("activations", width=width).splitlines()
    heads = [index for index, line in enumerate(lines) if " at x = " in line]
    assert [lines[head].split() for head in heads] == [
        [f"{name}(x)", "at", "x", "=", "-2", "-1", "-0.5", "0", "0.5", "1", "2"] for name in ("f", "f′")
    ]
    frame = activation_table()
    for head, column in zip(heads, ("value", "gradient"), strict=True):
        for line, one in zip(lines[head + 2 :], curves(), strict=False):
            expected = frame.loc[frame["title"] == one.title, column]
            assert line.startswith(one.title)
            assert line[len(one.title) :].split() == [f"{y:.4f}" for y in expected]


@pytest.mark.parametrize("width", [60, 80])
def test_many_or_large_points_go_into_further_tables(width: int) -> None:
    """Numbers that a narrow terminal cuts off are lost."""
    points = [str(x) for x in range(-12, 12)]
    out = table("activations", "--at", ",".join(points), "--at", "123456.5", width=width)
    assert "…" not in out
    found = [word for line in out.splitlines() if " at x = " in line for word in line.split()[4:]]
    assert found == [*points, "123456"] * 2 or found == [*points, "123457"] * 2
    assert "123456.5000" in out


def test_points_and_names_as_given() -> None:
    frame = pd.read_csv(
        io.StringIO(run("activations", "gelu_new", "swish", "--at", "-0.5,3", "--at=-7", "--csv").stdout)
    )
    expected = activation_table([-0.5, 3, -7], ["gelu_tanh", "swish"])
    assert list(frame.columns) == ["name", "beta", "x", "value", "gradient"]
    pd.testing.assert_frame_equal(frame, expected[list(frame.columns)], check_exact=True)


def test_beta() -> None:
    assert "Swish (β = 0.5)" in table("activations", "swish", "--beta", 0.5)
    assert BETA == activations.BETA, "written twice, because the library's needs torch"


def test_json_has_all() -> None:
    found = data("activations", "--at", "1")["activations"]
    assert [one["name"] for one in found] == [one.name for one in curves()]
    gelu = found[1]
    assert gelu["formula"] == "xΦ(x)"
    assert gelu["source"]
    assert gelu["beta"] is None
    assert gelu["points"] == [
        {
            "x": 1.0,
            "value": pytest.approx((1 + math.erf(math.sqrt(0.5))) / 2, abs=1e-15),
            "gradient": pytest.approx(1.0833154705876864, abs=1e-15),
        }
    ]
