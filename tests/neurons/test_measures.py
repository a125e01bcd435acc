"""The measures of neurons, and verdicts: each number as SciPy has it draw by draw, known answers, honest by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from scipy import stats
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons import Rule, clustering
from ffnmem.neurons.inputs import MOST, Firing, Inputs, background_of, normalise
from ffnmem.neurons.sample_measures import (
    Sample,
    coefficients,
    excess_kurtosis,
    firing_rate,
    own_keys,
    random_keys,
    sample_measures,
    token_sample,
)
from ffnmem.neurons.verdicts import (
    RULE,
    Estimate,
    interval,
    p_values,
    share_interval,
    unseen_number,
    unseen_share,
    verdicts,
)
from ffnmem.scanning import Store
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import PROMPT, allclose

D, DRAWS = 24, 20
NAMES = ("meanings", "ms")


class Made:
    """Neurons of 1, 2, 3, … directions with noise, as if read from a text; place i is row i. ``apart``: how long the
    directions are, 0 for none.

    With this seed no cosine is within 1e-5 of a cut, where rounding would decide.
    """

    def __init__(self, n: int = clustering.BLOCK + 6, apart: float = 3.0, seed: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.background = background_of(random.standard_normal((1500, D)).astype(np.float32))
        self.rows = random.standard_normal((n * MOST, D)).astype(np.float32)
        counts = random.integers(0, MOST + 1, n) if apart else np.full(n, 24)
        counts[:4] = (MOST, 0, 1, 2)
        strengths = -np.sort(-random.uniform(0.5, 1.0, (n, MOST)), axis=1)
        directions = random.standard_normal((n, 3, D)) * apart
        which = random.integers(0, 3, (n, MOST)) % (1 + np.arange(n) % 3)[:, None]
        self.rows += directions[np.arange(n)[:, None], which].reshape(-1, D).astype(np.float32)
        there, places = np.arange(MOST) < counts[:, None], np.arange(n * MOST).reshape(n, MOST)
        parts = np.where(there, places, -1), np.where(there, strengths, 0.0)
        self.firing = Firing(0, np.arange(n), *parts, strengths[:, 0])

    def some(self, which: np.ndarray, seed: int = 0) -> clustering.Examples:
        f, draws = self.firing, clustering.Draws(DRAWS, seed, len(self.background.units))
        few = Firing(0, f.neurons[which], f.places[which], f.strengths[which], f.extreme[which])
        return clustering.Examples(few, lambda places: self.rows[places], self.background, draws)


def grouped(similarity: np.ndarray, rows: np.ndarray, cut: float) -> np.ndarray:
    """SciPy's average linkage of some rows, of which one may come more than once."""
    distance = np.clip(1 - similarity[np.ix_(rows, rows)].astype(np.float64), 0, None)
    distance[rows[:, None] == rows] = 0
    return fcluster(linkage(squareform(distance, checks=False), "average"), 1 - cut, "distance")


def number(labels: np.ndarray, weights: np.ndarray) -> float:
    return float(np.exp(stats.entropy(np.bincount(labels, weights))))


