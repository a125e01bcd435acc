"""Configs, weights and tokenizers that somebody broke, where models are loaded and where configs are read."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import ffnmem as fm
from ffnmem.models.configs import read_config
from ffnmem.models.loading import load_tokenizer

from ..architectures import DECODERS
from ..helpers import build_tokenizer
from .material import BREAKS, Change, answered, broken, changed, changes, fresh, hostile

MODELS = st.sampled_from(("GPT-2", "Pythia", "OPT", "Falcon 7B", "Gemma 2", "Qwen 3"))
LIMIT = 1 << 30  # bytes that a broken model of some kilobytes may take
WEIGHTS = "model.safetensors"


@cache
def folder(name: str) -> Path:
    """A random model of an architecture with its tokenizer. Shared: copy it."""
    path = fresh()
    DECODERS[name]().save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return path


def copied(name: str) -> Path:
    return shutil.copytree(folder(name), fresh())


@contextmanager
def spared() -> Iterator[None]:
    """Fail where the block took the memory that an absurd number asked for."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert taken < LIMIT, f"{taken / 1e9:.1f} GB taken"


def check(place: Path) -> None:
    """Read and load what is broken; where it loads, it must be the same twice (no weight is random), and be asked."""
    try:
        with spared():
            answered(lambda: read_config(place))
            answered(lambda: fm.models.anatomy(place))
            answered(lambda: load_tokenizer(place))
            model = answered(lambda: fm.load(place))
            if not isinstance(model, fm.Model):
                return
            again = fm.load(place)
            assert again.fingerprint == model.fingerprint, "two loads of one folder differ"
            answered(lambda: model.token_id(" Paris", first=True))
            capture = answered(lambda: fm.capture(model, "The Eiffel Tower is né"))
            if isinstance(capture, fm.prompts.Capture):
                answered(lambda: fm.attribute(capture, " Paris"))
                same = fm.capture(again, "The Eiffel Tower is né")
                assert torch.equal(capture.ffn_out[0], same.ffn_out[0]), "two loads of one folder answer otherwise"
    finally:
        shutil.rmtree(place)


FILES = (
    *("config.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)


@hostile(examples=14, name=MODELS, file=st.sampled_from(FILES), made=changes(), parts=st.booleans())
def test_any_document(name: str, file: str, made: list[Change], parts: bool) -> None:
    """Any field of a config, a tokenizer or what lies beside; most places of a tokenizer are its vocabulary's."""
    place = copied(name)
    source = place / (file if (place / file).exists() else "generation_config.json")
    document = json.loads(source.read_text("utf-8"))
    whole = document.pop("model", None) if parts and file == "tokenizer.json" else None
    document = changed(document, made)
    if whole is not None and isinstance(document, dict):
        document["model"] = whole
    (place / file).write_text(json.dumps(document), "utf-8")
    check(place)


@hostile(examples=8, name=MODELS, file=st.sampled_from((WEIGHTS, WEIGHTS, *FILES[3:])), how=BREAKS)
def test_any_bytes(name: str, file: str, how: tuple[str, float, int]) -> None:
    place = copied(name)
    source = place / file
    source.write_bytes(broken(source.read_bytes() if source.exists() else b"", how))
    check(place)


TYPES = (torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.float8_e4m3fn)
FACTORS = (0.0, -1.0, 1e4, 1e30, float("nan"))


@hostile(
    examples=10,
    name=MODELS,
    kind=st.sampled_from(("drop", "rename", "cut", "grow", "type", "prefix", "scale")),
    which=st.integers(0, 100),
    how=st.integers(0, 100),
)
def test_any_tensor(name: str, kind: str, which: int, how: int) -> None:
    place = copied(name)
    tensors = load_file(place / WEIGHTS)
    key = sorted(tensors)[which % len(tensors)]
    tensor = tensors.pop(key)
    if kind == "rename":
        at = how % len(key)
        tensors[key[:at] + chr(ord(key[at]) ^ 1) + key[at + 1 :]] = tensor
    elif kind == "prefix":
        tensors[key.partition(".")[2] or key] = tensor * 2
    elif kind != "drop":
        tensors[key] = {
            "cut": lambda: tensor[how % (len(tensor) + 1) :] if tensor.ndim else tensor,
            "grow": lambda: torch.stack([tensor, tensor]),
            "type": lambda: tensor.to(TYPES[how % len(TYPES)]),
            "scale": lambda: tensor * FACTORS[how % len(FACTORS)] if tensor.is_floating_point() else tensor,
        }[kind]()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, place / WEIGHTS, {"format": "pt"})
    check(place)
