"""Silencing against whole passes with plain hooks, one a cell, and what it says of many facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.tracing import Silencing, silence_fact, silence_facts
from ffnmem.tracing.silences import PLACES, Place, places_of_groups

from ..evaluation.made import FACTS
from ..helpers import ARCHITECTURES, BOS, allclose, build_gpt2, printed, refuses
from . import plain
from .test_restoring import DEEP, PROMPT, SUBJECT


def whole_pass(
    hf: Any, tokens: Sequence[int], answer: int, kind: str, layers: range, place: Place, written: list[torch.Tensor]
) -> float:
    """The answer's probability in one forward pass with hooks on every silenced module."""

    def silence(layer: int) -> Callable[[torch.Tensor], None]:
        def change(x: torch.Tensor) -> None:
            x[:, list(place.positions)] = written[layer]

        return change

    handles = []
    for layer in layers:
        module = plain.module_of(plain.blocks_of(hf)[layer], kind)
        handles.append(module.register_forward_hook(plain.hooked(silence(layer), len(tokens))))
    try:
        with torch.no_grad():
            logits = hf(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    return float(logits.double().softmax(-1)[answer])


def whole_passes(
    hf: Any, found: Silencing, kind: str, written: list[torch.Tensor], tokens: Sequence[int]
) -> np.ndarray:
    n_layers, window = found.n_layers, found.window
    scores = np.zeros((n_layers, len(found.places)))
    for layer in range(n_layers):
        layers = range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))
        for column, place in enumerate(found.places):
            scores[layer, column] = whole_pass(hf, tokens, found.answer_ids[0], kind, layers, place, written)
    return scores


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("name", DEEP)
def test_every_cell_equals_a_whole_pass(name: str, window: int, tokenizer: Any) -> None:
    """In float64 tightly: a layer or position too many, a key of the other run, an FFN that read the old attention."""
    model = fm.load(DEEP[name](), tokenizer=tokenizer, dtype="float64")
    original = DEEP[name]().to(model.dtype)
    found = silence_fact(model, PROMPT, SUBJECT, kinds=("ffn", "attention"), window=window)
    nothing = [torch.zeros(model.d_model, dtype=model.dtype)] * model.n_layers
    for kind in found.kinds:
        expected = whole_passes(original, found, kind, nothing, model.tokenize(PROMPT))
        assert allclose(found.scores[kind], expected, 1e-7 if name == "gpt-neo" else 1e-9)
        assert np.ptp(expected) > 1e-4, "nothing changes the answer, so that anything would pass"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_equals_whole_passes(name: str, tokenizer: Any) -> None:
    model = fm.load(ARCHITECTURES[name](), tokenizer=tokenizer, dtype="float32")
    found = silence_fact(model, PROMPT, SUBJECT, window=1)
    nothing = [torch.zeros(model.d_model)] * model.n_layers
    expected = whole_passes(ARCHITECTURES[name](), found, "ffn", nothing, model.tokenize(PROMPT))
    assert allclose(found.scores["ffn"], expected, 1e-6)


def test_the_mean_is_what_mean_coefficients_write(tokenizer: Any) -> None:
    """Through the down projection with its bias, of the source's content positions."""
    model = fm.load(build_gpt2(n_layer=3), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, "The city of Paris is in France")
    found = silence_fact(model, PROMPT, SUBJECT, window=1, mean=capture)
    written = [
        capture.coefficients[layer][capture.content].mean(0) @ model.ffn[layer].values + model.ffn[layer].value_bias
        for layer in range(model.n_layers)
    ]
    expected = whole_passes(build_gpt2(n_layer=3).double(), found, "ffn", written, model.tokenize(PROMPT))
    assert allclose(found.scores["ffn"], expected, 1e-9)
    assert found.replaced_by == "mean over a capture"
    zeroed = silence_fact(model, PROMPT, SUBJECT, window=1).scores["ffn"]
    assert np.abs(found.scores["ffn"] - zeroed).max() > 1e-5


def test_it_agrees_with_intervene(tokenizer: Any) -> None:
    """Coefficients of zero write nothing, where FFNs have no bias."""
    model = fm.load(ARCHITECTURES["llama"](), tokenizer=tokenizer, dtype="float32")
    found = silence_fact(model, PROMPT, SUBJECT, window=1)
    position = found.subject[0]
    with fm.intervene(model, {(0, None): 0.0}, positions=[position]):
        logits = fm.capture(model, PROMPT, logits=True).logits
    assert logits is not None
    chance = float(logits[0, -1].softmax(-1)[found.answer_ids[0]])
    assert chance == pytest.approx(found.scores["ffn"][0, position], abs=1e-6)
    assert abs(chance - found.clean) > 1e-5


