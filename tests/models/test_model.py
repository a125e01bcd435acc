"""A model's sizes, tokens and identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError

from ..helpers import BOS, PROMPT, Pair, allclose, build_gpt2, build_gpt_neox, refuses

# -- sizes and ends ---------------------------------------------------------------------------------------------------


def test_sizes(pair: Pair, tokenizer: Any) -> None:
    """Loops over layers or neurons would stop early or run over."""
    model = pair.model
    assert (model.n_layers, model.d_model, model.d_mlp, model.n_ctx) == (2, 16, 64, 32)
    assert model.d_vocab == len(tokenizer)
    assert model.embedding.shape == model.unembedding.shape == (len(tokenizer), 16)
    assert model.architecture == type(pair.hf).__name__


def test_logits_of_is_the_models_unembedding(pair: Pair) -> None:
    """The logits would lack the unembedding's bias, or be another head's."""
    capture = fm.capture(pair.model, PROMPT)
    assert capture.residual is not None
    assert allclose(pair.model.logits_of(capture.residual.final_out), pair.logits(capture.tokens), 1e-5)


def test_embeddings_are_live(make_tiny: Callable[..., fm.Model]) -> None:
    """A projection after an edit would use the old embedding."""
    model = make_tiny()
    with torch.no_grad():
        model.embedding[5] = 2.5
    assert bool((model.hf_model.transformer.wte.weight[5] == 2.5).all())
    assert model.unembedding.data_ptr() == model.embedding.data_ptr()  # tied


def test_body_computes_no_logits_and_no_gradients(tiny: fm.Model) -> None:
    """A quarter of GPT-2 small's forward pass, and its memory, for nothing."""
    called: list[torch.Tensor] = []
    handles = [
        tiny.layout.unembedding.register_forward_hook(lambda *_: called.append(torch.ones(1))),
        tiny.layout.final_norm.register_forward_hook(lambda _m, _i, out: called.append(out)),
    ]
    try:
        tiny.body(torch.tensor([[0, 5, 6]]))
    finally:
        for handle in handles:
            handle.remove()
    assert [tensor.shape for tensor in called] == [(1, 3, 16)]
    assert not called[0].requires_grad


def test_a_bridge_shares_the_hooks(make_tiny: Callable[..., fm.Model]) -> None:
    """It would answer without the intervention, or keep it for good; a user's hooks would see passes of nobody's."""
    model, tokens, heard = make_tiny(), torch.tensor([[0, 5, 6]]), []
    own = model.hf_model
    own.transformer.h[1].mlp.c_proj.register_forward_hook(lambda _m, _a, out: heard.append(out.shape))
    with fm.intervene(model, {(0, 3): 5.0}, positions=-1):
        bridge = model.to_bridge()
        assert not heard
        changed = own(tokens).logits
        assert allclose(bridge(tokens), changed, 1e-6)
        assert allclose(
            fm.load(bridge).logits_of(fm.capture(fm.load(bridge), tokens).residual.final_out), changed, 1e-6
        )
    assert model.hf_model is own
    assert allclose(bridge(tokens), own(tokens).logits, 1e-6)
    assert not torch.allclose(own(tokens).logits, changed, atol=1e-4)
    with fm.intervene(model, {(0, 3): 5.0}, positions=-1):
        assert allclose(bridge(tokens), changed, 1e-6)
    with torch.no_grad():
        model.ffn[0].values[:] = 0
    assert allclose(bridge(tokens), own(tokens).logits, 1e-6)


def test_layer_and_neuron(tiny: fm.Model) -> None:
    """A number that is too large would wrap, or end in an IndexError of a tuple."""
    assert (tiny.layer(-1), tiny.layer(np.int64(0))) == (1, 0)
    assert tiny.neuron(0, -1) == 63
    with refuses(OutOfRangeError, IndexError, "layer 2", tiny.name, "0 to 1"):
        tiny.layer(2)
    with refuses(OutOfRangeError, IndexError, "neuron 64", "layer 1", "0 to 63"):
        tiny.neuron(1, 64)


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_tokenize(tiny: fm.Model) -> None:
    """The beginning-of-sequence token would be there twice, or not where it was asked for."""
    ids = tiny.tokenize(PROMPT)
    assert tiny.token_strings(ids) == [BOS, "The", " Eiffel", " Tower", " is", " in", " the", " city", " of"]
    assert tiny.tokenize(PROMPT, prepend_bos=False) == ids[1:]
    assert tiny.tokenize(PROMPT, prepend_bos=True) == ids
    assert tiny.special_token_ids == {0}


def test_prompts_that_cannot_be_used(tiny: fm.Model) -> None:
    """An empty prompt would be a prompt of padding; a long one would fail inside the position embedding."""
    with refuses(InputError, ValueError, "empty"):
        tiny.tokenize("")
    assert len(tiny.tokenize("The" + " the" * 30)) == tiny.n_ctx
    with refuses(InputError, ValueError, "33 tokens", "32", tiny.name):
        tiny.tokenize("The" + " the" * 31)


