"""Messages as prompts, by a tokenizer's chat template."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError
from ffnmem.explorer.views import Explorer

from ..cli.running import data, run
from ..explorer.conftest import asking
from ..helpers import build, refuses
from ..tokenizers import CHAT, EACH, load_with, tokenizer_named

QUESTION = [{"role": "user", "content": "The capital of France is"}]
TALK = [{"role": "system", "content": "Rome."}, *QUESTION]
WITHOUT_BOS = CHAT.replace("{{ bos_token }}", "")


def talking(name: str = "byte-level", template: str = CHAT) -> Any:
    """One of the tests' tokenizers with a chat template."""
    tokenizer = copy.deepcopy(tokenizer_named(name))
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def talker() -> fm.Model:
    return load_with(talking())


@pytest.mark.parametrize("template", [CHAT, WITHOUT_BOS])
@pytest.mark.parametrize("name", EACH)
def test_tokens_are_those_of_transformers(name: str, template: str) -> None:
    """The beginning would stand there twice, or the model would not be asked to answer."""
    model = load_with(talking(name, template))
    found = fm.capture(model, messages=TALK)
    expected = model.tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert found.tokens[0].tolist() == expected
    begins = template == CHAT and model.bos_token_id is not None
    assert expected.count(model.bos_token_id) == begins
    assert found.provenance.prepend_bos is begins
    assert fm.capture(model, str(model.chat_text(TALK))).tokens[0].tolist()[-len(expected) :] == expected


def test_provenance_says_roles_and_template(talker: fm.Model) -> None:
    """Two results could not be told apart: of a message and of the bare text, or by two versions of a template."""
    text, other = talker.chat_text(TALK), load_with(talking(template=WITHOUT_BOS))
    batch = fm.capture(talker, [talker.chat_text(QUESTION), text])
    assert dict(batch.provenance.settings)["chat"] == "user; system, user"
    digests = {dict(fm.capture(m, messages=TALK).provenance.settings)["chat_template"] for m in (talker, other)}
    assert len(digests) == 2
    traced = fm.trace_fact(talker, talker.chat_text([{**QUESTION[0], "content": "{} is"}]), "Paris", samples=1)
    asked = [fm.knockout(talker, text, "France"), fm.trace_fact(talker, text, "France", way="silence")]
    for found in (fm.attribute(fm.capture(talker, text), first_token=True), traced, *asked):
        assert dict(found.provenance.settings)["chat"] == ("user" if found is traced else "system, user")
        assert found.provenance.prepend_bos


@pytest.mark.parametrize(
    ("messages", "kind", "says"),
    [
        ([], InputTypeError, "messages must be a list"),
        (["Hello"], InputTypeError, "messages[0] must be a dict"),
        ([{"role": "user"}], InputTypeError, 'dicts such as {"role": "user", "content": "Hello"}'),
        ([{"role": "user", "content": None}], InputTypeError, "a message's content"),
        ([{"role": "user", "content": "\ud800"}], InputError, "half a character"),
        ([{"role": "user", "content": "the " * 99}], InputError, "reads at most"),
    ],
)
def test_messages_that_are_none(talker: fm.Model, messages: Any, kind: type[Exception], says: str) -> None:
    with refuses(kind, TypeError if kind is InputTypeError else ValueError, says):
        fm.capture(talker, messages=messages)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "has no chat template"),
        ("{% for", "does not take these messages"),
        ("{{ raise_exception('first speaks\nthe system') }}", "first speaks"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{{ '' }}", "empty"),
    ],
)
def test_templates_of_strangers(template: str | None, says: str) -> None:
    """A template comes with a checkpoint: whatever it does is one line, and it runs nothing."""
    model = load_with(talking(template=template))  # type: ignore[arg-type]
    with refuses(InputError, ValueError, says):
        fm.capture(model, messages=QUESTION)
    for given in ({}, {"prompt": "The", "messages": QUESTION}):
        with refuses(InputError, ValueError, "a prompt, or messages"):
            fm.capture(model, **given)


def test_the_commands_and_the_explorer_ask_the_same(tmp_path: Path) -> None:
    """Each would write its own message, or a command its template's beginning twice."""
    folder, tokenizer = tmp_path / "talker", talking("Llama 2")
    build("Llama", vocab_size=len(tokenizer), bos_token_id=1, max_position_embeddings=64).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model, text = fm.load(folder), QUESTION[0]["content"]
    expected = fm.attribute(fm.capture(model, messages=QUESTION), first_token=True)
    options = ["--chat", "--model", folder]
    found = data("attribute", text, *options)
    assert found["prompt"]["tokens"] == list(expected.tokens)
    assert found["ledger"] == expected.to_dict()["ledger"]
    assert found["provenance"]["chat"] == "user"
    assert data("trace", text, "France", *options)["provenance"]["chat"] == "user"
    with asking(Explorer(model)) as client:
        asked = {"prompt": text, "chat": "1"}
        page = client.get("/attribute", params={**asked, "format": "json"}).json()
        assert page["ledger"] == found["ledger"]
        assert 'name="chat" value="1" checked' in client.get("/attribute", params=asked).text
    with asking(Explorer(load_with(tokenizer_named("Llama 2")))) as client:
        assert 'name="chat"' not in client.get("/attribute").text
        assert "there is no chat here" in client.get("/attribute", params=asked).text
    assert "atlas's tokenizer has no chat template" in run("attribute", "The city", "--chat", status=2).stderr
