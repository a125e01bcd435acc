"""``SecondMoment``: solving with it, its figures, files and sums, and where one comes from."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file

import ffnmem as fm
from ffnmem.core.checked_files import write_tensors
from ffnmem.core.errors import FileError, InputError, ModelError, OutOfRangeError
from ffnmem.editing import SecondMoment, second_moment
from ffnmem.editing.moments import FIELDS, KEPT, KIND, Part, load_second_moment, load_shipped

from ..helpers import allclose, printed, refuses
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


def with_ridge(matrix: torch.Tensor, ridge: float) -> torch.Tensor:
    return matrix + ridge * torch.diagonal(matrix).mean() * torch.eye(len(matrix), dtype=torch.float64)


def test_matrix_is_the_mean_outer_product() -> None:
    """C would be a sum, a covariance about the mean, or another layer's."""
    a, b = rows_of(200, 12), rows_of(200, 7, seed=1)
    moment = made(a, b)
    assert allclose(moment.matrix(0), a.T @ a / 200, 1e-13)
    assert allclose(moment.matrix(1), b.T @ b / 200, 1e-13)


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.3])
def test_solve_inverts(ridge: float) -> None:
    """Edits would use something else than C⁻¹k, or another ridge than the one that is recorded."""
    moment, keys = made(rows_of(200)), rows_of(5, seed=3)
    found = moment.solve(0, keys, ridge)
    assert allclose(found @ with_ridge(moment.matrix(0), ridge), keys, 1e-12)
    assert found.dtype == torch.float64
    assert allclose(moment.solve(0, keys.float(), ridge), found, 1e-5)


def test_factors_are_kept_and_bounded() -> None:
    """Every edit would pay for a Cholesky factorisation, or a long session for all of them."""
    moment = made(rows_of(40))
    assert moment.factor(0) is moment.factor(0)
    assert moment.factor(0, 1e-3) is not moment.factor(0)
    for n in range(2 * KEPT):
        moment.factor(0, 1e-3 * (n + 2))
    assert len(moment._kept) == KEPT


def test_null_projection_is_the_published_one() -> None:
    """AlphaEdit would protect other directions than those that text uses."""
    moment = made(rows_of(300))
    p = moment.null_projection(0)
    u, s, _ = torch.linalg.svd(moment.matrix(0))
    small = u[:, s < 2e-2]
    assert small.shape[1] == 6
    assert allclose(p, small @ small.T, 1e-10)
    assert allclose(p @ p, p, 1e-12)
    assert float((moment.matrix(0) @ p).norm()) < 6 * 2e-2
    assert allclose(moment.null_projection(0, threshold=math.inf), torch.eye(12), 1e-12)
    assert float(moment.null_projection(0, threshold=0.0).norm()) == 0


def test_condition_and_frame() -> None:
    """The figures by which a user judges a second moment would be wrong."""
    rows = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=torch.float64))
    moment = made(rows)  # C = diag(16, 4, 1, ¼) / 4
    assert moment.condition(0) == pytest.approx(64)
    frame = moment.to_frame()
    assert list(frame.columns) == ["layer", "count", "trace", "condition", "rank", "effective_rank"]
    row = frame.iloc[0]
    assert (row["layer"], row["count"], row["rank"]) == (0, 4, 4)
    assert row["trace"] == pytest.approx(21.25 / 4)
    assert row["effective_rank"] == pytest.approx(21.25**2 / (256 + 16 + 1 + 0.0625))
    assert frame.attrs["provenance"]["tokens"] == 4
    poor = made(rows_of(5)).to_frame().iloc[0]
    assert math.isinf(poor["condition"])
    assert poor["rank"] == 5


