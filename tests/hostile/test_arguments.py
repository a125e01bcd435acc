"""Any value for any argument of any public function, and of any option of any command."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.cli import run_captured
from ffnmem.cli.reference import every_command
from ffnmem.interventions.intervening import Intervention
from ffnmem.scanning import Store
from tests.helpers import public_things

from ..cli.running import arguments_of
from .judging import LONGEST, OUTCOMES, answered, hostile
from .material import fresh, place, tiny, tiny_folder, tiny_store

SLOW = {
    "pages.site",  # writes where it is told to
    "planted.calibrate",  # makes and scans dozens of models unless its first argument is wrong
    "editing.convergence",
    "evaluation.edit_quality",
    "evaluate",
    "interventions.knowledge_neurons",
    "evaluation.layer_sweep",
    "planted.plant",
    "evaluation.sequential",
    "studies.run",
}
"""Functions that take long when nothing is wrong: they are given no right model, or store."""


@cache
def right() -> dict[str, Any]:
    """Right values for arguments that are called so, to get past the first check."""
    capture = fm.capture(tiny(), "The Eiffel Tower is in the city of")
    fact = fm.Fact(subject="Eiffel Tower", relation="city", prompt="The {} is in the city of", target_true="Paris")
    return {
        "model": tiny(),
        "capture": capture,
        "store": tiny_store(),
        "fact": fact,
        "facts": [fact],
        "attribution": fm.attribute(capture),
        "paths": fm.attribute_paths(capture),
        "prompt": "The Eiffel Tower",
        "layer": 0,
        "neuron": 1,
        "tokens": " Paris",
        "target": " Rome",
        "interventions": {(0, 1): 0.0},
    }


class Odd:
    """An object that is no use for anything."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr either")


def numbers() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.integers(-5, 40),
        st.sampled_from([10**30, -(10**30), 2**31, 2**63, 10**4000, np.int64(3), np.float32(2.5)]),
        st.floats(),
        st.booleans(),
        st.complex_numbers(max_magnitude=3),
    )


def texts() -> st.SearchStrategy[Any]:
    known = ["", " ", "\0", "\ud800", "a\nb", "\x1b[31m", "x" * 5000, "~nosuchuser/x", "/dev/zero", " Paris", "atlas"]
    return st.one_of(st.text(max_size=8), st.sampled_from(known))


def zoo() -> st.SearchStrategy[Any]:
    """Any kind of value."""
    plain = st.one_of(st.none(), numbers(), texts(), st.binary(max_size=4))
    things = st.sampled_from(
        [
            Odd(),
            object,
            len,
            torch.zeros(2, 3),
            torch.tensor(1),
            np.arange(3),
            pd.DataFrame({"layer": [0], "neuron": [99]}),
            range(3),
            frozenset({1}),
        ]
    )
    ours = st.sampled_from(["model", "capture", "store", "fact", "attribution"]).map(lambda name: right()[name])
    nested = st.one_of(
        st.lists(plain, max_size=3),
        st.tuples(plain, plain),
        st.dictionaries(st.one_of(st.text(max_size=3), st.tuples(numbers(), numbers())), plain, max_size=2),
    )
    return st.one_of(plain, things, ours, nested)


PUBLIC = public_things()
FUNCTIONS = sorted(name for name, thing in PUBLIC.items() if inspect.isfunction(thing))
CLASSES = (
    *("Fact", "facts.Probe", "facts.Hop", "facts.MultiHop", "neurons.Rule"),
    *(f"interventions.{name}" for name in ("Set", "Scale", "Add", "Mean", "Resample")),
)
INSIDE = (
    *("view", "table", "opened", "example_rows", "windows", "with_contexts", "check_kinds"),  # of Store
    *("read_along", "logits_at"),  # of what capture and attribute give
)
"""Methods for the package's own use, which take only what the package gives them."""
METHODS = [
    (kind, name)
    for kind, owner in (
        ("capture", fm.prompts.Capture),
        ("store", Store),
        ("attribution", fm.prompts.Attribution),
        ("paths", fm.prompts.PathAttribution),
        ("fact", fm.Fact),
    )
    for name, member in vars(owner).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in INSIDE
]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A public function, and values for what it must be given and for some of the rest, right ones among them."""
    name = draw(st.sampled_from([*FUNCTIONS, *CLASSES]))
    return name, draw(values_for(PUBLIC[name], wrong=name in SLOW))


@st.composite
def values_for(draw: st.DrawFn, function: Callable[..., Any], wrong: bool) -> dict[str, Any]:
    """Values by the names of parameters. With ``wrong``, the first one is certainly so."""
    given: dict[str, Any] = {}
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_KEYWORD,)]
    for place_in_order, parameter in enumerate(parameters):
        if parameter.name == "self" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if wrong and place_in_order == 0:
            given[parameter.name] = draw(st.one_of(st.none(), st.just(Odd()), st.binary(max_size=3)))
            continue
        needed = parameter.default is parameter.empty
        if not needed and draw(st.integers(0, 3)):
            continue
        if parameter.name in ("out", "folder", "path"):
            given[parameter.name] = draw(st.one_of(st.builds(fresh), zoo().filter(lambda one: not usable(one))))
        elif parameter.name in right() and draw(st.integers(0, 3)):
            given[parameter.name] = right()[parameter.name]
        else:
            given[parameter.name] = draw(zoo())
    return given


def usable(value: Any) -> bool:
    """Whether something could be written there, outside this suite's folder."""
    return isinstance(value, str) and bool(value.strip()) and not value.startswith(("/dev", "~"))


