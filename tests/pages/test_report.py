"""The report of a prompt: its tables are the results', and nothing of a prompt is markup."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.pages.prompts import answer, carried

from .page import Page

PROMPT = "The Eiffel Tower is located in the city of"
SECTIONS = ["Predictions", "Where memories wrote", "Firings", "Neurons", "Ledger", "Where these numbers come from"]


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, PROMPT)


@pytest.fixture(scope="module")
def attribution(capture: fm.prompts.Capture) -> fm.prompts.Attribution:
    return fm.attribute(capture)


@pytest.fixture(scope="module")
def paths(capture: fm.prompts.Capture, attribution: fm.prompts.Attribution) -> fm.prompts.PathAttribution:
    return fm.attribute_paths(capture, attribution.target_ids[0])


@pytest.fixture(scope="module")
def html(capture: fm.prompts.Capture, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert fm.pages.page(fm.report(capture), out, top=12) == out
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_it_says_what_was_asked(
    page: Page, capture: fm.prompts.Capture, attribution: fm.prompts.Attribution, paths: fm.prompts.PathAttribution
) -> None:
    title, *sections = page.headings
    assert title.split()[-1] == "·" + attribution.target.strip()
    assert sections == SECTIONS
    assert " ".join(token.replace(" ", "·") for token in capture.token_strings()) in page.words
    words = page.words.replace("−", "-")
    assert attribution.verdict in words
    assert paths.verdict in words
    [(_, *predictions)] = page.below(SECTIONS[0])
    expected = capture.predictions(k=5)
    assert [cells[2].text for cells in predictions][:1] == ["target"]
    assert [cells[3].values[0] for cells in predictions] == pytest.approx(expected["logit"].tolist())
    for value in (attribution.provenance.fingerprint, "float32", "folded", attribution.provenance.version):
        assert value in page.words


def test_its_tables_are_the_results(
    page: Page, atlas: fm.Model, attribution: fm.prompts.Attribution, paths: fm.prompts.PathAttribution
) -> None:
    (_, *memories), (_, *firings) = page.below(SECTIONS[3])[0], page.below(SECTIONS[2])[0]
    for rows, frame, at in ((memories, attribution.top(12), 1), (firings, paths.top(12), 3)):
        assert [cells[0].text for cells in rows] == [f"{row.layer}.{row.neuron}" for row in frame.itertuples()]
        for name, column in (("coefficient", at), ("logit", at + 1), ("share", at + 3)):  # bars stand in between
            assert [cells[column].values for cells in rows] == [[value] for value in frame[name]]
    for cells, row in zip(memories, attribution.top(12).itertuples(), strict=True):
        tokens = fm.project(atlas, row.layer, row.neuron, k=8, side="value").to_frame()
        ends = [tokens[tokens["sign"] == sign]["token"].tolist() for sign in ("promoted", "suppressed")]
        shown = ends if row.coefficient >= 0 else ends[::-1]
        assert [cell.chips for cell in cells[5:7]] == [[text.replace(" ", "·") for text in some] for some in shown]
    *_, last = page.below(SECTIONS[4])[0]
    assert last[-1].values[0] == pytest.approx(attribution.logit, abs=1e-4)


def test_map_tells_every_value(page: Page, paths: fm.prompts.PathAttribution) -> None:
    found = [attrs["title"] for tag, attrs in page.tags if tag == "td" and "title" in attrs]
    expected = paths.map.flip(0).flatten().tolist()
    values = [float(title.rpartition(": ")[2].removesuffix(" logits").replace("−", "-")) for title in found]
    assert values == pytest.approx(expected, abs=6e-3)
    assert found[0].startswith(f"layer {len(paths.map) - 1}, ")


def test_what_is_carried_adds_up(paths: fm.prompts.PathAttribution, atlas: fm.Model) -> None:
    found = carried(paths)
    assert found.memories + found.rest == pytest.approx(paths.logit, abs=1e-4)
    assert found.there == pytest.approx(float(paths.map.sum(0)[:-1].max()))
    alone = fm.attribute_paths(fm.capture(atlas, "The", prepend_bos=False))
    assert carried(alone).place is None


@pytest.mark.parametrize("logit", [-3.0, 0.0, 1e-3])
def test_no_percentage_of_a_logit_that_is_not_clearly_positive(
    attribution: fm.prompts.Attribution, logit: float
) -> None:
    assert not answer(replace(attribution, logits=attribution.logits * 0 + logit), 20).in_percent


def test_a_foil_turns_the_question_into_a_difference(capture: fm.prompts.Capture, tmp_path: Path) -> None:
    best, worse = (int(i) for i in capture.predictions(k=50)["token_id"].iloc[[0, 49]])
    for target, foil in ((best, worse), (worse, best)):
        expected = fm.attribute(capture, target, foil)
        page = Page(fm.pages.page(fm.report(capture, target, foil), tmp_path / "report.html", top=3).read_text())
        assert "rather than" in page.headings[0]
        assert f"{expected.logit:.3f}, the target’s minus the foil’s" in page.words.replace("'", "’").replace("−", "-")
        assert page.below(SECTIONS[3])[0][1][2].values == [expected.top(1)["logit"].iloc[0]]
        assert "50" in [cells[0].text for cells in page.below(SECTIONS[0])[0]]


def test_other_prompts(atlas: fm.Model, tmp_path: Path) -> None:
    """Of one token, of an earlier position (what comes later cannot reach it), and of a whole context."""
    out = tmp_path / "report.html"
    page = Page(fm.pages.page(fm.report(fm.capture(atlas, "The", prepend_bos=False)), out).read_text())
    assert page.headings[1:] == SECTIONS
    assert "prepend_bos no" in page.words
    for prompt, position, columns in (
        (PROMPT, -3, len(atlas.tokenize(PROMPT)) - 2),
        ([5 + i % 200 for i in range(atlas.n_ctx)], -1, atlas.n_ctx),
    ):
        page = Page(fm.pages.page(fm.report(fm.capture(atlas, prompt), position=position), out, top=1).read_text())
        assert len(page.below(SECTIONS[1])[0][0]) == columns + 1


def test_a_negative_coefficient_is_pointed_out(attribution: fm.prompts.Attribution) -> None:
    for sign, said in ((1, False), (-1, True)):
        turned = replace(attribution, coefficients=sign * attribution.coefficients.abs())
        words = Page(turned._repr_html_()).words
        assert ("a negative coefficient promotes what the value suppresses" in words) == said


REFUSED = [
    ({"prompt": [PROMPT, PROMPT]}, InputError, "2 prompts"),
    ({"position": 99}, OutOfRangeError, "position 99"),
]


@pytest.mark.parametrize(("given", "error", "says"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_cannot_be_reported(atlas: fm.Model, given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        fm.report(fm.capture(atlas, given.pop("prompt", PROMPT)), **given)
