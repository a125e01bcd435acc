"""Questions as tokens, and where in them the subject stands."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.facts import load_facts
from ffnmem.facts.questions import SubjectPrompt, ask_about, find_subject, locate

from ..helpers import REPOSITORY, build_gpt2, refuses


def spelled(model: fm.Model, asked: SubjectPrompt) -> str:
    return model.tokenizer.decode([asked.tokens[i] for i in asked.subject])


def test_a_subject_inside_a_text(tiny: fm.Model) -> None:
    """Noise, keys and values would be taken at the tokens of other words, or of another mention."""
    for bos in (False, True):
        for prefix in ("", "The city of Rome. ", "Eiffel Tower. "):
            asked = ask_about(tiny, "The {} is in", "Eiffel Tower", prefix, prepend_bos=bos)
            assert asked.text == f"{prefix}The Eiffel Tower is in"
            assert list(asked.tokens) == tiny.tokenize(asked.text, bos)
            assert spelled(tiny, asked) == " Eiffel Tower"
            assert asked.subject_last == asked.subject[-1] == len(asked.tokens) - 3
    for subject in ("Panthéon", "東京", "New\tYork", "C++"):  # each byte of a letter is a token here
        asked = ask_about(tiny, "The {} is in", subject)
        assert spelled(tiny, asked).strip() == subject
        assert find_subject(tiny, asked.text, subject) == asked
    again = find_subject(tiny, "The Iranian city of Iran is", "Iran")
    assert (spelled(tiny, again).strip(), again.subject[0] > 10) == ("Iran", True)


def test_a_subject_at_the_edges_of_tokens(tiny: fm.Model) -> None:
    """At a text's start its tokens are others; of a token that holds more than the subject all is taken."""
    asked = ask_about(tiny, "{} is in", "Eiffel Tower", prepend_bos=True)
    assert spelled(tiny, asked) == "Eiffel Tower"
    assert asked.subject[0] == 1
    assert len(asked.subject) == len("Eiffel") + 1  # no token of its own without the space
    assert spelled(tiny, ask_about(tiny, "The {}er is", "Tow")) == " Tower"


def test_questions_that_cannot_be_asked(tiny: fm.Model) -> None:
    for text, subject, named in (
        ("The city", "Tower", ["'Tower'", "is not", "The city"]),
        ("Tower, Tower", "Tower", ["2 times"]),
        ("The city", " ", ["empty"]),
    ):
        with refuses(InputError, ValueError, *named):
            find_subject(tiny, text, subject)
    for template in ("no place", "{} and {}", ""):
        with refuses(InputError, ValueError, repr(template), "{}"):
            ask_about(tiny, template, "Tower")
    with refuses(InputError, ValueError, str(tiny.n_ctx)):
        ask_about(tiny, "The {}" + " the" * 40, "Tower")
    with refuses(InputError, ValueError, "no token"):
        locate(tiny, "The  city", 3, 4)
    model = copy.copy(tiny)
    model.tokenizer = SimpleNamespace(is_fast=False)  # without offsets, tokenising pieces would give other tokens
    with refuses(UnsupportedModelError, ValueError, model.name, "fast"):
        locate(model, "The Tower", 4, 9)


@pytest.mark.shared
@pytest.mark.exhaustive
def test_with_gpt2s_tokenizer(gpt2_tokenizer: Any) -> None:
    """Its offsets leave the space before a word out, others hold it: neither moves the subject."""
    path = REPOSITORY.parent / "shared" / "data" / "known_1000.json"
    if not path.is_file():
        pytest.skip("known_1000.json is not beside this checkout (../shared/data)")

    model = fm.load(build_gpt2(vocab_size=len(gpt2_tokenizer)), tokenizer=gpt2_tokenizer)
    facts = load_facts(path)
    more = []
    for fact in facts:
        asked = ask_about(model, fact.prompt, fact.subject, prepend_bos=True)
        text = gpt2_tokenizer.decode([asked.tokens[i] for i in asked.subject])
        assert fact.subject in text
        more += [text] if text.strip() != fact.subject else []
    assert len(more) == 1  # the bracket and the apostrophe of "(Ontario Section)'s" are one token
