"""A model's sizes, tokens and identity, its FFNs as keys and values, its stream as a linear map of what is added."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, OutOfRangeError
from ffnmem.models.layout import inner
from ffnmem.models.residual import FinalNorm, pulled_through

from ..architectures import DECODERS
from ..helpers import BOS, PROMPT, Pair, added, allclose, build, build_gpt2, build_gpt_neox, refuses

# -- sizes and parts --------------------------------------------------------------------------------------------------


def test_sizes_and_ends(pair: Pair, tokenizer: Any) -> None:
    """Loops would stop early or run over; logits lack the unembedding's bias, or be another head's."""
    model = pair.model
    assert (model.n_layers, model.d_model, model.d_mlp, model.n_ctx) == (2, 16, 64, 32)
    assert model.d_vocab == len(tokenizer)
    assert model.embedding.shape == model.unembedding.shape == (len(tokenizer), 16)
    assert model.architecture == type(pair.hf).__name__
    capture = fm.capture(model, PROMPT)
    assert allclose(model.logits_of(capture.residual.final_out), pair.logits(capture.tokens), 1e-5)
    assert allclose(model.logit_lens(capture.residual.final_in), pair.logits(capture.tokens), 1e-5)
    unembedding = inner(model.layout.unembedding)  # every capture would pay for logits that nobody asked for
    assert all(module is not unembedding for module in model.layout.body.modules())
    memory = {parameter.data_ptr() for parameter in model.hf_model.parameters()}  # edits of copies would be lost
    for layer, ffn in enumerate(model.ffn):
        assert (ffn.layer, ffn.d_mlp, ffn.d_model) == (layer, 64, 16)
        tensors = [ffn.keys, ffn.gates, ffn.values, ffn.key_bias, ffn.value_bias]
        assert all(tensor.data_ptr() in memory for tensor in tensors if tensor is not None)


def test_a_bridge_shares_weights_and_hooks(make_tiny: Callable[..., fm.Model]) -> None:
    """It would answer without the intervention, or keep it for good; a user's hooks would see passes of nobody's."""
    model, tokens, heard = make_tiny(), torch.tensor([[0, 5, 6]]), []
    own = model.hf_model
    own.transformer.h[1].mlp.c_proj.register_forward_hook(lambda _m, _a, out: heard.append(out.shape))
    with fm.intervene(model, {(0, 3): 5.0}, positions=-1):
        bridge = model.to_bridge()
        assert not heard
        changed = own(tokens).logits
        assert allclose(bridge(tokens), changed, 1e-6)
        again = fm.load(bridge)
        assert allclose(again.logits_of(fm.capture(again, tokens).residual.final_out), changed, 1e-6)
    assert model.hf_model is own
    assert not torch.allclose(own(tokens).logits, changed, atol=1e-4)
    with torch.no_grad():
        model.ffn[0].values[:] = 0
        model.embedding[5] += torch.arange(16.0)
    assert allclose(bridge(tokens), own(tokens).logits, 1e-6)
    assert torch.equal(own.transformer.wte.weight, model.unembedding)  # tied


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens(tiny: fm.Model) -> None:
    """The beginning-of-sequence token would be there twice, or not where it was asked for; another token explained."""
    ids = tiny.tokenize(PROMPT)
    assert tiny.token_strings(ids) == [BOS, "The", " Eiffel", " Tower", " is", " in", " the", " city", " of"]
    assert tiny.tokenize(PROMPT, prepend_bos=False) == ids[1:]
    assert tiny.tokenize(PROMPT, prepend_bos=True) == ids
    assert tiny.special_token_ids == {0}
    assert len(tiny.tokenize("The" + " the" * 30)) == tiny.n_ctx
    assert tiny.token_strings([tiny.token_id(" Paris")]) == [" Paris"]
    assert tiny.token_id("Paris", first=True) == tiny.token_id("P")
    assert tiny.token_id(" Madrid", first=True) == tiny.token_id(" ")
    assert [tiny.token_id(kind(5)) for kind in (int, np.int64, torch.tensor)] == [5] * 3
    assert (tiny.layer(-1), tiny.layer(np.int64(0)), tiny.neuron(0, -1)) == (1, 0, 63)


PARIS = ("'Paris'", "5 tokens", "P | a | r | i | s", "' Paris'", "first_token=True")


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda model: model.tokenize(""), InputError, ("empty",)),
        (lambda model: model.tokenize("The" + " the" * 31), InputError, ("33 tokens", "32", "GPT2")),
        (lambda model: model.token_id("Paris"), InputError, PARIS),  # the space in front is the usual mistake
        (lambda model: model.token_id(" Madrid"), InputError, ("' Madrid'", "7 tokens")),
        (lambda model: model.token_id(""), InputError, ("empty",)),
        (lambda model: model.token_id(torch.tensor(303)), OutOfRangeError, ("token id 303", "302")),
        (lambda model: model.layer(2), OutOfRangeError, ("layer 2", "GPT2", "0 to 1")),
        (lambda model: model.neuron(1, 64), OutOfRangeError, ("neuron 64", "layer 1", "0 to 63")),
    ],
)
def test_what_a_model_has_not(
    call: Callable[[fm.Model], Any], kind: type[FfnmemError], says: tuple[str, ...], tiny: fm.Model
) -> None:
    with refuses(kind, Exception, *says):
        call(tiny)


def test_no_bos(make_tiny: Callable[..., fm.Model]) -> None:
    """The first token would silently be None, or another token."""
    model = make_tiny()
    bridge = model.to_bridge()
    model.tokenizer.bos_token = bridge.tokenizer.bos_token = None
    assert model.bos_token_id is None
    for call in (lambda: model.tokenize(PROMPT), lambda: fm.load(bridge, prepend_bos=True)):
        with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
            call()
    assert len(fm.load(bridge).tokenize(PROMPT)) == 8


def test_unknown_words() -> None:
    """With a tokenizer of whole words, an unknown target would be explained as the token for anything unknown."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[BOS]": 1, "Paris": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]")
    model = fm.load(build_gpt2(), tokenizer=tokenizer)
    assert (model.token_id("Paris"), model.token_id("[UNK]")) == (2, 0)
    with refuses(InputError, ValueError, "'Rome'", "no token"):
        model.token_id("Rome")


