"""Each view from its address: what it shows is what the library says, every link leads somewhere, files are whole."""

from __future__ import annotations

import html
import io
import re
import shutil
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.core.token_text import visible
from ffnmem.explorer.jobs import Abandoned
from ffnmem.explorer.memory_view import neighbours
from ffnmem.explorer.queries import address
from ffnmem.explorer.server import PAGES
from ffnmem.explorer.views import Explorer
from ffnmem.pages.rendering import content_hash
from ffnmem.scanning.store import Store
from ffnmem.vocabulary.projections import WHY
from ffnmem.vocabulary.vectors import side_vectors

from ..architectures import DECODERS
from ..helpers import PROMPT
from ..neurons.gated import made, scanned
from ..pages.page import Page
from .conftest import asking, sentence

TEXT = "The Eiffel Tower is in"


def links(page: str) -> list[str]:
    """The addresses that a page links to."""
    return [html.unescape(one) for one in re.findall(r'href="(/[^"#]*)', page)]


def csv(client: TestClient, where: str) -> pd.DataFrame:
    found = client.get(where)
    assert found.status_code == 200
    assert "attachment" in found.headers["content-disposition"]
    return pd.read_csv(io.BytesIO(found.content), keep_default_na=False)


@pytest.mark.parametrize(
    "where",
    [
        address("/prompt", text=TEXT),
        address("/prompt", text=TEXT, by="causal", cell="1.2", at=3),
        address("/prompt", ("v", "0.1:0"), ("v", "1.2:-1"), text=TEXT, by="direct"),
        address("/contrast", text=PROMPT, other="Rome is", target=" the", foil=" in"),
        "/memory/1.3",
        "/memory/0.0?part=wires",
        address("/find", words="the", text=TEXT, role="any", sort="memory"),
        address("/circuit", text=PROMPT, firings="0.5@3,0.6"),
    ],
)
def test_every_view_has_headings_in_order_files_and_links_that_lead_somewhere(client: TestClient, where: str) -> None:
    found = client.get(where)
    assert found.status_code == 200, found.text[-500:]
    levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", found.text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    bare = where == "/memory/1.3" or where.startswith("/find")  # tables without a picture
    assert ("format=png" in found.text) is not bare
    for name in ("csv", *(() if bare else ("png",)), "html", "json"):
        file = client.get(f"{where}{'&' if '?' in where else '?'}format={name}")
        assert file.status_code == 200, (name, file.text[-300:])
        assert file.headers["content-security-policy"].startswith("sandbox")
        if name == "png":
            assert file.content.startswith(b"\x89PNG")
        if name == "json" and not where.startswith("/circuit"):  # whose form is another program's
            assert file.json()["provenance"]["fingerprint"]
        if name == "html":
            scripts = re.findall(r"<script>(.*?)</script>", file.text, re.DOTALL)
            assert all(content_hash(script) in file.text for script in scripts), "a script that its page does not admit"
            assert "<form action" not in file.text
    for link in dict.fromkeys(links(found.text)[:4] + links(found.text)[-4:]):
        assert client.get(link).status_code == 200, link


def test_the_prompt_shows_what_the_library_says(client: TestClient, tiny: fm.Model) -> None:
    capture = fm.capture(tiny, TEXT)
    paths = fm.attribute_paths(capture)
    frame = csv(client, address("/prompt", text=TEXT, format="csv"))
    assert frame["logit"].tolist() == pytest.approx(paths.top(200)["logit"].tolist())
    direct = csv(client, address("/prompt", text=TEXT, by="direct", format="csv"))
    assert direct["neuron"].tolist() == fm.attribute(capture).top(200)["neuron"].tolist()
    causal = csv(client, address("/prompt", text=TEXT, by="causal", format="csv"))
    assert causal["score"].tolist() == pytest.approx(fm.causal_scores(capture).top(200)["score"].tolist())
    shown = client.get(address("/prompt", text=TEXT, by="causal")).text
    scores = fm.causal_scores(capture, exact=20)
    assert f"Exact removal</b>: {html.escape(scores.agreement(20))}" in shown
    exact = re.findall(r'data-name="exact"><data[^>]* value="([^"]+)"', shown)
    assert [float(one) for one in exact] == pytest.approx(scores.exact, rel=1e-4)
    page = client.get(address("/prompt", text=TEXT)).text
    top = paths.top(1).iloc[0]
    assert f'href="/memory/{top.layer}.{top.neuron}">' in page
    assert page.count('aria-current="true"') == 1


