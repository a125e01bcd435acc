"""Threads, blocks and public functions in drawn interleavings: every result is the one of a single thread, or refused.

A second thread stops at a drawn call inside the package, the first one acts, then the second goes on. Events say whose
turn it is, so that a draw always runs the same way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import BusyError, FfnmemError
from ffnmem.editing import Edit, EditedLayer
from ffnmem.models.answers import generate

from ..helpers import PROMPT, build_gpt2
from .judging import answered, hostile
from .material import tokenizer

LONG = 60  # seconds; a thread that waits so long waits for ever
PACKAGE = str(Path(fm.__file__).parent)
LOCKED = str(Path(PACKAGE) / "models" / "turns.py")  # a thread that stopped in there would hold what the other needs
PLAIN = "plain"


@cache
def model() -> fm.Model:
    """A model of this file's own, since it is changed."""
    return fm.load(build_gpt2(), tokenizer=tokenizer())


@cache
def capture() -> fm.prompts.Capture:
    return fm.capture(model(), PROMPT)


@cache
def edit() -> Edit:
    numbers = torch.Generator().manual_seed(1)
    left, right = (torch.randn(1, n, generator=numbers, dtype=torch.float64) for n in (model().d_mlp, model().d_model))
    return Edit.of(model(), [EditedLayer(layer, 0.3 * left, 0.3 * right) for layer in (0, 1)], method="hand")


def traced() -> list[float]:
    return list(fm.trace_fact(model(), PROMPT, "Eiffel Tower", kinds=("state",), samples=2, noise=1.0).samples)


def ids() -> torch.Tensor:
    return capture().tokens


CALLS: dict[str, Callable[[], Any]] = {
    "capture": lambda: fm.capture(model(), PROMPT, logits=True).logits,
    "capture of one layer": lambda: fm.capture(model(), PROMPT, layers=1).coefficients[1],
    "attribute": lambda: fm.attribute(fm.capture(model(), PROMPT)).neurons,
    "attribute of before": lambda: fm.attribute(capture()).neurons,
    "decompose": lambda: fm.decompose(capture(), 1),
    "attribute_paths": lambda: fm.attribute_paths(fm.capture(model(), PROMPT)).neurons.head(9),
    "causal_scores": lambda: fm.causal_scores(fm.capture(model(), PROMPT), rule="relp").neurons.head(9),
    "faithfulness": lambda: fm.faithfulness(capture(), " Paris", " Rome", [(0, 1, 1), (1, 3, 2)], random=1).curve,
    "circuit": lambda: fm.circuit(fm.capture(model(), PROMPT), nodes=20).edges,
    "ablate": lambda: fm.ablate(capture(), top=3).neurons,
    "knowledge_neurons": lambda: fm.interventions.knowledge_neurons(capture(), steps=2).top(5),
    "project": lambda: fm.project(model(), 1, [3, 4], k=2),
    "promoters": lambda: fm.vocabulary.promoters(model(), " Paris", k=3),
    "geometry": lambda: fm.neurons.geometry(model(), layers=1).layers,
    "roles": lambda: fm.roles(model(), layer=1).drop(columns="statistic"),
    "trace_fact": traced,
    "generate": lambda: generate(model(), ids()[0].tolist(), 4, temperature=1.0, seed=5),
    "sample_contexts": lambda: fm.editing.sample_contexts(model(), n=2, lengths=(4,)),
    "diff": lambda: edit().diff(model(), PROMPT, 3, target=" Rome").neurons,
    "fingerprint": lambda: model().fingerprint,
    "bridge": lambda: model().to_bridge()(ids()),
    "hugging face": lambda: model().hf_model(input_ids=ids()).logits,
}
BLOCKS: dict[str, Callable[[], Any]] = {
    "intervene": lambda: fm.intervene(model(), {(0, 3): 5.0, (1, None): fm.interventions.Scale(0.5)}),
    "at a position": lambda: fm.intervene(model(), {(1, 4): 9.0}, positions=-1),
    "hooks": lambda: edit().hooks(model()),
    "applied": lambda: edit().applied(model()),
}


