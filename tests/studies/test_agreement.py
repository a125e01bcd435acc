"""Values against what follows their keys' triggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.scanning import Store
from ffnmem.studies.agreement import (
    Agreement,
    agreement_table,
    agreements,
    confident_table,
    predictions,
    unigram,
)
from ffnmem.studies.prefixes import followers


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> list[Agreement]:
    return agreements(tiny, tiny_store, basis="folded", seed=0)


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_predictions_are_the_projections(tiny: fm.Model, basis: str) -> None:
    """The top token is project's; its probability and the ranks are those of the whole softmax."""
    asked = np.stack([np.arange(64), np.full(64, -1)])
    mine = predictions(tiny, 1, asked, basis)
    rows = fm.project(tiny, 1, k=tiny.d_vocab, basis=basis, side="value").query("sign == 'promoted'")
    for neuron, group in rows.groupby("neuron"):
        assert mine.token[neuron] == group["token_id"].iloc[0]
        p = torch.tensor(group["score"].to_numpy()).softmax(0)
        assert mine.probability[neuron] == pytest.approx(float(p[0]), rel=1e-4)
        assert mine.ranks[0, neuron] == group.loc[group["token_id"] == neuron, "rank"].iloc[0]
    assert not mine.ranks[1].any()


def test_the_trigger_is_the_best_prefix_that_a_token_follows(tiny_store: Store, found: list[Agreement]) -> None:
    at_once = 0
    for layer, agreement in enumerate(found):
        for neuron in range(64):
            rows = tiny_store.example_rows(layer, neuron, kind="top").query("coefficient > 0")
            at = (rows[name].to_numpy(np.int64) for name in ("sequence", "position"))
            following = followers(tiny_store.sequences, *at)
            expected = next((int(token) for token in following if token >= 0), -1)
            assert agreement.following[neuron] == expected
            at_once += len(following) > 0 and following[0] >= 0
    assert 0 < at_once < 128  # or the rule was not needed


def test_table_against_single_keys(tiny: fm.Model, tiny_store: Store, found: list[Agreement]) -> None:
    table = agreement_table(found, tiny_store, tiny.d_vocab)
    shares = unigram(tiny_store)
    for row, agreement in zip(table.itertuples(), found, strict=True):
        pairs = [(int(w), int(t)) for w, t in zip(agreement.following, agreement.values.token, strict=True) if w >= 0]
        assert row.keys == 64
        assert row.without == 64 - len(pairs)
        assert row.agreement == pytest.approx(np.mean([w == t for w, t in pairs]))
        assert row.unigram == pytest.approx(np.mean([shares[t] for _, t in pairs]))
        others = [w == t for i, (w, _) in enumerate(pairs) for j, (_, t) in enumerate(pairs) if i != j]
        assert row.shuffled == pytest.approx(np.mean(others))
        assert row.uniform == 1 / tiny.d_vocab
        ranks = [agreement.values.ranks[0, n] for n in range(64) if agreement.following[n] >= 0]
        assert row.rank_50 == np.median(ranks)
        assert row.low <= row.agreement <= row.high


def test_a_model_whose_values_say_what_follows(make_tiny: Callable[..., fm.Model], tiny_store: Store) -> None:
    """Values written as the embedding of what follows: every key agrees, every rank is 1."""
    model = make_tiny()
    told = agreements(model, tiny_store, basis="raw", seed=0)
    with torch.no_grad():
        unit = model.unembedding / model.unembedding.norm(dim=-1, keepdim=True)
        model.unembedding.copy_(unit)
        for layer, agreement in enumerate(told):
            kept = torch.from_numpy(np.maximum(agreement.following, 0))
            model.ffn[layer].values.copy_(9 * unit[kept])
    # The triggers stay those of the store: only what the values say is asked.
    table = agreement_table(agreements(model, tiny_store, basis="raw", seed=0), tiny_store, model.d_vocab)
    assert table["agreement"].tolist() == [1, 1]
    assert table["rank_95"].tolist() == [1, 1]
    assert (table["random_rank_50"] > 1).any()
    assert (table["shuffled"] < 0.5).all()


def test_unigram(tiny_store: Store) -> None:
    shares = unigram(tiny_store)
    counts: Counter[int] = Counter()
    for number in range(len(tiny_store.sequences)):
        counts.update(tiny_store.sequences.sequence_tokens(number).tolist())
    assert shares.sum() == pytest.approx(1)
    assert shares[0] == 0  # BOS
    assert shares.argmax() == max((n, -t) for t, n in counts.items() if t)[1] * -1


def test_confident_table(tiny: fm.Model, tiny_store: Store, found: list[Agreement]) -> None:
    table = confident_table(found, tiny, tiny_store, 30)
    every = np.concatenate([agreement.values.probability for agreement in found])
    assert table["probability"].tolist() == pytest.approx(sorted(every, reverse=True)[:30])
    for row in table.itertuples():
        rows = found[row.layer].triggers.query("neuron == @row.neuron and follower >= 0")
        texts = tiny.token_strings(rows["follower"].tolist())
        token = tiny.token_strings([int(found[row.layer].values.token[row.neuron])])[0]
        assert row.predicted_token == token
        assert row.agreeing == texts.count(token) or "�" in token
        assert row.triggers == len(rows)
        assert bool(row.prefix) == bool(len(rows))
