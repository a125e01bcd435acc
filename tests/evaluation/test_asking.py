"""The questions of a fact."""

from __future__ import annotations

from dataclasses import replace

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.evaluation.measuring import make_case, prompts, wanted_target
from ffnmem.facts.answers import word_ids

from ..helpers import refuses
from .made import EIFFEL, LONDON, NO_TARGET


def test_prompts() -> None:
    """A neighbour with the fact's own subject, or an edit's sentence without its target, would test something else."""
    found = list(prompts(EIFFEL, "Rome"))
    texts = {role: [text for r, text, _ in found if r == role] for role, _, _ in found}
    assert texts["rewrite"] == ["The Eiffel Tower is in the city of"]
    assert texts["paraphrase"] == ["The city of the Eiffel Tower is", "In the city of the Eiffel Tower is the"]
    assert texts["neighbour"] == [
        "The Tower of Paris is in the city of",
        "The city of London is in the city of",
        "Paris is the city of",
    ]
    assert texts["plus"] == [f"The Eiffel Tower is in the city of Rome. {text}" for text in texts["neighbour"]]
    assert [(r, a) for r, _, a in found[-4:]] == [
        ("portability", "France"),
        ("reverse", "Eiffel Tower"),
        ("unrelated", "London"),
        ("unrelated", "Rome"),
    ]


def test_case(tiny: fm.Model) -> None:
    """Answers in another order would turn every score around."""
    case = make_case(tiny, EIFFEL, None, ("rewrite", "reverse"))
    assert case.roles == ("rewrite", "reverse")
    assert case.target == "Rome"
    assert case.questions[0].tokens == tuple(tiny.tokenize(EIFFEL.text))
    assert case.questions[0].answers == tuple(word_ids(tiny, "The", word) for word in ("Paris", "Rome"))
    assert case.questions[1].answers == (word_ids(tiny, "The", "Eiffel Tower"),)
    assert make_case(tiny, EIFFEL, " London ").target == "London"


def test_too_long(tiny: fm.Model) -> None:
    """One long paraphrase must not take a fact out of the table, nor vanish from it unseen."""
    long = replace(EIFFEL, paraphrases=("The {}" + " is in the city of" * 9, "{} is"))
    case = make_case(tiny, long, None)
    assert case.unasked == 1
    assert case.roles.count("paraphrase") == 1
    with refuses(InputError, ValueError, "32"):
        make_case(tiny, replace(EIFFEL, prompt="The {}" + " is in the city of" * 9), None)


def test_refuses_without_target(tiny: fm.Model) -> None:
    """A fact without a new target has no score; inventing one would give one."""
    with refuses(InputError, ValueError, "none", "no new target"):
        make_case(tiny, NO_TARGET, None)
    with refuses(InputError, ValueError, "london", "'Rome'"):
        wanted_target(LONDON, "Rome")
