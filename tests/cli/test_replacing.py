"""Files that are there already: what ffnmem wrote is replaced, what it did not is left as it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

import ffnmem as fm
from ffnmem.cli.replacing import FIGURES
from ffnmem.scanning import Store

from ..helpers import PROMPT
from .running import arguments_of, every_command, mistake, run

READ = {"--store", "--moment", "--site", "--edit", "--in", "--mean"}
"""Options that name a file or a folder to read; every other one names a destination."""
ENDING = {"--plot": "thesis.png", "--out": "thesis.md"}
NEEDED = {
    "PROMPT": PROMPT,
    "COUNTERFACTUAL": "The Kremlin is in",
    "NEURONS": "3.17",
    "LAYER": "1",
    "CHANGES": "3.17=0",
    "NEURON": "3.17",
    "SOURCE": "atlas",
    "CORPUS": "atlas",
    "TEXTS": "atlas",
    "TEXT": "paris",
    "TOKENS": " Paris",
    "STORE": "STORE",
    "STORES": "STORE",
    "FORM": "delphi",
    "FOLDER": "STORE",
    "CONFIG": "atlas",
    "TARGET": "Rome",
    "EDIT": "EDIT",
    "BEFORE": "atlas",
    "AFTER": "atlas",
    "--out": "new",
    "NAME": "geva2021",
    "SECOND": "EDIT",
    "--store": "STORE",
    "SUBJECT": "Eiffel Tower",
    "--subject": "Eiffel Tower",
    "--reader": "atlas",
}
"""What stands for what commands need besides."""
MORE = {
    **dict.fromkeys(("trace-facts", "knockout-facts", "evaluate", "sweep"), ("--limit", "1")),
    "sequential": ("--at", "1", "--limit", "1"),
}


def destinations() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Every option of every command that names what is written: command, flag, what kind of thing, and the rest of the
    call."""
    found = []
    for name in every_command():
        arguments = arguments_of(name)
        for argument in arguments:
            kind = argument.parameter.metavar
            if kind in ("FILE", "DIR") and argument.index is None and argument.name not in READ:
                rest = [other for other in arguments if other.required and other is not argument]
                needed = tuple(
                    word
                    for other in rest
                    if other.name in NEEDED
                    for word in ((NEEDED[other.name],) if other.index is not None else (other.name, NEEDED[other.name]))
                )
                found.append((name, argument.name, "file" if kind == "FILE" else "folder", needed + MORE.get(name, ())))
    return found


@pytest.mark.parametrize(("command", "flag", "kind", "rest"), destinations())
def test_what_is_somebodys_is_left_as_it_is(
    command: str,
    flag: str,
    kind: str,
    rest: tuple[str, ...],
    tmp_path: Path,
    atlas_store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slip of the shell's history would cost somebody's work: a text, through a link or not, or what lies in a
    folder. Of a file that is known before a model or a store is opened."""
    text, folder = tmp_path / "years.txt", tmp_path / "thesis"
    for path in (text, folder / ".notes"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
    file = tmp_path / ENDING.get(flag, "thesis.safetensors")
    file.symlink_to(text)
    given = {"STORE": atlas_store.folder, "EDIT": tmp_path / "edit.zip"}
    first = [given.get(one, one) for one in rest]
    if kind == "file":
        monkeypatch.setattr(fm, "load", None)
        monkeypatch.setattr(fm, "open_store", None)
    mistake(*command.split(), *first, flag, file if kind == "file" else folder, named=("thesis",))
    assert text.read_text() == "years of work"
    assert [path.name for path in folder.iterdir()] == [".notes"]
    assert file.is_symlink()


def write_text(path: Path) -> None:
    path.write_text('{"years": "of work"}')


# A command whose last word is a file, and what writes somebody's own file of the same kind.
REPLACED: dict[str, Callable[[Path], object]] = {
    **{f"activations --names gelu --plot figure{ending}": Figure().savefig for ending in FIGURES},
    f"report '{PROMPT}' --html page.html": write_text,
    f"circuit '{PROMPT}' --firings 0.1@2 --export graph.json": write_text,
    f"edit '{PROMPT}' 'Eiffel Tower' Rome -o e": (
        partial(save_file, {"weight": torch.zeros(2)}, metadata={"format": "pt"})
    ),
}


@pytest.mark.usefixtures("rendered")
@pytest.mark.parametrize("line", REPLACED)
def test_what_ffnmem_wrote_is_replaced(
    line: str, tmp_path: Path, atlas_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command is run again and again; an empty file is nobody's work. Somebody else's file of the same kind
    is left as it is."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.format(store=atlas_store.folder))
    file = Path(words[-1])
    file.touch()
    for _ in range(2):
        run(*words)
    REPLACED[line](file)
    before = file.read_bytes()
    mistake(*words, named=(file, "there already, and nothing that ffnmem wrote"))
    assert file.read_bytes() == before
