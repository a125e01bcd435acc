"""``open_corpus``: a file, a folder, texts in memory or a data set of the hub as a stream of documents."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import FileError, InputError, MissingExtraError, quoted
from ..core.files import check_ordinary, user_path
from ..core.foreign import foreign
from ..core.resources import EMBEDDED, embedded_corpus
from ..core.types import DIVISIONS, Division, checked
from .packed import Packed, is_packed, open_packed
from .readers import COMPRESSIONS, READERS, CorpusFile, Document, Problem, Problems, format_of, from_records

# Data sets of the Hugging Face hub, streamed.

HUB = "hf:"
SPLIT = "train"
END = object()


def read_name(source: str) -> tuple[list[tuple[str, str | None]], str]:
    """What ``hf:name``, ``hf:owner/name``, ``hf:owner/name/config`` or ``hf:name/config`` can mean, each as data set
    and configuration, and the split (``:split`` behind it). Raises InputError."""
    name = re.fullmatch(rf"{HUB}(([^\s/:]+)(?:/([^/:]+))?(?:/([^/:]+))?)(?::(.+))?", source)
    if name is None:
        raise InputError(
            f"{quoted(source)} names no data set: write hf:owner/name, hf:owner/name/config or hf:name:split"
        )
    body, first, second, third, split = name.groups()
    if third is not None:
        return [(f"{first}/{second}", third)], split or SPLIT
    # "a/b" may be an owner's data set, or a configuration of one without owner
    return [(body, None), *([(first, second)] if second is not None else [])], split or SPLIT


def open_hub(source: str, column: str) -> Callable[[Problems], Iterator[Document]]:
    """A reader of a data set. The hub is asked now, the texts come later.

    Raises:
        InputError: no such name can be. MissingExtraError: ``datasets`` is not installed. FileError: the hub has no
            such data set, or cannot be reached.
    """
    choices, split = read_name(source)
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(f"{quoted(source)} needs the package datasets: pip install 'ffnmem[hf]'") from None
    with foreign(FileError, f"{source} cannot be opened"):
        known = [(path, config) for path, config in choices if is_on_hub(path)]
        if not known:
            raise FileError(f"{source}: the Hugging Face hub has no such data set")
        # Version 4 and later never run code of a data set's own, so there is nothing to switch off.
        stream = datasets.load_dataset(*known[0], split=split, streaming=True)

    def records() -> Iterator[tuple[int, Any]]:
        iterator, number = iter(stream), 0
        while True:
            number += 1
            with foreign(FileError, f"{source} broke off at record {number}"):
                record = next(iterator, END)
            if record is END:
                return
            yield number, record

    return lambda problems: from_records(records(), column, source, problems, FileError)


def is_on_hub(path: str) -> bool:
    """Whether the hub has a data set, in one short question, where ``datasets`` would retry for long."""
    import huggingface_hub

    try:
        huggingface_hub.HfApi().dataset_info(path, timeout=15)
    except huggingface_hub.errors.RepositoryNotFoundError:
        return False
    return True


READING = 2  # goes up when the same bytes become other documents
GLOB = "*?["
SOURCES = (
    f"give a file, a folder, a pattern, {' or '.join(map(repr, EMBEDDED))} or 'hf:name'; "
    "texts themselves go into a list"
)


class Corpus:
    """Documents, one at a time. Made by :func:`open_corpus`; iterate it as often as its source allows.

    Attributes:
        name: of the source, without its folder.
        files: the files that it reads, in order; empty for other sources.
        repeatable: whether it can be read more than once. An iterator cannot.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[Problems], Iterator[Document]],
        files: Sequence[CorpusFile] = (),
        repeatable: bool = True,
    ) -> None:
        self.name, self.files, self.repeatable = name, tuple(file.path for file in files), repeatable
        self._read, self._files = read, tuple(files)
        self._problems: Problems | None = None

    def __iter__(self) -> Iterator[Document]:
        if self._problems is not None and not self.repeatable:
            raise InputError(f"{self.name} can be read once only, and was: give a list, or pack it into a folder")
        problems = self._problems = Problems()  # each reading counts anew, even beside another
        return self._read(problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was wrong with what the latest reading has passed so far."""
        return () if self._problems is None else self._problems.table()

    def stamp(self) -> str | None:
        """32 hexadecimal digits over the bytes of all files and how they are read, which takes no parsing; None for a
        source that is no file. Raises FileError."""
        if not self._files:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for file in self._files:
            compression = file.path.suffix.lower() if file.path.suffix.lower() in COMPRESSIONS else ""
            how = [READING, file.format, compression, file.division if file.format == ".txt" else file.column]
            digest.update(json.dumps(how).encode())
            try:
                with check_ordinary(file.path).open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest())
            except OSError as error:
                raise FileError(f"{file.path} cannot be read: {error.strerror or error}") from None
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Corpus({quoted(self.name)}" + (f", {len(self.files)} files)" if self.files else ")")


@checked
def open_corpus(source: Any, *, text: str = "text", documents: Division | None = None) -> Corpus | Packed:
    """Open a source of documents. Nothing is read yet, and never more than one document is held.

    Args:
        source: a ``.txt``, ``.jsonl``, ``.csv`` or ``.parquet`` file, each also with ``.gz`` or ``.zst`` (windows up
            to 128 MiB, ``--long=27``) behind it; a folder of them, searched recursively, or a pattern such as
            ``"news/*.jsonl"``, in the order of their names; ``"atlas"``, the bundled corpus;
            ``"hf:owner/name/config:split"``, a data set of the Hugging Face hub, streamed (split ``train`` unless
            given; needs ``pip install 'ffnmem[hf]'``); an iterable of strings, or of mappings with the text column; or
            a folder that :func:`pack` wrote.
        text: the column that holds the text, where there are columns.
        documents: what a document of a ``.txt`` file is: ``"paragraph"`` (default; blank lines separate), ``"line"``
            or ``"file"``.

    Returns:
        A :class:`Corpus`, or for a packed folder a :class:`Packed`. Line ends of ``.txt`` files become line feeds and a
        byte order mark is left out; other problems are counted in ``.problems`` while the corpus is read.

    Raises:
        FileError: nothing there, no file of a known type, and while reading: a file that is broken as a whole, or
            without the text column. InputError: a source or option that cannot be used. MissingExtraError: no
            ``datasets`` for ``hf:``.
    """
    if isinstance(source, Corpus | Packed):
        refuse_options("an opened corpus", text, documents)
        return source
    if isinstance(source, str) and source.startswith(HUB):
        refuse_options("a data set", "text", documents)
        return Corpus(source, open_hub(source, text))
    if isinstance(source, str | Path):
        return open_files(source, text, documents)
    if isinstance(source, bytes | Mapping) or not isinstance(source, Iterable):
        raise InputError(
            f"a {type(source).__name__} is no corpus: give a file, a folder, a pattern, an iterable of strings, "
            "'atlas' or 'hf:name'"
        )
    refuse_options("an iterable", "text", documents)
    name = type(source).__name__
    return Corpus(
        name,
        lambda problems: from_records(enumerate(source, start=1), text, name, problems, InputError),
        repeatable=not isinstance(source, Iterator),
    )


def refuse_options(what: str, text: str, documents: Division | None) -> None:
    """Raise InputError for options that would do nothing."""
    if documents is not None:
        raise InputError(
            f"documents={quoted(documents)} says what a document of a .txt file is; {what} has its own documents"
        )
    if text != "text":
        raise InputError(f"text={quoted(text)} names a column; {what} has none to choose")


def open_files(source: str | Path, text: str, documents: Division | None) -> Corpus | Packed:
    """A file, a folder or a pattern."""
    if isinstance(source, str) and source in EMBEDDED:
        path = embedded_corpus(source)
        refuse_options("the bundled corpus", text, documents)
        return of_files(source, [(path, path.name)], text, documents)
    try:
        path = user_path(source)
    except FileError as error:
        raise FileError(f"no corpus: {error}; {SOURCES}") from None
    if not path.exists():
        if any(character in str(path) for character in GLOB):
            return of_files(path.name, matching(str(path)), text, documents, searched=str(source))
        raise FileError(f"no corpus at {quoted(str(source))}: {SOURCES}")
    if path.is_dir() and is_packed(path):
        refuse_options("a packed corpus", text, documents)
        return open_packed(path)
    if path.is_dir():
        return of_files(path.name or str(path), files_below(path), text, documents, searched=str(source))
    if format_of(path) is None:
        raise FileError(f"{source} is no corpus file: {known_formats()}")
    return of_files(path.name, [(check_ordinary(path, str(source)), path.name)], text, documents)


def of_files(
    name: str, paths: Sequence[tuple[Path, str]], text: str, documents: Division | None, searched: str = ""
) -> Corpus:
    """The corpus of the ordinary files of a known format among the paths; the others are counted."""
    kinds_of = [(path, shown, format_of(path) if path.is_file() else None) for path, shown in paths]
    known = [(path, shown, kind) for path, shown, kind in kinds_of if kind is not None]
    others = [shown for _, shown, kind in kinds_of if kind is None]
    if not known:
        count = f"only {len(others)} files of other types" if others else "no file"
        raise FileError(f"{searched} has {count}: {known_formats()}")
    kinds = {kind for _, _, kind in known}
    if documents is not None and ".txt" not in kinds:
        refuse_options(f"a {' or '.join(sorted(kinds))} file", "text", documents)
    if kinds == {".txt"}:
        refuse_options("a .txt file", text, None)
    files = [CorpusFile(path, shown, kind, text, documents or DIVISIONS[0]) for path, shown, kind in known]

    def read(problems: Problems) -> Iterator[Document]:
        for other in others:
            problems.add("skipped_file", other)
        for file in files:
            yield from file.read(problems)

    return Corpus(name, read, files)


def files_below(folder: Path) -> list[tuple[Path, str]]:
    """Every file in a folder and below, with its path from there, by which they are ordered."""
    try:
        found = [(path, path.relative_to(folder).as_posix()) for path in folder.rglob("*") if not path.is_dir()]
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(found, key=lambda pair: pair[1])


def matching(pattern: str) -> list[tuple[Path, str]]:
    """Every file that a pattern names, and those below the folders that it names, in the order of their names."""
    found: dict[Path, str] = {}
    for match in map(Path, glob.glob(pattern, recursive=True)):  # noqa: PTH207 (a Path's takes no absolute pattern)
        if match.is_dir():
            found.update({path: str(match / below) for path, below in files_below(match)})
        else:
            found[match] = str(match)
    return sorted(found.items(), key=lambda pair: pair[1])


def known_formats() -> str:
    return f"give {', '.join(READERS)}, each also with {' or '.join(COMPRESSIONS)} behind it"
