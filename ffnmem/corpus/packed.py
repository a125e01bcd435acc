"""``Packed``: a tokenised corpus on disk. Opened in no time, checked where it is read."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from jaxtyping import Int64

from ..core.checked_files import Form, check_regular, is_whole, read_json
from ..core.errors import FileError, OutOfRangeError, check_index
from ..core.files import user_folder
from ..core.folders import UNFINISHED, Kind
from ..core.sheets import Sheet
from ..show.result import Result
from .readers import Problem, problem_table, problems_from

# Arrays on disk whose every part can be checked before it is believed.

CHUNK = 1 << 20  # bytes that share one checksum
SMALL = 1 << 16  # bytes up to which a read keeps the file open for the next


class ChunkedWriter:
    """Writes one array to an open binary file, piece by piece, and keeps the CRC-32 of every CHUNK bytes.

    Raises FileError where the disk takes no more.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self.file, self.dtype = file, dtype
        self.size = 0
        self.checksums: list[int] = []
        self._running = 0

    def write(self, values: np.ndarray) -> None:
        """Append values, which must fit the array's dtype."""
        data = memoryview(values.astype(self.dtype).tobytes())
        self._try(lambda: self.file.write(data))
        while data:
            room = CHUNK - self.size % CHUNK
            part, data = data[:room], data[room:]
            self._running = zlib.crc32(part, self._running)
            self.size += len(part)
            if self.size % CHUNK == 0:
                self._finish_chunk()

    def record(self) -> dict[str, Any]:
        """What is needed to read the file again: size in bytes, dtype, checksums. Call it once, at the end."""
        if self.size % CHUNK:
            self._finish_chunk()
        self._try(self.file.flush)
        return {"bytes": self.size, "dtype": self.dtype.str, "chunk": CHUNK, "crc32": self.checksums}

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            raise FileError(f"cannot write {self.file.name}: {error.strerror or error}") from None

    def _finish_chunk(self) -> None:
        self.checksums.append(self._running)
        self._running = 0


