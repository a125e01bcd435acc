"""Views are operations: what holds of each of them, by the table of operations alone."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pandas as pd
import pytest
import torch
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.cli.operations import operation
from ffnmem.cli.table import OPERATIONS
from ffnmem.explorer.jobs import Abandoned
from ffnmem.explorer.views import Explorer, read_views
from ffnmem.pages.rendering import content_hash
from ffnmem.scanning.store import Store

from ..helpers import PROMPT
from .conftest import asking, mistake

VIEWS = list(read_views({"Model": None, "Store": None}))
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31m{{7*7}}"
TYPED = {
    "prompt": PROMPT,
    "counterfactual": "Rome is",
    "subject": "Eiffel Tower",
    "target": "Rome",
    "changes": "1.5=0",
    "neuron": "1.5",
    "neurons": "1.5",
    "tokens": " Paris",
    "layer": "1",
    "text": "the",
}


@pytest.fixture(scope="module")
def known(atlas: fm.Model, atlas_store: Store) -> Iterator[tuple[Explorer, TestClient]]:
    explorer = Explorer(atlas, fm.open_store(atlas_store.folder, model=atlas), fm.load_facts("atlas")[:3], "three")
    with asking(explorer) as found:
        yield explorer, found


@pytest.fixture(scope="module")
def scanned(tiny: fm.Model, tiny_store: Store) -> Iterator[tuple[Explorer, TestClient]]:
    explorer = Explorer(tiny, fm.open_store(tiny_store.folder, model=tiny))
    with asking(explorer) as found:
        yield explorer, found


def test_what_is_a_view() -> None:
    """What writes, or reads a file that is named, is none; nor has any a field of one."""
    assert {"report", "contrast", "circuit", "intervene", "project", "token", "trace"} <= set(VIEWS)
    assert not {
        "explore",
        "scan",
        "pack",
        "merge",
        "site",
        "get",
        "health",
        "anatomy",
        "trace-facts",
        "evaluate",
    } & set(VIEWS)
    for view in read_views({"Model": None}).values():
        assert not {"mean", "export", "save", "out", "store", "model"} & {one.name for one in view.fields}
        assert len(operation(OPERATIONS[view.name]).examples) > 0


@pytest.mark.parametrize("name", VIEWS)
def test_an_example_gives_its_page_its_files_and_links_that_lead_somewhere(
    name: str, known: tuple[Explorer, TestClient]
) -> None:
    explorer, client = known
    view = explorer.views[name]
    start = client.get(f"/{name}")
    assert start.status_code == 200
    for one in view.fields:
        assert f'name="{one.typed_as}"' in start.text
    where = view.address(view.example) if view.example else f"/{name}?go=1"
    page = client.get(where)
    assert page.status_code == 200, page.text[-500:]
    assert re.search(r'<table class="fm-(table|grid)|class="sentence"', page.text)
    assert f"fingerprint {explorer.fingerprint}" in page.text or name == "activations"
    assert "data-waiting" not in page.text
    join = "&" if "?" in where else "?"
    for form in re.findall(r"format=(\w+)\"", page.text):
        file = client.get(f"{where}{join}format={form}")
        assert file.status_code == 200, (form, file.text[-300:])
        assert file.headers["content-security-policy"].startswith("sandbox")
        if form == "csv":
            assert len(pd.read_csv(io.BytesIO(file.content)).columns)
        if form == "html":
            scripts = re.findall(r"<script>(.*?)</script>", file.text, re.DOTALL)
            assert all(content_hash(script) in file.text for script in scripts), "a script that its page does not admit"
            assert "<form" not in file.text
    body = page.text[page.text.index("<main") :]
    found = [html.unescape(link).partition("#")[0] for link in re.findall(r'href="(/[^"]+)"', body)]
    for link in [one for one in dict.fromkeys(found) if "format=" not in one][:40:8]:
        assert client.get(link).status_code == 200, link


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_user_types_is_never_markup(name: str, scanned: tuple[Explorer, TestClient]) -> None:
    explorer, client = scanned
    for field in [*(one.typed_as for one in explorer.views[name].fields), "top", "nonsense"]:
        typed = {one.typed_as: TYPED[one.typed_as] for one in explorer.views[name].required} | {field: HOSTILE}
        page = client.get(f"/{name}", params=typed).text
        assert "<script>alert" not in page
        assert "<img" not in page.replace('<img src="data:image/svg+xml;base64,', "")
        shown = re.sub(r'<textarea.*?</textarea>|<input[^>]* value="[^"]*"', "", page, flags=re.DOTALL)
        assert "\u202e" not in shown, "but in fields, which hold what was typed"
        assert "\x1b" not in shown


REFUSED = [
    ("/report?position=1", "prompt is missing"),
    ("/report?prompt=The&at=9", "at 9 is out of range"),
    ("/report?prompt=The&at=x", "at"),
    ("/report?prompt=The&by=magic", "by 'magic' is unknown"),
    ("/report?prompt=The&top=0", "top"),
    ("/report?prompt=The&top=5000", "top must be at most 1000"),
    ("/report?prompt=The&format=exe", "format 'exe' is unknown"),
    ("/report?prompt=The&model=gpt2", "there is no model here"),
    ("/report?prompt=The&lens=%2Fetc%2Fpasswd", "is unknown"),
    ("/causal?prompt=The&mean=%2Fetc", "there is no mean here"),
    ("/report?prompt=The&target=id:99999999", "99999999"),
    ("/report?prompt=The&target=%20Paris&foil=%20Paris", "same token"),
    ("/project?neurons=99.1", "layer 99 is out of range"),
    ("/project?neurons=nonsense", "names no neuron"),
    ("/intervene?prompt=The&changes=1.5", "write LAYER.NEURON=NUMBER"),
    ("/circuit?prompt=The&firings=0.1@99", "position 99"),
    ("/trace?prompt=The&subject=Louvre", "Louvre"),
]


@pytest.mark.parametrize(("where", "says"), REFUSED)
def test_a_mistake_is_one_line_that_says_what_would_be_right(client: TestClient, where: str, says: str) -> None:
    line = mistake(client, where)
    assert says in line
    assert "ffnmem" not in line, "what to type on a command line helps nobody here"


def test_a_form_keeps_what_was_typed(client: TestClient) -> None:
    """A mark in place of a character that does not show would be another text, once the form is sent again."""
    text = "\nThe\u200dEiffel \u00ad\"<b>'"
    typed = text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;").replace("'", "&#39;")
    page = client.get("/report", params={"prompt": text, "target": " x'", "at": "99"}).text
    assert f">\n{typed}</textarea>" in page
    assert 'value=" x&#39;"' in page
    assert 'value="99"' in page


def test_cells_lead_by_their_kind(known: tuple[Explorer, TestClient]) -> None:
    explorer, client = known
    page = html.unescape(client.get("/report", params={"prompt": "The Eiffel Tower is in", "by": "causal"}).text)
    top = fm.causal_scores(fm.capture(explorer.model, "The Eiffel Tower is in")).top(1).iloc[0]
    assert f"/{explorer.card}?" in page
    assert f'value="{top.layer}.{top.neuron}=0" form="change"' in page
    assert "position=2" in page
    assert "by=causal&layer=5&at=3#firings" in page.replace("&position=-1", "")
    assert re.search(r'href="/token\?tokens=[^"]+"', page)
    card = client.get(f"/{explorer.card}?neurons=4.502").text
    for where in ("/project?neurons=4.502", "/weights?neuron=4.502", f"/{explorer.card}?neurons=4.503"):
        assert f'href="{where}"' in card


@pytest.mark.parametrize("name", ["report", "contrast", "circuit", "trace", "intervene", "ablate"])
def test_work_that_is_given_up_leaves_the_model_as_it_was(tiny: fm.Model, name: str) -> None:
    """Wherever it is when nobody waits for it any more."""
    explorer = Explorer(tiny)
    more = {"target": [" London"], "foil": [" Paris"]} if name == "contrast" else {}
    typed = {one.typed_as: [TYPED[one.typed_as]] for one in explorer.views[name].required} | more
    question = explorer.read(explorer.views[name], typed)
    values = [ffn.values.detach().clone() for ffn in tiny.ffn]
    said = fm.capture(tiny, PROMPT).logits_at(0, -1)

    def given_up(_phase: str, _done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise Abandoned

    for last in (1, 2, 5, 1000):
        calls = 0
        with nullcontext() if last == 1000 else suppress(Abandoned):
            explorer.call(question, given_up)
        assert not tiny.interventions
        assert not len(tiny.edits)
        assert all(torch.equal(ffn.values, before) for ffn, before in zip(tiny.ffn, values, strict=True))
        assert torch.equal(fm.capture(tiny, PROMPT).logits_at(0, -1), said)


def test_the_start_leads_to_every_view_and_to_facts(known: tuple[Explorer, TestClient]) -> None:
    explorer, client = known
    page = client.get("/").text
    assert {f"/{name}" for name in explorer.views} <= set(re.findall(r'href="([^"?]+)"', page))
    assert html.escape(explorer.facts[0].text) in page


def test_results_equal_the_librarys(client: TestClient, tiny: fm.Model) -> None:
    where: dict[str, Any] = {"prompt": PROMPT, "target": " Paris Rome", "format": "csv"}
    found = pd.read_csv(io.BytesIO(client.get("/paths", params=where).content), keep_default_na=False)
    expected = fm.attribute_paths(fm.capture(tiny, PROMPT), " Paris Rome").to_frame()
    assert found["logit"].tolist() == pytest.approx(expected["logit"].tolist())
