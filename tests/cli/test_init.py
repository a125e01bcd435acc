"""The group: its commands, its manual, and how quickly it answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli import main
from ffnmem.cli.table import COMMANDS
from ffnmem.models import fetching
from ffnmem.scanning import Store

from ..describing.known import answer_knowing
from .running import arguments_of, help_text, run, saved

MODEL_LIBRARIES = ("transformers", "transformer_lens", "matplotlib", "jinja2")
HEAVY = (*MODEL_LIBRARIES, "torch", "pandas", "numpy")

HELP = """
import json, sys
from ffnmem.cli import main
from ffnmem.cli.table import COMMANDS
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, sorted({n.partition(".")[0] for n in sys.modules})]))
"""


def examples(name: str) -> list[str]:
    """The example lines of a command's manual, as a shell would read them."""
    joined = help_text(name).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if re.match(r"\s+ffnmem ", line)]


def test_version_and_manual() -> None:
    """Whoever types the bare name asks what there is."""
    assert run("--version").stdout == f"ffnmem {fm.__version__}\n"
    assert run().stdout == run("--help").stdout == run("-h").stdout


@pytest.mark.parametrize(
    ("line", "heavy"),
    [("attribute --help", HEAVY), ("--version", HEAVY), ("activations", MODEL_LIBRARIES)],
)
def test_what_needs_no_model_is_quick(line: str, heavy: tuple[str, ...]) -> None:
    """A manual that waits for torch is one that nobody reads; a table of functions needs no model library."""
    done = subprocess.run([sys.executable, "-c", HELP, *line.split()], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    assert not set(heavy) & set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_manual(name: str) -> None:
    """Every command has examples, and no line is wider than 80 columns, whatever the terminal."""
    assert examples(name), f"{name} has no example"
    text = run(name, "-h", env={"COLUMNS": "200"}).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert text.strip() == help_text(name)


LONG = ("sequential", "sweep")
"""Commands whose every example takes seconds; other tests of this folder run them on less."""


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.exhaustive) if i or name in LONG else line
        for name in COMMANDS
        for i, line in enumerate(examples(name))
    ],
)
def test_examples_work(
    line: str,
    atlas: fm.Model,
    atlas_store: Store,
    tiny: fm.Model,
    tiny_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An example of the manual that fails is worse than none. A table names the model: who forgot
    --model would take the toy's numbers for those of another."""
    monkeypatch.chdir(tmp_path)
    small = re.search("ffnmem (polysemanticity|site)|--site site", line)  # atlas would take minutes
    if re.search(r"(?<!--out )runs/atlas", line):
        Path("runs").mkdir()
        store = Path("runs", "atlas")
        shutil.copytree(tiny_store.folder, store) if small else store.symlink_to(atlas_store.folder)
        if small:
            monkeypatch.setattr(Store, "read_model", lambda _: tiny)
    if "--reader" in line:
        monkeypatch.setattr(fm.describing, "ask_model", lambda model: answer_knowing)
    if re.search(r"(apply|compare|--edits?|--editor) eiffel.zip", line):
        saved(atlas, Path("eiffel.zip"))
    if "ffnmem audit" in line:
        saved(atlas, Path("eiffel.zip")).export(atlas, "edited")
    if re.search("ffnmem (scan|merge|moment|lens|health|compare)|--corpus atlas", line):
        small_texts(monkeypatch)
    if "--known" in line:
        few = fm.load_facts("atlas")[:20]
        monkeypatch.setattr(fm, "load_facts", lambda *_: few)
    if re.search("ffnmem (concept|steer)", line):
        two_kinds(atlas)
    if "--site site" in line:
        fm.pages.site(tiny_store, "site")
    if "ffnmem merge" in line:
        for i in range(2):
            fm.scan(atlas, "texts.jsonl", f"runs/{i}", shard=(i, 2))
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    monkeypatch.setattr(fetching, "get", lambda name, progress: Path("models", name))  # tests/real gets it
    monkeypatch.setattr(
        "ffnmem.explorer.server.serve", lambda explorer, port, ready: ready(f"http://localhost:{port}/")
    )
    loaded: list[fm.Model] = []

    real = fm.load

    def load(model: Any = "atlas", **_: Any) -> fm.Model:
        own = Path(model).is_dir()  # a folder that the example made
        loaded.append(real(model) if own else tiny if small else atlas)
        return loaded[-1]

    monkeypatch.setattr(fm, "load", load)
    words = shlex.split(re.split(r" [|>] ", line)[0])
    assert words[0] == "ffnmem"
    out = run(*words[1:]).stdout
    assert out
    if loaded and not {"cards", "explore", "--json", "--csv", "--html", "export"} & set(words):
        assert loaded[0].name in out


def two_kinds(model: fm.Model) -> None:
    """Texts of two kinds, as files and as a table, and the concept that tells them apart."""
    facts = fm.load_facts("atlas")
    legal = [f"{one.subject} is a city in {one.target_true}." for one in facts[:24]]
    code = [f"The language of {one.subject} is {one.target_true}" for one in facts[100:124]]
    for name, texts in (("legal", legal), ("code", code)):
        Path(f"{name}.txt").write_text("\n\n".join(texts), "utf-8")
    kinds = ["positive"] * 24 + ["other"] * 24
    pd.DataFrame({"text": legal + code, "kind": kinds}).to_csv("reviews.csv", index=False)
    fm.concept(model, legal, code, draws=200).save("legal.zip")


def small_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts that examples name, and a few lines in place of the bundled corpus, a scan of which takes a minute."""
    lines = [json.dumps({"text": text, "body": text}) for text in ("Paris is in France.", "Rome is in Italy.")]
    Path("texts").mkdir()
    for path in (Path("texts.jsonl"), Path("texts", "one.jsonl")):
        path.write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr("ffnmem.corpus.sources.embedded_corpus", lambda name: Path("texts.jsonl"))


def test_threads_leave_a_busy_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading would take three times as long where another program keeps a core busy; what a user has set stays."""
    monkeypatch.setattr(sys, "argv", ["ffnmem", "--version"])
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    for expected in ("active", "passive"):
        with pytest.raises(SystemExit):
            main()
        assert os.environ["OMP_WAIT_POLICY"] == expected
        monkeypatch.delenv("OMP_WAIT_POLICY")


def test_as_a_program(tiny_folder: Path, tmp_path: Path) -> None:
    """The whole way as a user goes it: data on standard output, on standard error what was written, and a picture."""
    picture = tmp_path / "plot.png"
    line = [
        Path(sys.executable).parent / "ffnmem",
        "attribute",
        "The city",
        "--model",
        tiny_folder,
        "--json",
        "--top",
        "3",
    ]
    done = subprocess.run([*line, "--plot", picture], capture_output=True, timeout=120, check=True)
    assert json.loads(done.stdout)["prompt"]["tokens"] == ["<|endoftext|>", "The", " city"]
    assert done.stderr.decode() == f"ffnmem: wrote {picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_option_says_what_it_does_in_one_wording() -> None:
    """An option of the same name says the same everywhere it means the same."""
    shared = {"--model", "--device", "--prepend-bos", "--json", "--csv"}
    words: dict[str, set[str]] = {flag: set() for flag in shared}
    for name in COMMANDS:
        for option in arguments_of(name):
            assert option.parameter.help, f"{option.name} of {name} has no help"
            if option.name in shared:
                words[option.name].add(option.parameter.help)
    several = {flag: len(texts) for flag, texts in words.items() if len(texts) > 1}
    # A model to load, one that was scanned, and one whose tokenizer is taken.
    assert several == {"--model": 3}
