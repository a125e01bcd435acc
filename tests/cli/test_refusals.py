"""Every mistake that the manual's reader can make: one line that says what is wrong, and what would be right."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

import pytest

from ffnmem.cli.table import COMMANDS
from ffnmem.scanning import Store

from .running import PROMPT, arguments_of, mistake

OUT, FEW = "--out {out}", "atlas --editor ft_l --limit 2 --model {model}"
ABOUT = f'"{PROMPT}" "Eiffel Tower"'
EDIT, EVALUATE = f"edit {ABOUT} Rome", f"evaluate {FEW}"
P, M, S = f'"{PROMPT}"', "--model {model}", "--store {store}"

REFUSED: list[tuple[str, str]] = [  # a command line, and what its one line on standard error names
    # Usage.
    ("atribute", "'atribute' 'attribute' ffnmem --help"),
    ("attribute", "PROMPT attribute --help"),
    ("attribute The Eiffel Tower", "'Eiffel' quotes attribute --help"),
    ("attribute x --top 1 --top 2", "--top multiple"),
    ("attribute x --site {tmp}", "--site --html"),
    ("attribute x --model nowhere --html x.html --site {tmp}", "no site of neurons"),
    ("attribute x --position last", "--position last int"),
    ("attribute \udcff", "UTF-8"),
    ("decompose x first", "'first' whole number"),
    # Models, prompts and answers.
    ("attribute x --model ''", "'' folder"),
    (f"attribute {P} --target ''", "--target empty id:220"),
    (f"attribute {P} {M} --target ' Paris' --foil ' Paris'", "the same token, ' Paris' name two"),
    (f"circuit {P} {M} --export {{tmp}}", "is a folder"),
    (f"circuit {P} {M} --firings 0.1@99", "position 99"),
    (f"circuit {P} {M} --firings 0.1@x", "LAYER.NEURON@POSITION 0.1@x"),
    (f"ablate {P} --by integrated-gradients --foil ' Rome'", "foil integrated gradients"),
    (f"intervene {P}", "CHANGES"),
    (f"intervene {P} 0.3", "'0.3' LAYER.NEURON=NUMBER"),
    (f"intervene {P} 0.3=1 0.3=x2", "0.3 twice"),
    (f"intervene {P} 0.3=1 --temperature 1", "how many tokens"),
    (f"intervene {P} 0.3=1 --generate 3 --seed 1", "temperature"),
    # Weights.
    ("weights 1.3,1.4", "LAYER.NEURON 3.17"),
    (f"roles {M} --role dead", "dead --store"),
    *((f"project -- '{text}'", "LAYER.NEURON 3.17") for text in ("3.x", "3", "-1.3", "3.1,", "")),
    (f"token ' Colosseum' {M}", "' Colosseum' --first-token"),
    # Stores.
    ("neuron 1.5 --store {tmp}", "{tmp} scan"),
    (f"neuron 1.5 {S} --shade", "every token {name}"),
    (f"polysemanticity {S} --draws 3", "--draws 20"),
    (f"describe 1.5 {S}", "--reader"),
    (f"describe 9.5 {S} --reader no/such/model", "layer 9"),
    # Reports and facts.
    ("facts atlas --relation country.capitol", "'country.capitol' country.capital"),
    ("facts atlas --relation land", "'land' lists"),
    ("facts atlas --out {tmp}", "folder"),
    # Passes over a corpus.
    (f"pack {{corpus}} {OUT} {M} --text body", "'body' .txt"),
    (f"pack {{corpus}} --out {{corpus}} {M}", "{corpus} folder"),
    (f"scan {{corpus}} --out {{corpus}} {M}", "is a file"),
    (f"scan {{corpus}} {OUT} --shard 2/2", "'2/2' 0/4"),
    (f"scan {{corpus}} {OUT} {M} --workers 2 --shard 0/2", "not both"),
    ("store {tmp}", "{tmp} scan"),
    ("export delfi --store {store} --out x", "delfi neuronpedia delphi"),
    ("activations --at two", "--at two float"),
    # Concepts.
    ("concept {corpus}", "--against --label"),
    ("concept {corpus} --against {corpus} --label x", "one of both"),
    ("concept {corpus} --against {corpus}", "there are texts 8"),
    ("concept /nowhere.txt --against {corpus}", "nowhere.txt"),
    ("concept {corpus} --against {corpus} --unit median", "--unit mean span"),
    ("steer {corpus}", "corpus.txt no saved Concept"),
    # Traces and comparisons.
    *((f"{name} {P} 'Eiffel Tower' {M} --target zzz", "does not know") for name in ("trace", "knockout")),
    (f"trace {P} Louvre --chat", "'Louvre'"),
    (f"trace-facts atlas --relation landmark.city --limit 2 {M} --known", "none of the 94 facts --known"),
    ("audit {model} {model} --subject x", "subject --facts"),
    ("audit {model} {model} --facts nowhere.jsonl", "nowhere.jsonl"),
    ("compare {model} --reach 2", "text --texts"),
    ("compare {corpus}", "corpus.txt no saved Edit"),
    ("compare {model} --html {corpus}", "corpus.txt nothing that ffnmem wrote"),
    # Edits.
    (f"edit {P} 'Eiffel Tower' New York", "'York' quotes"),
    (f"edit {ABOUT} ' '", "target empty"),
    (f"{EDIT} --editor ft_l --moment m", "moment ft_l"),
    *((f"{EDIT} --settings {text}", "--settings NAME=VALUE") for text in ("steps", "=3")),
    (f"{EDIT} --settings stepz=3", "stepz steps"),
    (f"{EDIT} {M}", "comes without ffnmem moment --model {model} --layers 0 -o"),
    (f"{EDIT} {M} --moment atlas", "of atlas other weights ffnmem moment --model {model} --layers 0 -o"),
    ("apply e.zip --export {store}", "not empty"),
    ("apply nowhere.zip", "nowhere.zip"),
    (f"trace {ABOUT} --way silence --samples 3", "--samples"),
    ("aply e", "apply"),
    # Evaluations.
    ("evaluate atlas --editor rmoe", "rome mean"),
    (f"{EVALUATE} --compare ft_l", "'ft_l' twice"),
    (f"{EVALUATE} --compare {{tmp}}", "no edits"),
    (f"{EVALUATE} --moment m", "moment does nothing with ft_l"),
    (f"{EVALUATE} --others atlas", "protocol='generated'"),
    ("evaluate atlas --limit 2 --model {model}", "comes without ffnmem moment --model {model} -o"),
    ("sweep atlas --editor none", "'none' takes no layer"),
    ("sweep atlas --settings layers=2", "settings layers"),
    *((f"sequential atlas --at {text}", "--at") for text in ("1,", "0", "x")),
    ("sequential atlas --together 2", "rome edits one fact at a time"),
    ("explore --port 99999", "--port 65,535"),
]


@pytest.mark.parametrize(("line", "named"), REFUSED, ids=lambda value: value[:60].encode("ascii", "replace").decode())
def test_a_mistake_is_one_line(
    line: str, named: str, tiny_folder: Path, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is written. cyclopts by itself prints a frame of several lines."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "corpus.txt").write_text("The city of Rome", "utf-8")
    places: dict[str, object] = {"corpus": tmp_path / "corpus.txt", "out": tmp_path / "out"}
    places |= {"model": tiny_folder, "store": tiny_store.folder, "tmp": tmp_path / "here", "name": tiny_store.model}
    told = mistake(*(word.format(**places) for word in shlex.split(line)), named=())
    missing = [word for word in named.split() if word.format(**places) not in told]
    assert not missing, f"{missing} not named in: {told}"
    assert not list((tmp_path / "here").iterdir())


def test_what_is_required_is_named() -> None:
    """Without any argument a command names the first one that it lacks."""
    required = {name: [one.name for one in arguments_of(name) if one.required] for name in COMMANDS}
    for name, arguments in required.items():
        if arguments:
            assert any(one in mistake(name, named=("is missing",)) for one in arguments), name
    assert sum(map(bool, required.values())) > 20


def test_a_model_that_is_nowhere() -> None:
    """At once, and not after the hub library's retries."""
    start = time.perf_counter()
    mistake("attribute", "x", "--model", "no-such-model", named=("'no-such-model'", "atlas", "folder", "hub"))
    assert time.perf_counter() - start < 20


def test_damaged_files(tiny_folder: Path, tiny_store: Store, tmp_path: Path) -> None:
    model, store, facts = tmp_path / "model", tmp_path / "store", tmp_path / "facts.jsonl"
    model.mkdir()
    for file in tiny_folder.iterdir():
        (model / file.name).write_bytes(file.read_bytes()[:200] if "safetensors" in file.name else file.read_bytes())
    mistake("attribute", "x", "--model", model, named=(model,))
    shutil.copytree(tiny_store.folder, store)
    (store / "stats.parquet").write_bytes(b"x")
    mistake("neuron", "1.5", "--store", store, named=("stats.parquet",))
    for text, named in (("\n", facts), ('{"subject": "x"}\n', facts), ('{"subject": "\\ud800"}\n', "line 1")):
        facts.write_text(text, "utf-8")
        mistake("facts", facts, named=(named,))
