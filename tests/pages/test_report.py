"""The report of a prompt: its tables are the results', and nothing of a prompt is markup."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError

from .page import Page

PROMPT = "The Eiffel Tower is located in the city of"
SECTIONS = ["Text", "Layers and positions", "Predictions", "Firings", "Neurons", "Ledger"]


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, PROMPT)


@pytest.fixture(scope="module")
def found(capture: fm.prompts.Capture) -> fm.prompts.PromptReport:
    return fm.report(capture)


@pytest.fixture(scope="module")
def page(found: fm.prompts.PromptReport, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("report") / "report.html"
    return Page(fm.pages.page(found, out, top=12).read_text("utf-8"))


def test_its_tables_are_the_results(page: Page, capture: fm.prompts.Capture) -> None:
    attribution, paths = fm.attribute(capture), fm.attribute_paths(capture)
    assert page.headings[1:] == [*SECTIONS, "Where these numbers come from"]
    [(_, *predictions)] = page.below("Predictions")
    assert [cells[3].values[0] for cells in predictions] == pytest.approx(capture.predictions(k=5)["logit"].tolist())
    (_, *memories), (_, *firings) = page.below("Neurons")[0], page.below("Firings")[0]
    for rows, frame, at in ((memories, attribution.top(12), 1), (firings, paths.top(12), 3)):
        assert [cells[0].text for cells in rows] == [f"{row.layer}.{row.neuron}" for row in frame.itertuples()]
        for name, column in (("coefficient", at), ("logit", at + 1), ("share", at + 3)):  # bars stand in between
            assert [cells[column].values for cells in rows] == [[value] for value in frame[name]]
    for cells, row in zip(memories, attribution.top(12).itertuples(), strict=True):
        tokens = fm.project(capture.model, row.layer, row.neuron, k=8, side="value").to_frame()
        ends = [tokens[tokens["sign"] == sign]["token"].tolist() for sign in ("promoted", "suppressed")]
        shown = ends if row.coefficient >= 0 else ends[::-1]
        assert [cell.chips for cell in cells[5:7]] == [[text.replace(" ", "·") for text in some] for some in shown]
    *_, last = page.below("Ledger")[0]
    assert last[-1].values[0] == pytest.approx(attribution.logit, abs=1e-4)
    titles = [attrs["title"] for tag, attrs in page.tags if tag == "td" and "title" in attrs]
    values = [float(title.rpartition(": ")[2].removesuffix(" logits").replace("−", "-")) for title in titles]
    assert values == pytest.approx(paths.map.flip(0).flatten().tolist(), abs=6e-3)


def test_what_is_expected_after_each_token(page: Page, capture: fm.prompts.Capture) -> None:
    (_, *rows) = page.below("Text")[0]
    for position, cells in enumerate(rows):
        expected = [token.replace(" ", "·") for token in capture.predictions(position, 3)["token"]]
        assert cells[1].chips == expected
    assert [cells[0].chips[0] for cells in rows] == [one.replace(" ", "·") for one in capture.token_strings()]


@pytest.mark.parametrize("by", ["paths", "causal"])
def test_firings_of_a_cell_of_the_map(capture: fm.prompts.Capture, by: str) -> None:
    whole, cell = fm.report(capture, by=by), fm.report(capture, by=by, layer=4, at=3)  # type: ignore[arg-type]
    firings = cell.firings(5)
    assert set(zip(firings["layer"], firings["position"], strict=True)) == {(4, 3)}
    own = whole.scores.scores[4, 3]
    assert firings[whole.scores.column].tolist() == own[own.abs().argsort(descending=True)[:5]].tolist()
    assert torch.equal(cell.scores.map, whole.scores.map)
    assert (cell.count_firings, whole.count_firings) == (len(cell.firings(None)), whole.scores.scores.numel())
    assert "neurons at all positions" in "".join(one.text for one in whole.verdict) or by == "causal"


def test_no_percentage_of_a_logit_that_is_not_clearly_positive(found: fm.prompts.PromptReport) -> None:
    for logit, percent in ((None, True), (-3.0, False), (0.0, False), (1e-3, False)):
        own = found.attribution
        one = own if logit is None else replace(own, logits=own.logits * 0 + logit)
        assert ("%" in replace(found, attribution=one).share(5.0)) == percent


def test_a_foil_turns_the_question_into_a_difference(capture: fm.prompts.Capture) -> None:
    best, worse = (int(i) for i in capture.predictions(k=50)["token_id"].iloc[[0, 49]])
    for target, foil, way in ((best, worse, "leads"), (worse, best, "trails")):
        found = fm.report(capture, target, foil)
        assert f" {way} " in [one.text for one in found.verdict]
        assert found.logit == fm.attribute(capture, target, foil).logit
        assert 50 in found.predictions["rank"].tolist()  # type: ignore[index]


def test_a_negative_coefficient_is_pointed_out(found: fm.prompts.PromptReport) -> None:
    for sign, said in ((1, False), (-1, True)):
        turned = replace(found.attribution, coefficients=sign * found.attribution.coefficients.abs())
        words = Page(turned._repr_html_()).words
        assert ("a negative coefficient promotes what the value suppresses" in words) == said


def test_what_cannot_be_reported(atlas: fm.Model, capture: fm.prompts.Capture, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 prompts"):
        fm.report(fm.capture(atlas, [PROMPT, PROMPT]))
    for asked in ({"position": 99}, {"at": 99}, {"layer": 9}):
        with pytest.raises(OutOfRangeError):
            fm.report(capture, **asked)  # type: ignore[arg-type]
