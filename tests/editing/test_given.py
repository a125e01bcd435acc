"""Second moments from elsewhere: one's own matrix, and the files of the published programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, InputTypeError, OutOfRangeError, unwarned
from ffnmem.editing import SecondMoment, alphaedit, rome
from ffnmem.editing.given import COUNT, SUMS

from ..evaluation.made import EIFFEL, tiny_moment
from ..helpers import allclose, build_gpt2, refuses


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> fm.Model:
    return fm.load(build_gpt2(), tokenizer=tokenizer, dtype="float64")


@pytest.fixture(scope="module")
def own(model: fm.Model) -> SecondMoment:
    """The one that our own pass makes."""
    return tiny_moment(model)


def statistics(path: Path, sums: np.ndarray, count: Any) -> Path:
    """A file as ``layer_stats`` writes it."""
    constructor = "util.runningstats.SecondMoment()"
    np.savez(path, **{"mom2.constructor": constructor, COUNT: count, SUMS: sums, "sample_size": 100})
    return path


def delta(model: fm.Model, moment: SecondMoment) -> Tensor:
    with unwarned():  # of a change that is large: what is edited is random
        edit = rome(model, EIFFEL, layer=0, moment=moment, contexts=("{}",), settings={"steps": 3}, force=True)
    return edit.changes[0].delta()


def null_rank(model: fm.Model, moment: SecondMoment) -> int:
    options: dict[str, Any] = {"layer": 0, "contexts": ("{}",), "settings": {"steps": 1}, "force": True}
    with unwarned():
        edit = alphaedit(model, EIFFEL, moment=moment, threshold=0.1, **options)
    return int(edit.settings["null_rank"][0])


def test_a_matrix_is_the_moment_that_it_is_of(model: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """Edits would be shaped by something else than what was given; nor could it be kept."""
    found = SecondMoment.of(model, {1: own.matrix(1), -2: own.matrix(0).numpy()}, own.count, corpus="mine")
    assert (found.layers, found.widths, found.count) == (own.layers, own.widths, own.count)
    assert (found.tokenizer_hash, found.prepend_bos) == (own.tokenizer_hash, own.prepend_bos)
    for layer in own.layers:
        assert allclose(found.matrix(layer), own.matrix(layer), 1e-13)
        assert allclose(found.condition(layer), own.condition(layer), 1e-8)
    assert allclose(delta(model, found), delta(model, own), 1e-10)
    assert [part.source for part in found.parts] == ["mine"]
    again = SecondMoment.load(found.save(tmp_path / "given.safetensors"))
    again.check(model)
    assert torch.equal(again.matrix(1), found.matrix(1))
    with refuses(InputError, ValueError, "mine", "twice"):
        SecondMoment.merge([found, again])


def test_published_files(model: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """Somebody who has them would have to read the text again."""
    sums = (own.matrix(0) * own.count).numpy()
    path = statistics(tmp_path / "transformer.h.0.mlp.c_proj_float64_mom2_100.npz", sums, own.count)
    found = SecondMoment.of(model, {0: path})
    assert (found.layers, found.count) == ((0,), own.count)
    assert allclose(delta(model, found), delta(model, own), 1e-10)
    half = SecondMoment.of(model, {0: str(statistics(tmp_path / "32.npz", sums.astype(np.float32), own.count))})
    assert allclose(half.matrix(0), own.matrix(0), 1e-6)
    assert (half.provenance["products"], found.provenance["products"]) == ("float32", "float64")
    mixed = SecondMoment.of(model, {0: own.matrix(0), 1: own.matrix(1).float()}, own.count)
    assert mixed.provenance["products"] == "float32"
    more = SecondMoment.of(model, {0: statistics(tmp_path / "ten.npz", 10 * sums, 10 * own.count)})
    assert more.count == 10 * own.count
    ranks = [null_rank(model, one) for one in (own, found, more)]  # sums are divided by their count, as C is a mean
    assert ranks == [ranks[0]] * 3
    assert 0 < ranks[0] < model.d_mlp
    with refuses(InputError, ValueError, "count", "tokens"):
        SecondMoment.of(model, {0: path}, 7)
    with refuses(InputError, ValueError, "other numbers of tokens", f"{own.count} in layer 0", "7 in layer 1"):
        SecondMoment.of(model, {0: path, 1: statistics(tmp_path / "7.npz", sums, 7)})


def test_rounding_is_no_asymmetry(model: fm.Model, own: SecondMoment) -> None:
    """What a GPU's float32 products are off by would be refused, or C be another one above and below its diagonal."""
    matrix = own.matrix(0)
    off = matrix + 1e-7 * matrix.max() * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0)).triu(1)
    found = SecondMoment.of(model, {0: off}, own.count).matrix(0)
    assert torch.equal(found, found.T)
    assert allclose(found, (off + off.T) / 2, 1e-13)


