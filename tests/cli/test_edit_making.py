"""The fact behind a prompt, a subject and a target."""

from __future__ import annotations

import re

import pytest

import ffnmem as fm
from ffnmem.cli.edit import load_known_facts, make_fact
from ffnmem.core.errors import FfnmemWarning, InputError
from ffnmem.evaluation.effects import Effects
from ffnmem.facts.fact import known_fact

from ..helpers import PROMPT, printed, refuses


@pytest.fixture(scope="module")
def facts() -> list[fm.Fact]:
    return fm.load_facts("atlas")


def test_a_known_fact_by_its_prompt_or_a_paraphrase(facts: list[fm.Fact]) -> None:
    """Otherwise paraphrases and neighbours would be missing although they are known."""
    fact = next(f for f in facts if f.subject == "Eiffel Tower" and f.relation == "landmark.city")
    assert known_fact(fact.prompt, fact.subject, facts) is fact
    other = known_fact(fact.paraphrases[1], fact.subject, facts)
    assert other is not None
    assert other.id == fact.id
    assert other.prompt == fact.paraphrases[1]
    assert set(other.paraphrases) == {fact.prompt, fact.paraphrases[0], fact.paraphrases[2]}
    assert known_fact("{} is", fact.subject, facts) is None
    assert known_fact(fact.prompt, "Colosseum of London", facts) is None


def test_what_is_given_is_taken() -> None:
    fact = make_fact(PROMPT, "Eiffel Tower", "Rome", " Paris", [], ["In {} is"], ["London is"])
    assert (fact.prompt, fact.target_true) == ("The {} is in the city of", "Paris")
    assert (fact.paraphrases, fact.neighbour_prompts) == (("In {} is",), ("London is",))
    assert fact.target_new == "Rome"
    with refuses(InputError, ValueError, "Colosseum"):
        make_fact(PROMPT, "Colosseum", "Rome", "Paris", [], [], [])


@pytest.mark.parametrize(
    ("says", "doubt"),
    [(". !", "'. !'"), (" the city", "a function word"), (" Paris", "with a probability of")],
    ids=["no word", "a function word", "an unlikely word"],
)
def test_what_the_model_itself_says(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch, says: str, doubt: str) -> None:
    """A whole word, without what stands around it. " the" was taken as the true fact in silence, and scored."""
    monkeypatch.setattr("ffnmem.facts.questions.generate", lambda model, tokens, new: model.tokenize(says, False))
    with pytest.warns(FfnmemWarning, match=re.escape(doubt)):
        edit = fm.editing.ft_l(tiny, PROMPT, " Rome", subject="Eiffel Tower", layer=0, steps=1, force=True)
    assert edit.facts[0].target_true == ""
    effects = Effects(edit, tiny).measure()
    assert effects.prompts["true_after"].isna().all()
    assert "Rome" in "\n".join(printed(effects.sheet()))


def test_facts_of_ones_own(atlas: fm.Model, tiny: fm.Model) -> None:
    assert load_known_facts(None, tiny, "x") == []
    assert len(load_known_facts(None, atlas, "x")) == len(load_known_facts("atlas", tiny, "Eiffel Tower")) == 3993
