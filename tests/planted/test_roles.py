"""Planted roles hold by their definition, on weights and on text, for several seeds; and the toolkit finds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from ffnmem.planted import Planted
from ffnmem.planted.roles import CONTEXT, D_MODEL, RATES, ROLES, plant_roles
from ffnmem.planted.skeleton import SPECIAL, ffn_inputs

SIZES = {"n_layers": 2, "neurons": 72, "per_role": 6, "n_words": 768, "n_tokens": 16_000}
RANDOM = 1 / D_MODEL  # the variance of a random direction's cosines


@dataclass(frozen=True)
class Measured:
    """A planted model with what its weights and its text say, computed here by the definitions."""

    planted: Planted
    frame: pd.DataFrame
    cosines: np.ndarray
    logits: np.ndarray
    fires: np.ndarray
    tokens: np.ndarray
    positions: np.ndarray

    def of(self, role: str) -> pd.DataFrame:
        return self.frame[self.frame.role == role]

    def ids(self, detail: str) -> list[int]:
        """The token ids of words listed in a detail."""
        return self.planted.model.tokenizer(" ".join(detail.split(", ")), add_special_tokens=False)["input_ids"]


def measure(planted: Planted) -> Measured:
    model = planted.model
    unembedding = model.unembedding.detach().double()
    values = torch.cat([model.ffn[layer].values for layer in range(model.n_layers)]).detach().double()
    logits = (values @ unembedding.T)[:, len(SPECIAL) :]
    cosines = logits / values.norm(dim=-1, keepdim=True) / unembedding.norm(dim=-1)[len(SPECIAL) :]
    texts = [[0, *row] for row in model.tokenizer(list(planted.texts), add_special_tokens=False)["input_ids"]]
    tokens = torch.tensor([row + [0] * (CONTEXT - len(row)) for row in texts])
    content = tokens != 0
    fires, io = [], []
    for layer in range(model.n_layers):
        ffn = model.ffn[layer]
        keys = ffn.keys.detach().double()
        assert ffn.key_bias is not None
        fires.append(ffn_inputs(planted.pristine, layer, tokens)[content] @ keys.T + ffn.key_bias.detach().double() > 0)
        io.append(torch.cosine_similarity(keys, ffn.values.detach().double()))
    frame = planted.truth.assign(io_cosine=torch.cat(io).numpy(), norm=values.norm(dim=-1).numpy())
    return Measured(
        planted,
        frame,
        cosines.numpy(),
        logits.numpy(),
        torch.cat(fires, dim=1).numpy(),
        tokens[content].numpy(),
        torch.arange(CONTEXT).expand_as(tokens)[content].numpy(),
    )


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.exhaustive)])
def measured(request: pytest.FixtureRequest) -> Measured:
    return measure(plant_roles(seed=request.param, **SIZES))


def information(fires: np.ndarray, positions: np.ndarray) -> float:
    """I(fires; position) in nats, its bias taken off."""
    table = np.array([np.bincount(positions[fires == side], minlength=CONTEXT)[1:] for side in (False, True)])
    joint = table / table.sum()
    independent = joint.sum(0) * joint.sum(1, keepdims=True)
    plain = np.sum(joint * np.log(np.where(joint > 0, joint, 1) / np.where(joint > 0, independent, 1)))
    return float(plain - (joint.shape[1] - 1) / (2 * table.sum()))


def test_the_truth_has_a_row_for_every_neuron(measured: Measured) -> None:
    truth = measured.planted.truth
    assert list(truth.columns) == ["layer", "neuron", "role", "io", "detail"]
    assert truth[["layer", "neuron"]].to_numpy().tolist() == [[i, j] for i in range(2) for j in range(72)]
    counts = pd.crosstab(truth.role, truth.layer)
    for role in ROLES[:-1]:
        assert counts.loc[role].tolist() == [0 if role == "entropy" else 6, 6]
    for io, count, low, high in (("strengthening", 6, 0.5, 1), ("weakening", 6, -1, -0.5), ("none", 60, -0.25, 0.25)):
        assert (truth.io == io).groupby(truth.layer).sum().tolist() == [count] * 2
        assert measured.frame.io_cosine[truth.io == io].between(low, high).all()  # of key and value
    named = ["prediction", "suppression", "partition", "entropy", "position", "frequency", "detector"]
    assert sorted(truth.role[truth.detail != ""].unique()) == sorted(named)
    ways = truth[truth.role.isin(["partition", "frequency"])].detail.str.split().str[-1]
    assert set(ways) == {"up", "down"}


# -- what values write -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "sign"), [("prediction", 1), ("suppression", -1)])
def test_predicted_and_suppressed_tokens_stand_out(measured: Measured, role: str, sign: int) -> None:
    for i, row in measured.of(role).iterrows():
        own = sorted(measured.ids(row.detail))
        extreme = np.argsort(-sign * measured.cosines[i], kind="stable")[: len(own)] + len(SPECIAL)
        assert sorted(extreme.tolist()) == own
        assert stats.kurtosis(measured.cosines[i]) > 10
        assert sign * stats.skew(measured.cosines[i]) > 0
    others = measured.frame.index[~measured.frame.role.isin(["prediction", "suppression"])]
    assert stats.kurtosis(measured.cosines[others], axis=1).max() < 3


def test_partition_neurons_split_the_vocabulary_by_the_letter_they_name(measured: Measured) -> None:
    """Far beyond .005 (and 5 times what is random), with nearly every word on the side that its letter says."""
    words = [word.strip() for word in measured.planted.model.token_strings(range(len(SPECIAL), 770))]
    for i, row in measured.of("partition").iterrows():
        place, _, *letters, way = row.detail.split()
        expected = np.array([1 if word[int(place[0]) - 1] in letters else -1 for word in words])
        sides = np.sign(measured.cosines[i]) * (1 if way == "up" else -1)
        assert (sides == expected).mean() > 0.95
        assert measured.cosines[i].var() > max(0.005, 5.12 * RANDOM)
    others = measured.frame.index[measured.frame.role != "partition"]
    assert measured.cosines[others].var(axis=1).max() < 0.005


def test_entropy_neurons_lower_all_logits_alike(measured: Measured) -> None:
    """Large, in the last layer, and without a logit of their own: through the norm they only scale what is there."""
    found = measured.of("entropy")
    assert set(found.layer) == {1}
    usual = np.median(measured.frame.norm)
    final = torch.randn(64, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unembedding = measured.planted.model.unembedding.detach().double()
    values = measured.planted.model.ffn[1].values.detach().double()
    for i, row in found.iterrows():
        assert row.norm > 2.5 * usual
        assert measured.cosines[i].var() < 0.2 * RANDOM
        value = values[row.neuron]
        before, after = (
            torch.nn.functional.layer_norm(x, (D_MODEL,)) @ unembedding.T
            for x in (final, final + 40 * value / row.norm)
        )
        assert before.log_softmax(-1).exp().pow(2).sum() > after.log_softmax(-1).exp().pow(2).sum()
        assert np.corrcoef(before.flatten(), after.flatten())[0, 1] > 0.85


def test_frequency_neurons_move_logits_along_log_frequency(measured: Measured) -> None:
    words = " ".join(measured.planted.texts).split()
    counts = pd.Series(words).value_counts()
    names = [word.strip() for word in measured.planted.model.token_strings(range(len(SPECIAL), 770))]
    frequency = np.log1p(counts.reindex(names, fill_value=0))
    for i, row in measured.of("frequency").iterrows():
        sign = 1 if row.detail == "frequent tokens up" else -1
        assert sign * np.corrcoef(measured.logits[i], frequency)[0, 1] > 0.9
    for i in measured.of("none").index:
        assert abs(np.corrcoef(measured.logits[i], frequency)[0, 1]) < 0.4


# -- when neurons fire -------------------------------------------------------------------------------------------------


def test_detectors_fire_for_their_tokens_and_nothing_else(measured: Measured) -> None:
    """Each for nearly all occurrences, and nearly nothing else; a few may be worn away by the noise."""
    good = []
    for i, row in measured.of("detector").iterrows():
        own = np.isin(measured.tokens, measured.ids(row.detail))
        assert 1 <= len(measured.ids(row.detail)) <= 5
        fires = measured.fires[:, i]
        good.append(fires[own].mean() > 0.95 and own[fires].mean() > 0.95)
        assert fires[own].mean() > 0.6
    assert np.mean(good) >= 0.75


def test_only_position_neurons_tell_positions(measured: Measured) -> None:
    """Their firings carry more than .05 nats about it, others' less; the dead never fire, all others do."""
    assert (measured.fires.any(0) == (measured.frame.role != "dead")).all()
    rates = measured.fires[:, ~measured.frame.role.isin(["dead", "detector", "position"])].mean(0)
    assert RATES[0] < np.median(rates) < RATES[1]  # no easy case either
    for i, row in measured.frame.iterrows():
        fires = measured.fires[:, i]
        if row.role == "position":
            first, last = (int(word) for word in row.detail.removeprefix("positions ").split(" to "))
            inside = (measured.positions >= first) & (measured.positions <= last)
            assert information(fires, measured.positions) > 0.05
            assert fires[inside].mean() > 2 * fires[~inside].mean()
        else:
            assert information(fires, measured.positions) < 0.05


def test_without_noise_directions_are_exact() -> None:
    found = measure(plant_roles(seed=2, noise=0.0, **{**SIZES, "n_layers": 1, "neurons": 54}))
    for role, bar in (("entropy", 0.05), ("none", 2.0)):
        assert found.cosines[found.of(role).index].var(axis=1).max() < bar * RANDOM
    free = found.frame[~found.frame.role.isin(["detector", "position"])]  # whose keys are not solved for
    assert free.io_cosine[free.io == "none"].abs().max() < 0.02
    assert free.io_cosine[free.io != "none"].abs().between(0.65, 0.95).all()
    split = found.of("partition").index
    assert np.allclose(np.abs(found.cosines[split]).std(1) / np.abs(found.cosines[split]).mean(1), 0, atol=0.05)
