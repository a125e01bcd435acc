"""Editors by name: each fact's edit is what the editor itself makes of that fact alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, unwarned
from ffnmem.editing import SecondMoment, alphaedit, embedding_swap, emmet, encore, ft_l, memit, preparing, rome
from ffnmem.editing.closed_forms import find_directions
from ffnmem.editing.preparing import EditPlan, find_values, plan_edits
from ffnmem.editing.values import FoundValue
from ffnmem.evaluation import EDITORS, Scores, editors, evaluate, sequential
from ffnmem.facts import Fact

from ..helpers import allclose, refuses
from .made import EIFFEL, FACTS, NO_TARGET, TOWER, random_edits

CONTEXTS = ("{}", "Paris is in. {}")
SETTINGS = {"optimiser": "adam", "steps": 3, "stop": 0.0}
SHARED: dict[str, Any] = {"contexts": CONTEXTS, "settings": SETTINGS, "force": True}
THEIRS = {**SHARED, "settings": {"base": "published", "steps": 3, "stop": 0.0}}
QUICK: dict[str, Any] = {"contexts": CONTEXTS, "settings": SETTINGS, "layer": 1, "metrics": ("ES",), "draws": 5}


def edited(model: fm.Model, moment: SecondMoment | None, *names: str, facts: Any = FACTS, **more: Any) -> Scores:
    options = {**QUICK, **more}
    return evaluate(model, facts, names[0], compare=names[1:], moment=moment, keep_edits=True, **options)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "rome": (rome, SHARED, {"force": True}),
    "rome_original": (rome, THEIRS, {"force": True}),
    "emmet": (emmet, {**SHARED, "epsilon": 0.1, "ridge": 0.1}, {"force": True, "epsilon": 0.1, "ridge": 0.1}),
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
    more: dict[str, Any] = {} if name == "embedding_swap" else {"layer": 1}
    if name not in ("embedding_swap", "ft_l"):
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


def test_values_are_found_once(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten editors that each find v* take ten times as long; there is ours, ROME's and MEMIT's, and encore's two."""
    calls = []

    def counted(plan: EditPlan, **more: Any) -> list[FoundValue]:
        calls.append(1)
        return find_values(plan, **more)

    monkeypatch.setattr(editors, "find_values", counted)
    names = tuple(name for name, editor in EDITORS.items() if editor.procedure is not None)
    made = edited(tiny64, moment, *names, facts=[EIFFEL], threshold=0.5, force=True).edits
    assert [list(own) for own in made.values()] == [["eiffel"]] * 10
    assert calls == [1] * 5


def test_failures(tiny64: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that cannot be edited, or whose edit the guard refuses, costs no other its edit, and says why."""

    def picky(_model: fm.Model, facts: list[Fact]) -> Any:  # asked for all at once, then for each
        if TOWER in facts:
            raise InputError("not the Tower")
        return random_edits(tiny64)[0] if len(facts) == 1 else []

    facts = [EIFFEL, NO_TARGET, TOWER]
    found = edited(tiny64, moment, "rome", "embedding_swap", picky, facts=facts, force=True)  # type: ignore[arg-type]
    assert {name: list(own) for name, own in found.edits.items()} == {
        "rome": ["eiffel", "tower"],
        "embedding_swap": ["eiffel", "tower"],
        "picky": ["eiffel"],
    }
    assert "not the Tower" in found.failures["failure"].tolist()
    assert found.failures["failure"].str.contains("no new target").sum() == 3
    monkeypatch.setattr(preparing, "CHANGE_LIMIT", 0.0)
    (failure,) = edited(tiny64, moment, "rome", facts=[EIFFEL]).failures["failure"]
    assert "force=True" in failure


def test_the_norm_anchor_skips(tiny64: fm.Model, moment: SecondMoment) -> None:
    """A fact whose v* is far from the reference is a failure with that reason, not an edit that does nothing."""
    settings = {"steps": 3, "stop": 0.0}
    plan = plan_edits(tiny64, FACTS, None, None, 1, moment, CONTEXTS, 0, settings)
    found = find_values(plan, directions=find_directions(plan, None, None))
    norms = {fact.id: float((one.written[0] + one.delta).norm()) for fact, one in zip(FACTS, found, strict=True)}
    anchor = (min(norms.values()) + max(norms.values())) / 4  # between the shortest and the longest, doubled
    kept = [name for name, norm in norms.items() if norm <= 2 * anchor]
    assert 0 < len(kept) < len(norms)
    options = {"settings": {**settings, "anchor": anchor}, "force": True}
    alone = edited(tiny64, moment, "rome", "memit", **options)
    assert {name: list(own) for name, own in alone.edits.items()} == {"rome": kept, "memit": kept}
    together = sequential(tiny64, FACTS, "memit", (3,), together=3, moment=moment, **{**QUICK, **options})
    for failures in (alone.failures, together.failures):
        own = failures[failures["failure"].str.contains("skipped (norm anchor)", regex=False)]
        assert set(own["id"]) == {*norms} - {*kept}
        assert all(f"{norms[row.id] / anchor:.3g} times" in row.failure for row in own.itertuples())
    assert together.cases.set_index("id")["change"].notna().to_dict() == {name: name in kept for name in norms}


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
        (("rome", "emmet"), {"epsilon": -1.0}, ("epsilon",)),
        (("rome", "emmet"), {"keys": "mixed"}, ("keys",)),
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
