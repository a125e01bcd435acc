"""``evaluate``: whole evaluations of the tiny model and of atlas."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.editing import Edit, SecondMoment
from ffnmem.evaluation import Scores, evaluate, evaluating
from ffnmem.facts import Probe

from ..editing.edits import made, same_bits, weights
from ..helpers import allclose, refuses
from .made import (
    EIFFEL,
    FACTS,
    LONDON,
    NO_TARGET,
    TEXTS,
    drift_by_hand,
    interrupt_at,
    own_editor,
    plain_metrics,
    random_edits,
    tell,
)

QUICK: dict[str, Any] = {
    "contexts": ("{}", "Paris is in. {}"),
    "settings": {"steps": 2, "stop": 0.0},
    "layer": 1,
    "force": True,
    "draws": 20,
    "metrics": ("ES", "PS", "NS", "NKL"),
}


# The mean of a long answer's tokens is high where they follow from the first; and of two answers one begins the other.
BARE = replace(EIFFEL, neighbours=(), neighbour_prompts=(), probes=(), generation_prompts=())
LONG = replace(BARE, id="long", target_true="Tower of London in the city of")
BEGUN = replace(BARE, id="begun", target_true="Rome", target_new="Rome in the city")
KINDS = ("reverse", "alias")
PROBES = tuple(Probe(kind, "The Eiffel Tower is in the", "Paris") for kind in KINDS)
TOLD = replace(EIFFEL, id="told", target_true="Rome", target_new="Paris", probes=PROBES)


@pytest.mark.parametrize("small", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_equals_whole_passes(tiny64: fm.Model, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, end to end, is what models with each edit in their weights say; the model is untouched.

    With edits beside each other, and one at a time as those that are too large for it. A text about the edited subject
    is meant to change, and no drift.
    """
    if small:
        for name in ("measuring.GATHERED", "texts.GATHERED", "texts.LOGITS"):
            monkeypatch.setattr(f"ffnmem.evaluation.{name}", 0)
    facts = (*FACTS, LONG, BEGUN, TOLD)
    edits = [
        *random_edits(tiny64),
        *(made(tiny64, (1,), seed=7, fact=fact) for fact in (LONG, BEGUN)),
        tell(tiny64, TOLD),
    ]
    before, seen = weights(tiny64), Counter[str]()
    scores = evaluate(tiny64, facts, own_editor(edits), compare=("none",), drift=TEXTS, draws=20)
    assert same_bits(tiny64, before)
    assert list(scores.cases["editor"]) == ["ready", "none"] * len(facts)
    for (_, row), edit, fact in zip(scores.of("ready").iterrows(), edits, facts, strict=True):
        assert row["target"] == fact.target_new
        for name, value in plain_metrics(tiny64, fact, str(fact.target_new), edit).items():
            seen[name] += value > 0
            assert math.isnan(row[name]) if math.isnan(value) else allclose(row[name], value, 1e-9), name
        norms = [c.norm / float(tiny64.ffn[c.layer].values.detach().double().norm()) for c in edit.changes]
        assert allclose(row["change"], max(norms), 1e-12)
        other = tuple(text for text in TEXTS if fact.subject not in text)
        assert allclose(row[["drift_kl", "drift_perplexity"]].tolist(), drift_by_hand(tiny64, other, edit), 1e-9)
    assert all(count for name, count in seen.items() if not name.endswith("_before"))  # or nothing would be compared
    assert math.isnan(scores.of("ready").set_index("id").loc["begun", "ES_first"])
    # What compares two models is not told of one.
    assert not {"NKL_before", "NKL_mean_before", "unrelated_before", "drift_kl_before"} & {*scores.cases}
    none = scores.of("none")
    assert allclose(none["ES"], none["ES_before"], 1e-12)
    assert set(none["drift_perplexity"]) == {1.0}
    assert none[["NKL", "drift_kl"]].max(axis=None) < 1e-12


