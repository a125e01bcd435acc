"""All pictures of a result by its class: the first one, or all of them on one figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import takewhile
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.errors import InputError, InputTypeError
from ..core.types import checked
from .shapes import SIZES, WIDE

Drawing = TypeVar("Drawing", bound=Callable[..., Axes])
Aspects = Callable[[Any], Iterable[Any]]
PICTURES: dict[type, list[tuple[Callable[..., Axes], Aspects | None]]] = {}


def draws(*classes: type, aspects: Aspects | None = None) -> Callable[[Drawing], Drawing]:
    """Check a function's arguments, and register it as a picture of these classes.

    ``aspects`` gives the values of its second argument that a result has, each of which is a picture.
    """

    def register(draw: Drawing) -> Drawing:
        draw = checked(draw)
        for kind in classes:
            PICTURES.setdefault(kind, []).append((draw, aspects))
        return draw

    return register


def pictures_of(result: object) -> list[tuple[Callable[..., Axes], Aspects | None]]:
    """The functions that draw a result; raises InputTypeError where there are none."""
    package = import_module(__package__)
    for name in ("", *package.__all__):
        if name:
            getattr(package, name)  # functions register themselves when their modules are imported
        # All pictures of a class stand in one module, so those behind it need not be imported.
        if pictures := [picture for kind in type(result).__mro__ for picture in PICTURES.get(kind, ())]:
            return pictures
    known = ", ".join(sorted(kind.__name__ for kind in PICTURES))
    raise InputTypeError(f"nothing draws {type(result).__name__}: there are pictures of {known}")


@checked
def draw(result: object, *arguments: Any, **options: Any) -> Axes:
    """Draw the first picture of a result, with the arguments of the function of :mod:`ffnmem.plots` that draws it.

    Raises: InputError: what that function refuses, or no picture of such results.
    """
    return pictures_of(result)[0][0](result, *arguments, **options)


@checked
def figure(result: object, **options: Any) -> Figure:
    """All pictures of a result on one figure, such as ``--plot`` writes.

    Args:
        result: of a class that functions of :mod:`ffnmem.plots` draw.
        **options: of these functions, such as ``top``; each takes those that it has.

    Raises: InputError: what these functions refuse, an option of none of them, or no picture of such results.
    """
    known = {name for function, _ in pictures_of(result) for name in signature(function).parameters}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"no picture of {type(result).__name__} has the option {unknown[0]}")
    pictures: list[Callable[..., Axes]] = []
    for function, aspects in pictures_of(result):
        own = {name: value for name, value in options.items() if name in signature(function).parameters}
        each = [()] if aspects is None else [(aspect,) for aspect in aspects(result)]
        pictures += [partial(function, result, *aspect, **own) for aspect in each]
    return arrange(pictures)


@checked
def arrange(pictures: Sequence[Callable[..., Axes]], columns: int = 0) -> Figure:
    """Pictures on one figure that is large enough for all.

    Args:
        pictures: functions that draw on ``ax=`` and return it, such as
            ``functools.partial(ffnmem.plots.histogram, neuron)``.
        columns: how many stand side by side; default up to three, and two of more.

    Returns:
        A figure that pyplot does not know; ``.savefig(…)`` writes it. Lines with which all titles begin stand above all
        pictures; of equal legends, the last is kept.
    """
    if not pictures:
        raise InputError("there is nothing to draw")
    across = min(columns or (3 if len(pictures) <= 3 else 2), len(pictures))
    made = Figure(layout="constrained")
    grid = made.add_gridspec(-(-len(pictures) // across), across)
    panels = [draw(ax=made.add_subplot(grid[divmod(at, across)])) for at, draw in enumerate(pictures)]
    widths = [max(SIZES.get(ax, WIDE)[0] for ax in panels[column::across]) for column in range(across)]
    heights = [
        max(SIZES.get(ax, WIDE)[1] for ax in panels[first : first + across]) for first in range(0, len(panels), across)
    ]
    grid.set_width_ratios(widths)
    grid.set_height_ratios(heights)
    made.set_size_inches(sum(widths), sum(heights))
    titles = [ax.get_title(loc="left").split("\n") for ax in panels]
    common = list(takewhile(lambda lines: len(set(lines)) == 1, zip(*titles, strict=False)))
    if common and len(panels) > 1:
        made.suptitle(": ".join(lines[0] for lines in common), x=0.01, ha="left", parse_math=False, wrap=True)
        for ax, title in zip(panels, titles, strict=True):
            ax.set_title("\n".join(title[len(common) :]), loc="left", parse_math=False)
    legends = [ax.get_legend() for ax in panels]
    names = [[text.get_text() for text in one.get_texts()] if one else [] for one in legends]
    for at in range(len(panels) - 1):
        if names[at] and names[at] == names[at + 1]:
            legends[at].remove()  # type: ignore[union-attr]
    return made
