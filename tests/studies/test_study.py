"""What a study is, and which there are."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ffnmem.core.errors import InputError
from ffnmem.studies import STUDIES, Figure, Study, StudyTable
from ffnmem.studies.study import check_settings, report_progress, setting_names, study_module

from ..helpers import printed, refuses


def draw(ax: Axes) -> Axes:
    ax.plot([0, 1], [1, 0])
    return ax


FRAME = pd.DataFrame({"layer": [0, 1], "share": [0.25, 0.5]})


@pytest.fixture
def made() -> Study:
    return Study(
        "geva2021",
        "Somebody 2021 (arXiv 0000.00000)",
        (StudyTable("summary", FRAME, "By layer", "A note"), StudyTable("more", FRAME.head(1), "More")),
        (Figure("line", "A line", draw, "As drawn"),),
        {"keys": 4},
        {"model": "toy"},
        {"keys": "100"},
    )


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_offers_the_interface(name: str) -> None:
    """The command line and ``fm.studies.run`` call each in the same way."""
    module = study_module(name)
    assert "arXiv" in module.PAPER
    assert module.PUBLISHED
    parameters = inspect.signature(module.study).parameters
    assert list(parameters)[:2] == ["model", "store"]
    for keyword in ("progress", "seed", "n_sequences"):
        assert parameters[keyword].kind is inspect.Parameter.KEYWORD_ONLY, keyword
    assert parameters["seed"].default == 0
    assert "n_sequences" in setting_names(name)
    assert not {"model", "store", "progress", "seed"} & set(setting_names(name))


def test_unknown_names_are_refused() -> None:
    with refuses(InputError, ValueError, "'geva2020'", "'geva2021'", "'voita2023'"):
        study_module("geva2020")
    with refuses(InputError, ValueError, "'key'", "keys", "n_sequences"):
        check_settings("geva2021", {"key": 3})
    check_settings("geva2021", {"keys": 3})


def test_parts_by_name(made: Study) -> None:
    assert made.table("more") is made.tables[1].frame
    assert made.to_frame() is FRAME
    assert made.figure("line").title == "A line"
    assert repr(made) == "Study('geva2021' of toy: 2 tables, 1 figures)"
    with refuses(InputError, ValueError, "'less'", "'summary'", "'more'"):
        made.table("less")
    with refuses(InputError, ValueError, "'curve'", "'line'"):
        made.figure("curve")


def test_plot_draws_on_what_it_is_given(made: Study) -> None:
    ax = Canvas().add_subplot()
    assert made.plot("line", ax) is ax
    assert len(ax.lines) == 1


def test_progress() -> None:
    calls: list[tuple[str, int, int]] = []
    report_progress(lambda *call: calls.append(call), "positions", 1, 2)
    report_progress(None, "positions", 2, 2)
    assert calls == [("positions", 1, 2)]


def test_sheet(made: Study) -> None:
    """A wide table would not fit: every column stands once, the first in each part."""
    sheet = made.sheet()
    assert sheet.title == "By layer"
    assert sheet.blocks[0].rows == (("0", "0.25"), ("1", "0.5"))
    assert sheet.blocks[1].rows["tables"] == "summary, more"
    assert sheet.blocks[1].rows["figures"] == "line"
    assert made.sheet(Path("out")).blocks[1].rows["page"] == str(Path("out") / "index.html")
    wide = pd.DataFrame({"layer": [0, 1], **{f"column_{i}": [0.5, 1 / 3] for i in range(9)}})
    lines = printed(replace(made, tables=(StudyTable("summary", wide, "Wide"),)).sheet().blocks[0], 40)
    heads = [line.split() for line in lines if line.startswith("layer")]
    assert len(heads) > 1
    assert [name for head in heads for name in head[1:]] == list(wide.columns[1:])
    assert max(map(len, lines)) <= 40
    rows = made.to_dict()["tables"]["summary"]["rows"]
    assert rows == FRAME.to_dict("records")
