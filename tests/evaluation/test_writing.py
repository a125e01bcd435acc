"""Generated text: sampled with each fact's own edit, its entropy and likeness by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.evaluation import texts as writing
from ffnmem.evaluation.measuring import EditCase, make_case
from ffnmem.evaluation.texts import (
    TermWeights,
    Writer,
    batches_of_like_length,
    entropy,
    pick_tokens,
    sample,
)
from ffnmem.models.replaying import PlainLayers

from ..helpers import Pair, allclose, hook_count
from .made import EIFFEL, FACTS, random_edits


@pytest.fixture(scope="module")
def cases(tiny64: fm.Model) -> list[EditCase]:
    return [make_case(tiny64, replace(fact, generation_prompts=EIFFEL.generation_prompts), None) for fact in FACTS]


def whole_sample(model: fm.Model, prompt: list[int], draw: np.random.Generator) -> str:
    """One text, one whole forward pass a token."""
    ids = list(prompt)
    uniform = draw.random(model.n_ctx - len(ids))
    for number in uniform:
        with torch.no_grad():
            logits = model.hf_model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = logits.float().topk(5)
        below = np.cumsum(best.values.double().softmax(0).numpy())
        ids.append(int(best.indices[min(int((number >= below).sum()), 4)]))
        if ids[-1] == model.tokenizer.eos_token_id:
            break
    return str(model.tokenizer.decode(ids, skip_special_tokens=True))


def test_sampling_equals_whole_passes(pair: Pair) -> None:
    """Pads that are read, positions that are off by them, a cache that mixes rows, random numbers of a neighbour."""
    model = pair.model
    prompts = [model.tokenize("The city"), model.tokenize("In the city of Rome is the")]
    found = sample(PlainLayers(model), prompts, [np.random.default_rng(i) for i in range(2)])
    shorter = min(map(len, found))
    for i, text in enumerate(found):
        # The longest prompt of a batch fills the context first.
        assert whole_sample(model, prompts[i], np.random.default_rng(i)).startswith(text[: max(12, shorter // 2)])


def test_each_row_has_its_own_edit(tiny64: fm.Model, cases: list[EditCase], monkeypatch: pytest.MonkeyPatch) -> None:
    """Text written with another fact's edit, or with none; pads are in the batch."""
    monkeypatch.setattr(writing, "TOKENS", 14)
    edits = random_edits(tiny64)
    writer = Writer(PlainLayers(tiny64), None, seed=1)
    writer.write(cases, [None] * 3)  # Hugging Face adds hooks of its own when a model first runs
    before = hook_count(tiny64.hf_model)
    together = writer.write(cases, [edits[0], None, edits[2]])
    assert hook_count(tiny64.hf_model) == before
    for case, edit, texts in zip(cases, [edits[0], None, edits[2]], together, strict=True):
        assert len(texts) == 2
        assert all(text.startswith(case.fact.ask(p)) for text, p in zip(texts, EIFFEL.generation_prompts, strict=True))
        if edit is None:
            assert writer.write([case], [None]) == [texts]
        else:
            with edit.applied(tiny64):
                assert writer.write([case], [None]) == [texts]


def test_batches(tiny64: fm.Model, cases: list[EditCase], monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a batch must not change what is drawn; another seed must."""
    edits = random_edits(tiny64)
    monkeypatch.setattr(writing, "TOKENS", 14)
    whole = Writer(PlainLayers(tiny64), None, seed=1).measure(cases, edits)
    monkeypatch.setattr(writing, "ROWS", 1)
    one = Writer(PlainLayers(tiny64), None, seed=1).measure(cases, edits)
    assert one == whole
    other = Writer(PlainLayers(tiny64), None, seed=2)
    assert other.write(cases, edits) != Writer(PlainLayers(tiny64), None, seed=1).write(cases, edits)


def test_alike() -> None:
    """A row with more pads than there is room for would end before its text."""
    assert list(batches_of_like_length([5, 9, 6, 5, 12], 3)) == [[0, 3, 2], [1, 4]]
    assert list(batches_of_like_length([5, 9, 5], 0)) == [[0, 2], [1]]
    assert list(batches_of_like_length([], 3)) == []


def test_no_room(tiny64: fm.Model) -> None:
    """A prompt that fills the context cannot be written on, and has no figure."""
    case = make_case(tiny64, replace(EIFFEL, generation_prompts=("The {}" + " is in the city of" * 9,)), None)
    assert Writer(PlainLayers(tiny64), None, 0).write([case], [None]) == [[]]
    assert math.isnan(Writer(PlainLayers(tiny64), None, 0).measure([case], [None])[0]["GE"])


def test_chosen() -> None:
    """A draw outside of the likeliest, or not in proportion to them."""
    logits = torch.tensor([[0.0, math.log(6.0), math.log(3.0), -50.0]]).repeat(3, 1)
    assert pick_tokens(logits, torch.tensor([0.0, 0.7, 0.95]), 3).tolist() == [1, 2, 0]
    assert pick_tokens(logits, torch.tensor([0.5, 0.7, 0.95]), 1).tolist() == [1, 1, 1]


def test_entropy() -> None:
    """Four different words: three pairs and two triples; a text that repeats itself has none of either."""
    assert allclose(entropy("a b c d"), math.log2(3) / 3 + 2 / 3, 1e-12)
    assert entropy("no no no no") == 0.0
    assert allclose(entropy("a b. a b."), (2 * 0.4 * math.log2(2.5) + 0.2 * math.log2(5)) / 3 + 2 / 3 * 1.5, 1e-12)
    assert math.isnan(entropy("a b"))


def test_likeness() -> None:
    """Cosine of counts × (log((1+n)/(1+df)) + 1), by hand."""
    weights = TermWeights(["Rome is old", "Paris is new"])
    rare, common = math.log(3 / 2) + 1, 1.0
    assert weights.inverse == {"rome": rare, "is": common, "old": rare, "paris": rare, "new": rare}
    expected = (common * common + rare * rare) / (math.hypot(common, rare) * math.hypot(common, rare, rare))
    assert allclose(weights.cosine("Is ROME? a", "Rome is old"), expected, 1e-12)
    assert allclose(weights.cosine("Rome is old", "old is Rome"), 1.0, 1e-12)
    assert weights.cosine("nothing known", "Rome") == 0.0


def test_references(tiny64: fm.Model, cases: list[EditCase]) -> None:
    """A target without texts has no likeness, rather than none at all."""
    writer = Writer(PlainLayers(tiny64), {" Rome": ["The city of Rome is in the city"], "London": []}, 1)
    found = writer.measure(cases, [None] * 3)
    assert found[0]["RS"] > 0
    assert all(math.isnan(one["RS"]) for one in found[1:])
