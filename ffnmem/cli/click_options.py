"""Options that several commands share, in one wording."""

from __future__ import annotations

import functools
import json as encoding
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from cyclopts import Token

from ..core.defaults import SWEPT
from ..core.errors import InputError, perhaps, quoted
from ..core.neuron_names import is_place, layer_of, read_neuron
from ..core.token_text import token_id
from ..core.types import DIVISIONS, LENSES
from .options import PromptChoice, check_replaceable, read_figure

if TYPE_CHECKING:
    from ..models.model import Model
    from ..scanning.store import Store

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]
DTYPES = ("float32", "float64", "bfloat16", "float16")
BASES = ("folded", "raw")
SIDES = ("both", "value", "key", "gate")
COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0)
NO_TEXT = object()


# Types of options: each a function of what was typed.


class OneOf(click.Choice):  # type: ignore[type-arg]  # it has no parameter in click 8.1
    """One of some names; of a misspelt one it says which may be meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            said = error.message.removesuffix(".")
            raise click.BadParameter(f"{said}{perhaps(str(value), self.choices)}.", ctx, param) from None


def unicode_text(typed: str) -> str:
    """Text that is valid UTF-8. A shell can pass bytes that are none, which no tokenizer takes."""
    try:
        typed.encode("utf-8")
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"{quoted(typed.encode('utf-8', 'backslashreplace').decode())} is no UTF-8 text."
        ) from None
    return typed


def token_or_id(typed: str) -> str | int:
    """A token as text, or by its number: ``id:417``."""
    number = token_id(typed)
    return unicode_text(typed) if number is None else number


def shard_of(typed: str) -> tuple[int, int]:
    """``i/n``, the i-th of n shards, from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", typed.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise click.BadParameter(f"{quoted(typed)} is no shard: write 0/4 for the first of four, up to 3/4.")
    return int(match[1]), int(match[2])


def name_and_value(typed: str) -> tuple[str, Any]:
    """``name=value``, the value a number, true, false, null or none, or text."""
    name, equals, value = typed.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{quoted(typed)} is no setting: write NAME=VALUE, such as keys=100.")
    try:
        return name, None if value == "none" else encoding.loads(value)
    except ValueError:
        return name, unicode_text(value)


def read_neurons(texts: Sequence[str]) -> list[tuple[int, int]]:
    """(layer, neuron) of ``3.17`` or ``3.17,3.18``, each once; raises InputError naming what is neither."""
    return list(dict.fromkeys(read_neuron(part.strip()) for part in ",".join(texts).split(",")))


# How options and arguments are declared, and what is refused of them.


def option(*names: str, **settings: Any) -> Decorator:
    """click.option, of text that is UTF-8 unless told otherwise; a single default is shown in the manual."""
    if not settings.get("is_flag"):
        shown = "default" in settings and not settings.get("multiple")
        settings = {"type": unicode_text, "show_default": shown, **settings}
    return click.option(*names, **settings)


class LayerNumber(click.types.IntParamType):
    """A layer's number, or TransformerLens' name of a place in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return layer_of(value) if is_place(value) else super().convert(value, param, ctx)


LAYER = LayerNumber()


class LayerOrSwept(LayerNumber):
    """A layer's number, or "swept": the one that a sweep chose."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == SWEPT else super().convert(value, param, ctx)


LAYER_OR_SWEPT = LayerOrSwept()


def argument(name: str, **settings: Any) -> Decorator:
    """click.argument, of text that is UTF-8 unless told otherwise."""
    return click.argument(name, **{"type": unicode_text, **settings})


def given(context: click.Context) -> dict[str, str]:
    """The flags of the parameters that the user gave, by name, in the order of the manual; the others have defaults."""
    return {
        parameter.name: parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) not in (None, ParameterSource.DEFAULT)
    }


def refuse(context: click.Context, names: Sequence[str], partner: str) -> None:
    """Raise InputError for the first parameter among ``names`` that was given, which does nothing with ``partner``."""
    for name, flag in given(context).items():
        if name in names:
            raise InputError(f"{flag} does not go with {partner}: leave it out")


def exclusive(prompt: object, other: object, flag: str, nothing: str) -> bool:
    """Whether ``other`` was given, of ``flag``, and not a PROMPT; raises InputError for both, and for none."""
    if (other is None) == (prompt is None):
        raise InputError(nothing if prompt is None else f"PROMPT and {flag} exclude each other: give one of them")
    return other is not None


# Files that are written.

