"""``SecondMoment``: its sums, solving with it, its figures, files and merges, and those made elsewhere."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.checked_files import write_tensors
from ffnmem.core.errors import FileError, InputError, InputTypeError, ModelError, OutOfRangeError
from ffnmem.editing import SecondMoment, moments, second_moment
from ffnmem.editing.given import COUNT, SUMS
from ffnmem.editing.moments import (
    BLOCK,
    CHUNK,
    FIELDS,
    KEPT,
    Part,
    TriangleSums,
    diagonal,
    full_float32,
    load_second_moment,
    load_shipped,
    square,
)

from ..helpers import allclose, refuses
from .made import FINGERPRINT, made, rows_of

PARTS = (Part("c", "wiki <b>.txt", ((0, 7), (9, 40))), Part("d", "ü", ((3, 4),)))
M = rows_of(90)


@pytest.fixture
def moment() -> SecondMoment:
    """Of two layers that are not the first ones."""
    both = made(rows_of(40), rows_of(40, 30, seed=1)).sums
    return made(rows_of(40), rows_of(40, 30, seed=1), layers=(2, 5), parts=PARTS, sums={2: both[0], 5: both[1]})


@pytest.fixture
def three() -> list[SecondMoment]:
    return [made(M[:20], first=0), made(M[20:70], first=20), made(M[70:], first=70)]


def with_ridge(matrix: Tensor, ridge: float) -> Tensor:
    return matrix + ridge * torch.diagonal(matrix).mean() * torch.eye(len(matrix), dtype=torch.float64)


# -- sums --------------------------------------------------------------------------------------------------------------


def summed(m: Tensor, exact: bool = False) -> Tensor:
    sums = TriangleSums(m.shape[1], exact=exact)
    sums.add(m)
    return square(sums.packed(), m.shape[1])


@pytest.mark.parametrize("width", [1, 5, BLOCK, BLOCK + 44, 2 * BLOCK + 1])
@pytest.mark.parametrize("n", [0, 1, CHUNK + 3])
def test_sums_are_the_product(width: int, n: int) -> None:
    """Blocks in the wrong place, a chunk lost, or another order in the file than the upper triangle row by row."""
    m = torch.randn(n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, resumed = TriangleSums(width), TriangleSums(width)
    whole.add(m[: n // 3])
    resumed.load(whole.packed())
    for sums in (whole, resumed):
        sums.add(m[n // 3 :])
        i, j = torch.triu_indices(width, width)
        assert allclose(sums.packed(), (m.T @ m)[i, j], 1e-12)
    assert torch.equal(whole.packed(), resumed.packed())
    matrix = square(whole.packed(), width)
    assert torch.equal(matrix, matrix.T)
    assert allclose(matrix, m.T @ m, 1e-12)
    assert torch.equal(diagonal(whole.packed(), width), torch.diagonal(matrix))


def test_float32_products_stay_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision rows are multiplied in float32; where a device drops digits of that, in float64."""
    m = rows_of(5 * CHUNK, 70).float().relu()
    found, exact = summed(m), summed(m, exact=True)
    u = CHUNK * 2.0**-24
    bound = u / (1 - u) * (m.double().abs().T @ m.double().abs())
    assert bool(((found - exact).abs() <= bound).all())
    assert not torch.equal(found, exact)
    for dtype in (torch.bfloat16, torch.float16):
        half = m[:300].to(dtype)
        assert allclose(summed(half), half.double().T @ half.double(), 1e-6)
    assert full_float32(torch.device("cpu"))
    plain = torch.Tensor.__matmul__
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: plain(a.bfloat16(), b.bfloat16()).float())
        assert not full_float32(torch.device("cpu"))
    monkeypatch.setattr(moments, "full_float32", lambda device: False)
    assert torch.equal(summed(m), exact)


# -- what edits ask of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.3])
def test_solve_inverts_the_mean_outer_product(ridge: float) -> None:
    """C as a sum, a covariance about the mean, or another layer's; another ridge than the one that is recorded."""
    a, b, keys = rows_of(200, 12), rows_of(200, 7, seed=1), rows_of(5, seed=3)
    moment = made(a, b)
    assert allclose(moment.matrix(1), b.T @ b / 200, 1e-13)
    found = moment.solve(0, keys, ridge)
    assert allclose(found @ with_ridge(a.T @ a / 200, ridge), keys, 1e-12)
    assert found.dtype == torch.float64
    assert allclose(moment.solve(0, keys.float(), ridge), found, 1e-5)


