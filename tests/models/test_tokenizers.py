"""Tokenizers that are none, or that are another model's."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelNotFoundError
from ffnmem.facts.questions import find_subject
from ffnmem.models.loading import WITHOUT_ROWS, load_tokenizer

from ..helpers import refuses
from ..tokenizers import ADDS_SPACE, EACH, SPECIAL, model_with, tokenizer_named


def test_the_tokenizer_alone(tiny_folder: Path, folder: Path, tiny: fm.Model) -> None:
    """Work that needs no weights waits for none: the same tokens, and the same answers where there is nothing."""
    assert load_tokenizer(tiny_folder).get_vocab() == tiny.tokenizer.get_vocab()
    assert load_tokenizer("atlas").bos_token == "<|endoftext|>"
    (folder / "model.safetensors").write_bytes(b"")
    assert load_tokenizer(str(folder)).get_vocab() == tiny.tokenizer.get_vocab()
    for file in folder.glob("token*"):
        file.unlink()
    with refuses(InputError, ValueError, "no tokenizer", str(folder)):
        load_tokenizer(folder)
    with refuses(ModelNotFoundError, FileNotFoundError, "no-such-model", "atlas", "hub"):
        load_tokenizer("no-such-model")


BROKEN = [
    *(("tokenizer.json", text, "tokenizer.json") for text in ("", "null", "[" * 100_000, b"\xff\xfe")),
    ("tokenizer_config.json", "[]", "tokenizer_config.json"),
    *(("tokenizer.json", text, "tokenizer") for text in ('{"model": null}', '{"added_tokens": [{"id": "x"}]}')),
]


@pytest.mark.parametrize(("file", "text", "says"), BROKEN)
def test_a_file_that_is_none(folder: Path, file: str, text: str | bytes, says: str) -> None:
    """An AttributeError of NoneType, from somewhere inside a library, would be all that is said."""
    (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)
    for read in (load_tokenizer, fm.load):
        with refuses(InputError, ValueError, str(folder), says):
            read(folder)


def test_tokens_beyond_the_embedding(tiny_hf: Any, tokenizer: Any, folder: Path) -> None:
    """An IndexError from inside torch would come up with the first text that holds one."""
    longer = copy.deepcopy(tokenizer)
    longer.add_tokens(["Zanzibar"])
    rows = tiny_hf.get_input_embeddings().weight.shape[0]
    with refuses(InputError, ValueError, str(rows), f"up to {rows}", "Zanzibar"):
        fm.load(tiny_hf, tokenizer=longer)
    longer.save_pretrained(folder)
    with refuses(InputError, ValueError, str(folder), str(rows), "Zanzibar"):
        fm.load(folder)
    padded = copy.deepcopy(tiny_hf)  # to round numbers, as Pythia's and OPT's are
    padded.resize_token_embeddings(rows + 50)
    assert fm.load(padded, tokenizer=longer).d_vocab == rows + 50


def test_what_a_text_model_leaves_out(tiny_hf: Any, tokenizer: Any) -> None:
    """Gemma 3's text models would be refused for the token of images, which no text of theirs holds."""
    shared = copy.deepcopy(tokenizer)
    shared.add_special_tokens({"additional_special_tokens": sorted(WITHOUT_ROWS)})
    model = fm.load(tiny_hf, tokenizer=shared)
    for ask in (model.tokenize, model.token_id, lambda text: fm.capture(model, text)):
        with refuses(InputError, ValueError, "'<image_soft_token>'", "no embedding"):
            ask("<image_soft_token>")


def put(file: Path, change: dict[str, Any]) -> None:
    found = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**found, **change}))


@pytest.mark.parametrize("where", ["vocabulary", "added_tokens_decoder", "added_tokens.json"])
def test_an_absurd_id_is_refused_at_once(folder: Path, where: str) -> None:
    """Libraries below walk through all ids up to the last one: minutes, or all of the memory."""
    absurd = 2147483648
    if where == "vocabulary":
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        put(folder / "tokenizer.json", {"model": {**model, "vocab": {**model["vocab"], "zzz": absurd}}})
    elif where == "added_tokens.json":
        put(folder / where, {"zzz": absurd})
    else:
        put(folder / "tokenizer_config.json", {where: {str(absurd): {"content": "zzz"}}})
    for read in (load_tokenizer, fm.load):
        with refuses(
            InputError, ValueError, str(folder), "no model" if where == "vocabulary" else "which no model has"
        ):
            read(folder)


