"""Files that are there already: what ffnmem wrote is replaced, what it did not is left as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

import ffnmem as fm
from ffnmem.cli.options import FIGURES, OWN, PAGE, TABLE, check_replaceable
from ffnmem.cli.reference import every_command
from ffnmem.core.errors import FileError
from ffnmem.scanning import Store

from ..helpers import PROMPT, refuses
from .running import arguments_of, mistake, run

READ = {"--store", "--moment", "--site", "--edits", "--edit", "--in", "--mean"}
"""Options that name a file or a folder to read; every other one names a destination."""
ENDING = {"--plot": "thesis.png", "--out": "thesis.md"}
NEEDED = {
    "PROMPT": PROMPT,
    "COUNTERFACTUAL": "The Kremlin is in",
    "NEURONS": "3.17",
    "NEURON": "3.17",
    "SOURCE": "atlas",
    "CORPUS": "atlas",
    "STORE": "STORE",
    "STORES": "STORE",
    "FORM": "delphi",
    "NAME": "geva2021",
    "FILES": "EDIT",
    "A": "atlas",
    "--store": "STORE",
    "--subject": "Eiffel Tower",
    "--target": "Rome",
}
"""What stands for what commands need besides."""
MORE = {
    "report neurons": ("--layer", "0"),
    "study": ("--store", "STORE"),
    "compare": ("--edit", "EDIT"),
    **dict.fromkeys(("trace facts", "silence facts", "knockout facts", "evaluate", "evaluate sweep"), ("--limit", "1")),
    "evaluate sequential": ("--at", "1", "--limit", "1"),
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
    given = {"STORE": atlas_store.folder, "EDIT": tmp_path / "edit.safetensors"}
    first = [given.get(one, one) for one in rest]
    if kind == "file":
        monkeypatch.setattr(fm, "load", None)
        monkeypatch.setattr(fm, "open_store", None)
    mistake(*command.split(), *first, flag, file if kind == "file" else folder, named=("thesis",))
    assert text.read_text() == "years of work"
    assert [path.name for path in folder.iterdir()] == [".notes"]
    assert file.is_symlink()


@pytest.mark.parametrize("ending", FIGURES)
def test_a_figure_is_replaced_by_its_like(ending: str, tmp_path: Path) -> None:
    """The same command is run again and again while a figure is made; somebody else's picture is no such figure."""
    file = tmp_path / f"figure{ending}"
    for _ in range(2):
        run("activations", "gelu", "--plot", file)
    Figure().savefig(file)
    before = file.read_bytes()
    mistake("activations", "gelu", "--plot", file, named=("figure", "nothing that ffnmem wrote"))
    assert file.read_bytes() == before


def test_a_graph_is_replaced_by_its_like(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    for _ in range(2):
        run("circuit", PROMPT, "--nodes", 3, "--export", file)
    file.write_text('{"metadata": {}, "nodes": []}')
    mistake("circuit", PROMPT, "--export", file, named=("graph.json", "nothing that ffnmem wrote"))


@pytest.mark.parametrize("ending", ["md", "csv", "html", "parquet"])
def test_a_report_is_replaced_by_its_like(ending: str, tmp_path: Path, atlas_store: Store) -> None:
    file = tmp_path / f"report.{ending}"
    for _ in range(2):
        run("report", "neurons", "--store", atlas_store.folder, "--neurons", "3.17", "--no-shade", "-o", file)


def test_weights_of_a_model_are_left_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2)}, file, {"format": "pt"})
    with refuses(FileError, OSError, "model.safetensors"):
        check_replaceable(str(file), OWN)


def test_a_corpus_is_left_as_it_is(tmp_path: Path) -> None:
    """It is a Parquet file too, and begins as every other."""
    file = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": ["The Eiffel Tower is in Paris."]}), file)
    mistake("project", "all", "--out", file, named=("corpus.parquet", "there already"))
    assert pq.read_table(file).num_rows == 1
    file.write_bytes(b"PAR1 and more")
    with refuses(FileError, OSError, "corpus.parquet"):
        check_replaceable(str(file), TABLE)


def test_what_ffnmem_wrote_is_replaced(tmp_path: Path) -> None:
    """The same command can be run again; an empty file is nobody's work."""
    page, empty = tmp_path / "a.html", tmp_path / "b.html"
    empty.touch()
    for file in (page, page, empty):
        run("report", PROMPT, "--out", file)
    assert empty.read_bytes() == page.read_bytes()
    check_replaceable(str(Path(__file__).parents[2] / "data" / "atlas" / "second_moments.safetensors"), OWN)
    table = pa.table({"layer": [0]})
    for notes in ({b"ffnmem.projection": b"{}"}, {b"ffnmem": b"{}"}):  # a projection's, and a report's
        pq.write_table(table.replace_schema_metadata(notes), tmp_path / "c.parquet")
        check_replaceable(str(tmp_path / "c.parquet"), TABLE)
    check_replaceable(str(tmp_path / "new.html"), PAGE)
