"""Edits by layer; the layer that a sweep chose, kept for a model; what a trace tells of it beside its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, FileError, InputError
from ffnmem.core.provenance import Provenance
from ffnmem.editing import SecondMoment, kept_choice
from ffnmem.editing.layer_choice import choice_file
from ffnmem.evaluation import Scores, Sweep, choose_layer, evaluate, layer_sweep, sweeping, trace_against_layer
from ffnmem.evaluation.metrics import ABOUT, NUMBERS
from ffnmem.evaluation.traced import traced_table
from ffnmem.tracing.maps import Trace, Traces

from ..helpers import allclose, printed, refuses
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
    assert "rome in layers 0, 1" in repr(sweep)
    assert any(line.startswith("best   layer ") for line in printed(sweep.sheet()))
    assert json.loads(json.dumps(sweep.to_dict(), allow_nan=False))["editor"] == "rome"
    for call, named in (
        (lambda: sweep.best("GE"), "'GE'"),
        (lambda: layer_sweep(tiny64, FACTS, editor="none"), "none"),  # which would draw a flat line
        (lambda: layer_sweep(tiny64, FACTS, compare=("memit",)), "compare"),
        (lambda: layer_sweep(tiny64, FACTS, layers=(0, -3)), "layers"),
    ):
        with refuses(InputError, ValueError, named):
            call()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FFNMEM_CACHE", str(tmp_path))
    return tmp_path


def test_a_choice_is_kept(tiny64: fm.Model, moment: SecondMoment, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best layer of the sweep; found again without another one, for these facts and this editor only."""
    with refuses(InputError, ValueError, "no layer was chosen", "sweep --keep"):
        kept_choice(tiny64)
    choice = choose_layer(tiny64, FACTS, layers=(0, 1), moment=moment, **OPTIONS)
    means = choice.frame[choice.frame["metric"] == "S"].set_index("layer")["mean"]
    assert choice.layer == means.idxmax()
    assert choice_file(tiny64).parent.parent == cache
    assert kept_choice(tiny64).to_dict() == choice.to_dict()
    assert "6 edits in" in choice.cost
    monkeypatch.setattr(sweeping, "layer_sweep", None)
    assert choose_layer(tiny64, FACTS, layers=(0, 1), moment=moment, **OPTIONS).to_dict() == choice.to_dict()
    both: dict[str, Any] = {"layers": (0, 1)}
    for other in ({"layers": (1,)}, {**both, "metric": "ES"}, {**both, "again": True}, {**both, "target": "Oslo"}):
        with pytest.raises(TypeError):
            choose_layer(tiny64, FACTS, moment=moment, **OPTIONS, **other)
    path = choice_file(tiny64)
    path.write_bytes(path.read_bytes()[:-90])
    with refuses(FileError, OSError, path.name):
        kept_choice(tiny64)


def test_an_evaluation_says_how_its_layer_was_chosen(tiny64: fm.Model, moment: SecondMoment, cache: Path) -> None:
    """A default by depth that looks like a choice; facts that judge the layer they chose."""
    options = {**OPTIONS, "moment": moment, "metrics": ("ES",)}
    by_depth = evaluate(tiny64, FACTS[2], **options)
    choice = choose_layer(tiny64, FACTS[:2], layers=(0, 1), moment=moment, **OPTIONS)
    swept = evaluate(tiny64, FACTS[2], layer="swept", **options)
    given = evaluate(tiny64, FACTS[2], layer=choice.layer, **options)
    pd.testing.assert_frame_equal(swept.cases, given.cases)
    by = [one.settings["layer_by"] for one in (by_depth, swept, given, evaluate(tiny64, FACTS[2], **options))]
    assert by == ["depth", "sweep", "given", "sweep"]
    assert swept.provenance.to_dict()["layer_by"] == "sweep"
    with pytest.warns(FfnmemWarning, match="chosen with 1 of these 2 facts"):
        evaluate(tiny64, (FACTS[0], FACTS[2]), layer="swept", **options)


