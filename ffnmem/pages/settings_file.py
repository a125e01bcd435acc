"""Reports by a settings file, for those that are written every night: prompts, neurons and facts in some formats."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._version import __version__
from ..core.errors import InputError, check_choice, listed, perhaps, quoted
from ..core.files import check_ordinary, user_path, workspace, writing
from ..core.folders import Kind, claimed, locked
from ..core.json_values import plain
from ..core.neuron_names import read_neuron
from ..core.progress import Progress
from ..core.resources import EMBEDDED
from ..core.types import checked
from ..models.configs import means_path
from ..models.gguf import SUFFIX
from ..models.loading import load
from ..models.model import Model
from ..models.turns import in_turn
from ..prompts.attribution import attribute
from ..prompts.captures import capture
from ..scanning.store import Store, open_store
from ..show.markdown import markdown
from ..show.records import csv_text
from ..show.result import Result
from ..tracing.tracing import trace_fact
from .links import INDEX, to_site
from .neuron_pages import neurons
from .prompts import prompt_html
from .rendering import render

FORMATS = ("html", "json", "csv", "md")
REPORTS = Kind("reports.json", "ffnmem reports", 1, "the reports")
FILES = "files"  # of the manifest: what earlier reports wrote
OWN = tuple(Path(name).stem for name in (INDEX, REPORTS.manifest))
LONGEST_NAME = 60  # characters: file systems take 255 bytes


@dataclass(frozen=True)
class Asked:
    """A prompt of the file, or a fact to trace. ``name``: of its files."""

    name: str
    prompt: str
    target: str | None = None
    foil: str | None = None
    subject: str | None = None


@dataclass(frozen=True)
class Settings:
    """What a settings file asks for; paths are made absolute from the file's folder."""

    out: Path
    model: str = "atlas"
    store: Path | None = None
    site: Path | None = None
    formats: tuple[str, ...] = ("html",)
    top: int = 20
    neurons: tuple[tuple[int, int], ...] = ()
    prompts: tuple[Asked, ...] = ()
    facts: tuple[Asked, ...] = ()


KEYS: Mapping[str, type] = {
    "out": str, "model": str, "store": str, "site": str, "formats": list, "top": int, "neurons": list, "prompts": list,
    "facts": list,
}  # fmt: skip
OF_PROMPT: Mapping[str, type] = dict.fromkeys(("prompt", "target", "foil", "name"), str)
OF_FACT: Mapping[str, type] = dict.fromkeys(("prompt", "subject", "target", "name"), str)
KINDS = {str: "a text", int: "a whole number", list: "a list"}


def read_settings(path: str | Path) -> Settings:
    """What a settings file (TOML) asks for.

    Raises: FileError: a file that cannot be read. InputError: no TOML, an unknown or missing key, or a value of another
    kind, named with what would be right.
    """
    file = check_ordinary(user_path(path), path)
    try:
        given = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be read") from None
    check_table(str(path), given, KEYS, ("out",))
    beside = file.resolve().parent

    def place(name: str) -> Path | None:
        return beside / user_path(given[name]) if name in given else None

    formats = tuple(check_choice(f"{path}: formats", one, FORMATS) for one in given.get("formats", ["html"]))
    names = given.get("neurons", [])
    for name in names:
        check_kind(f"{path}: neurons", name, str)
    found = Settings(
        out=beside / user_path(given["out"]),
        model=model_beside(beside, given.get("model", Settings.model)),
        store=place("store"),
        site=place("site"),
        formats=tuple(dict.fromkeys(formats)),
        top=given.get("top", Settings.top),
        neurons=tuple(dict.fromkeys(map(read_neuron, names))),
        prompts=tuple(tables(f"{path}: [[prompts]]", given.get("prompts", []), OF_PROMPT, ("prompt",), "prompt")),
        facts=tuple(tables(f"{path}: [[facts]]", given.get("facts", []), OF_FACT, ("prompt", "subject"), "fact")),
    )
    check_whole(str(path), found)
    return found


def model_beside(folder: Path, given: str) -> str:
    """A model as :func:`ffnmem.load` takes it: of a path, from ``folder``; a name or a hub id as it is, unless
    something of that name lies there."""
    path = folder / user_path(given)
    meant = means_path(given) or given.lower().endswith(SUFFIX)
    return str(path) if given not in EMBEDDED and (meant or path.exists()) else given


def check_whole(where: str, found: Settings) -> None:
    """Raise InputError where there is nothing to write, or parts do not fit each other."""
    if not (found.neurons or found.prompts or found.facts):
        raise InputError(f"{where} asks for nothing: give it neurons, [[prompts]] or [[facts]]")
    if not found.formats:
        raise InputError(f"{where}: formats is empty: choose of {', '.join(FORMATS)}")
    if found.top < 1:
        raise InputError(f"{where}: top must be at least 1, not {found.top}")
    if found.neurons and found.store is None:
        raise InputError(f"{where}: neurons are of a store: give store, the folder that ffnmem scan wrote")
    names = [one.name for one in (*found.prompts, *found.facts)] + ["neurons"] * bool(found.neurons)
    own = next((name for name in names if name.lower() in OWN), None)
    if own is not None:
        raise InputError(f"{where}: the name {quoted(own)} is that of a file of the reports' own: choose another")
    twice = [name for name in names if sum(name.lower() == other.lower() for other in names) > 1]
    if twice:
        raise InputError(f"{where}: the name {quoted(twice[0])} is there twice: each names files of its own")


