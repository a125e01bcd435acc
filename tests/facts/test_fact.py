"""One fact."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.errors import InputError
from tests.helpers import refuses

EIFFEL = fm.Fact(
    subject="Eiffel Tower",
    relation="landmark.city",
    prompt="The {} is located in the city of",
    target_true="Paris",
    target_new="Rome",
    paraphrases=("The city that is home to the {} is",),
    neighbours=("Louvre", "Panthéon"),
    generation_prompts=("Visitors to the {} often",),
    false_targets=("Rome", "Berlin"),
    id="landmark.city.000",
)


def test_text_and_ask() -> None:
    """The model would be asked about a pair of braces, or about the wrong subject."""
    assert EIFFEL.text == "The Eiffel Tower is located in the city of"
    assert EIFFEL.ask(EIFFEL.paraphrases[0]) == "The city that is home to the Eiffel Tower is"
    assert EIFFEL.ask(EIFFEL.prompt, "Louvre") == "The Louvre is located in the city of"
    assert EIFFEL.ask(EIFFEL.prompt, "{0} \\1") == "The {0} \\1 is located in the city of"


def test_dictionaries_round_trip() -> None:
    """A fact would change by being saved."""
    record = json.loads(json.dumps(EIFFEL.to_dict()))
    assert fm.Fact.from_dict(record) == EIFFEL
    least = {name: record[name] for name in ("subject", "relation", "prompt", "target_true")}
    fact = fm.Fact.from_dict(least)
    assert (fact.target_new, fact.paraphrases, fact.neighbours, fact.id) == (None, (), (), "")


def test_facts_are_values() -> None:
    """Facts could not be counted, compared or kept in a set, or change under an edit that refers to them."""
    assert len({EIFFEL, dataclasses.replace(EIFFEL), dataclasses.replace(EIFFEL, id="other")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        EIFFEL.target_true = "Rome"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["subject", "relation", "target_true"])
def test_empty_fields(name: str) -> None:
    """A prompt about nothing, or a target that is nothing, would be scored."""
    with refuses(InputError, ValueError, EIFFEL.id, name, "empty"):
        dataclasses.replace(EIFFEL, **{name: "  "})


@pytest.mark.parametrize("template", ["no braces", "{} and {}", ""])
@pytest.mark.parametrize("name", ["prompt", "paraphrases", "generation_prompts"])
def test_templates_without_one_place(name: str, template: str) -> None:
    """The subject would not be in the prompt, or twice."""
    value = template if name == "prompt" else (EIFFEL.prompt, template)
    with refuses(InputError, ValueError, EIFFEL.id, repr(template), "{}"):
        dataclasses.replace(EIFFEL, **{name: value})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"subject": 3}, "subject"),
        ({"subject": None}, "subject"),
        ({"neighbours": ["Louvre", 3]}, "neighbours"),
        ({"neighbours": [["Louvre"]]}, "neighbours"),
        ({"target_new": 3}, "target_new"),
        ({"id": None}, "id"),
    ],
    ids=str,
)
def test_records_that_are_no_facts(change: dict[str, Any], named: str) -> None:
    """A misspelt field would be dropped, or a number turned into a word."""
    with refuses(InputError, ValueError, named):
        fm.Fact.from_dict({**EIFFEL.to_dict(), **change})


@pytest.mark.parametrize("name", ["subject", "relation", "prompt", "target_true"])
def test_missing_fields(name: str) -> None:
    """A traceback about an argument of __init__."""
    record = {key: value for key, value in EIFFEL.to_dict().items() if key != name}
    with refuses(InputError, ValueError, "missing", name):
        fm.Fact.from_dict(record)


@pytest.mark.parametrize("name", ["neighbours", "paraphrases", "generation_prompts", "false_targets"])
def test_a_text_where_a_list_belongs(name: str) -> None:
    """A text is a sequence of texts to Python: each letter would become a neighbour."""
    with refuses(InputError, ValueError, name):
        fm.Fact.from_dict({**EIFFEL.to_dict(), name: "Louvre"})


@pytest.mark.parametrize("name", ["subject", "target_true", "target_new", "id"])
def test_a_list_where_a_text_belongs(name: str) -> None:
    """A tuple would go where text is expected, and fail much later."""
    with refuses(InputError, ValueError, name):
        fm.Fact.from_dict({**EIFFEL.to_dict(), name: ["Rome"]})


def test_html_is_escaped() -> None:
    """A file of facts from elsewhere could run a script in the reader's notebook."""
    evil = "<script>alert(1)</script>"
    html = fm.Fact(evil, "r", "{} " + evil, evil, target_new=evil, id=evil)._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 5
