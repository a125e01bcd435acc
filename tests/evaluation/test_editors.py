"""Editors by name: each fact's edit is what the editor itself makes of that fact alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, unwarned
from ffnmem.editing import Edit, SecondMoment, alphaedit, embedding_swap, emmet, encore, ft_l, memit, rome
from ffnmem.editing.preparing import EditPlan, find_values
from ffnmem.editing.values import FoundValue
from ffnmem.evaluation import EDITORS
from ffnmem.evaluation import editors as module
from ffnmem.evaluation.editors import choose_editors, edit_conditions, keys_in, set_up
from ffnmem.facts import Fact
from ffnmem.models.replaying import PlainLayers

from ..helpers import allclose, refuses
from .made import EIFFEL, FACTS, NO_TARGET, TOWER, own_editor, random_edits

CONTEXTS = ("{}", "Paris is in. {}")
SETTINGS = {"optimiser": "adam", "steps": 3, "stop": 0.0}
SHARED: dict[str, Any] = {"contexts": CONTEXTS, "settings": SETTINGS, "force": True}
THEIRS = {**SHARED, "settings": {"base": "published", "steps": 3, "stop": 0.0}}


def setup_of(model: fm.Model, moment: SecondMoment | None, *names: str, **more: Any) -> module.Setup:
    given = {
        "layer": 1,
        "seed": 0,
        "moment": moment,
        "contexts": CONTEXTS,
        "settings": SETTINGS,
        **more,
    }
    return set_up(PlainLayers(model), choose_editors(names), None, **given)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "rome": (rome, SHARED, {"force": True}),
    "rome_original": (rome, THEIRS, {"force": True}),
    "emmet": (emmet, {**SHARED, "epsilon": 0.1}, {"force": True, "epsilon": 0.1}),
    "emmet_original": (emmet, THEIRS, {"force": True}),
    "memit": (memit, {**SHARED, "layers": 2}, {"force": True, "layers": 2}),
    "memit_original": (memit, {**THEIRS, "layers": 2}, {"force": True, "layers": 2}),
    "alphaedit": (alphaedit, {**SHARED, "threshold": 0.5}, {"force": True, "threshold": 0.5}),
    "alphaedit_original": (alphaedit, {**THEIRS, "threshold": 0.5}, {"force": True, "threshold": 0.5}),
    "encore": (encore, {**SHARED, "layers": 2, "norm": 0.3}, {"force": True, "layers": 2, "norm": 0.3}),
    "encore_original": (encore, {**THEIRS, "layers": 2}, {"force": True, "layers": 2}),
    "ft_l": (ft_l, {"steps": 3}, {"steps": 3}),
    "embedding_swap": (embedding_swap, {"neurons": 2}, {"neurons": 2}),
}


def test_every_name_is_tested() -> None:
    """An editor that nobody compared with its function may be another one."""
    assert {*CALLS, "none"} == set(EDITORS)


@pytest.mark.parametrize("name", CALLS)
def test_equals_the_editor_itself(tiny64: fm.Model, moment: SecondMoment, name: str) -> None:
    """A default that was copied wrong, a v* of another fact, options that do not arrive."""
    editor, options, given = CALLS[name]
    batch = setup_of(tiny64, moment, name, **given).start(FACTS)
    (chosen,) = choose_editors((name,))
    more: dict[str, Any] = {} if name == "embedding_swap" else {"layer": 1}
    if name not in ("embedding_swap", "ft_l"):
        more["moment"] = moment
    for fact, found in zip(FACTS, batch.edits(chosen), strict=True):
        with unwarned():  # of a change that is large: what is edited is random
            expected = editor(tiny64, fact, **options, **more)
        assert isinstance(found, Edit)
        assert (found.method, found.targets, found.layers) == (expected.method, expected.targets, expected.layers)
        for a, b in zip(found.changes, expected.changes, strict=True):
            assert allclose(a.delta(), b.delta(), 1e-8)
            assert a.norm > 0
        same = {name: value for name, value in expected.settings.items() if name != "previous"}
        assert found.settings == same


def test_values_are_found_once(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten editors that each find v* take ten times as long; there is ours, ROME's and MEMIT's, and encore's two."""
    calls = []

    def counted(plan: EditPlan, **more: Any) -> list[FoundValue]:
        calls.append(1)
        return find_values(plan, **more)

    monkeypatch.setattr(module, "find_values", counted)
    names = tuple(name for name, editor in EDITORS.items() if editor.procedure is not None)
    batch = setup_of(tiny64, moment, *names, threshold=0.5, force=True).start(FACTS)
    for editor in choose_editors(names):
        assert all(isinstance(edit, Edit) for edit in batch.edits(editor))
    assert len(names) == 10
    assert calls == [1] * 5


def test_failures(tiny64: fm.Model, moment: SecondMoment) -> None:
    """One fact that cannot be edited must cost no other fact its edit, and must say why."""
    batch = setup_of(tiny64, moment, "rome", "embedding_swap").start([EIFFEL, NO_TARGET, TOWER])
    for name in ("rome", "embedding_swap"):
        first, second, third = batch.edits(EDITORS[name])
        assert "no new target" in str(second)
        assert isinstance(first, Edit)
        assert isinstance(third, Edit)


