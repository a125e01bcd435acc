"""The circuit's view: what it says is the library's, what is removed is run again exactly, all of it in the address."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.circuit_view import run_without
from ffnmem.explorer.queries import address
from ffnmem.explorer.views import Explorer
from ffnmem.prompts.circuit_edges import Firing

from ..helpers import PROMPT
from ..pages.hostile import HOSTILE
from .conftest import opened, sentence, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SOME = {"target": " Paris", "foil": " Rome", "firings": 24}


def circuit_of(model: fm.Model) -> fm.prompts.Circuit:
    return fm.circuit(fm.capture(model, PROMPT), " Paris", " Rome", nodes=24)


def firings_of(model: fm.Model, count: int = 3) -> list[str]:
    return [str(one) for one in circuit_of(model).firings["id"].head(count)]


def test_a_word_of_several_tokens_is_read_by_its_first_one(client: TestClient, tiny: fm.Model) -> None:
    asked = {**SOME, "target": " Parisian", "foil": " Romeian"}
    page = html.unescape(client.get(address("/circuit", text=PROMPT, **asked)).text)
    assert "the target ' Parisian' is several tokens: its first one is explained" in page
    assert "the foil ' Romeian' is several tokens" in page
    assert "several tokens" not in client.get(address("/circuit", text=PROMPT, **SOME)).text


def test_the_graph_is_the_librarys(client: TestClient, tiny: fm.Model) -> None:
    found = client.get(address("/circuit", text=PROMPT, format="csv", **SOME))
    edges = pd.read_csv(io.BytesIO(found.content))
    expected = circuit_of(tiny).edges
    assert edges["source"].tolist() == expected["source"].tolist()
    assert edges["weight"].tolist() == pytest.approx(expected["weight"].tolist())
    page = client.get(address("/circuit", text=PROMPT, **SOME)).text
    assert 'href="/memory/' + firings_of(tiny)[0].split("@")[0] in page
    assert "Paris" in sentence(page)


def test_what_is_removed_is_run_again_exactly(tiny: fm.Model) -> None:
    """Two ways that share nothing: interventions here, sets of kept firings there."""
    capture, found = fm.capture(tiny, PROMPT), circuit_of(tiny)
    gone = [Firing(int(r.layer), int(r.neuron), int(r.position)) for r in found.firings.head(5).itertuples()]
    triples = [(one.layer, one.neuron, one.position) for one in gone]
    alone = fm.faithfulness(capture, " Paris", " Rome", triples, random=0)
    after = run_without(capture, found, gone, alone)
    assert after.left == pytest.approx(alone.curve["completeness"].iloc[0], rel=1e-4)
    assert after.predictions["after"].max() != pytest.approx(after.predictions["before"].max(), rel=1e-6)
    assert run_without(capture, found, [], alone).left == pytest.approx(1.0)


def test_a_page_says_what_the_answer_becomes(client: TestClient, tiny: fm.Model) -> None:
    ids = firings_of(tiny)
    fingerprint = tiny.fingerprint
    page = client.get(address("/circuit", text=PROMPT, remove=",".join(ids), **SOME)).text
    assert sentence(page).startswith("Without 3 firings, ·Paris goes from probability")
    capture, found = fm.capture(tiny, PROMPT), circuit_of(tiny)
    kept = found.firings[~found.firings["id"].isin(ids)]
    share = fm.faithfulness(capture, " Paris", " Rome", kept, random=0).curve["faithfulness"].iloc[0]
    values = [float(one) for one in re.findall(r'<data value="([^"]+)">', page)]
    assert any(value == pytest.approx(float(share), rel=1e-6) for value in values)
    assert page.count('class="node plus removed"') + page.count('class="node minus removed"') == 3
    assert not tiny.interventions
    assert tiny.fingerprint == fingerprint
    # Another tab, with nothing removed, sees the model as it is.
    assert not sentence(client.get(address("/circuit", text=PROMPT, **SOME)).text).startswith("Without")


def test_a_neuron_may_be_removed_wherever_it_fires(client: TestClient, tiny: fm.Model) -> None:
    page = client.get(address("/circuit", text=PROMPT, remove="0.5", **SOME)).text
    assert sentence(page).startswith("Without 0.5,")
    with fm.intervene(tiny, {(0, 5): 0.0}):
        after = fm.capture(tiny, PROMPT).logits_at(0, -1).double().softmax(-1)
    token = circuit_of(tiny).target_id
    shown = [float(one) for one in re.findall(r'<b><data value="([^"]+)">', page)]
    assert shown[0] == pytest.approx(float(after[token]), rel=1e-5)


def test_a_group_is_one_ring_and_what_is_pruned_joins_the_rest(client: TestClient, tiny: fm.Model) -> None:
    a, b, c = firings_of(tiny)
    page = client.get(address("/circuit", text=PROMPT, group=f"landmark:{a},{b}", prune=c, **SOME)).text
    assert page.count('class="node ring') == 1
    assert f'data-id="{a}"' not in page
    assert f'data-id="{c}"' not in page
    assert "put back" in page
    alike = client.get(address("/circuit", text=PROMPT, alike=0.01, **SOME)).text
    assert 'class="node ring' in alike
    # Nodes of another prompt's graph are left out without a word: its address may be typed by hand.
    assert 'class="node ring' not in client.get(address("/circuit", text=PROMPT, group="x:1.63@0", **SOME)).text


def test_the_fewest_that_keep_a_share(client: TestClient, tiny: fm.Model) -> None:
    page = client.get(address("/circuit", text=PROMPT, target=" Paris", foil=" Rome", minimal=0.8)).text
    fewest = fm.minimal_circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", faithfulness=0.8)
    ids = {f"{row.layer}.{row.neuron}@{row.position}" for row in fewest.firings.itertuples()}
    assert ids == {one for one in re.findall(r'data-id="([^"]+)"', page) if one[0].isdigit()}


def test_hostile_text_stays_text(client: TestClient) -> None:
    text = HOSTILE.replace("\x00", "")[:24]  # the tiny model reads 32 tokens
    found = client.get(address("/circuit", ("group", "<i onclick=x>:0.1@1"), text=text, firings=8, target="id:3"))
    assert found.status_code == 200, found.text[-400:]
    for raw in ("<script>alert", "<img src=x", "<i onclick", "\u202e"):
        assert raw not in found.text


def test_the_address_of_heads_and_layers(client: TestClient) -> None:
    for attention in ("layers", "heads"):
        page = client.get(address("/circuit", text=PROMPT, attention=attention, **SOME))
        assert page.status_code == 200
        assert 'data-id="head.' in page.text or 'data-id="attention.' in page.text


def test_a_journey_in_a_browser(browser: Browser, tiny: fm.Model) -> None:
    """From a text to what the answer is without a node: drawn, pinned, reloaded, removed, put back, grouped."""
    with served(Explorer(tiny)) as base:
        page = opened(browser, f"{base}/circuit")
        page.get_by_label("text").fill(PROMPT)
        page.get_by_role("button", name="Draw").click()
        nodes = page.locator("a.node")
        nodes.nth(1).click()
        name = nodes.nth(1).get_attribute("data-id") or ""
        pinned = f"#pin={name.replace('@', '%40')}"
        assert page.url.endswith(pinned)
        page.reload()
        assert page.locator("a.node.pinned").get_attribute("data-id") == name
        assert page.locator(".panel h3").inner_text().split()[0] == name.split("@")[0]
        page.locator(".panel a.remove").first.click()
        page.wait_for_selector("#removed")
        assert page.url.endswith(pinned)  # what was pinned still is
        assert page.locator(".sentence").inner_text().startswith(f"Without {name}")
        assert page.locator("a.node.removed").count() == 1
        page.get_by_label(f"put {name} back").click()
        page.wait_for_url(lambda url: "remove=" not in url)
        page.locator("input[name=pick]").nth(0).check()
        page.locator("input[name=pick]").nth(1).check()
        page.get_by_role("button", name="Pin", exact=True).click()
        assert page.locator("a.node.pinned").count() == 2
        page.get_by_label("the group’s name").fill("<b>both</b>")
        page.get_by_role("button", name="Group").click()
        page.wait_for_selector("a.node.ring")
        assert "#pin=" in page.url
        assert dict(parse_qsl(urlsplit(page.url).query))["group"].startswith("<b>both</b>:")
        assert "<b>both</b>" in page.locator("#groups").inner_text()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
        page.context.close()