def test_what_was_not_measured_is_told(tiny64: fm.Model) -> None:
    """A record without paraphrases has no PS: NaN and not counted, rather than a zero; a metric that silently goes
    missing is taken for one that does not exist."""
    scores = evaluate(tiny64, FACTS, own_editor(random_edits(tiny64)), draws=20)
    missing = {"tower": "PS", "london": "NS"}
    assert all(math.isnan(scores.cases.set_index("id").loc[fact, name]) for fact, name in missing.items())
    n = dict(zip(scores.summary["metric"], scores.summary["n"], strict=True))
    assert (n["ES"], n["PS"], n["NS"], n["alias"], n["reverse"], n["S"]) == (3, 2, 2, 0, 1, 2)
    assert "drift_kl" not in scores.cases
    assert scores.missing == {"alias": "no fact has probes of their kind"}
    alone = replace(EIFFEL, neighbours=(), neighbour_prompts=(), paraphrases=(), generation_prompts=())
    scores = evaluate(tiny64, alone, "none", metrics=("S", "drift_kl"), draws=20)
    assert scores.missing == {
        "S": "it takes ES, PS and NS",
        "PS": "no fact has paraphrases",
        "NS": "no fact has neighbours",
        "drift_kl": "there is no text that mentions none of the subjects",
    }
    assert ("NS", "no fact has neighbours") in scores.not_measured.itertuples(index=False, name=None)
    long = replace(alone, paraphrases=("is in " * tiny64.n_ctx + "{} is in",))
    assert evaluate(tiny64, long, "none", metrics=("PS",), draws=20).missing == {
        "PS": "no fact has paraphrases that the model has room for"
    }
    some = evaluate(tiny64, [NO_TARGET, alone], "none", metrics=("ES", "NS"), draws=20)
    assert some.missing == {"NS": "no fact that was edited has neighbours"}
    assert evaluate(tiny64, NO_TARGET, "none", metrics=("ES",), draws=20).missing == {"ES": "no fact was edited"}


def test_failures(tiny64: fm.Model, moment: SecondMoment) -> None:
    """A fact that cannot be edited must be in the table, with its reason and without scores; a long paraphrase must
    not take a fact out of it, nor vanish from it unseen."""
    scores = evaluate(tiny64, [EIFFEL, NO_TARGET], moment=moment, compare=("none",), **QUICK)
    unreached = scores.failures["failure"].str.contains("is not reached")  # a random model's edit, which is measured
    left = scores.failures[~unreached]
    assert list(zip(left["editor"], left["id"], strict=True)) == [("rome", "none"), ("none", "none")]
    assert all("no new target" in reason for reason in left["failure"])
    assert scores.cases.set_index("id").loc["none", ["ES", "change"]].isna().all(axis=None)
    assert set(scores.summary.query("metric == 'ES'")["n"]) == {1}
    long, options = " is in the city of" * 9, {"metrics": ("ES", "PS"), "draws": 20}
    found = evaluate(tiny64, replace(BARE, paraphrases=("The {}" + long, "{} is")), "none", **options).cases.iloc[0]
    assert found["unasked"] == 1
    assert not math.isnan(found["PS"])
    for fact, target, named in (
        (replace(BARE, prompt="The {}" + long), None, "32"),
        (LONDON, "Rome", "'Rome' is its true one already"),
    ):
        assert named in evaluate(tiny64, fact, "none", target=target, **options).failures["failure"].iloc[0]


