"""Commands that are public functions: what holds of each of them, by the table of operations alone."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.cli.commands import command, drawn
from ffnmem.cli.kinds import read_changes
from ffnmem.cli.operations import MAKERS, NOT_TYPED, Operation, argument_words, operation, path_of, short
from ffnmem.cli.table import OPERATIONS
from ffnmem.concepts import steering
from ffnmem.interventions import Add, Scale, Set
from ffnmem.neurons import readable
from ffnmem.scanning import Store, open_store
from ffnmem.show.result import Result

from ..describing.known import answer_knowing
from ..editing.edits import made as made_edit
from ..evaluation.made import EIFFEL
from ..pages.page import Page
from .running import PROMPT, csv, mistake, run, table

TYPED = {
    "prompt": PROMPT,
    "layer": "1",
    "changes": "1.all=0",
    "counterfactual": "Rome is",
    "tokens": " Paris",
    "neuron": "1.5",
    "neurons": "1.5,0.3",
    "subject": "Eiffel Tower",
    "text": "e",
    "config": "atlas",
    "form": "delphi",
    "reader": "atlas",
    "target": "Rome",
    "stores": "runs/0",
}
"""What is typed for parameters that are required, by name."""
SHOWING = [name for name, path in OPERATIONS.items() if operation(path).shows]
"""Operations that give a result."""
HOSTILE = "[red]\x1b<script>alert(1)"


ANSWERS = {
    "contrast": {"target": " London", "foil": " Paris"},
    **{name: {"editor": "ft_l"} for name in ("edit", "fact", "evaluate", "sweep", "sequential")},
}
"""What a command is asked besides, of a model that would say the same."""


def words(name: str, **typed: str) -> list[str]:
    """A call of a command with what it needs."""
    given = TYPED | typed
    more = [word for flag, value in ANSWERS.get(name, {}).items() for word in (f"--{flag}", value)]
    needed = [one for one in operation(OPERATIONS[name]).typed() if one.required]
    more += [word for one in needed if not one.by_place for word in (f"--{one.name}", given[one.name])]
    return [name, *(given[one.typed_as] for one in needed if one.by_place), *more]


@pytest.fixture(scope="module", autouse=True)
def loaded(
    tiny: fm.Model, tiny_folder: Path, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Every command is of one small model, and of facts that it knows."""
    source = tmp_path_factory.mktemp("facts") / "facts.jsonl"
    fm.facts.write_facts([fm.Fact("Eiffel Tower", "country", "The {} is in the city of", "France", "Rome")] * 2, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TYPED, "source", str(source))
        texts = tmp_path_factory.mktemp("texts") / "texts.txt"
        written = [b"The city of Rome", b"and \xff Paris", b"The Eiffel Tower is in the city of Paris"]
        written += [f"{one} is in the city".encode() for one in ("Rome", "London", "It", "Tower", "Eiffel")]
        texts.write_bytes(b"\n\n".join(written))
        others = texts.with_name("others.txt")
        others.write_bytes(b"\n\n".join(one + b" of the country" for one in written))
        patch.setitem(ANSWERS, "concept", {"against": str(others), "draws": 20})
        patch.setitem(ANSWERS, "steer", {"new": 4, "random": 1})
        concept = fm.concept(tiny, str(texts), str(others), draws=20)
        patch.setitem(TYPED, "concept", str(concept.save(texts.with_name("concept.zip"))))
        patch.setitem(TYPED, "texts", str(texts))
        store = shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("scan") / "store")
        patch.setitem(TYPED, "store", str(store))
        patch.setattr(Store, "read_model", lambda _: tiny)
        edit = tmp_path_factory.mktemp("edit") / "edit.zip"
        made_edit(tiny, fact=EIFFEL).save(edit)
        patch.setitem(TYPED, "edit", str(edit))
        patch.setitem(TYPED, "before", str(tiny_folder))
        patch.setitem(TYPED, "after", str(made_edit(tiny).export(tiny, edit.parent / "edited")))
        patch.setitem(TYPED, "second", str(edit))
        patch.setitem(TYPED, "folder", str(tiny_store.folder))
        patch.setattr(fm, "load", lambda *_, **__: tiny)
        patch.setattr(fm.describing, "ask_model", lambda _: answer_knowing)
        patch.setattr(steering, "LEVEL", 2.0)  # of so few texts no neuron is found
        patch.setattr(readable, "LEVEL", 2.0)  # of values without training none promotes what comes next
        patch.setattr(readable, "WIDE", 1)
        yield


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TYPED, "out", str(tmp_path / "out"))
    monkeypatch.setitem(ANSWERS, "moment", {"out": str(tmp_path / "out")})


