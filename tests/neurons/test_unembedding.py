"""Moments of cosines, W_U's near-null space and the log-unigram direction, against plain computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.models.residual import FinalNorm
from ffnmem.neurons import unembedding
from ffnmem.neurons.unembedding import (
    Unembedding,
    cosine_moments,
    device_power_sums,
    frequency_direction,
    log_unigram,
    null_dimension,
    null_space,
    power_sums,
    read_unembedding,
    read_values,
    variance_null,
)

from ..helpers import allclose, refuses


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosines(vectors: torch.Tensor, tokens: torch.Tensor) -> np.ndarray:
    v, u = vectors.double(), tokens.double()
    return ((v / v.norm(dim=1, keepdim=True)) @ (u / u.norm(dim=1, keepdim=True)).T).numpy()


def test_folded_is_how_the_papers_process_weights(architecture: fm.Model) -> None:
    """Differences of logits stay what they were: folding and centring change nothing that softmax sees. Under RMSNorm
    a token's own mean stays, since the norm does not take it out."""
    before, centred = architecture.unembedding.detach().clone(), architecture.centred
    folded = read_unembedding(architecture)
    found = folded.tokens
    assert folded.centred == centred
    assert allclose(found.mean(dim=0), torch.zeros(architecture.d_model))
    assert (float(found.mean(dim=1).abs().max()) < 1e-5) == centred
    x = gaussian(3, architecture.d_model)
    seen = x - x.mean(dim=1, keepdim=True) if centred else x
    logits = (seen * FinalNorm(architecture).gain) @ before.T
    mine = x @ found.T
    assert allclose(mine - mine[:, :1], logits - logits[:, :1], 1e-5)
    assert torch.equal(read_unembedding(architecture, "raw").tokens, before)
    assert torch.equal(read_values(architecture, 1, "raw"), architecture.ffn[1].values)


@pytest.mark.parametrize("blocks", [(2048, 4096), (3, 7)])
def test_moments_are_scipys(monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]) -> None:
    """Whatever the blocks, and where the mean is far from zero too. A zero value has no direction; a padded token that
    no text holds has none either and does not count."""
    monkeypatch.setattr(unembedding, "ROWS", blocks[0])
    monkeypatch.setattr(unembedding, "TOKENS", blocks[1])
    vectors, tokens = gaussian(8, 12), gaussian(50, 12, seed=1).abs() + 0.5
    exact = cosines(vectors, tokens)
    padded = Unembedding(torch.cat([tokens, torch.zeros(5, 12)]), "raw").units
    found = cosine_moments(torch.cat([vectors, torch.zeros(1, 12)]), padded)
    assert allclose(found["mean"][:8], exact.mean(axis=1), 1e-6)
    assert allclose(found["variance"][:8], exact.var(axis=1), 1e-6)
    assert allclose(found["skew"][:8], stats.skew(exact, axis=1), 1e-5)
    assert allclose(found["kurtosis"][:8], stats.kurtosis(exact, axis=1, fisher=False), 1e-5)
    assert all(np.isnan(part[8]) for part in found.values())
    with refuses(InputError, ValueError, "zero"):
        _ = Unembedding(torch.zeros(3, 6), "raw").units


def test_accelerators_sum_the_same_powers() -> None:
    """What only a GPU runs would be tried by nobody: here it runs on the processor."""
    scores, shifts = gaussian(7, 50), np.linspace(-1, 1, 7)
    expected = np.zeros((7, 4))
    power_sums(scores.numpy(), shifts, 0, 7, expected)
    assert allclose(device_power_sums(scores, torch.from_numpy(shifts)), expected, 1e-12)


def test_null_space_is_of_the_svd(architecture: fm.Model) -> None:
    """The last singular vectors, under LayerNorm after (1, …, 1) is left out, which would otherwise be the very last;
    under RMSNorm it is one direction among others."""
    folded, kept = read_unembedding(architecture), 16 - architecture.centred
    found = null_space(folded, 3)
    _, singular, vt = np.linalg.svd(folded.tokens.double().numpy(), full_matrices=False)
    assert (singular[-1] < 1e-5) == architecture.centred
    last = vt[kept - 3 : kept]
    assert allclose(found.basis @ found.basis.T, last.T @ last, 1e-5)
    assert found.largest == pytest.approx(singular[kept - 3], rel=1e-4)
    assert found.median == pytest.approx(np.sort(singular[:kept])[(kept - 1) // 2], rel=1e-4)
    some = torch.from_numpy(np.stack([last[1], vt[0], np.zeros(16)])).float()
    assert np.allclose(found.share(some), [1.0, 0.0, np.nan], atol=1e-5, equal_nan=True)
    assert [null_dimension(width) for width in (768, 16)] == [12, 1]
    with refuses(InputError, ValueError, "null_dimension", str(kept), str(kept + 1)):
        null_space(folded, kept + 1)


def test_frequency_cosine_is_that_of_the_logits(tiny: fm.Model) -> None:
    """Without the logits: the same number as with them; a padded vocabulary counts as never seen. Its null is that of
    random directions, its reach the length of the direction within W_U's columns."""
    folded = read_unembedding(tiny)
    counts = np.random.default_rng(0).integers(0, 1000, tiny.d_vocab - 3)
    found = frequency_direction(folded, counts, seed=2)
    direction = np.log(np.append(counts, [0, 0, 0]) + 1)
    direction = (direction - direction.mean()) / np.linalg.norm(direction - direction.mean())
    assert allclose(log_unigram(np.append(counts, [0, 0, 0])), direction)
    tokens = folded.tokens.double().numpy()

    def plain(vectors: np.ndarray) -> np.ndarray:
        logits = vectors @ tokens.T
        return logits @ direction / np.linalg.norm(logits, axis=1)

    values = read_values(tiny, 0, "folded")
    assert allclose(found.cosines(values), plain(values.double().numpy()), 1e-6)
    assert np.isnan(found.cosines(torch.zeros(1, tiny.d_model))[0])
    drawn = np.random.default_rng(2).standard_normal((1000, 16))
    assert found.null == pytest.approx(np.quantile(np.abs(plain(drawn)), 0.999), abs=1e-6)
    columns = np.linalg.svd(tokens, full_matrices=False)[0][:, :15]  # the last is (1, …, 1), which reads nothing
    assert found.reach == pytest.approx(np.linalg.norm(direction @ columns), abs=1e-6)
    with refuses(InputError, ValueError, "equally frequent"):
        log_unigram(np.array([3, 3, 3]))


@pytest.mark.parametrize(("basis", "centred"), [("raw", True), ("folded", True), ("folded", False)])
def test_null_of_variances(basis: str, centred: bool) -> None:
    """That of random directions, centred as values are: about 1/d, much more where tokens share a direction."""
    tokens = gaussian(2000, 64) + 8 * torch.nn.functional.one_hot(torch.arange(2000) % 2, 64)
    drawn = torch.from_numpy(np.random.default_rng([5, 1]).standard_normal((1000, 64)))
    if basis == "folded" and centred:
        drawn -= drawn.mean(dim=1, keepdim=True)
    expected = np.quantile(cosines(drawn, tokens).var(axis=1), 0.999)
    assert variance_null(Unembedding(tokens, basis, centred), 5) == pytest.approx(expected, rel=1e-4)
    assert 1 / 64 < variance_null(Unembedding(gaussian(2000, 64), basis, centred)) < 1.5 / 64 < expected / 2
