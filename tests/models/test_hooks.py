"""Blocks that change a model leave nothing behind, and who listens to a pass hears its own thread's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.editing.ledger import write_values

from ..editing.edits import made
from ..helpers import PROMPT, hook_count

LONG = 60  # seconds that a thread may wait for another one: for ever, to a test that passes
Block = Callable[[fm.Model], AbstractContextManager[Any]]
BLOCKS: dict[str, Block] = {
    "intervene": lambda model: fm.intervene(model, {(0, 3): 5.0, (1, None): fm.interventions.Scale(0.5)}),
    "hooks": lambda model: made(model, (0, 1)).hooks(model),
    "applied": lambda model: made(model, (0, 1)).applied(model),
}


def last_logits(model: fm.Model) -> torch.Tensor:
    return fm.capture(model, PROMPT).logits_at(0, -1)


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> Block:
    """Each way to change a model for a while."""
    return BLOCKS[request.param]


@pytest.fixture
def model(make_tiny: Callable[..., fm.Model]) -> fm.Model:
    return make_tiny()


def test_any_way_out_gives_it_back(model: fm.Model, block: Block) -> None:
    """A model that stays changed after a block that is interrupted, or after a generator that is dropped."""
    before, hooks = last_logits(model), hook_count(model.hf_model)
    with pytest.raises(KeyboardInterrupt), block(model):
        raise KeyboardInterrupt

    def asking() -> Iterator[torch.Tensor]:
        with block(model):
            yield last_logits(model)

    holder = [asking()]
    assert not torch.equal(next(holder[0]), before)
    holder.clear()
    assert torch.equal(last_logits(model), before)
    assert hook_count(model.hf_model) == hooks


def test_a_stack_enters_and_leaves_it(model: fm.Model, block: Block) -> None:
    """A block that only a ``with`` statement can enter or leave."""
    before, hooks = last_logits(model), hook_count(model.hf_model)
    with ExitStack() as stack:
        stack.enter_context(block(model))
        assert not torch.equal(last_logits(model), before)
    assert torch.equal(last_logits(model), before)
    assert hook_count(model.hf_model) == hooks


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_edit_is_out_again(model: fm.Model, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """An interrupt while the values are written, before the block begins (1) or when it ends (2)."""
    before, hooks, calls = last_logits(model), hook_count(model.hf_model), []

    def write(model: fm.Model, values: Any) -> None:
        calls.append(1)
        write_values(model, values)
        if len(calls) == call:
            raise KeyboardInterrupt

    monkeypatch.setattr("ffnmem.editing.ledger.write_values", write)
    with pytest.raises(KeyboardInterrupt), made(model, (0,)).applied(model):
        pass
    assert len(calls) > call
    assert torch.equal(last_logits(model), before)
    assert (len(model.edits), hook_count(model.hf_model)) == (0, hooks)


@contextmanager
def meanwhile(module: torch.nn.Module, call: Callable[[], Any]) -> Iterator[list[Any]]:
    """What a call in another thread gives, made in the middle of this thread's first pass, when a module is called."""
    found: list[Any] = []

    def hook(_module: torch.nn.Module, _args: Any) -> None:
        if not found:
            found.append(None)
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(call).result(LONG))

    handle = module.register_forward_pre_hook(hook)
    try:
        yield found
    finally:
        handle.remove()


def test_listeners_hear_their_own_thread(model: fm.Model) -> None:
    """A capture would hold what another thread's prompt made the FFNs do (and did)."""
    texts = [PROMPT, "The Tower is in the city of"]
    alone = [fm.capture(model, text, logits=True) for text in texts]
    for module in (model.layout.blocks[0].whole, model.ffn[0].project_out, model.layout.final_norm):
        with meanwhile(module, lambda: fm.capture(model, texts[1], logits=True)) as found:
            own = fm.capture(model, texts[0], logits=True)
        for one, expected in zip((own, found[1]), alone, strict=True):
            for place, tensor in (expected.by_place() | {"logits": expected.logits}).items():
                assert torch.equal((one.by_place() | {"logits": one.logits})[place], tensor), place
