"""Types of options, and the options that several commands share, in one wording."""

# No lazy annotations here: modules that extend the dataclasses do not import what they are annotated with.

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, dataclass_transform

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from .._version import __version__
from ..core.errors import InputError
from ..core.files import write_whole
from ..core.types import Division, Dtype
from .guard import note
from .replacing import OWN, check_replaceable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..models.model import Model

Group = TypeVar("Group")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_group(cls: type[Group]) -> type[Group]:
    """Make a class a group of options: a frozen dataclass whose fields are options of every command that has it."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))


# Types of options: each a function of what was typed.

Tokens = Sequence[Token]


def file_to_write(mark: bytes | None) -> Callable[[Any, Tokens], str]:
    """A converter: the name of a file that can be written, by :func:`check_replaceable`."""

    def checked(_kind: Any, tokens: Tokens) -> str:
        check_replaceable(tokens[0].value, mark)
        return tokens[0].value

    return checked


Count = Annotated[int, Parameter(validator=Number(gte=1), metavar="N")]
Seed = Annotated[int, Parameter(validator=Number(gte=0), metavar="SEED", help="Of every random choice.")]
BOS = Parameter(negative="--no-prepend-bos")
Corpus = Annotated[
    str, Parameter(help="What to read, as ffnmem scan takes it; atlas is the corpus that comes with ffnmem.")
]
Device = Annotated[
    str,
    Parameter(
        metavar="DEVICE",
        help="Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]",
    ),
]


# Files that are written.


EditFile = Annotated[str, Parameter(alias="-o", converter=file_to_write(OWN), metavar="FILE")]
NewFile = Annotated[str, Parameter(converter=file_to_write(None), metavar="FILE")]
"""Names of files that are written only where nothing lies, or an older one of the same kind that we wrote."""


def write_figure(figure: "Figure", path: Path) -> None:
    """Write a figure that says what drew it: only such a one is ever replaced."""
    buffer, form = io.BytesIO(), path.suffix[1:].lower()
    said = {"Software" if form == "png" else "Creator": f"ffnmem {__version__}"}
    figure.savefig(buffer, format=form, dpi=150, metadata=said)
    write_whole(path, buffer.getvalue())
    note(f"wrote {path}")


# The model.


@option_group
class ModelChoice:
    """Which model the user asked for, and where it runs.

    Attributes:
        model: Which one: atlas (embedded, offline), smollm2 (which "get" gets), a folder in Hugging Face layout, a
            .gguf file, or a Hugging Face id such as gpt2.
    """

    model: Annotated[str, Parameter(metavar="MODEL")] = "atlas"
    device: Device | None = None

    def load(self) -> "Model":
        """The model, with a spinner on standard error while it loads if that is a terminal."""
        from .makers import read_model

        # A command that reads no text loads models without a beginning-of-sequence token too.
        dtype: Dtype = getattr(self, "dtype", "float32")
        bos = getattr(self, "prepend_bos", False)
        return read_model(self.model, self.device, dtype, bos)


@option_group
class TextChoice(ModelChoice):
    """A model that reads text in float32.

    Attributes:
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """

    prepend_bos: Annotated[bool | None, BOS] = None


# The corpus.


@option_group
class CorpusText:
    """What is read of a corpus' files, as the library's arguments of it.

    Attributes:
        text: The text's column.
        documents: What a document of a .txt file is. [default: paragraph, blank lines separate]
    """

    text: Annotated[str, Parameter(metavar="COLUMN")] = "text"
    documents: Division | None = None


@option_group
class CorpusReading(CorpusText):
    """How a model reads a corpus, as the library's arguments of it.

    Attributes:
        context: The longest sequence in tokens, BOS included. [default: 128, or what the model reads]
    """

    context: Count | None = None


# What is asked about, and what is printed.


@option_group
class Json:
    """Data in place of a table.

    Attributes:
        json: Print JSON (UTF-8) on standard output, and nothing else.
    """

    json: bool = False
    csv = False

    def __post_init__(self) -> None:
        if self.json and self.csv:
            raise InputError("--json and --csv exclude each other: give one of them")

    @property
    def form(self) -> Literal["json", "csv", "table"]:
        """What is printed."""
        return "json" if self.json else "csv" if self.csv else "table"


@option_group
class Output(Json):
    """Data in place of a table, for results that have a main table.

    Attributes:
        csv: Print CSV (UTF-8) on standard output, and nothing else. Cells are as they are: a spreadsheet may take
            those that begin with =, +, - or @ for formulas, so import them there as text.
    """

    # A token may be "=" or "@". An apostrophe before it would keep a spreadsheet from running it, and would be another
    # token to everything that reads the column as data.
    csv: bool = False
