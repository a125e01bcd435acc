"""Any value for any argument of any public function, any option of any command, and any text where a path is due."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.cli import run_captured
from ffnmem.cli.table import COMMANDS
from ffnmem.facts import formats
from ffnmem.interventions.intervening import Intervention

from ..cli.running import arguments_of
from ..helpers import PROMPT, public_things
from .material import LONGEST, answered, fresh, hostile, place, tiny, tiny_folder, tiny_store

SLOW = {
    "pages.site",  # writes where it is told to
    "interventions.knowledge_neurons",
    *("evaluate", "evaluation.layer_sweep", "evaluation.sequential"),
}
"""Functions that take long when nothing is wrong: their first argument always is."""
INSIDE = (
    *("view", "table", "opened", "example_rows", "windows", "with_contexts", "check_kinds"),  # of Store
    *("read_along", "logits_at"),  # of what capture and attribute give
)
"""Methods for the package's own use, which take only what the package gives them."""
OWNERS = {"capture": fm.prompts.Capture, "store": fm.scanning.Store, "attribution": fm.prompts.Attribution}
OWNERS |= {"paths": fm.prompts.PathAttribution, "fact": fm.Fact}
METHODS = [
    (kind, name)
    for kind, owner in OWNERS.items()
    for name, member in vars(owner).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in INSIDE
]
PUBLIC = public_things()
CALLED = [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)]
CALLED += ["Fact", "facts.Probe", "neurons.Rule"]
CALLED += [f"interventions.{name}" for name in ("Set", "Scale", "Add", "Mean")]


@cache
def right() -> dict[str, Any]:
    """Right values for arguments that are called so, to get past the first check."""
    capture = fm.capture(tiny(), PROMPT)
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


NUMBERS = st.one_of(
    st.integers(-5, 40),
    st.sampled_from([10**30, -(10**30), 2**31, 2**63, 10**4000, np.int64(3), np.float32(2.5)]),
    st.floats(),
    st.booleans(),
    st.complex_numbers(max_magnitude=3),
)
KNOWN = ["", " ", "\0", "\ud800", "a\nb", "\x1b[31m", "x" * 5000, "~nosuchuser/x", "/dev/zero", " Paris", "atlas"]
PLAIN = st.one_of(st.none(), NUMBERS, st.text(max_size=8), st.sampled_from(KNOWN), st.binary(max_size=4))
THINGS = [Odd(), object, len, torch.zeros(2, 3), torch.tensor(1), np.arange(3), range(3), frozenset({1})]
THINGS.append(pd.DataFrame({"layer": [0], "neuron": [99]}))
ANY = st.one_of(
    PLAIN,
    st.sampled_from(THINGS),
    st.sampled_from(["model", "capture", "store", "fact", "attribution"]).map(lambda name: right()[name]),
    st.lists(PLAIN, max_size=3),
    st.tuples(PLAIN, PLAIN),
    st.dictionaries(st.one_of(st.text(max_size=3), st.tuples(NUMBERS, NUMBERS)), PLAIN, max_size=2),
)


def usable(value: Any) -> bool:
    """Whether something could be written there, outside this suite's folder."""
    return isinstance(value, str) and bool(value.strip()) and not value.startswith(("/dev", "~"))


