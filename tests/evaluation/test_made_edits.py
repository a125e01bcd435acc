"""Edits made elsewhere as an editor, and those that an evaluation made given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, InputTypeError, ModelError
from ffnmem.editing import Edit, EditedLayer, SecondMoment
from ffnmem.evaluation import Scores, evaluate, made, sequential
from ffnmem.facts import Fact

from ..editing.edits import change
from ..helpers import refuses
from .made import EIFFEL, FACTS, LONDON, TOWER, own_editor, probability, random_edits

QUICK: dict[str, Any] = {"draws": 20, "metrics": ("ES", "PS", "NS", "NKL")}
ROME: dict[str, Any] = {**QUICK, "layer": 1, "force": True, "settings": {"steps": 2, "stop": 0.0}, "contexts": ("{}",)}


def test_a_list_of_edits_is_an_editor(tiny64: fm.Model) -> None:
    """Each fact gets its own edit, whatever their order, as from a function that looks them up; without ids, too."""
    edits = random_edits(tiny64)
    scores = evaluate(tiny64, FACTS, own_editor(edits), compare=(made(edits[::-1], "mine"),), **QUICK)
    mine, ready = scores.of("mine").drop(columns="editor"), scores.of("ready").drop(columns="editor")
    pd.testing.assert_frame_equal(mine, ready)
    assert mine["change"].nunique() == len(FACTS)
    facts = [replace(fact, id="") for fact in FACTS[:2]]
    bare = [replace(edit, facts=(fact,), parts=()) for edit, fact in zip(edits, facts, strict=False)]
    for asked, names in ((facts, [fact.text for fact in facts]), (FACTS[:2], ["eiffel", "tower"])):
        found = evaluate(tiny64, asked, made(bare), keep_edits=True, **QUICK)
        assert found.editors == ("made",)
        assert list(found.edits["made"]) == names
        assert list(found.edits["made"].values()) == bare
    unsaid = Edit.of(tiny64, [change(tiny64, 1)], method="mine")
    assert evaluate(tiny64, EIFFEL, made({"eiffel": unsaid}), **QUICK).cases["change"].gt(0).all()


def test_what_was_made_is_given_back_and_taken(tiny64: fm.Model, moment: SecondMoment) -> None:
    """Edits of another fact or editor, or others than those that were measured."""
    scores = evaluate(tiny64, FACTS, moment=moment, compare=("ft_l", "none"), keep_edits=True, **ROME)
    ids = [fact.id for fact in FACTS]
    assert {name: list(edits) for name, edits in scores.edits.items()} == {"rome": ids, "ft_l": ids, "none": []}
    assert all((edit.method, edit.facts[0].id) == ("rome", name) for name, edit in scores.edits["rome"].items())
    assert "edits" not in scores.to_dict()
    again = evaluate(tiny64, FACTS, made(scores.edits["rome"], "rome"), **QUICK)
    pd.testing.assert_frame_equal(again.cases, scores.of("rome"))
    assert again.edits == {}


def test_edits_whose_editor_did_not_look_are_looked_at(tiny64: fm.Model) -> None:
    """Ready factors that do nothing were no failure, and had no share in ``reached``."""
    facts, capture = [EIFFEL, TOWER], fm.capture(tiny64, TOWER.text)
    key = capture.coefficients[2][0, -1:].double()
    (paris,) = tiny64.ids_of(" Paris")
    loud = 1e3 * tiny64.hf_model.get_input_embeddings().weight[[paris]]
    says = Edit.of(tiny64, [EditedLayer(2, key / key.norm() ** 2, loud)], method="mine")
    edit = Edit.of(tiny64, [change(tiny64, 0, size=1e-9)], method="mine")
    nothing = made({"eiffel": edit, "tower": says}, "nothing")
    scores = evaluate(tiny64, facts, nothing, drift=False, **QUICK)
    assert scores.cases["reached"].tolist() == [0.0, 1.0]
    share = f"{probability(tiny64, EIFFEL.text, 'Rome', None):.1%}"
    words = f"the edit of {EIFFEL.text!r} is not reached: with it ' Rome' has a probability of {share}"
    assert scores.failures["failure"].tolist() == [words]
    assert scores.cases["ES"].notna().all()
    row = scores.summary.set_index("metric").loc["reached"]
    assert (row["mean"], row["n"]) == (0.5, 2)
    kept = sequential(tiny64, facts, nothing, at=(1,), drift=False, draws=20, metrics=("ES",))
    assert kept.failures["failure"].tolist() == [words]
    looked = replace(edit, facts=(EIFFEL,), targets=("Rome",), numbers=pd.DataFrame([{"reached": True}]), parts=())
    assert evaluate(tiny64, EIFFEL, made(looked), drift=False, **QUICK).failures.empty


def test_a_fact_without_an_edit_is_a_failure(tiny64: fm.Model) -> None:
    """One fact that nobody edited must cost no other its scores; nor may an edit of something else be scored."""
    edits = random_edits(tiny64)
    other = replace(LONDON, target_new="Paris")
    scores = evaluate(tiny64, [EIFFEL, TOWER, other], made([edits[0], edits[2]], "mine"), **QUICK)
    failures = scores.failures.set_index("id")["failure"]
    assert failures["tower"] == "mine has no edit of fact 'tower'"
    assert failures["london"] == (
        "the edit of fact 'london' is 'London → the France', where 'London → Paris' is asked for"
    )
    assert scores.of().set_index("id")["ES"].notna().to_dict() == {"eiffel": True, "tower": False, "london": False}
    moved = evaluate(tiny64, TOWER, made({"tower": edits[0]}), **QUICK)
    assert "'Eiffel Tower → Rome'" in moved.failures["failure"].iloc[0]


def test_functions_are_told_the_target(tiny64: fm.Model) -> None:
    """One's own editor would edit towards the facts' own targets, and be scored by another one."""
    told = []

    def asked(_model: fm.Model, facts: list[Fact]) -> list[Edit]:
        told.extend(fact.target_new for fact in facts)
        return random_edits(tiny64)[: len(facts)]

    evaluate(tiny64, FACTS[:2], asked, target=" France", **QUICK)
    assert told == ["France", "France"]
    failed = evaluate(tiny64, EIFFEL, made(random_edits(tiny64)), target=" France", **QUICK).failures
    assert "'Eiffel Tower → France' is asked for" in failed["failure"].iloc[0]


def test_a_folder_knows_edits_by_what_they_are(tiny64: fm.Model, tmp_path: Path) -> None:
    """Other edits of the same name would be given the first ones' results."""
    edits = random_edits(tiny64)
    first = evaluate(tiny64, FACTS, made(edits, "mine"), out=tmp_path, **QUICK)
    again = evaluate(tiny64, FACTS, made(edits[::-1], "mine"), out=tmp_path, **QUICK)
    assert again.to_dict() == first.to_dict() == Scores.load(tmp_path / "scores.zip").to_dict()
    with refuses(FileError, OSError, "own_editors", "another folder"):
        evaluate(tiny64, FACTS, made(edits[:2], "mine"), out=tmp_path, **QUICK)
    with refuses(InputError, ValueError, "keep_edits", "out"):
        evaluate(tiny64, FACTS, made(edits, "mine"), out=tmp_path, keep_edits=True, **QUICK)


