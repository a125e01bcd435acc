"""FT-L: its steps against autograd through whole passes, its bound, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import Edit, ft_l
from ffnmem.facts.answers import word_ids

from ..helpers import allclose, refuses
from .plans import FACTS


def nll(model: fm.Model, text: str, ids: tuple[int, ...]) -> torch.Tensor:
    tokens = torch.tensor([[*model.tokenize(text), *ids[:-1]]])
    logs = model.hf_model(input_ids=tokens).logits[0].log_softmax(-1)[-len(ids) :]
    return -logs.gather(1, torch.tensor(ids).unsqueeze(1)).mean()


def test_the_first_step_follows_the_models_own_gradient(make_tiny: Callable[..., fm.Model]) -> None:
    """Adam's first step is the gradient's sign; a gradient of another position or target has others."""
    model = make_tiny(dtype="float64")
    fact = FACTS[1]
    edit = ft_l(model, fact, layer=1, steps=1, bound=1.0, rate=0.01)
    assert isinstance(edit, Edit)
    weight = model.ffn[1].project_out.weight
    assert isinstance(weight, torch.Tensor)
    weight.requires_grad_(True)
    with torch.enable_grad():
        loss = nll(model, fact.text, word_ids(model, fact.text, str(fact.target_new)))
        (gradient,) = torch.autograd.grad(loss, weight)
    found = edit.changes[0].delta()
    clear = gradient.abs() > 1e-6
    assert allclose(found[clear], -0.01 * gradient[clear].sign(), 1e-3)


def test_the_loss_falls_and_no_weight_leaves_its_bound(tiny: fm.Model) -> None:
    done: list[int] = []
    edits = ft_l(tiny, FACTS, layer=0, bound=0.02, progress=lambda _, i, _n: done.append(i))
    assert isinstance(edits, tuple)
    assert done == [1, 2, 3]
    for fact, edit in zip(FACTS, edits, strict=True):
        assert float(edit.changes[0].delta().abs().max()) <= 0.02 + 1e-7
        ids = word_ids(tiny, fact.text, str(fact.target_new))
        before = float(nll(tiny, fact.text, ids).detach())
        with edit.applied(tiny):
            after = float(nll(tiny, fact.text, ids).detach())
        assert after < before
        assert float(edit.numbers["loss"][0]) == pytest.approx(after, rel=1e-4)
        assert edit.settings == {"layer": 0, "bound": 0.02, "rate": 0.02, "steps": 25, "stop": 0.01}


def test_refusals(tiny: fm.Model) -> None:
    for options, named in (({"bound": 0.0}, "bound"), ({"rate": -1.0}, "rate"), ({"steps": 0}, "steps")):
        with refuses(InputError, ValueError, named):
            ft_l(tiny, FACTS[0], **options)
    with refuses(InputError, ValueError, "'The city of Paris is in'", "times its own norm"):
        ft_l(tiny, FACTS[0], bound=1e3)