def mean_cosine(similarity: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> float:
    """Of all pairs of different rows, weighted by the product of their weights; NaN without one."""
    pairs = np.outer(weights, weights) * (rows[:, None] != rows)
    return float((pairs * similarity[np.ix_(rows, rows)]).sum() / pairs.sum()) if pairs.any() else np.nan


def summed(drawn: np.ndarray, n: int | None) -> list[float]:
    """Value, interval, null and p from the value, its bootstrap and its null draws; ``n``: examples of a number."""
    value, again, null = drawn[0], drawn[1 : 1 + DRAWS], drawn[1 + DRAWS :]
    low, middle, high = np.nanquantile(again, [0.025, 0.5, 0.975])
    if n is None:
        return [value, low, high, null.mean(), (1 + (null >= value).sum()) / (1 + DRAWS)]
    high = max(value * high / middle, value, float(unseen_number(np.array([n]))[0]))
    return [value, max(value * low / middle, 1.0), high, null.mean(), (1 + (null <= value).sum()) / (1 + DRAWS)]


def test_each_number_is_scipys() -> None:
    """One neuron and one draw at a time, and which example is of which meaning."""
    made, compared = Made(), 0
    f, background, examples = made.firing, made.background, made.some(np.arange(clustering.BLOCK + 6))
    found, estimates, draws = examples.sorted, examples.estimates(*NAMES), examples.draws
    for row in [*range(8), 40, 66, 69]:
        n, labels = int(f.counts[row]), found.labels[row]
        own = np.arange(n)
        parts = {
            name: [getattr(e, p)[row] for p in ("value", "low", "high", "null", "p")] for name, e in estimates.items()
        }
        assert (labels[n:] == -1).all()
        if n < 2:
            assert np.isnan([*parts.values()]).all()
            assert labels[:n].tolist() == [0] * n
            continue
        inputs, weights = made.rows[f.places[row, :n]], f.strengths[row, :n]
        units = normalise((inputs.astype(np.float64) - background.mean) @ background.whiten)
        similarity = units @ units.T
        again = [np.repeat(own, times) for times in draws.multiplicity[n, :, :n]]
        drawn = [(similarity, rows, weights[rows]) for rows in (own, *again)]
        drawn += [(background.cosines, picks[:n], weights) for picks in draws.picks]
        meanings = np.array([number(grouped(s, rows, background.cut), w) for s, rows, w in drawn])
        ms = np.array([mean_cosine(*one) for one in drawn])
        np.testing.assert_allclose(found.meanings[row], meanings, rtol=1e-5)
        np.testing.assert_allclose(found.ms[row], ms, rtol=1e-4, atol=1e-5)
        assert allclose(parts["meanings"], summed(found.meanings[row], n), 1e-9)
        assert allclose(parts["ms"], summed(found.ms[row], None), 1e-9)
        groups = grouped(similarity, own, background.cut)
        shares = sorted({(-weights[groups == g].sum(), np.flatnonzero(groups == g)[0], g) for g in groups})
        assert labels[:n].tolist() == [[g for *_, g in shares].index(g) for g in groups]
        compared += 1
    assert compared > 5


def test_chance_is_seldom_notable() -> None:
    """Of examples at random inputs p is below .05 in 5% of neurons, and a bit of chance more."""
    made = Made(n=404, apart=0.0, seed=100)
    found = [made.some(np.arange(4 + seed, 404, 4), seed).estimates(*NAMES) for seed in range(4)]
    for name in NAMES:
        p = np.concatenate([one[name].p for one in found])
        assert np.isfinite(p).all()
        assert (p < 0.05).sum() <= stats.binom(len(p), 0.05).ppf(0.999)
        assert (p < 0.5).mean() <= 0.65


def test_draws() -> None:
    """Bootstrap draws of any number of examples, whatever the most; rows for the null that differ where they can."""
    found = clustering.draw_multiplicities(10, 4000, 3)
    for n in (1, 4, 10):
        assert (found[n, :, :n].sum(1) == n).all()
        assert not found[n, :, n:].any()
        assert allclose(found[n, :, :n].mean(0), np.ones(n), 0.1)
    assert np.array_equal(found[:6, :, :5], clustering.draw_multiplicities(5, 4000, 3))
    for size in (50, 7):  # of 7, others would be rows behind the background's end
        picks = clustering.draw_null_rows(size, 40, 30, 0)
        assert all(len(set(row[:size])) == min(size, 40) and max(row) < size for row in picks.tolist())
        assert len({tuple(row) for row in picks.tolist()}) == 30


# -- firing rate and kurtosis at random positions ----------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "firing_rate": lambda x: (x > 0).mean(1),
    "kurtosis": lambda x: stats.kurtosis(x.astype(np.float64), axis=1),
}
NOTABLE = {"firing_rate": "less", "kurtosis": "greater"}


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_sample_measures_are_those_of_plain_draws(tiny: fm.Model, tiny_store: Store, sign: str) -> None:
    """Value, bootstrap over sequences, and null of random keys; kurtosis has no sign, firing has."""
    sample, ffn, factor = token_sample(tiny_store), tiny.ffn[1], 1 if sign == "positive" else -1
    with Inputs(tiny_store, tiny, {1: sample.places}) as inputs:
        x = np.array(inputs.at(1, sample.places))
    found = sample_measures(tiny, -1, sample, x, sign=sign, seed=4, draws=25)

    def coefficient(keys: torch.Tensor, bias: torch.Tensor | None) -> np.ndarray:
        pre = x @ keys.detach().numpy().T + bias.detach().numpy()  # type: ignore[union-attr]
        return torch.nn.functional.gelu(torch.from_numpy(pre), approximate="tanh").numpy().T

    own = factor * coefficient(ffn.keys, ffn.key_bias)
    chance = factor * coefficient(*random_keys(tiny, 1, torch.from_numpy(x).mean(0), [4, 1])[0][0])
    n = len(sample.lengths)
    of = [np.flatnonzero(sample.sequences == s) for s in range(n)]
    times = np.random.default_rng([4, 5]).multinomial(n, np.full(n, 1 / n), 25)
    drawn = [own[:, np.concatenate([np.tile(of[s], t) for s, t in enumerate(draw)])] for draw in times]
    assert list(found) == list(PLAIN)
    for name, plain in PLAIN.items():
        value, null = plain(own), plain(chance)
        some = (own.std(1) > 1e-6) & (value > 0) & (value < 1) if name == "firing_rate" else own.std(1) > 1e-6
        low, high = np.quantile([plain(part) for part in drawn], [0.025, 0.975], axis=0)
        assert allclose(found[name].value[some], value[some], 1e-4)
        assert allclose(found[name].low[some], np.minimum(low, value)[some], 1e-4)
        assert allclose(found[name].high[some], np.maximum(high, value)[some], 1e-4)
        assert allclose(found[name].null, np.full(64, null.mean()), 1e-4)
        assert allclose(found[name].p[some], p_values(value, null[None], NOTABLE[name])[some], 0.01)


