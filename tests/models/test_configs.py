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
    find_description,
    read_config,
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
    assert find_description(model.config) is DESCRIBED[type(model).__name__]


LARGE = "no model has more"
BROKEN: dict[str, tuple[str, ...]] = {
    "{": ("config.json",),
    "[]": ("config.json", "JSON object"),
    '{"hidden_size": 3}': ("model_type",),
    "null": ("config.json", "JSON object"),
    "": ("config.json",),
    "[" * 100_000: ("config.json", "deeply"),
    '{"model_type": "gpt2\udcff"}': ("config.json", "utf-8"),
}
FIELDS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"hidden_size": "x"}, ("hidden_size",)),
    ({"hidden_size": None}, ("hidden_size",)),
    ({"num_hidden_layers": 10**9}, ("num_hidden_layers 1000000000", LARGE)),
    ({"text_config": {"num_heads": 10**5}}, ("num_heads", LARGE)),
    ({"n_positions": 10**8}, ("n_positions", LARGE)),
    ({"model_type": "gpt2", "num_labels": 10**9}, ("num_labels", LARGE)),
    ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, ("attention_types", LARGE)),
    ({"model_type": "mpt", "max_seq_len": 10**9}, ("max_seq_len", LARGE)),
    ({"rope_parameters": 3}, ()),
    ({"dtype": "x"}, ("'x'",)),
    ({"hidden_size": 16, "num_attention_heads": 0}, ("zero",)),
]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:20])
def test_broken_files(text: str, tmp_path: Path) -> None:
    """A traceback of many lines, or a config that is none."""
    (tmp_path / "config.json").write_text(text, "utf-8", errors="surrogateescape")
    with refuses(ModelError, ValueError, str(tmp_path), *BROKEN[text]):
        read_config(tmp_path)


@pytest.mark.parametrize(("fields", "named"), FIELDS, ids=str)
def test_broken_fields(fields: dict[str, Any], named: tuple[str, ...], tmp_path: Path) -> None:
    """One object each would be made of them before a library looks whether that makes sense; in dicts and files."""
    given = {"model_type": "llama", **fields}
    (tmp_path / "config.json").write_text(json.dumps(given), "utf-8")
    for source, name in ((tmp_path, str(tmp_path)), (given, given["model_type"])):
        with refuses(ModelError, ValueError, name, *named):
            read_config(source)


def test_numbers_of_models_that_exist() -> None:
    """A model of the day would be refused for its size."""
    large = {"max_position_embeddings": 10_485_760, "rope_theta": 10**9, "num_hidden_layers": 96}
    assert read_config({"model_type": "llama", **large})[1].num_hidden_layers == 96


def test_what_is_nowhere(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, str(tmp_path), "config.json"):
        read_config(tmp_path)
    for name in ("no-such-model", "not an id"):
        with refuses(ModelNotFoundError, FileNotFoundError, name, "atlas"):
            read_config(name)
    with refuses(ModelError, ValueError, "None", "model_type"):
        read_config({"hidden_size": 3})
    with refuses(InputError, ValueError, "int", "folder"):
        read_config(3)