def test_a_batch_of_any_size_says_the_same(tokenizer: Any) -> None:
    model = fm.load(DEEP["gpt2"](), tokenizer=tokenizer, dtype="float64")
    whole, single = (silence_fact(model, PROMPT, SUBJECT, window=3, batch_tokens=tokens) for tokens in (4096, 1))
    assert allclose(single.scores["ffn"], whole.scores["ffn"], 1e-12)


def test_the_last_layer_is_read_at_the_last_token_alone(tiny: fm.Model) -> None:
    found = silence_fact(tiny, PROMPT, SUBJECT, window=1)
    last = len(found.tokens) - 1
    for column, place in enumerate(found.places):
        assert (found.loss()[-1, column] == 0) == (last not in place.positions), place


def test_places() -> None:
    assert places_of_groups(range(2, 4), 7, True) == (
        Place("BOS", (0,)),
        Place("before subject", (1,)),
        Place("first subject", (2,)),
        Place("last subject", (3,)),
        Place("first subsequent", (4,)),
        Place("further", (5,)),
        Place("last token", (6,)),
        Place("whole subject", (2, 3)),
        Place("whole prompt", (1, 2, 3, 4, 5, 6)),
    )
    assert [place.name for place in places_of_groups(range(0, 1), 2, False)] == [
        "last subject",
        "last token",
        "whole subject",
        "whole prompt",
    ]


def test_many_facts(tiny: fm.Model) -> None:
    """Means over facts with their intervals; facts that are not known are skipped with the reason."""
    every = silence_facts(tiny, [fact_without_target(fact) for fact in FACTS], window=1)
    assert len(every) == len(FACTS)
    rows = every.groups.set_index(["kind", "group", "layer"])
    losses = [one.loss()[0, [place.name for place in one.places].index("last token")] for one in every.silencings]
    row = rows.loc[("ffn", "last token", 0)]
    error = 1.96 * np.std(losses, ddof=1) / np.sqrt(len(losses))
    assert (row["loss"], row["low"], row["high"]) == pytest.approx(
        (np.mean(losses), np.mean(losses) - error, np.mean(losses) + error)
    )
    shares = [loss / one.clean for loss, one in zip(losses, every.silencings, strict=True)]
    assert row["share"] == pytest.approx(np.mean(shares))
    assert row["n"] == len(FACTS)
    assert set(every.groups["group"]) <= set(PLACES)
    json.dumps(every.to_dict(), allow_nan=False)
    assert f"{len(FACTS)} facts" in printed_sheet(every)
    unknown = silence_facts(tiny, FACTS)
    assert len(unknown) + len(unknown.skipped) == len(FACTS)
    assert unknown.skipped["reason"].str.contains("does not know").all()


def printed_sheet(found: Any) -> str:
    return " ".join(" ".join(printed(found.sheet())).split())


def fact_without_target(fact: fm.Fact) -> fm.Fact:
    return fm.Fact(subject=fact.subject, prompt=fact.prompt, target_new="x", relation=fact.relation, id=fact.id)


def test_what_a_prompt_shows(tiny: fm.Model) -> None:
    found = silence_fact(tiny, PROMPT, SUBJECT, kinds=("ffn", "attention"), window=1)
    shown = printed_sheet(found)
    for part in ("·Tower*", BOS, "without FFN of one layer", "without attention of one layer", "whole subject"):
        assert part in shown
    assert len(found.to_frame()) == 2 * tiny.n_layers * len(found.places)
    assert found.to_frame()["share"].max() <= 1
    assert len(found.brief()["largest"]) == 2 * len(found.places)
    json.dumps(found.to_dict(), allow_nan=False)


def test_mistakes(tiny: fm.Model, tokenizer: Any) -> None:
    with refuses(InputError, ValueError, "kinds", "'ffn'"):
        silence_fact(tiny, PROMPT, SUBJECT, kinds="ffn")
    with refuses(InputError, ValueError, "kind", "'state'", "'attention'"):
        silence_fact(tiny, PROMPT, SUBJECT, kinds=("state",))
    with refuses(InputError, ValueError, "no kinds"):
        silence_fact(tiny, PROMPT, SUBJECT, kinds=())
    capture = fm.capture(tiny, PROMPT)
    with refuses(InputError, ValueError, "mean", "coefficients"):
        silence_fact(tiny, PROMPT, SUBJECT, kinds=("ffn", "attention"), mean=capture)
    other = fm.load(build_gpt2(n_layer=3), tokenizer=tokenizer)
    with refuses(InputError, ValueError, "not of this model"):
        silence_fact(other, PROMPT, SUBJECT, mean=capture)
    with refuses(InputError, ValueError, "does not know"):
        silence_fact(tiny, PROMPT, SUBJECT, target="zzz")
