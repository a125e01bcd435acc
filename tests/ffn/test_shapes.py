"""Shapes read from configs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.ffn.shapes import FAMILIES, Shape

from ..helpers import refuses

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def hugging_face(family: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **changes)


def test_gpt2_from_its_config_json() -> None:
    """A size would be read from another key, or a part be missing that is there."""
    found = Shape.from_config(GPT2)
    assert (found.d_model, found.n_layers, found.d_mlp, found.n_heads, found.n_kv_heads) == (768, 12, 3072, 12, 12)
    assert (found.d_head, found.d_vocab, found.n_ctx, found.position_rows) == (64, 50257, 1024, 1024)
    assert (found.gated, found.tied, found.position, found.norm) == (False, True, "learned", "layer")
    assert found.qkv_bias
    assert found.attention_out_bias
    assert found.ffn_bias
    assert found.norm_bias


def test_a_dict_an_object_and_a_config_are_one() -> None:
    """The same model would have another shape by the way it is handed over."""
    of_dict, of_object = Shape.from_config(GPT2), Shape.from_config(SimpleNamespace(**GPT2))
    assert of_dict == of_object == Shape.from_config(hugging_face("gpt2"))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_class_defaults_are_ours(family: str) -> None:
    """A config.json that leaves a key out, as they do at the default, would be read as another model."""
    whole = hugging_face(family)
    assert Shape.from_config(whole) == Shape.from_config(whole.to_dict())
    sizes = ("size", "layer", "head", "dim", "position", "inner", "embd", "model_type")
    left_out = ("num_key_value_heads", "num_kv_heads", "head_dim", "tie_word_embeddings")
    kept = {key: v for key, v in whole.to_dict().items() if any(s in key for s in sizes) and key not in left_out}
    assert Shape.from_config(kept) == Shape.from_config(whole)


@pytest.mark.parametrize(
    ("family", "gated", "norm", "position", "tied"),
    [
        ("llama", True, "rms", "rotary", False),
        ("gemma", True, "rms", "rotary", True),
        ("bloom", False, "layer", "alibi", True),
        ("opt", False, "layer", "learned", True),
        ("olmo", True, "layer", "rotary", False),
        ("gpt_neox", False, "layer", "rotary", False),
    ],
)
def test_what_kind_of_model(family: str, gated: bool, norm: str, position: str, tied: bool) -> None:
    """A family's row in the table would be another's."""
    found = Shape.from_config(hugging_face(family))
    assert (found.gated, found.norm, found.position, found.tied) == (gated, norm, position, tied)


def test_groups_and_heads_of_their_own_width() -> None:
    """Grouped heads would be counted as full, or a head's width be taken for d_model / n_heads."""
    mistral, gemma = Shape.from_config(hugging_face("mistral")), Shape.from_config(hugging_face("gemma"))
    assert (mistral.n_heads, mistral.n_kv_heads) == (32, 8)
    assert (gemma.d_model, gemma.n_heads, gemma.d_head) == (3072, 16, 256)
    falcon = Shape.from_config(hugging_face("falcon", alibi=True, new_decoder_architecture=True, num_kv_heads=8))
    assert (falcon.n_kv_heads, falcon.position, falcon.norms_per_layer) == (8, "alibi", 2)
    assert Shape.from_config(hugging_face("falcon")).n_kv_heads == 1


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mixtral", "mixture of experts"),
        ("qwen2_moe", "mixture of experts"),
        ("olmoe", "mixture of experts"),
        ("t5", "encoder-decoder"),
        ("bart", "encoder-decoder"),
        ("bert", "not among"),
        ("mamba", "not among"),
    ],
)
def test_other_models_are_refused_by_name(family: str, reason: str) -> None:
    """Several FFNs a layer, or an encoder's, would be counted as one decoder's."""
    with refuses(UnsupportedModelError, ValueError, repr(family), reason, "gpt2", "phi3"):
        Shape.from_config(hugging_face(family))


def test_more_than_text_points_to_the_text() -> None:
    """The reader of a picture-and-text model would not know that its text part can be read."""
    with refuses(UnsupportedModelError, ValueError, "'gemma3'", "text_config"):
        Shape.from_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})


def test_sizes_that_cannot_be_are_refused() -> None:
    """A missing size would be guessed."""
    with refuses(UnsupportedModelError, ValueError, "model_type", "gpt2"):
        Shape.from_config({"n_embd": 8})
    without = {key: value for key, value in GPT2.items() if key != "n_layer"}
    with refuses(InputError, ValueError, "None", "n_layers", "num_hidden_layers", "n_layer"):
        Shape.from_config(without)
    for wrong in (0, -1, 2.5, "12", True):
        with refuses(InputError, ValueError, repr(wrong), "d_model"):
            Shape.from_config({**GPT2, "n_embd": wrong})


def test_texts() -> None:
    """A shape could not be read or written."""
    found = Shape.from_config(GPT2)
    assert repr(found) == "Shape(gpt2, 12 layers, d_model 768, classic FFN of 3072 neurons)"
    assert json.loads(json.dumps(found.to_dict()))["d_mlp"] == 3072
    assert Shape(**found.to_dict()) == found