def made_sweep(y: np.ndarray, provenance: Provenance) -> Sweep:
    about = dict.fromkeys(ABOUT, "x") | dict.fromkeys(NUMBERS, np.nan) | {"unasked": 0, "failure": ""}
    rows = [[about | {"id": f"f{i}", "EM": score} for i, score in enumerate(column)] for column in y.T]
    return Sweep({layer: Scores(pd.DataFrame(own), {}, provenance) for layer, own in enumerate(rows)}, provenance)


def made_traces(x: np.ndarray, provenance: Provenance) -> Traces:
    """Of the subject's last token, the second of three, alone."""
    about: dict[str, Any] = {"clean": 1.0, "samples": np.zeros(1), "answer": " x", "answer_ids": (0,), "text": "a b c"}
    about |= {"tokens": ("a", " b", " c"), "subject": range(2), "window": 1, "noise": 1.0, "seed": 0}
    scores = [{"state": np.column_stack([0 * row, row, 0 * row])} for row in x]
    own = (Trace(scores=one, fact=f"f{i}", provenance=provenance, **about) for i, one in enumerate(scores))
    return Traces(tuple(own), pd.DataFrame(columns=["fact", "subject", "reason"]), provenance)


def test_a_trace_against_the_layer(tiny64: fm.Model) -> None:
    """R² of a mean a layer, and with a slope beside it, by least squares; a trace that tells all, and one nothing."""
    generator, of, layers = np.random.default_rng(1), tiny64.provenance(True), np.arange(3)
    x = generator.normal(size=(12, 3)) + layers
    scores = {
        "some": 0.3 * x + generator.normal(size=x.shape) - layers**2,
        "all": 2 * x + layers,
        "nothing": np.tile(layers, (12, 1)) + 0.1 * generator.normal(size=x.shape),
    }
    found = {
        name: trace_against_layer(made_sweep(y, of), made_traces(x, of), ("EM",), draws=50).iloc[0]
        for name, y in scores.items()
    }
    y, row = scores["some"], found["some"]
    dummies = np.tile(np.eye(3), (12, 1))

    def r2(design: np.ndarray) -> float:
        rest = y.ravel() - design @ np.linalg.lstsq(design, y.ravel(), rcond=None)[0]
        return float(1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum())

    assert allclose(row["r"], np.corrcoef(x.ravel(), y.ravel())[0, 1], 1e-12)
    assert allclose(row["r2_layer"], r2(dummies), 1e-12)
    assert allclose(row["r2_both"], r2(np.column_stack([dummies, x.ravel()])), 1e-12)
    assert allclose(row["gain"], row["r2_both"] - row["r2_layer"], 1e-12)
    assert allclose(found["all"]["r2_both"], 1.0, 1e-9)
    shown = [line.split() for line in printed(traced_table(pd.DataFrame([row])), 200)]
    figures = [f"{row[name]:.3f}" for name in ("r", "within", "r2_layer", "r2_both", "gain")]
    assert ["state", "EM", *figures, f"{row['gain_low']:.3f}–{row['gain_high']:.3f}"] in shown
    none = found["nothing"]
    assert none["r2_layer"] > 0.95
    assert none["gain"] < 0.02
    assert none["gain_low"] <= none["gain"] <= none["gain_high"]
    for n in (3, 4, 5):
        # One fact has no score, and one was not edited.
        scored = np.vstack([x[:n], np.full(3, np.nan)])
        few = trace_against_layer(made_sweep(scored, of), made_traces(x[: n + 2], of), ("EM",), draws=20)
        assert few["facts"].tolist() == [n]
        (line,) = (line for line in printed(traced_table(few), 200) if line.startswith("state"))
        assert (line.split()[-1] == "–") == (n < 5)  # an interval of few would say more than is known
    with refuses(InputError, ValueError, "2 facts"):
        trace_against_layer(made_sweep(x[:2], of), made_traces(x[:2], of), ("EM",))
    with refuses(InputError, ValueError, "'PM'"):
        trace_against_layer(made_sweep(x, of), made_traces(x, of), ("PM",))
