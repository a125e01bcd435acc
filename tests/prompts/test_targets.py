"""One rule for targets: as written after a space, else with the space that the model finds likelier."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError
from ffnmem.prompts.captures import ENDING, spelled, token_after, warn_of_trailing_space, word_ids

from ..helpers import PROMPT, refuses


def both(model: fm.Model) -> tuple[str, int, int]:
    """A text that is a single token with a space before it and without, and both ids."""
    strings = model.token_strings(range(model.d_vocab))
    ids = {string: i for i, string in enumerate(strings) if model.tokenizer.tokenize(string) and string.strip()}
    text = next(s for s in ids if f" {s}" in ids and all(len(model.tokenizer.tokenize(t)) == 1 for t in (s, f" {s}")))
    return text, model.token_id(text), model.token_id(f" {text}")


def unasked() -> Any:
    raise AssertionError("there is nothing to choose from")


@pytest.mark.parametrize("text", [" Paris", " paris", "\n", "  Paris", ""])
def test_what_begins_with_a_space_is_taken_as_written(tiny: fm.Model, text: str) -> None:
    """A target that says where its space is would be changed, or warned of."""
    assert spelled(tiny, text, unasked) == text


def test_no_space_is_added_after_a_space(tiny: fm.Model) -> None:
    """After "…of " the word itself comes next: a second space would be explained."""
    assert spelled(tiny, "Paris", unasked, before="of ", one=False) == "Paris"


def test_the_only_single_token_is_meant(tiny: fm.Model) -> None:
    """ "Paris" was refused as five tokens where " Paris" is one; what is one token as it is must stay."""
    with pytest.warns(FfnmemWarning, match="'Paris' is read with a space before it, as ' Paris'"):
        assert spelled(tiny, "Paris", unasked) == " Paris"
    assert spelled(tiny, "The", unasked) == "The"


def test_the_likelier_reading_is_meant(tiny: fm.Model) -> None:
    """Of two tokens the less likely one would be explained, or the choice not be said."""
    text, plain, spaced = both(tiny)
    logits = torch.zeros(tiny.d_vocab)
    logits[plain] = 1
    assert spelled(tiny, text, lambda: logits) == text
    logits[spaced] = 2
    with pytest.warns(FfnmemWarning, match=f"likelier here .the one without is token {plain}"):
        assert spelled(tiny, text, lambda: logits) == f" {text}"


@pytest.mark.parametrize("level", [0.0, float("nan")])
def test_equally_likely_readings_are_refused(tiny: fm.Model, level: float) -> None:
    """One of the two would be taken for no reason."""
    text, plain, _ = both(tiny)
    with refuses(InputError, ValueError, repr(text), repr(f" {text}"), str(plain), "equally likely"):
        spelled(tiny, text, lambda: torch.full((tiny.d_vocab,), level))


@pytest.mark.parametrize("text", ["xyz", "a\nb", "x" * 5000])
def test_what_is_no_token_is_refused_with_both_readings(tiny: fm.Model, text: str) -> None:
    """The user would not learn what was tried, or get a message of five thousand letters or two lines."""
    with refuses(
        InputError, ValueError, "neither target", repr(text[:80]), repr(f" {text}"[:80]), "--first-token"
    ) as _:
        spelled(tiny, text, unasked)


@pytest.mark.parametrize("word", ["foil", "target"])
def test_all_functions_read_targets_alike(tiny: fm.Model, word: str) -> None:
    """`attribute` refused what `edit` completed."""
    capture = fm.capture(tiny, PROMPT)
    calls: dict[str, Any] = {
        "attribute": lambda **answer: fm.attribute(capture, **answer),
        "paths": lambda **answer: fm.attribute_paths(capture, **answer),
        "ablate": lambda **answer: fm.ablate(capture, **answer, neurons=[(0, 0)]),
    }
    if word == "target":
        calls["knowledge"] = lambda target, foil: fm.interventions.knowledge_neurons(capture, target, steps=2)
    for name, call in calls.items():
        answer: dict[str, Any] = {"target": " London", "foil": " Rome", word: "Paris"}
        with pytest.warns(FfnmemWarning, match=f"{word} 'Paris' is read") as said:
            found = call(**answer)
        assert len(said) == 1, name
        assert said[0].filename == __file__ or "beartype" in said[0].filename or "jaxtyping" in said[0].filename
        assert getattr(found, word) == " Paris"
        answer[word] = " Paris"
        assert getattr(call(**answer), word) == " Paris"


@pytest.mark.parametrize(
    "answer",
    [
        {"target": " Paris", "foil": " Paris"},
        {"target": " Parisian", "foil": " Paris", "first_token": True},
        {"foil": "the likeliest"},
    ],
    ids=["written alike", "the same first token", "the model's own target"],
)
def test_a_target_that_is_its_own_foil_is_refused(tiny: fm.Model, answer: dict[str, Any]) -> None:
    """A difference of 0 has no shares, and its table would be noise."""
    capture = fm.capture(tiny, PROMPT)
    if "target" not in answer:
        answer = {"foil": int(capture.logits_at(0, -1).argmax())}
    said = None
    for call in (fm.attribute, fm.attribute_paths, fm.causal_scores, fm.circuit, fm.faithfulness, fm.ablate):
        with pytest.raises(
            InputError, match=r"^target and foil are the same token, .*: name two that differ$"
        ) as found:
            call(capture, **answer)
        said = said or str(found.value)
        assert str(found.value) == said


def test_a_foil_may_be_the_target_of_some_positions(tiny: fm.Model) -> None:
    """Only where it is that of all is there nothing to explain."""
    capture = fm.capture(tiny, PROMPT)
    ids = capture.tokens[0, 1:].tolist()
    found = fm.attribute(capture, fm.prompts.NEXT, ids[2])
    assert found.logits[2] == 0
    assert found.error < 1e-4


def test_ids_are_taken_as_they_are(tiny: fm.Model) -> None:
    """The one without a space could not be asked for."""
    text, plain, _ = both(tiny)
    capture = fm.capture(tiny, PROMPT)
    assert token_after(capture, plain, 0, 3) == plain
    assert fm.attribute(capture, plain).target == text


def test_words_of_several_tokens(tiny: fm.Model) -> None:
    """Edits and traces take words of any number of tokens; by their first ones the likelier spelling is known."""
    logits = torch.zeros(tiny.d_vocab)
    logits[tiny.token_id("x")] = 1
    assert tiny.token_strings(word_ids(tiny, "xyz", lambda: logits, "of")) == ["x", "y", "z"]
    with pytest.warns(FfnmemWarning, match="' xyz'"):
        found = word_ids(tiny, "xyz", lambda: -logits, "of")
    assert "".join(tiny.token_strings(found)) == " xyz"
    assert word_ids(tiny, "  Paris ", unasked, "of") == (tiny.token_id(" Paris"),)
    with refuses(InputError, ValueError, "empty"):
        word_ids(tiny, " ", unasked, "of")


def test_a_space_at_the_end_of_a_prompt(tiny: fm.Model) -> None:
    """It was explained as it is, without a word."""
    with pytest.warns(FfnmemWarning, match=r"ends in a space.*city of'; leave the space out"):
        fm.capture(tiny, PROMPT + " ")
    with pytest.warns(FfnmemWarning, match="ends in a space"):
        fm.capture(tiny, [PROMPT, "The city "])
    with pytest.warns(FfnmemWarning, match=r"The city' \(and 2 more prompts\);") as said:
        fm.capture(tiny, [PROMPT, "The city ", "city ", "The "])
    assert len(said) == 1  # of a thousand prompts, too
    with pytest.warns(FfnmemWarning) as said:
        warn_of_trailing_space(tiny, "The " * 200)
    assert len(str(said[0].message)) < 250 + ENDING


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT + "\n", " ", "\n ", ""])
def test_no_word_about_other_endings(tiny: fm.Model, prompt: str) -> None:
    """A line break is a token that texts do have; a space by itself has no word before it."""
    warn_of_trailing_space(tiny, prompt)


def test_tokenizers_whose_spaces_stand_alone(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no word brings its space, the space at the end is what stands in every text."""

    class Letters:
        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

    monkeypatch.setattr(tiny, "tokenizer", Letters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_trailing_space(tiny, "The city of ")
