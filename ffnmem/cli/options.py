"""Types of options, and the options that several commands share, in one wording."""

# No lazy annotations here: modules that extend the dataclasses do not import what they are annotated with.

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, SupportsIndex, TypeVar, dataclass_transform

from cyclopts import Parameter, Token
from cyclopts.validators import Number

import ffnmem as fm

from .._version import __version__
from ..core.errors import InputError, quoted
from ..core.files import user_path, write_whole
from ..core.types import Division, Dtype
from ..show.records import emit
from .guard import note
from .kinds import read_layer, read_neurons, read_token
from .replacing import FIGURE, FIGURES, OWN, PAGE, check_replaceable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..models.model import Model
    from ..prompts.captures import Capture
    from ..scanning.store import Store

Group = TypeVar("Group")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_group(cls: type[Group]) -> type[Group]:
    """Make a class a group of options: a frozen dataclass whose fields are options of every command that has it."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))


# Types of options: each a function of what was typed.

Tokens = Sequence[Token]


def of_one(read: Callable[[str], Any]) -> Callable[[Any, Tokens], Any]:
    """A converter of what is typed once."""
    return lambda _kind, tokens: read(tokens[0].value)


def of_all(read: Callable[[list[str]], Any]) -> Callable[[Any, Tokens], Any]:
    """A converter of all that is typed."""
    return lambda _kind, tokens: read([token.value for token in tokens])


def read_count_or_all(_kind: Any, tokens: Tokens) -> int | None:
    """A number of at least 1, or ``all``, which is None."""
    typed = tokens[0].value
    if typed != "all" and not (typed.isdecimal() and typed.isascii() and int(typed)):
        raise InputError(f"{quoted(typed)} is no number of at least 1, nor all")
    return None if typed == "all" else int(typed)


def read_shard(_kind: Any, tokens: Tokens) -> tuple[int, int]:
    """``i/n``, the i-th of n shards, from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", tokens[0].value.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise InputError(f"{quoted(tokens[0].value)} is no shard: write 0/4 for the first of four, up to 3/4")
    return int(match[1]), int(match[2])


def read_figure(_kind: Any, tokens: Tokens) -> Path:
    """The path of a figure that can be written, which is known before any work is done for nothing."""
    path = user_path(tokens[0].value)
    if path.suffix.lower() not in FIGURES:
        raise InputError(f"{path}: a figure's name ends in {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")
    check_replaceable(str(path), FIGURE)
    return path


def file_to_write(mark: bytes | None) -> Callable[[Any, Tokens], str]:
    """A converter: the name of a file that can be written, by :func:`check_replaceable`."""

    def checked(_kind: Any, tokens: Tokens) -> str:
        check_replaceable(tokens[0].value, mark)
        return tokens[0].value

    return checked


Count = Annotated[int, Parameter(validator=Number(gte=1), metavar="N")]
Prompt = Annotated[str, Parameter(help="A text that ends where the answer begins.")]
Top = Annotated[Count, Parameter(help="How many rows to list.")]
CountOrAll = Annotated[int | None, Parameter(converter=read_count_or_all, metavar="N", n_tokens=1)]
Seed = Annotated[int, Parameter(validator=Number(gte=0), metavar="SEED", help="Of every random choice.")]
BOS = Parameter(negative="--no-prepend-bos")
Full = Annotated[bool, Parameter(help="With --json: everything, not only what the table shows.")]
Position = Annotated[int, Parameter(metavar="POSITION")]
Share = Annotated[float, Parameter(metavar="SHARE")]
Layer = Annotated[int, Parameter(converter=of_one(read_layer), metavar="LAYER")]
Layers = Annotated[list[int], Parameter(converter=of_all(lambda typed: [*map(read_layer, typed)]), metavar="LAYER")]
Neurons = Annotated[
    list[tuple[int, SupportsIndex]],
    Parameter(
        converter=of_all(read_neurons),
        metavar="LAYER.NEURON",
        n_tokens=1,
        help="Neurons as LAYER.NEURON, such as 3.17, or 5.e3.97 in expert 3; several with commas between them.",
    ),
]
AnswerToken = Annotated[str | int, Parameter(converter=of_one(read_token), allow_leading_hyphen=True, metavar="TOKEN")]
Shard = Annotated[tuple[int, int], Parameter(converter=read_shard, metavar="I/N", n_tokens=1, show_default=False)]
Directory = Annotated[str, Parameter(metavar="DIR")]
StoreFolder = Annotated[Directory, Parameter(help="The folder of a scan.")]
Corpus = Annotated[
    str, Parameter(help="What to read, as ffnmem scan takes it; atlas is the corpus that comes with ffnmem.")
]
FactSource = Annotated[str, Parameter(help="atlas (those of the embedded model), or a file of facts.")]
Device = Annotated[
    str,
    Parameter(
        metavar="DEVICE",
        help="Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]",
    ),
]
LensName = Annotated[
    str,
    Parameter(
        metavar="LENS",
        help="How values are read in tokens: logit, as they are written; jacobian, as they arrive at the unembedding "
        "on average over a text, by the lens that ffnmem lens made of the model (atlas comes with one); or such a "
        "lens' file, or a published one (FILE.pt).",
    ),
]