PAGE = rb'<meta name="generator" content="ffnmem '
OWN = rb'^.{8}\{"__metadata__":\{"ffnmem"'
GRAPH = rb'"generator": \{\s*"name": "ffnmem"'
ANSWERS = rb'^\{"kind": "ffnmem answers"'
CARDS = rb"\*\*Bold\*\* marks the token at which the neuron fires"
EXAMPLES = rb"^layer,neuron,kind,rank,coefficient,sequence,position,token,"


def file_to_write(mark: bytes | None) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback of an option: :func:`check_replaceable`."""

    def checked(_context: click.Context, _parameter: click.Parameter, file: str | None) -> str | None:
        if file is not None:
            check_replaceable(file, mark)
        return file

    return checked


# The model.


class ModelChoice(PromptChoice):
    """Which model the user asked for, and how to run it."""

    def __init__(
        self,
        name: str,
        device: str | None = None,
        dtype: Any = "float32",
        prepend_bos: bool | None = None,
        chat: bool = False,
    ) -> None:
        super().__init__(model=name, device=device, dtype=dtype, prepend_bos=prepend_bos, chat=chat)

    @property
    def name(self) -> str:
        return self.model

    def asked(self, model: Model, prompt: str) -> str:
        return self.prompt_text(model, prompt)


def scanned_model(store: Store, name: str | None = None, device: str | None = None) -> ModelChoice:
    """The model that was scanned, by the store's record or by another name."""
    said = store.provenance
    return ModelChoice(name or store.model, device, said["dtype"], said.get("prepend_bos"))


def device(command: Function) -> Function:
    """--device."""
    what = "cpu, cuda, cuda:1.  [default: cpu; cuda, where present, above 50 million parameters]"
    return option("--device", metavar="DEVICE", help=what)(command)


def model_in_float32(command: Function) -> Function:
    """--model and --device, which reach the command as one ``choice``; with ``bos`` above them, --prepend-bos too."""

    @option(
        "--model",
        "name",
        default="atlas",
        metavar="MODEL",
        help="atlas (embedded, offline), a folder in Hugging Face layout, or a Hugging Face id such as gpt2.",
    )
    @device
    @functools.wraps(command)
    def run(
        *args: Any,
        name: str,
        device: str | None,
        dtype: str = "float32",
        prepend_bos: Any = NO_TEXT,
        chat: bool = False,
        **kwargs: Any,
    ) -> Any:
        # A command that reads no text loads models without a beginning-of-sequence token too.
        beginning = False if prepend_bos is NO_TEXT else prepend_bos
        return command(*args, choice=ModelChoice(name, device, dtype, beginning, chat), **kwargs)

    return run


def model(command: Function) -> Function:
    """The same with --dtype."""
    dtype = option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="float32",
        metavar="DTYPE",
        help="Numeric type of the weights: float32, float64, bfloat16 or float16.",
    )
    return model_in_float32(dtype(command))


def bos(command: Function) -> Function:
    """--prepend-bos, above the model's options: for commands that read text."""
    return click.option(
        "--prepend-bos/--no-prepend-bos",
        default=None,
        help="Put the beginning-of-sequence token before the text, or not.  [default: the model's own convention]",
    )(command)


# What is asked about.


def prompt(command: Function, required: bool = True) -> Function:
    """PROMPT and --chat, which reach the command as ``prompt`` and, with the model's options, as ``choice.asked``."""
    chat = option(
        "--chat",
        is_flag=True,
        help="Ask PROMPT as a user's message, by the model's chat template; the answer is what the model begins with.",
    )
    return argument("prompt", required=required)(chat(command))


def optional_prompt(command: Function) -> Function:
    """The same, of a command that can do without."""
    return prompt(command, required=False)


def position(what: str) -> Decorator:
    """--position: where in the prompt."""
    return option(
        "--position", type=int, default=-1, metavar="POSITION", help=f"{what}: 0 is the first token, -1 the last."
    )


def known(command: Function) -> Function:
    """--target of commands about one fact: what is true of it."""
    return option(
        "--target",
        "known",
        metavar="TEXT",
        help="What is true; refused if the model says something else.  [default: whatever the model says]",
    )(command)


