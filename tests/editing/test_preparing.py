"""What editors share: plans, the guard, and what an edit records."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, OutOfRangeError
from ffnmem.editing import EditedLayer, preparing, second_moment
from ffnmem.editing.preparing import (
    CHANGE_LIMIT,
    check_change,
    check_reaches,
    find_values,
    make_edit,
    one_or_all,
    plan_edits,
    value_numbers,
    weight_norm,
)
from ffnmem.editing.settings import EditSettings

from ..helpers import refuses
from ..scanning.texts import tiny_texts
from .plans import CONTEXTS, FACTS, moment_of, plan_of, random_like


def test_the_prompt_itself_is_always_the_first_context(tiny: fm.Model) -> None:
    """Without it, v₀ and the plain prompt's key would be another text's."""
    plan = plan_edits(tiny, FACTS[0], contexts=CONTEXTS[1:])
    assert plan.contexts == CONTEXTS
    sampled = plan_edits(tiny, FACTS[2], seed=3)
    assert len(sampled.contexts) == 21
    assert sampled.contexts != plan_edits(tiny, FACTS[2], seed=4).contexts
    own = plan_edits(tiny, FACTS[0], contexts=CONTEXTS, settings=EditSettings(1, steps=2), layer=0)
    assert (own.settings.layer, own.settings.steps) == (0, 2)


def test_a_missing_second_moment_is_refused_where_it_is_needed(tiny: fm.Model) -> None:
    """An identity in its place would make edits that look like ROME's."""
    plan = plan_edits(tiny, FACTS, contexts=CONTEXTS)
    with refuses(InputError, ValueError, "second moment"):
        assert plan.moment
    assert plan_of(tiny, moment=(own := moment_of(tiny))).moment is own


def test_mistakes_are_told_before_anything_is_sampled(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling contexts takes a while, and making a second moment longer: cheaper mistakes come first."""

    def sampled(*_args: object, **_more: object) -> tuple[str, ...]:
        raise AssertionError("contexts were sampled")

    monkeypatch.setattr(preparing, "write_contexts", sampled)
    with refuses(InputError, ValueError, "its true one already"):
        fm.rome(tiny, FACTS[0], target=FACTS[0].target_true)
    with refuses(InputError, ValueError, "setting"):
        fm.rome(tiny, FACTS[0], settings={"stepz": 3})
    for editor in (fm.rome, fm.editing.memit, fm.editing.emmet, fm.editing.alphaedit):
        with refuses(InputError, ValueError, "comes without a second moment"):
            editor(tiny, FACTS[0])


def test_outliers_are_refused_unless_forced(tiny: fm.Model) -> None:
    plan = plan_edits(tiny, FACTS, contexts=CONTEXTS)
    left, right = random_like(1, tiny.d_mlp), random_like(1, tiny.d_model, seed=1)
    size = float(torch.linalg.matrix_norm(tiny.ffn[1].values.detach().double()))
    assert weight_norm(tiny, 1) == pytest.approx(size)
    for times in (0.5, 1.5):
        scale = times * CHANGE_LIMIT * size / float(left.norm() * right.norm())
        change = EditedLayer(1, left, scale * right)
        if times < 1:
            ratio, layer = check_change(plan, [change], "'x'", False)
            assert (ratio, layer) == (pytest.approx(times * CHANGE_LIMIT), 1)
        else:
            with refuses(InputError, ValueError, "'x'", "3 times", "k·u = 0.5"):
                check_change(plan, [change], "'x'", False, **{"k·u": 0.5})
            assert check_change(plan, [change], "'x'", True)[0] == pytest.approx(3.0)


def test_an_edit_records_all_that_it_was_made_with(tiny: fm.Model) -> None:
    plan = plan_of(tiny, settings={"steps": 2})
    found = find_values(plan)
    change = EditedLayer(0, random_like(1, tiny.d_mlp), random_like(1, tiny.d_model))
    row = value_numbers(plan.requests[1], found[1])
    recorded = {**plan.value_words(), "extra": 7}
    edit = make_edit(plan, [1], "mine", [change], [row], recorded, force=True)
    assert edit.facts == (FACTS[1],)
    assert edit.targets == ("Paris city",)
    assert edit.settings == {
        **plan.settings.to_dict(),
        "contexts": list(CONTEXTS),
        "context_seed": plan.seed,
        "extra": 7,
    }
    assert edit.settings["steps"] == 2
    assert edit.numbers["id"].tolist() == ["rome"]
    assert edit.numbers["change"].tolist() == [change.norm / weight_norm(tiny, 0)]
    assert isinstance(edit.to_frame(), pd.DataFrame)
    with pytest.warns(FfnmemWarning, match="changes layer 0"):
        assert one_or_all(plan, FACTS[0], [edit]) is edit
    with pytest.warns(FfnmemWarning, match="changes layer 0"):
        assert one_or_all(plan, FACTS[:1], [edit]) == (edit,)


def test_a_settings_object_is_checked_as_names_are(tiny: fm.Model) -> None:
    """Steps of none, a rate that goes uphill, a layer beyond the model: each would give an edit that is none."""
    wrong: dict[str, Any] = {"steps": 0, "rate": -1.0, "plain": 2.0, "optimiser": "sgd", "anchor": float("inf")}
    for name, value in wrong.items():
        with refuses(InputError, ValueError, f"EditSettings: {name}"):
            EditSettings(0, **{name: value})
    with refuses(OutOfRangeError, IndexError, "99"):
        plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=EditSettings(99))
    assert plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=EditSettings(-1)).settings.layer == tiny.n_layers - 1
    with refuses(InputError, ValueError, "layer is 1", "layer 0"):
        plan_edits(tiny, FACTS, contexts=CONTEXTS, layer=1, settings={"layer": 0})
    for name, value in (("rate", float("nan")), ("steps", 0)):
        with refuses(InputError, ValueError, name):
            plan_edits(tiny, FACTS, contexts=CONTEXTS, settings={name: value})


def test_the_plain_prompt_counts_once(tiny: fm.Model) -> None:
    """A prompt that stands among the contexts twice would get more than its share of the averages."""
    assert plan_edits(tiny, FACTS, contexts=("I know. {}", "{}")).contexts == ("{}", "I know. {}")
    assert plan_edits(tiny, FACTS, contexts=("{}", "I know. {}", "{}")).contexts == ("{}", "I know. {}")


def test_a_moment_that_lacks_the_layer_is_told_at_once(tiny: fm.Model) -> None:
    """Not after the minutes that v* takes."""
    plan = plan_of(tiny, moment=second_moment(tiny, tiny_texts(), layers=[0]))
    plan.check_moment([0])
    with refuses(OutOfRangeError, IndexError, "layer 1"):
        plan.check_moment([0, 1])
    with refuses(InputError, ValueError, "ridge"):
        plan.check_moment([0], -1.0)


def test_a_layer_that_reaches_no_answer_is_said(tiny: fm.Model) -> None:
    """The last layer writes at the subject, the answer is read behind it: δ stays zero, and so would the edit."""
    plan = plan_of(tiny, layer=-1)
    found = find_values(plan)
    with refuses(InputError, ValueError, "layer 1", "'Paris'", "earlier layer"):
        check_reaches(plan, plan.requests[0], found[0])
    assert found[0].steps
    near = plan_of(tiny, layer=0)
    check_reaches(near, near.requests[0], find_values(near)[0])
