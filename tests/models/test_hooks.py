"""Hooks come together and go together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ffnmem.models.hooks import first_tensor, listening

from ..helpers import hook_count


class Doubles(nn.Module):
    """Returns a tuple, as attention modules do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return 2 * x, None


def test_inputs_and_outputs_are_heard() -> None:
    """The wrong side, or the wrong part of a tuple, would be recorded."""
    heard: dict[str, torch.Tensor] = {}
    module, x = Doubles(), torch.arange(3.0)
    with listening([(module, lambda t: heard.update(before=t))], [(module, lambda t: heard.update(after=t))]):
        module(x)
    assert torch.equal(heard["before"], x)
    assert torch.equal(heard["after"], 2 * x)


def test_listening_changes_nothing() -> None:
    """What a listener returns must not replace the module's own result."""
    module = nn.Linear(2, 2)
    x = torch.ones(2)
    before = module(x)
    with listening([(module, lambda t: None)], [(module, lambda t: None)]):
        assert torch.equal(module(x), before)


def test_each_module_has_its_own_listener() -> None:
    """A late-bound loop variable would send every module's tensor to the last listener."""
    heard: list[str] = []
    a, b = nn.Identity(), nn.Identity()
    with listening([(a, lambda t: heard.append("a")), (b, lambda t: heard.append("b"))]):
        a(torch.ones(1))
        b(torch.ones(1))
    assert heard == ["a", "b"]


def test_nothing_stays_after_the_block() -> None:
    """A leaked hook would slow and change every later run."""
    module = Doubles()
    with listening([(module, lambda t: None)], [(module, lambda t: None)]):
        assert hook_count(module) == 2
    assert hook_count(module) == 0


def test_nothing_stays_after_an_exception() -> None:
    """… in the block, in a listener, or half-way through registering."""
    module = Doubles()
    with pytest.raises(ZeroDivisionError), listening([(module, lambda t: None)]):
        raise ZeroDivisionError
    assert hook_count(module) == 0
    with pytest.raises(ZeroDivisionError), listening([], [(module, lambda t: 1 / 0)]):  # type: ignore[arg-type, return-value]
        module(torch.ones(1))
    assert hook_count(module) == 0
    registered = [(module, lambda t: None), (None, lambda t: None)]
    with pytest.raises(AttributeError), listening([], (pair for pair in registered)):  # type: ignore[misc]
        pass
    assert hook_count(module) == 0


def test_first_tensor() -> None:
    """Attention's weights would be taken for its output."""
    x = torch.ones(1)
    assert first_tensor(x) is x
    assert first_tensor((x, torch.zeros(1))) is x
