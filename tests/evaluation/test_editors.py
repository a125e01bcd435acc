"""Editors by name, whose edits are what the editor itself makes of a fact alone; and edits that are there already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, InputTypeError, ModelError, OutOfRangeError, unwarned
from ffnmem.core.number_text import format_probability
from ffnmem.core.types import WITHOUT_MOMENT
from ffnmem.editing import (
    Edit,
    EditedLayer,
    SecondMoment,
    alphaedit,
    ft_l,
    memit,
    preparing,
    rome,
)
from ffnmem.editing.preparing import EditPlan, find_values
from ffnmem.editing.values import FoundValue
from ffnmem.evaluation import EDITORS, Scores, editors, evaluate, made, sequential
from ffnmem.facts import Fact

from ..editing.edits import change
from ..helpers import allclose, refuses
from .made import EIFFEL, FACTS, LONDON, NO_TARGET, TOWER, own_editor, probability, random_edits

CONTEXTS = ("{}", "Paris is in. {}")
SETTINGS = {"optimiser": "adam", "steps": 3, "stop": 0.0}
SHARED: dict[str, Any] = {"contexts": CONTEXTS, "settings": SETTINGS, "force": True}
THEIRS = {**SHARED, "settings": {"base": "published", "steps": 3, "stop": 0.0}}
QUICK: dict[str, Any] = {"contexts": CONTEXTS, "settings": SETTINGS, "layer": 1, "metrics": ("ES",), "draws": 5}


def edited(model: fm.Model, moment: SecondMoment | None, *names: str, facts: Any = FACTS, **more: Any) -> Scores:
    options = {**QUICK, **more}
    options["settings"] = None if names == ("ft_l",) else options["settings"]  # which it has itself
    return evaluate(model, facts, names[0], compare=names[1:], moment=moment, keep_edits=True, **options)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "rome": (rome, SHARED, {"force": True}),
    "rome_original": (rome, THEIRS, {"force": True}),
    "memit": (memit, {**SHARED, "layers": 2, "norm": 0.3}, {"force": True, "layers": 2, "norm": 0.3}),
    "memit_original": (memit, {**THEIRS, "layers": 2}, {"force": True, "layers": 2}),
    "alphaedit": (alphaedit, {**SHARED, "threshold": 0.5}, {"force": True, "threshold": 0.5}),
    "alphaedit_original": (alphaedit, {**THEIRS, "threshold": 0.5}, {"force": True, "threshold": 0.5}),
    "ft_l": (ft_l, {"steps": 3}, {"steps": 3}),
}


def test_every_name_is_tested() -> None:
    """An editor that nobody compared with its function may be another one."""
    assert {*CALLS, "none"} == set(EDITORS)


@pytest.mark.parametrize("name", CALLS)
def test_equals_the_editor_itself(tiny64: fm.Model, moment: SecondMoment, name: str) -> None:
    """A default that was copied wrong, a v* of another fact, options that do not arrive."""
    editor, options, given = CALLS[name]
    more: dict[str, Any] = {"layer": 1}
    if name != "ft_l":
        more["moment"] = moment
    made = edited(tiny64, moment, name, **given).edits[name]
    for fact in FACTS:
        with unwarned():  # of a change that is large: what is edited is random
            expected = editor(tiny64, fact, **options, **more)
        found = made[fact.id]
        assert (found.method, found.targets, found.layers) == (expected.method, expected.targets, expected.layers)
        for a, b in zip(found.changes, expected.changes, strict=True):
            assert allclose(a.delta(), b.delta(), 1e-8)
            assert a.norm > 0
        same = {name: value for name, value in expected.settings.items() if name != "previous"}
        assert found.settings == same
    seeded = {key: value for key, value in {**options, **more}.items() if key != "contexts"}  # which are drawn then
    asked = dict(seeded)
    if name.endswith("_original"):
        asked["settings"] = {key: value for key, value in options["settings"].items() if key != "base"}
    seed = {} if name in WITHOUT_MOMENT else {"seed": 3}
    with unwarned():
        expected = editor(tiny64, LONDON, **seeded, **seed)
        again = editors.edit_by(name, tiny64, LONDON, str(LONDON.target_new), seed=3, options=asked)
    assert again.targets == expected.targets
    assert all(torch.equal(a.delta(), b.delta()) for a, b in zip(again.changes, expected.changes, strict=True))


def test_values_are_found_once(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten editors that each find v* take ten times as long; there is ours, ROME's and MEMIT's."""
    calls = []

    def counted(plan: EditPlan, **more: Any) -> list[FoundValue]:
        calls.append(1)
        return find_values(plan, **more)

    monkeypatch.setattr(editors, "find_values", counted)
    names = tuple(name for name, editor in EDITORS.items() if editor.procedure is not None)
    made = edited(tiny64, moment, *names, facts=[EIFFEL], threshold=0.5, force=True).edits
    assert [list(own) for own in made.values()] == [["eiffel"]] * 6
    assert calls == [1] * 3