def told(found: Any) -> str:
    """A result as a text that is the same for the same numbers."""
    if isinstance(found, FfnmemError):
        return f"{type(found).__name__}: {found}"
    if isinstance(found, torch.Tensor):
        return str(found.double().tolist())
    return str(found.to_csv()) if hasattr(found, "to_csv") else str(found)


def tried(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error of ours that it raises."""
    with torch.no_grad():
        try:
            return call()
        except FfnmemError as error:
            return error


@cache
def alone(name: str, block: str) -> str:
    """What one thread by itself gets, inside a block or in none."""
    if block == PLAIN:
        return told(tried(CALLS[name]))
    with BLOCKS[block]():
        return told(tried(CALLS[name]))


def locked(frame: Any) -> bool:
    """Whether a cached property is being worked out, which in Python 3.11 keeps out every thread that asks for it."""
    while frame is not None:
        if frame.f_code.co_name == "__get__" and frame.f_code.co_filename.endswith("functools.py"):
            return True
        frame = frame.f_back
    return False


class Second:
    """A thread that runs a call and stops when it comes to the n-th function of the package."""

    def __init__(self, call: Callable[[], Any], after: int) -> None:
        self.call, self.left = call, after
        self.stopped, self.on = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        assert self.stopped.wait(LONG)

    def count(self, frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE) and frame.f_code.co_filename != LOCKED:
            self.left -= 1
            if self.left <= 0 and not self.stopped.is_set() and not locked(frame):
                self.stopped.set()
                assert self.on.wait(LONG)

    def run(self) -> None:
        sys.setprofile(self.count)
        try:
            self.found = tried(self.call)
        except BaseException as error:  # noqa: BLE001 (raised again by finish)
            self.errors.append(error)
        finally:
            sys.setprofile(None)
            self.stopped.set()

    def __enter__(self) -> Second:
        return self

    def __exit__(self, *_error: object) -> None:
        self.on.set()
        self.thread.join(LONG)

    def finish(self) -> Any:
        self.on.set()
        self.thread.join(LONG)
        assert not self.thread.is_alive(), "waits for ever"
        if self.errors:
            raise self.errors[0]
        if isinstance(self.found, FfnmemError):
            raise self.found
        return self.found


def check(name: str, found: Any, *blocks: str) -> None:
    """A refusal that names the change, or what one thread gets in one of these states."""
    if not isinstance(found, BusyError) and "capture the prompt again" not in told(found):
        assert told(found) in {alone(name, block) for block in blocks}, f"{name}: {told(found)[:300]}"


def free() -> None:
    """Whatever happened, the model is whole and anybody's."""
    turns = model().turns
    assert (turns.blocks, +turns.functions, turns.passes) == ([], {}, set())
    assert told(tried(CALLS["fingerprint"])) == alone("fingerprint", PLAIN)


NAMES, KINDS = st.sampled_from(sorted(CALLS)), st.sampled_from(sorted(BLOCKS))
AFTER = st.integers(1, 400)


@hostile(examples=6, name=NAMES, block=KINDS, after=AFTER)
def test_a_block_beside_a_call(name: str, block: str, after: int) -> None:
    """The block is opened when the call is anywhere in its middle, and left before or after it goes on."""
    for early in (True, False):
        for state in (PLAIN, block):
            alone(name, state)
        with Second(CALLS[name], after) as second, ExitStack() as stack:
            inside = answered("block beside a call", lambda: stack.enter_context(BLOCKS[block]()))
            if isinstance(inside, FfnmemError):
                assert isinstance(inside, BusyError), told(inside)
            else:
                check(name, tried(CALLS[name]), block)
            if early:
                stack.close()
            check(name, answered("call beside a block", second.finish), PLAIN)
        free()


@hostile(examples=8, name=NAMES, other=NAMES, after=AFTER)
def test_two_calls_side_by_side(name: str, other: str, after: int) -> None:
    """Calls that only read, in the middle of each other."""
    alone(name, PLAIN), alone(other, PLAIN)
    with Second(CALLS[name], after) as second:
        first = answered("call beside a call", lambda: CALLS[other]())
        found = answered("call beside a call", second.finish)
    check(other, first, PLAIN)
    check(name, found, PLAIN)
    if "diff" not in (name, other):  # which has the edit for a while
        assert not isinstance(first, BusyError), told(first)
        assert not isinstance(found, BusyError), told(found)
    free()