def test_no_beginning_is_invented(tiny_hf: Any, tokenizer: Any) -> None:
    """A token that the model never saw, or none of its own, was put before each text."""
    bare = copy.deepcopy(tokenizer)
    bare.bos_token = None
    for end in (bare.eos_token, None):
        bare.eos_token = end
        model = fm.load(tiny_hf, tokenizer=bare)
        assert (model.prepend_bos, model.bos_token_id, len(model.tokenizer)) == (False, None, len(bare))
        assert fm.capture(model, "The city").tokens.tolist() == [model.ids_of("The city")]
        with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
            fm.load(tiny_hf, tokenizer=bare, prepend_bos=True)
    bare.add_special_tokens({"bos_token": "<begin>"})  # as TransformerLens does, behind the last row
    with refuses(InputError, ValueError, "<begin>", "rows"):
        fm.load(tiny_hf, tokenizer=bare)
    assert fm.load(tiny_hf, tokenizer=tokenizer).prepend_bos


# -- tokens as tables show them, with tokenizers of every kind -------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
def test_a_text_for_every_token(name: str) -> None:
    """With Llama 2's tokenizer, "Paris" and " Paris" would both be shown as "Paris", and typed again be one of them."""
    model = model_with(name)
    ids = range(len(model.tokenizer))
    texts = model.token_strings(ids)
    assert [text for text, count in Counter(texts).items() if count > 1 and "�" not in text] == []
    assert "" not in texts
    named = dict(zip(model.tokenizer.convert_ids_to_tokens(list(ids)), texts, strict=True))
    for written in {"ĠParis", "▁Paris"} & set(named):
        assert (named[written], named["Paris"]) == (" Paris", "Paris")
    for token, text in zip(ids, texts, strict=True):
        if "�" not in text and text.strip() not in SPECIAL:
            assert model.token_id(text) == token
    assert model.token_strings([len(model.tokenizer) + 7, 99999]) == [f"[{len(model.tokenizer) + 7}]", "[99999]"]
    text = "The capital of North America is Beyoncé (Rome)."  # and side by side they are the text that was read
    shown = "".join(model.token_strings(model.ids_of(text)))
    if name == "WordPiece":
        text = " " + text.replace("(Rome).", "( Rome ) .")
    assert shown == (f" {text}" if name in ADDS_SPACE else text)


def test_pieces_and_bytes_of_words() -> None:
    """ "##ing" and "ing" would be one token to a reader; a byte of Llama 2's be shown as the letter of another."""
    for name, tokens, texts in (
        ("WordPiece", ["ing", "##ing", ".", "##."], [" ing", "ing", " .", "."]),
        ("Llama 2", ["<0x41>", "A", "<0x0D>", "<0xF0>"], ["<0x41>", "A", "\r", "<0xF0>"]),
    ):
        model = model_with(name)
        assert model.token_strings(model.tokenizer.convert_tokens_to_ids(tokens)) == texts


@pytest.mark.parametrize("name", EACH)
def test_a_text_with_its_own_beginning(name: str) -> None:
    """Text of a chat, or copied with its beginning, would begin twice, and every number be of another text."""
    model, bos = model_with(name), tokenizer_named(name).bos_token
    if bos is None:
        assert model.tokenize("The city", prepend_bos=False) == model.ids_of("The city")
        return
    rest = model.ids_of("The city")
    assert model.tokenize("The city") == [model.bos_token_id, *rest]
    for prepend in (True, False):
        own = model.tokenize(f"{bos}The city", prepend)
        assert own.count(model.bos_token_id) == 1
        assert own[0] == model.bos_token_id
    assert model.tokenize(bos) == [model.bos_token_id]
    asked = find_subject(model, f"{bos}The Tower is in", "Tower")
    assert model.token_strings([asked.tokens[i] for i in asked.subject])[-1].strip() == "Tower"
