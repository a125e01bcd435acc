"""Arrays on disk whose every part can be checked before it is believed."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..checked_files import check_regular
from ..errors import FileError, OutOfRangeError

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