def test_a_cell_of_the_map_lists_its_own_memories(client: TestClient, tiny: fm.Model) -> None:
    paths = fm.attribute_paths(fm.capture(tiny, TEXT))
    page = client.get(address("/prompt", text=TEXT, cell="0.2")).text
    listed = re.findall(r'name="off" value="([0-9.]+)"', page)
    order = paths.scores[0, 2].abs().argsort(descending=True)[: len(listed)].tolist()
    assert listed == [f"0.{neuron}" for neuron in order]


def test_variants_are_what_interventions_give_and_leave_the_model_as_it_is(client: TestClient, tiny: fm.Model) -> None:
    before = client.get(address("/prompt", text=TEXT)).text
    change = {(0, n): fm.interventions.Scale(0.0) for n in range(40)}
    off = ",".join(f"0.{n}:0" for n in range(40))
    page = client.get(address("/prompt", ("v", off), ("v", "1.0:3"), text=TEXT)).text
    with fm.intervene(tiny, change):
        expected = fm.capture(tiny, TEXT).predictions(-1, 1).iloc[0]
    values = [float(value) for value in re.findall(r'style="--p:[^>]*><data value="([^"]+)"', page)]
    assert any(value == pytest.approx(expected["probability"], rel=1e-6) for value in values[1::3])
    assert tiny.interventions == ()
    with asking(Explorer(tiny)) as fresh:
        assert fresh.get(address("/prompt", text=TEXT)).text == before


def test_a_memory_shows_its_tokens_neighbours_and_store(
    client: TestClient, store_client: TestClient, tiny: fm.Model
) -> None:
    frame = csv(client, "/memory/1.3?format=csv")
    expected = fm.project(tiny, 1, 3, k=12).to_frame()
    assert frame["token_id"].tolist() == expected["token_id"].tolist()
    assert "ffnmem scan CORPUS" in client.get("/memory/1.3").text
    page = store_client.get("/memory/1.3").text
    assert "Make one of your corpus" not in page
    assert 'class="fm-histogram"' in page
    assert re.search(r'<i style="--a:', page), "no token is shaded"
    record = store_client.get("/memory/1.3?format=json").json()
    assert record["store"]["neuron"] == 3
    assert "Its meanings" in store_client.get("/memory/1.3?part=meanings").text


def test_what_a_memory_computes_on_request_is_behind_its_own_address(
    tiny: fm.Model, tiny_store: Store, tmp_path: Path
) -> None:
    plain = shutil.ignore_patterns("polysemanticity-*")  # which another test may have kept
    store = fm.open_store(shutil.copytree(tiny_store.folder, tmp_path / "store", ignore=plain), model=tiny)
    for measured in (False, True):  # meanings that are kept stand on the page already
        if measured:
            fm.polysemanticity(store, tiny, draws=20)
        with asking(Explorer(tiny, store)) as client:
            page = client.get("/memory/1.3").text
        found = {link for link in links(page) if "part=" in link}
        assert "/memory/1.3?part=wires" in found
        assert all(link.startswith("/memory/1.3?") for link in found)
        assert ("/memory/1.3?part=meanings" in found) != measured
        assert ("not measured yet" not in page) == measured


def test_neighbours_are_the_nearest_by_cosine(tiny: fm.Model) -> None:
    found = neighbours(Explorer(tiny), 0, 5)["value"]
    values = [torch.nn.functional.normalize(ffn.values.detach().double(), dim=-1) for ffn in tiny.ffn]
    one = values[0][5]
    every = [(abs(float(row @ one)), layer, n) for layer, rows in enumerate(values) for n, row in enumerate(rows)]
    best = sorted(every, reverse=True)[1 : len(found) + 1]
    assert list(zip(found["layer"], found["neuron"], strict=True)) == [(layer, n) for _, layer, n in best]
    assert found["cosine"].abs().tolist() == pytest.approx([cosine for cosine, *_ in best], rel=1e-4)