def test_no_bos(make_tiny: Callable[..., fm.Model]) -> None:
    """The first token would silently be None, or another token."""
    model = make_tiny()
    bridge = model.to_bridge()
    model.tokenizer.bos_token = bridge.tokenizer.bos_token = None
    assert model.bos_token_id is None
    with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
        model.tokenize(PROMPT)
    with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
        fm.load(bridge)
    assert len(fm.load(bridge, prepend_bos=False).tokenize(PROMPT)) == 8


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_token_id_of_an_id(tiny: fm.Model, kind: type) -> None:
    """An id from a table or a tensor is as good as one typed."""
    assert tiny.token_id(kind(5)) == 5
    with refuses(OutOfRangeError, IndexError, f"token id {tiny.d_vocab}", str(tiny.d_vocab - 1)):
        tiny.token_id(kind(tiny.d_vocab))


def test_token_id_of_text(tiny: fm.Model) -> None:
    """The wrong token would be explained; the space in front is the usual mistake, so it is named."""
    paris = tiny.token_id(" Paris")
    assert tiny.token_strings([paris]) == [" Paris"]
    with refuses(InputError, ValueError, "'Paris'", "5 tokens", "P | a | r | i | s", "' Paris'", "first_token=True"):
        tiny.token_id("Paris")
    assert tiny.token_id("Paris", first=True) == tiny.token_id("P")
    with refuses(InputError, ValueError, "' Madrid'", "7 tokens"):
        tiny.token_id(" Madrid")
    assert tiny.token_id(" Madrid", first=True) == tiny.token_id(" ")
    with refuses(InputError, ValueError, "empty"):
        tiny.token_id("")


def test_unknown_words(tmp_path: Path) -> None:
    """With a tokenizer of whole words, an unknown target would be explained as the token for anything unknown."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[BOS]": 1, "Paris": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]")
    model = fm.load(build_gpt2(), tokenizer=tokenizer)
    assert model.token_id("Paris") == 2
    assert model.token_id("[UNK]") == 0
    with refuses(InputError, ValueError, "'Rome'", "no token"):
        model.token_id("Rome")


@pytest.mark.shared
def test_gpt2s_own_tokenizer(gpt2_tokenizer: Any) -> None:
    """The examples' targets would not be single tokens of the model that most people use."""
    hf = build_gpt2(vocab_size=50257, n_embd=4, n_inner=8, bos_token_id=50256, eos_token_id=50256)
    model = fm.load(hf, tokenizer=gpt2_tokenizer)
    assert model.prepend_bos
    ids = model.tokenize("The Eiffel Tower is located in the city of")
    assert ids[0] == model.bos_token_id == 50256
    assert model.token_strings(ids[1:4]) == ["The", " E", "iff"]
    assert model.token_id(" Paris") == 6342
    assert model.token_id("Paris") == 40313
    assert model.token_strings([6342, 220, 198]) == [" Paris", " ", "\n"]
    assert fm.attribute(fm.capture(model, "The Colosseum is in"), " Rome", " Paris").error < 1e-4


# -- identity ---------------------------------------------------------------------------------------------------------


def test_fingerprint_is_of_the_weights(tiny_folder: Path, tiny: fm.Model, tokenizer: Any) -> None:
    """Two loads of one model would count as two models, or two models as one."""
    assert len(tiny.fingerprint) == 12
    assert int(tiny.fingerprint, 16) >= 0
    assert fm.load(tiny_folder).fingerprint == tiny.fingerprint
    others = [
        fm.load(tiny_folder, dtype="float64").fingerprint,
        fm.load(build_gpt2(n_head=4), tokenizer=tokenizer).fingerprint,
        fm.load(build_gpt2(activation_function="relu"), tokenizer=tokenizer).fingerprint,
        fm.load(build_gpt2(layer_norm_epsilon=1e-3), tokenizer=tokenizer).fingerprint,
        fm.load(build_gpt_neox(), tokenizer=tokenizer).fingerprint,
        fm.load(build_gpt_neox(use_parallel_residual=False), tokenizer=tokenizer).fingerprint,
    ]
    assert len({tiny.fingerprint, *others}) == 1 + len(others)


@pytest.mark.parametrize("part", ["keys", "values", "key_bias", "value_bias"])
def test_fingerprint_follows_every_change(make_tiny: Callable[..., fm.Model], part: str) -> None:
    """A result after an edit would claim the weights from before it, or not match again after it is reverted."""
    model = make_tiny()
    before = model.fingerprint
    tensor = getattr(model.ffn[1], part)
    with torch.no_grad():
        old = tensor.flatten()[0].clone()
        index = (0,) * tensor.ndim
        tensor[index] += 1e-3
        assert model.fingerprint != before
        tensor[index] = old
    assert model.fingerprint == before


def test_repr_fits_a_line(tiny: fm.Model) -> None:
    """A notebook would print a dump of modules."""
    text = repr(tiny)
    assert "\n" not in text
    for part in ("GPT2LMHeadModel", "2 layers", "d_model 16", "d_mlp 64", "context 32", "float32", "cpu"):
        assert part in text
