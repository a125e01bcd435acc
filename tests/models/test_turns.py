"""One thread changes a model for a while; nobody else gets numbers that are neither the one nor the other."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import BusyError
from ffnmem.editing import Edit
from ffnmem.editing.ledger import write_values
from ffnmem.evaluation.series import restored
from ffnmem.models.answers import generate
from ffnmem.models.replaying import PlainLayers
from ffnmem.models.turns import Turns

from ..editing.edits import made
from ..helpers import PROMPT, build_gpt2, hook_count, public_things, refuses

LONG = 60  # seconds that a thread may wait for another one: for ever, to a test that passes
Block = Callable[[fm.Model], AbstractContextManager[Any]]
BLOCKS: dict[str, Block] = {
    "intervene": lambda model: fm.intervene(model, {(0, 3): 5.0, (1, None): fm.interventions.Scale(0.5)}),
    "hooks": lambda model: made(model, (0, 1)).hooks(model),
    "applied": lambda model: made(model, (0, 1)).applied(model),
}


def elsewhere(call: Callable[[], Any]) -> Any:
    """What a call gives in another thread; an error is raised here."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(LONG)
    finally:
        pool.shutdown(wait=False)


def last_logits(model: fm.Model) -> torch.Tensor:
    return fm.capture(model, PROMPT).logits_at(0, -1)


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> Block:
    """Each way to change a model for a while."""
    return BLOCKS[request.param]


@pytest.fixture
def model(make_tiny: Callable[..., fm.Model]) -> fm.Model:
    return make_tiny()


def public() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Every function of ours that takes a model or a capture, and the name under which it takes it."""
    found = list(public_things().items())
    methods = (Edit.diff, Edit.export, Edit.export_lora, Edit.apply, Edit.revert)
    found += [(f.__name__, f) for f in (generate, *methods)]
    for name, function in found:
        if inspect.isfunction(function):
            names = ("model", "capture", *(("source",) if name == "models.anatomy" else ()))
            takes = next((n for n in inspect.signature(function).parameters if n in names), None)
            if takes is not None and name not in ("intervene", "corpus.pack"):
                yield name, function, takes


@pytest.mark.parametrize("changing", [BLOCKS["intervene"], restored], ids=["intervene", "sequence"])
def test_every_public_function_is_refused_elsewhere(model: fm.Model, changing: Block) -> None:
    """One that is not would give the numbers of a model that somebody else is changing at this moment."""
    capture, edit, tried = fm.capture(model, PROMPT), made(model, (1,), seed=9), set()
    with changing(model):
        for name, function, takes in public():
            parameters = inspect.signature(function).parameters.values()
            needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            given = {key: edit if key == "self" else None for key in needed}
            given[takes] = capture if takes == "capture" else model
            behind = vars(function).get("behind", function)  # without the check of its arguments' types
            # Nothing else is looked at before, whatever is given.
            with refuses(BusyError, RuntimeError, "another thread", "load"):
                elsewhere(lambda f=behind, g=given: f(**g))
            tried.add(name)
    assert {"capture", "attribute", "scan", "rome", "evaluate", "project", "trace_fact"} <= tried
    assert len(tried) > 40


def test_every_way_to_run_it_is_refused_elsewhere(model: fm.Model, block: Block) -> None:
    """Past ffnmem, or through what was made before the block began; a copy is a model of its own."""
    ids, layers = torch.tensor([model.tokenize(PROMPT)]), PlainLayers(model)
    twice, edit = fm.load(model.to_bridge()), made(model, (0,), seed=5)
    own = fm.load(build_gpt2(), tokenizer=model.tokenizer)
    runs: list[Callable[[], Any]] = [
        lambda: model.to_bridge()(ids),
        lambda: model.hf_model.generate(input_ids=ids, max_new_tokens=1),
        lambda: model.body(ids),
        lambda: PlainLayers(model),
        lambda: layers.body(input_ids=ids),
        lambda: model.ffn[1].values,
        lambda: model.fingerprint,
        lambda: fm.capture(twice, PROMPT),
    ]
    before = last_logits(model)
    with block(model):
        for run in (*runs, fm.intervene(twice, {(0, 0): 0.0}).__enter__, lambda: edit.apply(model)):
            with pytest.raises(BusyError, match="another thread"):
                elsewhere(run)
        assert model.d_mlp == elsewhere(lambda: model.d_mlp)  # what nobody changes is anybody's
        copied = copy.deepcopy(model.hf_model)
        elsewhere(lambda: copied(input_ids=ids))
        elsewhere(lambda: fm.capture(own, PROMPT))
    for run in runs:
        elsewhere(run)
    assert torch.equal(elsewhere(lambda: last_logits(model)), before)
    assert isinstance(pickle.loads(pickle.dumps(model.turns)), Turns)


@contextmanager
def meanwhile(module: torch.nn.Module, call: Callable[[], Any]) -> Iterator[list[Any]]:
    """What a call in another thread gives, made in the middle of this thread's first pass, when a module is called."""
    found: list[Any] = []

    def hook(_module: torch.nn.Module, _args: Any) -> None:
        if not found:
            found.append(None)
            found.append(elsewhere(call))

    handle = module.register_forward_pre_hook(hook)
    try:
        yield found
    finally:
        handle.remove()


@pytest.mark.parametrize("run", ["pass", "function"])
def test_no_block_begins_in_the_middle(model: fm.Model, run: str) -> None:
    """What was read before would be the model without, what is read after it the model with the change."""
    ids, edit = torch.tensor([model.tokenize(PROMPT)]), made(model, (0,), seed=4)
    call = (lambda: model.hf_model(ids).logits) if run == "pass" else lambda: last_logits(model)
    before = call()

    def begin() -> None:
        for enter in (*(block(model).__enter__ for block in BLOCKS.values()), lambda: edit.apply(model)):
            with refuses(BusyError, RuntimeError, "cannot begin"):
                enter()

    with meanwhile(model.ffn[1].project_out, begin) as tried:
        assert torch.equal(call(), before)
    assert len(tried) == 2
    edit.apply(model)
    with meanwhile(model.ffn[1].project_out, lambda: edit.revert(model)), refuses(BusyError, RuntimeError, "cannot"):
        call()
    edit.revert(model)
    assert torch.equal(call(), before)


def test_any_way_out_gives_it_back(model: fm.Model, block: Block) -> None:
    """A model that nobody could use any more, or that stays changed: after a block or a pass that is interrupted, and
    after a generator that another thread's garbage collector comes across."""
    before = last_logits(model)
    with pytest.raises(KeyboardInterrupt), block(model):
        raise KeyboardInterrupt

    def asking() -> Iterator[torch.Tensor]:
        with block(model):
            yield last_logits(model)

    holder = [asking()]
    assert not torch.equal(next(holder[0]), before)
    elsewhere(holder.clear)
    gc.collect()
    assert torch.equal(elsewhere(lambda: last_logits(model)), before)

    def fails(_module: torch.nn.Module, _args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.ffn[1].project_out.register_forward_pre_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        fm.capture(model, PROMPT)
    handle.remove()
    edit = made(model, (0,))
    elsewhere(lambda: edit.apply(model))
    elsewhere(lambda: edit.revert(model))


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
    assert torch.equal(elsewhere(lambda: last_logits(model)), before)
    assert (len(model.edits), hook_count(model.hf_model)) == (0, hooks)


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
