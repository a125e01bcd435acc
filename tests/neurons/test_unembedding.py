"""Moments of cosines, W_U's near-null space and the log-unigram direction, against plain computations."""

from __future__ import annotations

from dataclasses import replace

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
    folded, centred = read_unembedding(architecture), architecture.centred
    found = folded.tokens
    assert folded.centred == centred
    assert allclose(found.mean(dim=0), torch.zeros(architecture.d_model))
    assert (float(found.mean(dim=1).abs().max()) < 1e-5) == centred
    x = gaussian(3, architecture.d_model)
    seen = x - x.mean(dim=1, keepdim=True) if centred else x
    logits = (seen * FinalNorm(architecture).gain) @ architecture.unembedding.detach().T
    mine = x @ found.T
    assert allclose(mine - mine[:, :1], logits - logits[:, :1], 1e-5)


def test_raw_is_as_it_is(tiny: fm.Model) -> None:
    assert torch.equal(read_unembedding(tiny, "raw").tokens, tiny.unembedding)
    assert torch.equal(read_values(tiny, 1, "raw"), tiny.ffn[1].values)
    assert allclose(read_values(tiny, 1, "folded").sum(dim=1), torch.zeros(tiny.d_mlp), 1e-5)


def test_reading_leaves_the_model(tiny: fm.Model) -> None:
    before = tiny.unembedding.detach().clone()
    read_unembedding(tiny)
    assert torch.equal(tiny.unembedding, before)


def test_unknown_basis(tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, "basis", "'flat'", "'folded'", "'raw'"):
        read_unembedding(tiny, "flat")


@pytest.mark.parametrize("blocks", [(2048, 4096), (3, 7)])
def test_moments_are_scipys(monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]) -> None:
    """Whatever the blocks, and where the mean is far from zero too."""
    monkeypatch.setattr(unembedding, "ROWS", blocks[0])
    monkeypatch.setattr(unembedding, "TOKENS", blocks[1])
    vectors, tokens = gaussian(8, 12), gaussian(50, 12, seed=1).abs() + 0.5
    exact = cosines(vectors, tokens)
    found = cosine_moments(vectors, Unembedding(tokens, "raw").units)
    assert allclose(found["mean"], exact.mean(axis=1), 1e-6)
    assert allclose(found["variance"], exact.var(axis=1), 1e-6)
    assert allclose(found["skew"], stats.skew(exact, axis=1), 1e-5)
    assert allclose(found["kurtosis"], stats.kurtosis(exact, axis=1, fisher=False), 1e-5)


def test_accelerators_sum_the_same_powers() -> None:
    """What only a GPU runs would be tried by nobody: here it runs on the processor."""
    scores, shifts = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)), np.linspace(-1, 1, 7)
    expected = np.zeros((7, 4))
    power_sums(scores.numpy(), shifts, 0, 7, expected)
    assert allclose(device_power_sums(scores, torch.from_numpy(shifts)), expected, 1e-12)


def test_zero_values_and_zero_tokens() -> None:
    """A zero value has no direction; a padded token that no text holds has none either and does not count."""
    vectors, tokens = gaussian(2, 6), gaussian(40, 6, seed=1)
    vectors[1] = 0
    padded = torch.cat([tokens, torch.zeros(5, 6)])
    found, expected = (
        cosine_moments(vectors, Unembedding(padded, "raw").units),
        cosine_moments(vectors, Unembedding(tokens, "raw").units),
    )
    assert allclose(found["variance"][0], expected["variance"][0])
    assert all(np.isnan(part[1]) for part in found.values())
    with refuses(InputError, ValueError, "zero"):
        _ = Unembedding(torch.zeros(3, 6), "raw").units


def test_one_token_apart_is_prediction() -> None:
    """In a vocabulary of orthogonal tokens, a value that writes one token has one outlier."""
    found = cosine_moments(torch.stack([torch.eye(64)[3], -torch.eye(64)[3]]), torch.eye(64))
    outlier = np.eye(64)[3]
    assert allclose(found["kurtosis"], [stats.kurtosis(outlier, fisher=False)] * 2, 1e-5)
    assert allclose(found["skew"], [stats.skew(outlier), -stats.skew(outlier)], 1e-5)
    assert found["kurtosis"][0] > 10


