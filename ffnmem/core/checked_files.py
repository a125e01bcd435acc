"""Reading files of ours: JSON, and safetensors and Parquet with a header in JSON. All of it is checked before it is
believed, and whatever is wrong is one :class:`FileError` that names the file.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import FileError, quoted
from .files import check_ordinary, readable, replacing
from .foreign import foreign

if TYPE_CHECKING:
    import pyarrow.parquet as pq

COLUMNS = b"ffnmem.columns"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32"}


# -- any file ------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, again: str = "") -> Iterator[None]:
    """A block of calls of a library that reads a file: whatever it raises becomes one line that names the file.

    ``again`` says what can be done about it.
    """
    with foreign(FileError, f"{path} is truncated or damaged", lambda: remedy(again)):
        yield


def remedy(again: str) -> str:
    return f": {again}" if again else ""


def check_regular(path: Path, missing: str = "") -> int:
    """The size of an ordinary file; raises FileError for anything else, which might never end, and for none."""
    if missing and not path.exists():
        raise FileError(missing)
    return check_ordinary(path).stat().st_size


def file_hash(path: Path) -> str:
    """The SHA-256 of a file; raises FileError."""
    check_regular(path)
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- JSON ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What a JSON file, or the header of another file, must be.

    Attributes:
        kind: what it says in its field ``kind``; empty: anything.
        schema: the only one that is read; None: any.
        noun: what it is, with what makes one: ``"store: make one with scan (ffnmem scan)"``.
        again: what to do about a damaged one.
    """

    kind: str
    schema: int | None
    noun: str
    again: str = ""

    def none(self, path: Path, more: str = "") -> FileError:
        """That a file is none of this form, and what makes one."""
        name, _, how = self.noun.partition(": ")
        return FileError(f"{path} is no {name}{more}{remedy(how)}")

    def fit(
        self, path: Path, value: Any, whole_if: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The object if it is of this form, and its checksum says that it is whole; raises FileError.

        What a checksum vouches for was written by us, so its fields are not looked at one by one."""
        if not isinstance(value, dict) or self.kind not in ("", value.get("kind")):
            other = f" but {quoted(value['kind'])}" if isinstance(value, dict) and "kind" in value else ""
            raise self.none(path, other)
        self.check_version(path, value)
        if not whole_if(value):
            raise FileError(f"{path} is damaged: its checksum does not match{remedy(self.again)}")
        return value

    def check_version(self, path: Path, value: Any) -> None:
        """Raise FileError for what another version wrote: its fields may have any meaning."""
        schema = value.get("schema") if isinstance(value, dict) else None
        if isinstance(schema, int) and self.schema is not None and schema != self.schema:
            how = "install a newer one" if schema > self.schema else self.again
            raise FileError(f"{path} has schema {schema}; this version of ffnmem reads {self.schema}{remedy(how)}")


def parsed(path: Path, data: str | bytes, again: str = "") -> Any:
    """JSON as plain values; raises FileError."""
    with foreign(FileError, f"{path} cannot be read", lambda: remedy(again)):
        return json.loads(data)


def read_json(path: Path, missing: str = "", again: str = "") -> dict[str, Any]:
    """The object in a JSON file; raises FileError for anything else."""
    check_regular(path, missing)
    with reading(path):
        data = path.read_bytes()
    found = parsed(path, data, again)
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no JSON object{remedy(again)}")
    return found


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object with a checksum of itself, to be written as JSON."""
    return {**values, "checksum": digest_of(values)}


def digest_of(values: Mapping[str, Any]) -> str:
    """32 hexadecimal digits over an object as JSON has it, whatever the order of its fields, the checksum left out."""
    rest = {name: value for name, value in values.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:32]


def digest(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Sixteen hexadecimal digits that tell plain values from others; ``default`` as json has it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=default).encode()).hexdigest()[:16]


def is_whole(values: Mapping[str, Any]) -> bool:
    """Whether an object has a checksum that is its own."""
    return values.get("checksum") == digest_of(values)


# -- tensors -------------------------------------------------------------------------------------------------------


