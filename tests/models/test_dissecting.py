"""Anatomies of loaded models, names, folders and configs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models import anatomy

from ..architectures import DECODERS, MIXTURES
from ..helpers import allclose, build_untied_gpt2_with_bias, refuses


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_parts_sum_to_the_whole(decoder: str, tokenizer: Any) -> None:
    """The table would miss a part of the model, or the config's and the weights' anatomy differ."""
    hf = DECODERS[decoder]()
    model = fm.load(hf, tokenizer=tokenizer)
    found, of_module, of_config = anatomy(model), anatomy(hf), anatomy(hf.config)
    real = sum(parameter.numel() for parameter in hf.parameters())
    frame = found.to_frame()
    assert frame["parameters"].sum() == found.parameters == real
    assert allclose(frame["share"].sum(), 1.0, 1e-12)
    assert (found.d_model, found.d_mlp, found.d_vocab) == (model.d_model, model.d_mlp, model.d_vocab)
    assert (found.gated, found.activation) == (model.gated, model.ffn[0].activation)
    for matrix in found.matrices.itertuples():
        tensor = {"keys": model.ffn[0].keys, "gates": model.ffn[0].gates, "values": model.ffn[0].values}.get(
            matrix.name
        )
        if matrix.part == "FFN":
            assert tensor is not None
            assert tuple(tensor.shape) == (matrix.rows, matrix.d_model)
    one = {"attention": 0, "FFN": 0}
    for matrix in found.matrices.itertuples():
        one[matrix.part] += matrix.numbers
    context = found.context
    queries = next(matrix.rows for matrix in found.matrices.itertuples() if matrix.name == "Q")
    if decoder not in MIXTURES:
        assert 2 * one["FFN"] == found.total("layer_flops", "FFN")
    elif model.ffn[0].mixture is not None:  # of four experts a token goes through two, and through the shared one
        shared = 3 * model.ffn[0].mixture.sizes[2] * model.d_model
        if model.ffn[0].key_bias is not None:  # these are biases, which no product is taken with
            one["FFN"], shared = one["FFN"] - shared, 0
        assert 2 * shared + (one["FFN"] - shared) == found.total("layer_flops", "FFN")
    assert 2 * one["attention"] + 4 * queries * context == found.total("layer_flops", "attention")
    assert of_module.to_frame().equals(frame)
    assert (found.counted, of_module.counted) == ("weights", "weights")
    assert (found.provenance is not None, of_module.provenance) == (True, None)
    assert of_config.to_frame().equals(frame)
    for field in ("d_model", "d_mlp", "d_vocab", "n_ctx", "gated", "norm", "tied", "activation"):
        assert getattr(of_config, field) == getattr(found, field), field
    assert of_config.matrices.equals(found.matrices)
    assert of_config.biases == found.biases
    assert of_config.counted == "config"


def test_a_bias_that_no_config_tells(tokenizer: Any) -> None:
    """The config would be believed rather than the weights."""
    hf = build_untied_gpt2_with_bias()
    found = anatomy(fm.load(hf, tokenizer=tokenizer))
    assert found.parameters - anatomy(hf.config).parameters == found.d_vocab
    assert found.parameters == sum(parameter.numel() for parameter in hf.parameters())
    assert found.biases[-1] == "unembedding"


def test_published_models() -> None:
    """A published model would have another number of parameters, or its FFN another width of parity."""
    gpt2 = anatomy(transformers.GPT2Config())
    assert gpt2.parameters == 124_439_808
    assert gpt2.neurons == 36_864
    assert (gpt2.parity.h, gpt2.parity.difference, gpt2.expansion) == (2048, 0, 4.0)
    llama = anatomy({"model_type": "llama"})
    assert llama.parameters == 6_738_415_616
    assert (llama.d_mlp, llama.parity.d_mlp) == (11008, 16384)
    assert f"{llama.parity.relative:+.1%}" == "+0.8%"
    assert (llama.gated, llama.norm, llama.biases, llama.tied) == (True, "RMSNorm", (), False)
    coder = anatomy({"model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_positions": 8192})
    assert (coder.counted, coder.d_mlp) == ("config", 8192)
    assert [matrix.rows for matrix in coder.matrices.itertuples() if matrix.part == "attention"] == [
        2048,
        2048,
        128,
        128,
    ]


def test_a_config_is_enough(tiny_folder: Path, tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights would be read to be counted: a folder of many gigabytes could not be asked about."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were read")

    shutil.copyfile(tiny_folder / "config.json", tmp_path / "config.json")
    monkeypatch.setattr(safetensors, "safe_open", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    found = anatomy(tmp_path)
    assert found.name == str(tmp_path)
    assert found.to_frame().equals(anatomy(tiny).to_frame())
    assert anatomy("atlas").parameters == 6_344_704


def test_the_context_is_that_of_the_flops(tiny: fm.Model) -> None:
    for source in (tiny, tiny.hf_model.config):
        few, all_of_it = anatomy(source, context=3), anatomy(source)
        assert all_of_it.context == 32
        assert all_of_it.flops - few.flops == 2 * 4 * 16 * 29  # layers, per number of a query
        with refuses(InputError, ValueError, "context 33", "32 positions"):
            anatomy(source, context=33)
        with refuses(InputError, ValueError, "context", "0"):
            anatomy(source, context=0)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "granitemoe"}, ("granitemoe", "mixture of experts")),
        ({"model_type": "t5"}, ("t5", "encoder-decoder")),
        ({"model_type": "bert"}, ("bert", "not among the decoders", "Llama", "StarCoder")),
        ({"model_type": "gemma3"}, ("gemma3", "text_config")),
    ],
)
def test_what_has_no_anatomy_here(config: dict[str, Any], named: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with refuses(UnsupportedModelError, ValueError, str(tmp_path), *named):
        anatomy(tmp_path)


def test_what_is_no_model(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, "config.json"):
        anatomy(tmp_path)
    for source in (None, 7, torch.nn.Linear(1, 1)):
        with refuses(InputError, ValueError, type(source).__name__, "folder"):
            anatomy(source)


def test_an_activation_that_is_not_stated() -> None:
    """GELU would be guessed, as others do."""
    config: Any = transformers.GPT2Config()
    config.__dict__["activation_function"] = None  # past its own check
    with refuses(UnsupportedModelError, ValueError, "gpt2", "activation"):
        anatomy(config)