# -- identity ---------------------------------------------------------------------------------------------------------


def test_fingerprint_is_of_the_weights(tiny_folder: Path, tiny: fm.Model, tokenizer: Any) -> None:
    """Two loads of one model would count as two models, or two models as one, though they run otherwise."""
    assert len(tiny.fingerprint) == 12
    assert int(tiny.fingerprint, 16) >= 0
    assert fm.load(tiny_folder).fingerprint == tiny.fingerprint
    gemmas = ({}, {"sliding_window": 4}, {"attn_logit_softcapping": 7.0}, {"final_logit_softcapping": 3.0})
    networks = [
        *(build_gpt2(**one) for one in ({"n_head": 4}, {"activation_function": "relu"}, {"layer_norm_epsilon": 1e-3})),
        *(build_gpt_neox(use_parallel_residual=parallel) for parallel in (True, False)),
        *(build("Gemma2", head_dim=8, **changes) for changes in gemmas),
    ]
    others = {fm.load(network, tokenizer=tokenizer).fingerprint for network in networks}
    found = {tiny.fingerprint, fm.load(tiny_folder, dtype="float64").fingerprint, *others}
    assert len(found) == 2 + len(networks)


@pytest.mark.parametrize("part", ["keys", "values", "key_bias", "value_bias"])
def test_fingerprint_follows_every_change(make_tiny: Callable[..., fm.Model], part: str) -> None:
    """A result after an edit would claim the weights from before it, or not match again after it is reverted."""
    model = make_tiny()
    before, tensor = model.fingerprint, getattr(model.ffn[1], part)
    with torch.no_grad():
        index = (0,) * tensor.ndim
        old = tensor[index].clone()
        tensor[index] += 1e-3
        assert model.fingerprint != before
        tensor[index] = old
    assert model.fingerprint == before


# -- the residual stream ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foil", [None, 7])
def test_directions_give_the_logit(pair64: Pair, foil: int | None) -> None:
    """logit = x·u/σ + constant is what the whole attribution rests on; nothing of the model may change for it."""
    model, before = pair64.model, pair64.model.fingerprint
    x = 3 * torch.randn(5, model.d_model, generator=torch.Generator().manual_seed(2), dtype=model.dtype) + 1
    norm, targets = FinalNorm(model), torch.tensor([3, 0, 200, 7, 3])
    centred = (x - x.mean(-1, keepdim=True) * model.centred) / norm.scale(x).unsqueeze(-1) * norm.gain
    normed = inner(model.layout.final_norm)(x)
    assert allclose(centred + (0 if norm.bias is None else norm.bias), normed, 1e-13)
    u, constant = norm.directions(targets, foil)
    logits = pair64.before_cap(model.logits_of(normed))
    expected = logits[range(5), targets] - (0 if foil is None else logits[:, foil])
    assert allclose((x * u).sum(-1) / norm.scale(x) + constant, expected, 1e-12)
    assert model.fingerprint == before


@pytest.mark.parametrize("name", ["GPT-2", "Gemma 2", "Granite"])
def test_directions_come_through_what_is_behind_the_ffn(name: str, tokenizer: object) -> None:
    """A neuron's part of a logit would be that of a model without the norm (Gemma 2) or the factor (Granite)."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    for layer in range(model.n_layers):
        written = capture.ffn_out[layer][0]
        directions = torch.randn(written.shape, generator=torch.Generator().manual_seed(layer), dtype=written.dtype)
        expected = (added(model, layer, "ffn", written) * directions).sum(-1)
        assert allclose((written * pulled_through(model, layer, directions, written)).sum(-1), expected, 1e-12)


# -- what a command must not load -------------------------------------------------------------------------------------

HEAVY = (
    *("transformer_lens", "matplotlib", "sklearn", "datasets", "wandb", "scipy.stats", "ray", "ffnmem.scanning"),
    *("numba", "llvmlite", "IPython", "fsspec.implementations"),
)
CODE = f"""
import json, sys
import ffnmem as fm
from ffnmem.cli import main
model = fm.load("atlas")
fm.attribute_paths(fm.capture(model, "The Eiffel Tower", logits=True), " Paris").components
with fm.intervene(model, {{(3, 17): 0.0}}):
    fm.capture(model, "The")
sys.argv = ["ffnmem", "attribute", "The Eiffel Tower is located in the city of", "--target", " Paris"]
try:
    main()
except SystemExit:
    print(json.dumps([name for name in {("torch", *HEAVY)} if name in sys.modules]), file=sys.stderr)
"""


def test_heavy_modules_stay_out() -> None:
    """TransformerLens alone takes four seconds, for whoever asks one question of one prompt."""
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "promotes" in found.stdout
    assert json.loads(found.stderr.splitlines()[-1]) == ["torch"]
