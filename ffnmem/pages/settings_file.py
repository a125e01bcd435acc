"""Reports by a settings file, for those that are written every night: prompts, neurons and facts in some formats."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from .._version import __version__
from ..core.errors import InputError, check_text, listed, perhaps, quoted
from ..core.files import check_ordinary, user_path, workspace, writing
from ..core.folders import Kind, claimed, locked
from ..core.json_values import plain
from ..core.neuron_names import read_neuron
from ..core.progress import Progress
from ..core.resources import EMBEDDED
from ..core.sheets import Sheet, Span, Table, line
from ..core.types import checked
from ..models.configs import means_path
from ..models.gguf import SUFFIX
from ..models.loading import load
from ..models.model import Model
from ..models.turns import in_turn
from ..prompts.attribution import attribute
from ..prompts.captures import capture
from ..scanning.store import Store, open_store
from ..show.records import csv_text
from ..show.result import Result
from ..tracing.tracing import trace_fact
from .links import INDEX, to_site
from .neuron_pages import neurons
from .prompts import prompt_html
from .rendering import Section, page_html, sheet_html

Format = Literal["html", "json", "csv", "md"]
FORMATS = get_args(Format)
REPORTS = Kind("reports.json", "ffnmem reports", 1, "the reports")
FILES = "files"  # of the manifest: what earlier reports wrote
OWN = tuple(Path(name).stem for name in (INDEX, REPORTS.manifest))


def check_filled(text: str) -> str:
    """The text; raises ValueError for one of nothing but spaces."""
    if not text.strip():
        raise ValueError("it is empty")
    return text


def read_name(name: Any) -> tuple[int, Any]:
    """Layer and neuron of a name; raises InputError, which is a ValueError."""
    return read_neuron(check_text("a neuron's name", name))


Text = Annotated[str, AfterValidator(check_filled)]
FileName = Annotated[str, Field(pattern=r"^[\w-]{1,60}$")]
NeuronPlace = Annotated[tuple[int, Any], BeforeValidator(read_name)]
Writers = dict[str, Callable[[Path], object]]
"""What writes a report in each format."""


class PartSettings(BaseModel, extra="forbid", strict=True):
    """What is reported of a prompt. ``name``: of its files."""

    prompt: Text
    target: Text | None = None
    name: FileName = ""


class PromptSettings(PartSettings):
    """A prompt to report."""

    foil: Text | None = None


class FactSettings(PartSettings):
    """A fact to trace."""

    subject: Text


class ReportSettings(BaseModel, extra="forbid", strict=True):
    """What a settings file asks for; paths are from the file's folder."""

    out: Text
    model: Text = "atlas"
    store: Text | None = None
    site: Text | None = None
    formats: list[Format] = Field(["html"], min_length=1)
    top: int = Field(20, ge=1)
    neurons: list[NeuronPlace] = []
    prompts: list[PromptSettings] = []
    facts: list[FactSettings] = []

    @model_validator(mode="after")
    def check_together(self) -> ReportSettings:
        """Name what has no name; raises ValueError where there is nothing to write, or parts do not fit each other."""
        for number, prompt in enumerate(self.prompts, 1):
            prompt.name = prompt.name or f"prompt-{number}"
        for number, fact in enumerate(self.facts, 1):
            fact.name = fact.name or f"fact-{number}"
        names = [part.name.lower() for part in (*self.prompts, *self.facts)] + ["neurons"] * bool(self.neurons)
        if not names:
            raise ValueError("it asks for nothing: give it neurons, [[prompts]] or [[facts]]")
        if self.neurons and self.store is None:
            raise ValueError("neurons are of a store: give store, the folder that ffnmem scan wrote")
        for name in names:
            if name in OWN:
                raise ValueError(f"the name {quoted(name)} is that of a file of the reports' own: choose another")
            if names.count(name) > 1:
                raise ValueError(f"the name {quoted(name)} is there twice: each names files of its own")
        return self


