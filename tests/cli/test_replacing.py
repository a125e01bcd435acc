"""Files that are there already: what ffnmem wrote is replaced, what it did not is left as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from ffnmem.cli.options import OWN, PAGE, TABLE, check_replaceable
from ffnmem.core.checked_files import sealable
from ffnmem.core.errors import FileError

from ..helpers import PROMPT, refuses
from .running import mistake, run

ASKED = ("edit", PROMPT, "--subject", "Eiffel Tower", "--target", "Rome")


@pytest.mark.parametrize(
    "command",
    [
        (*ASKED, "-o"),
        (*ASKED, "--report"),
        ("moment", "-o"),
        ("project", "--all", "--out"),
        ("report", PROMPT, "-o"),
        ("report", "--store", "none", "--layer", "0", "-o"),
        ("activations", "--html"),
        ("neuron", "none", "1.5", "--html"),
    ],
)
def test_a_text_is_left_as_it_is(command: tuple[str, ...], tmp_path: Path) -> None:
    """A slip of the shell's history would cost somebody's work."""
    file = tmp_path / "thesis.html"
    file.write_text("years of work")
    mistake(*command, file, named=("thesis.html", "there already", "remove it"))
    assert file.read_text() == "years of work"


def test_weights_of_a_model_are_left_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2)}, file, {"format": "pt"})
    with refuses(FileError, OSError, "model.safetensors"):
        check_replaceable(str(file), OWN)


def test_a_corpus_is_left_as_it_is(tmp_path: Path) -> None:
    """It is a Parquet file too, and begins as every other."""
    file = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": ["The Eiffel Tower is in Paris."]}), file)
    mistake("project", "--all", "--out", file, named=("corpus.parquet", "there already"))
    assert pq.read_table(file).num_rows == 1
    file.write_bytes(b"PAR1 and more")
    with refuses(FileError, OSError, "corpus.parquet"):
        check_replaceable(str(file), TABLE)


def test_what_ffnmem_wrote_is_replaced(tmp_path: Path) -> None:
    """The same command can be run again; an empty file is nobody's work."""
    page, empty = tmp_path / "a.html", tmp_path / "b.html"
    empty.touch()
    for file in (page, page, empty):
        run("activations", "--html", file)
    assert empty.read_bytes() == page.read_bytes()
    check_replaceable(str(Path(__file__).parents[2] / "data" / "atlas" / "second_moments.safetensors"), OWN)
    table = pa.table({"layer": [0]})
    for notes in (sealable(), {b"ffnmem": b"{}"}):  # a projection's, and a report's
        pq.write_table(table.replace_schema_metadata(notes), tmp_path / "c.parquet")
        check_replaceable(str(tmp_path / "c.parquet"), TABLE)
    check_replaceable(str(tmp_path / "new.html"), PAGE)
