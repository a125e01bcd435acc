"""The fact's view: the library's trace and edit, in the model for the request alone, and told as they are."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import torch
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.evaluation.effects import Effects, prompts_of
from ffnmem.explorer.fact_view import count_kept
from ffnmem.explorer.queries import address
from ffnmem.explorer.views import Explorer

from ..helpers import PROMPT
from .conftest import asking, opened, sentence, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FACT = fm.Fact(
    subject="Eiffel Tower",
    relation="landmark.city",
    prompt="The {} is in the city of",
    target_true="Paris",
    target_new="Rome",
    paraphrases=("In the city of {} is",),
    neighbours=("Paris",),
    id="eiffel",
)
OTHER = fm.Fact(subject="<b>Rome</b>", relation="x", prompt="{} is in", target_true="Paris", target_new="London")
ABOUT = {"text": PROMPT, "subject": "Eiffel Tower", "target": "Rome"}


@pytest.fixture(scope="module")
def client(tiny: fm.Model) -> Iterator[TestClient]:
    with asking(Explorer(tiny, facts=[FACT, OTHER], source="two facts")) as found:
        yield found


@pytest.fixture(scope="module")
def edit(tiny: fm.Model) -> fm.Edit:
    found = fm.editing.ft_l(tiny, FACT, " Rome")
    assert isinstance(found, fm.Edit)
    return found


def test_a_fact_is_chosen_from_the_list(client: TestClient) -> None:
    page = client.get("/fact").text
    assert "2 facts of two facts" in page
    assert " is shown. A rewrite" in page
    assert "&lt;b&gt;Rome&lt;/b&gt; is in" in page
    found = client.get(address("/fact", find="EIFFEL city")).text
    assert "1 fact of 2 has these words" in found
    (where,) = re.findall(r'href="(/fact\?text=[^"]+)"', found)
    chosen = client.get(where.replace("&amp;", "&"))
    assert chosen.status_code == 200
    assert 'value="Eiffel Tower"' in chosen.text
    assert "The model says" in sentence(chosen.text)


def test_the_trace_is_the_librarys(client: TestClient, tiny: fm.Model) -> None:
    answer = fm.capture(tiny, PROMPT).predictions(-1, 1)["token"].iloc[0]
    asked = {**ABOUT, "true": answer.strip() or "Paris"}
    trace = fm.trace_fact(tiny, PROMPT, "Eiffel Tower")
    page = client.get(address("/fact", trace=1, **asked))
    assert page.status_code == 200
    if trace.answer != f" {answer.strip()}":  # the tiny model says no word: it is said why there is no map
        assert "it does not know this" in page.text
    refused = client.get(address("/fact", trace=1, **ABOUT)).text
    assert "Not traced: " in refused
    assert "it does not know this" in refused


def test_a_fact_that_the_model_knows(atlas: fm.Model) -> None:
    text, subject = "The Eiffel Tower is located in the city of", "Eiffel Tower"
    with asking(Explorer(atlas)) as client:
        asked = {"text": text, "subject": subject, "true": "Paris", "trace": 1}
        found = client.get(address("/fact", format="csv", **asked))
        cells = pd.read_csv(io.BytesIO(found.content), keep_default_na=False)
        page = client.get(address("/fact", **asked)).text
        assert client.get(address("/fact", format="png", **asked)).content.startswith(b"\x89PNG")
        swap = {**asked, "trace": "", "target": "Rome", "edit": 1, "editor": "rome"}
        reached = client.get(address("/fact", **swap)).text
        says = pd.read_csv(io.BytesIO(client.get(address("/fact", format="csv", **swap)).content))["answer_after"]
    expected = fm.trace_fact(atlas, text, subject).to_frame()
    assert cells["indirect"].tolist() == pytest.approx(expected["indirect"].tolist())
    assert page.count("indirect effect") >= 3  # a map a kind
    assert "as the fact has it" in sentence(page)
    assert sentence(reached).startswith("Reached: with the edit ")
    assert says[0] == " Rome"


def test_wordings_that_did_not_say_the_old_target_do_not_count(tiny: fm.Model, edit: fm.Edit) -> None:
    said = [(" Paris", " Rome"), (" Paris", " Paris"), (" London", " Rome")]
    prompts = pd.DataFrame(said, columns=["answer_before", "answer_after"]).assign(kind="paraphrase")
    (words,) = count_kept(Explorer(tiny), edit, prompts)
    assert words == "1 of 2 other wordings that said the old target (1 did not) says the new one"


def test_an_edit_is_the_librarys(client: TestClient, tiny: fm.Model, edit: fm.Edit) -> None:
    found = client.get(address("/fact", edit=1, format="csv", **ABOUT))
    prompts = pd.read_csv(io.BytesIO(found.content), keep_default_na=False)
    expected = Effects(edit, tiny).on(prompts_of(FACT, "Rome"))
    assert prompts["kind"].tolist() == ["prompt", "paraphrase", "neighbour"]
    for name in ("target_before", "target_after", "true_after"):
        assert prompts[name].tolist() == pytest.approx(expected[name].tolist(), rel=1e-4)
    page = client.get(address("/fact", edit=1, **ABOUT)).text
    assert f"edit {edit.digest}" in page
    assert "ft_l" in page  # without a second moment, the editor that needs none
    assert "0 of 0 other wordings that said the old target (1 did not) say the new one" in page
    assert "about neighbours keep" in page


def test_a_saved_edit_is_that_edit(client: TestClient, edit: fm.Edit, tmp_path: Path) -> None:
    found = client.get(address("/fact", edit=1, format="zip", **ABOUT))
    assert "edit.zip" in found.headers["content-disposition"]
    file = tmp_path / "edit.zip"
    file.write_bytes(found.content)
    assert fm.Edit.load(file).digest == edit.digest
    for form in ("html", "json"):
        assert client.get(address("/fact", edit=1, format=form, **ABOUT)).status_code == 200


def test_no_tab_sees_anothers_edit(client: TestClient, tiny: fm.Model) -> None:
    """Edits and readings at once: what is read is always the model as it is, and so it stays, bit for bit."""
    before = {name: value.clone() for name, value in tiny.hf_model.state_dict().items()}
    fingerprint = tiny.fingerprint
    reading = address("/prompt", text=PROMPT, format="csv")
    expected = client.get(reading).content
    edits = [address("/fact", edit=1, layer=layer, editor="ft_l", **{**ABOUT, "target": target})
             for layer in (0, 1) for target in ("London", "France")]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(client.get, [one for pair in zip(edits, [reading] * 4, strict=True) for one in pair]))
    assert [one.status_code for one in found] == [200] * 8
    assert all(one.content == expected for one in found[1::2])
    assert tiny.fingerprint == fingerprint
    assert not len(tiny.edits)
    assert all(torch.equal(value, before[name]) for name, value in tiny.hf_model.state_dict().items())


def test_a_journey_in_a_browser(browser: Browser, tiny: fm.Model) -> None:
    """From the list to a fact, its rewrite, a reload, another tab that knows nothing of it, and back."""
    with served(Explorer(tiny, facts=[FACT, OTHER])) as base:
        page = opened(browser, base)
        page.get_by_role("link", name="Fact", exact=True).click()
        page.get_by_role("link", name=FACT.text).click()
        page.wait_for_selector(".predictions")
        before = page.locator(".sentence").inner_text()
        page.get_by_role("button", name="Rewrite it").click()
        page.wait_for_selector(".kept")
        after = page.locator(".sentence").first.inner_text()
        assert "eached: with the edit" in after
        other = page.context.new_page()
        other.goto(base + address("/fact", text=PROMPT, subject="Eiffel Tower"))
        assert other.locator(".sentence").inner_text() == before
        page.reload()
        assert page.locator(".sentence").first.inner_text() == after
        with page.expect_download() as download:
            page.get_by_role("link", name="Save the edit").click()
        assert download.value.suggested_filename == "edit.zip"
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="Undo").click()
        page.wait_for_selector(".predictions")
        assert page.locator(".sentence").inner_text() == before
        assert page.complaints == []
        page.context.close()