def test_factors_are_kept_and_bounded() -> None:
    """Every edit would pay for a Cholesky factorisation, or a long session for all of them."""
    moment = made(rows_of(40))
    assert moment.factor(0) is moment.factor(0)
    factors = [moment.factor(0, 1e-3 * (n + 1)) for n in range(KEPT + 1)]
    assert moment.factor(0, 1e-3) is not factors[0]
    assert moment.factor(0, 3e-3) is factors[2]


def test_null_projection_is_the_published_one() -> None:
    """AlphaEdit would protect other directions than those that text uses."""
    moment = made(rows_of(300))
    p = moment.null_projection(0)
    u, s, _ = torch.linalg.svd(moment.matrix(0))
    small = u[:, s < 2e-2]
    assert small.shape[1] == 6
    assert allclose(p, small @ small.T, 1e-10)
    assert allclose(moment.null_projection(0, threshold=math.inf), torch.eye(12), 1e-12)
    assert float(moment.null_projection(0, threshold=0.0).norm()) == 0


def test_rarity_is_one_on_average_over_text() -> None:
    """Also of tokens that C is not of, which without the correction would seem rare where text was short."""
    n, d = 192, 64
    keys = torch.randn(2 * n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moment = made(keys[:n])
    plain = (moment.solve(0, keys) * keys).sum(1) / d
    assert float(plain[:n].mean()) == pytest.approx(1.0, rel=1e-3)
    assert float(plain[n:].mean()) > 1.4
    assert allclose(moment.rarity(0, keys), (1 - (d + 1) / n) * plain, 1e-9)
    assert float(moment.rarity(0, keys[n:]).mean()) == pytest.approx(1.0, rel=0.05)
    assert bool(made(keys[: d + 1]).rarity(0, keys).isnan().all())  # too little text to tell


def test_condition_and_frame(tiny: fm.Model) -> None:
    """The figures by which a user judges it: fewer tokens than neurons must not look like enough of them."""
    rows = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=torch.float64))  # C = diag(16, 4, 1, ¼) / 4
    frame = made(rows).to_frame()
    assert frame.to_dict("records") == [
        {"layer": 0, "neurons": 4, "count": 4, "trace": pytest.approx(21.25 / 4), "condition": pytest.approx(64),
         "rank": 4, "effective_rank": pytest.approx(21.25**2 / (256 + 16 + 1 + 0.0625))}
    ]  # fmt: skip
    assert frame.attrs["provenance"]["tokens"] == 4
    text = "Paris is the city of France"
    tokens = len(tiny.tokenize(text)) - int(tiny.prepend_bos)
    frame = second_moment(tiny, [text]).to_frame()  # rounding of float32 products is no rank
    assert tokens < tiny.d_mlp
    assert frame["rank"].tolist() == [tokens] * tiny.n_layers
    assert frame["condition"].tolist() == [math.inf] * tiny.n_layers


def test_display() -> None:
    """What takes a while is shown where it is known; all of it, where all is asked for."""
    moment = made(rows_of(20))
    assert repr(moment) == "SecondMoment(model 'made', count 20, context 128, prepend bos True)"
    both = made(rows_of(20), rows_of(20))
    assert list(both.shown_layers(2)["condition"]) == [None, None]
    known = both.condition(1)
    assert both.shown_layers(2)["condition"].tolist()[1] == known
    assert moment.to_frame()["rank"].tolist() == [12]
    assert moment.verdict.endswith("are enough: every layer has full rank.")
    short = made(rows_of(5))
    short.to_frame()
    assert "too few: in layer 0" in short.verdict