class ChunkedFile:
    """One array in a file. What ``read`` returns has been checked; each chunk is checked when it is first touched.

    Args:
        path: the file, of which only the size is looked at here.
        record: what :meth:`ChunkedWriter.record` gave.

    Raises:
        FileError: no such file, or of another size.
    """

    def __init__(self, path: Path, record: Mapping[str, Any]) -> None:
        self.path = path
        self.dtype: np.dtype[Any] = np.dtype(str(record["dtype"]))
        self._bytes, self._chunk = int(record["bytes"]), int(record["chunk"])
        self._checksums = np.array(record["crc32"], dtype=np.uint32)
        self._good = np.zeros(len(self._checksums), dtype=bool)
        if len(self._checksums) != -(-self._bytes // self._chunk) or {
            self._chunk % self.dtype.itemsize,
            self._bytes % self.dtype.itemsize,
        } != {0}:
            raise FileError(f"{path}: the checksums in corpus.json do not fit its size: pack the corpus again")
        found = check_regular(path, f"{path} is missing: pack the corpus again")
        if found != self._bytes:
            raise FileError(f"{path} has {found:,} bytes and should have {self._bytes:,}: pack the corpus again")

    def __len__(self) -> int:
        return self._bytes // self.dtype.itemsize

    @cached_property
    def _descriptor(self) -> int:
        """The file, opened once for many small reads."""
        descriptor = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @property
    def map(self) -> np.memmap[Any, Any]:
        """The whole array, mapped and unchecked."""
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(len(self),))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Elements ``start`` to ``stop`` as a new array; raises FileError where the file is not what was written."""
        if not 0 <= start <= stop <= len(self):
            raise OutOfRangeError(f"{start} to {stop} is out of range: {self.path.name} has 0 to {len(self)}")
        # Reading, not mapping: mapped pages would stay in this process's resident memory.
        item = self.dtype.itemsize
        first, last = start * item // self._chunk, -(-stop * item // self._chunk)
        if start == stop or bool(self._good[first:last].all()):
            return self._raw(start * item, stop * item).view(self.dtype)
        data = self._raw(first * self._chunk, min(last * self._chunk, self._bytes))
        self._check(data, first, last)
        begin = start * item - first * self._chunk
        return data[begin : begin + (stop - start) * item].view(self.dtype)

    def verify(self) -> None:
        """Check every chunk, also those that were checked before; raises FileError naming the first bad one."""
        for index in range(len(self._checksums)):
            start = index * self._chunk
            self._check(self._raw(start, min(start + self._chunk, self._bytes)), index, index + 1)

    def _raw(self, start: int, stop: int) -> np.ndarray:
        try:
            if stop - start <= SMALL and hasattr(os, "pread"):
                data = np.frombuffer(os.pread(self._descriptor, stop - start, start), np.uint8).copy()
            else:
                data = np.fromfile(self.path, dtype=np.uint8, count=stop - start, offset=start)
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror or error}") from None
        if len(data) != stop - start:
            raise FileError(f"{self.path} became shorter while it was read: pack the corpus again")
        return data

    def _check(self, data: np.ndarray, first: int, last: int) -> None:
        for index in range(first, last):
            part = data[(index - first) * self._chunk : (index - first + 1) * self._chunk]
            if zlib.crc32(part.data) != self._checksums[index]:
                raise FileError(
                    f"{self.path} is damaged between bytes {index * self._chunk:,} and "
                    f"{min((index + 1) * self._chunk, self._bytes):,} (checksum): pack the corpus again"
                )
            self._good[index] = True


SCHEMA = 1
MANIFEST = "corpus.json"
TOKENS, DOCUMENTS, COUNTS = "tokens.bin", "documents.bin", "counts.bin"
KIND = "ffnmem corpus"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the packed corpus")
FILES = {TOKENS: ("<u2", "<u4"), DOCUMENTS: ("<i8",), COUNTS: ("<i8",)}
"""The arrays of a packed corpus, and the types that each may have."""

FORM = Form(
    KIND,
    SCHEMA,
    "packed corpus: make one with pack (ffnmem pack)",
    "pack the corpus again",
)


@dataclass(frozen=True, eq=False, repr=False)
class Packed(Result):
    """A tokenised corpus. Made by :func:`pack`, found again by :func:`open_packed`.

    Attributes:
        folder: where it lies.
        hash: 32 hexadecimal digits over the texts of all documents in order, whatever files they came from.
        tokenizer_hash: of the tokenizer that made the tokens, see :func:`tokenizer_hash`.
        model: the name of the model whose tokenizer that was.
        source: the name of the source, without its folder.
        n_documents, n_tokens: sizes. Documents without tokens count.
        vocab: one more than the highest token id of the tokenizer.
        problems: what was wrong with the source, counted.
        stamp: of the source's files and how they were read, or None if the source was no file.
        digest: of the sizes and checksums of its files: of all that is in them.
    """

    folder: Path
    hash: str
    tokenizer_hash: str
    model: str
    source: str
    n_documents: int
    n_tokens: int
    vocab: int
    problems: tuple[Problem, ...]
    stamp: str | None
    digest: str
    _files: Mapping[str, ChunkedFile]

    no_file = "it is its folder; fm.corpus.open_packed opens that"
    in_json = "n_documents n_tokens model hash tokenizer_hash folder problems"
    in_repr = "folder model n_tokens n_documents"

    def sheet(self) -> Sheet:
        """What it holds, and what was wrong with its source."""
        told = {
            "documents": f"{self.n_documents:,}",
            "tokens": f"{self.n_tokens:,} of {self.model}'s tokenizer",
            "hash": self.hash,
            "folder": str(self.folder),
            "problems": f"{len(self.problems)} kinds" if self.problems else "none",
        }
        return Sheet.of(told, problem_table(self.problems) if self.problems else None)

    def to_frame(self) -> pd.DataFrame:
        """One row a kind of problem: kind, count, first (the place), meaning."""
        found = [problem.to_dict() for problem in self.problems]
        return pd.DataFrame(found, columns=["kind", "count", "first", "meaning"])

    @property
    def tokens(self) -> np.memmap[Any, Any]:
        """All token ids, uint16 or uint32, mapped and unchecked; :meth:`read` is checked."""
        return self._files[TOKENS].map

    @property
    def documents(self) -> np.memmap[Any, Any]:
        """Where documents begin among the tokens: int64 ``[n_documents + 1]``, mapped and unchecked."""
        return self._files[DOCUMENTS].map

    @cached_property
    def token_counts(self) -> Int64[np.ndarray, " vocab"]:
        """How often each token id occurs, special ones too."""
        return self._files[COUNTS].read(0, self.vocab)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` of the corpus in the file's dtype, checked.

        Raises:
            FileError: the file is damaged there. OutOfRangeError: the corpus is shorter.
        """
        found = self._files[TOKENS].read(start, stop)
        if len(found) and int(found.max()) >= self.vocab:
            raise FileError(f"{self.folder / TOKENS} has token {found.max()} of {self.vocab}: pack the corpus again")
        return found

    def offsets(self, start: int, stop: int) -> Int64[np.ndarray, " n"]:
        """Entries ``start`` to ``stop`` of :attr:`documents`, checked."""
        found = self._files[DOCUMENTS].read(start, stop)
        if len(found) and not (found[0] >= 0 and found[-1] <= self.n_tokens and (found[1:] >= found[:-1]).all()):
            raise FileError(f"{self.folder / DOCUMENTS}: its documents are not in order: pack the corpus again")
        return found

    def document(self, number: int) -> np.ndarray:
        """The tokens of one document; raises OutOfRangeError, FileError."""
        index = check_index("document", number, self.n_documents, str(self.folder))
        start, stop = self.offsets(index, index + 2)
        return self.read(int(start), int(stop))

    def verify(self) -> None:
        """Read everything and check it; raises FileError naming what is damaged."""
        for file in self._files.values():
            file.verify()


