"""Configs read without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from ffnmem.errors import InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models.architectures import DESCRIBED
from ffnmem.models.configs import class_name, config_is_cached, described, place_of, read_config, stated_activation
from tests.architectures import DECODERS
from tests.helpers import refuses


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
    found = described(model.config)
    assert found is DESCRIBED[type(model).__name__]
    assert found is not None
    assert stated_activation(model.config, found).replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("{", ("JSON",)),
        ("[]", ("config.json", "JSON object")),
        ('{"hidden_size": 3}', ("model_type",)),
        ('{"model_type": "llama", "hidden_size": "x"}', ("hidden_size", "'x'")),
        ('{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 0}', ("zero", "num_attention_heads is 0")),
    ],
)
def test_broken_configs(config: str, named: tuple[str, ...], tmp_path: Path) -> None:
    """A traceback of many lines, or a config that is none."""
    (tmp_path / "config.json").write_text(config, "utf-8")
    with refuses(ModelError, ValueError, str(tmp_path), *named):
        read_config(tmp_path)


def test_what_is_nowhere(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, str(tmp_path), "config.json"):
        read_config(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "no-such-model", "atlas"):
        read_config("no-such-model")
    with refuses(ModelError, ValueError, "None", "model_type"):
        read_config({"hidden_size": 3})
    with refuses(InputError, ValueError, "int", "folder"):
        read_config(3)
    assert not config_is_cached("no-such-model")
    assert not config_is_cached("not//an id")


def test_an_activation_that_is_not_stated() -> None:
    """GELU would be guessed, as others do."""
    config: Any = transformers.LlamaConfig()
    with refuses(UnsupportedModelError, ValueError, "llama", "activation_function"):
        stated_activation(config, DESCRIBED["GPT2LMHeadModel"])