def test_what_cannot_be_solved_is_refused() -> None:
    """A dead neuron or a short text could not be edited at all; nothing would be solved as if it were the identity."""
    rows = rows_of(5)
    rows[:, 3] = 0
    poor, keys = made(rows), rows_of(2, seed=3)
    assert allclose(poor.solve(0, keys) @ with_ridge(poor.matrix(0), 1e-6), keys, 1e-6)
    nothing = made(torch.zeros(4, 12, dtype=torch.float64))
    for of, layer, wrong, ridge, named in (
        (poor, 0, keys, 0.0, ("layer 0", "5 tokens", "12 neurons", "ridge")),
        (nothing, 0, keys, 1.0, ("not positive definite",)),
        (poor, 0, torch.ones(1, 11), 0.1, ("12", "11")),
        (poor, 0, keys, -1e-3, ("ridge", "-0.001")),
        (poor, 0, keys, math.inf, ("ridge", "inf")),
    ):
        with refuses(InputError, ValueError, *named):
            of.solve(layer, wrong, ridge)
    with refuses(OutOfRangeError, IndexError, "layer 4", "made", "--layers 4"):
        poor.solve(4, keys)


# -- where one comes from ----------------------------------------------------------------------------------------------


def test_the_shipped_one_is_of_atlas(atlas: fm.Model) -> None:
    """The bundled file would be another model's, broken, or of text unlike the bundled corpus."""
    found = load_second_moment(None, atlas)
    assert load_second_moment("atlas", atlas).fingerprint == load_shipped("atlas").fingerprint == atlas.fingerprint
    assert found.layers == tuple(range(atlas.n_layers))
    assert found.count > 1000 * atlas.d_mlp
    c, few = found.matrix(3), second_moment(atlas, "atlas", tokens=3000, layers=[3]).matrix(3)
    assert float(few.trace() / c.trace()) == pytest.approx(1, abs=0.2)
    spread = torch.linalg.eigvalsh(c)[-3:] / torch.linalg.eigvalsh(few)[-3:]
    assert bool(((spread > 0.7) & (spread < 1.4)).all())
    assert max(found.condition(n) for n in found.layers) < 1e6
    other = fm.load("atlas")
    with torch.no_grad():
        other.ffn[0].values[0, 0] += 1
    with refuses(InputError, ValueError, other.fingerprint):
        load_second_moment(None, other)


def test_one_in_memory_or_in_a_file(tiny: fm.Model, tmp_path: Path) -> None:
    """Another model's would shape an edit, or none."""
    own = made(rows_of(20), fingerprint=tiny.fingerprint)
    path = own.save(tmp_path / "c.safetensors")
    assert load_second_moment(own, tiny) is own
    for source in (path, str(path)):
        assert torch.equal(load_second_moment(source, tiny).matrix(0), own.matrix(0))
    with refuses(ModelError, ValueError, FINGERPRINT, tiny.fingerprint, f"--model {tiny.name} -o"):
        made(rows_of(20)).check(tiny)
    with refuses(ModelError, ValueError, "atlas", tiny.name):
        load_second_moment("atlas", tiny)
    with refuses(InputError, ValueError, tiny.name, f"--model {tiny.name} -o"):
        load_second_moment(None, tiny)


