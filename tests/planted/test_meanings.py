"""Planted meanings hold on the text: neurons fire for their concepts, not for others, and never where they are dead."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.planted import Planted, plant
from ffnmem.planted.meanings import MEANINGS, SHARES, WEAKEST
from ffnmem.planted.skeleton import SPECIAL
from ffnmem.prompts import Capture

from ..helpers import allclose, refuses

WORDS, NEURONS, EXPERTS = 8, 48, 3
SMALL: dict[str, Any] = {"n_features": 16, "neurons": 24, "n_tokens": 2000, "superposition": 1.0}


@pytest.fixture(scope="module", params=["dense", "mixture"])
def planted(request: pytest.FixtureRequest, meanings: Planted) -> Planted:
    if request.param == "dense":
        return meanings
    return plant("meanings", **{**meanings.settings, "experts": EXPERTS})


@pytest.fixture(scope="module")
def capture(planted: Planted) -> Capture:
    return fm.capture(planted.model, list(planted.texts[:150]), prepend_bos=True)


def names(planted: Planted) -> list[str]:
    """The stems of the concepts, by number: a word's first letters."""
    vocabulary = sorted(planted.model.tokenizer.get_vocab().items(), key=lambda item: item[1])[len(SPECIAL) :]
    return [vocabulary[i][0].strip()[:-2] for i in range(0, len(vocabulary), WORDS)]


def listed(text: str) -> list[str]:
    return [part for part in text.split(", ") if part]


def test_truth_says_itself(planted: Planted) -> None:
    """Numbers, names, shares, verdict and strengths agree; only these columns."""
    truth, experts = planted.truth, planted.settings["experts"]
    columns = ["layer", "neuron", "meanings", "verdict", "features", "strengths", "written", "leak"]
    if experts:
        columns = [*columns[:2], "expert", *columns[2:], "routed"]
    assert truth.columns.tolist() == columns
    assert truth.groupby("layer").neuron.apply(list).tolist() == [list(range(NEURONS))] * 2
    known = {*names(planted), *(f"after {name}" for name in names(planted))}
    for row in truth.itertuples():
        features, strengths = listed(row.features), [float(s) for s in listed(row.strengths)]
        assert len(features) == len(set(features)) == len(strengths) == row.meanings
        assert set(features) <= known
        assert set(listed(row.written)) <= set(names(planted))
        assert row.verdict == ("inactive" if not features else "monosemantic" if len(features) == 1 else "polysemantic")
        assert strengths[:1] in ([], [1.0])
        assert all(WEAKEST <= s <= 1 for s in strengths)
        assert np.isnan(row.leak) == (row.meanings == 0)
        assert row.layer or "after" not in row.features  # nothing there has seen the previous word
    assert truth[truth.layer == 1].features.str.contains("after ").any()
    for _, rows in truth.groupby(["layer", "expert"] if experts else ["layer"]):
        counts = Counter(rows.meanings)
        for many, share in zip((*MEANINGS, 0), (*SHARES, 1 - sum(SHARES)), strict=True):
            assert abs(counts[many] - len(rows) * share) < 1


def test_features_fire_their_neuron(planted: Planted, capture: Capture) -> None:
    """On the corpus, which is not what keys were solved on: each planted feature above all others, dead ones never."""
    concept = (capture.tokens - len(SPECIAL)) // WORDS
    there = (capture.mask & (capture.tokens > 1))[:, 2:]
    own, previous = concept[:, 2:][there].numpy(), concept[:, 1:-1][there].numpy()
    number, within = {name: i for i, name in enumerate(names(planted))}, []
    for row in planted.truth.itertuples():
        m = capture.coefficients[row.layer][:, 2:, row.neuron][there].numpy()
        if row.meanings == 0:
            assert (m <= 0).all()
            continue
        goes = m != 0 if planted.settings["experts"] else np.ones(len(m), bool)
        means = {name: m[goes & (own == i)].mean() for name, i in number.items() if (goes & (own == i)).any()}
        after = {f"after {name}": goes & (previous == i) for name, i in number.items()}
        means |= {name: m[places].mean() for name, places in after.items() if places.any()}
        features = [means.pop(name) for name in listed(row.features) if name in means]
        within.append(min(features) > max(means.values()))
        assert np.mean(features) > 3 * max(np.mean(list(means.values())), 0.01)
    assert np.mean(within) > 0.85
    assert planted.truth.leak.median() < 0.25
    assert (planted.truth.leak.dropna() < 1).mean() > 0.9


