"""What every study promises: its tables and figures, what is beside the paper, its files, page and refusals."""

from __future__ import annotations

import base64
import inspect
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.core.files import write_whole
from ffnmem.scanning import Store
from ffnmem.studies import STUDIES, Study, figures, running
from ffnmem.studies.running import FOLDER, page, write_study
from ffnmem.studies.study import ROWS, setting_names, study_module

from ..architectures import DECODERS
from ..helpers import draw_whole, printed, refuses
from ..pages.page import Page, unscripted
from ..scanning.corpora import SMALL as SCAN
from ..scanning.corpora import digests
from ..scanning.texts import tiny_texts
from .made import SMALL, small

FEW: dict[str, Any] = {"keys": 3, "prefixes": 2, "n_sequences": 8, "updates": 2}


@pytest.fixture(scope="module")
def every(tiny: fm.Model, tiny_store: Store) -> dict[str, Study]:
    return {name: small(name, tiny, tiny_store) for name in STUDIES}


@pytest.fixture(params=STUDIES)
def found(request: pytest.FixtureRequest, every: dict[str, Study]) -> Study:
    return every[request.param]


@pytest.fixture
def geva(every: dict[str, Study]) -> Study:
    return every["geva2021"]


@pytest.fixture(scope="module")
def mixture_store(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Store:
    model = fm.load(DECODERS["Qwen 2 MoE"](), tokenizer=tokenizer)
    store = fm.scan(model, tiny_texts(), tmp_path_factory.mktemp("mixture") / "store", k=5, context=32)
    return fm.open_store(store.folder, model)


def test_a_study_says_all_that_it_depends_on(found: Study, tiny: fm.Model) -> None:
    """Tables as declared, whose cells are single values; settings; what was found beside what the paper has."""
    assert set(found.frames) == set(found.protocol.tables) == {table.name for table in found.tables}
    assert found.to_frame() is found.table("summary")
    assert found.layers == [0, 1]
    for table in found.tables:
        assert table.title
        assert table.note
        assert not table.frame.map(lambda cell: isinstance(cell, list)).any(axis=None), table.name
    for name in {*setting_names(found.name)} - {"basis"}:
        assert found.settings[name] == SMALL[found.name].get(name, found.settings[name])
    assert found.settings["seed"] == 0
    assert found.provenance["fingerprint"] == tiny.fingerprint
    assert "arXiv" in found.paper
    beside = found.beside_paper()
    assert set(found.found) <= set(beside["subject"])
    assert (beside["paper"] != "").all()
    assert all(found.found[subject] in found.conclusion for subject in found.protocol.main)
    assert len(found.protocol.main) > 1


def test_defaults_are_the_papers() -> None:
    papers: dict[str, dict[str, float]] = {
        "voita2023": {"types": 5, "coverage": 0.95, "position": 0.05},
        "gurnee2024": {"kurtosis": 10.0, "partition": 0.005},
    }
    for study, settings in papers.items():
        parameters = inspect.signature(study_module(study).study).parameters
        assert {name: parameters[name].default for name in settings} == settings


def test_every_figure_is_drawn_and_described(found: Study) -> None:
    """On the Axes given; with its title, what its axes are of, layers that are whole numbers, and in words."""
    for figure in found.figures:
        ax = Canvas().add_subplot()
        assert found.plot(figure.name, ax) is ax
        assert ax.get_title(loc="left") == figure.title
        assert ax.get_ylabel()
        if ax.get_xlabel() == "layer":
            assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1"]
        draw_whole(ax)
        assert figures.describe_figure(found, figure).startswith(figure.title)


LINES = [
    ("geva2021", "agreement", "agreement", "agreement shuffled uniform"),
    ("geva2021", "zero_agreement", "composition", "zero_agreement zero_agreement_active zero_agreement_shuffled"),
    ("geva2021", "match", "refinement", "match"),
    ("geva2021", "probability", "refinement", "probability"),
    ("geva2021", "ranks", "agreement", "random_rank_50"),
    ("voita2023", "firing_rate", "summary", "firing_rate"),
    ("voita2023", "dead", "summary", "dead_share"),
    ("voita2023", "tokens", "summary", "tokens_so_far tokens new_tokens"),
]
STACKS: list[tuple[str, str, Callable[[Study], Any]]] = [
    ("geva2021", "cases", lambda made: [1, 1]),
    ("voita2023", "covering", lambda made: [1, 1]),
    ("voita2023", "detectors", lambda made: made.table("summary")["detectors"]),
    ("voita2023", "positional", lambda made: made.table("summary")["positional"]),
    ("gurnee2024", "signs", lambda made: made.table("signs").eval("prediction - suppression")),
]


def test_figures_are_of_the_tables(every: dict[str, Study]) -> None:
    """Lines are columns, and stacks add up."""
    for study, name, table, columns in LINES:
        lines: list[Any] = every[study].plot(name, Canvas().add_subplot()).lines
        for line, column in zip(lines, columns.split(), strict=True):
            assert list(line.get_ydata()) == every[study].table(table)[column].tolist()
    for study, name, total in STACKS:
        bars = every[study].plot(name, Canvas().add_subplot()).containers
        heights = np.sum([[bar.get_height() for bar in container] for container in bars], axis=0)
        assert heights.tolist() == pytest.approx(list(total(every[study]))), name


@pytest.mark.parametrize("name", STUDIES)
def test_experts_of_a_mixture_are_named(name: str, mixture_store: Store) -> None:
    """Of every neuron in a table, which expert it is of; the shared ones come last."""
    made = small(name, mixture_store.model_for("the study"), mixture_store)
    sizes = made.experts[0]
    named = [table.frame for table in made.tables if "neuron" in table.frame]
    assert sum(map(len, named))
    for frame in named:
        assert (frame["expert"] == (frame["neuron"] // sizes.neurons).clip(upper=sizes.experts)).all()
        assert frame.columns[frame.columns.get_loc("neuron") + 1] == "expert"


def test_nothing_found_is_said(tiny: fm.Model, tiny_store: Store) -> None:
    """By the papers' settings a random model has no detectors: tables keep their columns, figures say so."""
    empty = small("voita2023", tiny, tiny_store, min_count=10_000, position=10.0)
    assert empty.table("detectors").empty
    assert list(empty.table("positional").columns)[:3] == ["layer", "neuron", "information"]
    assert empty.table("summary")["suppressing"].isna().all()
    assert "Detectors: none." in empty.conclusion
    said = {
        figure.name: [text.get_text() for text in empty.plot(figure.name, Canvas().add_subplot()).texts]
        for figure in empty.figures
    }
    assert said["detectors"] == said["tokens"] == ["no token detectors"]
    assert said["positional"] == said["patterns"] == ["no positional neurons"]
    peaks = small("gurnee2024", tiny, tiny_store, kurtosis=1000.0)
    assert "no such neurons" in peaks.conclusion
    assert "no neuron" in peaks.plot("signs", Canvas().add_subplot()).texts[0].get_text()


# -- as a sheet and as data ----------------------------------------------------------------------------------------


def test_sheet(geva: Study) -> None:
    """A wide table would not fit: every column stands once, the first in each part."""
    lines = printed(geva.sheet(Path("out")), 60)
    assert max(map(len, lines)) <= 60
    heads = " ".join(line for line in lines if line.startswith("layer")).split()
    assert heads.count("layer") > 1
    assert "shuffled" in heads
    words = " ".join(" ".join(lines).split())
    for part in ("The main numbers by layer", "Beside the paper", str(Path("out") / "index.html"), "summary.csv"):
        assert part in words
    assert repr(geva) == "Study('geva2021' of GPT2LMHeadModel: 8 tables, 9 figures)"


def test_data(geva: Study) -> None:
    """All rows; in brief, those of the first table and how many the others have."""
    whole, brief = geva.to_dict(), geva.brief()
    assert whole["tables"]["changes"]["rows"][0]["removed"] == "first"
    assert len(geva.to_dict(1)["tables"]["summary"]["rows"]) == 1
    assert brief["tables"]["summary"] == whole["tables"]["summary"]
    assert brief["tables"]["changes"]["rows"] == len(geva.table("changes"))
    assert {row["subject"]: row["paper"] for row in whole["beside_paper"]} == dict(geva.published)


# -- as files and as a page ----------------------------------------------------------------------------------------


def test_files(geva: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table and figure, the settings and what is beside the paper's, and a page; nothing else, nothing half."""
    first = geva.figures[0]

    def drawn(study: Study, figure: Any, **how: Any) -> bytes:
        return figures.png(study, figure, **how) if figure is first else b""  # drawing takes a second each

    monkeypatch.setattr(running, "png", drawn)
    write_study(geva, tmp_path)
    names = {*(f"{table.name}.csv" for table in geva.tables), *(f"{figure.name}.png" for figure in geva.figures)}
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "study.json", *names}
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "changes.csv"), geva.table("changes"))
    with Image.open(tmp_path / f"{first.name}.png") as image:
        assert image.size == tuple(side * figures.DPI for side in first.size)
    kept = json.loads((tmp_path / "study.json").read_text("utf-8"))
    assert kept["tables"]["changes"]["rows"] == 6
    assert {name: kept[name] for name in geva.described()} == geva.described()
    tags = Page((tmp_path / "index.html").read_text("utf-8")).tags
    dark, light = (next(attrs for tag, attrs in tags if tag == name) for name in ("source", "img"))
    assert dark["media"] == "screen and (prefers-color-scheme: dark)"
    corners = []
    for source in (dark["srcset"], light["src"]):
        with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as image:
            corners.append(image.convert("L").getpixel((0, 0)))
    assert corners[0] < 40 < 250 < corners[1]  # files are for paper; the page has figures for dark screens too


def test_page(geva: Study) -> None:
    """What was found first, the tables' numbers, the figures inside the page, and nothing from outside."""
    many = replace(geva, frames={**geva.frames, "prefixes": pd.concat([geva.table("prefixes")] * 20)})
    drawings = [figure.name.encode() for figure in geva.figures]
    html = unscripted(page(many, drawings, links=lambda layer, neuron: f"{layer}/{neuron}"), policy="img-src data:; ")
    shown = Page(html)
    titles = [table.title for table in geva.tables]
    assert shown.headings == [
        "geva2021 on GPT2LMHeadModel", titles[0], "Figures", *titles[1:], "Beside the paper", "Settings",
        "Where these numbers come from",
    ]  # fmt: skip
    places = [shown.words.index(words) for words in (geva.conclusion[:40], "The protocol of", titles[0])]
    assert places == sorted(places)
    rows = shown.below(titles[1])[0]
    assert rows[1][0].text == "0"
    hidden = 20 * len(geva.table("prefixes")) - ROWS
    assert f"prefixes.csv; {hidden} more" in shown.words
    images = [attrs for tag, attrs in shown.tags if tag == "img"]
    assert len(images) == len(geva.figures)
    assert all(attrs["alt"] and attrs["src"].startswith("data:image/png;base64,") for attrs in images)
    assert not any(tag in ("script", "link", "iframe") for tag, _ in shown.tags)
    row = geva.table("prefixes").iloc[0]
    addresses = {attrs["href"] for tag, attrs in shown.tags if tag == "a"}
    assert f"{row['layer']}/{row['neuron']}" in addresses
    assert not any("http" in address for address in addresses)


def test_an_error_while_drawing_leaves_the_older_files(
    geva: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is drawn before anything is written. Of a new study the tables are kept, in a folder without a page."""

    def fails(*_: Any, **__: Any) -> bytes:
        raise MemoryError("no room for a canvas")

    def stops(path: Path, content: str | bytes) -> None:
        if path.suffix == ".png":
            raise FileError("cannot write: no space left on device")
        write_whole(path, content)

    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    monkeypatch.setattr(running, "png", lambda study, figure, dark=False: figure.name.encode())
    write_study(geva, tmp_path / "old")
    before = digests(tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(running, "png", fails)
        for name in ("old", "new"):
            with pytest.raises(MemoryError):
                write_study(replace(geva, settings={"keys": 5}), tmp_path / name)
    assert digests(tmp_path / "old") == before
    assert {path.stem for path in (tmp_path / "new").iterdir()} == {table.name for table in geva.tables}
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_whole", stops)
        with pytest.raises(FileError, match="no space"):
            write_study(geva, tmp_path / "old")
    assert not (tmp_path / "old" / "index.html").exists()
    FOLDER.check(tmp_path / "old", ["study.json"])


# -- fm.studies.run ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_from_text_and_again(tiny: fm.Model, tmp_path: Path) -> None:
    """The scan is opened at the next call; the same call writes the same files, and completes what is missing."""
    told: list[str] = []
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()), "utf-8")
    out = tmp_path / "deep" / "out"

    def run() -> Study:
        told.clear()
        listen: Any = lambda phase, *_: told.append(phase)  # noqa: E731
        return fm.studies.run("geva2021", tiny, corpus, out, scan_options=SCAN, progress=listen, **FEW)

    assert run().name == "geva2021"
    assert list(dict.fromkeys(told)) == ["pack", "scan", "project", "prefixes", "weights", "positions"]
    assert fm.open_store(out / "store", tiny).settings.k == SCAN["k"]
    before = digests(out)
    assert {"index.html", "study.json", "summary.csv", "changes.png"} <= set(before)
    for name in ("index.html", "changes.png", "updates.csv"):
        (out / name).unlink()
    run()
    assert "scan" not in told
    assert digests(out) == before
    made = fm.studies.run("geva2021", tiny, fm.open_store(out / "store"), tmp_path / "other", seed=3, **FEW)
    assert made.settings["seed"] == 3
    assert digests(out) == before  # nothing of a store that is given is touched
    assert not (tmp_path / "other" / "store").exists()


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("geva", {}, ("'geva'", "'geva2021'", "'voita2023'")),
        ("geva2021", {"keyz": 3}, ("'keyz'", "keys", "n_sequences")),
        ("geva2021", {"scan_options": {"k": 3}}, ("scan_options",)),
        ("geva2021", {"basis": "both"}, ("'folded' or 'raw'",)),
        *(("geva2021", {setting: 0}, (setting, "0")) for setting in FEW),
        ("voita2023", {"coverage": float("nan")}, ("coverage", "nan")),
        ("gurnee2024", {"basis": "flat"}, ("basis", "'flat'")),
    ],
)
def test_refused(
    name: str, changes: dict[str, Any], named: tuple[str, ...], tiny: fm.Model, tiny_store: Store, tmp_path: Path
) -> None:
    """One line that names the setting, and no folder is left."""
    with refuses(InputError, ValueError, *named, typed=True):
        fm.studies.run(name, tiny, tiny_store, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_another_models_store_is_refused(atlas: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    for name in STUDIES:
        with refuses(InputError, ValueError, "atlas", atlas.fingerprint):
            fm.studies.run(name, atlas, tiny_store, tmp_path / "out")
        with refuses(InputError, ValueError, "atlas", atlas.fingerprint):
            small(name, atlas, tiny_store)


def test_a_folder_with_something_else_is_refused(tiny: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    """Nothing of the user's is replaced, and one folder holds one study."""
    notes = tmp_path / "notes"
    notes.mkdir()
    mine, about = notes / "summary.csv", notes / "study.json"
    mine.write_text("mine", "utf-8")

    def refused(*named: str, out: Path = notes) -> None:
        with refuses(FileError, OSError, *named):
            fm.studies.run("geva2021", tiny, tiny_store, out, **FEW)

    refused("notes", "summary.csv", "other things", "the study")
    for text in ('{"study": "geva2021"}', "["):
        about.write_text(text, "utf-8")
        refused("other things")
    FOLDER.mark(notes, {"study": "voita2023"})
    refused("'voita2023'", "'geva2021'")
    about.write_text(about.read_text("utf-8").replace("voita2023", "geva2021"), "utf-8")
    refused("study.json is damaged", "checksum")
    assert mine.read_text("utf-8") == "mine"
    refused("summary.csv", "folder", out=mine)
    refused("cannot make", out=mine / "below")