def check_table(where: str, given: Mapping[str, Any], keys: Mapping[str, type], needed: Sequence[str]) -> None:
    """Raise InputError for unknown or missing keys, and for values of another kind."""
    for key, value in given.items():
        if key not in keys:
            raise InputError(
                f"{where}: unknown key {quoted(key)}{perhaps(key, keys)}: it takes {listed(list(keys), 20)}"
            )
        check_kind(f"{where}: {key}", value, keys[key])
    missing = [key for key in needed if key not in given]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing: it takes {listed(list(keys), 20)}")


def check_kind(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{what} must be {KINDS[kind]}, not {quoted(value)}")
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{what} is empty")


def tables(
    where: str, given: Sequence[Any], keys: Mapping[str, type], needed: Sequence[str], called: str
) -> Iterator[Asked]:
    """The tables of a list, each with the name of its files."""
    for number, one in enumerate(given, 1):
        if not isinstance(one, dict):
            raise InputError(f"{where} must be tables, not {quoted(one)}")
        check_table(f"{where} number {number}", one, keys, needed)
        name = one.get("name", f"{called}-{number}")
        if len(name) > LONGEST_NAME or not re.fullmatch(r"[\w-]+", name):
            raise InputError(
                f"{where} number {number}: name {quoted(name)} names files: letters, digits, - and _ only, at most "
                f"{LONGEST_NAME} of them"
            )
        yield Asked(**{**one, "name": name})


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
    with claimed(asked.out, REPORTS) as folder, locked(folder, "the reports"), workspace(folder) as (_, room):
        names = list(write_reports(asked, room, progress))  # as deep as the folder, so that links lead on from there
        replace_files(folder, room, names, str(settings))
    return folder


def write_reports(asked: Settings, room: Path, progress: Progress | None) -> Iterator[str]:
    """Each file, written into a folder beside the one where it will lie; its name."""
    model = load(asked.model) if asked.prompts or asked.facts else None
    store = None if asked.store is None else opened(asked.store, model)
    entries: list[tuple[str, str, list[str]]] = []
    total = len(asked.prompts) + len(asked.facts) + bool(asked.neurons)

    def done(kind: str, what: str, names: list[str]) -> list[str]:
        entries.append((kind, what, names))
        if progress is not None:
            progress("reports", len(entries), total)
        return names

    for one in asked.prompts:
        assert model is not None
        yield from done("prompt", one.prompt, prompt_files(model, one, asked, room))
    if asked.neurons and store is not None:
        words = ", ".join(f"{layer}.{neuron}" for layer, neuron in asked.neurons)
        yield from done("neurons", words, neuron_files(store, asked, room))
    for one in asked.facts:
        assert model is not None
        assert one.subject is not None
        trace = trace_fact(model, one.prompt, one.subject, target=one.target)
        page = partial_page(trace, f"Where {one.subject} is recalled: {one.prompt}")
        yield from done("fact", one.prompt, result_files(trace, one.name, asked.formats, room, page))
    if "html" in asked.formats:
        about = {"model": asked.model, "ffnmem": __version__}
        (room / INDEX).write_text(render("reports.html", entries=entries, provenance=about), "utf-8")
        yield INDEX


def opened(folder: Path, model: Model | None) -> Store:
    """A store, with the model if it is of that one."""
    store = open_store(folder)
    if model is not None and model.fingerprint == store.fingerprint:
        store.hold(model)
    return store


def prompt_files(model: Model, one: Asked, asked: Settings, room: Path) -> list[str]:
    """The files of a prompt."""

    captured = capture(model, one.prompt)
    attribution = attribute(captured, one.target, one.foil)

    def page(path: Path) -> None:
        links = to_site(asked.site, path, model.fingerprint)
        path.write_text(prompt_html(captured, attribution, top=asked.top, links=links), "utf-8")

    return result_files(attribution, one.name, asked.formats, room, page)


def partial_page(found: Result, title: str) -> Callable[[Path], None]:
    """What writes the sheet of a result as a page."""

    def page(path: Path) -> None:
        origin = found.to_dict()["provenance"]
        path.write_text(render("result.html", title=title, sheet=found.sheet(), provenance=origin), "utf-8")

    return page


def result_files(
    found: Result, name: str, formats: Sequence[str], room: Path, page: Callable[[Path], None]
) -> list[str]:
    """A result in some formats; ``page`` writes its HTML."""
    for form in formats:
        path = room / f"{name}.{form}"
        if form == "html":
            page(path)
        elif form == "json":
            path.write_text(json_text(found.to_dict(20)), "utf-8")
        elif form == "csv":
            path.write_text(csv_text(found.to_frame()), "utf-8", newline="\n")
        else:
            path.write_text(markdown(found.sheet()), "utf-8")
    return [f"{name}.{form}" for form in formats]


def neuron_files(store: Store, asked: Settings, room: Path) -> list[str]:
    """The files of the neurons."""
    for form in asked.formats:
        path = room / f"neurons.{form}"
        if form == "json":
            cards = [store.neuron(*place).brief() for place in asked.neurons]
            path.write_text(json_text({"neurons": cards}), "utf-8")
        else:
            neurons(store, asked.neurons, path)
    return [f"neurons.{form}" for form in asked.formats]


def json_text(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def replace_files(folder: Path, made: Path, names: Sequence[str], settings: str) -> None:
    """Put new files in the place of those of an earlier run; raises FileError."""
    before = REPORTS.read_manifest(folder).get(FILES, [])
    with writing(folder):
        (folder / INDEX).unlink(missing_ok=True)
        REPORTS.mark(folder, {"ffnmem": __version__, "settings": settings, FILES: sorted({*before, *names})})
        for name in names:
            (made / name).replace(folder / name)
        for name in set(before) - set(names):
            if Path(name).name == name:
                (folder / name).unlink(missing_ok=True)
        REPORTS.mark(folder, {"ffnmem": __version__, "settings": settings, FILES: sorted(names)})
