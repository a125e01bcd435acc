"""A pass over a store's text: which tokens it shows, and that their coefficients are the model's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus.excerpts import Page
from ffnmem.corpus.passes import Forward, Observer, read
from ffnmem.neurons.counting import content_counts, sample_of
from ffnmem.scanning import Store

from ..helpers import allclose, refuses


class Keeper(Observer):
    """Keeps every content token's coefficients by layer, sequence and position."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, int], np.ndarray] = {}
        self.tokens: dict[tuple[int, int], int] = {}
        self.pre: dict[tuple[int, int, int], np.ndarray] = {}

    def add(
        self, page: Page, layer: int, pre: torch.Tensor, coefficients: torch.Tensor, linear: torch.Tensor | None
    ) -> None:
        for place, token, position, sequence in zip(
            page.places, page.tokens, page.positions, page.sequences, strict=True
        ):
            self.found[layer, int(sequence), int(position)] = coefficients[place].numpy().copy()
            self.pre[layer, int(sequence), int(position)] = pre[place].numpy().copy()
            self.tokens[int(sequence), int(position)] = int(token)


@pytest.fixture(scope="module")
def kept(tiny: fm.Model, tiny_store: Store) -> Keeper:
    keeper = Keeper()
    read(sample_of(tiny_store, None), Forward(tiny, (keeper,)), "text")
    return keeper


def test_all_content_and_nothing_else(kept: Keeper, tiny_store: Store) -> None:
    """BOS counted as text would make every neuron a position neuron."""
    assert len(kept.tokens) == tiny_store.n_tokens
    for number in range(tiny_store.sequences.n_sequences):
        ids = tiny_store.sequences.sequence_tokens(number)
        expected = {(number, p): int(t) for p, t in enumerate(ids) if p > 0 and t not in tiny_store.settings.special}
        assert {key: token for key, token in kept.tokens.items() if key[0] == number} == expected


def test_coefficients_are_the_models(kept: Keeper, tiny: fm.Model, tiny_store: Store) -> None:
    for number in (0, 7, tiny_store.sequences.n_sequences - 1):
        ids = torch.from_numpy(tiny_store.sequences.sequence_tokens(number))
        capture = fm.capture(tiny, ids.unsqueeze(0))
        for layer in range(tiny.n_layers):
            position = len(ids) - 1
            assert allclose(kept.found[layer, number, position], capture.coefficients[layer][0, position], 1e-5)
            assert allclose(kept.pre[layer, number, position], capture.pre[layer][0, position], 1e-5)


def test_a_sample_is_part_of_the_whole(tiny: fm.Model, tiny_store: Store) -> None:
    """Uniform, without repeats, the same for the same seed, and other for another."""
    total = tiny_store.sequences.n_sequences
    one, same, other = sample_of(tiny_store, 12, 3), sample_of(tiny_store, 12, 3), sample_of(tiny_store, 12, 4)
    assert one.numbers.tolist() == same.numbers.tolist() != other.numbers.tolist()
    assert len(set(one.numbers.tolist())) == len(one) == 12
    assert sorted(one.numbers.tolist()) == one.numbers.tolist()
    assert sample_of(tiny_store, 10 * total).numbers.tolist() == sample_of(tiny_store, None).numbers.tolist()
    keeper = Keeper()
    told: list[tuple[str, int, int]] = []
    read(one, Forward(tiny, (keeper,)), "text", lambda *now: told.append(now))
    assert {sequence for sequence, _ in keeper.tokens} == set(one.numbers.tolist())
    assert told[-1] == ("text", one.n_tokens, one.n_tokens)
    assert np.bincount(list(keeper.tokens.values()), minlength=len(one.token_counts)).tolist() == (
        one.token_counts.tolist()
    )


def test_counts_of_all_are_the_corpus(tiny_store: Store) -> None:
    counts = tiny_store.corpus.token_counts.copy()
    counts[list(tiny_store.settings.special)] = 0
    assert sample_of(tiny_store, None).token_counts.tolist() == counts.tolist()


def test_content_counts_are_those_of_a_reading_of_all(tiny_store: Store) -> None:
    """Else measures would weigh tokens that the scan never saw; and the corpus's own counts stay as they are."""
    before = np.array(tiny_store.corpus.token_counts)
    found = content_counts(tiny_store)
    assert found.tolist() == sample_of(tiny_store, None).token_counts.tolist()
    found += 1
    assert np.array(tiny_store.corpus.token_counts).tolist() == before.tolist()


def test_refusals(tiny_store: Store) -> None:
    with refuses(InputError, ValueError, "n_sequences", "0"):
        sample_of(tiny_store, 0)
    with refuses(InputError, ValueError, "seed", "-1"):
        sample_of(tiny_store, 3, -1)
