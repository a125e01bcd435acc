"""The frame of all that notebooks show: styles that no page around it reaches, and that reach none.

Notebook pages style elements by their names (JupyterLab floats every ``dt``, Bootstrap draws every ``table``). So the
frame first takes back whatever styles its elements have from elsewhere, by a selector more specific than a page's own,
and then sets its own, which all begin with that selector.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from .rendering import HERE, MINUS, MISSING, provenance_line, render, token_html
from .rendering import running_html as running_html

ROWS = 20
NAME = "ffnmem"
ROOT = f".{NAME}:not(#_):not(#_)"
""":not(#_) holds for every element without that id, and counts as much as an id: a page that styles what is in an
element of its own by two ids would still lose."""

RESET = f"""\
{ROOT} {{ all: initial; display: block; color: inherit; color-scheme: inherit; }}
{ROOT} *:where(:not(svg *)), {ROOT} *::before, {ROOT} *::after {{ all: revert; }}
{ROOT} svg * {{ fill: inherit; stroke: none; opacity: 1; filter: none; display: inline; visibility: visible; }}
"""  # not all of what is in drawings: their geometry counts as style, and would be taken back as well


@cache
def styles(*sheets: str, room: str = HERE) -> str:
    """The frame's styles, and those of some style sheets of a room's ``templates/`` put below its selector."""
    named = [*((HERE, sheet) for sheet in ("pieces", "contexts", "notebook")), *((room, sheet) for sheet in sheets)]
    own = "".join((files(place) / "templates" / f"{sheet}.css").read_text("utf-8") for place, sheet in named)
    return RESET + own.replace(f".{NAME}", ROOT)


def framed(html: str, *sheets: str, room: str = HERE) -> str:
    """HTML in the frame, with the styles of further style sheets of a room."""
    return f'<div class="{NAME}">\n<style>\n{styles(*sheets, room=room)}</style>\n{html}\n</div>'


def display(template: str, *sheets: str, room: str = HERE, **values: Any) -> str:
    """A template of ``templates/`` filled in, in the frame."""
    return framed(render(template, room=room, **values), *sheets, room=room)


def line(html: str) -> str:
    """A paragraph of HTML."""
    return f'<p class="fm-line">{html}</p>'


def soft(text: str) -> str:
    """A text in small print."""
    return f'<p class="fm-soft">{running_html(text)}</p>' if text else ""


def provenance(fields: Any) -> str:
    """Provenance, or settings, in small print."""
    return soft(provenance_line(fields))


def table(frame: pd.DataFrame, rows: int | None = ROWS) -> str:
    """The first rows of a table (None: all) as HTML, every text of it escaped; nothing for an empty one."""
    if frame.empty:
        return ""
    texts = [any(isinstance(value, str) for value in frame.iloc[:, i]) for i in range(frame.shape[1])]
    kinds = [' class="fm-left"' if text else "" for text in texts]
    head = "".join(
        f'<th scope="col"{kind}>{running_html(str(name))}</th>' for name, kind in zip(frame.columns, kinds, strict=True)
    )
    shown = frame if rows is None else frame.head(rows)
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell(value)}</td>' for value, kind in zip(row, kinds, strict=True))}</tr>"
        for row in shown.itertuples(index=False, name=None)
    )
    more = f"… and {len(frame) - len(shown):,} more" if len(frame) > len(shown) else ""
    return whole(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>") + soft(more)


def whole(rows: str) -> str:
    """A table of rows, as wide as they are; a wider one than its place scrolls in itself."""
    return f'<div class="fm-wide-box"><table class="fm-table fm-plain">{rows}</table></div>'


def cell(value: Any) -> str:
    """A number with four digits that count, missing ones as a dash, text with its whitespace marked."""
    if isinstance(value, str):
        return str(token_html(value) if value != value.strip() else running_html(value))
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", MINUS)
    return str(running_html(str(value)))
