"""Tokenizers that somebody broke, where they are read alone, with a model, and where a text becomes tokens."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.models.loading import load_tokenizer

from .broken_json import BYTES, VALUES, broken, changed, changes, write_json
from .judging import answered, hostile
from .material import copied, tiny_folder
from .test_checkpoints import spared

ABSURD = (2**22, 2**31, 2**32, 10**12, -1)


@cache
def in_files() -> Path:
    """The same model with its tokenizer in the files of old: vocab.json, merges.txt and the rest. Shared: copy it."""
    place = copied(tiny_folder())
    model = json.loads((place / "tokenizer.json").read_text("utf-8"))["model"]
    (place / "tokenizer.json").unlink()
    write_json(place / "vocab.json", model["vocab"])
    (place / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    fields = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"0": {"content": "<|endoftext|>"}}}
    write_json(place / "tokenizer_config.json", fields)
    write_json(place / "special_tokens_map.json", {"bos_token": "<|endoftext|>", "eos_token": {"content": "x"}})
    write_json(place / "added_tokens.json", {"<|endoftext|>": 0})
    return place


def read(place: Path) -> None:
    """Read the tokenizer alone and with its model, and let it read a text."""
    try:
        with spared():
            answered("load_tokenizer", lambda: load_tokenizer(place))
            model = answered("load", lambda: fm.load(place))
            if isinstance(model, fm.Model):
                capture = answered("capture", lambda: fm.capture(model, "The Eiffel Tower is né"))
                if isinstance(capture, fm.prompts.Capture):
                    answered("attribute", lambda: fm.attribute(capture, " Paris"))
                answered("token", lambda: model.token_id(" Paris", first=True))
    finally:
        shutil.rmtree(place)


@hostile(
    examples=8,
    file=st.sampled_from(("tokenizer.json", "tokenizer.json", "tokenizer_config.json")),
    made=st.lists(changes(), min_size=1, max_size=3),
    parts=st.booleans(),
)
def test_one_file(file: str, made: list[Any], parts: bool) -> None:
    place = copied(tiny_folder())
    document = json.loads((place / file).read_text("utf-8"))
    if parts and "model" in document:  # else most changes fall into the vocabulary
        whole = document["model"]
        document["model"] = {**whole, "vocab": {}, "merges": []}
        document = changed(document, made)
        if isinstance(document, dict) and isinstance(document.get("model"), dict):
            document["model"] |= {key: whole[key] for key in ("vocab", "merges") if key in document["model"]}
    else:
        document = changed(document, made)
    write_json(place / file, document)
    read(place)


OLD = ("vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@hostile(examples=6, file=st.sampled_from(OLD), made=st.lists(changes(), min_size=1, max_size=3))
def test_files_of_old(file: str, made: list[Any]) -> None:
    place = copied(in_files())
    write_json(place / file, changed(json.loads((place / file).read_text("utf-8")), made))
    read(place)


@hostile(examples=5, old=st.booleans(), which=st.integers(0, 10), made=BYTES)
def test_bytes(old: bool, which: int, made: list[Any]) -> None:
    place = copied(in_files() if old else tiny_folder())
    files = sorted({*place.glob("*token*"), *place.glob("vocab*"), *place.glob("merges*")})
    file = files[which % len(files)]
    file.write_bytes(broken(file.read_bytes(), made))
    read(place)


CLASSES = ("GPT2Tokenizer", "LlamaTokenizer", "T5Tokenizer", "BertTokenizer", "ByT5Tokenizer", "Qwen2Tokenizer")


@hostile(
    examples=5,
    old=st.booleans(),
    kind=st.one_of(st.sampled_from(CLASSES), VALUES),
    field=st.sampled_from(
        ("added_tokens_decoder", "extra_special_tokens", "model_max_length", "bos_token", "pad_token")
    ),
    value=VALUES,
    last=st.sampled_from((None, *ABSURD)),
)
def test_classes_and_ids(old: bool, kind: Any, field: str, value: Any, last: int | None) -> None:
    place = copied(in_files() if old else tiny_folder())
    tokens = {str(last): {"content": "zzz", "special": True}}
    fields = {"tokenizer_class": kind, field: value} | ({"added_tokens_decoder": tokens} if last is not None else {})
    write_json(place / "tokenizer_config.json", fields)
    read(place)