# Files that are written.


Plot = Annotated[
    Path,
    Parameter(converter=read_figure, metavar="FILE", help="Also draw the result into FILE: .png, .svg or .pdf."),
]
Page = Annotated[str, Parameter(converter=file_to_write(PAGE), metavar="FILE")]
EditFile = Annotated[str, Parameter(alias="-o", converter=file_to_write(OWN), metavar="FILE")]
NewFile = Annotated[str, Parameter(converter=file_to_write(None), metavar="FILE")]
"""Names of files that are written only where nothing lies, or an older one of the same kind that we wrote."""


def save_axes(draws: Sequence[Callable[..., "Axes"]], path: Path, columns: int = 0) -> None:
    """Pictures that take ``ax=``, side by side in rows of ``columns``; the file in one go."""
    from ..plots.figures import arrange

    write_figure(arrange(draws, columns), path)


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
class WeightsChoice(ModelChoice):
    """A model whose weights are read in some precision.

    Attributes:
        dtype: Numeric type of the weights.
    """

    dtype: Dtype = "float32"


@option_group
class TextChoice(ModelChoice):
    """A model that reads text in float32.

    Attributes:
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """

    prepend_bos: Annotated[bool | None, BOS] = None


@option_group
class ReaderChoice(TextChoice, WeightsChoice):
    """A model that reads text in some precision."""


@option_group
class PromptChoice(ReaderChoice):
    """A model that a prompt is put to.

    Attributes:
        chat: Ask PROMPT as a user's message, by the model's chat template; the answer is what the model begins with.
    """

    chat: bool = False

    def prompt_text(self, model: "Model", prompt: str) -> str:
        """What the model is to read: the prompt, or with --chat the text of the user's message."""
        from .makers import asked_text

        return asked_text(model, prompt, self.chat)

    def capture(self, prompt: str, **options: Any) -> "Capture":
        """The model's run over a prompt."""
        model = self.load()
        return fm.capture(model, self.prompt_text(model, prompt), **options)


@option_group
class ScannedChoice:
    """The model that a store is a scan of.

    Attributes:
        model: The model that was scanned, if it is no longer where it was. [default: by the store's record]
    """

    model: Annotated[str | None, Parameter(metavar="MODEL")] = None
    device: Device | None = None

    @property
    def named(self) -> bool:
        """Whether the user said which model, or where it runs."""
        return self.model is not None or self.device is not None

    def load(self, store: "Store") -> "Model":
        """The model as it was scanned, by the store's record or by the name that was given."""
        scanned = store.provenance
        return ReaderChoice(
            model=self.model or store.model,
            device=self.device,
            dtype=scanned["dtype"],
            prepend_bos=scanned.get("prepend_bos"),
        ).load()


def note_model(name: str, fingerprint: str) -> None:
    """Say which model a page is of: who forgot --model would take one's numbers for those of another."""
    note(f"model {name} ({fingerprint})")


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
class Answer:
    """Which answer to explain, as the library's arguments of it: ``**vars(answer)``.

    Attributes:
        target: The token to explain: " Paris", or id:417. A text without a space in front gets one where the model
            finds that likelier, which is noted. [default: the model's own top token]
        foil: Explain the target's logit minus this token's.
        first_token: Take the first token alone of a target or foil of several tokens.
        position: Where the answer is read off: 0 is the first token, -1 the last.
    """

    target: AnswerToken | None = None
    foil: AnswerToken | None = None
    first_token: bool = False
    position: Position = -1


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


@option_group
class PlottedOutput(Output):
    """What is printed of a result, and drawn."""

    plot: Plot | None = None

    def emit(
        self,
        result: Any,
        *,
        drawn: Mapping[str, Any] | None = None,
        draws: Callable[[], Sequence[Callable[..., "Axes"]]] | None = None,
        columns: int = 0,
        **printed: Any,
    ) -> None:
        """Print a result as :func:`ffnmem.show.records.emit` does, then draw it where that is asked for.

        All its pictures with the options ``drawn`` of :func:`ffnmem.plots.figure`, or in their place what ``draws``
        gives: functions that draw on ``ax=``, in rows of ``columns``. Without --plot no plotting library is imported.
        """
        emit(result, self.form, **printed)
        if self.plot is not None and draws:
            save_axes(draws(), self.plot, columns)
        elif self.plot is not None:
            from ..plots.figures import figure

            write_figure(figure(result, **(drawn or {})), self.plot)