def test_display() -> None:
    """A display would break its page, or run markup that came with a file's name."""
    moment = made(rows_of(20), parts=(Part("c", "<script>", ((0, 20),)),))
    assert repr(moment) == "SecondMoment('made': 1 layer of 12 neurons, 20 tokens)"
    assert "<script>" not in moment._repr_html_()
    assert "&lt;script&gt;" in moment._repr_html_()
    assert printed(moment.sheet())[-3].split() == ["0", "12", "–"]
    measured = moment.to_frame()
    assert printed(moment.sheet(measured, "a.safetensors"))[0].endswith("a.safetensors")
    assert printed(moment.sheet(measured))[-3].split()[-1] == f"{measured.effective_rank[0]:.1f}"
    assert f"{moment.condition(0):.2e}" in moment._repr_html_()


def test_the_shipped_one_is_of_atlas(atlas: fm.Model) -> None:
    """The bundled file would be another model's, broken, or of text unlike the bundled corpus."""
    found = load_second_moment(None, atlas)
    assert load_second_moment("atlas", atlas).fingerprint == load_shipped("atlas").fingerprint == atlas.fingerprint
    assert found.layers == tuple(range(atlas.n_layers))
    assert found.count > 1000 * atlas.d_mlp
    layer = 3
    part = second_moment(atlas, "atlas", tokens=3000, layers=[layer])
    c, few = found.matrix(layer), part.matrix(layer)
    assert float(few.trace() / c.trace()) == pytest.approx(1, abs=0.2)
    spread = torch.linalg.eigvalsh(c)[-3:] / torch.linalg.eigvalsh(few)[-3:]
    assert bool(((spread > 0.7) & (spread < 1.4)).all())
    assert max(found.condition(n) for n in found.layers) < 1e6
    keys = torch.eye(atlas.d_mlp)[:3]
    assert allclose(found.solve(layer, keys) @ with_ridge(c, 1e-6), keys, 1e-9)


def test_rounding_of_float32_products_is_no_rank(tiny: fm.Model) -> None:
    """Help tells a user to look at the rank: fewer tokens than neurons must not look like enough of them."""
    text = "Paris is the city of France"
    tokens = len(tiny.tokenize(text)) - int(tiny.prepend_bos)
    frame = second_moment(tiny, [text]).to_frame()
    assert tokens < tiny.d_mlp
    assert frame["rank"].tolist() == [tokens] * tiny.n_layers
    assert frame["condition"].tolist() == [math.inf] * tiny.n_layers


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
    with refuses(OutOfRangeError, IndexError, "layer 4", "made"):
        poor.solve(4, keys)


def test_where_one_comes_from(tiny: fm.Model, tmp_path: Path) -> None:
    """One in memory, a path and its name as text would not all do; another model's would shape an edit, or none."""
    own = made(rows_of(20), fingerprint=tiny.fingerprint)
    path = own.save(tmp_path / "c.safetensors")
    assert load_second_moment(own, tiny) is own
    for source in (path, str(path)):
        assert torch.equal(load_second_moment(source, tiny).matrix(0), own.matrix(0))
    with refuses(ModelError, ValueError, FINGERPRINT, tiny.fingerprint, "second_moment("):
        made(rows_of(20)).check(tiny)
    with refuses(ModelError, ValueError, "atlas", tiny.name):
        load_second_moment("atlas", tiny)
    with refuses(InputError, ValueError, tiny.name, "second_moment(model, corpus, out)"):
        load_second_moment(None, tiny)
    other = fm.load("atlas")
    with torch.no_grad():
        other.ffn[0].values[0, 0] += 1
    with refuses(InputError, ValueError, other.fingerprint):
        load_second_moment(None, other)


