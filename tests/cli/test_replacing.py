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

from ffnmem.cli.replacing import FIGURES
from ffnmem.scanning import Store

from ..helpers import PROMPT
from .running import mistake, run


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