def open_packed(folder: str | Path, tokenizer_hash: str | None = None) -> Packed:
    """Open a packed corpus. Its small description is checked now, every other part when it is first read.

    Args:
        folder: written by :func:`pack`.
        tokenizer_hash: refuse a corpus that another tokenizer made.

    Raises:
        FileError: no packed corpus, an unfinished or damaged one, of a newer version, or of another tokenizer.
    """
    path = user_folder(folder)
    state = read_manifest(path)
    files = {name: ChunkedFile(path / name, state["files"][name]) for name in FILES}
    packed = Packed(
        folder=path,
        hash=state["hash"],
        tokenizer_hash=state["tokenizer_hash"],
        model=state["model"],
        source=state["source"],
        n_documents=state["documents"],
        n_tokens=state["tokens"],
        vocab=state["vocab"],
        problems=problems_from(state["problems"]),
        stamp=state["stamp"],
        digest=hashlib.sha256(
            json.dumps([state["files"][name] for name in FILES], sort_keys=True).encode()
        ).hexdigest(),
        _files=files,
    )
    sizes = tuple(len(files[name]) for name in FILES)
    if sizes != (packed.n_tokens, packed.n_documents + 1, packed.vocab):
        raise FileError(f"{path / MANIFEST}: its counts do not fit its files: pack the corpus again")
    if tokenizer_hash is not None and tokenizer_hash != packed.tokenizer_hash:
        raise FileError(
            f"{path} was packed with another tokenizer ({packed.model}'s, {packed.tokenizer_hash}, "
            f"and not {tokenizer_hash}): pack the corpus with this model"
        )
    return packed


def is_packed(folder: Path) -> bool:
    """Whether a folder looks like a packed corpus."""
    return (folder / MANIFEST).is_file() and (folder / TOKENS).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What corpus.json says, checked; raises FileError."""
    what = "no finished packed corpus" if folder.is_dir() else "no folder"
    state = read_json(folder / MANIFEST, f"{folder} is {what}: make one with pack (ffnmem pack)", FORM.again)
    if state.get("kind") == KIND and UNFINISHED in state:
        raise FileError(f"{folder} is no finished packed corpus: pack it again")
    return FORM.fit(folder / MANIFEST, state, is_whole)
