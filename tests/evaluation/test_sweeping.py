"""Edits by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import SecondMoment
from ffnmem.evaluation import Sweep, evaluate, layer_sweep

from ..helpers import printed, refuses
from .made import FACTS
from .test_evaluating import QUICK

OPTIONS = {name: value for name, value in QUICK.items() if name != "layer"}


@pytest.fixture(scope="module")
def sweep(tiny64: fm.Model, moment: SecondMoment) -> Sweep:
    return layer_sweep(tiny64, FACTS, layers=(0, -2), moment=moment, **OPTIONS)


def test_equals_evaluations(tiny64: fm.Model, moment: SecondMoment, sweep: Sweep) -> None:
    """A layer's scores are those of an evaluation in that layer."""
    assert list(sweep.scores) == [0, 1]
    expected = evaluate(tiny64, FACTS, moment=moment, **QUICK)
    pd.testing.assert_frame_equal(sweep.scores[1].cases, expected.cases)
    rows = sweep.frame[sweep.frame["layer"] == 1].drop(columns="layer").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, expected.summary.drop(columns="editor"))


def test_best(sweep: Sweep) -> None:
    """The layer with the largest mean, of what was measured."""
    means = sweep.frame[sweep.frame["metric"] == "NKL"].set_index("layer")["mean"]
    assert sweep.best("NKL") == means.idxmax()
    with refuses(InputError, ValueError, "'GE'"):
        sweep.best("GE")


def test_progress_and_folders(tiny64: fm.Model, moment: SecondMoment, tmp_path: Path) -> None:
    """Each layer can be gone on with by itself, and progress never falls back."""
    told: list[tuple[int, int]] = []
    layer_sweep(
        tiny64,
        FACTS[:1],
        moment=moment,
        out=tmp_path,
        progress=lambda *at: told.append(at[1:]),
        layers=(0, 2),
        **OPTIONS,
    )
    assert told == [(1, 2), (2, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer-00", "layer-02"]


def test_shown(sweep: Sweep) -> None:
    """A line, a table, and plain values."""
    assert "rome in layers 0, 1" in repr(sweep)
    assert "rome by layer, in percent" in sweep._repr_html_()
    assert any(line.startswith("best   layer ") for line in printed(sweep.sheet()))
    assert json.loads(json.dumps(sweep.to_dict(), allow_nan=False))["editor"] == "rome"
    assert sweep.to_frame() is not sweep.frame


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"editor": "embedding_swap"}, "embedding_swap"),
        ({"compare": ("memit",)}, "compare"),
        ({"layers": (0, -3)}, "layers"),
    ],
)
def test_refuses(tiny64: fm.Model, options: dict[str, Any], named: str) -> None:
    """An editor without a layer would draw a flat line."""
    with refuses(InputError, ValueError, named):
        layer_sweep(tiny64, FACTS, **options)
