"""The circuit's view: what it says is the library's, what is removed is run again exactly, all of it in the address."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
import torch
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.circuit_view import without
from ffnmem.explorer.queries import address
from ffnmem.explorer.views import Explorer
from ffnmem.prompts.circuit_edges import Firing

from ..helpers import PROMPT
from ..pages.hostile import HOSTILE
from .conftest import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SOME = {"target": " Paris", "foil": " Rome", "firings": 24}


def circuit_of(model: fm.Model) -> fm.prompts.Circuit:
    return fm.circuit(fm.capture(model, PROMPT), " Paris", " Rome", nodes=24)


def firings_of(model: fm.Model, count: int = 3) -> list[str]:
    return [str(one) for one in circuit_of(model).firings["id"].head(count)]


def said(page: str) -> str:
    """The sentence that a page begins with."""
    found = re.search(r'<p class="sentence">(.*?)</p>', page, re.DOTALL)
    assert found is not None, page[-600:]
    return " ".join(re.sub("<[^>]+>", "", found[1]).split())


def error(client: TestClient, **asked: object) -> str:
    found = client.get(address("/circuit", **asked))
    assert found.status_code == 422, found.text[-600:]
    lines = re.findall(r'role="alert"><b>(.*?)</b>', found.text, re.DOTALL)
    assert len(lines) == 1
    assert "\n" not in lines[0]
    return str(lines[0])


def test_mistakes_name_the_fields_of_the_form(client: TestClient) -> None:
    """Whoever typed into a field does not know what the library calls its parameter."""
    page = client.get(address("/circuit", text=PROMPT, **SOME)).text
    for name, typed in (("firings", "many"), ("minimal", "2"), ("nodes", "x"), ("edges", "-1"), ("alike", "0")):
        found = re.search(rf'<label>([^<]*) <input name="{name}"', page)
        assert found is not None
        field = html.unescape(found[1]).removeprefix("or ")
        assert html.unescape(error(client, **{"text": PROMPT, **SOME, name: typed})).startswith(f"'{field}' must be")


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
    assert "Paris" in said(page)


def test_files_can_be_saved(client: TestClient) -> None:
    for form, begins in (("png", b"\x89PNG"), ("html", b"<!doctype html>"), ("json", b"{")):
        found = client.get(address("/circuit", text=PROMPT, format=form, **SOME))
        assert found.status_code == 200
        assert found.content.lstrip().startswith(begins)


def test_what_is_removed_is_run_again_exactly(tiny: fm.Model) -> None:
    """Two ways that share nothing: interventions here, sets of kept firings there."""
    capture, found = fm.capture(tiny, PROMPT), circuit_of(tiny)
    gone = [Firing(int(r.layer), int(r.neuron), int(r.position)) for r in found.firings.head(5).itertuples()]
    triples = [(one.layer, one.neuron, one.position) for one in gone]
    alone = fm.faithfulness(capture, " Paris", " Rome", triples, random=0)
    after = without(capture, found, gone, alone)
    assert after.left == pytest.approx(alone.curve["completeness"].iloc[0], rel=1e-4)
    assert after.predictions["after"].max() != pytest.approx(after.predictions["before"].max(), rel=1e-6)
    assert without(capture, found, [], alone).left == pytest.approx(1.0)


def test_a_page_says_what_the_answer_becomes(client: TestClient, tiny: fm.Model) -> None:
    ids = firings_of(tiny)
    fingerprint = tiny.fingerprint
    page = client.get(address("/circuit", text=PROMPT, remove=",".join(ids), **SOME)).text
    assert said(page).startswith("Without 3 firings, ·Paris goes from probability")
    capture, found = fm.capture(tiny, PROMPT), circuit_of(tiny)
    kept = found.firings[~found.firings["id"].isin(ids)]
    share = fm.faithfulness(capture, " Paris", " Rome", kept, random=0).curve["faithfulness"].iloc[0]
    values = [float(one) for one in re.findall(r'<data value="([^"]+)">', page)]
    assert any(value == pytest.approx(float(share), rel=1e-6) for value in values)
    assert page.count('class="node plus removed"') + page.count('class="node minus removed"') == 3
    assert not tiny.interventions
    assert tiny.fingerprint == fingerprint
    # Another tab, with nothing removed, sees the model as it is.
    assert not said(client.get(address("/circuit", text=PROMPT, **SOME)).text).startswith("Without")


def test_a_neuron_may_be_removed_wherever_it_fires(client: TestClient, tiny: fm.Model) -> None:
    page = client.get(address("/circuit", text=PROMPT, remove="0.5", **SOME)).text
    assert said(page).startswith("Without 0.5,")
    with fm.intervene(tiny, {(0, 5): 0.0}):
        after = fm.capture(tiny, PROMPT).logits_at(0, -1).double().softmax(-1)
    token = circuit_of(tiny).target_id
    shown = [float(one) for one in re.findall(r'<b><data value="([^"]+)">', page)]
    assert shown[0] == pytest.approx(float(after[token]), rel=1e-5)


def moved(client: TestClient, picked: list[str], do: str, **more: object) -> dict[str, str]:
    """The parameters of the address that a form with ticked nodes leads to."""
    where = address("/circuit", *(("pick", one) for one in picked), text=PROMPT, do=do, **SOME, **more)
    found = client.get(where, follow_redirects=False)
    assert found.status_code == 303
    location = found.headers["location"]
    assert client.get(location, follow_redirects=False).status_code == 200
    return dict(parse_qsl(urlsplit(location).query))


def test_what_is_done_with_ticked_nodes_stands_in_the_address(client: TestClient, tiny: fm.Model) -> None:
    a, b, c = firings_of(tiny)
    asked = moved(client, [a, b], "remove", pin=c)
    assert asked == {
        "text": PROMPT,
        "target": " Paris",
        "foil": " Rome",
        "firings": "24",
        "remove": f"{a},{b}",
        "pin": c,
    }
    assert moved(client, [a], "back", remove=f"{a},{b}")["remove"] == b
    assert moved(client, [a, b], "pin")["pin"] == f"{a},{b}"
    assert moved(client, [b], "prune", prune=a)["prune"] == f"{a},{b}"
    assert moved(client, [a, b], "group", name="city: <b>")["group"] == f"city: <b>:{a},{b}"
    assert moved(client, [b, c], "group", group=f"x:{a},{b}")["group"] == f"group 1:{b},{c}"  # the last of two
    assert "remove" in error(client, text=PROMPT, do="remove", **SOME)


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


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"remove": "7.1@2"}, "layer 7 is out of range"),
        ({"remove": "0.64@2"}, "neuron 64 is out of range"),
        ({"remove": "0.1@99"}, "there is no firing 0.1@99"),
        ({"remove": "everything"}, "3.17@5"),
        ({"pin": "<b>"}, "takes nodes such as"),
        ({"group": "no colon"}, "a group is a name"),
        ({"firings": "0"}, "&#39;firings looked into&#39; must be from 1"),
        ({"minimal": "7"}, "must be a number from 0.001"),
        ({"nodes": "nan"}, "must be a number from 0.001"),
        ({"attention": "all"}, "attention"),
        ({"at": "99"}, "position 99 is out of range"),
    ],
)
def test_a_mistake_is_one_line(client: TestClient, asked: dict[str, str], words: str) -> None:
    assert words in error(client, text=PROMPT, **asked)


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
    """From a text to what the answer is without a node: drawn, pinned, reloaded, removed, put back."""
    with served(Explorer(tiny)) as (base, _):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(20_000)
        complaints: list[str] = []
        page.on("pageerror", lambda one: complaints.append(str(one)))
        page.on("console", lambda one: complaints.append(one.text) if one.type == "error" else None)
        page.goto(f"{base}/circuit")
        page.get_by_label("text").fill(PROMPT)
        page.get_by_role("button", name="Draw").click()
        nodes = page.locator("a.node")
        nodes.nth(1).click()
        name = nodes.nth(1).get_attribute("data-id") or ""
        assert dict(parse_qsl(urlsplit(page.url).query))["pin"] == name
        page.reload()
        assert page.locator("a.node.pinned").get_attribute("data-id") == name
        assert page.locator(".panel h3").inner_text().split()[0] == name.split("@")[0]
        page.locator(".panel a.remove").first.click()
        page.wait_for_selector("#removed")
        assert dict(parse_qsl(urlsplit(page.url).query))["pin"] == name  # what was pinned still is
        assert page.locator(".sentence").inner_text().startswith(f"Without {name}")
        assert page.locator("a.node.removed").count() == 1
        page.get_by_label(f"put {name} back").click()
        page.wait_for_url(lambda url: "remove=" not in url)
        page.locator("input[name=pick]").nth(0).check()
        page.locator("input[name=pick]").nth(1).check()
        page.get_by_label("the group’s name").fill("<b>both</b>")
        page.get_by_role("button", name="Group").click()
        page.wait_for_selector("a.node.ring")
        assert "<b>both</b>" in page.locator("#groups").inner_text()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []
        page.close()


def test_weights_are_what_they_were(client: TestClient, tiny: fm.Model) -> None:
    before = {name: value.clone() for name, value in tiny.hf_model.state_dict().items()}
    client.get(address("/circuit", text=PROMPT, remove="0.1,0.2,1.3", **SOME))
    assert all(torch.equal(value, before[name]) for name, value in tiny.hf_model.state_dict().items())
