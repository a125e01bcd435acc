"""Configs, weights and lists of shards that somebody broke, where models are loaded and where configs are read."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import ffnmem as fm
from ffnmem.models.configs import read_config

from ..architectures import DECODERS
from .broken_json import BYTES, broken, changed, changes, write_json
from .judging import answered, hostile
from .material import copied, fresh, tokenizer

MODELS = ("GPT-2", "GPT-J", "Pythia", "OPT", "Bloom", "Falcon 7B", "MPT", "Gemma 2", "Phi 3", "Qwen 3")
LIMIT = 1 << 30  # bytes that a broken model of some kilobytes may take
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@cache
def folder(name: str, shards: bool = False) -> Path:
    """A random model of an architecture with its tokenizer. Shared: copy it."""
    path = fresh()
    DECODERS[name]().save_pretrained(path, **({"max_shard_size": "20KB"} if shards else {}))
    tokenizer().save_pretrained(path)
    return path


@contextmanager
def spared() -> Iterator[None]:
    """Fail where the block took the memory that an absurd number asked for."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert taken < LIMIT, f"{taken / 1e9:.1f} GB taken"


def loaded(place: Path) -> None:
    """Load a broken model; where it loads, it must be the same twice, and be asked."""
    try:
        with spared():
            model = answered("load", lambda: fm.load(place))
            if not isinstance(model, fm.Model):
                return
            again = fm.load(place)
            assert again.fingerprint == model.fingerprint, "two loads of one folder differ"
            capture = answered("capture", lambda: fm.capture(model, "The Eiffel Tower"))
            if isinstance(capture, fm.prompts.Capture):
                answered("attribute", lambda: fm.attribute(capture, " Paris"))
                same = fm.capture(again, "The Eiffel Tower")
                assert torch.equal(capture.ffn_out[0], same.ffn_out[0]), "two loads of one folder answer otherwise"
    finally:
        shutil.rmtree(place)


def with_json(place: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change the document in a file of a folder."""
    write_json(place / file, change(json.loads((place / file).read_text("utf-8"))))


@hostile(examples=8, name=st.sampled_from(MODELS), made=st.lists(changes(), min_size=1, max_size=3))
def test_configs(name: str, made: list[Any]) -> None:
    place = copied(folder(name))
    with_json(place, "config.json", lambda document: changed(document, made))
    with spared():
        answered("read_config", lambda: read_config(place))
        answered("anatomy", lambda: fm.models.anatomy(place))
        fields = json.loads((place / "config.json").read_text("utf-8"))
        answered("anatomy of a dict", lambda: fm.models.anatomy(fields))
    loaded(place)


@hostile(examples=5, name=st.sampled_from(MODELS), file=st.sampled_from(("config.json", WEIGHTS)), made=BYTES)
def test_bytes(name: str, file: str, made: list[Any]) -> None:
    place = copied(folder(name))
    (place / file).write_bytes(broken((place / file).read_bytes(), made))
    if file == "config.json":
        answered("read_config", lambda: read_config(place))
    loaded(place)


@hostile(examples=5, name=st.sampled_from(MODELS), made=st.lists(changes(), min_size=1, max_size=2))
def test_headers(name: str, made: list[Any]) -> None:
    place = copied(folder(name))
    data = (place / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(changed(json.loads(data[8 : 8 + size]), made)).encode()
    (place / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    loaded(place)


TENSORS = st.tuples(
    st.sampled_from(("drop", "rename", "cut", "grow", "type", "prefix", "double", "scale")),
    st.integers(0, 100),
    st.integers(0, 100),
)
TYPES = (torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.float8_e4m3fn)
FACTORS = (0.0, -1.0, 1e4, 1e30, float("nan"))


@hostile(examples=8, name=st.sampled_from(MODELS), made=st.lists(TENSORS, min_size=1, max_size=2))
def test_tensors(name: str, made: list[tuple[str, int, int]]) -> None:
    place = copied(folder(name))
    tensors = load_file(place / WEIGHTS)
    for kind, which, how in made:
        key = sorted(tensors)[which % len(tensors)]
        other = sorted(tensors)[how % len(tensors)]
        tensor = tensors[key]
        if kind == "drop":
            del tensors[key]
        elif kind == "rename":
            at = how % len(key)
            tensors[key[:at] + chr(ord(key[at]) ^ 1) + key[at + 1 :]] = tensors.pop(key)
        elif kind == "cut":
            tensors[key] = tensor[how % (len(tensor) + 1) :] if tensor.ndim else tensor
        elif kind == "grow":
            tensors[key] = torch.stack([tensor, tensor])
        elif kind == "type":
            tensors[key] = tensor.to(TYPES[how % len(TYPES)])
        elif kind == "prefix":
            tensors[key.partition(".")[2] or key] = tensors.pop(key) * 2
        elif kind == "double":
            tensors[key.partition(".")[2] or key] = tensor + 1.0
        elif kind == "scale":
            tensors[key] = tensor * FACTORS[how % len(FACTORS)] if tensor.is_floating_point() else tensor
        if other not in tensors or not tensors:
            break
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, place / WEIGHTS, {"format": "pt"})
    loaded(place)


@hostile(examples=5, made=st.lists(changes(), min_size=1, max_size=2), lost=st.integers(0, 20))
def test_shards(made: list[Any], lost: int) -> None:
    place = copied(folder("GPT-2", shards=True))
    with_json(place, INDEX, lambda document: changed(document, made))
    shards = sorted(place.glob("*.safetensors"))
    if lost < len(shards):
        shards[lost].unlink()
    loaded(place)


FILES = ("generation_config.json", "adapter_config.json", "chat_template.jinja", "processor_config.json")


@hostile(examples=4, file=st.sampled_from(FILES), made=st.lists(changes(), min_size=1, max_size=3))
def test_files_beside(file: str, made: list[Any]) -> None:
    place = copied(folder("GPT-2"))
    document = json.loads((place / "generation_config.json").read_text("utf-8"))
    write_json(place / file, changed(document, made))
    loaded(place)