# -- files -------------------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path, moment: SecondMoment) -> None:
    """Other numbers, less to tell what it is of, or other bytes; in float32 no more is lost than its rounding."""
    path = moment.save(tmp_path / "a.safetensors")
    found = SecondMoment.load(path)
    for name in (*FIELDS, "parts"):
        assert getattr(found, name) == getattr(moment, name), name
    assert dict(found.provenance) == dict(moment.provenance)
    assert list(found.sums) == [2, 5]
    half = moment.save(tmp_path / "b.safetensors", dtype="float32")
    for layer in moment.layers:
        assert torch.equal(found.matrix(layer), moment.matrix(layer))
        assert allclose(SecondMoment.load(half).matrix(layer), moment.matrix(layer), 1e-7)
        assert found.condition(layer) == moment.condition(layer) == SecondMoment.load(half).condition(layer)
    assert found.save(tmp_path / "c.safetensors").read_bytes() == path.read_bytes()
    assert path.stat().st_size - half.stat().st_size == pytest.approx(4 * (12 * 13 // 2 + 30 * 31 // 2), abs=32)
    singular = made(rows_of(3)).save(tmp_path / "d.safetensors")
    assert math.isinf(SecondMoment.load(singular).condition(0))
    assert b"Infinity" not in singular.read_bytes()  # which is no JSON


def test_other_files_and_damage_are_refused(tmp_path: Path, moment: SecondMoment) -> None:
    """A flipped bit would go into every edit; a damaged layer that nobody asks for would stop one of another."""
    path = moment.save(tmp_path / "c")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    found = SecondMoment.load(path)
    found.matrix(2)
    with refuses(FileError, OSError, str(path), "checksum"):
        found.matrix(5)
    write_tensors(tmp_path / "other", {"kind": "ffnmem scan state"}, {})
    for name, says in (("other", "ffnmem scan state"), ("missing", "second_moment")):
        with refuses(FileError, OSError, name, says):
            SecondMoment.load(tmp_path / name)


# -- joining -----------------------------------------------------------------------------------------------------------


def test_merged_is_all_of_it_in_any_order(three: list[SecondMoment]) -> None:
    """Shards would be averaged without their sizes, or two people who merge the same ones would get different edits."""
    before, whole = three[0].matrix(0), SecondMoment.merge(three)
    assert whole.count == whole.provenance["tokens"] == 90
    assert allclose(whole.matrix(0), M.T @ M / 90, 1e-13)
    assert whole.parts == (Part("c", "text.txt", ((0, 90),)),)
    for order in itertools.permutations(three):
        found = SecondMoment.merge(order)
        assert torch.equal(found.matrix(0), whole.matrix(0))
        assert (found.parts, found.provenance) == (whole.parts, whole.provenance)
        nested = SecondMoment.merge([SecondMoment.merge(order[:2]), order[2]])
        assert allclose(nested.matrix(0), whole.matrix(0), 1e-14)
        assert (nested.parts, nested.count) == (whole.parts, whole.count)
    assert torch.equal(three[0].matrix(0), before)  # nothing was added into it
    other = made(M[:20], parts=(Part("a", "more.txt", ((0, 20),)),))
    both = SecondMoment.merge([three[0], other])
    assert (both.corpus_hash, both.count) == ("a+c", 40)
    assert SecondMoment.merge([both, three[2]]).parts[1] == Part("c", "text.txt", ((0, 20), (70, 90)))


def test_what_cannot_be_merged_is_refused(three: list[SecondMoment]) -> None:
    """Another model's numbers, text that was cut otherwise, or text that is there already, would be mixed in."""
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"fingerprint": "f" * 12}, "fingerprint"),
        ({"tokenizer_hash": "u"}, "tokenizer_hash"),
        ({"context": 64}, "context"),
        ({"prepend_bos": False}, "prepend_bos"),
        ({"parts": (Part("c", "text.txt", ((19, 21),)),)}, "twice"),
    )
    for changes, named in wrong:
        with refuses(InputError, ValueError, named):
            SecondMoment.merge([three[0], made(M[20:70], first=20, **changes)])
    with refuses(InputError, ValueError, "at least one"):
        SecondMoment.merge([])


# -- made elsewhere ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tiny: fm.Model) -> SecondMoment:
    """The one that our own pass makes."""
    return second_moment(tiny, ["Paris is the city of France", " Rome is in the city of London", "The Colosseum"])


def statistics(path: Path, sums: np.ndarray, count: Any) -> Path:
    """A file as ``layer_stats`` writes it."""
    constructor = "util.runningstats.SecondMoment()"
    np.savez(path, **{"mom2.constructor": constructor, COUNT: count, SUMS: sums, "sample_size": 100})
    return path


