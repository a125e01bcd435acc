"""The explorer of activation functions: one page that draws, reads off and explains them, without a network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._version import __version__
from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.types import checked
from ..ffn.activations import BETA, POINTS, SWISH, Activation, Look, curves, look
from ..show.notebook import plain
from .rendering import render

FIRST_SHOWN = ("relu", "gelu", "gelu_tanh", "silu", SWISH)
RANGES = (3, 6, 10)
START = -1.0
HIGHEST_BETA = 100.0
DIP = 0.27846454276107374
"""How far SiLU goes below 0, W(1/e) with Lambert's W; Swish with β goes, and differs from ReLU by, this over β."""

SWISH_FORMULAS = ("xσ(βx)", "σ(βx) + βxσ(βx)(1 − σ(βx))")
STROKE = 2.2  # the width of a curve, in which the dashes of a look are given
STEPS = 300


@dataclass(frozen=True)
class Row:
    """One activation of the page: its look, its formulas, and f and f′ at the reference points."""

    name: str
    title: str
    general_title: str
    formula: str
    gradient_formula: str
    source: str
    look: Look
    dashes: str
    value: tuple[float, ...]
    gradient: tuple[float, ...]


@dataclass(frozen=True)
class Tick:
    """A line of the grid, where it stands in the drawing, and its number."""

    at: float
    label: str
    zero: bool


@dataclass(frozen=True)
class Panel:
    """A still drawing of all curves, for browsers without scripts."""

    title: str
    low: float
    high: float
    limit: float = float(RANGES[0])
    width: int = 520
    height: int = 300
    left: int = 42
    right: int = 508
    top: int = 26
    bottom: int = 274
    paths: tuple[tuple[str, str], ...] = ()

    def x(self, x: float) -> float:
        return round(self.left + (x + self.limit) / (2 * self.limit) * (self.right - self.left), 2)

    def y(self, y: float) -> float:
        return round(self.top + (self.high - y) / (self.high - self.low) * (self.bottom - self.top), 2)

    @property
    def across(self) -> list[Tick]:
        whole = range(-int(self.limit), int(self.limit) + 1)
        return [Tick(self.x(x), plain(x, 0), x == 0) for x in whole]

    @property
    def down(self) -> list[Tick]:
        step = 1.0 if self.high - self.low > 2 else 0.5
        places = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [Tick(self.y(i * step), plain(i * step, 0 if step == 1 else 1), i == 0) for i in places]


@checked
def activations(out: str | Path = "activations.html", *, beta: float = BETA) -> Path:
    """Write the explorer of activation functions as one HTML file that needs nothing but a browser.

    Curves and gradients with a line to move over them, the exact numbers where it stands, Swish with a β to set,
    formulas with their sources, and what the shapes mean for memories. Its script is its own, and its policy admits
    no other and no network.

    Args:
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        beta: the β that Swish begins with, 0 to 100.

    Returns:
        The path written.

    Raises:
        FileError: ``out`` is a folder, its folder is missing, or it cannot be written.
        InputError: a β outside of 0 to 100.
    """
    path = check_destination(out)
    write_whole(path, activations_html(beta))
    return path


def activations_html(beta: float = BETA) -> str:
    """The explorer's page, with a Swish that begins with ``beta``."""
    shown = curves(beta=beta)
    if beta > HIGHEST_BETA:
        raise InputError(f"beta of the explorer must be from 0 to {HIGHEST_BETA:g}, not {beta:g}")
    return render(
        "activations.html",
        scripts=("activations.js",),
        version=__version__,
        shown=[activation_row(one) for one in shown],
        points=[point_label(x) for x in POINTS],
        panels=[
            still_panel(shown, "value", Panel("f(x)", -0.5, 3.1)),
            still_panel(shown, "gradient", Panel("f′(x)", -0.25, 1.75)),
        ],
        config=script_settings(shown, beta),
    )


def script_settings(shown: Sequence[Activation], beta: float) -> dict[str, Any]:
    """What the script has to know."""
    return {
        "activations": [{"name": one.name, "title": one.title} for one in shown],
        "shown": list(FIRST_SHOWN),
        "ranges": list(RANGES),
        "x": START,
        "beta": beta,
        "highest": HIGHEST_BETA,
        "dip": DIP,
    }


def activation_row(one: Activation) -> Row:
    x = torch.tensor(POINTS, dtype=torch.float64)
    formulas = SWISH_FORMULAS if one.name == SWISH else (one.formula, one.gradient_formula)
    dashes = look(one).dashes
    return Row(
        one.name,
        one.title,
        "Swish" if one.name == SWISH else one.title,
        *formulas,
        one.source,
        look(one),
        " ".join(f"{STROKE * length:.4g}" for length in dashes) or "none",
        tuple(one.value(x).tolist()),
        tuple(one.gradient(x).tolist()),
    )


def point_label(x: float) -> str:
    """A point x with as many decimals as it has."""
    return plain(x, 0 if x == int(x) else 1)


def still_panel(shown: Sequence[Activation], kind: str, panel: Panel) -> Panel:
    """The panel with a path for each curve."""
    x = np.linspace(-panel.limit, panel.limit, STEPS + 1)
    paths = []
    for one in shown:
        y = getattr(one, kind)(torch.from_numpy(x)).numpy()
        paths.append((one.name, "".join(strokes(panel, x, y))))
    return Panel(panel.title, panel.low, panel.high, paths=tuple(paths))


def strokes(panel: Panel, x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """A path that ends where the curve leaves the frame, and breaks where it jumps, as ReLU's gradient does at 0."""
    drawing = False
    last = math.nan
    for here, height in zip(x.tolist(), y.tolist(), strict=True):
        if not panel.low <= height <= panel.high:
            drawing = False
            continue
        yield f"{'L' if drawing and abs(height - last) < 0.5 else 'M'}{panel.x(here)} {panel.y(height)}"
        drawing, last = True, height
