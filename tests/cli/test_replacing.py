"""Files that are there already: what ffnmem wrote is replaced, what it did not is left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ffnmem.cli.options import OWN, PAGE, TABLE, check_replaceable
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


def test_what_ffnmem_wrote_is_replaced(tmp_path: Path) -> None:
    """The same command can be run again; an empty file is nobody's work."""
    page, empty = tmp_path / "a.html", tmp_path / "b.html"
    empty.touch()
    for file in (page, page, empty):
        run("activations", "--html", file)
    assert empty.read_bytes() == page.read_bytes()
    check_replaceable(str(Path(__file__).parents[2] / "data" / "atlas" / "second_moments.safetensors"), OWN)
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and more")
    check_replaceable(str(tmp_path / "c.parquet"), TABLE)
    check_replaceable(str(tmp_path / "new.html"), PAGE)
