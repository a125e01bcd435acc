"""Anatomies: parameters and FLOPs by component, against Hugging Face's own sums and against counted arithmetic."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models import Anatomy, anatomy

from ..architectures import DECODERS, EVERY, MIXTURES
from ..helpers import allclose, build_untied_gpt2_with_bias, refuses


def flops_counted(hf: Any, n: int) -> int:
    eager = type(hf)._from_config(hf.config, attn_implementation="eager").eval()
    tokens = torch.randint(3, 50, (1, n), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        eager(tokens, use_cache=False)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", EVERY)
def test_the_parts_sum_to_the_whole(name: str, tokenizer: Any) -> None:
    """Counted in the model, by torch as it runs, and from the config alone."""
    hf = DECODERS[name]()
    model = fm.load(hf, tokenizer=tokenizer)
    found = anatomy(model, context=8)
    frame, ffn = found.to_frame(), model.ffn[0]
    assert frame["parameters"].sum() == found.parameters == sum(p.numel() for p in hf.parameters())
    assert "other" not in set(frame["component"])
    assert allclose([frame["share"].sum(), frame["flops_share"].sum()], [1.0, 1.0], 1e-12)
    assert (found.d_model, found.d_mlp, found.d_vocab) == (model.d_model, model.d_mlp, model.d_vocab)
    assert (found.gated, found.activation) == (model.gated, ffn.activation)
    assert found.neurons == sum(len(one.values) for one in model.ffn)
    rows = found.matrices.set_index("name")["rows"]
    assert {rows[name] for name in ("keys", "values", "gates") if name in rows} == {len(ffn.values)}
    queries = 4 * found.matrices.query("part == 'attention'")["numbers"].sum() // 2
    assert queries + 4 * rows["Q"] * 8 == found.total("layer_flops", "attention")
    assert found.total("layer_flops", "unembedding") == found.total("layer_parameters", "unembedding") == 0
    if name == "GPT-2":  # or parameters would stand in the wrong line
        for component, part in (("attention", "attn."), ("FFN", "mlp."), ("norms", "ln_"), ("token embedding", "wte.")):
            expected = sum(p.numel() for name, p in hf.named_parameters() if part in name)
            assert found.total("parameters", component) == expected
    if name not in MIXTURES:  # whose experts this torch counts as they are chosen
        assert flops_counted(hf, 8) == 8 * found.flops
    for source, counted in ((hf, "weights"), (hf.config, "config")):
        other = anatomy(source, context=8)
        assert other.to_frame().equals(frame)
        assert other.matrices.equals(found.matrices)
        assert other.counted == counted
        for field in ("widths", "n_ctx", "gated", "norm", "tied", "activation", "biases"):
            assert getattr(other, field) == getattr(found, field), field


TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
PLAIN = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": 2}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("phi", {"intermediate_size": 80, "qk_layernorm": True, **GROUPED}),
    ("falcon", {"multi_query": False, "bias": True, "num_kv_heads": 4, "alibi": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("llama", {"intermediate_size": 80, "head_dim": 12}),
    ("qwen3", {"intermediate_size": 80, "attention_bias": True, **GROUPED}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True, **GROUPED}),
]


def tiny_config(family: str, changes: dict[str, Any]) -> Any:
    return transformers.AutoConfig.for_model(family, **{**TINY, **PLAIN, **changes})


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=str)
def test_settings_of_a_family_count(family: str, changes: dict[str, Any]) -> None:
    """A bias or a shared head would be counted where there is none."""
    config = tiny_config(family, changes)
    found, model = anatomy(config, context=8), transformers.AutoModelForCausalLM.from_config(config)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert flops_counted(model, 8) == 8 * found.flops


def test_published_models_have_their_parameters() -> None:
    for family, parameters, changes in (
        ("gpt2", 124_439_808, {}),
        ("bloom", 559_214_592, {"hidden_size": 1024, "n_layer": 24, "n_head": 16}),
        ("llama", 6_738_415_616, {}),
        ("gemma2", 2_614_341_888, {}),
        ("phi3", 3_821_079_552, {}),
    ):
        assert anatomy({"model_type": family, **changes}).parameters == parameters, family


def test_what_no_config_tells_and_no_name(tokenizer: Any) -> None:
    """The config would be believed rather than the weights; a part that nobody knows vanish."""
    hf = build_untied_gpt2_with_bias()
    found = anatomy(fm.load(hf, tokenizer=tokenizer))
    assert found.parameters - anatomy(hf.config).parameters == found.d_vocab
    assert found.biases[-1] == "unembedding"
    hf.transformer.h[0].adapter = nn.Linear(16, 3)
    hf.transformer.extra = nn.Linear(5, 2)
    found = anatomy(hf)
    assert found.parameters == sum(parameter.numel() for parameter in hf.parameters())
    # Half of 51 is no whole number: what the mean of two layers leaves over stands outside.
    assert (found.total("layer_parameters", "other"), found.total("parameters", "other")) == (25, 51 + 12)


def test_memories_account_for_the_ffn() -> None:
    """8d² of 12d² but for biases and norms; neurons times vectors is all of its weights."""
    gpt2, llama = anatomy(transformers.GPT2Config()), anatomy({"model_type": "llama"})
    assert allclose(gpt2.ffn_share_of_layers, 2 / 3, 1e-3)
    assert gpt2.total("layer_parameters", "FFN") == 2 * 768 * 3072 + 3072 + 768
    assert gpt2.ffn_share == 12 * gpt2.total("layer_parameters", "FFN") / 124_439_808
    assert (gpt2.neurons, gpt2.vectors, gpt2.expansion, gpt2.parity.h) == (36_864, ("key", "value"), 4.0, 2048)
    memory = llama.to_dict()["memory"]
    assert memory["neurons"] * memory["weights_per_neuron"] == 32 * llama.total("layer_parameters", "FFN")
    assert llama.matrices["numbers"].sum() == 4 * 4096**2 + 3 * 4096 * 11008
    assert (llama.gated, llama.norm, llama.biases, llama.tied) == (True, "RMSNorm", (), False)
    assert f"{llama.parity.relative:+.1%}" == "+0.8%"
    for d_mlp, gated, width in ((3072, False, 2048), (1024, False, 768), (11008, True, 16384), (64, True, 96)):
        found = replace(llama, d_mlp=d_mlp, gated=gated)
        assert (found.parity.d_mlp if gated else found.parity.h) == width
        assert found.parity.difference >= 0  # never in favour of the gated
        assert f"{width:,}" in found.parity_words()
    coder = anatomy({"model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_positions": 8192})
    assert coder.matrices.query("part == 'attention'")["rows"].tolist() == [2048, 2048, 128, 128]


def test_sheet_and_data(tiny: fm.Model) -> None:
    """A component's numbers in the place of another's, or a trait left out."""
    for found in (anatomy({"model_type": "llama"}), anatomy(tiny)):
        blocks: Any = found.sheet().blocks
        frame, (components, in_layers, facts, _) = found.to_frame(), blocks
        columns = ["component", "parameters", "share", "flops", "flops_share"]
        assert [list(row) for row in components.rows[:-1]] == frame[columns].to_numpy().tolist()
        assert components.rows[-1] == ("all", found.parameters, 1.0, found.flops, 1.0)
        assert in_layers.rows[3][1] == frame.loc[3, "layer_parameters"]
        assert facts.rows == found.traits()
        read = json.loads(json.dumps(found.to_dict()))
        assert read["parameters"] == sum(row["parameters"] for row in read["components"]) == found.parameters
    assert read["provenance"]["fingerprint"] == tiny.fingerprint
    assert Anatomy.traits(found)["biases"] == "attention, FFN, norms"


def test_a_config_is_enough_and_a_context_is_that_of_the_flops(
    tiny_folder: Path, tiny: fm.Model, tmp_path: Path
) -> None:
    """Weights would be asked for: a folder of many gigabytes could not be asked about."""
    shutil.copyfile(tiny_folder / "config.json", tmp_path / "config.json")
    found, few = anatomy(tmp_path), anatomy(tiny, context=3)
    assert (found.name, found.context) == (str(tmp_path), 32)
    assert found.to_frame().equals(anatomy(tiny).to_frame())
    assert anatomy("atlas").parameters == 6_344_704
    assert found.flops - few.flops == 2 * 4 * 16 * 29  # layers, per number of a query
    with refuses(InputError, ValueError, "context 33", "32 positions"):
        anatomy(tiny, context=33)


def unstated() -> Any:
    config: Any = transformers.GPT2Config()
    config.__dict__["activation_function"] = None  # past its own check
    return config


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        (lambda: {"model_type": "granitemoe"}, UnsupportedModelError, ("granitemoe", "mixture of experts")),
        (lambda: {"model_type": "t5"}, UnsupportedModelError, ("t5", "encoder-decoder")),
        (lambda: {"model_type": "bert"}, UnsupportedModelError, ("bert", "not among the decoders", "Llama")),
        (lambda: {"model_type": "gemma3"}, UnsupportedModelError, ("gemma3", "text_config")),
        (unstated, UnsupportedModelError, ("gpt2", "activation")),  # others guess GELU
        (lambda: transformers.Starcoder2Config(num_attention_heads=0), ModelError, ("starcoder2", "zero")),
        (lambda: Path(__file__).parent, ModelNotFoundError, ("config.json",)),
        *((lambda s=source: s, InputError, (type(source).__name__, "folder")) for source in (None, nn.Linear(1, 1))),
    ],
)
def test_what_has_no_anatomy_here(source: Callable[[], Any], kind: type[FfnmemError], says: tuple[str, ...]) -> None:
    with refuses(kind, Exception, *says):
        anatomy(source())
