"""``Packed``: a tokenised corpus on disk. Opened in no time, checked where it is read."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Int64

from ..core.checked_files import Form, check_regular, is_whole, read_json
from ..core.errors import FileError, OutOfRangeError, check_index, counted
from ..core.files import user_folder
from ..core.folders import UNFINISHED, Kind
from ..show.result import Result
from .readers import Problem

# Arrays on disk whose every part can be checked before it is believed.

CHUNK = 1 << 20  # bytes that share one checksum


def file_record(path: Path, dtype: np.dtype[Any]) -> dict[str, Any]:
    """What is needed to read a file of one array again: size in bytes, dtype, the CRC-32 of every CHUNK bytes."""
    with path.open("rb") as file:
        checksums = [zlib.crc32(part) for part in iter(lambda: file.read(CHUNK), b"")]
    return {"bytes": path.stat().st_size, "dtype": dtype.str, "chunk": CHUNK, "crc32": checksums}


class ArrayFile:
    """One array in a file. What ``read`` returns has been checked; each chunk is checked when it is first touched.

    Args:
        path: the file, of which only the size is looked at here. record: its :func:`file_record`.

    Raises:
        FileError: no such file, or of another size.
    """

    def __init__(self, path: Path, record: Mapping[str, Any]) -> None:
        self.path = path
        self.dtype: np.dtype[Any] = np.dtype(record["dtype"])
        self._length, self._chunk = (record[name] // self.dtype.itemsize for name in ("bytes", "chunk"))
        self._checksums = record["crc32"]
        self._checked = np.zeros(len(self._checksums), bool)
        size = check_regular(path, f"{path} is missing: pack the corpus again")
        if size != record["bytes"]:
            raise FileError(f"{path} has {size:,} bytes and should have {record['bytes']:,}: pack the corpus again")

    def __len__(self) -> int:
        return self._length

    @property
    def map(self) -> np.memmap[Any, Any]:
        """The whole array, mapped and unchecked."""
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(len(self),))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Elements ``start`` to ``stop`` as a new array; raises FileError where the file is not what was written."""
        if not 0 <= start <= stop <= len(self):
            raise OutOfRangeError(f"{start} to {stop} is out of range: {self.path.name} has 0 to {len(self)}")
        first, last = start // self._chunk, -(-stop // self._chunk)
        if start == stop or bool(self._checked[first:last].all()):
            return self._unchecked(start, stop)
        begin = first * self._chunk
        data = self._unchecked(begin, min(last * self._chunk, len(self)))
        for index in range(first, last):
            at = index * self._chunk - begin
            if zlib.crc32(data[at : at + self._chunk].data) != self._checksums[index]:
                size = self._chunk * self.dtype.itemsize
                raise FileError(
                    f"{self.path} is damaged between bytes {index * size:,} and {(index + 1) * size:,} (checksum): "
                    "pack the corpus again"
                )
        self._checked[first:last] = True
        return data[start - begin : stop - begin]

    def verify(self) -> None:
        """Check every chunk, also those that were checked before; raises FileError naming the first bad one."""
        self._checked[:] = False
        for start in range(0, len(self), self._chunk):
            self.read(start, min(start + self._chunk, len(self)))

    def _unchecked(self, start: int, stop: int) -> np.ndarray:
        # Reading, not mapping: mapped pages would stay in this process's resident memory.
        try:
            data = np.fromfile(self.path, self.dtype, stop - start, offset=start * self.dtype.itemsize)
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror or error}") from None
        if len(data) != stop - start:
            raise FileError(f"{self.path} became shorter while it was read: pack the corpus again")
        return data


SCHEMA = 1
MANIFEST = "corpus.json"
TOKENS, DOCUMENTS, COUNTS = "tokens.bin", "documents.bin", "counts.bin"
KIND = "ffnmem corpus"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the packed corpus")
ARRAYS = (TOKENS, DOCUMENTS, COUNTS)
FILES = (*ARRAYS, MANIFEST)
"""All that a packed corpus consists of, what vouches for the rest last."""

FORM = Form(KIND, SCHEMA, "packed corpus: make one with pack (ffnmem pack)", "pack the corpus again")


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
    _files: Mapping[str, ArrayFile]

    no_file = "it is its folder; fm.corpus.open_packed opens that"
    heading = "folder source n_documents n_tokens model tokenizer_hash hash"
    tables: ClassVar = {"problems": "count kind first meaning"}

    @property
    def verdict(self) -> str:
        """How much text there is, and of how much something is wrong."""
        wrong = sum(problem.count for problem in self.problems)
        held = f"{counted(self.n_documents, 'document')} of {self.source}: {counted(self.n_tokens, 'token')}"
        return f"{held}; {counted(wrong, 'problem')} with the text." if wrong else f"{held}."

    def shown_problems(self, top: int | None) -> pd.DataFrame:
        """Each kind of problem, how often it occurs, and where first."""
        found = [problem.to_dict() for problem in self.problems[:top]]
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
        return self._files[TOKENS].read(start, stop)

    def offsets(self, start: int, stop: int) -> Int64[np.ndarray, " n"]:
        """Entries ``start`` to ``stop`` of :attr:`documents`, checked."""
        return self._files[DOCUMENTS].read(start, stop)

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
        FileError: no packed corpus, an unfinished or damaged one, of another version, or of another tokenizer.
    """
    path = user_folder(folder)
    state = read_manifest(path)
    records = {name: state["files"][name] for name in ARRAYS}
    packed = Packed(
        folder=path,
        n_documents=state["documents"],
        n_tokens=state["tokens"],
        problems=tuple(Problem(**record) for record in state["problems"]),
        digest=hashlib.sha256(json.dumps(list(records.values()), sort_keys=True).encode()).hexdigest(),
        _files={name: ArrayFile(path / name, record) for name, record in records.items()},
        **{name: state[name] for name in ("hash", "tokenizer_hash", "model", "source", "vocab", "stamp")},
    )
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
