"""A function as a command: its parameters as options, its docstring as help, one group of options for what is shown."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from .._version import __version__
from ..core.errors import InputError, counted
from ..core.files import user_folder, user_path, write_whole
from ..show.records import write
from .guard import note
from .kinds import ONE, PLAIN, SEVERAL, number_name, type_of
from .operations import PACKAGE, Operation, operation
from .progress import show_progress
from .replacing import FIGURE, FIGURES, OWN, PAGE, check_replaceable
from .table import OPERATIONS

MODEL, OUTPUT = Group("Model", sort_key=1), Group("Output", sort_key=2)


@Parameter(name="*", group=OUTPUT, negative=())
@dataclass(frozen=True, kw_only=True)
class Output:
    """What is shown, and what is written.

    Attributes:
        json: Print JSON (UTF-8) on standard output, and nothing else.
        csv: Print CSV (UTF-8) on standard output, and nothing else. Cells are as they are: a spreadsheet may take
            those that begin with =, +, - or @ for formulas, so import them there as text.
        html: Also write it as a page, which needs nothing but a browser.
        site: With --html: a site of the model's neurons (ffnmem site), to which names of neurons lead.
        plot: of those that are drawn.
        save: Also save all of it, to be loaded again: FILE.zip.
        top: How many rows of each table. [default: 20, or fewer where that is much]
        full: All rows and all columns.
    """

    json: bool = False
    csv: bool = False
    html: Annotated[str | None, Parameter(metavar="FILE")] = None
    site: Annotated[str | None, Parameter(metavar="DIR")] = None
    plot: Annotated[str | None, Parameter(parse=False)] = None
    save: Annotated[str | None, Parameter(metavar="FILE")] = None
    top: Annotated[int | None, Parameter(metavar="N", validator=Number(gte=1))] = None
    full: bool = False

    def check(self, one: Operation) -> None:
        """Refuse before anything is computed for nothing what does not go together, is not drawn, cannot be written."""
        from ..show.result import check_fits_a_file

        if self.json and self.csv:
            raise InputError("--json and --csv exclude each other: give one of them")
        if self.plot is not None and not self.plot.lower().endswith(FIGURES):
            raise InputError(f"{self.plot}: a figure's name ends in {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")
        if self.site is not None:
            if self.html is None:
                raise InputError("--site says where a page's neurons lead: give --html FILE, or leave it out")
            import_module("ffnmem.pages.links").read_site(user_folder(self.site))
        for file, mark in ((self.html, PAGE), (self.plot, FIGURE), (self.save, OWN)):
            if file is not None:
                check_replaceable(file, mark)
        if self.save is not None:
            kept = getattr(import_module(one.path.partition(":")[0]), one.returns.split(" | ")[0], None)
            if kept is not None:
                check_fits_a_file(kept)

    def emit(self, result: Any) -> None:
        """The result on standard output, and in the files that were asked for."""
        from ..show.records import print_csv, print_json
        from ..show.result import BRIEF
        from ..show.terminal import show

        rows = None if self.full else self.top or BRIEF
        if self.plot is not None:
            from ..plots.figures import figure

            drawing = figure(result)  # before anything is printed: some have nothing to draw
        if self.json:
            print_json(result.to_dict(rows, derived=True))
        elif self.csv:
            frame = result.to_frame(rows, derived=True)
            print_csv(list(frame.columns), frame.to_dict("records"))
        else:
            show(result.sheet(rows, self.full))
        if (self.json or self.csv) and self.top is None:
            main = result.main or next(iter(result.tables), "")
            names = result.data_names if self.json else filter(None, [main])
            cut = {name: found for name in names if (found := result.left_out(name, rows)) is not None}
            said = [
                f"{given:,} of {counted(there, 'row')}{'' if name == main else f' of {name}'}"
                for name, (given, there) in cut.items()
            ]
            if said:
                note(f"{', '.join(said)}: --full gives all, --top N the first N")
        if self.html is not None:
            from ..pages.results import page

            note(f"wrote {page(result, self.html, top=rows, full=self.full, site=self.site)}")
        if self.plot is not None:
            write_figure(drawing, user_path(self.plot))
        if self.save is not None:
            note(f"wrote {result.save(self.save)}")


@Parameter(name="*", group=OUTPUT, negative=())
@dataclass(frozen=True, kw_only=True)
class Drawn(Output):
    """The same of a result that is drawn.

    Attributes:
        plot: Also draw it into FILE: .png, .svg or .pdf.
    """

    plot: Annotated[str | None, Parameter(metavar="FILE")] = None


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure that says what drew it: only such a one is ever replaced."""
    buffer, form = io.BytesIO(), path.suffix[1:].lower()
    said = {"Software" if form == "png" else "Creator": f"ffnmem {__version__}"}
    figure.savefig(buffer, format=form, dpi=150, metadata=said)
    write_whole(path, buffer.getvalue())
    note(f"wrote {path}")


