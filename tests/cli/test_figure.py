"""The figure of --plot."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import Token
from matplotlib.axes import Axes

import ffnmem as fm
from ffnmem.cli.figures import save_axes, save_figure
from ffnmem.cli.options import read_figure
from ffnmem.core.errors import FileError

from ..helpers import refuses


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF")])
def test_writes_each_format(name: str, magic: bytes, tiny: fm.Model, tmp_path: Path) -> None:
    path = read_figure(None, [Token(value=str(tmp_path / name))])
    save_figure(fm.attribute(fm.capture(tiny, "The city of"), " Paris"), path, top=10**6)
    assert path.read_bytes().startswith(magic)


def test_a_folder_that_cannot_be_written(tiny: fm.Model, tmp_path: Path) -> None:
    found = fm.attribute(fm.capture(tiny, "The city of"), " Paris")
    with refuses(FileError, OSError, "gone"):
        save_figure(found, tmp_path / "gone" / "a.png", top=5)


def test_several_pictures_in_rows(tmp_path: Path) -> None:
    """Each function draws on an Axes of its own."""
    drawn: list[Axes] = []
    save_axes([lambda ax: drawn.append(ax) or ax] * 4, tmp_path / "a.svg")  # type: ignore[func-returns-value]
    places = [ax.get_subplotspec() for ax in drawn]
    assert [(place.rowspan.start, place.colspan.start) for place in places if place] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