def changed(matrix: Tensor, place: tuple[int, int], value: float) -> Tensor:
    found = matrix.clone()
    found[place] = value
    return found


def test_what_no_second_moment_is(model: fm.Model, own: SecondMoment) -> None:
    """It would come out as an edit, or as a traceback."""
    c, n = own.matrix(1), own.count
    for given, count, named in (
        ({1: c[:-1]}, n, ("layer 1", "[63, 64]", "64 neurons", "[64, 64]")),
        ({1: changed(c, (2, 3), float("nan"))}, n, ("layer 1", "NaN")),
        ({1: changed(c, (3, 3), -0.5)}, n, ("layer 1", "-0.5", "diagonal")),
        ({1: changed(c, (2, 3), 1e3)}, n, ("layer 1", "not symmetric", "999")),
        ({1: c.to(torch.complex64)}, n, ("layer 1", "complex64", "real")),
        ({1: c.numpy().astype(object)}, n, ("layer 1", "object", "real")),
        ({}, n, ("no layer",)),
        ({1: c}, None, ("count is missing",)),
        ({1: c}, 0, ("at least 1",)),
        ({1: c, -1: c}, n, ("layer 1 is given twice",)),
    ):
        with refuses(InputError, ValueError, *named):
            SecondMoment.of(model, given, count)  # type: ignore[arg-type]
    with refuses(OutOfRangeError, IndexError, "layer 9"):
        SecondMoment.of(model, {9: c}, n)
    with refuses(InputTypeError, TypeError, "matrix or a file"):
        SecondMoment.of(model, {1: [[1.0]]}, n)  # type: ignore[dict-item]


def test_other_files_are_refused(model: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """Pickles would be run, and other arrays be taken for sums."""
    whole = statistics(tmp_path / "whole.npz", np.eye(64), 5)
    cut, plain, other, pickled = (tmp_path / name for name in ("cut.npz", "plain.npy", "other.npz", "pickled.npz"))
    cut.write_bytes(whole.read_bytes()[:-200])
    np.save(plain, np.eye(64))
    np.savez(other, mom2=np.eye(64))
    np.savez(tmp_path / "uncounted.npz", **{SUMS: np.eye(64)})
    np.savez(pickled, **{SUMS: np.array([{}], dtype=object), COUNT: 5})
    for path, named in (
        (cut, "damaged"),
        (plain, "no file of second moments"),
        (other, SUMS),
        (tmp_path / "uncounted.npz", COUNT),
        (pickled, "allow_pickle"),
        (own.save(tmp_path / "ours.safetensors"), "ours.safetensors"),
        (statistics(tmp_path / "small.npz", np.eye(63), 5), "64 neurons"),
        (statistics(tmp_path / "none.npz", np.eye(64), 0), "number of tokens"),
        (statistics(tmp_path / "text.npz", np.full((64, 64), "a"), 5), "damaged"),
        (tmp_path / "missing.npz", "there is no file"),
    ):
        with refuses(FileError, OSError, path.name, named):
            SecondMoment.of(model, {1: path})
