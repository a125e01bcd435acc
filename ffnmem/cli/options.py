"""Options that several commands share, in one wording."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

import ffnmem as fm

from ..core.choices import DIVISIONS
from ..core.errors import InputError, quoted
from ..show.terminal import user_text
from .garbage import set_up

if TYPE_CHECKING:
    from ..models.model import Model

Function = Callable[..., Any]
DTYPES = ("float32", "float64", "bfloat16", "float16")
BASES = ("folded", "raw")
SIDES = ("both", "value", "key", "gate")
NO_TEXT = object()


def text(value: str) -> str:
    """A click type: text that is valid UTF-8. A shell can pass bytes that are none, which no tokenizer takes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"{quoted(value.encode('utf-8', 'backslashreplace').decode())} is no UTF-8 text."
        ) from None
    return value


def token(value: str) -> str | int:
    """A click type: a token as text, or by its number: ``id:417``."""
    number = re.fullmatch(r"id:(\d{1,18})", value, re.ASCII)
    return text(value) if number is None else int(number[1])


def shard(value: str) -> tuple[int, int]:
    """A click type: ``i/n``, the i-th of n shards, from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", value.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise click.BadParameter(f"{quoted(value)} is no shard: write 0/4 for the first of four, up to 3/4.")
    return int(match[1]), int(match[2])


def setting(value: str) -> tuple[str, Any]:
    """A click type: ``name=value``, the value a number, true, false, null or text."""
    name, equals, written = value.partition("=")
    if not (name and equals and written):
        raise click.BadParameter(f"{quoted(value)} is no setting: write NAME=VALUE, such as keys=100.")
    try:
        return name, json.loads(written)
    except ValueError:
        return name, text(written)


COUNT = click.IntRange(min=1)


def given(context: click.Context) -> dict[str, click.Parameter]:
    """The parameters that the user gave, by name, in the order of the manual; the others have their defaults."""
    return {
        parameter.name: parameter
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) not in (None, ParameterSource.DEFAULT)
    }


def plot_option(what: str) -> Callable[[Function], Function]:
    return click.option("--plot", type=text, metavar="FILE", help=f"Also draw {what} into FILE: .png, .svg or .pdf.")


@dataclass(frozen=True)
class ModelChoice:
    """Which model the user asked for, and how to run it."""

    name: str
    device: str | None
    dtype: str
    prepend_bos: bool | None

    def load(self) -> Model:
        """The model, with a spinner on standard error while it loads if that is a terminal."""
        with Console(stderr=True).status(user_text(f"loading {self.name}", "dim")):
            import transformers

            transformers.logging.set_verbosity_error()  # its advice is for programmers, and our errors are one line
            model = fm.load(self.name, device=self.device, dtype=self.dtype, prepend_bos=self.prepend_bos)
        set_up()
        return model


name_option = click.option(
    "--model",
    "name",
    type=text,
    default="atlas",
    show_default=True,
    metavar="MODEL",
    help="atlas (embedded, offline), a folder in Hugging Face layout, or a Hugging Face id such as gpt2.",
)
device_option = click.option(
    "--device",
    metavar="DEVICE",
    help="cpu, cuda, cuda:1.  [default: cpu; cuda, where present, above 50 million parameters]",
)


def model_options(command: Function) -> Function:
    """--model, --device and --dtype, which reach the command as one ``choice``; with bos_option, --prepend-bos too."""

    @name_option
    @device_option
    @click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="float32",
        show_default=True,
        metavar="DTYPE",
        help="Numeric type of the weights: float32, float64, bfloat16 or float16.",
    )
    @functools.wraps(command)
    def run(*args: Any, name: str, device: str | None, dtype: str, prepend_bos: Any = NO_TEXT, **kwargs: Any) -> Any:
        # A command that reads no text loads models without a beginning-of-sequence token too.
        bos = False if prepend_bos is NO_TEXT else prepend_bos
        return command(*args, choice=ModelChoice(name, device, dtype, bos), **kwargs)

    return run


bos_option = click.option(
    "--prepend-bos/--no-prepend-bos",
    default=None,
    help="Put the beginning-of-sequence token before the text, or not.  [default: the model's own convention]",
)
"""Above model_options, for commands that read text."""


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON (UTF-8) on standard output, and nothing else."
)


full_option = click.option("--full", is_flag=True, help="With --json: everything, not only what the table shows.")
"""For commands whose complete JSON is much longer than their table."""

CSV_HELP = (
    "Print CSV (UTF-8) on standard output, and nothing else. Cells are as they are: a spreadsheet may take those that "
    "begin with =, +, - or @ for formulas, so import them there as text."
)
"""A token may be "=" or "@". An apostrophe before it would keep a spreadsheet from running it, and would be another
token to everything that reads the column as data."""


def output_options(command: Function) -> Function:
    """--json and --csv, which reach the command as ``form``: "table", "json" or "csv"."""

    @json_option
    @click.option("--csv", "as_csv", is_flag=True, help=CSV_HELP)
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, as_csv: bool, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise InputError("--json and --csv exclude each other: give one of them")
        return command(*args, form="json" if as_json else "csv" if as_csv else "table", **kwargs)

    return run


def answer_options(command: Function) -> Function:
    """--target, --foil, --first-token and --position: which answer to explain."""
    for option in (
        click.option(
            "--position",
            type=int,
            default=-1,
            show_default=True,
            metavar="POSITION",
            help="Where the answer is read off: 0 is the first token, -1 the last.",
        ),
        click.option(
            "--first-token",
            is_flag=True,
            help="Take the first token of a target or foil of several tokens instead of refusing it.",
        ),
        click.option(
            "--foil",
            type=token,
            metavar="TOKEN",
            help="Explain the target's logit minus this token's.",
        ),
        click.option(
            "--target",
            type=token,
            metavar="TOKEN",
            help='The token to explain: " Paris", or id:417. A text without a space in front gets one where the model '
            "finds that likelier, which is noted.  [default: the model's own top token]",
        ),
    ):
        command = option(command)
    return command


at_option = click.option(
    "--at",
    "positions",
    type=int,
    multiple=True,
    metavar="POSITION",
    help="Change neurons at this position of the prompt only (repeatable); -1 is the last.  [default: everywhere]",
)


store_argument = click.argument("store", type=text, metavar="STORE")
"""The folder that a scan wrote."""


column_option = click.option(
    "--text", "column", type=text, default="text", show_default=True, metavar="COLUMN", help="The text's column."
)
documents_option = click.option(
    "--documents",
    type=click.Choice(DIVISIONS),
    help="What a document of a .txt file is.  [default: paragraph, blank lines separate]",
)

prompt_argument = click.argument("prompt", type=text)


def top_option(what: str, default: int = 20) -> Callable[[Function], Function]:
    """--top: how many rows."""
    return click.option("--top", type=COUNT, default=default, show_default=True, metavar="N", help=what)


def seed_option(what: str, metavar: str | None = "SEED") -> Callable[[Function], Function]:
    """--seed: 0 unless given; without a ``metavar`` the manual shows the type."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar=metavar, help=what)