def test_edits_of_another_model(tiny64: fm.Model, tiny: fm.Model) -> None:
    """What they would do to this one is told before anything is measured; so is that it has them already."""
    edits = random_edits(tiny64)
    with refuses(ModelError, ValueError, tiny64.fingerprint, tiny.fingerprint):
        evaluate(tiny, FACTS[:1], "none", compare=(made(edits[:1]),), **QUICK)
    with edits[0].applied(tiny64), refuses(InputError, ValueError, "applied", "already"):
        evaluate(tiny64, FACTS[:1], made(edits[:1]), **QUICK)


def test_refuses(tiny64: fm.Model) -> None:
    edits: Any = random_edits(tiny64)
    for given, named in (
        ((edits[0] + edits[1],), ("2 facts", "Eiffel Tower", "of its own")),
        (([edits[0], edits[0]],), ("2 edits", "'eiffel'")),
        (([Edit.of(tiny64, [change(tiny64, 1)], method="mine")],), ("which fact", "dict")),
        (([],), ("no edits",)),
        (({3: edits[0]},), ("name of a fact", "3")),
        (({"eiffel": "edit"},), ("an Edit", "'edit'")),
        ((edits, " "), ("' '", "name")),
        ((edits, "none"), ("'none'", "name")),
    ):
        with refuses(InputError, ValueError, *named):
            made(*given)
    for wrong in ({"editor": edits}, {"editor": "none", "compare": edits}):
        with refuses(InputTypeError, TypeError, "fm.evaluation.made"):
            evaluate(tiny64, FACTS, **wrong)
