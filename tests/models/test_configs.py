"""Configs read without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from ffnmem.core.errors import InputError, ModelError, ModelNotFoundError
from ffnmem.models.architectures import DESCRIBED
from ffnmem.models.configs import (
    check_counts,
    class_name,
    described,
    is_cached,
    open_config,
    place_of,
    read_config,
    read_json,
    unusual_fields,
)

from ..architectures import DECODERS
from ..helpers import refuses


def test_a_folder_with_a_config_alone(tmp_path: Path) -> None:
    """Weights would be asked for, or pickled ones beside the config refuse it, though nothing of them is read."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 48}), "utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not opened")
    for source in (tmp_path, str(tmp_path)):
        name, config = read_config(source)
        assert (name, config.n_embd, config.n_layer) == (str(tmp_path), 48, 12)
    assert place_of(tmp_path) == (str(tmp_path), str(tmp_path), True)


def test_the_embedded_model() -> None:
    """``atlas`` would be looked for on the hub."""
    name, config = read_config("atlas")
    assert (name, config.n_embd, config.model_type) == ("atlas", 256, "gpt2")


def test_configs_and_dicts() -> None:
    """The same config would be another by the way it is handed over."""
    config = transformers.LlamaConfig(hidden_size=64)
    assert read_config(config) == ("llama", config)
    name, read = read_config({"model_type": "llama", "hidden_size": 64})
    assert (name, read.hidden_size, read.intermediate_size) == ("llama", 64, 11008)
    config._name_or_path = "org/name"
    assert read_config(config)[0] == "org/name"


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_architecture_is_known_by_its_config(decoder: str) -> None:
    """An architecture that loads would be refused without its weights."""
    model = DECODERS[decoder]()
    assert class_name(model.config) == type(model).__name__
    assert described(model.config) is DESCRIBED[type(model).__name__]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("{", ("JSON",)),
        ("[]", ("config.json", "JSON object")),
        ('{"hidden_size": 3}', ("model_type",)),
        ("null", ("config.json", "None")),
        ("", ("config.json",)),
        ("[" * 100_000, ("config.json", "deeply")),
        ('{"model_type": "llama", "hidden_size": "x"}', ("hidden_size", "'x'")),
        ('{"model_type": "llama", "hidden_size": null}', ("hidden_size",)),
        ('{"model_type": "llama", "num_hidden_layers": 1000000000}', ("num_hidden_layers 1000000000", "10,000")),
        ('{"model_type": "gpt2", "num_labels": 1000000000}', ("num_labels",)),
        ('{"model_type": "gpt_neo", "attention_types": [[["global"], 1000000000]]}', ("attention_types",)),
        ('{"model_type": "mpt", "max_seq_len": 1000000000}', ("max_seq_len",)),
        ('{"model_type": "llama", "rope_parameters": 3}', ("rope_parameters",)),
        ('{"model_type": "llama", "dtype": "x"}', ("'x'",)),
        ('{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 0}', ("zero", "num_attention_heads is 0")),
    ],
)
def test_broken_configs(config: str, named: tuple[str, ...], tmp_path: Path) -> None:
    """A traceback of many lines, or a config that is none."""
    (tmp_path / "config.json").write_text(config, "utf-8")
    with refuses(ModelError, ValueError, str(tmp_path), *named):
        read_config(tmp_path)


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type": "gpt2\xff"}')
    with refuses(ModelError, ValueError, str(tmp_path), "config.json", "utf-8"):
        read_config(tmp_path)
    with refuses(ModelError, ValueError, "config.json", "utf-8"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    "fields", [{"hidden_size": "x"}, {"num_hidden_layers": 10**9}, {"dtype": "x"}, {"num_attention_heads": 0}]
)
def test_broken_dicts(fields: dict[str, Any]) -> None:
    """The same as in a file."""
    with refuses(ModelError, ValueError, "llama", next(iter(fields)) if "dtype" not in fields else "'x'"):
        read_config({"model_type": "llama", **fields})


def test_numbers_beyond_any_model() -> None:
    """One object each would be made of them, before a library looks whether that makes sense."""
    check_counts({"n_layer": 96, "max_position_embeddings": 10_485_760, "rope_theta": 10**9, "n_embd": 10**9}, "x")
    check_counts({"layer_types": ["full_attention"] * 3, "num_key_value_heads": None}, "x")
    for fields in ({"n_layer": 10**5}, {"text_config": {"num_heads": 10**5}}, {"n_positions": 10**8}):
        with refuses(ModelError, ValueError, "x", "no model has more"):
            check_counts(fields, "x")


def test_the_fields_that_are_unusual() -> None:
    """What fails deep inside a library says nothing of the field that it failed by."""
    usual = transformers.GPT2Config(n_embd=48, n_layer=3, bos_token_id=0).to_dict()
    assert unusual_fields(usual) == ""
    assert unusual_fields({**usual, "n_head": 0}) == "; n_head is 0 (usually 12)"
    assert unusual_fields({**usual, "n_head": -1, "layer_norm_epsilon": None}).count("usually") == 2
    assert "n_embd is 1000000000" in unusual_fields({**usual, "n_embd": 10**9})
    assert unusual_fields({"model_type": "never heard of", "n": 0}) == ""
    assert unusual_fields({"model_type": ["gpt2"]}) == ""


def test_the_config_of_a_folder(tiny_folder: Path) -> None:
    assert open_config("x", str(tiny_folder), local=True).n_layer == 2


def test_what_is_nowhere(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, str(tmp_path), "config.json"):
        read_config(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "no-such-model", "atlas"):
        read_config("no-such-model")
    with refuses(ModelError, ValueError, "None", "model_type"):
        read_config({"hidden_size": 3})
    with refuses(InputError, ValueError, "int", "folder"):
        read_config(3)
    assert not is_cached("no-such-model", weights=False)
    assert not is_cached("not//an id", weights=False)
