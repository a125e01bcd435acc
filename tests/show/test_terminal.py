"""How tables show tokens and numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import ffnmem as fm
from ffnmem.core.sheets import Column, Facts, Sheet, Words, rows, tokens
from ffnmem.show.terminal import REST, OneLine, WholeLines, console, prompt_line, show, token

from ..cli.running import mistake, run


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" Paris", "·Paris"), ("Paris", "Paris"), ("\n", "↵"), ("", "∅"), ("[red]", "[red]"), ("\x1b[2J", "\\x1b[2J")],
)
def test_tokens(text: str, shown: str) -> None:
    """A leading space makes another token, so it must be seen; markup and controls are only text."""
    assert token(text).plain == shown


@given(st.lists(st.text(max_size=30), max_size=12), st.integers(1, 90))
def test_a_line_of_tokens_fits(tokens: list[str], width: int) -> None:
    """Whatever the tokens are, the first is there, no later one is cut in two, and what is missing is said."""
    line = OneLine([token(text) for text in tokens]).fitting(width)
    whole = [token(text).plain for text in tokens]
    ends = ["" if n == len(whole) else REST for n in range(len(whole) + 1)]
    count = next(n for n, rest in enumerate(ends) if "  ".join(whole[:n]) + rest * bool(n) == line.plain)
    assert count >= min(1, len(tokens))
    assert count <= 1 or line.cell_len <= width
    assert "\n" not in line.plain
    lines: list[list[str]] = []  # on several lines, none is left out, and each has as many as it has room for
    for text in whole:
        if not lines or cell_len("  ".join([*lines[-1], text])) > width:
            lines.append([])
        lines[-1].append(text)
    wide = console().options.update(width=width)
    found = WholeLines([token(text) for text in tokens]).__rich_console__(console(), wide)
    assert [one.plain for one in found] == ["  ".join(texts) for texts in lines]


def test_prompt_line_shows_the_neighbourhood() -> None:
    """Of a long prompt, the end that matters: up to the position, and a few tokens after it."""
    tokens = ["<|endoftext|>", *(f" t{i}" for i in range(100))]
    assert prompt_line(tokens[:3], 2, bos=True).plain == "<|endoftext|> ·t0 ·t1"
    line = prompt_line(tokens, 50, bos=True).plain
    assert line.startswith("… ")
    assert line.endswith(" …")
    assert "·t49" in line.split()
    assert len(line.split()) == 26
    assert prompt_line(tokens, 100, bos=True).plain.endswith("·t99")
    assert prompt_line(tokens, 0, bos=True).plain.startswith("<|endoftext|> ·t0")


@pytest.mark.parametrize(("columns", "width"), [("40", 60), ("80", 80), ("300", 120)])
def test_console_width(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too narrow, a table would cut its numbers; too wide, the eye would lose the row."""
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


def test_only_wrapping_columns_give_way(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A number cut by an ellipsis is a wrong number."""
    monkeypatch.setenv("COLUMNS", "60")
    table = rows(Column("neuron"), Column("logit", left=False), Column("tokens", wraps=True))
    table.add("11.12345", "+123456789.123456789", tokens(["word"] * 30))
    show(Sheet.of(table.table()))
    out = capsys.readouterr().out
    assert "+123456789.123456789" in out
    assert "11.12345" in out
    assert max(map(cell_len, out.splitlines())) <= 60


def test_a_table_of_too_many_numbers_is_several(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that cannot give way were all cut, and the first one away."""
    names = [f"a long name {index}" for index in range(8)]
    table = rows(Column("size"), *(Column(name, left=False) for name in names))
    table.add("9,216", *(str(index) for index in range(8)))
    show(Sheet.of(table.table()))
    out = capsys.readouterr().out
    assert [name for name in names if name not in out] == []
    assert out.count("9,216") == 2
    assert max(map(cell_len, out.splitlines())) <= 80


def test_lines_of_a_pipe_end_where_they_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A table that is written into a file would have spaces at the ends of its lines, which a diff shows."""
    table = rows("name", Column("what", wraps=True))
    table.add("one", "long " * 10)
    table.add("two", "short")
    show(Sheet.of(Facts({"a": "long " * 4, "b": "short"}), table.table(caption="a\nlonger"), Words.of("kept ")))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(" ")] == ["kept "]


HOSTILE = "evil\x1b[31m\u202e\u200b $x^2$ <b>"


def test_a_models_hostile_name_is_escaped_wherever_it_is_shown(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a folder could recolour the terminal, turn the page's writing round, or be set as mathematics."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_folder, HOSTILE)
    model = fm.load(HOSTILE)
    store = fm.scan(model, ["The Eiffel Tower is in Paris"] * 3, "store")
    found = fm.capture(model, "The Eiffel Tower")
    card = fm.pages.page(store.neuron(0, 1), "card.html").read_text("utf-8")
    notes = store.neuron(0, 1).to_markdown()
    page = fm.pages.page(fm.report(found), "page.html").read_text("utf-8")
    shown = [
        *(card, notes, page, repr(found), repr(store), found._repr_html_(), fm.attribute(found)._repr_html_()),
        fm.plots.geometry(fm.neurons.geometry(model)).get_title(loc="left"),
        run("attribute", "The Eiffel Tower", "--model", HOSTILE).stdout,
        run("store", "store").stdout,
        run("anatomy", HOSTILE).stdout,
        str(mistake("attribute", "The", "--model", HOSTILE, "--position", 99, named=())),
    ]
    for text in shown:
        assert not {"\x1b", "\u202e", "\u200b"} & set(text), text[:300]
    assert r"evil\x1b[31m\u202e\u200b" in page
