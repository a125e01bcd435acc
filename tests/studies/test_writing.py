"""A study as files, and as a page on which nothing can break out."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from PIL import Image

from ffnmem.core.errors import FileError
from ffnmem.core.files import write_whole
from ffnmem.studies import Figure, Study, StudyTable
from ffnmem.studies.running import DPI, FOLDER, ROWS, cell, described, page, page_table, png, write_study

from ..pages.hostile import HOSTILE, UNSEEN
from ..pages.page import Page, unscripted


def draw(ax: Axes) -> Axes:
    ax.plot([0, 1], [0.25, 0.75], label="rate")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
    ax.set(xlabel="layer", ylabel="share")
    return ax


FRAME = pd.DataFrame(
    {"layer": [0, 1], "keys": [1024, 2048], "share": [0.25, np.nan], "token": [" a", "b"], "prefix": ["x y", "z"]}
)


@pytest.fixture
def made() -> Study:
    return Study(
        "geva2021",
        "Somebody 2021 (arXiv 0000.00000)",
        (StudyTable("summary", FRAME, "By layer", "A note"), StudyTable("long", pd.concat([FRAME] * 50), "Long")),
        (Figure("line", "A line", draw, "As drawn", (4.0, 2.0)),),
        {"keys": 4, "levels": (0.5, 0.8), "rate": np.float64(0.5), "nothing": None},
        {"model": "toy", "fingerprint": "0" * 12, "ffnmem": "0"},
        {"keys": "100"},
        "Half of it is so.",
    )


def test_files(made: Study, tmp_path: Path) -> None:
    """Every table and figure, the settings beside the paper's, and a page; nothing else, nothing half."""
    write_study(made, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.html",
        "line.png",
        "long.csv",
        "study.json",
        "summary.csv",
    ]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "summary.csv"), FRAME)
    with Image.open(tmp_path / "line.png") as image:
        assert image.size == (4 * DPI, 2 * DPI)
    found = json.loads((tmp_path / "study.json").read_text("utf-8"))
    assert found == described(made)
    assert found["settings"] == {"keys": 4, "levels": [0.5, 0.8], "rate": 0.5, "nothing": None}
    assert found["published"] == {"keys": "100"}
    assert found["tables"]["long"]["rows"] == 100
    write_study(made, tmp_path)  # again, over itself


def test_an_error_while_drawing_leaves_the_older_files(made: Study, tmp_path: Path) -> None:
    """All is drawn before anything is written."""

    def fail(ax: Axes) -> Axes:
        raise ZeroDivisionError

    write_study(made, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bad = replace(made, settings={"keys": 5}, figures=(*made.figures, Figure("bad", "Bad", fail)))
    with pytest.raises(ZeroDivisionError):
        write_study(bad, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_half_written_has_no_page(made: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older page would show what the files beside it no longer say; what there is, is known as the study's."""
    write_study(made, tmp_path)

    def stops(path: Path, content: str | bytes) -> None:
        if path.suffix == ".png":
            raise FileError("cannot write: no space left on device")
        write_whole(path, content)

    monkeypatch.setattr("ffnmem.studies.running.write_whole", stops)
    with pytest.raises(FileError, match="no space"):
        write_study(made, tmp_path)
    assert not (tmp_path / "index.html").exists()
    FOLDER.check(tmp_path, ["study.json"])


def test_a_folder_that_cannot_be_written(made: Study, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        write_study(made, tmp_path / "none")


def test_page(made: Study) -> None:
    """The tables' numbers, the figures inside the page, and nothing from outside."""
    html = unscripted(page(made, [png(figure) for figure in made.figures]), policy="img-src data:; ")
    found = Page(html)
    assert found.headings == [
        "geva2021 on toy",
        "By layer",
        "Figures",
        "Long",
        "Settings, and the paper’s",
        "Where these numbers come from",
    ]
    rows = found.tables["study"]
    assert [c.text for c in rows[0]] == list(FRAME.columns)
    assert [c.values for c in rows[1][:3]] == [[0.0], [1024.0], [0.25]]
    assert rows[1][3].chips == ["·a"]
    assert rows[2][2].text == "–"
    assert f"{2 * 50 - ROWS} rows more" in found.words
    images = [attrs for tag, attrs in found.tags if tag == "img"]
    assert [attrs["alt"] for attrs in images] == [
        "A line. share by layer. rate: 25.0% to 75.0%, lowest 25.0%, highest 75.0%"
    ]
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in images)
    assert not any(tag in ("script", "link", "iframe") for tag, _ in found.tags)
    assert not any(
        "http" in value for _, attrs in found.tags for name, value in attrs.items() if name in ("src", "href")
    )


def test_the_page_begins_with_what_was_found(made: Study) -> None:
    words = Page(page(made, [png(figure) for figure in made.figures])).words
    assert words.index("Half of it is so.") < words.index("The protocol of") < words.index("By layer")


def test_figures_follow_the_screen(made: Study, tmp_path: Path) -> None:
    """Files are for paper; the page has each figure for dark screens too."""
    write_study(made, tmp_path)
    found = Page((tmp_path / "index.html").read_text("utf-8"))
    (dark,) = [attrs for tag, attrs in found.tags if tag == "source"]
    assert dark["media"] == "screen and (prefers-color-scheme: dark)"
    corners = []
    for source in (dark["srcset"], next(attrs["src"] for tag, attrs in found.tags if tag == "img")):
        with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as image:
            corners.append(image.convert("L").getpixel((0, 0)))
    assert corners[0] < 40 < 250 < corners[1]


def test_hostile_text_stays_text(made: Study) -> None:
    frame = FRAME.assign(token=HOSTILE, prefix=HOSTILE, word=HOSTILE)
    bad = replace(made, tables=(StudyTable("summary", frame, HOSTILE, HOSTILE),), name=HOSTILE, paper=HOSTILE)
    bad = replace(bad, settings={HOSTILE: HOSTILE}, provenance={**made.provenance, "model": HOSTILE})
    for html in (
        unscripted(page(bad, [png(figure) for figure in bad.figures]), policy="img-src data:; "),
        bad._repr_html_(),
    ):
        tags = [tag for tag, _ in Page(f"<table class='x'></table>{html}").tags]
        assert "script" not in tags
        assert tags.count("img") <= 1
        assert "<img src=x" not in html
    cells = [c for row in page_table(bad.tables[0], 5).rows for c in row if c.kind in ("token", "running")]
    assert cells
    body = Page(bad._repr_html_()).text
    assert not any(character in body.replace(bad.paper, "").replace(HOSTILE, "") for character in UNSEEN)


@pytest.mark.parametrize(
    ("column", "value", "kind", "text"),
    [
        ("token", " a", "token", " a"),
        ("predicted_token", "b", "token", "b"),
        ("prefix", "a b", "running", "a b"),
        ("removed", "last", "word", "last"),
        ("keys", 12345, "number", "12,345"),
        ("neuron", np.int64(12345), "number", "12345"),
        ("change", -0.123456, "number", "−0.1235"),
        ("change", np.float32(0.5), "number", "0.5"),
        ("change", float("nan"), "number", "–"),
        ("change", None, "number", "–"),
        ("dead", np.True_, "word", "yes"),
        ("dead", False, "word", "no"),
    ],
)
def test_cells(column: str, value: object, kind: str, text: str) -> None:
    found = cell(column, value)
    assert (found.kind, found.text) == (kind, text)


def test_png_leaves_no_figure_behind(made: Study) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    with Image.open(io.BytesIO(png(made.figures[0]))) as image:
        assert image.format == "PNG"
    assert plt.get_fignums() == before
