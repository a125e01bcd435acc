"""The page of an edit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.number_text import format_probability
from ffnmem.evaluation.effects import Effects, moved_neighbours, prompts_of
from ffnmem.pages import edit as edit_report

from ..editing.edits import made, same_bits, weights
from ..evaluation.made import EIFFEL
from ..helpers import refuses
from .page import Page

SECTIONS = [
    "What it does",
    "Before and after",
    "What the model writes",
    "Where the fact was recalled",
    "The memories that changed",
    "Where the edit writes",
    "How it was made",
    "Where these numbers come from",
]


@pytest.fixture(scope="module")
def edit(tiny: fm.Model) -> fm.Edit:
    return made(tiny, fact=EIFFEL)


@pytest.fixture(scope="module")
def trace(tiny: fm.Model) -> fm.tracing.Trace:
    return fm.trace_fact(tiny, EIFFEL.text, EIFFEL.subject, samples=2, noise=1.0)


@pytest.fixture(scope="module")
def html(tiny: fm.Model, edit: fm.Edit, trace: fm.tracing.Trace, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "edit.html"
    assert edit_report(edit, tiny, trace, out=out, top=7) == out
    return out.read_text("utf-8")


def test_sections_in_order(html: str) -> None:
    title, *sections = Page(html).headings
    assert title == "Eiffel Tower → Rome"
    assert sections == SECTIONS


def test_prompts_are_the_effects(html: str, tiny: fm.Model, edit: fm.Edit) -> None:
    """Every prompt with the four probabilities."""
    expected = Effects(edit, tiny).on(prompts_of(EIFFEL, "Rome"))
    own, others = Page(html).below("Before and after")
    rows = [cells for cells in [*own[1:], *others[1:]] if cells[1].text]
    assert [cells[0].text for cells in rows] == expected["prompt"].tolist()
    for cells, row in zip(rows, expected.to_dict("records"), strict=True):
        for cell, name in zip(cells[1:3], ("true", "target"), strict=True):
            both = [format_probability(row[f"{name}_{when}"]) for when in ("before", "after")]
            assert [text.strip() for text in cell.text.split("→")] == both


def test_memories_are_the_diffs(html: str, tiny: fm.Model, edit: fm.Edit) -> None:
    found = edit.diff(tiny, EIFFEL, 7)
    _, *rows = Page(html).below("The memories that changed")[0]
    assert [cells[0].text for cells in rows] == [f"{r.layer}.{r.neuron}" for r in found.neurons.itertuples()]
    assert [cells[3].values[0] for cells in rows] == pytest.approx(found.neurons["change"].tolist(), rel=1e-4, abs=1e-6)
    _, *writes = Page(html).below("Where the edit writes")[0]
    assert [cells[2].values[0] for cells in writes] == pytest.approx(found.writes["norm"].tolist(), rel=1e-4)


def test_texts_trace_and_provenance(html: str, tiny: fm.Model, edit: fm.Edit, trace: fm.tracing.Trace) -> None:
    words = Page(html).words
    assert len(Page(html).below("What the model writes")[0]) == 1 + len(EIFFEL.generation_prompts)
    assert f"{100 * trace.clean:.1f}%" in words
    for value in (tiny.fingerprint, edit.digest, "I know that {}", "clamp"):
        assert value in words


def test_the_model_stays(tiny: fm.Model, edit: fm.Edit, tmp_path: Path) -> None:
    """With the edit or without it, the page is the same and so are the weights."""
    before = weights(tiny)
    plain = edit_report(edit, tiny, False, out=tmp_path / "a.html").read_text("utf-8")
    assert same_bits(tiny, before)
    with edit.applied(tiny):
        held = weights(tiny)
        assert (
            Page(edit_report(edit, tiny, False, out=tmp_path / "b.html").read_text("utf-8")).words == Page(plain).words
        )
        assert same_bits(tiny, held)
    assert "Where the fact was recalled" not in plain


def test_what_is_doubtful_is_said(html: str, tiny: fm.Model, edit: fm.Edit, tmp_path: Path) -> None:
    """Who is sent the page would not learn what its maker was warned of."""
    doubtful = replace(edit, warnings=("target ' Rome' is <absurd>",))
    text = edit_report(doubtful, tiny, False, out=tmp_path / "a.html").read_text("utf-8")
    assert "Warning: target ' Rome' is <absurd>" in Page(text).words
    moved = moved_neighbours(Effects(edit, tiny).on(prompts_of(EIFFEL, "Rome")))
    for words in (Page(html).words, Page(text).words):
        assert all(f"Warning: {line}" in words for line in moved)
    assert Page(html).words.count("Warning: ") == len(moved)


def test_why_there_is_no_trace(tiny: fm.Model, edit: fm.Edit, tmp_path: Path) -> None:
    told: list[str] = []
    plain = edit_report(edit, tiny, out=tmp_path / "a.html", progress=lambda phase, *_: told.append(phase))
    assert "raced" not in Page(plain.read_text("utf-8")).words  # only when it is asked for
    assert told == ["effects"] * 4
    page = Page(edit_report(edit, tiny, True, out=tmp_path / "a.html").read_text("utf-8"))
    assert "Not traced: " in page.words
    assert "does not know this" in page.words


def test_what_cannot_be_reported(tiny: fm.Model, edit: fm.Edit, tmp_path: Path) -> None:
    with refuses(InputError, ValueError, "no facts"):
        edit_report(replace(edit, facts=(), targets=(), numbers=edit.numbers.iloc[:0]), tiny, out=tmp_path / "a.html")
    with refuses(InputError, ValueError, "top"):
        edit_report(edit, tiny, out=tmp_path / "a.html", top=0)
    assert not list(tmp_path.iterdir())
