"""Files of ours are believed only whole: JSON, tensors with a header, sealed Parquet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from ffnmem.core.checked_files import (
    Form,
    HeadedTensors,
    array_checksum,
    check_regular,
    digest_of,
    file_hash,
    header_entry,
    is_whole,
    open_parquet,
    parsed,
    read_json,
    reading,
    with_checksum,
    with_columns,
)
from ffnmem.core.errors import FileError, InputError

from ..helpers import refuses

FORM = Form("a list", 2, "list: write one", "write it again")
GOOD = {"kind": "a list", "schema": 1, "n": 3}


def test_a_library_s_error_becomes_one_line_that_names_the_file(tmp_path: Path) -> None:
    """Hugging Face's and Arrow's own errors are of any class and have many lines; ours stay what they are."""
    for error in (Exception("first\nsecond"), KeyError("x"), MemoryError(), RecursionError("deep")):
        with refuses(FileError, OSError, "a/file", "again"), reading(Path("a/file"), "again"):
            raise error
    with pytest.raises(InputError), reading(tmp_path):
        raise InputError("mine")


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    """A pipe or a device would be read for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "text").write_text("abc")
    assert check_regular(tmp_path / "text") == 3
    assert file_hash(tmp_path / "text").startswith("ba7816bf")
    for name, named in (("pipe", "no ordinary"), ("zero", "no ordinary"), ("none", "No such file"), (".", "folder")):
        for read in (check_regular, file_hash, read_json, open_parquet):
            with refuses(FileError, OSError, str(tmp_path / name), named):
                read(tmp_path / name)
    with refuses(FileError, OSError, "no such thing"):
        check_regular(tmp_path / "none", "no such thing")


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "[" * 100_000, "\xff", "9" * 5000])
def test_json_that_is_none_or_too_deep(tmp_path: Path, text: str) -> None:
    """Each of these ended in another traceback."""
    (tmp_path / "a.json").write_text(text, "latin-1")
    with refuses(FileError, OSError, "a.json", "again"):
        read_json(tmp_path / "a.json", again="again")


def test_a_form_is_told_from_others_and_checked(tmp_path: Path) -> None:
    """Another kind, a newer schema, a checksum that does not match: each its own line."""
    path = tmp_path / "a.json"
    for changes, named in (
        ({"kind": "a store"}, "is no list but 'a store': write one"),
        ({"schema": 3}, "schema 3"),
    ):
        path.write_text(json.dumps(with_checksum({**GOOD, **changes})))
        with refuses(FileError, OSError, str(path), named):
            FORM.fit(path, read_json(path), is_whole)
    path.write_text(json.dumps({**with_checksum(GOOD), "n": 4}))
    with refuses(FileError, OSError, str(path), "damaged", "checksum"):
        FORM.fit(path, read_json(path), is_whole)


def test_the_checksum_of_an_object_is_over_all_else() -> None:
    """The order of fields is nothing; a value is."""
    assert is_whole(with_checksum(GOOD))
    assert digest_of(dict(reversed(GOOD.items()))) == digest_of(with_checksum(GOOD)) != digest_of({**GOOD, "n": 4})
    assert parsed(Path("x"), '{"a": [1.5]}') == {"a": [1.5]}


def tensors(path: Path, header: dict[str, Any] | None = None, **arrays: np.ndarray) -> Path:
    """A file of two arrays, and a header that vouches for them."""
    arrays = arrays or {"a": np.arange(6.0), "b": np.ones((2, 3), np.float32)}
    checksums = {name: array_checksum(array) for name, array in arrays.items()}
    save_file(arrays, path, header_entry({**GOOD, "checksums": checksums, **(header or {})}))
    return path


def test_tensors_are_read_back_and_their_damage_is_noticed(tmp_path: Path) -> None:
    """Any bit: of the header at once, of an array when it is read."""
    path = tensors(tmp_path / "a")
    file = HeadedTensors(path, FORM)
    assert (file.array("a") == np.arange(6.0)).all()
    whole_file = path.read_bytes()
    for place in range(len(whole_file)):
        data = bytearray(whole_file)
        data[place] ^= 4
        path.write_bytes(data)
        with refuses(FileError, OSError, str(path)):
            again = HeadedTensors(path, FORM)
            for name in again.shapes:
                again.array(name)


def test_tensor_headers_that_say_something_else(tmp_path: Path) -> None:
    """A header made by hand, whose own checksum fits."""
    for header, named in (
        ({"kind": "x"}, "is no list but 'x'"),
        ({"schema": 3}, "schema 3"),
        ({"checksums": {"a": 1}}, "arrays"),
        ({"checksums": 3}, "arrays"),
    ):
        path = tensors(tmp_path / "a", header)
        with refuses(FileError, OSError, str(path), named):
            HeadedTensors(path, FORM)
    save_file({"a": np.zeros(3)}, tmp_path / "b")
    with refuses(FileError, OSError, "is no list", "write one"):
        HeadedTensors(tmp_path / "b", FORM)
    with refuses(FileError, OSError, "none of that name"):
        HeadedTensors(tmp_path / "c", FORM, "none of that name")


def test_two_files_of_one_header_have_one_digest(tmp_path: Path) -> None:
    """It is by this that a store knows its state from another's."""
    first, second = (HeadedTensors(tensors(tmp_path / name), FORM).digest for name in "ab")
    other = HeadedTensors(tensors(tmp_path / "c", a=np.arange(6.0) + 1), FORM).digest
    assert first == second != other


def test_pages_of_a_table_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"n": list(range(100)), "t": ["a", "b"] * 50})
    pq.write_table(table, path, write_page_checksum=True)
    whole_file = path.read_bytes()
    with open_parquet(path) as file:
        assert file.read().equals(table)
    path.write_bytes(whole_file[:60] + bytes([whole_file[60] ^ 32]) + whole_file[61:])
    with refuses(FileError, OSError, str(path), "damaged"), open_parquet(path) as file, reading(path):
        file.read()
    for data in (b"", b"PAR1", whole_file[:-5], b"PAR1" + b"\xff" * 4 + b"PAR1"):
        path.write_bytes(data)
        with refuses(FileError, OSError, str(path), "truncated"):
            open_parquet(path)
    pq.write_table(table.replace_schema_metadata(with_columns(["n", "u"], {})), path)  # as if a bit had flipped
    with refuses(FileError, OSError, str(path), "its columns"):
        open_parquet(path)
