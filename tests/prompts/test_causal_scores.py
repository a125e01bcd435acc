"""``causal_scores``: every firing's worth for an answer, by one backward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.models import Model

from ..architectures import DECODERS
from ..helpers import PROMPT, Pair, printed

RULES = ({"rule": "gradient"}, {"rule": "ig"})


def logit_of(model: Model, tokens: torch.Tensor, target: int, foil: int) -> float:
    capture = fm.capture(model, tokens, logits=True)
    assert capture.logits is not None
    return float(capture.logits[0, -1, target] - capture.logits[0, -1, foil])


def test_the_forward_pass_is_the_models_own(tiny: Model) -> None:
    """A rule that moved values would explain another answer; a gradient would stay on the model. People run their
    notebooks under no_grad."""
    capture = fm.capture(tiny, PROMPT)
    logit = fm.attribute(capture, " Paris", " Rome").logit
    for rule in RULES:
        found = fm.causal_scores(capture, " Paris", " Rome", **rule)  # type: ignore[arg-type]
        assert found.logit == pytest.approx(logit, abs=1e-5)
        for layer in range(tiny.n_layers):
            assert torch.equal(found.coefficients[layer], capture.coefficients[layer][0].float())
        with torch.no_grad():
            again = fm.causal_scores(capture, " Paris", " Rome", **rule)  # type: ignore[arg-type]
        assert torch.equal(again.scores, found.scores)
    assert not any(p.grad is not None for p in tiny.hf_model.parameters())


def test_gradient_is_the_slope_of_an_exact_change(pair64: Pair) -> None:
    model = pair64.model
    capture = fm.capture(model, PROMPT)
    target, foil = model.token_id(" Paris"), model.token_id(" Rome")
    found = fm.causal_scores(capture, target, foil)
    step, allowed = (3e-3, 5e-3) if pair64.rounds_attention else (1e-4, 1e-4)  # whose softmax counts in float32
    for layer, position in ((0, 3), (model.n_layers - 1, -1)):
        neuron = int(found.scores[layer, position].abs().argmax())
        ends = []
        for sign in (1, -1):
            with fm.intervene(model, {(layer, neuron): fm.interventions.Add(sign * step)}, positions=position):
                ends.append(logit_of(model, capture.tokens, target, foil))
        slope = (ends[0] - ends[1]) / (2 * step)
        expected = slope * float(found.coefficients[layer, position, neuron])
        if model.layout.soft_cap is None:
            assert float(found.scores[layer, position, neuron]) == pytest.approx(expected, rel=allowed, abs=1e-8)


def test_the_largest_firings_are_removed_exactly(pair64: Pair) -> None:
    """An estimate can have the wrong sign; what stands beside it is what an intervention finds, whatever the batch."""
    model = pair64.model
    if model.layout.soft_cap is not None:
        pytest.skip("its logits are capped, and what is explained is the logit before")
    capture = fm.capture(model, PROMPT)
    target, foil = model.token_id(" Paris"), model.token_id(" Rome")
    found = fm.causal_scores(capture, target, foil, exact=4)
    rows = found.top(6)
    assert rows["exact"].notna().tolist() == [True] * 4 + [False] * 2
    for row in rows.head(4).itertuples():
        place = {(row.layer, row.neuron): fm.interventions.Scale(0.0)}
        with fm.intervene(model, place, positions=row.position):
            without = logit_of(model, capture.tokens, target, foil)
        close = 1e-6 if pair64.rounds_attention else 1e-9
        assert row.exact == pytest.approx(found.logit - without, abs=close)
    assert fm.causal_scores(capture, target, foil, exact=0).top(3)["exact"].isna().all()


def test_integrated_gradients_sum_to_the_change(tiny64: Model) -> None:
    model, capture = tiny64, fm.capture(tiny64, PROMPT)
    target, foil = model.token_id(" Paris"), model.token_id(" Rome")
    coarse, fine = (fm.causal_scores(capture, target, foil, "ig", steps=steps) for steps in (5, 50))
    assert fine.completeness_error is not None
    assert coarse.completeness_error is not None
    assert fine.completeness_error < coarse.completeness_error / 20  # midpoints: the square of the steps
    start = 1 if capture.starts_with_bos else 0
    where = list(range(start, capture.tokens.shape[1]))
    with fm.intervene(model, {(layer, None): 0.0 for layer in range(model.n_layers)}, positions=where):
        without = logit_of(model, capture.tokens, target, foil)
    assert fine.expected == pytest.approx(fine.logit - without, abs=1e-10)
    mean = fm.causal_scores(capture, target, foil, "ig", steps=50, mean=np.full((2, model.d_mlp), 0.3))
    assert mean.completeness_error is not None
    assert mean.completeness_error < 50 * fine.completeness_error
    with fm.intervene(model, {(layer, None): 0.3 for layer in range(model.n_layers)}, positions=where):
        assert mean.expected == pytest.approx(mean.logit - logit_of(model, capture.tokens, target, foil), abs=1e-10)


def test_an_answer_of_several_tokens(tiny64: Model) -> None:
    """Its log-probability is the sum of its tokens', each read behind those before it."""
    capture, ids = fm.capture(tiny64, PROMPT), tiny64.ids_of(" Paris city")
    longer = fm.capture(tiny64, [*capture.tokens[0].tolist(), *ids], logits=True)
    assert longer.logits is not None
    logs = longer.logits[0, -len(ids) - 1 : -1].log_softmax(-1)
    expected = float(logs[range(len(ids)), ids].sum())
    for rule in RULES:
        found = fm.causal_scores(capture, " Paris city", exact=0, steps=50, **rule)  # type: ignore[arg-type]
        assert found.logit == pytest.approx(expected)
        assert (found.completeness_error is not None) == (rule["rule"] == "ig")
        assert dict(found.provenance.settings).get("steps") == (50 if rule["rule"] == "ig" else None)
        assert "log probability" in " ".join(printed(found.sheet(), 200))
        asked = found.prompt  # the answer's own tokens are none of it
        assert (list(asked.tokens), asked.position) == (capture.token_strings(), len(asked.tokens) - 1)
    assert float(found.scores.sum()) == pytest.approx(found.expected, rel=1e-3)  # of ig, the last one