def test_never_and_always() -> None:
    """Nothing seen is not nothing there; what does not vary has no tails."""
    made, weights = Sample(place_of(np.repeat(np.arange(40), 50), np.tile(np.arange(50), 40))), np.ones((40, 3))
    x = np.stack([np.full(2000, value, np.float32) for value in (-0.1, 0.0, 0.7)])
    far = 1 - 0.025 ** (1 / 2000)
    assert allclose(firing_rate(x, made, weights), [[0, 0, 1], [0, 0, 1 - far], [far, far, 1]], 1e-12)
    assert np.isnan(excess_kurtosis(x, made, weights)).all()


def test_sample_is_the_stores_own(tiny_store: Store) -> None:
    """Its random sequences' content, whole sequences where fewer positions are asked for."""
    sample, expected = token_sample(tiny_store), []
    for number, sequence in enumerate(tiny_store.state.shared["sequences"].tolist()):
        ids = tiny_store.sequences.sequence_tokens(sequence).tolist()
        content = [p for p, t in enumerate(ids) if p > 0 and t not in tiny_store.settings.special]
        expected += [(number, sequence, place) for place in content]
    places = sample.places
    found = zip(sample.sequences.tolist(), sequence_of(places).tolist(), position_of(places).tolist(), strict=True)
    assert list(found) == expected
    few = token_sample(tiny_store, positions=1, seed=1)
    (sequence,) = set(sequence_of(few.places).tolist())
    assert few.places.tolist() == places[sequence_of(places) == sequence].tolist()