# -- files -------------------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path, moment: SecondMoment) -> None:
    """A saved second moment would come back with other numbers, with less to tell what it is of, or other bytes."""
    path = moment.save(tmp_path / "a.safetensors")
    found = SecondMoment.load(path)
    for name in (*FIELDS, "parts"):
        assert getattr(found, name) == getattr(moment, name), name
    assert dict(found.provenance) == dict(moment.provenance)
    assert list(found.sums) == [2, 5]
    for layer in moment.layers:
        assert torch.equal(found.matrix(layer), moment.matrix(layer))
        assert found.condition(layer) == moment.condition(layer)
    assert found.save(tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    singular = made(rows_of(3)).save(tmp_path / "c.safetensors")
    assert math.isinf(SecondMoment.load(singular).condition(0))
    assert b"Infinity" not in singular.read_bytes()  # which is no JSON
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.safetensors" for name in "abc"]


def test_float32_is_half_as_large(tmp_path: Path, moment: SecondMoment) -> None:
    """The smaller file would lose more than float32's rounding; its condition is the full one's."""
    whole, half = moment.save(tmp_path / "a"), moment.save(tmp_path / "b", dtype="float32")
    found = SecondMoment.load(half)
    assert allclose(found.matrix(5), moment.matrix(5), 1e-7)
    assert not torch.equal(found.matrix(5), moment.matrix(5))
    assert found.condition(5) == moment.condition(5)
    saved = whole.stat().st_size - half.stat().st_size
    assert saved == pytest.approx(4 * (12 * 13 // 2 + 30 * 31 // 2), abs=32)  # headers differ by a few digits


def test_damage_is_noticed_layer_by_layer(tmp_path: Path, moment: SecondMoment) -> None:
    """A flipped bit would go into every edit; a damaged layer that nobody asks for would stop one of another."""
    path = moment.save(tmp_path / "c")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    found, damaged = SecondMoment.load(path), []
    for layer in found.layers:
        try:
            found.matrix(layer)
        except FileError as error:
            damaged.append(str(error))
    (message,) = damaged
    assert str(path) in message
    assert "checksum" in message


def test_other_files_are_refused(tmp_path: Path, moment: SecondMoment) -> None:
    """Another tensor file, a newer one, a missing one, would be read as something."""
    paths = [tmp_path / name for name in ("plain", "other", "newer", "missing")]
    save_file({"0": moment.matrix(2).numpy()}, paths[0])
    write_tensors(paths[1], {"kind": "ffnmem scan state"}, {})
    write_tensors(paths[2], {"kind": KIND, "schema": 99}, {})
    for path, named in zip(paths, ("no second moment", "ffnmem scan state", "newer", "second_moment"), strict=True):
        with refuses(FileError, OSError, str(path), named):
            SecondMoment.load(path)
    with refuses(FileError, OSError, "no folder"):
        moment.save(tmp_path / "nowhere" / "c")
    with refuses(InputError, ValueError, "float16", "float32"):
        moment.save(tmp_path / "c", dtype="float16")


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
    alone = SecondMoment.merge(three[:1])
    assert torch.equal(alone.matrix(0), three[0].matrix(0))
    assert torch.equal(three[0].matrix(0), before)  # nothing was added into it


def test_different_corpora(three: list[SecondMoment]) -> None:
    """More text from elsewhere could not be added, or count twice."""
    other = made(M[:20], parts=(Part("a", "more.txt", ((0, 20),)),))
    both = SecondMoment.merge([three[0], other])
    assert (both.corpus_hash, both.count) == ("a+c", 40)
    assert SecondMoment.merge([both, three[2]]).parts[1] == Part("c", "text.txt", ((0, 20), (70, 90)))
    with refuses(InputError, ValueError, "more.txt", "twice"):
        SecondMoment.merge([both, other])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fingerprint": "f" * 12}, "fingerprint"),
        ({"tokenizer_hash": "u"}, "tokenizer_hash"),
        ({"context": 64}, "context"),
        ({"prepend_bos": False}, "prepend_bos"),
        ({"parts": (Part("c", "text.txt", ((19, 21),)),)}, "twice"),
    ],
)
def test_others_are_refused(three: list[SecondMoment], changes: dict[str, Any], named: str) -> None:
    """Another model's numbers, text that was cut otherwise, or text that is there already, would be mixed in."""
    with refuses(InputError, ValueError, named):
        SecondMoment.merge([three[0], made(M[20:70], first=20, **changes)])
    with refuses(InputError, ValueError, "at least one"):
        SecondMoment.merge([])
