"""Generated text: sampled with each fact's own edit, its entropy and likeness to references by hand."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.evaluation import evaluate
from ffnmem.evaluation.texts import sample
from ffnmem.models.replaying import PlainLayers

from ..helpers import Pair, allclose, hook_count
from .made import EIFFEL, FACTS, average, own_editor, random_edits

REFERENCES = {" Rome": ["The city of Rome is in the city", "Rome is of the Tower"], "Paris": ["Paris is the city"]}


def whole_sample(model: fm.Model, prompt: list[int], draw: np.random.Generator) -> str:
    """One text, one whole forward pass a token, each drawn from the five likeliest ones."""
    ids = list(prompt)
    for number in draw.random(model.n_ctx - len(ids)):
        with torch.no_grad():
            logits = model.hf_model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = logits.float().topk(5)
        below = np.cumsum(best.values.double().softmax(0).numpy())
        ids.append(int(best.indices[min(int((number >= below).sum()), 4)]))
        if ids[-1] == model.tokenizer.eos_token_id:
            break
    return str(model.tokenizer.decode(ids, skip_special_tokens=True))


def entropy(text: str) -> float:
    """A third of that of pairs of words, two thirds of that of triples, in bits."""
    words, total = re.findall(r"\w+|[^\w\s]", text), 0.0
    for size in (2, 3):
        counts = Counter(zip(*(words[i:] for i in range(size)), strict=False))
        shares = np.array(list(counts.values())) / counts.total()
        total -= (size - 1) / 3 * float((shares * np.log2(shares)).sum())
    return total if len(words) > 2 else math.nan


def likeness(texts: Sequence[str], target: str) -> float:
    """The cosine of counts × (log((1 + n) / (1 + documents with the term)) + 1)."""
    references = {name.strip(): own for name, own in REFERENCES.items()}
    documents = [re.findall(r"\w\w+", text.lower()) for own in references.values() for text in own]
    terms = sorted({term for words in documents for term in words})
    seen = np.array([sum(term in words for words in documents) for term in terms])
    weights = np.log((1 + len(documents)) / (1 + seen)) + 1
    own = [re.findall(r"\w\w+", " ".join(each).lower()) for each in (texts, references.get(target, ()))]
    a, b = (weights * [words.count(term) for term in terms] for words in own)
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norm) if norm else math.nan


def test_generated_text(tiny64: fm.Model) -> None:
    """Text written with another fact's edit, or another text's random numbers; hooks that stay."""
    long = "The {}" + " is in the city of" * 9  # no room to write behind it
    facts = [replace(fact, generation_prompts=(*EIFFEL.generation_prompts, long)) for fact in FACTS]
    editor, options = own_editor(random_edits(tiny64)), {"metrics": ["GE", "RS"], "references": REFERENCES, "draws": 5}
    evaluate(tiny64, facts[:1], "none", **options)  # Hugging Face adds hooks of its own when a model first runs
    before = hook_count(tiny64.hf_model)
    cases = evaluate(tiny64, facts, editor, seed=1, **options).cases
    assert hook_count(tiny64.hf_model) == before
    for row, fact, edit in zip(cases.to_dict("records"), facts, random_edits(tiny64), strict=True):
        for suffix, block in (("_before", nullcontext()), ("", edit.applied(tiny64))):
            with block:
                texts = [
                    whole_sample(
                        tiny64,
                        tiny64.tokenize(fact.ask(prompt)),
                        np.random.default_rng([1, zlib.crc32(fact.name.encode()), j]),
                    )
                    for j, prompt in enumerate(EIFFEL.generation_prompts)
                ]
            assert allclose(row[f"GE{suffix}"], average([entropy(text) for text in texts]), 1e-9)
            assert row[f"RS{suffix}"] == pytest.approx(likeness(texts, row["target"]), rel=1e-9, nan_ok=True)
    assert cases["RS"].isna().tolist() == [False, False, True]
    assert entropy("a b c d") == pytest.approx(math.log2(3) / 3 + 2 / 3)  # three pairs and two triples
    assert evaluate(tiny64, facts, editor, seed=2, **options).cases["GE"].tolist() != cases["GE"].tolist()
    only = replace(EIFFEL, generation_prompts=(long,))
    assert evaluate(tiny64, only, "none", **{**options, "metrics": ["GE"]}).cases["GE"].isna().all()
    assert "RS" not in evaluate(tiny64, facts, "none", metrics=["ES", "GE"], draws=5).cases


def test_sampling_equals_whole_passes(pair: Pair) -> None:
    """Pads that are read, positions that are off by them, a cache that mixes rows, random numbers of a neighbour."""
    model = pair.model
    prompts = [model.tokenize("The city"), model.tokenize("In the city of Rome is the")]
    found = sample(PlainLayers(model), prompts, [np.random.default_rng(i) for i in range(2)])
    shorter = min(map(len, found))
    for i, text in enumerate(found):
        # The longest prompt of a batch fills the context first.
        assert whole_sample(model, prompts[i], np.random.default_rng(i)).startswith(text[: max(12, shorter // 2)])