def test_random_keys_are_neurons_turned_round(architecture: fm.Model) -> None:
    """Of a gated neuron key and gate, both of the same donor: lengths and products at the mean input are its own."""
    mean, ffn = torch.randn(16, generator=torch.Generator().manual_seed(0)), architecture.ffn[0]
    drawn, neurons = random_keys(architecture, 0, mean, [0, 0])
    pairs = [(ffn.keys, ffn.key_bias), (ffn.gates, ffn.gate_bias)][: 1 + architecture.gated]

    def facts(keys: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        assert keys is not None
        return torch.stack([keys @ mean + (0.0 if bias is None else bias), keys.norm(dim=1)], dim=1).detach()

    for ours, theirs in zip(drawn, pairs, strict=True):
        assert allclose(facts(*ours), facts(*theirs)[neurons], 1e-4)
    assert not torch.equal(drawn[0][0], random_keys(architecture, 0, mean, [1, 0])[0][0][0])


def test_coefficients_are_the_captured_ones(architecture: fm.Model) -> None:
    """From the FFN's input, each neuron's coefficient again: with its bias, its gate, the model's activation."""
    captured, some = fm.capture(architecture, PROMPT), torch.tensor([0, 9, 63])
    for layer in range(2):
        keys = own_keys(architecture, layer, some)
        found = coefficients(architecture, layer, captured.ffn_in[layer][0], keys, some)
        assert allclose(found.T, captured.coefficients[layer][0][:, some], 1e-5)


# -- estimates beside what chance gives, and the rule of the verdict, branch by branch ---------------------------------

NAN = float("nan")
OLDER = Rule(above=2.0, examples=8, alpha=0.05)
INSIDE, UNLIKE, FEW = "contains 2 meanings", "no more alike", "to rule out another meaning"


@pytest.mark.parametrize(("direction", "sign"), [("greater", 1), ("less", -1)])
@pytest.mark.parametrize("shared", [True, False])
def test_p_is_the_share_of_draws_as_extreme(direction: str, sign: int, shared: bool) -> None:
    """Ties count against the neuron, draws that are no number not at all; shared draws are sorted once for all."""
    random = np.random.default_rng(0)
    value, null = (
        random.integers(0, 9, 40).astype(float),
        random.integers(0, 9, (1 if shared else 40, 30)).astype(float),
    )
    null[0, 3] = value[5] = NAN
    if not shared:
        null[7] = NAN
    draws = [row[np.isfinite(row)] for row in np.broadcast_to(null, (40, 30))]
    expected = [
        (1 + (sign * own >= sign * one).sum()) / (1 + len(own)) if np.isfinite(one) and len(own) else NAN
        for one, own in zip(value, draws, strict=True)
    ]
    np.testing.assert_array_equal(p_values(value, null, direction), expected)


def test_intervals() -> None:
    draws = np.random.default_rng(2).standard_normal((3, 50))
    draws[1, :20] = NAN
    draws[2] = NAN
    low, high = interval(draws)
    for row in (0, 1):
        known = draws[row][np.isfinite(draws[row])]
        assert allclose([low[row], high[row]], np.quantile(known, (0.025, 0.975)))
    assert np.isnan([low[2], high[2], *np.ravel(interval(np.empty((2, 0))))]).all()


def test_parts_of_an_estimate_must_agree() -> None:
    with pytest.raises((InputError, TypeCheckError)):
        Estimate(*[np.zeros(n) for n in (2, 2, 2, 2, 3)])


@pytest.mark.parametrize(
    ("number", "p", "examples", "rule", "verdict", "why"),
    [
        ((1.1, 1.0, 1.5), 0.01, 20, OLDER, "monosemantic", ""),
        ((3.0, 2.1, 4.0), 0.01, 20, OLDER, "polysemantic", ""),
        ((2.0, 1.0, 2.0), 0.01, 20, OLDER, "monosemantic", ""),  # at the limit is not above it
        ((3.0, 2.0, 4.0), 0.01, 20, OLDER, "unclear", INSIDE),
        ((1.5, 1.0, 2.1), 0.01, 20, OLDER, "unclear", INSIDE),
        ((3.0, 2.1, 4.0), 0.05, 20, OLDER, "unclear", UNLIKE),
        ((1.1, 1.0, 1.5), 0.6, 20, OLDER, "unclear", UNLIKE),
        ((3.0, 2.1, 4.0), NAN, 20, OLDER, "unclear", UNLIKE),
        ((3.0, 2.1, 4.0), 0.01, 7, OLDER, "unclear", "fewer than 8 examples"),
        ((3.0, 2.1, 4.0), 0.01, 8, OLDER, "polysemantic", ""),
        ((NAN, NAN, NAN), NAN, 1, OLDER, "unclear", "fewer than 8"),
        ((3.0, NAN, NAN), 0.01, 20, OLDER, "unclear", "interval"),
        # Few examples of one meaning leave room for another; of enough, the room that they leave is allowed.
        ((1.0, 1.0, 1.0), 0.01, 19, RULE, "unclear", FEW),
        ((1.0, 1.0, 1.49), 0.01, 20, RULE, "monosemantic", ""),
        ((1.2, 1.0, 1.45), 0.01, 40, RULE, "unclear", "contains 1.35 meanings"),
        ((3.0, 2.0, 4.0), 0.01, 9, RULE, "polysemantic", ""),
    ],
)
def test_every_branch(
    number: tuple[float, float, float], p: float, examples: int, rule: Rule, verdict: str, why: str
) -> None:
    """Of neurons that fire; one that never does is inactive, whatever its number is."""
    parts = (np.full(2, part) for part in (*number, 5.0, p))
    told, reasons = verdicts(np.array([True, False]), np.full(2, examples), Estimate(*parts), rule)
    assert told.tolist() == [verdict, "inactive"]
    assert why in reasons[0]
    assert [bool(reason) for reason in reasons] == [verdict == "unclear", False]


def test_what_examples_leave_possible() -> None:
    """Of a group with the share s, n examples show none with the chance (1 − s)ⁿ = .05; what the manual says of it."""
    n = np.array([8, 20, 40])
    share = unseen_share(n)
    assert allclose((1 - share) ** n, np.full(3, 0.05))
    assert allclose(unseen_number(n), np.exp([stats.entropy([s, 1 - s]) for s in share]))
    assert unseen_number(np.array([0, 1, 2, 20, 32])).round(2).tolist() == [2.0, 2.0, 2.0, 1.5, 1.35]
    assert (RULE.above, RULE.examples, RULE.enough, RULE.alpha) == (1.35, 8, 20, 0.05)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (45, 1000)])
def test_share_interval_is_wilsons(count: int, total: int) -> None:
    assert allclose(share_interval(count, total), stats.binomtest(count, total).proportion_ci(method="wilson"))
    assert np.isnan(share_interval(0, 0)).all()
