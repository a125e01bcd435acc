"""Addresses: read as typed values, written from them again; every mistake is one line that says what is right."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.prompt_view import PromptQuery
from ffnmem.explorer.queries import address, read_variant, spell_variant
from ffnmem.explorer.views import Explorer

from ..helpers import PROMPT
from .conftest import asking, mistake

TEXT = "The Eiffel Tower is in"
FACT = {"text": PROMPT, "subject": "Eiffel Tower", "target": "Rome"}

REFUSED = [
    (address("/prompt", text="x" * 4001), "at most 4000 characters"),
    (address("/prompt", text="a b " * 200), "the prompt has 801 tokens"),
    (address("/prompt", text=TEXT, at="๓"), "'position' must be a valid integer, not '๓'"),
    (address("/prompt", text=TEXT, cell="9.1"), "cell 9.1 is no layer and position"),
    (address("/prompt", text=TEXT, by="magic"), "'memories by' must be 'paths', 'direct' or 'causal', not 'magic'"),
    (address("/prompt", text=TEXT, top=1000), "'top' must be less than or equal to 200, not '1000'"),
    (address("/prompt", text=TEXT, v="99.0:0"), "layer 99"),
    (address("/prompt", text=TEXT, v="x"), "'x' names no neuron: write LAYER.NEURON"),
    (address("/prompt", text=TEXT, v="3.17:0,L3N17:1"), "names neuron 3.17 twice"),
    (address("/prompt", text=TEXT, v="3.17:1e9"), "the factor of 3.17 must be a number from -100 to 100"),
    (address("/prompt", *[("v", "1.1")] * 5, text=TEXT), "'change' must have at most 4 items"),
    (address("/prompt", text=TEXT, target="id:99999999"), "99999999"),
    (address("/prompt", text=TEXT, target=" Paris", foil=" Paris"), "target and foil are the same token"),
    (address("/prompt", text=TEXT, format="exe"), "format 'exe' is unknown"),
    ("/memory/99.1", "layer 99 is out of range"),
    ("/memory/nonsense", "names no neuron"),
    (address("/memory/0.1", part="x"), "'part' must be"),
    (address("/find", words=","), "type 1 to 16 words"),
    (address("/find", words="the", sort="nonsense"), "sort 'nonsense' is unknown"),
    (address("/find", words="zqxjkvwpzq"), "a memory is compared with single tokens"),
    (address("/find", layer="-9"), "layer -9 is out of range"),
    (address("/find", role="position"), "role 'position' is unknown"),
    (address("/find", verdict="inactive"), "there are no verdicts"),
    (address("/circuit", firings="7.1@2", text=TEXT), "layer 7 is out of range"),
    (address("/circuit", firings="0.64@2", text=TEXT), "neuron 64 is out of range"),
    (address("/circuit", firings="0.1@99", text=TEXT), "position 99"),
    (address("/circuit", firings="0.1@here", text=TEXT), "a firing is LAYER.NEURON@POSITION"),
    (address("/circuit", firings="everything", text=TEXT), "LAYER.NEURON@POSITION"),
    (address("/circuit", share=2, text=TEXT), "'or the fewest that keep' must be less than or equal to 1"),
    (address("/fact", **{**FACT, "subject": ""}), "the subject is missing"),
    (address("/fact", **{**FACT, "subject": "Louvre"}), "does not stand in the prompt"),
    (address("/fact", **{**FACT, "target": ""}, edit=1), "the new target is missing"),
    (address("/fact", **FACT, edit=1, layer=7), "layer 7 is out of range"),
    (address("/fact", **FACT, edit=1, editor="rome"), "comes without a second moment"),
    (address("/fact", **FACT, edit=1, editor="none"), "editor 'none' is unknown"),
    (address("/fact", **FACT, edit=1, free="The " * 40), "reads at most 32"),
]


@pytest.mark.parametrize(("where", "says"), REFUSED)
def test_a_mistake_is_one_line_that_says_what_would_be_right(client: TestClient, where: str, says: str) -> None:
    assert says in mistake(client, where)


def test_an_address_is_read_back_as_it_was_written() -> None:
    query = PromptQuery(text=" a&b=c#<é ", v=("3.17:0", "5.97:2"), at=0, chat=True)
    path, _, typed = query.address().partition("?")
    assert path == "/prompt"
    assert PromptQuery.read(parse_qs(typed)) == query
    assert query.address(v=(), at=None, chat=False) == address("/prompt", text=" a&b=c#<é ")
    assert spell_variant(read_variant(" L3N17 , 5.97:-1.5")) == "3.17:0,5.97:-1.5"


def test_ticked_memories_become_a_variant(client: TestClient) -> None:
    where = address("/prompt", ("off", "0.1"), ("off", "1.2"), text=TEXT, v="0.3:2", strength="half")
    found = client.get(where, follow_redirects=False)
    assert found.status_code == 303
    path, _, typed = found.headers["location"].partition("?")
    assert (path, typed.endswith("#changed")) == ("/prompt", True)
    assert PromptQuery.read(parse_qs(typed.removesuffix("#changed"))) == PromptQuery(
        text=TEXT, v=("0.3:2", "0.1:0.5,1.2:0.5")
    )


def test_a_form_keeps_what_was_typed_and_carries_what_is_done_along(client: TestClient) -> None:
    """A mark in place of a character that does not show would be another text, once the form is sent again."""
    text = "\nThe\u200dEiffel \u00ad\"<b>'"
    typed = text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;").replace("'", "&#39;")
    for where in ("/prompt", "/circuit"):
        page = client.get(address(where, text=text, at=99)).text
        assert f">\n{typed}</textarea>" in page
    assert f'value="{typed}"' in client.get(address("/find", text=text)).text
    assert 'name="v" size="10" value="1.1:x"' in client.get(address("/prompt", text="The", v="1.1:x")).text
    assert '<details class="settings" open>' in client.get(address("/circuit", text=TEXT, firings="x")).text


def test_long_texts_are_refused(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffnmem.explorer.views.TOKENS", 3)
    with asking(Explorer(tiny)) as client:
        for where in ("/prompt", "/circuit"):
            assert "at most 3 are shown here" in mistake(client, address(where, text="The Eiffel Tower is in Paris"))
