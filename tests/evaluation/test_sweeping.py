"""Edits by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import SecondMoment
from ffnmem.evaluation import evaluate, layer_sweep

from ..helpers import refuses
from .made import FACTS
from .test_evaluating import QUICK

OPTIONS: dict[str, Any] = {name: value for name, value in QUICK.items() if name != "layer"}


def test_a_layers_scores_are_those_of_an_evaluation(tiny64: fm.Model, moment: SecondMoment, tmp_path: Path) -> None:
    """Each layer can be gone on with by itself, and progress never falls back."""
    told: list[tuple[int, int]] = []
    sweep = layer_sweep(
        tiny64, FACTS, layers=(0, -2), moment=moment, out=tmp_path, progress=lambda *at: told.append(at[1:]), **OPTIONS
    )
    assert told == sorted(told)
    assert told[-1] == (6, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer-00", "layer-01"]
    expected = evaluate(tiny64, FACTS, moment=moment, **QUICK)
    pd.testing.assert_frame_equal(sweep.scores[1].cases, expected.cases)
    rows = sweep.frame[sweep.frame["layer"] == 1].drop(columns="layer").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, expected.summary.drop(columns="editor"))
    best = sweep.frame[sweep.frame["metric"] == "NKL"].set_index("layer")["mean"].idxmax()
    assert sweep.best("NKL") == best
    assert sweep.verdict.startswith(f"rome does best in layer {sweep.best()}: ")
    assert json.loads(json.dumps(sweep.to_dict(), allow_nan=False))["editor"] == "rome"
    for call, named in (
        (lambda: sweep.best("drift_kl"), "'drift_kl'"),
        (lambda: layer_sweep(tiny64, FACTS, editor="none"), "none"),  # which would draw a flat line
        (lambda: layer_sweep(tiny64, FACTS, compare=("memit",)), "compare"),
        (lambda: layer_sweep(tiny64, FACTS, layers=(0, -3)), "layers"),
    ):
        with refuses(InputError, ValueError, named):
            call()