def test_failures(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that cannot be edited, or whose edit the guard refuses, costs no other its edit, and says why."""

    def picky(_model: fm.Model, facts: list[Fact]) -> Any:  # asked for all at once, then for each
        if TOWER in facts:
            raise InputError("not the Tower")
        return random_edits(tiny64)[0] if len(facts) == 1 else []

    facts = [EIFFEL, NO_TARGET, TOWER]
    found = edited(tiny64, moment, "rome", "ft_l", picky, facts=facts, force=True)  # type: ignore[arg-type]
    assert {name: list(own) for name, own in found.edits.items()} == {
        "rome": ["eiffel", "tower"],
        "ft_l": ["eiffel", "tower"],
        "picky": ["eiffel"],
    }
    assert "not the Tower" in found.failures["failure"].tolist()
    assert found.failures["failure"].str.contains("no new target").sum() == 3
    monkeypatch.setattr(preparing, "CHANGE_LIMIT", 0.0)
    (failure,) = edited(tiny64, moment, "rome", facts=[EIFFEL]).failures["failure"]
    assert "force=True" in failure


def test_what_is_recorded(tiny64: fm.Model, moment: SecondMoment) -> None:
    """A setting that is not recorded makes two runs look alike."""
    found = edited(tiny64, moment, "rome", facts=[EIFFEL], ridge=1e-3).settings
    assert (found["settings"]["steps"], found["contexts"], found["options"]) == (3, list(CONTEXTS), {"ridge": 1e-3})
    assert found["second_moment"] == {"tokens": moment.count, "corpus": moment.corpus_hash}


@pytest.mark.parametrize(
    ("names", "options", "named"),
    [
        (("roam",), {}, ("'roam'", "'rome'")),
        (("rome", "rome"), {}, ("'rome'", "twice")),
        (("rome",), {"weight": 3.0}, ("'weight'", "rome", "ridge")),
        (("alphaedit",), {"threshold": 1e-30}, ("threshold",)),
        (("memit",), {"layers": 3}, ("layers",)),
        (("rome",), {"layer": 7}, ("layer 7",)),
    ],
    ids=str,
)
def test_refuses(
    tiny64: fm.Model, moment: SecondMoment, names: tuple[str, ...], options: dict[str, Any], named: tuple[str, ...]
) -> None:
    """An option that nobody takes does nothing; one out of range would be the failure of every fact."""
    if "layer" in options:
        with refuses(OutOfRangeError, IndexError, *named):
            edited(tiny64, moment, *names, **options)
        return
    with refuses(InputError, ValueError, *named):
        edited(tiny64, moment, *names, **options)


FEW: dict[str, Any] = {"draws": 20, "metrics": ("ES", "PS", "NS", "NKL")}
ROME: dict[str, Any] = {**FEW, "layer": 1, "force": True, "settings": {"steps": 2, "stop": 0.0}, "contexts": ("{}",)}


def test_a_list_of_edits_is_an_editor(tiny64: fm.Model) -> None:
    """Each fact gets its own edit, whatever their order, as from a function that looks them up; without ids, too."""
    edits = random_edits(tiny64)
    scores = evaluate(tiny64, FACTS, own_editor(edits), compare=(made(edits[::-1], "mine"),), **FEW)
    mine, ready = scores.of("mine").drop(columns="editor"), scores.of("ready").drop(columns="editor")
    pd.testing.assert_frame_equal(mine, ready)
    assert mine["change"].nunique() == len(FACTS)
    facts = [replace(fact, id="") for fact in FACTS[:2]]
    bare = [replace(edit, facts=(fact,), parts=()) for edit, fact in zip(edits, facts, strict=False)]
    for asked, names in ((facts, [fact.text for fact in facts]), (FACTS[:2], ["eiffel", "tower"])):
        found = evaluate(tiny64, asked, made(bare), keep_edits=True, **FEW)
        assert found.editors == ("made",)
        assert list(found.edits["made"]) == names
        assert list(found.edits["made"].values()) == bare
    unsaid = Edit.of(tiny64, [change(tiny64, 1)], method="mine")
    assert evaluate(tiny64, EIFFEL, made({"eiffel": unsaid}), **FEW).cases["change"].gt(0).all()


def test_what_was_made_is_given_back_and_taken(tiny64: fm.Model, moment: SecondMoment) -> None:
    """Edits of another fact or editor, or others than those that were measured."""
    scores = evaluate(tiny64, FACTS, moment=moment, compare=("ft_l", "none"), keep_edits=True, **ROME)
    ids = [fact.id for fact in FACTS]
    assert {name: list(edits) for name, edits in scores.edits.items()} == {"rome": ids, "ft_l": ids, "none": []}
    assert all((edit.method, edit.facts[0].id) == ("rome", name) for name, edit in scores.edits["rome"].items())
    assert "edits" not in scores.to_dict()
    again = evaluate(tiny64, FACTS, made(scores.edits["rome"], "rome"), **FEW)
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
    scores = evaluate(tiny64, facts, nothing, drift=False, **FEW)
    assert scores.cases["reached"].tolist() == [0.0, 1.0]
    share = format_probability(probability(tiny64, EIFFEL.text, "Rome", None))
    words = f"the edit of {EIFFEL.text!r} is not reached: with it ' Rome' has a probability of {share}"
    assert scores.failures["failure"].tolist() == [words]
    assert scores.cases["ES"].notna().all()
    row = scores.summary.set_index("metric").loc["reached"]
    assert (row["mean"], row["n"]) == (0.5, 2)
    kept = sequential(tiny64, facts, nothing, at=(1,), drift=False, draws=20, metrics=("ES",))
    assert kept.failures["failure"].tolist() == [words]
    looked = replace(edit, facts=(EIFFEL,), targets=("Rome",), numbers=pd.DataFrame([{"reached": True}]), parts=())
    assert evaluate(tiny64, EIFFEL, made(looked), drift=False, **FEW).failures.empty


def test_a_fact_without_an_edit_is_a_failure(tiny64: fm.Model) -> None:
    """One fact that nobody edited must cost no other its scores; nor may an edit of something else be scored."""
    edits = random_edits(tiny64)
    other = replace(LONDON, target_new="Paris")
    scores = evaluate(tiny64, [EIFFEL, TOWER, other], made([edits[0], edits[2]], "mine"), **FEW)
    failures = scores.failures.set_index("id")["failure"]
    assert failures["tower"] == "mine has no edit of fact 'tower'"
    assert failures["london"] == (
        "the edit of fact 'london' is 'London → the France', where 'London → Paris' is asked for"
    )
    assert scores.of().set_index("id")["ES"].notna().to_dict() == {"eiffel": True, "tower": False, "london": False}
    moved = evaluate(tiny64, TOWER, made({"tower": edits[0]}), **FEW)
    assert "'Eiffel Tower → Rome'" in moved.failures["failure"].iloc[0]


def test_functions_are_told_the_target(tiny64: fm.Model) -> None:
    """One's own editor would edit towards the facts' own targets, and be scored by another one."""
    told = []

    def asked(_model: fm.Model, facts: list[Fact]) -> list[Edit]:
        told.extend(fact.target_new for fact in facts)
        return random_edits(tiny64)[: len(facts)]

    evaluate(tiny64, FACTS[:2], asked, target=" France", **FEW)
    assert told == ["France", "France"]
    failed = evaluate(tiny64, EIFFEL, made(random_edits(tiny64)), target=" France", **FEW).failures
    assert "'Eiffel Tower → France' is asked for" in failed["failure"].iloc[0]


def test_a_folder_knows_edits_by_what_they_are(tiny64: fm.Model, tmp_path: Path) -> None:
    """Other edits of the same name would be given the first ones' results."""
    edits = random_edits(tiny64)
    first = evaluate(tiny64, FACTS, made(edits, "mine"), out=tmp_path, **FEW)
    again = evaluate(tiny64, FACTS, made(edits[::-1], "mine"), out=tmp_path, **FEW)
    assert again.to_dict() == first.to_dict() == Scores.load(tmp_path / "scores.zip").to_dict()
    with refuses(FileError, OSError, "own_editors", "another folder"):
        evaluate(tiny64, FACTS, made(edits[:2], "mine"), out=tmp_path, **FEW)
    with refuses(InputError, ValueError, "keep_edits", "out"):
        evaluate(tiny64, FACTS, made(edits, "mine"), out=tmp_path, keep_edits=True, **FEW)


def test_edits_of_another_model(tiny64: fm.Model, tiny: fm.Model) -> None:
    """What they would do to this one is told before anything is measured; so is that it has them already."""
    edits = random_edits(tiny64)
    with refuses(ModelError, ValueError, tiny64.fingerprint, tiny.fingerprint):
        evaluate(tiny, FACTS[:1], "none", compare=(made(edits[:1]),), **FEW)
    with edits[0].applied(tiny64), refuses(InputError, ValueError, "applied", "already"):
        evaluate(tiny64, FACTS[:1], made(edits[:1]), **FEW)


def test_what_are_no_edits_is_refused(tiny64: fm.Model) -> None:
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
        with refuses(InputError, ValueError, *named, typed=True):
            made(*given)
    for wrong in ({"editor": edits}, {"editor": "none", "compare": edits}):
        with refuses(InputTypeError, TypeError, "fm.evaluation.made"):
            evaluate(tiny64, FACTS, **wrong)