@hostile(examples=80, call=calls())
def test_any_argument_of_any_function(call: tuple[str, dict[str, Any]]) -> None:
    tried(*call)


def tried(name: str, given: dict[str, Any]) -> None:
    """A public function called, and a block that it gives entered."""
    with contextlib.chdir(place()):  # where reports are written that are told no place
        found = answered(name, lambda: PUBLIC[name](**given))
    if isinstance(found, Intervention):
        answered(f"{name}, entered", lambda: entered(found))


def test_no_block_is_left_that_complains_later() -> None:
    """Where one was, every test's warnings had to be ignored, and a real one with them."""
    before = OUTCOMES["intervene, entered: success"]
    tried("intervene", {"model": tiny(), "interventions": {(0, 1): 0.0}})
    assert OUTCOMES["intervene, entered: success"] == before + 1
    gc.collect()  # an unraisable warning fails this test


def entered(block: Intervention) -> None:
    """A block of nothing: one that is never entered says so whenever it is collected, in whatever test that is."""
    with block:
        pass


@hostile(examples=40, method=st.sampled_from(METHODS).flatmap(lambda one: st.tuples(st.just(one), values_of(one))))
def test_any_argument_of_any_method(method: tuple[tuple[str, str], dict[str, Any]]) -> None:
    (kind, name), given = method
    bound = getattr(right()[kind], name)
    answered(f"{kind}.{name}", lambda: bound(**given))


def values_of(method: tuple[str, str]) -> st.SearchStrategy[dict[str, Any]]:
    kind, name = method
    return st.deferred(lambda: values_for(getattr(right()[kind], name), wrong=False))


JUNK = [
    "",
    " ",
    "-1",
    "0",
    "3",
    "99999999999",
    "1" * 400,
    "1e400",
    "nan",
    "-inf",
    "0.5",
    "a\nb",
    "\x1b[31mred",
    "~nosuchuser/x",
    "x" * 5000,
    "/dev/zero",
    "0.1",
    "0.1=nan",
    "9.99",
    ",",
    "1,,2",
    "é日本\u202e",
    "atlas",
    "--help",
]
QUICK = ("attribute", "paths", "decompose", "facts", "neuron", "store", "intervene", "anatomy", "activations", "ablate")
"""Commands that are run with what is right besides one junk value; the others get junk for their model too."""
NAMES = tuple(every_command())
LONG = ("calibrate", "plant meanings", "plant roles", "plant facts")
"""Commands that need no model and take minutes when nothing is wrong: one of their numbers always is."""


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(NAMES)))
    options = arguments_of(name)
    model = str(tiny_folder()) if name in QUICK else draw(st.sampled_from([j for j in JUNK if j not in ("atlas",)]))
    arguments: list[str] = []
    for option in options:
        if option.index is not None:
            count = draw(st.sampled_from([1, 1, 1, 0, 2]))
            known = [str(tiny_store().folder)] if option.name in ("STORE", "STORES") else []
            arguments += [draw(st.sampled_from([*JUNK, "The Eiffel Tower", "0.1", *known])) for _ in range(count)]
        elif option.name == "--model":
            arguments += ["--model", model]
        elif option.name == "--store" and draw(st.booleans()):
            arguments += ["--store", str(tiny_store().folder)]
        elif draw(st.integers(0, 4)) == 0:
            arguments.append(option.name)
            if not is_flag(option):
                arguments.append(draw(st.sampled_from(JUNK)))
    if name in LONG:
        counted = [option.name for option in options if not is_flag(option) and option.parameter.metavar == "N"]
        arguments += [draw(st.sampled_from(counted)), draw(st.sampled_from(["x", "-1", "", "1e9", "nan"]))]
    return [*name.split(), *arguments]


def is_flag(option: Any) -> bool:
    return option.hint in (bool, bool | None)


@hostile(examples=60, arguments=command_lines())
def test_any_option_of_any_command(arguments: list[str]) -> None:
    run(arguments)


def run(arguments: list[str]) -> None:
    """Status 0, 1 or 2, one line where it is 2, and no traceback."""
    with contextlib.chdir(place()):  # whatever a command writes, it writes there
        status, _, err = run_captured(arguments)
    assert status in (0, 1, 2), arguments
    if status == 2:
        lines = err.splitlines()
        assert lines, arguments
        assert lines[-1].startswith("ffnmem: error: "), err
        assert len(lines[-1]) <= LONGEST, arguments
        assert "\x1b" not in err, arguments
    OUTCOMES[f"ffnmem {arguments[0]}: {status}"] += 1