def test_null_space_is_of_the_svd(tiny: fm.Model) -> None:
    """The last singular vectors, after (1, …, 1) is left out, which would otherwise be the very last one."""
    folded = read_unembedding(tiny)
    found = null_space(folded, 3)
    _, singular, vt = np.linalg.svd(folded.tokens.double().numpy(), full_matrices=False)
    assert singular[-1] < 1e-5
    assert abs(vt[-1] @ np.full(tiny.d_model, tiny.d_model**-0.5)) == pytest.approx(1.0, abs=1e-6)
    expected = vt[-4:-1].T @ vt[-4:-1]
    assert allclose(found.basis @ found.basis.T, expected, 1e-5)
    assert found.largest == pytest.approx(singular[-4], rel=1e-4)
    assert found.median > found.largest
    inside, outside = torch.from_numpy(vt[-2:-1].copy()), torch.from_numpy(vt[:1].copy())
    assert allclose(found.share(torch.cat([inside, outside]).float()), [1.0, 0.0], 1e-5)
    assert np.isnan(found.share(torch.zeros(1, tiny.d_model))[0])


def test_null_space_without_centring(gated: fm.Model) -> None:
    """Under RMSNorm W_U's last singular vectors as they are: (1, …, 1) is one direction among others, and all count."""
    folded = read_unembedding(gated)
    found = null_space(folded, 3)
    _, singular, vt = np.linalg.svd(folded.tokens.double().numpy(), full_matrices=False)
    assert singular[-1] > 1e-3
    assert allclose(found.basis @ found.basis.T, vt[-3:].T @ vt[-3:], 1e-5)
    assert found.largest == pytest.approx(singular[-3], rel=1e-4)
    assert null_space(folded, gated.d_model).share(torch.eye(gated.d_model)) == pytest.approx(np.ones(gated.d_model))
    assert null_space(folded, 3).share(torch.ones(1, gated.d_model))[0] < 0.99
    with refuses(InputError, ValueError, "null_dimension", "16", "17"):
        null_space(folded, 17)


def test_values_of_gated_models(gated: fm.Model) -> None:
    """With the gain of a norm behind the FFN and no mean taken out; and random directions have theirs too."""
    values, post = gated.ffn[1].values.detach(), gated.norm_after(1)
    assert allclose(read_values(gated, 1, "folded"), values if post is None else values * post.gain)
    assert torch.equal(read_values(gated, 1, "raw"), values)
    folded = read_unembedding(gated)
    assert variance_null(folded) != variance_null(replace(folded, centred=True))


def test_null_dimension_is_the_papers(tiny: fm.Model) -> None:
    assert null_dimension(768) == 12
    assert null_dimension(16) == 1
    with refuses(InputError, ValueError, "null_dimension", "15", "16"):
        null_space(read_unembedding(tiny), 16)


def test_log_unigram() -> None:
    counts = np.array([0, 1, 7, 100])
    found = log_unigram(counts)
    expected = np.log(counts + 1) - np.log(counts + 1).mean()
    assert allclose(found, expected / np.linalg.norm(expected))
    with refuses(InputError, ValueError, "equally frequent"):
        log_unigram(np.array([3, 3, 3]))


def test_frequency_cosine_is_that_of_the_logits(tiny: fm.Model) -> None:
    """Without the logits: the same number as with them; a padded vocabulary counts as never seen."""
    folded = read_unembedding(tiny)
    counts = np.random.default_rng(0).integers(0, 1000, tiny.d_vocab - 3)
    found = frequency_direction(folded, counts)
    values = read_values(tiny, 0, "folded")
    logits = values.double() @ folded.tokens.double().T
    direction = torch.from_numpy(log_unigram(np.append(counts, [0, 0, 0])))
    expected = (logits @ direction) / logits.norm(dim=1)
    assert allclose(found.cosines(values), expected, 1e-6)
    assert np.isnan(found.cosines(torch.zeros(1, tiny.d_model))[0])


def test_null_of_the_frequency_direction() -> None:
    """Where W_U moves all logits along frequency and hardly otherwise, every direction is aligned with it."""
    tokens = gaussian(300, 8)
    counts = np.random.default_rng(0).integers(0, 1000, 300)
    free = frequency_direction(Unembedding(tokens, "folded"), counts)
    steep = tokens + 30 * torch.from_numpy(log_unigram(counts)).float().unsqueeze(1) * torch.ones(1, 8)
    bound = frequency_direction(Unembedding(steep, "folded"), counts)
    assert free.null < 0.6
    assert bound.null > 0.95


def test_null_of_variances() -> None:
    """About 1/d where tokens go everywhere; much more where they share a direction; always below what one token has."""
    everywhere = variance_null(Unembedding(gaussian(2000, 64), "raw"))
    assert 1 / 64 < everywhere < 1.5 / 64
    signs = torch.randn(2000, 1, generator=torch.Generator().manual_seed(1)).sign()
    split = gaussian(2000, 64) + 8 * signs * torch.nn.functional.one_hot(torch.tensor(0), 64)
    assert variance_null(Unembedding(split, "raw")) > 3 * everywhere
    assert variance_null(Unembedding(split, "raw"), 1) != variance_null(Unembedding(split, "raw"))