def read_settings(path: str | Path) -> ReportSettings:
    """What a settings file (TOML) asks for, its paths absolute.

    Raises: FileError: a file that cannot be read. InputError: no TOML, an unknown or missing key, or a value of another
    kind, named with what would be right.
    """
    file = check_ordinary(user_path(path), path)
    try:
        given = tomllib.loads(file.read_text("utf-8"))
        settings = ReportSettings.model_validate(given)
    except ValidationError as error:
        raise InputError(f"{path}: {describe_mistake(error)}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no TOML: {error}") from None
    folder = file.resolve().parent
    paths = {
        name: str(folder / user_path(way)) for name in ("out", "store", "site") if (way := getattr(settings, name))
    }
    return settings.model_copy(update={**paths, "model": model_beside(folder, settings.model)})


def describe_mistake(error: ValidationError) -> str:
    """What is wrong in a settings file, the unknown keys first, in one line."""
    mistake = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    *outer, key = mistake["loc"] or ("",)
    kinds: dict[object, type[BaseModel]] = {"prompts": PromptSettings, "facts": FactSettings}
    keys = list(kinds.get(outer[0] if outer else "", ReportSettings).model_fields)
    where = f"[[{outer[0]}]] number {int(outer[1]) + 1}: " if len(outer) > 1 else f"{outer[0]}: " if outer else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"{where}unknown key {quoted(key)}{perhaps(str(key), keys)}: it takes {listed(keys, 20)}"
        case "missing":
            return f"{where}{key} is missing: it takes {listed(keys, 20)}"
        case "value_error":
            return f"{where}{f'{key}: ' if key != '' else ''}{mistake['ctx']['error']}"
    return f"{where}{key}: {mistake['msg']}, not {quoted(mistake['input'])}"


def model_beside(folder: Path, given: str) -> str:
    """A model as :func:`ffnmem.load` takes it: of a path, from ``folder``; a name or a hub id as it is, unless
    something of that name lies there."""
    path = folder / user_path(given)
    meant = means_path(given) or given.lower().endswith(SUFFIX)
    return str(path) if given not in EMBEDDED and (meant or path.exists()) else given


@checked
@in_turn
def reports(settings: str | Path, *, progress: Progress | None = None) -> Path:
    """Write the reports that a settings file asks for into its folder.

    The file is TOML: ``out`` (the folder) and at least one of ``neurons`` (names, of ``store``), ``[[prompts]]``
    (``prompt``, and ``target``, ``foil``, ``name``) and ``[[facts]]`` to trace (``prompt``, ``subject``, and
    ``target``, ``name``); and ``model``, ``site``, ``formats`` (of html, json, csv and md) and ``top``. Paths are from
    the file's folder, that of a model too. A prompt becomes ``NAME.html`` and so on, all neurons ``neurons.html``, and
    ``index.html`` leads to all.

    Everything is made before anything is replaced; then each file is replaced whole, ``index.html`` last, and what an
    earlier run wrote and this one does not is removed.

    Args:
        settings: the file.
        progress: called as ("reports", done, all).

    Returns: The folder written.

    Raises:
        InputError: an unknown or missing key, or a value of another kind, named with what would be right; a neuron,
            target or fact that cannot be reported. FileError: a file that cannot be read, or a folder that cannot be
            written or holds something else.
    """
    asked = read_settings(settings)
    with claimed(Path(asked.out), REPORTS) as folder, locked(folder, "the reports"), workspace(folder) as (_, made):
        names = write_reports(asked, made, progress)  # as deep as the folder, so that links lead on from there
        replace_files(folder, made, names, str(settings))
    return folder