def test_memories_are_found_by_words_and_by_text(client: TestClient, tiny: fm.Model) -> None:
    frame = csv(client, address("/find", words="the, is", format="csv"))
    ids = [tiny.token_id(" the"), tiny.token_id(" is")]
    stands = {}  # by plain arithmetic over the whole vocabulary
    for side, tokens in (("value", tiny.unembedding), ("key", tiny.embedding)):
        for layer in range(tiny.n_layers):
            rows = side_vectors(tiny, layer, range(tiny.ffn[layer].d_mlp), side, "folded")
            scores = (rows @ tokens.detach().T).double()
            each = (scores[:, ids] - scores.mean(1, keepdim=True)) / scores.std(1, correction=0, keepdim=True)
            stands |= {(layer, neuron, side): float(one) for neuron, one in enumerate(each.mean(1))}
    best = max(stands, key=lambda one: abs(stands[one]))
    assert (frame["layer"][0], frame["neuron"][0]) == best[:2]
    assert len(set(frame["why"])) == 4  # both signs of values and of keys
    for row in frame.head(50).itertuples():
        here = {side: stands[row.layer, row.neuron, side] for side in ("value", "key")}
        side = max(here, key=lambda one: abs(here[one]))
        assert row.why == WHY[side, "promoted" if here[side] > 0 else "suppressed"]
        assert row.standing == pytest.approx(abs(here[side]), rel=1e-4)
    keys = csv(client, address("/find", words="the, is", side="key", format="csv"))
    assert {why.split()[0] for why in keys["why"]} == {"key"}
    page = client.get(address("/find", words="the, is")).text
    name = f"{best[0]}.{best[1]}"
    tokens = fm.project(tiny, name, side=best[2], k=1).to_frame().set_index("sign")["token"]
    first = page.split(f'<a href="/memory/{name}">{name}</a></th>')[1].split("</tr>")[0]
    assert html.escape(tokens["promoted" if stands[best] > 0 else "suppressed"].strip()) in first
    one = csv(client, address("/find", words="the", layer=1, sort="memory", format="csv"))
    assert one["neuron"].tolist() == list(range(tiny.ffn[1].d_mlp))
    fired = csv(client, address("/find", text=TEXT, sort="coefficient", format="csv")).iloc[0]
    capture = fm.capture(tiny, TEXT)
    m = capture.coefficients[int(fired["layer"])][0, :, int(fired["neuron"])]
    assert float(m[int(fired["position"])]) == pytest.approx(fired["coefficient"])
    assert capture.token_strings()[int(fired["position"])] == fired["token"]
    up = csv(client, address("/find", words="the", sort="standing", order="up", format="csv"))
    assert up["standing"].is_monotonic_increasing


def test_roles_and_verdicts_filter(client: TestClient, tiny: fm.Model) -> None:
    table = fm.roles(tiny).neurons
    for role in ("prediction", "partition"):
        page = client.get(address("/find", role=role, format="csv"))
        expected = int(table[f"is_{role}"].sum())
        assert len(page.text.splitlines()) - 1 == expected


HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31m{{7*7}}"


@pytest.mark.parametrize("where", ["/prompt", "/find", "/memory", "/circuit", "/fact", "/contrast"])
def test_what_a_user_types_is_never_markup(client: TestClient, where: str) -> None:
    names = ("text", "target", "foil", "words", "neuron", "by", "v", "at", "layer", "role", "sort", "part", "side")
    names = (*names, "other", "subject", "find", "free", "firings", "editor")
    for name in names:
        pairs = [("text", HOSTILE if name == "text" else TEXT), *([(name, HOSTILE)] if name != "text" else [])]
        page = client.get(address(where, *pairs)).text
        assert "<script>alert" not in page
        assert "<img" not in page.replace('<img src="data:image/svg+xml;base64,', "")
        shown = re.sub(r'<textarea.*?</textarea>|<input[^>]* value="[^"]*"', "", page, flags=re.DOTALL)
        assert "\u202e" not in shown, "but in fields, which hold what was typed"
        assert "\x1b" not in shown
    page = client.get(address("/prompt", text="{{7*7}}")).text
    assert re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL) == ["{{7*7}}"]


def test_a_target_of_several_tokens(client: TestClient) -> None:
    """Only its first token was explained."""
    for path in ("/prompt", "/circuit"):
        page = client.get(address(path, text=TEXT, target=" Paris Rome")).text
        assert "·Paris·Rome" in re.sub(r"<[^>]+>", "", html.unescape(page)), path


def test_the_start_leads_to_every_view(client: TestClient) -> None:
    page = client.get("/").text
    assert {"/prompt", "/memory", "/find", "/circuit", "/fact"} <= set(links(page))
    assert (
        client.get("/memory/0.0?format=json").json()["neuron"]
        == client.get("/memory?neuron=L0N0&format=json").json()["neuron"]
        == 0
    )


