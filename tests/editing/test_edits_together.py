"""Layers that share an edit, and the edit of all facts of a plan."""

from __future__ import annotations

import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing.closed_forms import ClosedForm, edit_together, emmet_left, keys_of, layer_range
from ffnmem.editing.preparing import plan_edits

from ..helpers import allclose, refuses, warned
from .plans import CONTEXTS, FACTS, plan_of


def test_layers_end_at_the_plans(tiny: fm.Model) -> None:
    plan = plan_edits(tiny, FACTS, layer=1, contexts=CONTEXTS)
    assert layer_range(plan, None, "memit") == [1]
    assert layer_range(plan, 2, "memit") == [0, 1]
    with refuses(InputError, ValueError, "layers 3", "layer 1"):
        layer_range(plan, 3, "memit")


@warned("changes layer")
def test_one_edit_holds_all_facts(tiny: fm.Model) -> None:
    plan = plan_of(tiny, settings={"steps": 3})
    done: list[int] = []
    form = ClosedForm("emmet", [0], emmet_left(plan, 0.0, 1e-6), {"epsilon": 0.0})
    edit = edit_together(plan, form, True, lambda _, i, _n: done.append(i))
    assert edit.facts == FACTS
    assert (edit.layers, edit.rank) == ((0,), 3)
    assert edit.settings["layers"] == [0]
    assert edit.numbers["id"].tolist() == ["paris", "rome", "london"]
    assert done[-1] == 3


def test_keys_are_means_over_contexts(tiny: fm.Model) -> None:
    plan = plan_edits(tiny, FACTS, contexts=CONTEXTS)
    found = keys_of(plan, plan.requests, 1)
    for i, request in enumerate(plan.requests):
        own = [fm.capture(tiny, torch.tensor([r.tokens])).coefficients[1][0, r.lookup] for r in request.rows]
        assert allclose(found[i], plan.settings.weights(len(own)) @ torch.stack(own).double(), 1e-5)