def write_reports(settings: ReportSettings, folder: Path, progress: Progress | None) -> list[str]:
    """Each file, written into a folder beside the one where it will lie; their names."""
    model: Any = load(settings.model) if settings.prompts or settings.facts else None  # there where it is needed
    store: Any = None if settings.store is None else open_store_with(settings.store, model)
    parts: list[tuple[str, str, str, Callable[[], Writers]]] = []
    for prompt in settings.prompts:
        parts.append(("prompt", prompt.prompt, prompt.name, partial(prompt_writers, prompt, settings, model)))
    if settings.neurons:
        names = ", ".join(f"{layer}.{neuron}" for layer, neuron in settings.neurons)
        parts.append(("neurons", names, "neurons", partial(neuron_writers, settings.neurons, store)))
    for fact in settings.facts:
        parts.append(("fact", fact.prompt, fact.name, partial(fact_writers, fact, model)))
    entries: list[tuple[str, str, list[str]]] = []
    for kind, words, name, prepare in parts:
        writers = prepare()
        for form in settings.formats:
            writers[form](folder / f"{name}.{form}")
        entries.append((kind, words, [f"{name}.{form}" for form in settings.formats]))
        if progress is not None:
            progress("reports", len(entries), len(parts))
    written = [name for _, _, names in entries for name in names]
    if "html" not in settings.formats:
        return written
    about = {"model": settings.model, "ffnmem": __version__}
    records = [{"what": kind, "of": words, "files": line(*file_links(names))} for kind, words, names in entries]
    sections = [Section("", Sheet.of(Table.of(records)))]
    (folder / INDEX).write_text(page_html(f"Reports on {settings.model}", sections, about), "utf-8")
    return [*written, INDEX]


def file_links(names: Sequence[str]) -> Iterator[Span | str]:
    """Links to files beside each other."""
    for name in names:
        yield Span(name, link=name)
        yield " "


def prompt_writers(prompt: PromptSettings, settings: ReportSettings, model: Model) -> Writers:
    """What writes the report of a prompt."""
    captured = capture(model, prompt.prompt)
    attribution = attribute(captured, prompt.target, prompt.foil)

    def page(path: Path) -> str:
        return prompt_html(
            captured, attribution, top=settings.top, links=to_site(settings.site, path, model.fingerprint)
        )

    return result_writers(attribution, page)


def fact_writers(fact: FactSettings, model: Model) -> Writers:
    """What writes the trace of a fact."""
    trace = trace_fact(model, fact.prompt, fact.subject, target=fact.target)
    return result_writers(
        trace, lambda _path: sheet_html(trace.sheet(), f"Where {fact.subject} is recalled: {fact.prompt}")
    )


def neuron_writers(places: list[tuple[int, Any]], store: Store) -> Writers:
    """What writes the cards of neurons."""

    def data(path: Path) -> None:
        cards = [store.neuron(*place).brief() for place in places]
        path.write_text(json_text({"neurons": cards}), "utf-8")

    return {**dict.fromkeys(FORMATS, partial(neurons, store, places)), "json": data}


def open_store_with(folder: str, model: Model | None) -> Store:
    """A store, with the model if it is of that one."""
    store = open_store(folder)
    if model is not None and model.fingerprint == store.fingerprint:
        store.hold(model)
    return store


def result_writers(result: Result, page: Callable[[Path], str]) -> Writers:
    """What writes a result in each format; ``page`` gives its HTML."""
    return {
        "html": lambda path: path.write_text(page(path), "utf-8"),
        "json": lambda path: path.write_text(json_text(result.to_dict(20)), "utf-8"),
        "csv": lambda path: path.write_text(csv_text(result.to_frame()), "utf-8", newline="\n"),
        "md": lambda path: path.write_text(result.to_markdown(), "utf-8"),
    }


def json_text(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def replace_files(folder: Path, made: Path, names: Sequence[str], settings: str) -> None:
    """Put new files in the place of those of an earlier run; raises FileError."""
    before = REPORTS.read_manifest(folder).get(FILES, [])
    about = {"ffnmem": __version__, "settings": settings}
    with writing(folder):
        (folder / INDEX).unlink(missing_ok=True)
        REPORTS.mark(folder, {**about, FILES: sorted({*before, *names})})
        for name in names:
            (made / name).replace(folder / name)
        for name in set(before) - set(names):
            if Path(name).name == name:
                (folder / name).unlink(missing_ok=True)
        REPORTS.mark(folder, {**about, FILES: sorted(names)})