def array_checksum(array: np.ndarray) -> int:
    """Of an array's type, shape and bytes: a damaged header may give the same bytes another shape."""
    return zlib.crc32(np.ascontiguousarray(array).data, zlib.crc32(f"{array.dtype} {array.shape}".encode()))


def header_entry(header: Mapping[str, Any], **options: Any) -> dict[str, str]:
    """The metadata of a safetensors file with a header in JSON: ``checksums`` (of every array) among its fields.

    One entry: several would be written in an order that changes from run to run.
    """
    text = json.dumps(header, **options)
    return {"ffnmem": f"{zlib.crc32(text.encode()):08x} {text}"}


def saved_class(path: Path) -> str:
    """The class of a result in a file that its ``save`` wrote; empty for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            mark, _, name = archive.comment.decode("utf-8", "replace").partition(": ")
    except (OSError, zipfile.BadZipFile):
        return ""
    return name if mark == "ffnmem result" else ""


class HeadedTensors:
    """A safetensors file with a header in JSON. The header is checked at once, each array when it is read.

    Args:
        path: of the file.
        form: of its header.
        missing: the message where there is no such file.

    Raises: FileError.
    """

    def __init__(self, path: Path, form: Form, missing: str = "") -> None:
        from safetensors import safe_open

        self.path = path
        check_regular(path, missing or f"there is no {path}")
        with reading(path):
            file: Any = safe_open(path, framework="numpy")
            entry = (file.metadata() or {}).get("ffnmem", "")
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            self.shapes = {
                name: (DTYPES.get(view.get_dtype(), view.get_dtype()), tuple(view.get_shape()))
                for name, view in views.items()
            }
        self.file: Any = file
        checked, _, text = entry.partition(" ")
        if not text or checked != f"{zlib.crc32(text.encode()):08x}":
            raise form.none(path, ", or its header is damaged")
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        """Of the header, which has the checksums of all arrays: another file has another one."""
        self.header: Mapping[str, Any] = form.fit(path, parsed(path, text))
        checksums = self.header.get("checksums")
        if not isinstance(checksums, dict) or set(checksums) != set(self.shapes):
            raise FileError(f"{path} is damaged: its arrays are not those that its header has")

    def array(self, name: str) -> np.ndarray:
        """One array, checked, and yours to change; raises FileError."""
        with reading(self.path):
            array: np.ndarray = self.file.get_tensor(name)
        if array_checksum(array) != self.header["checksums"].get(name):
            raise FileError(f"{self.path} is damaged: array {name} does not match its checksum")
        return array


def check_tensors(path: Path) -> None:
    """Read a whole safetensors file of ours, whatever it holds; raises FileError for a damaged one."""
    file = HeadedTensors(path, Form("", None, "file that ffnmem wrote"))
    for name in file.shapes:
        file.array(name)


def write_tensors(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], **options: Any) -> None:
    """Write what :class:`HeadedTensors` reads; it appears whole or not at all. Raises FileError: it cannot be written.

    Args:
        path: of the file.
        header: its fields, to which the arrays' checksums are added.
        arrays: by name.
        options: of the JSON.
    """
    from safetensors.numpy import save_file

    # Not ascontiguousarray, which makes a list of one of a single number.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checksums = {name: array_checksum(array) for name, array in contiguous.items()}
    entry = header_entry({**header, "checksums": checksums}, **options)
    with replacing(path) as temporary:
        save_file(contiguous, temporary, entry)
        readable(temporary)


# -- Parquet -------------------------------------------------------------------------------------------------------


def with_columns(names: Sequence[str], metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The metadata of a table to be written, and the names of its columns, which no checksum of a page covers."""
    return {**metadata, COLUMNS: "\n".join(names).encode()}


def open_parquet(path: Path, missing: str = "", again: str = "") -> pq.ParquetFile:
    """A Parquet file of ours, whose pages are checked when they are read; raises FileError. What is read from it stands
    in a block of :func:`reading`."""
    import pyarrow.parquet as pq

    check_regular(path, missing)
    with reading(path, again):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    metadata = file.schema_arrow.metadata or {}
    names = "\n".join(file.schema_arrow.names).encode(errors="replace")
    if metadata.get(COLUMNS, names) != names:
        raise FileError(f"{path} is damaged: its columns are not those that were written{remedy(again)}")
    return file