def answer(command: Function) -> Function:
    """--target, --foil, --first-token and --position: which answer to explain, as the library's arguments of it."""
    for one in (
        position("Where the answer is read off"),
        option(
            "--first-token",
            is_flag=True,
            help="Take the first token of a target or foil of several tokens instead of refusing it.",
        ),
        option("--foil", type=token_or_id, metavar="TOKEN", help="Explain the target's logit minus this token's."),
        option(
            "--target",
            type=token_or_id,
            metavar="TOKEN",
            help='The token to explain: " Paris", or id:417. A text without a space in front gets one where the model '
            "finds that likelier, which is noted.  [default: the model's own top token]",
        ),
    ):
        command = one(command)
    return command


def at(command: Function) -> Function:
    return option(
        "--at",
        "positions",
        type=int,
        multiple=True,
        metavar="POSITION",
        help="Change neurons at this position of the prompt only (repeatable); -1 is the last.  [default: everywhere]",
    )(command)


def text(command: Function) -> Function:
    """--text and --documents: how a corpus is read, as the library's arguments of it."""
    documents = option(
        "--documents",
        type=click.Choice(DIVISIONS),
        help="What a document of a .txt file is.  [default: paragraph, blank lines separate]",
    )
    return option("--text", default="text", metavar="COLUMN", help="The text's column.")(documents(command))


def shard(of: str) -> Decorator:
    """--shard: a part of a corpus."""
    return option(
        "--shard",
        type=shard_of,
        default="0/1",
        show_default=False,
        metavar="I/N",
        help=f"Only the I-th of N parts{of}.",
    )


def context(default: str = "128, or what the model reads") -> Decorator:
    """--context: the longest sequence."""
    what = f"The longest sequence in tokens, BOS included.  [default: {default}]"
    return option("--context", type=COUNT, metavar="N", help=what)


def settings(what: str) -> Decorator:
    """--set, as ``assigned``: pairs of a name and a value."""
    return option("--set", "assigned", type=name_and_value, multiple=True, metavar="NAME=VALUE", help=what)


def top(what: str, default: int = 20) -> Decorator:
    """--top: how many rows."""
    return option("--top", type=COUNT, default=default, metavar="N", help=what)


def lens(command: Function) -> Function:
    """--lens: how values are read in tokens."""
    return option(
        "--lens",
        default=LENSES[0],
        metavar="LENS",
        help="How values are read in tokens: logit, as they are written; jacobian, as they arrive at the unembedding "
        "on average over a text, by the lens that ffnmem lens made of the model (atlas comes with one); or such a "
        "lens' file.",
    )(command)


def seed(what: str, metavar: str | None = "SEED") -> Decorator:
    """--seed: 0 unless given; without a ``metavar`` the manual shows the type."""
    return option("--seed", type=SEED, default=0, metavar=metavar, help=what)


# What is printed and drawn.


def plot(what: str) -> Decorator:
    """--plot, as the path of a figure that can be written, which is known before any work is done for nothing."""

    def checked(_context: click.Context, _parameter: click.Parameter, file: str | None) -> Path | None:
        if file is None:
            return None
        return read_figure(None, [Token(value=file)])

    return option("--plot", callback=checked, metavar="FILE", help=f"Also draw {what} into FILE: .png, .svg or .pdf.")


def site(what: str, of: str = "") -> Decorator:
    """--site: a site of the model's neurons, to which ``what`` leads; ``of``: what it goes with."""
    said = f"site of the model's neurons (ffnmem report --all), to which {what}."
    return option("--site", metavar="DIR", help=f"{of}: a {said}" if of else f"A {said}")


def json(command: Function) -> Function:
    """--json, which reaches the command as ``form``: "table" or "json"."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON (UTF-8) on standard output, and nothing else.")
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, as_csv: bool = False, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise InputError("--json and --csv exclude each other: give one of them")
        return command(*args, form="json" if as_json else "csv" if as_csv else "table", **kwargs)

    return run


def output(command: Function) -> Function:
    """--json and --csv, which reach the command as ``form``: "table", "json" or "csv"."""
    # A token may be "=" or "@". An apostrophe before it would keep a spreadsheet from running it, and would be another
    # token to everything that reads the column as data.
    csv = click.option(
        "--csv",
        "as_csv",
        is_flag=True,
        help="Print CSV (UTF-8) on standard output, and nothing else. Cells are as they are: a spreadsheet may take "
        "those that begin with =, +, - or @ for formulas, so import them there as text.",
    )
    return json(csv(command))


def full(command: Function) -> Function:
    """--full, for commands whose complete JSON is much longer than their table."""
    what = "With --json: everything, not only what the table shows."
    return click.option("--full", is_flag=True, help=what)(command)