def test_every_option_has_words() -> None:
    for name, path in OPERATIONS.items():
        one = operation(path)
        assert [part.name for part in one.typed() if not part.help] == []
        assert one.examples, name
        for markup in ("``", ":func:", ":class:", "In Python,"):
            assert markup not in run(name, "--help").stdout


def test_every_parameter_is_in_its_functions_docstring_by_its_name() -> None:
    for path in (*OPERATIONS.values(), *MAKERS.values()):
        function = operation(path).load()
        own = [
            name for name in inspect.signature(function).parameters if name != "self" and path not in MAKERS.values()
        ]
        said = argument_words(inspect.getdoc(function) or "")
        assert [name for name in own if name not in said and name not in NOT_TYPED] == [], path


def test_the_source_says_what_the_function_has() -> None:
    """Signatures are read without importing the function: names, order and defaults are those that it has."""
    for path in OPERATIONS.values():
        one = operation(path)
        own = inspect.signature(one.load()).parameters.items()
        parameters = {name: part for name, part in own if part.kind is not part.VAR_KEYWORD}
        assert [part.name for part in one.parameters] == list(parameters)
        assert short(path) == one.short
        for part in one.parameters:
            default = parameters[part.name].default
            assert part.required == (default is inspect.Parameter.empty)
            if part.default and part.kind.name in ("int", "float", "bool", "Count", "Whole"):
                assert ast.literal_eval(part.default) == default
        assert path_of(path.rpartition(":")[2]) is not None, "a command is a public function"


@pytest.mark.parametrize("name", [name for name in SHOWING if name != "merge"])  # which is once for a folder
def test_a_command_says_the_same_in_every_form(name: str, tiny: fm.Model, tmp_path: Any) -> None:
    """In words that fit 60 columns, as JSON and CSV the library's, on a page, and saved and loaded to the bit."""
    result = found(name, tiny)
    page, saved = tmp_path / "page.html", tmp_path / "saved.zip"
    if result.no_file:
        mistake(*words(name), "--save", saved, named=(type(result).__name__, "folder"))
    status = getattr(result, "status", 0)
    shown = table(
        *words(name),
        "--top",
        3,
        "--html",
        page,
        *(() if result.no_file else ("--save", saved)),
        width=60,
        status=status,
    )
    if hasattr(getattr(result, "provenance", None), "fingerprint"):
        assert tiny.fingerprint in shown
        assert tiny.fingerprint in Page(page.read_text("utf-8")).words
    values = json.loads(run(*words(name), "--json", "--top", 3, status=status).stdout)
    assert values == json.loads(json.dumps(result.to_dict(3, derived=True)))
    frame = csv(*words(name), "--top", 3, status=status)
    expected = result.to_frame(3, derived=True)
    assert list(frame) == list(expected)
    assert len(frame) == len(expected) > 0
    verdict = values.get("verdict")
    if verdict:
        assert verdict.split()[0] in shown
    scanned = any(hasattr(result, name) for name in ("store", "cards"))
    of_model = isinstance(getattr(result, "model", None), fm.Model)
    live = [tiny] if of_model else [open_store(TYPED["store"])] if scanned else []
    needed = live if name == "neuron" else []  # a card reads its store
    for again in () if result.no_file else (type(result).load(saved, *live), type(result).load(saved, *needed)):
        assert again.to_dict(3) == result.to_dict(3)
        assert repr(again) == repr(result)
    if not result.no_file:
        assert type(result).load(saved, *live).sheet(3) == result.sheet(3)
    if type(result).__name__ in drawn():
        assert run(*words(name), "--plot", tmp_path / "a.svg", "--csv").stdout


