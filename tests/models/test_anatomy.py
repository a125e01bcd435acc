"""Anatomies: parameters and FLOPs by component, against Hugging Face's own sums and against counted arithmetic."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models import Anatomy, anatomy

from ..architectures import DECODERS, EVERY, MIXTURES
from ..helpers import allclose, refuses


def flops_counted(hf: Any, n: int) -> int:
    eager = type(hf)._from_config(hf.config, attn_implementation="eager").eval()
    tokens = torch.randint(3, 50, (1, n), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        eager(tokens, use_cache=False)
    return int(counter.get_total_flops())


def total(found: Anatomy, column: str, component: str) -> int:
    return int(found.components.set_index("component")[column][component])


@pytest.mark.parametrize("name", EVERY)
def test_the_parts_sum_to_the_whole(name: str, tokenizer: Any) -> None:
    """As Hugging Face has them, and as torch counts its products."""
    hf = DECODERS[name]()
    model = fm.load(hf, tokenizer=tokenizer)
    found = anatomy(model, context=8)
    frame = found.to_frame()
    assert frame["parameters"].sum() == found.parameters == sum(p.numel() for p in hf.parameters())
    assert "other" not in set(frame["component"])
    assert allclose([frame["share"].sum(), frame["flops_share"].sum()], [1.0, 1.0], 1e-12)
    assert (found.d_model, found.d_vocab, found.gated) == (model.d_model, model.d_vocab, model.gated)
    assert found.widths == tuple(len(one.values) for one in model.ffn)
    assert total(found, "layer_flops", "unembedding") == total(found, "layer_parameters", "unembedding") == 0
    if name == "GPT-2":  # or parameters would stand in the wrong line
        for component, part in (("attention", "attn."), ("FFN", "mlp."), ("norms", "ln_"), ("token embedding", "wte.")):
            expected = sum(p.numel() for name, p in hf.named_parameters() if part in name)
            assert total(found, "parameters", component) == expected
    if name not in MIXTURES:  # whose experts this torch counts as they are chosen
        assert flops_counted(hf, 8) == 8 * found.flops
    for source in (hf, hf.config):
        other = anatomy(source, context=8)
        assert other.to_frame().equals(frame)
        assert (other.widths, other.gated) == (found.widths, found.gated)


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


def test_memories_account_for_the_ffn() -> None:
    """8d² of 12d² but for biases and norms; neurons times vectors is all of its weights."""
    gpt2, llama = anatomy(transformers.GPT2Config()), anatomy({"model_type": "llama"})
    layers = gpt2.components.set_index("component")["layer_parameters"]
    assert allclose(layers["FFN"] / layers.sum(), 2 / 3, 1e-3)
    assert layers["FFN"] == 2 * 768 * 3072 + 3072 + 768
    assert (gpt2.widths, gpt2.gated) == ((3072,) * 12, False)
    assert total(llama, "parameters", "FFN") == 32 * 11008 * 3 * 4096
    assert (llama.widths, llama.gated) == ((11008,) * 32, True)


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


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        (
            lambda: {"model_type": "granitemoe"},
            UnsupportedModelError,
            ("granitemoe", "not among the decoders", "Llama"),
        ),
        (lambda: {"model_type": "t5"}, UnsupportedModelError, ("t5", "not among the decoders")),
        (lambda: {"model_type": "gemma3"}, UnsupportedModelError, ("gemma3", "text_config")),
        (lambda: transformers.Starcoder2Config(num_attention_heads=0), ModelError, ("starcoder2", "zero")),
        (lambda: Path(__file__).parent, ModelNotFoundError, ("config.json",)),
        *((lambda s=source: s, InputError, (type(source).__name__, "folder")) for source in (None, 3)),
    ],
)
def test_what_has_no_anatomy_here(source: Callable[[], Any], kind: type[FfnmemError], says: tuple[str, ...]) -> None:
    with refuses(kind, Exception, *says):
        anatomy(source())
