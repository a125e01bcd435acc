"""What editors share: contexts and settings of a plan, and what is doubtful about an edit: said, kept, said once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, OutOfRangeError
from ffnmem.editing import Edit, emmet, ft_l, preparing
from ffnmem.editing.preparing import CHANGE_LIMIT, plan_edits
from ffnmem.editing.settings import EditSettings

from ..helpers import refuses
from .plans import CONTEXTS, FACTS, moment_of


def test_the_prompt_itself_is_the_first_context_and_counts_once(tiny: fm.Model) -> None:
    """v₀ and the plain prompt's key would be another text's, or get more than its share of the averages."""
    for given in (CONTEXTS, CONTEXTS[1:], (*CONTEXTS[1:], "{}"), ("{}", *CONTEXTS)):
        assert plan_edits(tiny, FACTS[0], contexts=given).contexts == CONTEXTS
    sampled = plan_edits(tiny, FACTS[2], seed=3)
    assert len(sampled.contexts) == 21
    assert sampled.contexts != plan_edits(tiny, FACTS[2], seed=4).contexts


def test_an_edit_records_all_that_it_was_made_with(tiny: fm.Model) -> None:
    """It could not be made again."""
    given: dict[str, Any] = {"contexts": CONTEXTS, "settings": {"steps": 2}, "layer": 0}
    moment, plan = moment_of(tiny), plan_edits(tiny, FACTS, **given)
    with pytest.warns(FfnmemWarning, match="changes layer 0"):
        edit = emmet(tiny, FACTS, moment=moment, force=True, **given)
    assert edit.settings == {
        **plan.settings.to_dict(),
        "contexts": list(CONTEXTS),
        "context_seed": 0,
        "layers": [0],
        "epsilon": 0.0,
        "epsilon_of": "mean diagonal",
        "second_moment": {"tokens": moment.count, "corpus": moment.corpus_hash},
        "ridge": 1e-6,
    }
    assert edit.numbers["id"].tolist() == ["paris", "rome", "london"]
    size = float(tiny.ffn[0].values.detach().double().norm())
    assert edit.numbers["change"].tolist() == pytest.approx([edit.changes[0].norm / size] * 3)


def test_a_settings_object_is_checked_as_names_are(tiny: fm.Model) -> None:
    """Steps of none, a rate that goes uphill, a layer beyond the model: each would give an edit that is none."""
    wrong: dict[str, Any] = {"steps": 0, "rate": -1.0, "plain": 2.0, "optimiser": "sgd", "anchor": float("inf")}
    for name, value in wrong.items():
        with refuses(InputError, ValueError, f"EditSettings: {name}"):
            EditSettings(0, **{name: value})
        with refuses(InputError, ValueError, name):
            plan_edits(tiny, FACTS, contexts=CONTEXTS, settings={name: value})
    with refuses(OutOfRangeError, IndexError, "99"):
        plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=EditSettings(99))
    assert plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=EditSettings(-1)).settings.layer == tiny.n_layers - 1
    own = plan_edits(tiny, FACTS[0], contexts=CONTEXTS, settings=EditSettings(1, steps=2), layer=0)
    assert (own.settings.layer, own.settings.steps) == (0, 2)
    with refuses(InputError, ValueError, "layer is 1", "layer 0"):
        plan_edits(tiny, FACTS, contexts=CONTEXTS, layer=1, settings={"layer": 0})


# -- doubts ------------------------------------------------------------------------------------------------------------


def tuned(model: fm.Model, target: str | None = None, bound: float = 1e-3, **more: Any) -> Edit:
    found = ft_l(model, FACTS[0], target, layer=0, steps=1, bound=bound, **more)
    assert isinstance(found, Edit)
    return found


def test_what_is_doubtful_is_said(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """ " paris" in pieces moved a layer by 40% without a word; an edit towards what is absurd costs much."""
    assert tuned(tiny).warnings == ()
    with pytest.warns(FfnmemWarning, match="is that meant"):
        (words,) = tuned(tiny, " rome").warnings
    assert "target ' rome' is 5 tokens of" in words
    assert "' Rome' is one token with" in words
    assert "\n" not in words
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "ODD", 1e9)
        with pytest.warns(FfnmemWarning, match="below that of a blind guess: is it spelled as meant"):
            (words,) = tuned(tiny, " Roxe").warnings
        assert tuned(tiny).warnings == ()  # one token
    assert "target ' Roxe' is " in words
    monkeypatch.setattr(preparing, "CHANCE", 1e9)
    with pytest.warns(FfnmemWarning, match="' Rome' is absurd to"):
        assert len(tuned(tiny).warnings) == 1
    monkeypatch.setattr(preparing, "CHANCE", 0.0)
    monkeypatch.setattr(preparing, "CHANGE", 0.0)
    with pytest.warns(FfnmemWarning, match="changes layer 0 by"):
        assert len(tuned(tiny).warnings) == 1


def test_an_outlier_is_refused_unless_forced(tiny: fm.Model) -> None:
    size = float(tiny.ffn[0].values.detach().double().norm())
    limit = CHANGE_LIMIT * size / tiny.ffn[0].values.numel() ** 0.5  # of steps that move every weight by their bound
    with pytest.warns(FfnmemWarning, match="changes layer"):
        assert tuned(tiny, bound=0.9 * limit).numbers["change"][0] <= CHANGE_LIMIT
    with refuses(InputError, ValueError, repr(FACTS[0].text), "times its own norm", "force=True"):
        tuned(tiny, bound=1.2 * limit)
    with pytest.warns(FfnmemWarning, match="changes layer"):
        assert tuned(tiny, bound=1.2 * limit, force=True).numbers["change"][0] > CHANGE_LIMIT


def test_doubts_are_kept_and_said_once(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be lost with the file, or said for each of a thousand edits."""
    monkeypatch.setattr(preparing, "CHANGE", 0.0)
    with pytest.warns(FfnmemWarning, match="; 2 more of 3 edits are doubtful") as found:
        edits = ft_l(tiny, FACTS, layer=0, steps=1)
    assert len(found) == 1
    assert isinstance(edits, tuple)
    (words,) = edits[0].warnings
    assert Edit.load(edits[0].save(tmp_path / "edit.zip")).warnings == (words,)
    assert edits[0].to_dict()["warnings"] == [words]
    assert words in edits[0]._repr_html_()
    assert (edits[0] + edits[1]).warnings == edits[0].warnings + edits[1].warnings


@pytest.mark.parametrize("editor", ["memit", "ft_l"])
def test_a_doubtful_target_is_said_before_the_work(
    editor: str, tiny: fm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After minutes of steps it is too late to stop them; asked twice, it would cost twice and be said twice."""
    asked: list[int] = []

    def counted(_layers: Any, requests: Any) -> tuple[str, ...]:
        asked.append(len(requests))
        return ("that is odd", "") * (len(requests) // 2)

    monkeypatch.setattr(preparing, "target_doubts", counted)
    monkeypatch.setattr(preparing, "CHANGE", float("inf"))
    said: list[int] = []
    options = {"moment": moment_of(tiny), "contexts": ("{}",), "settings": {"steps": 2}} if editor == "memit" else {}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = getattr(fm.editing, editor)(
            tiny, FACTS[:2], force=True, progress=lambda *_: said.append(len(found)), layer=0, **options
        )
    assert [str(one.message) for one in found] == ["that is odd"]
    assert set(said) == {1}
    assert asked == [2]
    assert (made[0] if isinstance(made, tuple) else made).warnings == ("that is odd",)
