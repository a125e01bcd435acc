"""Parameters counted module by module, against the formula and against Hugging Face's own sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import ModelError, UnsupportedModelError
from ffnmem.ffn.ledgers import ledger
from ffnmem.models.parameters import build_empty, by_name, count, count_loaded, count_module, is_copy

from ..architectures import DECODERS, EVERY
from ..helpers import refuses

CONTEXT = 8


@pytest.mark.parametrize("decoder", EVERY)
def test_every_parameter_once(decoder: str, tokenizer: Any) -> None:
    """A parameter would be missed or counted twice: by the bridge's copies, by a tied matrix, or in the wrong line."""
    hf = DECODERS[decoder]()
    model = fm.load(hf, tokenizer=tokenizer)
    found = count_loaded(model)
    assert found.parameters == sum(parameter.numel() for parameter in hf.parameters())
    assert found == count_module(hf)
    assert found == count_module(build_empty(hf.config, decoder))
    assert found.totals["other", True] == found.totals["other", False] == 0
    assert found.ffn == sum(
        matrix.numel() for matrix in (model.ffn[0].keys, model.ffn[0].values, model.ffn[0].gates) if matrix is not None
    )
    try:
        formula = ledger(hf.config, context=CONTEXT)
    except UnsupportedModelError:
        return
    lines = found.ledger("x", CONTEXT, int(model.to_bridge().cfg.n_heads * model.to_bridge().cfg.d_head))
    assert lines.components == formula.components


def test_what_is_of_no_known_kind_is_other(tokenizer: Any) -> None:
    """A part that nobody knows would vanish, and the sum not be the whole."""
    hf = DECODERS["GPT-2"]()
    hf.transformer.h[0].adapter = nn.Linear(16, 3)
    hf.transformer.extra = nn.Linear(5, 2)
    found = count_module(hf)
    assert found.totals["other", True] == 16 * 3 + 3
    assert found.totals["other", False] == 5 * 2 + 2
    lines = found.ledger("x", CONTEXT, 16)
    assert lines.parameters == sum(parameter.numel() for parameter in hf.parameters())
    assert lines.components[-1].component == "other"
    # Half of 51 is no whole number: what the mean of two layers leaves over stands outside.
    assert (lines["other"].layer_parameters, lines["other"].other_parameters) == (25, 13)


def test_the_layout_goes_before_names(tokenizer: Any) -> None:
    """An FFN whose modules are called otherwise would be taken for something else."""
    hf = DECODERS["Llama"]()
    block = hf.model.layers[0]
    part = block.mlp.up_proj
    known = {id(parameter): "FFN" for parameter in part.parameters()}
    block.strange, block.mlp.up_proj = part, None
    blocks, ends = list(hf.model.layers), (hf.get_input_embeddings(), hf.get_output_embeddings())
    assert count(hf, blocks, *ends, {}).totals["other", True] == part.weight.numel()
    assert count(hf, blocks, *ends, known).totals["other", True] == 0


def test_nothing_is_allocated() -> None:
    """Llama 7B would take 27 gigabytes to be counted."""
    model = build_empty(transformers.LlamaConfig(), "llama")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert count_module(model).parameters == 6_738_415_616


def test_sizes_that_fit_no_model() -> None:
    config = transformers.Starcoder2Config(num_attention_heads=0)
    with refuses(ModelError, ValueError, "some folder", "zero"):
        build_empty(config, "some folder")


def test_names() -> None:
    """A norm inside attention would count as attention, and a layer norm named after an FFN as FFN."""
    for path, component in {
        "transformer.h.0.ln_mlp.weight": "norms",
        "model.layers.0.self_attn.q_norm.weight": "norms",
        "model.layers.0.post_attention_layernorm.bias": "norms",
        "transformer.h.0.self_attention.dense.weight": "attention",
        "model.decoder.layers.0.fc1.bias": "FFN",
        "transformer.blocks.0.ffn.up_proj.weight": "FFN",
        "model.decoder.embed_positions.weight": "position embedding",
        "something.weight": "other",
    }.items():
        assert by_name(path.split(".")) == component
    among = dict.fromkeys(["a.q.weight", "a.qkv.weight", "b.qkv.weight"], nn.Parameter(torch.zeros(1)))
    assert [is_copy(path.split("."), among) for path in among] == [False, True, False]
