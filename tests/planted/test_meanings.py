"""Planted meanings hold on the text: neurons fire for their concepts, not for others, and never where they are dead."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.planted import Planted, plant
from ffnmem.planted.meanings import (
    CONTEXT,
    MEANINGS,
    SHARES,
    WEAKEST,
    Text,
    active,
    largest_remainders,
    mean_by,
    plan_layer,
    plant_meanings,
    strengths_of,
)
from ffnmem.planted.skeleton import SPECIAL, ffn_inputs

from ..helpers import allclose, refuses

WORDS = 8
SMALL: dict[str, Any] = {"n_features": 16, "neurons": 24, "n_tokens": 2000, "superposition": 1.0}


def tokens_of(planted: Planted) -> torch.Tensor:
    """The corpus as rows, BOS in front, id 1 behind the end."""
    texts = planted.model.tokenizer(list(planted.texts), add_special_tokens=False)["input_ids"]
    return torch.tensor([[0, *row[: CONTEXT - 1], *[1] * (CONTEXT - 1 - len(row))] for row in texts])


@pytest.fixture(scope="module")
def fires(meanings: Planted) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per layer: coefficients, own concept and previous concept at every word of the corpus from the second on."""
    tokens = tokens_of(meanings)
    concept = ((tokens - len(SPECIAL)) // WORDS).numpy()
    there = (tokens[:, 2:] > 1).numpy()
    found = []
    for layer in range(meanings.model.n_layers):
        mlp = meanings.pristine.transformer.h[layer].mlp
        with torch.no_grad():
            m = mlp.act(mlp.c_fc(ffn_inputs(meanings.pristine, layer, tokens)[:, 2:].float())).numpy()
        found.append((m[there], concept[:, 2:][there], concept[:, 1:-1][there]))
    return found


def names(planted: Planted) -> list[str]:
    """The stems of the concepts, by number: a word's first letters."""
    vocabulary = sorted(planted.model.tokenizer.get_vocab().items(), key=lambda item: item[1])[len(SPECIAL) :]
    return [vocabulary[i][0].strip()[:-2] for i in range(0, len(vocabulary), WORDS)]


def test_counts_are_the_shares(meanings: Planted) -> None:
    for layer in (0, 1):
        counts = Counter(meanings.truth[meanings.truth.layer == layer].meanings.tolist())
        for many, share in zip((*MEANINGS, 0), (*SHARES, 1 - sum(SHARES)), strict=True):
            assert abs(counts[many] - 48 * share) < 1


def test_truth_says_itself(meanings: Planted) -> None:
    """Numbers, names, verdict and strengths agree; only these columns."""
    truth = meanings.truth
    columns = ["layer", "neuron", "meanings", "verdict", "features", "strengths", "written", "leak"]
    assert truth.columns.tolist() == columns
    assert truth.groupby("layer").neuron.apply(list).tolist() == [list(range(48))] * 2
    known = {*names(meanings), *(f"after {name}" for name in names(meanings))}
    for row in truth.itertuples():
        features = [f for f in row.features.split(", ") if f]
        strengths = [float(s) for s in row.strengths.split(", ") if s]
        assert len(features) == len(set(features)) == len(strengths) == row.meanings
        assert set(features) <= known
        assert set(row.written.split(", ")) <= set(names(meanings))
        assert row.verdict == ("inactive" if not features else "monosemantic" if len(features) == 1 else "polysemantic")
        assert strengths[:1] in ([], [1.0])
        assert all(WEAKEST <= s <= 1 for s in strengths)
        assert np.isnan(row.leak) == (row.meanings == 0)
        if row.layer == 0:  # nothing there has seen the previous word
            assert not any(f.startswith("after ") for f in features)
    assert truth[truth.layer == 1].features.str.contains("after ").any()


def test_features_fire_their_neuron(meanings: Planted, fires: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """On the corpus, which is not what keys were solved on: each planted feature above all others, dead ones never."""
    number = {name: i for i, name in enumerate(names(meanings))}
    within = []
    for row in meanings.truth.itertuples():
        m, own, previous = fires[row.layer]
        m = m[:, row.neuron]
        if row.meanings == 0:
            assert (m <= 0).all()
            continue
        means = {name: m[own == i].mean() for name, i in number.items() if (own == i).any()}
        means |= {f"after {name}": m[previous == i].mean() for name, i in number.items() if (previous == i).any()}
        planted = [means.pop(name) for name in row.features.split(", ") if name in means]
        within.append(min(planted) > max(means.values()))
        assert np.mean(planted) > 3 * max(np.mean(list(means.values())), 0.01)
    assert np.mean(within) > 0.9


def test_leak_is_small(meanings: Planted) -> None:
    assert meanings.truth.leak.median() < 0.15
    assert (meanings.truth.leak.dropna() < 1).mean() > 0.95


def test_more_superposition_leaks_more() -> None:
    leaks = [
        plant_meanings(seed=1, n_layers=1, **{**SMALL, "superposition": s}).truth.leak.median() for s in (0.5, 4.0)
    ]
    assert leaks[1] > 2 * leaks[0]


def test_dead_neurons_cannot_fire(meanings: Planted) -> None:
    """No input of a norm without gain is longer than √d_model: the bias holds for every text, not for this one."""
    for layer in (0, 1):
        ffn = meanings.model.ffn[layer]
        dead = meanings.truth[(meanings.truth.layer == layer) & (meanings.truth.meanings == 0)].neuron.tolist()
        assert dead
        assert ffn.key_bias is not None
        reach = ffn.keys.detach().norm(dim=-1) * meanings.model.d_model**0.5 + ffn.key_bias.detach()
        assert (reach[dead] < 0).all()
        living = [i for i in range(48) if i not in dead]
        lengths = ffn.keys.detach().norm(dim=-1)
        assert 0.5 < lengths[dead].mean() / lengths[living].mean() < 2  # a dead one's key does not give it away


def test_values_write_what_the_truth_says(meanings: Planted) -> None:
    """The words that a value promotes most are of the concepts written."""
    unembedding = meanings.model.unembedding.detach()[len(SPECIAL) :]
    stems = names(meanings)
    for row in meanings.truth[meanings.truth.meanings == 1].itertuples():
        logits = unembedding @ meanings.model.ffn[row.layer].values.detach()[row.neuron]
        top = {stems[int(i) // WORDS] for i in logits.topk(WORDS).indices}
        assert top == {row.written}


def test_same_seed_same_model() -> None:
    one, same, other = (plant("meanings", seed=seed, n_layers=2, **SMALL) for seed in (5, 5, 6))
    weights = [dict(p.pristine.named_parameters()) for p in (one, same, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert one.texts == same.texts
    assert one.truth.equals(same.truth)
    assert not all(torch.equal(weights[0][n], weights[2][n]) for n in weights[0] if weights[2][n].shape)
    assert one.texts != other.texts
    assert one.settings == {
        "seed": 5, "n_features": 16, "neurons": 24, "superposition": 1.0, "noise": 0.7, "words": 8, "n_layers": 2,
        "n_tokens": 2000,
    }  # fmt: skip


def test_sizes_are_as_asked() -> None:
    planted = plant_meanings(seed=0, n_layers=3, words=5, **SMALL)
    model = planted.model
    assert (model.n_layers, model.d_mlp, model.d_vocab) == (3, 24, len(SPECIAL) + 16 * 5)
    assert len(planted.truth) == 72
    assert abs(sum(text.count(" ") + 1 for text in planted.texts) - 2000) <= 50
    assert planted.truth[planted.truth.layer == 2].leak.median() < 0.5


def test_text_has_unequal_concepts_and_equal_words() -> None:
    text = Text(16, 4, np.random.default_rng(0))
    drawn = text.draw(40_000)
    shares = np.bincount(drawn // 4, minlength=16) / len(drawn)
    assert allclose(shares, text.shares, 0.01)
    assert shares.max() > 2 * shares.min()
    assert allclose(np.bincount(drawn % 4) / len(drawn), np.full(4, 0.25), 0.01)
    rows = text.full_rows(1000)
    assert rows.shape == (1000 // (CONTEXT - 1), CONTEXT)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:] >= len(SPECIAL)).all()
    assert all(10 <= len(row) <= 50 for row in text.documents(500))


def test_largest_remainders_sum() -> None:
    assert largest_remainders((0.5, 0.3, 0.2), 10) == [5, 3, 2]
    assert largest_remainders((0.4, 0.4, 0.2), 3) == [1, 1, 1]
    assert [sum(largest_remainders((*SHARES, 1 - sum(SHARES)), n)) for n in range(30)] == list(range(30))


def test_active_and_means() -> None:
    rows = torch.tensor([[0, 2, 5, 7]])  # concepts of two words: BOS, 0, 1, 2
    features = active(rows, 2, 3)
    assert features.tolist() == [[0, 6], [1, 3], [2, 4]]
    means = mean_by(features, torch.tensor([[5.0], [1.0], [3.0]]), 7)
    assert means[[0, 1, 2, 3, 4, 6], 0].tolist() == [5.0, 1.0, 3.0, 1.0, 3.0, 5.0]
    assert means[5].isnan().all()


def test_plans_are_of_different_features() -> None:
    planned = plan_layer(np.random.default_rng(0), 50, 16, 32)
    strengths = strengths_of(planned, 32)
    for neuron, row in zip(planned, strengths, strict=True):
        assert len(set(neuron.features)) == len(neuron.features)
        assert int((row > 0).sum()) == len(neuron.features)
        assert max(neuron.written) < 16
    assert {len(n.features) for n in planned} == {0, *MEANINGS}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"n_features": 7}, ("n_features", "8", "7")),
        ({"neurons": 0}, ("neurons", "0")),
        ({"words": 1}, ("words", "2", "1")),
        ({"words": 71}, ("words", "70", "71")),
        ({"n_layers": 0}, ("n_layers", "0")),
        ({"n_tokens": 100}, ("n_tokens", "2,000", "100")),
        ({"superposition": 0.0}, ("superposition", "0.0")),
        ({"superposition": float("inf")}, ("superposition", "inf")),
        ({"superposition": 1e-4}, ("superposition", "0.0001", "4,096")),
        ({"superposition": 5e-324}, ("superposition", "4,096")),
        ({"noise": -0.1}, ("noise", "-0.1")),
        ({"noise": float("nan")}, ("noise", "nan")),
        ({"n_features": 400_000}, ("concepts", "400000")),
    ],
)
def test_mistakes(wrong: dict[str, float], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        plant_meanings(**wrong)  # type: ignore[arg-type]
