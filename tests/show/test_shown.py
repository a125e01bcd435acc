"""One sheet of everything that a sheet may hold, on a terminal, in HTML and in Markdown, as files beside this one.

``python -m tests.show.test_shown`` writes them; what a change of theirs shows is to be looked at.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from ffnmem.core.sheets import (
    Block,
    Column,
    Context,
    Facts,
    Fitting,
    Grid,
    Histogram,
    Origin,
    Prompt,
    Shade,
    Shades,
    Sheet,
    Span,
    Table,
    Words,
    line,
    token,
    tokens,
)
from ffnmem.show.markdown import markdown
from ffnmem.show.notebook import html, render
from ffnmem.show.terminal import show

FOLDER = Path(__file__).parent / "shown"
WORDS = tuple(f" token{i}" for i in range(12))
SHADED = Shades(
    (Shade(" The", 0.02, True, "0.1"), Shade(" Eiffel", 0.4, False, "")),
    (Shade(" is", 0.9, True, "<b>"), Shade("  ", 0.5, False, "")),
    further_before=(Shade("Once", 0.1, False, ""),),
)


def blocks() -> Iterator[Block]:
    """A block of each kind, with everything that it may have."""
    yield Facts(
        {
            "prompt": Prompt(("<|endoftext|>", "The", " city\n"), 2, bos=True),
            "tokens": tokens(WORDS, [" token1"]),
            "whole": Fitting(tuple((token(text),) for text in WORDS), whole=True),
            "lines": (
                line("one ", Span("x", "adds", note="a note", leads=("address", "a.html"))),
                line(Span(" y", "takes", True)),
            ),
            "plain": "text <b>",
        },
        title="facts",
    )
    contexts = (
        Context("The ", " Tower", " is in", cut_before=True, cut_after=True, strength=0.5, note="n", shades=SHADED),
        Context("x", "   ", "y" * 70, negative=True),
        None,
    )
    numbers = (
        Column("neuron", "neuron"),
        Column("token", "token", limit=6),
        Column("logit", "number", sign=True, colour=True, bars=True),
        Column("sum", "number", bars="steps"),
        Column("n", "count"),
        Column("share", "percent", soft=True),
        Column("words", wraps=True, least=8),
    )
    yield Table(
        numbers,
        (
            ((5, 97), " Paris is", 12.5, 1.0, 12345, 0.25, "a text that gives way where there is little room for it"),
            ((0, 3), "\n", -2.5, -0.5, 0, -0.5, " x"),
            ((1, 4), "", 0, 0.25, 7, math.nan, line("a ", Span("line", "strong"))),
            (None,) * 7,
        ),
        title="numbers",
        note="a note",
        caption="a caption",
        sections=(1,),
        strong=(2,),
        soft=(1,),
    )
    texts = (Column("at", "context", scale="2.50"), Column("p", "probability"), Column("e", "small"))
    yield Table(texts, tuple(zip(contexts, (0.9999, 0.0001, None), (1e-7, 0, None), strict=True)))
    heat = (Column("", "heat", limit=2.0, scale="2 logits", each="layer"), Column("bar", "bar"))
    yield Table(heat, (((-2.0, -0.1, 0.0, 0.6, 9.0, math.nan), 0.37), ((1.0, 0.0), 1.5), (None, None)), ruled=False)
    stays = [Column("layer", stays=True), *(Column(f"a wide column {i}", "number") for i in range(9))]
    yield Table(tuple(stays), (("0", *range(9)), ("1", *range(9))), title="wide", caption="last")
    yield Table((Column("folded"),), (("x",),), title="folded", folded=True)
    yield Grid(
        ("layer 1", token(" 0")),
        (token(" The"), "b"),
        ((0.5, -1.0), (None, math.inf)),
        limit=1.0,
        unit="logits",
        leads={(0, 1): (1, 3)},
        notes={(1, 0): "<i>"},
        marked=1,
        title="grid",
        caption="below",
    )
    yield Histogram((-1.0, 0.0, 0.5, 2.0, 4.0), (3, 1000, 20, 0), "coefficient", title="histogram")
    yield Histogram(tuple(range(41)), (*range(1, 41),), "x", "items")
    yield Words.of("long words " * 12, "marked")
    yield Origin({"model": "tiny", "seed": 3, "bos": True, "none": None})


SHEET = Sheet.of(*blocks(), title="Everything")


def terminal(width: int, colours: bool = False) -> str:
    """A terminal of so many columns; with colours, the codes of all styles."""
    out = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        markup=False,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
        _environ={},
    )
    show(SHEET, out)
    return out.file.getvalue()  # type: ignore[attr-defined]


def page() -> str:
    """HTML without its styles, and the rows of a table whose neurons lead somewhere."""
    links = {"neuron": lambda at: f"{at[0]}/{at[1]}.html" if at[0] else "", "cell": "{0[0]}-{0[1]}.html".format}
    linked = render("sheet.html", sheet=Sheet((SHEET.blocks[1], SHEET.blocks[6])), links=links)
    return f"{html(SHEET).partition('</style>')[2]}\n{linked}\n"


SHOWN: dict[str, Callable[[], str]] = {
    "narrow.txt": lambda: terminal(60),
    "wide.txt": lambda: terminal(110),
    "colours.txt": lambda: terminal(80, colours=True).replace("\x1b", "\\e"),
    "page.html": page,
    "page.md": lambda: markdown(SHEET) + "\n",
}


@pytest.mark.parametrize("name", SHOWN)
def test_everything_is_shown_as_it_was(name: str) -> None:
    """A number in another's place, a bar of another length, a shade of the other sign: of all of these some once."""
    assert SHOWN[name]() == (FOLDER / name).read_text("utf-8")


if __name__ == "__main__":
    for file, shown in SHOWN.items():
        (FOLDER / file).write_text(shown(), "utf-8")