def test_resumes(tiny64: fm.Model, moment: SecondMoment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped goes on and gives the bytes of one that was not; what is done is not done again."""
    monkeypatch.setattr(evaluating, "CHUNK", 1)
    options = {**QUICK, "moment": moment, "compare": ("memit",)}
    whole = evaluate(tiny64, FACTS, out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny64, FACTS, out=tmp_path / "stopped", progress=interrupt_at(4), **options)
    assert len(list((tmp_path / "stopped" / "chunks").iterdir())) == 2
    assert not (tmp_path / "stopped" / "scores.zip").exists()
    found = evaluate(tiny64, FACTS, out=tmp_path / "stopped", **options)
    pd.testing.assert_frame_equal(found.cases, whole.cases)
    pd.testing.assert_frame_equal(found.summary, whole.summary)
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            assert (tmp_path / "stopped" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()
    monkeypatch.setattr(evaluating.Bench, "table", int)  # all is there: nothing may be measured again
    again = evaluate(tiny64, FACTS, out=tmp_path / "stopped", **options)
    pd.testing.assert_frame_equal(again.cases.astype(object), whole.cases.astype(object))
    assert Scores.load(tmp_path / "whole" / "scores.zip").to_dict() == whole.to_dict()


def test_refuses_another_run(
    tiny64: fm.Model, moment: SecondMoment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts, options or editors of another run in one table."""
    evaluate(tiny64, FACTS[:1], moment=moment, out=tmp_path, **QUICK)
    with refuses(FileError, OSError, "facts", "another folder"):
        evaluate(tiny64, FACTS[:2], moment=moment, out=tmp_path, **QUICK)
    with refuses(FileError, OSError, "options"):
        evaluate(tiny64, FACTS[:1], moment=moment, out=tmp_path, ridge=1e-3, **QUICK)
    with refuses(FileError, OSError, "editors"):
        evaluate(tiny64, FACTS[:1], "memit", moment=moment, out=tmp_path, **QUICK)
    monkeypatch.setattr(tiny64, "prepend_bos", not tiny64.prepend_bos)
    with refuses(FileError, OSError, "prepend_bos"):
        evaluate(tiny64, FACTS[:1], moment=moment, out=tmp_path, **QUICK)


def own(model: fm.Model, facts: list[fm.Fact]) -> list[Edit]:
    return [made(model, fact=fact) for fact in facts]


def other(model: fm.Model, facts: list[fm.Fact]) -> list[Edit]:
    return [made(model, fact=fact, seed=7) for fact in facts]


def test_a_folder_knows_functions_by_their_code(tiny64: fm.Model, tmp_path: Path) -> None:
    """Another function of the same name would be given the first one's results."""
    options: dict[str, Any] = {"draws": 20, "metrics": ("ES",), "out": tmp_path / "one"}
    first = evaluate(tiny64, FACTS[:1], own, **options)
    assert evaluate(tiny64, FACTS[:1], own, **options).to_dict() == first.to_dict()
    other.__name__ = other.__qualname__ = "own"
    with refuses(FileError, OSError, "own_editors"):
        evaluate(tiny64, FACTS[:1], other, **options)
    with refuses(InputError, ValueError, "lambda"):
        evaluate(tiny64, FACTS[:1], lambda model, facts: own(model, facts), **{**options, "out": tmp_path / "two"})


@pytest.mark.parametrize(
    ("facts", "editor", "options", "named"),
    [
        ([], "none", {}, "fact"),
        (FACTS, "none", {"what": 3}, "'what'"),
        (FACTS, "none", {"draws": 0}, "draws"),
        (FACTS, "rome", {}, "second moment"),
        (FACTS, "none", {"protocol": "spoken"}, "generated"),
        (FACTS, "none", {"metrics": ("says",)}, "protocol='generated'"),
        (FACTS, "none", {"others": FACTS}, "others"),
        (FACTS, "none", {"drift": ["a b", " "]}, "drift"),
        (FACTS, "none", {"drift": []}, "drift"),
    ],
)
def test_refuses(tiny64: fm.Model, facts: Any, editor: str, options: dict[str, Any], named: str) -> None:
    """Mistakes are told before minutes of work."""
    with refuses(InputError, ValueError, named):
        evaluate(tiny64, facts, editor, **options)


def test_atlas(atlas: fm.Model) -> None:
    """ROME rewrites facts of the embedded model, and what is unrelated hardly moves."""
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new and fact.neighbours]
    some = random.Random(0).sample(facts, 3)
    scores = evaluate(atlas, some, layer=1, metrics=("S", "exact", "drift_kl"), contexts=("{}", "I know that {}"))
    means = scores.summary.set_index("metric")["mean"]
    assert means[["ES", "exact", "S"]].tolist() >= [100, 100, 60]
    assert means["drift_kl"] < 0.01
    assert scores.cases["ES_before"].max() == 0.0
    assert len(scores.failures) == 0
