"""The vocabulary of planted roles: embeddings hold exactly what they are said to hold, text has its frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.planted.skeleton import FREQUENT, PLACES, SHORTEST, SPECIAL, Lexicon, draw_lexicon, even_rows

from ..helpers import allclose, refuses


def make(seed: int = 0, d_model: int = 96) -> Lexicon:
    rng = np.random.default_rng(seed)
    return draw_lexicon(rng, n_words=300, n_tokens=9000, d_model=d_model, unread=3, longest=63)


@pytest.fixture(scope="module", params=[0, 1])
def lexicon(request: pytest.FixtureRequest) -> Lexicon:
    return make(request.param)


def test_directions_are_orthonormal_and_untouched_by_a_norm(lexicon: Lexicon) -> None:
    """Else LayerNorm's centring would mix what attributes, frequency and positions say."""
    rows = torch.cat([lexicon.attributes, lexicon.frequency[None], lexicon.unread, lexicon.waves])
    assert allclose(rows @ rows.T, np.eye(len(rows)), 1e-12)
    assert allclose(rows.sum(-1), np.zeros(len(rows)), 1e-12)


def test_embeddings_say_log_frequency_and_nothing_else_on_its_direction(lexicon: Lexicon) -> None:
    counts = np.concatenate([np.zeros(len(SPECIAL)), lexicon.counts])
    found = (lexicon.embeddings @ lexicon.frequency).numpy()
    assert allclose(np.corrcoef(found, np.log1p(counts))[0, 1], 1.0, 1e-12)
    assert allclose(found.var(), FREQUENT, 1e-12)


def test_attributes_are_on_their_directions_with_the_letters_they_name(lexicon: Lexicon) -> None:
    found = (lexicon.embeddings[len(SPECIAL) :] @ lexicon.attributes.T).numpy()
    assert np.array_equal(np.sign(found.T), lexicon.signs)
    for place, (name, split) in enumerate(zip(PLACES, lexicon.splits, strict=True)):
        letters = set(split.removeprefix(f"{name} letter ").split())
        assert [word[place] in letters for word in lexicon.words] == (lexicon.signs[place] > 0).tolist()
        assert 0.25 < (lexicon.signs[place] > 0).mean() < 0.75


def test_unread_directions_hold_next_to_nothing(lexicon: Lexicon) -> None:
    """At most a tenth of what a direction of the room holds on average."""
    found = (lexicon.embeddings @ lexicon.unread.T).pow(2).mean(0)
    usual = lexicon.embeddings.pow(2).sum(-1).mean() / lexicon.embeddings.shape[1]
    assert float(found.max()) < 0.01 * float(usual)
    assert float(found.min()) > 0, "an exact null space would be found by rounding alone"


def test_own_parts_are_of_no_shared_direction(lexicon: Lexicon) -> None:
    shared = torch.cat([lexicon.attributes, lexicon.frequency[None], lexicon.unread])
    assert allclose(lexicon.own @ shared.T, np.zeros((len(lexicon.own), len(shared))), 1e-12)
    assert 0.9 < float(lexicon.embeddings.norm(dim=-1).min()) < float(lexicon.embeddings.norm(dim=-1).max()) < 1.1


def test_the_text_is_that_of_the_counts(lexicon: Lexicon) -> None:
    words = " ".join(lexicon.texts).split()
    assert [words.count(word) for word in lexicon.words] == lexicon.counts.tolist()
    lengths = [len(text.split()) for text in lexicon.texts]
    assert SHORTEST <= min(lengths) <= max(lengths) <= 63
    assert 9000 <= sum(lengths) < 9000 + 63


def test_frequencies_fall_as_zipf_says_with_no_word_too_frequent(lexicon: Lexicon) -> None:
    parts = [lexicon.counts[first : 2 * first + 10].mean() for first in (0, 10, 30, 70, 140)]
    assert sorted(parts, reverse=True) == parts
    assert lexicon.counts.max() < 0.05 * lexicon.counts.sum()


def test_even_rows_hold_every_word_equally_often() -> None:
    rows = even_rows(np.random.default_rng(0), 63, 5, 21)
    assert rows.shape == (15, 22)
    assert (rows[:, 0] == 0).all()
    assert torch.bincount(rows[:, 1:].flatten() - len(SPECIAL)).tolist() == [5] * 63


def test_too_narrow_a_model_is_refused() -> None:
    with refuses(InputError, ValueError, "d_model", "directions"):
        make(d_model=12)