def test_a_matrix_is_the_moment_that_it_is_of(tiny: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """Edits would be shaped by something else than what was given; nor could it be kept."""
    found = SecondMoment.of(tiny, {1: own.matrix(1), -2: own.matrix(0).numpy()}, own.count, corpus="mine")
    for name in ("layers", "widths", "count", "tokenizer_hash", "prepend_bos"):
        assert getattr(found, name) == getattr(own, name), name
    assert all(allclose(found.matrix(layer), own.matrix(layer), 1e-13) for layer in own.layers)
    assert [part.source for part in found.parts] == ["mine"]
    again = SecondMoment.load(found.save(tmp_path / "given.safetensors"))
    again.check(tiny)
    assert torch.equal(again.matrix(1), found.matrix(1))
    with refuses(InputError, ValueError, "mine", "twice"):
        SecondMoment.merge([found, again])
    matrix = own.matrix(0)  # what a GPU's float32 products are off by is no asymmetry
    off = matrix + 1e-7 * matrix.max() * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0)).triu(1)
    found = SecondMoment.of(tiny, {0: off}, own.count)
    assert torch.equal(found.matrix(0), found.matrix(0).T)
    assert allclose(found.matrix(0), (off + off.T) / 2, 1e-13)


def test_published_files(tiny: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """Somebody who has them would have to read the text again; they hold sums, of which C is the mean."""
    sums = (own.matrix(0) * own.count).numpy()
    path = statistics(tmp_path / "transformer.h.0.mlp.c_proj_float64_mom2_100.npz", sums, own.count)
    half = str(statistics(tmp_path / "32.npz", sums.astype(np.float32), own.count))
    for given, count, products in (
        ({0: path}, None, "float64"),
        ({0: half}, None, "float32"),
        ({0: own.matrix(0), 1: own.matrix(1).float()}, own.count, "float32"),
    ):
        found = SecondMoment.of(tiny, given, count)
        assert (found.count, found.provenance["products"]) == (own.count, products)
        assert allclose(found.matrix(0), own.matrix(0), 1e-6)
    assert SecondMoment.of(tiny, {0: statistics(tmp_path / "1.npz", sums, 1)}).count == 1
    with refuses(InputError, ValueError, "count", "tokens"):
        SecondMoment.of(tiny, {0: path}, 7)
    with refuses(InputError, ValueError, "other numbers of tokens", f"{own.count} in layer 0", "7 in layer 1"):
        SecondMoment.of(tiny, {0: path, 1: statistics(tmp_path / "7.npz", sums, 7)})


def changed(matrix: Tensor, place: tuple[int, int], value: float) -> Tensor:
    found = matrix.clone()
    found[place] = value
    return found


def test_what_no_second_moment_is(tiny: fm.Model, own: SecondMoment, tmp_path: Path) -> None:
    """It would come out as an edit, or as a traceback; pickles would be run."""
    c, n = own.matrix(1), own.count
    for given, count, named in (
        ({1: c[:-1]}, n, ("layer 1", "[63, 64]", "64 neurons", "[64, 64]")),
        ({1: changed(c, (2, 3), float("nan"))}, n, ("layer 1", "NaN")),
        ({1: changed(c, (3, 3), -0.5)}, n, ("layer 1", "-0.5", "diagonal")),
        ({1: changed(c, (2, 3), 1e3)}, n, ("layer 1", "not symmetric")),
        ({1: c.to(torch.complex64)}, n, ("layer 1", "complex64", "real")),
        ({}, n, ("no layer",)),
        ({1: c}, None, ("count is missing",)),
        ({1: c, -1: c}, n, ("layer 1 is given twice",)),
    ):
        with refuses(InputError, ValueError, *named):
            SecondMoment.of(tiny, given, count)  # type: ignore[arg-type]
    with refuses(InputTypeError, TypeError, "matrix or a file"):
        SecondMoment.of(tiny, {1: [[1.0]]}, n)  # type: ignore[dict-item]
    np.save(tmp_path / "plain.npy", np.eye(64))
    np.savez(tmp_path / "pickled.npz", **{SUMS: np.array([{}], dtype=object), COUNT: 5})
    statistics(tmp_path / "small.npz", np.eye(63), 5)
    statistics(tmp_path / "none.npz", np.eye(64), 0)
    statistics(tmp_path / "whole numbers.npz", np.eye(64, dtype=int), 5)
    for name, says in (
        ("plain.npy", "no file of second moments"),
        ("pickled.npz", "allow_pickle"),
        ("small.npz", "64 neurons"),
        ("none.npz", "number of tokens"),
        ("whole numbers.npz", "holds no numbers"),
    ):
        with refuses(FileError, OSError, name, says):
            SecondMoment.of(tiny, {1: tmp_path / name})
