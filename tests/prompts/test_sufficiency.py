"""``faithfulness`` and ``minimal_circuit``: what is left of an answer where only some firings are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.models import Model

from ..helpers import PROMPT, Pair, allclose, build_gpt2, changed_answer, randomise


@pytest.fixture(scope="module")
def capture(tiny: Model) -> fm.prompts.Capture:
    return fm.capture(tiny, PROMPT)


@pytest.fixture(scope="module")
def mean(tiny: Model) -> fm.prompts.Capture:
    return fm.capture(tiny, ["The city of Paris is in France", "Rome is the city"])


def logit_of(model: Model, capture: fm.prompts.Capture, kept: torch.Tensor, means: torch.Tensor, own: bool) -> float:
    """Δ with everything outside ``kept`` [layer, pos, d_mlp] at its mean."""

    def change(layer: int, m: torch.Tensor) -> torch.Tensor:
        return torch.where(kept[layer], capture.coefficients[layer][0] if own else m, means[layer].to(m.dtype))

    return changed_answer(model, capture.tokens, model.token_id(" Paris"), model.token_id(" Rome"), change)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_share_is_that_of_a_pass_with_all_others_at_their_means(pair64: Pair, recorded: bool) -> None:
    # if it failed, something else would be kept or taken away than is said
    model = pair64.model
    if model.layout.soft_cap is not None:
        pytest.skip("its logits are capped, and what is explained is the logit before")
    capture, mean = fm.capture(model, PROMPT), fm.capture(model, "The city of Paris")
    means = torch.stack([mean.coefficients[layer][mean.content].mean(0) for layer in range(model.n_layers)])
    shape = (model.n_layers, capture.tokens.shape[1], model.d_mlp)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.2
    kept[0, 3, :5] = True
    triples = [(layer, neuron, position) for layer, position, neuron in kept.nonzero().tolist()]
    found = fm.faithfulness(capture, " Paris", " Rome", triples, mean=mean, recorded=recorded, random=0)
    begins = capture.starts_with_bos
    bos = torch.zeros(shape, dtype=torch.bool)
    bos[:, 0] = begins
    one, rest, none = (
        logit_of(model, capture, mask | bos, means, recorded) for mask in (kept, ~kept, torch.zeros_like(kept))
    )
    close = 1e-6 if pair64.rounds_attention else 1e-9  # its softmax counts in float32
    assert found.logit == pytest.approx(fm.attribute(capture, " Paris", " Rome").logit, abs=close)
    assert found.without == pytest.approx(none, abs=close)
    row = found.curve.iloc[0]
    assert row["size"] == int((kept & ~bos).sum())
    assert row["faithfulness"] == pytest.approx((one - none) / (found.logit - none), rel=1e-6, abs=close)
    assert row["completeness"] == pytest.approx((rest - none) / (found.logit - none), rel=1e-6, abs=close)


def test_all_kept_is_the_whole_answer_and_none_is_nothing(capture: fm.prompts.Capture, mean: Any) -> None:
    steps: list[tuple[int, int]] = []
    report: Any = lambda *step: steps.append(step[1:])  # noqa: E731
    found = fm.faithfulness(capture, " Paris", " Rome", mean=mean, random=2, progress=report)
    assert steps == [(done, steps[-1][1]) for done in sorted(done for done, _ in steps)]
    assert steps[-1] == (steps[-1][1], steps[0][0] * len(steps))
    assert found.order == "largest |score| by gradient first, as computed"
    last = found.at(found.total)
    assert last["faithfulness"] == pytest.approx(1.0, abs=1e-5)
    assert last["random"] == pytest.approx(1.0, abs=1e-5)
    assert last["completeness"] == pytest.approx(0.0, abs=1e-5)
    assert found.curve["size"].is_monotonic_increasing
    assert found.curve["random_low"].le(found.curve["random_high"]).all()
    share, f = np.r_[0, found.curve["share"]], np.r_[0, found.curve["faithfulness"]]
    assert found.cpr == pytest.approx(float(((f[1:] + f[:-1]) / 2 * np.diff(share)).sum()))
    assert found.cmd == pytest.approx(float(np.trapezoid(np.abs(1 - f), share)))


def test_what_a_set_may_be(capture: fm.prompts.Capture, tiny: Model, mean: Any) -> None:
    scores = fm.causal_scores(capture, " Paris", " Rome", mean=mean)
    top = scores.top(9)
    top = top[top["position"] >= int(capture.starts_with_bos)]
    triples = [(int(a), int(b), int(c)) for a, b, c in zip(top["layer"], top["neuron"], top["position"], strict=True)]
    asked = (capture, " Paris", " Rome")
    by_table = fm.faithfulness(*asked, top, mean=mean, random=0)
    by_list = fm.faithfulness(*asked, [*triples, triples[0]], mean=mean, random=0)
    by_scores = fm.faithfulness(*asked, scores, mean=mean, random=0, sizes=[len(triples)])
    for found in (by_list, by_scores):
        assert allclose(found.curve, by_table.curve, 1e-6)
    whole = fm.faithfulness(*asked, scores, mean=mean, random=0)
    assert whole.curve["size"].is_unique
    assert whole.total in whole.curve["size"].to_list()
    assert whole.total not in whole.carrying["size"].to_list()
    assert by_table.cpr is None
    paths = fm.faithfulness(*asked, fm.attribute_paths(*asked), mean=mean, random=0, sizes=[3])
    assert paths.order.startswith("largest |score| by paths")
    some = fm.faithfulness(capture, " Paris", " Rome", top, mean=mean, random=0, batch_tokens=1)
    assert allclose(some.curve, by_table.curve, 1e-5)


def test_a_minimal_circuit_is_enough_and_no_firing_too_many(capture: fm.prompts.Capture, mean: Any) -> None:
    asked: dict[str, Any] = {"target": " Paris", "foil": " Rome", "mean": mean}
    with torch.no_grad():  # people run their notebooks under it
        found = fm.minimal_circuit(capture, **asked, faithfulness=0.9)
    assert found.faithfulness >= 0.9
    assert found.minimal
    assert list(found.firings.columns)[-1] == "without"
    assert (found.firings["without"] < 0.9).all()
    fired = [float(capture.coefficients[n][0, at, i]) for n, i, at, *_ in found.firings.itertuples(index=False)]
    assert found.firings["coefficient"].tolist() == fired  # by whose sign a value promotes or suppresses
    assert found.found - found.pruned == len(found.firings)
    again = fm.faithfulness(capture, **asked, firings=found.firings, random=0)
    assert again.curve["faithfulness"].item() == pytest.approx(found.faithfulness)
    less = fm.faithfulness(capture, **asked, firings=found.firings.iloc[1:], random=0)
    assert less.curve["faithfulness"].item() == pytest.approx(found.firings["without"].iloc[0], abs=1e-6)
    asked["firings"] = fm.attribute_paths(capture, " Paris", " Rome")
    whole = fm.minimal_circuit(capture, **asked, faithfulness=0.97, one_by_one=1)
    assert whole.found > 32  # further down than the first grid of sizes looks at each
    assert fm.faithfulness(capture, **asked, sizes=[whole.found - 1], random=0).curve["faithfulness"].item() < 0.97
    del asked["firings"]
    assert not whole.minimal
    assert "not tried one by one" in whole.search
    assert list(whole.firings.columns)[-1] == "worth"
    assert whole.firings["worth"].is_monotonic_decreasing
    fewer = fm.minimal_circuit(capture, **asked, firings=whole.firings)
    assert len(fewer.firings) <= len(whole.firings)
    assert fewer.search.startswith(f"the {len(whole.firings)} firings given")
    with pytest.raises(FfnmemError, match="keep less than"):
        fm.minimal_circuit(capture, **asked, firings=fewer.firings.iloc[:1], faithfulness=0.99)


def test_the_worth_of_a_firing_is_its_gradient_in_the_sets_own_run(capture: fm.prompts.Capture, mean: Any) -> None:
    """Times how far it is from its mean, for the share that is kept."""
    found = fm.minimal_circuit(capture, " Paris", " Rome", mean=mean, one_by_one=1)
    model, row = capture.model, found.firings.iloc[0]
    means = [mean.coefficients[layer][mean.content].mean(0) for layer in range(model.n_layers)]
    kept = torch.zeros(model.n_layers, capture.tokens.shape[1], model.d_mlp, dtype=torch.bool)
    kept[found.firings["layer"], found.firings["position"], found.firings["neuron"]] = True
    kept[:, : int(capture.starts_with_bos)] = True
    away = 0.0

    def answer(step: float) -> float:
        def change(layer: int, m: torch.Tensor) -> torch.Tensor:
            nonlocal away
            m = torch.where(kept[layer], m, means[layer])
            if layer == row["layer"]:
                away = float(m[row["position"], row["neuron"]] - means[layer][row["neuron"]])
                m[row["position"], row["neuron"]] += step
            return m

        return changed_answer(model, capture.tokens, *map(model.token_id, (" Paris", " Rome")), change)

    slope = (answer(0.01) - answer(-0.01)) / 0.02
    assert row["worth"] == pytest.approx(away * slope / (found.logit - found.without), rel=0.01)


def test_target_and_foil_may_change_places(capture: fm.prompts.Capture, mean: Any) -> None:
    # an answer's share is the same of Δ and of −Δ; if it failed, pruning would take away the best where firings lower Δ
    one = fm.minimal_circuit(capture, " Paris", " Rome", mean=mean, one_by_one=1)
    other = fm.minimal_circuit(capture, " Rome", " Paris", mean=mean, one_by_one=1)
    assert (other.logit < other.without) != (one.logit < one.without)
    triples = [set(found.firings[["layer", "neuron", "position"]].itertuples(index=False)) for found in (one, other)]
    assert triples[0] == triples[1]
    assert one.pruned > 0


def test_refusals(capture: fm.prompts.Capture, tiny: Model) -> None:
    theirs = fm.load(randomise(build_gpt2(), seed=7), tokenizer=tiny.tokenizer)
    refused: list[tuple[Any, str]] = [
        ([], "empty"),
        ([(0, 1)], "layer, neuron, position"),
        ([(9, 1, 1)], "layer 9"),
        ([(0, 1, 99)], "position 99"),
        (pd.DataFrame({"layer": [0]}), "no column neuron"),
        (5, "firings are names"),
        (fm.causal_scores(fm.capture(tiny, "The city of Rome is"), " Paris", " Rome"), "another prompt"),
        (fm.causal_scores(fm.capture(theirs, PROMPT), " Paris", " Rome"), "or model"),
    ]
    for firings, says in refused:
        with pytest.raises(FfnmemError, match=says):
            fm.faithfulness(capture, " Paris", " Rome", firings)
    with pytest.raises(FfnmemError, match="none above"):
        fm.faithfulness(capture, " Paris", " Rome", [(0, 1, 1)], sizes=[2])
    with pytest.raises(FfnmemError, match="always kept"):
        fm.faithfulness(fm.capture(tiny, capture.tokens[0, :1]), " Paris", " Rome")
    one = fm.capture(tiny, capture.tokens[0, 1:2])
    own = torch.stack([one.coefficients[layer][0, -1] for layer in range(tiny.n_layers)])
    with pytest.raises(FfnmemError, match="nothing that firings"):
        fm.faithfulness(one, " Paris", " Rome", [(0, 1, 0)], mean=own)
    with pytest.raises(FfnmemError, match=r"all .* firings keep less than 1e\+06"):
        fm.minimal_circuit(capture, " Paris", " Rome", faithfulness=1e6)
    with pytest.raises(FfnmemError, match="faithfulness must be"):
        fm.minimal_circuit(capture, " Paris", faithfulness=0)


def curve_of(found: fm.prompts.Faithfulness, *rows: tuple[int, float, float]) -> fm.prompts.Faithfulness:
    """With another curve: size, what as many keep, and the most that as many at random keep."""
    table = [(n, n / found.total, kept, 0.0, high - 0.1, high - 0.2, high) for n, kept, high in rows]
    names = ["size", "share", "faithfulness", "completeness", "random", "random_low", "random_high"]
    return replace(found, curve=pd.DataFrame(table, columns=names))


CHANCE = "of it is kept, with as many at random 20.0%"


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([(5, 0.7, 0.3)], f"These 5 firings (0.5% of all) carry the answer: 70.0% {CHANCE}."),
        (
            [(5, 0.7, 0.8)],
            "These 5 firings do not carry the answer: 70.0% of it is kept, with as many at random 70.0%.",
        ),
        (
            [(1, 0.6, 0.3), (2, -0.8, 0.3), (50, 0.5, 0.3), (100, 0.6, 0.9)],
            f"The first 50 firings (4.9% of all) carry the answer: 50.0% {CHANCE}; with 2 kept it is lower than with "
            "none.",
        ),
        (
            [(1, 0.03, 0.3), (2, 0.02, 0.3)],
            "No number listed carries the answer, short of all firings: at best, with the first 1 firing, 3.0% "
            f"{CHANCE}.",
        ),
    ],
)
def test_the_verdict_says_whether_firings_carry_the_answer(
    capture: fm.prompts.Capture, rows: list[tuple[int, float, float]], verdict: str
) -> None:
    """A set that keeps next to nothing was shown as a circuit is, and a curve that swings from 3% to −80% without a
    word; a set that keeps no more than a random one is none either."""
    found = curve_of(fm.faithfulness(capture, " Paris", " Rome", random=0, sizes=[1]), *rows)
    assert found.verdict == verdict
    assert found.to_dict()["verdict"] == verdict


def test_a_small_share_is_not_shown_as_none(capture: fm.prompts.Capture) -> None:
    found = curve_of(fm.faithfulness(capture, " Paris", " Rome", random=0, sizes=[1]), (1, 0.1, 0.2))
    one, every = (1, 0.03, 0.3), (found.total, 1.0, 1.0)
    assert "at best, with the first 1 firing" in curve_of(found, one, every).verdict
    assert curve_of(found, every).verdict == "All firings are kept, which says nothing about some of them."