def test_outliers(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guard of an editor refuses is a failure with the guard's words."""
    from ffnmem.editing import preparing

    monkeypatch.setattr(preparing, "CHANGE_LIMIT", 0.0)
    (found,) = setup_of(tiny64, moment, "rome").start([EIFFEL]).edits(EDITORS["rome"])
    assert "force=True" in str(found)


def test_own_editor(tiny64: fm.Model) -> None:
    """A function of one's own is asked for all facts at once, and for each where that fails."""
    edits = random_edits(tiny64)
    (editor,) = choose_editors((own_editor(edits),))
    assert editor.name == "ready"
    batch = set_up(PlainLayers(tiny64), (editor,), None, layer=None, seed=0).start(FACTS)
    assert batch.edits(editor) == edits

    def picky(_model: fm.Model, facts: list[Fact]) -> Any:
        if TOWER in facts:
            raise InputError("not the Tower")
        return edits[0] if len(facts) == 1 else []

    (own,) = choose_editors((picky,))
    assert batch.edits(own) == [edits[0], "not the Tower", edits[0]]


@pytest.mark.parametrize(("name", "numbers"), [("alphaedit", {"threshold": 0.5}), ("encore", {"weight": 0.1})])
def test_protected_keys(tiny64: fm.Model, moment: SecondMoment, name: str, numbers: dict[str, float]) -> None:
    """An editor with keys held back is itself with these facts as previous ones."""
    start = setup_of(tiny64, moment, name, force=True, **numbers).start
    held = keys_in(start([TOWER]), EDITORS[name], [0])
    assert set(held) == {1}
    assert keys_in(start([TOWER]), EDITORS["memit"], [0]) == {}
    (found,) = start([EIFFEL], held).edits(EDITORS[name])
    (free,) = start([EIFFEL]).edits(EDITORS[name])
    with unwarned():
        expected = CALLS[name][0](tiny64, EIFFEL, layer=1, moment=moment, previous=[TOWER], **numbers, **SHARED)
    assert isinstance(found, Edit)
    assert isinstance(free, Edit)
    assert allclose(found.changes[0].delta(), expected.changes[0].delta(), 1e-8)
    assert float((free.changes[0].delta() - expected.changes[0].delta()).norm()) > 1e-3 * expected.norm


def test_the_norm_anchor_skips(tiny64: fm.Model, moment: SecondMoment) -> None:
    """A fact whose v* is far from the reference is a failure with that reason, not an edit that does nothing."""
    settings = {"steps": 3, "stop": 0.0}
    batch = setup_of(tiny64, moment, "rome", settings=settings, force=True).start(FACTS)
    norms = [float((one.written[0] + one.delta).norm()) for one in batch.found(batch.plan)]
    anchor = (min(norms) + max(norms)) / 4  # between the shortest and the longest, doubled
    setup = setup_of(tiny64, moment, "rome", "memit", settings={**settings, "anchor": anchor}, force=True)
    for name in ("rome", "memit"):
        for norm, found in zip(norms, setup.start(FACTS).edits(EDITORS[name]), strict=True):
            if norm > 2 * anchor:
                assert "skipped (norm anchor)" in str(found)
                assert f"{norm / anchor:.3g} times" in str(found)
            else:
                assert isinstance(found, Edit)
    together = setup.start(FACTS).together(EDITORS["memit"])  # without those that are skipped
    (edit,) = {id(one): one for one in together if isinstance(one, Edit)}.values()
    assert edit.facts == tuple(fact for fact, norm in zip(FACTS, norms, strict=True) if norm <= 2 * anchor)
    assert ["skipped" in str(one) for one in together] == [norm > 2 * anchor for norm in norms]


def test_described(tiny64: fm.Model, moment: SecondMoment) -> None:
    """A setting that is not recorded makes two runs look alike."""
    found = edit_conditions(setup_of(tiny64, moment, "rome", ridge=1e-3), choose_editors(("rome",)))
    assert found["settings"]["steps"] == 3
    assert found["contexts"] == list(CONTEXTS)
    assert found["options"] == {"ridge": 1e-3}
    assert found["second_moment"] == {"tokens": moment.count, "corpus": moment.corpus_hash}


def test_refuses(tiny64: fm.Model, moment: SecondMoment) -> None:
    """An option that nobody takes does nothing; one out of range would be the failure of every fact."""
    with refuses(InputError, ValueError, "'roam'", "'rome'"):
        choose_editors(("roam",))
    with refuses(InputError, ValueError, "'rome'", "twice"):
        choose_editors(("rome", "rome"))
    with refuses(InputError, ValueError, "3", "rome"):
        choose_editors((3,))
    with refuses(InputError, ValueError, "'weight'", "rome", "ridge"):
        setup_of(tiny64, moment, "rome", weight=3.0)
    for name, value in (("epsilon", -1.0), ("keys", "mixed")):
        with refuses(InputError, ValueError, name):
            setup_of(tiny64, moment, "rome", "emmet", **{name: value})
    with refuses(InputError, ValueError, "threshold"):
        setup_of(tiny64, moment, "alphaedit", threshold=1e-30)
    with refuses(InputError, ValueError, "layers"):
        setup_of(tiny64, moment, "memit", layers=3)
    with refuses(InputError, ValueError, "second moment"):
        setup_of(tiny64, None, "rome")
    with refuses(OutOfRangeError, IndexError, "layer 7"):
        setup_of(tiny64, moment, "rome", layer=7)
