"""Reading files of ours: JSON, and safetensors and Parquet with a header in JSON. All of it is checked before it is
believed, and whatever is wrong is one :class:`FileError` that names the file.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import FileError, quoted
from .files import check_ordinary, readable, replacing
from .foreign import first_line, foreign
from .schemas import Check, Misfit, anything, check_plain, fields, table, whole

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LARGEST = 1 << 28  # bytes of a JSON file of ours; the longest lists the checksums of a packed corpus, 12 bytes a MiB
MARK, PLACE = b"footer sha256:", b"0" * 64
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
        kind: what it says in its field ``kind``.
        newest: the highest ``schema`` that is read.
        check: of its fields.
        noun: what it is, with what makes one: ``"store: make one with scan (ffnmem scan)"``.
        again: what to do about a damaged one.
    """

    kind: str
    newest: int
    check: Check
    noun: str
    again: str = ""

    def none(self, path: Path, more: str = "") -> FileError:
        """That a file is none of this form, and what makes one."""
        name, _, how = self.noun.partition(": ")
        return FileError(f"{path} is no {name}{more}{remedy(how)}")

    def fit(
        self, path: Path, value: Any, whole_if: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The object if it is of this form, and its checksum (if any) says that it is whole; raises FileError."""
        if not isinstance(value, dict) or value.get("kind") != self.kind:
            other = f" but {quoted(value['kind'])}" if isinstance(value, dict) and "kind" in value else ""
            raise self.none(path, other)
        self.check_version(path, value)
        if not whole_if(value):
            raise FileError(f"{path} is damaged: its checksum does not match{remedy(self.again)}")
        self.check_fields(path, value)
        return value

    def check_version(self, path: Path, value: Any) -> None:
        """Raise FileError for what a newer version wrote: its fields may have any meaning."""
        schema = value.get("schema") if isinstance(value, dict) else None
        if isinstance(schema, int) and schema > self.newest:
            raise FileError(
                f"{path} has schema {quoted(schema)}; this version of ffnmem reads up to {self.newest}: "
                "install a newer one"
            )

    def check_fields(self, path: Path, value: Any) -> None:
        """Raise FileError unless the fields are what they must be."""
        try:
            fields({"schema": whole(1)})(value)
            self.check(value)
        except Misfit as misfit:
            raise FileError(f"{path} cannot be understood: {misfit}{remedy(self.again)}") from None


def parsed(path: Path, data: str | bytes, again: str = "") -> Any:
    """JSON as plain values; raises FileError, also for levels without end and for halves of characters."""
    try:
        found = json.loads(data)
        check_plain(found)
    except RecursionError:
        raise FileError(f"{path} is nested too deeply to be read{remedy(again)}") from None
    except (ValueError, Misfit) as error:
        raise FileError(f"{path} cannot be read: {first_line(error)}{remedy(again)}") from None
    return found


def read_json(path: Path, missing: str = "", again: str = "") -> dict[str, Any]:
    """The object in a JSON file; raises FileError for anything else."""
    size = check_regular(path, missing)
    if size > LARGEST:
        raise FileError(f"{path} has {size:,} bytes, more than any description of ours")
    with reading(path):
        data = path.read_bytes()
    found = parsed(path, data, again)
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no JSON object{remedy(again)}")
    return found


def read_checked(path: Path, form: Form, missing: str = "") -> dict[str, Any]:
    """The object in a JSON file of a form that :func:`with_checksum` made; of an older one, that had none, too."""
    return form.fit(path, read_json(path, missing, form.again), is_whole)


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
    """Whether an object's checksum is its own; true of one without."""
    return "checksum" not in values or values["checksum"] == digest_of(values)


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


def said_kind(path: Path) -> str:
    """What a safetensors file of ours says that it is; empty for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            _, _, text = (file.metadata() or {}).get("ffnmem", "").partition(" ")
        found = json.loads(text).get("kind", "") if text else ""
    except (SafetensorError, OSError, ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


class HeadedTensors:
    """A safetensors file with a header in JSON. The header is checked at once, each array when it is read.

    Args:
        path: of the file.
        form: of its header.
        missing: the message where there is no such file.
        checksum: of an array.

    Raises: FileError.
    """

    def __init__(
        self, path: Path, form: Form, missing: str = "", checksum: Callable[[np.ndarray], int] = array_checksum
    ) -> None:
        from safetensors import safe_open

        self.path, self._checksum = path, checksum
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
        form_of_all = fields({"checksums": table(anything, whole(0, 0xFFFFFFFF))})
        Form(form.kind, form.newest, form_of_all, form.noun).check_fields(path, dict(self.header))
        if set(self.header["checksums"]) != set(self.shapes):
            raise FileError(f"{path} is damaged: its arrays are not those that its header has")

    def check_shapes(self, expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise FileError unless the arrays are these: type and shape by name."""
        for name in {**expected, **self.shapes}:
            found, wanted = self.shapes.get(name), expected.get(name)
            if found != wanted:
                what = "not there" if found is None else f"{found[0]} {list(found[1])}"
                right = "" if wanted is None else f", which must be {wanted[0]} {list(wanted[1])}"
                raise FileError(f"{self.path} does not fit its header: {quoted(name)} is {what}{right}")

    def array(self, name: str) -> np.ndarray:
        """One array, checked, and yours to change; raises FileError."""
        with reading(self.path):
            array: np.ndarray = self.file.get_tensor(name)
        if self._checksum(array) != self.header["checksums"].get(name):
            raise FileError(f"{self.path} is damaged: array {name} does not match its checksum")
        return array


def check_tensors(path: Path) -> None:
    """Read a whole safetensors file of ours, whatever it holds; raises FileError for a damaged one."""
    form = Form(said_kind(path), LARGEST, anything, "file that ffnmem wrote")
    file = HeadedTensors(path, form)
    for name in file.shapes:
        file.array(name)


def write_tensors(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    checksum: Callable[[np.ndarray], int] = array_checksum,
    **options: Any,
) -> None:
    """Write what :class:`HeadedTensors` reads; it appears whole or not at all. Raises FileError: it cannot be written.

    Args:
        path: of the file.
        header: its fields, to which the arrays' checksums are added.
        arrays: by name.
        checksum: of an array.
        options: of the JSON.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    # Not ascontiguousarray, which makes a list of one of a single number.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checksums = {name: checksum(array) for name, array in contiguous.items()}
    entry = header_entry({**header, "checksums": checksums}, **options)
    with replacing(path) as temporary:
        try:
            save_file(contiguous, temporary, entry)
        except SafetensorError as error:
            raise FileError(f"cannot write {path}: {error}") from None
        readable(temporary)


# -- Parquet -------------------------------------------------------------------------------------------------------


def sealable(metadata: Mapping[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """The metadata of a table to be written, with a place for :func:`seal`."""
    return {**(metadata or {}), b"ffnmem.seal": MARK + PLACE}


def seal(path: Path) -> None:
    """Write the checksum of a Parquet file's footer into the footer, where :func:`sealable` kept a place.

    Pages have checksums of their own. The footer, which says where they are and between which bounds their numbers
    lie, has none: a bit that flips there could make rows disappear. Raises FileError.
    """
    footer, start = footer_of(path)
    place = footer.rindex(MARK) + len(MARK)
    with path.open("r+b") as file:
        file.seek(start + place)
        file.write(hashlib.sha256(footer).hexdigest().encode())


def open_parquet(path: Path, missing: str = "", again: str = "") -> pq.ParquetFile:
    """A Parquet file of ours whose footer is what was written, if it was sealed, and whose pages are checked when they
    are read; raises FileError. What is read from it stands in a block of :func:`reading`."""
    import pyarrow.parquet as pq

    check_regular(path, missing)
    footer, _ = footer_of(path, again)
    place = footer.rfind(MARK) + len(MARK)
    if place >= len(MARK):
        written = footer[place : place + len(PLACE)]
        blank = footer[:place] + PLACE + footer[place + len(PLACE) :]
        if written != hashlib.sha256(blank).hexdigest().encode():
            raise FileError(f"{path} is damaged: the checksum of its footer does not match{remedy(again)}")
    with reading(path, again):
        return pq.ParquetFile(path, page_checksum_verification=True)


def is_parquet_of_ours(path: Path) -> bool:
    """Whether this is a Parquet file that ffnmem wrote: its metadata, which stand in the footer, say so."""
    try:
        return b"ffnmem" in footer_of(path)[0]
    except FileError:
        return False


def footer_of(path: Path, again: str = "") -> tuple[bytes, int]:
    """The bytes of a Parquet file's footer, and where they begin. Raises FileError."""
    size = check_regular(path)
    with reading(path, again), path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if len(end) < 8 or end[4:] != b"PAR1" or length > size - 12:
            raise FileError(f"{path} is truncated, or no Parquet file{remedy(again)}")
        file.seek(size - 8 - length)
        return file.read(length), size - 8 - length
