"""Second moments on disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from ffnmem.core.checked_files import write_tensors
from ffnmem.core.errors import FileError, InputError
from ffnmem.editing import SecondMoment
from ffnmem.editing.moments import FIELDS, KIND, Part

from ..helpers import allclose, refuses
from .made import made, rows_of


@pytest.fixture
def moment() -> SecondMoment:
    parts = (Part("c", "wiki <b>.txt", ((0, 7), (9, 40))), Part("d", "ü", ((3, 4),)))
    return made(rows_of(40), rows_of(40, 30, seed=1), layers=(2, 5), parts=parts, sums=sums())


def sums() -> dict[int, torch.Tensor]:
    both = made(rows_of(40), rows_of(40, 30, seed=1)).sums
    return {2: both[0], 5: both[1]}


def test_round_trip(tmp_path: Path, moment: SecondMoment) -> None:
    """A saved second moment would come back with other numbers, or with less to tell what it is of."""
    path = moment.save(tmp_path / "c.safetensors")
    found = SecondMoment.load(path)
    for name in (*FIELDS, "parts"):
        assert getattr(found, name) == getattr(moment, name), name
    assert dict(found.provenance) == dict(moment.provenance)
    assert list(found.sums) == [2, 5]
    for layer in moment.layers:
        assert torch.equal(found.matrix(layer), moment.matrix(layer))
        assert found.condition(layer) == moment.condition(layer)


def test_float32_is_half_as_large(tmp_path: Path, moment: SecondMoment) -> None:
    """The smaller file would lose more than float32's rounding; its condition is the full one's."""
    whole, half = moment.save(tmp_path / "a"), moment.save(tmp_path / "b", dtype="float32")
    found = SecondMoment.load(half)
    assert allclose(found.matrix(5), moment.matrix(5), 1e-7)
    assert not torch.equal(found.matrix(5), moment.matrix(5))
    assert found.condition(5) == moment.condition(5)
    saved = whole.stat().st_size - half.stat().st_size
    assert saved == pytest.approx(4 * (12 * 13 // 2 + 30 * 31 // 2), abs=32)  # headers differ by a few digits
    with refuses(InputError, ValueError, "float16", "float32"):
        moment.save(tmp_path / "c", dtype="float16")


def test_a_singular_one_round_trips(tmp_path: Path) -> None:
    """An infinite condition number would make JSON that other programs cannot read."""
    path = made(rows_of(3)).save(tmp_path / "c")
    assert math.isinf(SecondMoment.load(path).condition(0))
    assert b"Infinity" not in path.read_bytes()


def test_same_bytes(tmp_path: Path, moment: SecondMoment) -> None:
    """Two files of the same numbers would differ, so that nobody could compare them."""
    a, b = moment.save(tmp_path / "a"), moment.save(tmp_path / "b")
    assert a.read_bytes() == b.read_bytes()
    assert SecondMoment.load(a).save(tmp_path / "c").read_bytes() == a.read_bytes()
    assert a.stat().st_mode & 0o044 or not (tmp_path.stat().st_mode & 0o044)


def test_no_temporary_file_stays(tmp_path: Path, moment: SecondMoment) -> None:
    """A folder would fill up with them."""
    moment.save(tmp_path / "c.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]
    with refuses(FileError, OSError, "no folder"):
        moment.save(tmp_path / "missing" / "c")


def test_damage_is_noticed_layer_by_layer(tmp_path: Path, moment: SecondMoment) -> None:
    """A flipped bit would go into every edit; a damaged layer that nobody asks for would stop one of another."""
    path = moment.save(tmp_path / "c")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    found = SecondMoment.load(path)
    damaged = [layer for layer in found.layers if not readable(found, layer)]
    assert len(damaged) == 1
    with refuses(FileError, OSError, str(path), f"array {damaged[0]}", "checksum"):
        found.matrix(damaged[0])


def readable(moment: SecondMoment, layer: int) -> bool:
    try:
        moment.matrix(layer)
    except FileError:
        return False
    return True


def test_other_files_are_refused(tmp_path: Path, moment: SecondMoment) -> None:
    """Another tensor file, a newer one, a missing one, would be read as something."""
    path = tmp_path / "other.safetensors"
    save_file({"0": moment.matrix(2).numpy()}, path)
    with refuses(FileError, OSError, str(path), "no second moment"):
        SecondMoment.load(path)
    with refuses(FileError, OSError, "missing", "second_moment"):
        SecondMoment.load(tmp_path / "missing")
    write_tensors(path, {"kind": "ffnmem scan state"}, {})
    with refuses(FileError, OSError, "ffnmem scan state"):
        SecondMoment.load(path)
    write_tensors(path, {"kind": KIND, "schema": 99}, {})
    with refuses(FileError, OSError, "99", "newer"):
        SecondMoment.load(path)