def test_dead_neurons_cannot_fire(planted: Planted) -> None:
    """No input of a norm without gain is longer than √d_model: the bias holds for every text, not for this one."""
    for layer, ffn in enumerate(planted.model.ffn):
        opens = (ffn.keys if ffn.gates is None else ffn.gates).detach().double()
        # A mixture has no biases: what all inputs share, the same number in every dimension, stands for one.
        bias = torch.zeros(len(opens)) if ffn.key_bias is None else ffn.key_bias.detach()
        level = opens.mean(-1, keepdim=True)
        lengths = (opens - level).norm(dim=-1)
        if ffn.gates is not None:
            lowest = fm.capture(planted.model, planted.texts[0]).ffn_in[layer][0].sum(-1).min()
            bias = level[:, 0] * lowest
        is_dead = (planted.truth[planted.truth.layer == layer].meanings == 0).to_numpy(copy=True)
        assert is_dead.any()
        assert ((lengths * planted.model.d_model**0.5 + bias)[is_dead] < 0).all()
        assert 0.5 < lengths[is_dead].mean() / lengths[~is_dead].mean() < 2  # a dead one's key does not give it away


def test_values_write_what_the_truth_says(planted: Planted) -> None:
    """The words that a value promotes most are of the concepts written."""
    unembedding, stems = planted.model.unembedding.detach()[len(SPECIAL) :], names(planted)
    for row in planted.truth[planted.truth.meanings == 1].itertuples():
        logits = unembedding @ planted.model.ffn[row.layer].values.detach()[row.neuron]
        assert {stems[int(i) // WORDS] for i in logits.topk(WORDS).indices} == {row.written}


def test_experts_are_given_the_words_of_their_neurons(planted: Planted, capture: Capture) -> None:
    """A role would be of an expert that its words never reach, or a name, 1.e2.5, mean another neuron."""
    if not planted.settings["experts"]:
        with refuses(InputError, ValueError, "no experts"):
            capture.routing()
        return
    routing = capture.routing().query("position > 0")
    stem = routing["token"].str.strip().str[:-2]
    goes = set(zip(routing["layer"], stem, routing["expert"], strict=True))
    assert len(goes) == 2 * 2 * len(names(planted))  # in each layer a concept goes to two experts, all of its words
    first, second = ({(name, expert) for at, name, expert in goes if at == layer} for layer in (0, 1))
    assert first != second
    for row in planted.truth.itertuples():
        own = [name for name in listed(row.features) if "after" not in name]
        assert {(row.layer, name, row.expert) for name in own} <= goes
        assert row.routed == 1 or "after" in row.features or row.meanings == 0
        assert planted.model.neuron(f"{row.layer}.e{row.expert}.{row.neuron % (NEURONS // EXPERTS)}") == row.neuron
    weights = routing.groupby(["layer", "prompt", "position"])["weight"].agg(["max", "sum", "size"])
    assert allclose(weights["sum"], np.ones(len(weights)), 1e-5)
    assert (weights["size"] == 2).all()
    assert weights["max"].mean() == pytest.approx(0.6, abs=0.01)  # and .4, as planted
    between = [set(truth["expert"]) for _, truth in planted.truth.groupby("layer")]
    assert between == [set(range(EXPERTS))] * 2


def test_more_superposition_leaks_more() -> None:
    few, much = (plant("meanings", seed=1, n_layers=1, **{**SMALL, "superposition": s}).truth.leak for s in (0.5, 4.0))
    assert much.median() > 2 * few.median()


@pytest.mark.parametrize("experts", [0, 2])
def test_sizes_are_as_asked(experts: int) -> None:
    """And a mixture's chance is all of its seed too."""
    planted, same = (plant("meanings", seed=0, n_layers=3, words=5, experts=experts, **SMALL) for _ in range(2))
    model = planted.model
    assert model.fingerprint == same.model.fingerprint
    assert planted.settings == {**SMALL, "seed": 0, "noise": 0.7, "words": 5, "n_layers": 3, "experts": experts}
    assert (model.n_layers, model.d_mlp, model.d_vocab) == (3, 24, len(SPECIAL) + 16 * 5)
    assert len(planted.truth) == 72
    assert abs(sum(text.count(" ") + 1 for text in planted.texts) - 2000) <= 50
    assert planted.truth[planted.truth.layer == 2].leak.median() < 0.5