def test_verdicts_are_those_that_the_store_keeps(tiny: fm.Model, tiny_store: Store, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_store.folder, tmp_path / "store")
    store = fm.open_store(copy, model=tiny)
    kept = fm.polysemanticity(store, tiny, draws=20).neurons
    with asking(Explorer(tiny, store)) as client:
        found = csv(client, address("/find", verdict="any", sort="memory", format="csv"))
        assert found["verdict"].tolist() == kept.sort_values(["layer", "neuron"])["verdict"].tolist()
        verdict = kept["verdict"].iloc[0]
        some = csv(client, address("/find", verdict=verdict, format="csv"))
        assert len(some) == int((kept["verdict"] == verdict).sum())
        assert f"is <b>{verdict}</b>" in client.get("/memory/0.0").text


def test_a_memory_that_fires_negatively_promotes_what_its_value_suppresses(tmp_path: Path) -> None:
    model = made("llama")
    store = scanned(model, tmp_path / "store")
    stats = store.stats()
    row = stats[-stats["min"] > stats["max"]].iloc[0]
    place = int(row["layer"]), int(row["neuron"])
    with asking(Explorer(model, store)) as client:
        page = Page(client.get(f"/memory/{place[0]}.{place[1]}").text).words
    token = visible(store.neuron(*place).tokens("suppressed")[0])
    assert f"Where it fires most, with negative coefficients, it promotes {token}" in page


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("/fact", {"text": PROMPT, "subject": "Eiffel Tower", "target": "Rome", "editor": "ft_l", "edit": 1}),
        ("/fact", {"text": PROMPT, "subject": "Eiffel Tower", "target": "Rome", "trace": 1}),
        ("/circuit", {"text": PROMPT, "share": 0.5}),
        ("/prompt", {"text": PROMPT, "v": "0.1:0,1.2:3", "by": "causal"}),
        ("/memory", {"neuron": "1.3", "part": "wires"}),
    ],
)
def test_work_that_is_given_up_leaves_the_model_as_it_was(tiny: fm.Model, where: str, asked: dict[str, Any]) -> None:
    """Wherever it is when nobody waits for it any more."""
    page = next(one for one in PAGES if one.path == where)
    query = page.query.read({name: [str(value)] for name, value in asked.items()})
    values = [ffn.values.detach().clone() for ffn in tiny.ffn]
    said = fm.capture(tiny, PROMPT).logits_at(0, -1)
    calls = 0

    def given_up(_phase: str, _done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise Abandoned

    for last in (1, 2, 3, 5, 8, 1000):
        calls = 0
        with nullcontext() if last == 1000 else suppress(Abandoned):
            page.make(Explorer(tiny), query, given_up)
        assert not tiny.interventions
        assert not len(tiny.edits)
        assert all(torch.equal(ffn.values, before) for ffn, before in zip(tiny.ffn, values, strict=True))
        assert torch.equal(fm.capture(tiny, PROMPT).logits_at(0, -1), said)
    assert calls, "it says how far it is, or it could not be given up"


@pytest.mark.parametrize("by", ["paths", "direct"])
def test_the_sentence_counts_what_the_table_lists(client: TestClient, tiny: fm.Model, by: str) -> None:
    page = client.get(address("/prompt", text=TEXT, by=by, top=7)).text
    told = page[page.index('<p class="sentence">') :].partition("</p>")[0]
    captured = fm.capture(tiny, TEXT)
    found = fm.attribute_paths(captured) if by == "paths" else fm.attribute(captured)
    listed = [float(one) for one in re.findall(r'<data class="fm-number[^"]*" value="([^"]*)"', told)]
    whole = float(found.map.sum()) if isinstance(found, fm.prompts.PathAttribution) else found.neurons["logit"].sum()
    assert listed == pytest.approx([whole, found.top(7)["logit"].sum()], rel=1e-4)
    assert ("directly" in sentence(page)) == (by == "direct")
    assert ("along all paths" in sentence(page)) == (by == "paths")


def test_a_memory_of_an_expert_is_named_within_it(tokenizer: Any, tmp_path: Path) -> None:
    """Its rate would be read as of all tokens, and its name would not say which expert it is of."""
    model = fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer)
    store = fm.scan(model, [PROMPT] * 4, tmp_path / "store", k=2, sample=2, draws=2, frequent=2)
    with asking(Explorer(model, store)) as client:
        page = client.get("/memory/1.e2.3").text
        assert "in its expert it is neuron 1.e2.3" in sentence(page)
        assert "of the tokens routed to its expert" in sentence(page) or "never fires" in sentence(page)
        assert sentence(client.get("/memory/1.35").text) == sentence(page)
        assert "5.e3.97" in client.get("/memory").text
