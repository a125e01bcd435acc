"""Files of ours are believed only whole: JSON, tensors with a header, sealed Parquet."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from ffnmem.core.checked_files import (
    Form,
    HeadedTensors,
    check_regular,
    check_tensors,
    digest_of,
    file_hash,
    is_whole,
    open_parquet,
    read_json,
    reading,
    with_checksum,
    with_columns,
    write_tensors,
)
from ffnmem.core.errors import FileError, InputError

from ..helpers import refuses

FORM = Form("a list", 1, "list: write one", "write it again")
GOOD = {"kind": "a list", "schema": 1, "n": 3}
ARRAYS = {"a": np.arange(6.0), "b": np.ones((3, 2), np.float32).T, "c": np.array(7)}


def test_a_library_s_error_becomes_one_line_that_names_the_file(tmp_path: Path) -> None:
    for error in (Exception("first\nsecond"), KeyError("x")):
        with refuses(FileError, OSError, "a/file", "again"), reading(Path("a/file"), "again"):
            raise error
    with pytest.raises(InputError), reading(tmp_path):
        raise InputError("mine")


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    """A pipe would be read for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("abc")
    assert check_regular(tmp_path / "text") == 3
    assert file_hash(tmp_path / "text").startswith("ba7816bf")
    for read in (check_regular, file_hash, read_json, open_parquet, check_tensors):
        with refuses(FileError, OSError, str(tmp_path / "pipe"), "no ordinary"):
            read(tmp_path / "pipe")
    for read in (check_regular, read_json, open_parquet):
        with refuses(FileError, OSError, "none of that name"):
            read(tmp_path / "none", "none of that name")


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "[" * 100_000, "\xff", "9" * 5000])
def test_json_that_is_none_or_too_deep(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, "latin-1")
    with refuses(FileError, OSError, "a.json", "again"):
        read_json(tmp_path / "a.json", again="again")


def test_a_form_is_told_from_others_and_checked(tmp_path: Path) -> None:
    """Another kind, a newer or older schema, a checksum that does not match: each its own line."""
    path, good = tmp_path / "a.json", with_checksum(GOOD)
    path.write_text(json.dumps(good))
    assert FORM.fit(path, read_json(path), is_whole) == good
    assert digest_of(dict(reversed(GOOD.items()))) == digest_of(good) != digest_of({**GOOD, "n": 4})
    for content, says in (
        (with_checksum({**GOOD, "kind": "a store"}), "is no list but 'a store': write one"),
        (with_checksum({**GOOD, "schema": 3}), "schema 3; this version of ffnmem reads 1: install a newer one"),
        (with_checksum({**GOOD, "schema": 0}), "has schema 0; this version of ffnmem reads 1: write it again"),
        ({**good, "n": 4}, "damaged: its checksum does not match: write it again"),
        (3, "is no list: write one"),
    ):
        with refuses(FileError, OSError, str(path), says):
            FORM.fit(path, content, is_whole)


def test_tensors_are_read_back_and_their_damage_is_noticed(tmp_path: Path) -> None:
    """Any bit: of the header at once, of an array when it is read."""
    path = tmp_path / "a"
    write_tensors(path, GOOD, ARRAYS)
    assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))
    file = HeadedTensors(path, FORM)
    assert file.header["n"] == 3
    for name, array in ARRAYS.items():
        assert file.shapes[name] == (str(array.dtype), array.shape)
        assert (file.array(name) == array).all()
    check_tensors(path)
    whole_file = path.read_bytes()
    for place in range(len(whole_file)):
        data = bytearray(whole_file)
        data[place] ^= 4
        path.write_bytes(data)
        with refuses(FileError, OSError, str(path)):
            check_tensors(path)


def test_tensors_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for header, says in (({"kind": "x"}, "is no list but 'x'"), ({"schema": 3}, "schema 3")):
        write_tensors(path, {**GOOD, **header}, ARRAYS)
        with refuses(FileError, OSError, str(path), says):
            HeadedTensors(path, FORM)
    save_file({"a": np.zeros(3)}, path)
    with refuses(FileError, OSError, "is no list", "write one"):
        HeadedTensors(path, FORM)
    with refuses(FileError, OSError, "none of that name"):
        HeadedTensors(tmp_path / "c", FORM, "none of that name")


def test_two_files_of_one_header_have_one_digest(tmp_path: Path) -> None:
    """It is by this that a store knows its state from another's."""
    digests = []
    for name, header, arrays in (("a", GOOD, ARRAYS), ("b", GOOD, ARRAYS), ("c", GOOD, {"a": ARRAYS["a"] + 1})):
        write_tensors(tmp_path / name, header, arrays)
        digests.append(HeadedTensors(tmp_path / name, FORM).digest)
    assert digests[0] == digests[1] != digests[2]


def test_pages_of_a_table_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"n": list(range(100)), "t": ["a", "b"] * 50})
    pq.write_table(table.replace_schema_metadata(with_columns(["n", "t"], {})), path, write_page_checksum=True)
    whole_file = path.read_bytes()
    with open_parquet(path) as file:
        assert file.read().equals(table)
    path.write_bytes(whole_file[:60] + bytes([whole_file[60] ^ 32]) + whole_file[61:])
    with refuses(FileError, OSError, str(path), "damaged"), open_parquet(path) as file, reading(path):
        file.read()
    for data in (b"", b"PAR1", whole_file[:-5]):
        path.write_bytes(data)
        with refuses(FileError, OSError, str(path), "truncated", "again"):
            open_parquet(path, again="again")
    pq.write_table(table.replace_schema_metadata(with_columns(["n", "u"], {})), path)  # as if a bit had flipped
    with refuses(FileError, OSError, str(path), "its columns"):
        open_parquet(path)
