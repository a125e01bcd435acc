"""The main jobs on a pretrained model: gated, RMSNorm, 30 layers, a vocabulary of 49,152 tokens."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

import ffnmem as fm
from ffnmem.core.resources import cached_model

from ..helpers import allclose
from .conftest import TOWER


def test_it_is_the_model_that_was_measured(smollm2: fm.Model) -> None:
    """Every figure in the manual is of these weights."""
    assert (smollm2.n_layers, smollm2.d_model, smollm2.d_mlp, smollm2.d_vocab) == (30, 576, 1536, 49152)
    assert smollm2.fingerprint == "d770ab51bf1f"
    assert smollm2.prepend_bos
    assert smollm2.tokenizer.bos_token == "<|endoftext|>"
    assert dict(smollm2.provenance().settings) == {"quantization": "Q4_1"}


def test_its_tokenizer_cuts_numbers_into_digits(smollm2: fm.Model) -> None:
    """As it was trained: a space or a line break before a digit stays with those before it."""
    assert smollm2.token_strings(smollm2.tokenize("So\n\n1984"))[-5:] == ["\n\n", "1", "9", "8", "4"]


def test_it_knows_the_tower(capture: fm.prompts.Capture) -> None:
    best = capture.predictions(k=1).iloc[0]
    assert best["token"] == " Paris"
    assert abs(best["probability"] - 0.753) < 0.01


def test_logits_are_those_of_hugging_face(smollm2: fm.Model) -> None:
    """Read plainly, by a program that knows nothing of ours."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(cached_model("smollm2"), dtype=torch.float32)
    tokens = torch.tensor([smollm2.tokenize(TOWER)])
    with torch.no_grad():
        expected = theirs.eval()(input_ids=tokens).logits
    allclose(fm.capture(smollm2, TOWER, logits=True).logits, expected, 1e-4)


def test_every_identity_holds(smollm2: fm.Model, capture: fm.prompts.Capture) -> None:
    """Memories sum to each layer's output, components to the logit."""
    for layer in range(smollm2.n_layers):
        ffn = smollm2.ffn[layer]
        assert ffn.value_bias is None
        summed = capture.coefficients[layer].double() @ ffn.values.double()
        allclose(summed, capture.ffn_out[layer], 1e-4)
    found = fm.attribute(capture, " Paris")
    assert found.error < 1e-4
    assert abs(float(found.components["logit"].sum()) - float(found.logit)) < 1e-4


def test_a_fact_is_traced_and_rewritten(smollm2: fm.Model, tmp_path: Path) -> None:
    """The state at the last token says Paris at the end; an edit makes it say Rome, and takes itself back."""
    fact = fm.Fact(subject="Eiffel Tower", prompt="The {} is located in the city of", target_true="Paris")
    trace = fm.trace_fact(smollm2, fact, kinds=["state"], samples=1)
    scores = trace.to_frame().set_index(["layer", "position"])["score"]
    assert scores[29, trace.to_frame()["position"].max()] > 0.6  # of .75 without noise
    layer, before = 3, smollm2.fingerprint
    moment = fm.editing.second_moment(smollm2, "atlas", layers=[layer], tokens=4000)
    edit = fm.rome(smollm2, fact, target=" Rome", layer=layer, moment=moment)
    with edit.applied(smollm2):
        assert list(fm.capture(smollm2, TOWER).predictions(k=1)["token"]) == [" Rome"]
    assert smollm2.fingerprint == before