@pytest.mark.parametrize("name", ["circuit", "trace", "trace-facts", "knockout", "knockout-facts", "ablate"])
def test_maps_graphs_and_sets_come_whole(name: str, tiny: fm.Model) -> None:
    """The first rows of a map or a graph are any of them; a part of a set is another set."""
    result = found(name, tiny)
    for each in result.in_full.split():
        assert len(result.to_dict(1)[each]) == len(getattr(result, each)) > 1
    assert result.to_frame(1).equals(result.to_frame())


def found(name: str, model: fm.Model) -> Result:
    """What the library says."""
    one = operation(OPERATIONS[name])
    needed = [part for part in one.typed(("Model", "Store")) if part.required]
    read = {"layer": int, "neurons": lambda typed: typed.split(","), "changes": lambda typed: read_changes([typed])}
    values = {part.typed_as: read.get(part.kind.name, str)(TYPED[part.typed_as]) for part in needed}
    values |= {part.name: [values[part.name]] for part in needed if part.kind.many}
    scanned = any(part.of == "Store" and part.required for part in one.typed())
    given = {"Store": open_store(TYPED["store"])} if scanned else {}
    result = one.call(values | ANSWERS.get(name, {}), {"Model": model, **given, "k": 3})  # of --top 3
    assert isinstance(result, Result)
    return result


WRITTEN = ("graph_file", "new_file", "result_file", "out_folder", "new_folder")
"""Kinds that name what is written."""
DESTINATIONS = [
    *((name, one.name, one.kind.name) for name, path in OPERATIONS.items() for one in operation(path).typed()),
    *((name, flag, "new_file") for name in SHOWING for flag in ("html", "save")),
    *(
        (name, "plot", "new_file")
        for name in SHOWING
        if drawn().intersection(operation(OPERATIONS[name]).returns.split(" | "))
    ),
]


