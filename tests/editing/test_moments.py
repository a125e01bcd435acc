"""``SecondMoment``: solving with it, its figures, and where one comes from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError
from ffnmem.editing import SecondMoment, second_moment
from ffnmem.editing.moments import KEPT, Part, load_second_moment, shipped

from ..helpers import allclose, printed, refuses
from .made import FINGERPRINT, made, rows_of


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


def test_default_ridge_makes_few_tokens_solvable() -> None:
    """A layer with a dead neuron, or text shorter than the layer is wide, could not be edited at all."""
    rows = rows_of(5)
    rows[:, 3] = 0
    moment, keys = made(rows), rows_of(2, seed=3)
    assert allclose(moment.solve(0, keys) @ with_ridge(moment.matrix(0), 1e-6), keys, 1e-6)
    with refuses(InputError, ValueError, "layer 0", "5 tokens", "12 neurons", "ridge"):
        moment.solve(0, keys, ridge=0.0)


def test_no_silent_identity() -> None:
    """A second moment of nothing would be solved as if it were the identity."""
    with refuses(InputError, ValueError, "not positive definite"):
        made(torch.zeros(4, 3, dtype=torch.float64)).solve(0, torch.ones(1, 3), ridge=1.0)


def test_solve_refuses() -> None:
    """A wrong key or ridge would come out as a stack trace of linear algebra, or as numbers."""
    moment = made(rows_of(30))
    with refuses(InputError, ValueError, "12", "11"):
        moment.solve(0, torch.ones(1, 11))
    with refuses(OutOfRangeError, IndexError, "layer 4", "made"):
        moment.solve(4, torch.ones(1, 12))
    for ridge in (-1e-3, math.inf):
        with refuses(InputError, ValueError, "ridge", str(ridge)):
            moment.solve(0, torch.ones(1, 12), ridge)


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


def test_parts_overlap() -> None:
    """The same text would count twice, or different text be refused."""
    part = Part("c", "text", ((0, 4), (10, 12)))
    assert part.overlaps(Part("c", "other name", ((3, 5),)))
    assert part.overlaps(part)
    assert not part.overlaps(Part("c", "text", ((4, 10), (12, 13))))
    assert not part.overlaps(Part("d", "text", ((0, 4),)))


def test_another_model_is_refused(tiny: fm.Model) -> None:
    """An edit would be shaped by another model's statistics."""
    with refuses(ModelError, ValueError, FINGERPRINT, tiny.fingerprint, "second_moment("):
        made(rows_of(20)).check(tiny)
    with refuses(ModelError, ValueError, "atlas", tiny.name):
        load_second_moment("atlas", tiny)


def test_a_model_without_one_is_told_how_to_make_it(tiny: fm.Model) -> None:
    """It would be edited with the identity in place of C."""
    with refuses(InputError, ValueError, tiny.name, "second_moment(model, corpus, out)"):
        load_second_moment(None, tiny)


def test_sources(tiny: fm.Model, tmp_path: Path) -> None:
    """One in memory, a file's path and its name as text would not all do."""
    moment = made(rows_of(20), fingerprint=tiny.fingerprint)
    path = moment.save(tmp_path / "c.safetensors")
    assert load_second_moment(moment, tiny) is moment
    for source in (path, str(path)):
        assert torch.equal(load_second_moment(source, tiny).matrix(0), moment.matrix(0))


def test_the_shipped_one_is_of_atlas(atlas: fm.Model) -> None:
    """The bundled file would be another model's, broken, or of text unlike the bundled corpus."""
    found = load_second_moment(None, atlas)
    assert load_second_moment("atlas", atlas).fingerprint == shipped("atlas").fingerprint == atlas.fingerprint
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


def test_a_second_moment_of_nothing_shipped(atlas: fm.Model) -> None:
    """Copies of atlas with other weights would get its second moment all the same."""
    assert isinstance(load_second_moment("atlas", atlas), SecondMoment)
    other = fm.load("atlas")
    with torch.no_grad():
        other.ffn[0].values[0, 0] += 1
    with refuses(InputError, ValueError, other.fingerprint):
        load_second_moment(None, other)


def test_rounding_of_float32_products_is_no_rank(tiny: fm.Model) -> None:
    """Help tells a user to look at the rank: fewer tokens than neurons must not look like enough of them."""
    text = "Paris is the city of France"
    tokens = len(tiny.tokenize(text)) - int(tiny.prepend_bos)
    frame = second_moment(tiny, [text]).to_frame()
    assert tokens < tiny.d_mlp
    assert frame["rank"].tolist() == [tokens] * tiny.n_layers
    assert frame["condition"].tolist() == [math.inf] * tiny.n_layers