@st.composite
def calls(draw: st.DrawFn) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A public function or method, and values for what it must be given and for some of the rest, right ones among
    them."""
    chosen = draw(st.one_of(st.sampled_from(CALLED), st.sampled_from(CALLED), st.sampled_from(METHODS)))
    function = PUBLIC[chosen] if isinstance(chosen, str) else getattr(right()[chosen[0]], chosen[1])
    given: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if number == 0 and chosen in SLOW:
            given[name] = draw(st.one_of(st.none(), st.just(Odd()), st.binary(max_size=3)))
        elif parameter.default is not parameter.empty and draw(st.integers(0, 3)):
            continue
        elif name in ("out", "folder", "path"):
            given[name] = draw(st.one_of(st.builds(fresh), ANY.filter(lambda one: not usable(one))))
        else:
            given[name] = right()[name] if name in right() and draw(st.integers(0, 3)) else draw(ANY)
    return function, given


@hostile(examples=90, call=calls())
def test_any_argument_of_any_function(call: tuple[Callable[..., Any], dict[str, Any]]) -> None:
    function, given = call
    with contextlib.chdir(place()):  # where reports are written that are told no place
        found = answered(lambda: function(**given))
    if isinstance(found, Intervention):  # one that is never entered complains when it is collected
        answered(lambda: entered(found))


def entered(block: Intervention) -> None:
    with block:
        pass


JUNK = ["", " ", "-1", "0", "3", "99999999999", "1" * 400, "1e400", "nan", "-inf", "0.5", "a\nb", "\x1b[31mred"]
JUNK += ["~nosuchuser/x", "x" * 5000, "/dev/zero", "0.1", "0.1=nan", "9.99", ",", "1,,2", "é日本\u202e", "--help"]
QUICK = ("attribute", "paths", "decompose", "facts", "neuron", "store", "intervene", "anatomy", "activations", "ablate")
"""Commands that are run with what is right besides one junk value; the others get junk for their model too."""


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options = arguments_of(name)
    flags = {option.name for option in options if option.hint in (bool, bool | None)}
    arguments: list[str] = []
    for option in options:
        if option.index is not None:
            known = [str(tiny_store().folder)] if option.name in ("STORE", "STORES") else []
            for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
                arguments.append(draw(st.sampled_from([*JUNK, "The Eiffel Tower", "0.1", *known])))
        elif option.name == "--model":
            arguments += ["--model", str(tiny_folder()) if name in QUICK else draw(st.sampled_from(JUNK))]
        elif option.name == "--store" and draw(st.booleans()):
            arguments += ["--store", str(tiny_store().folder)]
        elif draw(st.integers(0, 4)) == 0:
            arguments += [option.name] if option.name in flags else [option.name, draw(st.sampled_from(JUNK))]
    return [*name.split(), *arguments]


@hostile(examples=50, arguments=command_lines())
def test_any_option_of_any_command(arguments: list[str]) -> None:
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


DOORS: dict[str, Callable[[Any], Any]] = {
    "load": fm.load,
    "anatomy": fm.models.anatomy,
    "open_store": fm.open_store,
    "open_corpus": lambda path: list(fm.corpus.open_corpus(path)),
    "pack": lambda path: fm.corpus.pack(path, tiny(), fresh()),
    "load_facts": fm.load_facts,
    "Edit.load": fm.Edit.load,
    "SecondMoment.load": fm.editing.SecondMoment.load,
    "Scores.load": fm.evaluation.Scores.load,
    "write a pack": lambda path: fm.corpus.pack(["a text"], tiny(), path),
    "write a merge": lambda path: fm.merge([tiny_store()], path),
    "write a page": lambda path: fm.pages.page(fm.neurons.list_neurons(tiny_store(), k=1), path),
    "write facts": lambda path: formats.write_facts([], path),
}
SUFFIXES = ("", ".txt", ".csv", ".jsonl", ".parquet", ".txt.gz", ".safetensors", ".html", ".json")
MANIFESTS = ("manifest.json", "corpus.json", "config.json")


@cache
def things() -> Path:
    """A folder with one of everything that can lie at a path."""
    folder = fresh()
    folder.mkdir()
    for suffix in SUFFIXES:
        os.mkfifo(folder / f"pipe{suffix}")
        (folder / f"zero{suffix}").symlink_to("/dev/zero")
        (folder / f"loop{suffix}").symlink_to(f"loop{suffix}")
        (folder / f"gone{suffix}").symlink_to("nothing")
        (folder / f"empty{suffix}").write_bytes(b"")
        (folder / f"folder{suffix}").mkdir()
    for name in MANIFESTS:
        (folder / f"piped-{name}").mkdir()
        os.mkfifo(folder / f"piped-{name}" / name)
    return folder


KINDS = ("pipe", "zero", "loop", "gone", "empty", "folder", "none")
PATHS = st.one_of(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(SUFFIXES)).map(lambda pair: str(things() / "".join(pair))),
    st.sampled_from(MANIFESTS).map(lambda name: str(things() / f"piped-{name}")),
    st.text(st.characters(codec=None), max_size=12).map(lambda text: f"{place()}/names/{text}"),
    st.sampled_from(["\0", "a\0b", "\ud800", "\udcff", "x" * 300, "x" * 5000, "/x" * 2500, "a/" * 3000, "/dev/zero"]),
    st.sampled_from(["/dev/stdin/x", "/dev/full/x", "[", "**/[", "*\0*", "hf:", "hf:/", "http://x/y", "~nosuchuser/x"]),
)


@hostile(examples=90, door=st.sampled_from(sorted(DOORS)), path=PATHS, typed=st.booleans())
def test_any_path_is_read_or_written_or_refused_at_once(door: str, path: str, typed: bool) -> None:
    with contextlib.chdir(place()):
        answered(lambda: DOORS[door](Path(path) if typed and "\0" not in path else path))