@pytest.mark.parametrize(("name", "flag", "kind"), [one for one in DESTINATIONS if one[2] in WRITTEN])
def test_what_is_somebodys_is_left_as_it_is(
    name: str, flag: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip of the shell's history would cost somebody's work: a text, through a link or not, or what lies in a
    folder. Of a file that is known before a model or a store is opened."""
    text, folder = tmp_path / "years.txt", tmp_path / "thesis"
    for path in (text, folder / ".notes"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
    file = tmp_path / {"plot": "thesis.png", "out": "thesis.md"}.get(flag, "thesis.safetensors")
    file.symlink_to(text)
    place = str(folder if "folder" in kind else file)
    if place == str(file):
        monkeypatch.setattr(fm, "load", None)
        monkeypatch.setattr(fm, "open_store", None)
    monkeypatch.setitem(ANSWERS, "moment", {})
    typed = words(name, **{flag: place})
    mistake(*typed, *(() if place in typed else (f"--{flag}", place)), named=("thesis",))
    assert text.read_text() == "years of work"
    assert [path.name for path in folder.iterdir()] == [".notes"]
    assert file.is_symlink()


@pytest.mark.parametrize("name", SHOWING)
def test_token_text_does_nothing(name: str, tmp_path: Any) -> None:
    """A prompt could recolour a terminal, break a table, or run in a page."""
    if "prompt" in (one.name for one in operation(OPERATIONS[name]).typed()):
        hostile = {"counterfactual" if name == "contrast" else "prompt": HOSTILE, "subject": "alert"}
        out = table(
            *words(name, **hostile), "--top", 2, "--html", tmp_path / "page.html", status=int(name in ("edit", "fact"))
        )
        assert "\x1b" not in out
        html = (tmp_path / "page.html").read_text("utf-8")
        assert "<script>alert" not in html
        assert "\x1b" not in html


@pytest.mark.parametrize("name", SHOWING)
def test_mistakes_are_told_before_a_model_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(fm, "load", None)
    draws = drawn().intersection(operation(OPERATIONS[name]).returns.split(" | "))
    for wrong, named in (
        (("--json", "--csv"), ("--json", "--csv")),
        (("--top", "0"), ("top",)),
        (("--html", "/nowhere/at/all.html"), ("/nowhere/at",)),
        (("--plot", "picture.doc"), ("picture.doc", ".png") if draws else ("--plot",)),
        (("--no-such-option",), ("--no-such-option",)),
    ):
        mistake(*words(name), *wrong, named=named)


def test_a_result_that_did_not_reach_what_was_asked_says_so_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = importlib.import_module("ffnmem.prompts.attribution").Attribution
    monkeypatch.setattr(kind, "status", 1, raising=False)
    run("attribute", PROMPT, "--csv", status=1)


def test_a_command_is_made_of_the_signature() -> None:
    made = inspect.signature(command(OPERATIONS["attribute"]))
    first, *rest = made.parameters
    assert first == "prompt"
    assert {"model", "device", "dtype", "prepend_bos", "chat", "target", "foil", "position", "output"} <= set(rest)
    assert "--target TOKEN" in run("attribute", "--help").stdout


TOWER = f"'{PROMPT}' 'Eiffel Tower'"
GIVEN: dict[str, dict[str, Any]] = {
    "attribute x --target id:300 --position 2": {"target": 300, "position": 2},
    "attribute x --target ' Paris' --foil -1": {"target": " Paris", "foil": "-1"},
    "circuit x --firings 0.5@3,1.7 --share .8": {"firings": ["0.5@3", "1.7"], "share": 0.8},
    "decompose x -1 --position 2": {"layer": -1, "position": 2},
    "decompose x blocks.1.mlp.hook_post": {"layer": 1},
    "causal x --rule ig": {"rule": "ig"},
    "geometry --layers 0,-1": {"layers": [0, -1]},
    "ablate x --neurons 1.5,0.3 --neurons 0.60 --positions 2 --positions -1 --how mean --most 9": {
        **{"neurons": [(1, 5), (0, 3), (0, 60)], "positions": [2, -1], "how": "mean", "most": 9}
    },
    "ablate x --how -1.5": {"how": -1.5},
    f"trace {TOWER} --samples 2 --noise 1 --kinds ffn --window 1": {
        **{"fact": PROMPT, "subject": "Eiffel Tower", "samples": 2, "noise": 1.0, "kinds": ["ffn"], "window": 1}
    },
    "activations --names gelu_new --names swish --at -0.5 --at=-7": {
        "names": ["gelu_new", "swish"],
        "at": [-0.5, -7.0],
    },
    "intervene x 0.3=2,1.all=0 0.5=x-1.5 1.7+=.5 --at 1 --at -4": {
        **{"changes": {"0.3": Set(2.0), "1.all": Set(0.0), "0.5": Scale(-1.5), "1.7": Add(0.5)}, "at": [1, -4]}
    },
    "weights 1.5 --top 6": {"layer": (1, 5), "k": 6},
    "project 1.5 0.63,1.0 --side key": {"layer": [(1, 5), (0, 63), (1, 0)], "side": ["key"]},
    "token ' Paris' id:3 --layer 1 --side value --side key": {
        "tokens": [" Paris", 3],
        "layer": 1,
        "side": ["value", "key"],
    },
    f"edit {TOWER} Rome --editor ft_l --settings steps=3 --settings stop=none --layer 0 --force": {
        **{"target": "Rome", "settings": {"steps": 3, "stop": None}, "layer": 0, "force": True}
    },
    "sequential atlas --at 1,2 --together 2 --editor memit": {"at": [1, 2], "together": 2, "editor": "memit"},
    "scan atlas --out new --shard 1/4 --no-project": {"out": "new", "shard": (1, 4), "project": False},
}
"""What is typed, and what a function is given."""


@pytest.mark.parametrize("line", GIVEN)
def test_a_function_gets_what_is_typed(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside this, a command says what its function does (:func:`test_a_command_says_the_same_in_every_form`)."""
    monkeypatch.chdir(tmp_path)
    words, taken = shlex.split(line), {}
    load = Operation.load

    def take(**values: Any) -> None:
        taken.update(values)
        raise ZeroDivisionError

    monkeypatch.setattr(Operation, "load", lambda one: take if one.path == OPERATIONS[words[0]] else load(one))
    with pytest.raises(ZeroDivisionError):
        run(*words)
    assert {name: taken.get(name) for name in GIVEN[line]} == GIVEN[line]
