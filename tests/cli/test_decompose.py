"""``ffnmem decompose``: one layer's output, whose shares come to 100%."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm

from .running import PROMPT, data, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["decompose", PROMPT, "--model", tiny_folder, "--layer", "-1", "--position", "2"]


@pytest.fixture
def expected(tiny: fm.Model) -> pd.DataFrame:
    return fm.decompose(fm.capture(tiny, PROMPT), 1, 2)


def test_json_is_the_librarys(asked: list[Any], expected: pd.DataFrame) -> None:
    found = data(*asked, "--top", 5)
    assert found["layer"] == 1
    assert found["position"] == 2
    assert found["tokens"][2] == " Eiffel"
    assert found["error"] == pytest.approx(expected.attrs["error"], abs=1e-7)
    assert found["neurons"] == [*expected.head(5).to_dict("records"), *expected.tail(1).to_dict("records")]
    assert found["provenance"]["fingerprint"] == expected.attrs["provenance"]["fingerprint"]


def test_csv_has_every_neuron_and_the_bias(asked: list[Any], expected: pd.DataFrame) -> None:
    result = run(*asked, "--top", 1000000, "--csv")
    assert result.stderr == ""
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected)


@pytest.mark.parametrize("top", [5, 1000])
def test_table_comes_to_all(asked: list[Any], top: int) -> None:
    """Listed neurons, the others and the bias are all there is."""
    out = table(*asked, "--top", top)
    body = out[out.index("──") :]
    shares = [float(share) for share in re.findall(r"(-?\d+\.\d)%", body)]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.05 * len(shares))
    assert ("59 more" in out) == (top == 5)
    assert "·Eiffel, position 2 of 0 to 8" in out
    assert "layer 1 writes a vector of norm" in out


def test_a_layer_by_transformer_lens_name(asked: list[Any]) -> None:
    """Python takes the name of a place wherever a layer is asked for, and people copy it from there."""
    place = [*asked[:5], "blocks.1.hook_mlp_out", *asked[6:]]
    assert data(*place) == data(*asked)
    asked[5] = "blocks.1.hook_mlp_uot"
    assert "blocks.1.hook_mlp_out" in run(*asked, status=2).stderr