@cache
def drawn() -> frozenset[str]:
    """The names of the classes that functions of :mod:`ffnmem.plots` draw, read without importing them."""
    texts = (path.read_text("utf-8") for path in sorted((PACKAGE / "plots").glob("*.py")))
    return frozenset(
        name for text in texts for found in re.findall(r"^@draws\(([\w, ]+)", text, re.M) for name in found.split(", ")
    )


def parser(path: str, given: Collection[str] = ()) -> Callable[..., tuple[Operation, Mapping[str, Any], Output]]:
    """A function that cyclopts takes as a command, and that gives the operation, what was typed for it, and the output.

    ``given``: names of classes of which nothing need be typed."""
    one = operation(path)

    def read(*args: Any, output: Output = Output(), **typed: Any) -> tuple[Operation, Mapping[str, Any], Output]:
        bound = inspect.Signature([p for p in parameters if p.name != "output"]).bind_partial(*args, **typed).arguments
        return one, {name: value for name, value in bound.items() if value is not None}, output

    parameters = [option_of(each) for each in sorted(one.typed(given), key=lambda each: not each.by_place)]
    if one.shows:
        shown = Drawn if drawn().intersection(one.returns.split(" | ")) else Output
        parameters.append(
            inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=shown(), annotation=shown)
        )
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    read.__annotations__ = {each.name: each.annotation for each in parameters}
    examples = [line.removeprefix("$ ") for line in one.examples if re.match(r"\$ ffnmem|    \S", line)]
    read.__doc__ = "\n\n".join(
        filter(None, [one.short, one.long, "\n".join(["Examples", *(f"  {e}" for e in examples)]) if examples else ""])
    )
    read.__name__ = path.partition(":")[2]
    return read


def option_of(one: Any) -> inspect.Parameter:
    """A parameter of an operation as cyclopts reads it: by place or by name."""
    words = one.help[:1].upper() + one.help[1:]
    switch = one.kind.name == "bool"
    if one.default and not switch and "[default" not in words:
        words = f"{words.rstrip()} [default: {one.default}]"
    more: dict[str, Any] = {}
    if one.kind.name in PLAIN and not switch:
        more["metavar"] = one.typed_as.upper().replace("_", "-")
    elif number_name(one.kind) is not None:
        more["metavar"] = number_name(one.kind)
    if one.of in ("Model", "Store") and not one.required:
        more["group"] = MODEL
    if one.name == "out":
        more["alias"] = "-o"
    if one.by_place and one.kind.name in SEVERAL:
        more["allow_leading_hyphen"] = False  # an option that there is not would be one of them
    off = f"--no-{one.name.replace('_', '-')}" if switch and one.default != "False" else ()
    about = Parameter(help=words, show_default=False, negative=off, **more)
    kind = type_of(one.kind)
    return inspect.Parameter(
        one.typed_as,
        inspect.Parameter.POSITIONAL_ONLY if one.by_place else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.required else None,
        annotation=Annotated[kind if one.required or one.kind.name in {*ONE, *SEVERAL} else kind | None, about],
    )


def command(path: str) -> Callable[..., int]:
    """The same, run: what the operation gives goes to standard output. Gives the exit status: 1 where the result says
    that it did not reach what was asked."""
    read = parser(path)

    def run(*args: Any, **typed: Any) -> int:
        one, values, output = read(*args, **typed)
        output.check(one)
        one.check(values)
        with show_progress() as progress:
            found = one.call(values, {"progress": progress, "k": output.top})
        if not one.shows:
            if found is not None:
                write(f"{found}\n")  # what it wrote
            return 0
        output.emit(found)
        return int(getattr(found, "status", 0))

    run.__signature__, run.__annotations__ = read.__signature__, read.__annotations__  # type: ignore[attr-defined]
    run.__doc__, run.__name__ = read.__doc__, read.__name__
    return run


def __getattr__(name: str) -> Any:
    """A command of the table, by its name; made when it is asked for."""
    if name in OPERATIONS:
        return command(OPERATIONS[name])
    raise AttributeError(name)
