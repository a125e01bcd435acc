"""Edits as files: every bit comes back, and any other file is refused in one line."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from safetensors.torch import save_file

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.editing import Edit
from ffnmem.editing.saving import columns_of, frame_of

from ..helpers import refuses
from .edits import change, made, same_bits, weights


@pytest.fixture
def saved(tiny: fm.Model, tmp_path: Path) -> Path:
    return made(tiny, (0, 1), rank=2).save(tmp_path / "eiffel.safetensors")


def test_round_trip(tiny: fm.Model, saved: Path) -> None:
    """Any field that is lost, or comes back as another type."""
    edit, found = made(tiny, (0, 1), rank=2), Edit.load(saved)
    assert found.digest == edit.digest
    for mine, theirs in zip(edit.changes, found.changes, strict=True):
        assert mine.layer == theirs.layer
        assert torch.equal(mine.left, theirs.left)
        assert torch.equal(mine.right, theirs.right)
    for name in ("fingerprint", "method", "facts", "targets", "settings", "under", "parts", "provenance"):
        assert getattr(found, name) == getattr(edit, name), name
    assert_frame_equal(found.numbers, edit.numbers)
    assert found.to_dict() == edit.to_dict()


def test_applies_to_the_same_bits(make_tiny: Callable[..., fm.Model], saved: Path) -> None:
    """Factors in another layout or type would round to other weights."""
    one, other = make_tiny(), make_tiny()
    made(one, (0, 1), rank=2).apply(one)
    Edit.load(saved).apply(other)
    assert same_bits(other, weights(one))


def test_the_same_edit_is_the_same_file(tiny: fm.Model, saved: Path) -> None:
    again = Edit.load(saved).save(saved.with_name("again.safetensors"))
    assert again.read_bytes() == saved.read_bytes()
    made(tiny).save(saved)
    assert Edit.load(saved).layers == (1,)


def test_readable_by_others(saved: Path) -> None:
    """safetensors writes files that only their owner can read."""
    mask = os.umask(0o022)
    os.umask(mask)
    assert saved.stat().st_mode & 0o777 == 0o666 & ~mask


def test_sums_and_edits_without_facts(tiny: fm.Model, tmp_path: Path) -> None:
    both = made(tiny) + made(tiny, seed=1)
    found = Edit.load(both.save(tmp_path / "both.safetensors"))
    assert found.parts == both.parts
    assert found.numbers["loss"].isna().all()
    plain = Edit.of(tiny, [change(tiny, 0)], method="knowledge_neuron")  # embedding_swap's name in older files
    found = Edit.load(plain.save(tmp_path / "plain.safetensors"))
    assert (found.method, found.numbers.empty) == ("knowledge_neuron", True)


def test_numbers_keep_their_types() -> None:
    """JSON knows neither NaN nor infinity, nor whole numbers from others."""
    frame = pd.DataFrame(
        {
            "a": [1, 2],
            "b": [0.1, np.nan],
            "c": [np.inf, -np.inf],
            "d": [True, False],
            "e": ["x", None],
            "f": [np.nan, np.nan],
        }
    )
    record = json.dumps(columns_of(frame), allow_nan=False)
    assert_frame_equal(frame_of(json.loads(record)), frame)


def test_refuses_other_files(tiny: fm.Model, tmp_path: Path, saved: Path) -> None:
    with refuses(FileError, OSError, "there is no file", "nothing.safetensors"):
        Edit.load(tmp_path / "nothing.safetensors")
    with refuses(FileError, OSError, "is a folder"):
        Edit.load(tmp_path)
    text = tmp_path / "text.safetensors"
    text.write_text("hello")
    with refuses(FileError, OSError, "text.safetensors"):
        Edit.load(text)
    foreign = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2)}, foreign, {"format": "pt"})
    with refuses(FileError, OSError, "model.safetensors", "no edit"):
        Edit.load(foreign)
    with refuses(FileError, OSError, "no folder"):
        made(tiny).save(tmp_path / "no" / "edit.safetensors")


def test_refuses_damaged_files(saved: Path) -> None:
    """One bit in a factor is another edit; one in the header another fact."""
    whole = saved.read_bytes()
    for place in (len(whole) - 5, whole.index(b"Eiffel"), 3):
        broken = bytearray(whole)
        broken[place] ^= 1
        saved.write_bytes(bytes(broken))
        with refuses(FileError, OSError, str(saved)):
            Edit.load(saved)
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with refuses(FileError, OSError, str(saved)):
            Edit.load(saved)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "scan state"}, "scan state"),
        ({"schema": 99}, "schema 99"),
        ({"facts": [{"subject": "x"}]}, "no target"),
        ({"targets": []}, "targets"),
        ({"checksums": {}}, "arrays"),
    ],
)
def test_refuses_headers_that_say_something_else(saved: Path, changes: dict[str, object], named: str) -> None:
    """Files of a newer version, or made by hand."""
    from safetensors import safe_open

    with safe_open(saved, "pt") as file:
        header = json.loads(file.metadata()["ffnmem"].partition(" ")[2]) | changes
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    text = json.dumps(header)
    save_file(tensors, saved, {"ffnmem": f"{zlib.crc32(text.encode()):08x} {text}"})
    with refuses(FileError, OSError, str(saved), named):
        Edit.load(saved)


def test_refuses_numbers_that_no_file_holds(tiny: fm.Model, tmp_path: Path) -> None:
    edit = made(tiny)
    edit.numbers["factor"] = [torch.ones(2)]
    with refuses(InputError, ValueError, "numbers.factor", "Tensor"):
        edit.save(tmp_path / "edit.safetensors")
    assert not list(tmp_path.iterdir())
