"""Ctrl-C at any line of the package leaves a model as it was before the block that it ended."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import ffnmem as fm
from ffnmem.tracing import trace_fact

from ..editing.edits import made, same_bits, weights
from ..helpers import OTHER_PROMPT, PROMPT, hook_count

ROOT = str(Path(fm.__file__).parent)
OWN = ("models/hooks.py", "interventions/intervening.py", "editing/ledger.py", "editing/edit.py", "contextlib.py")
Line = tuple[str, int]


def capture(model: fm.Model, prompts: str | list[str] = PROMPT) -> fm.Capture:
    return fm.capture(model, prompts, logits=True)


def intervene(model: fm.Model) -> None:
    with fm.intervene(model, {(0, 3): 5.0, (1, None): fm.interventions.Scale(0.5)}):
        capture(model)


def applied(model: fm.Model) -> None:
    with made(model, (0, 1)).applied(model):
        capture(model)


def hooks(model: fm.Model) -> None:
    with made(model, (0, 1)).hooks(model):
        capture(model)


def stopped(model: fm.Model) -> None:
    with suppress(ZeroDivisionError), made(model, (0, 1)).applied(model), fm.intervene(model, {(0, 3): 5.0}):
        1 / 0  # noqa: B018


ACTIONS: dict[str, Callable[[fm.Model], object]] = {
    "capture": capture,
    "batch": lambda model: capture(model, [PROMPT, OTHER_PROMPT]),
    "intervene": intervene,
    "applied": applied,
    "hooks": hooks,
    "stopped": stopped,
    "diff": lambda model: made(model, (0, 1)).diff(model, PROMPT),
    "attribute": lambda model: fm.attribute(capture(model), " Paris"),
    "ablate": lambda model: fm.ablate(capture(model), " Paris", neurons=["0.3"]),
    "trace": lambda model: trace_fact(model, PROMPT, "Eiffel Tower", target=" France", samples=2),
    "contrast": lambda model: fm.contrast(model, PROMPT, "The Colosseum is in the city of", " Rome", " Paris"),
}


class Interrupt:
    """Runs an action up to a line of this package, or of contextlib; ``at`` counts the lines that run."""

    def __init__(self, action: Callable[[], object], at: int | None = None) -> None:
        self.at, self.lines = at, list[Line]()
        tracer = sys.gettrace()
        sys.settrace(self.call)
        try:
            action()
        except KeyboardInterrupt as error:
            self.error = error  # kept, as a notebook keeps the last traceback, and with it what the blocks held
        finally:
            sys.settrace(tracer)

    def call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code  # no exception leaves a __del__
        return (
            self.line
            if code.co_filename.startswith((ROOT, contextlib.__file__)) and code.co_name != "__del__"
            else None
        )

    def line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) - 1 == self.at:
                raise KeyboardInterrupt
        return self.line


def places_in(lines: list[Line], files: tuple[str, ...]) -> list[int]:
    """The first and the last time that each line of some files runs."""
    first = {line: at for at, line in reversed([*enumerate(lines)])}
    last = {line: at for at, line in enumerate(lines)}
    return sorted({at for found in (first, last) for (file, _), at in found.items() if file.endswith(files)})


@pytest.mark.filterwarnings("ignore:intervene .* was never entered", "ignore:the model prefers")
@pytest.mark.parametrize(
    ("action", "files"),
    [
        *((name, OWN) for name in ("capture", "intervene", "applied", "stopped")),
        *(
            pytest.param(name, OWN if name == "contrast" else (".py",), marks=pytest.mark.exhaustive)  # which is slow
            for name in ACTIONS
        ),
    ],
)
def test_an_interrupt_leaves_nothing(make_tiny: Callable[..., fm.Model], action: str, files: tuple[str, ...]) -> None:
    """A model that stays changed, or whose captures fail, after Ctrl-C before, within or behind a block's lines."""
    model = make_tiny()
    run = lambda: ACTIONS[action](model)  # noqa: E731
    run()
    logits, bits, hung = capture(model).logits, weights(model), hook_count(model.hf_model)
    lines = Interrupt(run).lines
    for at in places_in(lines, files):
        interrupt = Interrupt(run, at)
        place = interrupt.lines[-1]
        assert len(interrupt.lines) == at + 1, place
        assert (len(model.edits), model.interventions, hook_count(model.hf_model)) == (0, (), hung), place
        assert same_bits(model, bits), place
        assert all(getattr(mode, "over", False) for mode in _get_current_function_mode_stack()), place
        torch.set_grad_enabled(True)  # which torch's own blocks may leave off
        assert torch.equal(capture(model).logits, logits), place
        interrupt.error.__traceback__ = None