def test_agreement_of_estimates_and_exact_values(tiny: Model) -> None:
    found = fm.causal_scores(fm.capture(tiny, PROMPT), " Paris", " Rome")
    score = found.top(4)["score"].to_numpy()
    assert replace(found, exact=()).agreement(9) == ""
    assert (
        replace(found, exact=tuple(2 * score))
        .agreement(9)
        .endswith("4 firings removed one by one, exactly: all with a score of the same sign (correlation 1.00)")
    )
    turned = replace(found, exact=(-score[0], score[1]))  # of two no correlation is told, nor of equal ones
    assert turned.agreement(3) == "2 firings removed one by one, exactly: 1 with a score of the other sign"
    assert replace(found, exact=(1.0, 1.0, 1.0)).agreement(3).endswith(" of the same sign")
    assert turned.to_frame(3)["exact"].tolist() == pytest.approx([-score[0], score[1], float("nan")], nan_ok=True)


def test_means_are_what_firings_are_compared_with(tiny: Model, tiny_store: fm.scanning.Store, tmp_path: Path) -> None:
    capture = fm.capture(tiny, PROMPT)
    other = fm.capture(tiny, "The city of Paris")
    means = torch.stack([other.coefficients[layer][other.content].mean(0) for layer in range(tiny.n_layers)])
    zero, mean = fm.causal_scores(capture, " Paris"), fm.causal_scores(capture, " Paris", mean=other)
    slopes = zero.scores / zero.coefficients
    torch.testing.assert_close(mean.scores, (zero.coefficients - means.unsqueeze(1)) * slopes, rtol=1e-3, atol=1e-6)
    assert mean.reference.startswith("mean over a capture (")
    for given in (means, means.numpy(), dict(enumerate(means)), dict(enumerate(means.numpy()))):
        torch.testing.assert_close(fm.causal_scores(capture, " Paris", mean=given).scores, mean.scores)
    kept = fm.causal_scores(capture, " Paris", mean=tiny_store)
    assert kept.reference.startswith("mean over a store (")
    stored = tiny_store.stats()["mean"].to_numpy().reshape(2, -1)
    torch.testing.assert_close(kept.scores, fm.causal_scores(capture, " Paris", mean=stored).scores)
    mixture = fm.load(DECODERS["Mixtral"](), tokenizer=tiny.tokenizer)  # whose stores have means over routed tokens
    capture, store = fm.capture(mixture, PROMPT), fm.scan(mixture, [PROMPT], tmp_path, k=1, sample=1, draws=1)
    means = [fm.causal_scores(capture, " Paris", mean=source).scores for source in (store, capture)]
    torch.testing.assert_close(*means, rtol=1e-4, atol=1e-7)


def test_an_earlier_position_and_the_tables(tiny: Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    short = fm.causal_scores(capture, " Paris", position=3)
    alone = fm.causal_scores(fm.capture(tiny, capture.tokens[0, :4]), " Paris")
    torch.testing.assert_close(short.scores, alone.scores, rtol=1e-4, atol=1e-6)
    top = short.top(5)
    assert list(top.columns) == ["layer", "neuron", "position", "token", "coefficient", "score", "exact", "share"]
    assert top["score"].abs().is_monotonic_decreasing
    assert top["share"].tolist() == pytest.approx((top["score"] / short.logit).tolist())
    assert float(short.map.sum()) == pytest.approx(float(short.neurons["score"].sum()))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rule": "lrp"}, "lrp"),
    ({"mean": torch.zeros(2, 3)}, r"\[layer, d_mlp\]"),
    ({"mean": 3}, "mean is a Store"),
    ({"mean": {0: torch.zeros(3)}}, "nothing for layer 1"),
    ({"mean": {0: torch.zeros(64), 1: torch.zeros(3)}}, "64, 64 by layer"),
    ({"mean": [[1.0], [1.0, 2.0]]}, "mean is a Store"),
]


def test_refusals(tiny: Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    for options, says in REFUSED:
        with pytest.raises(FfnmemError, match=says):
            fm.causal_scores(capture, " Paris", **options)
    with fm.intervene(tiny, {(0, 1): 0.0}):
        under = fm.capture(tiny, PROMPT)
        with pytest.raises(FfnmemError, match="under an intervention"):
            fm.causal_scores(under, " Paris")
    with pytest.raises(FfnmemError, match="every layer"):
        fm.causal_scores(fm.capture(tiny, PROMPT, layers=[0]), " Paris")
