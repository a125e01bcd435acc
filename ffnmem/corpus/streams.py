"""Bytes of a corpus file: plain, gzip or zstd, read from front to back and never whole.

Not by fsspec: its zstd stream (2026.9) gives a file that was cut off as a whole one, without a word.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FileError
from ..files import check_ordinary

COMPRESSIONS = (".gz", ".zst")
BLOCK = 1 << 20
INPUT = 1 << 13  # compressed bytes at a time, which can grow ten thousandfold
LONGEST = 1 << 28  # bytes of one line or document; beyond that the file is not what it was taken for
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The decompressed bytes of a file. Errors in the block that come from reading it raise FileError with its name."""
    from zstandard import ZstdError

    try:
        kind = check_ordinary(path).suffix.lower()
        with io.BufferedReader(path.open("rb", buffering=0), BLOCK) as raw:
            if kind not in COMPRESSIONS:
                yield raw
            else:
                plain = gzip.GzipFile(fileobj=raw) if kind == ".gz" else ZstdStream(raw)
                with io.BufferedReader(plain, BLOCK) as stream:
                    yield stream
    except EOFError:
        raise FileError(f"{path} ends before its compressed data do: it was cut off") from None
    except (gzip.BadGzipFile, zlib.error, ZstdError) as error:
        raise FileError(f"{path} cannot be decompressed: {error}") from None
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None


class ZstdStream(io.RawIOBase):
    """Decompressed zstd, frame after frame. The library's own reader does not tell a cut-off file from a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        from zstandard import ZstdDecompressor

        self._raw = raw
        self._decompressor = ZstdDecompressor(max_window_size=1 << 31)  # what zstd --long=31 writes
        self._frame = self._decompressor.decompressobj()
        self._begun = False  # this frame has had input
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._ready:
            rest = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._decompressor.decompressobj(), False
            data = rest or self._raw.read(INPUT)
            if not data:
                if self._begun:
                    raise EOFError
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(data))
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def lines(stream: io.BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Lines with their ends, a byte order mark left out; raises FileError for UTF-16 and for a line without end."""
    first = True
    while line := stream.readline(LONGEST + 1):
        if first:
            if line.startswith(UTF16):
                raise FileError(f"{path} is UTF-16: convert it to UTF-8")
            line, first = line.removeprefix(BOM), False
        if len(line) > LONGEST:
            raise FileError(f"{path} has a line of more than {LONGEST >> 20} MiB, so it is no text of lines")
        yield line


def without_end(line: bytes) -> bytes:
    """A line without its line feed, or carriage return and line feed."""
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line
