import re
from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, OutOfRangeError
from ffnmem.pages.prompts import report_html

from .page import Page, unscripted

PROMPT = "The Eiffel Tower is located in the city of"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
SECTIONS = [
    "The answer",
    "What the model predicts",
    "Where memories wrote it",
    "The memories that wrote it directly",
    "Everything that adds up to the logit",
    "Where these numbers come from",
]


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, PROMPT)


@pytest.fixture(scope="module")
def attribution(capture: fm.prompts.Capture) -> fm.prompts.Attribution:
    return fm.attribute(capture)


@pytest.fixture(scope="module")
def html(atlas: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert fm.report(atlas, PROMPT, out=out, top=12, tokens=4) == out
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_sections_in_order(page: Page, attribution: fm.prompts.Attribution) -> None:
    title, *sections = page.headings
    assert title.split()[-1] == "·" + attribution.target.strip()
    assert sections == SECTIONS


def test_the_sentence_tells_the_answer(
    page: Page, capture: fm.prompts.Capture, attribution: fm.prompts.Attribution
) -> None:
    ffn = attribution.components.query("component == 'ffn'")["logit"].sum()
    top = attribution.top(12)["logit"].sum()
    best = capture.predictions(k=1).iloc[0]
    assert f"has logit {attribution.logit:.2f}, probability {best['probability']:.1%}; FFN memories wrote" in page.words
    assert f"{100 * ffn / attribution.logit:.0f}% of it directly (+{ffn:.2f})" in page.words.replace("−", "-")
    assert f"the 12 largest of {len(attribution.neurons):,} neurons {100 * top / attribution.logit:.0f}%" in page.words


def test_memories_are_the_attributions(page: Page, attribution: fm.prompts.Attribution) -> None:
    _, *rows = page.tables["memories"]
    assert len(rows) == 12
    for cells, expected in zip(rows, attribution.top(12).itertuples(), strict=True):
        assert cells[0].text == f"{expected.layer}.{expected.neuron}"
        assert cells[1].values == [expected.coefficient]
        assert cells[2].values == [expected.logit]
        assert cells[2].text.startswith("+" if expected.logit > 0 else "−")
        assert cells[4].values == [expected.share]
        assert len(cells[5].chips) == len(cells[6].chips) == 4


def test_memories_tokens_are_projects(page: Page, atlas: fm.Model, attribution: fm.prompts.Attribution) -> None:
    first = attribution.top(1).iloc[0]
    tokens = fm.project(atlas, int(first["layer"]), int(first["neuron"]), k=4, side="value")
    promoted = tokens[tokens["sign"] == "promoted"]["token"]
    assert page.tables["memories"][1][5].chips == [token.replace(" ", "·") for token in promoted]


def test_ledger_ends_in_sum_logit_and_error(page: Page, attribution: fm.prompts.Attribution) -> None:
    _, *rows, total, logit, error = page.tables["ledger"]
    parts = attribution.components
    assert [row[1].text for row in rows] == parts["component"].tolist()
    assert [row[2].values[0] for row in rows] == parts["logit"].tolist()
    assert [row[4].values[0] for row in rows] == pytest.approx(parts["logit"].cumsum().tolist())
    assert [row[1].text for row in (total, logit, error)] == ["sum", "model’s logit", "error"]
    assert total[2].values[0] == pytest.approx(parts["logit"].sum())
    assert logit[2].values == [attribution.logit]
    assert error[2].values == [attribution.error]


def test_predictions_are_the_captures(page: Page, capture: fm.prompts.Capture) -> None:
    _, *rows = page.tables["predictions"]
    expected = capture.predictions(k=10)
    assert [row[1].chips[0] for row in rows] == [token.replace(" ", "·") for token in expected["token"]]
    assert [row[3].values[0] for row in rows] == pytest.approx(expected["probability"].tolist())
    assert [row[4].values[0] for row in rows] == pytest.approx(expected["logit"].tolist())


def test_map_tells_every_value(page: Page, capture: fm.prompts.Capture, attribution: fm.prompts.Attribution) -> None:
    paths = fm.attribute_paths(capture, attribution.target_ids[0])
    expected = paths.map
    found = {}
    for title in page.titles:
        match = re.fullmatch(r"layer (\d+), position (\d+) .*: ([+−]?[\d.]+)", title)
        if match:
            found[int(match[1]), int(match[2])] = float(match[3].replace("−", "-"))
    assert len(found) == expected.numel()
    assert all(value == pytest.approx(float(expected[place]), abs=6e-4) for place, value in found.items())
    before = expected.sum(0)[:-1]
    token = capture.token_strings()[int(before.argmax())].replace(" ", "·")
    assert f"those at {token} add most, +{float(before.max()):.2f}" in page.words


def test_firings_are_the_paths(page: Page, capture: fm.prompts.Capture, attribution: fm.prompts.Attribution) -> None:
    _, *rows = page.tables["firings"]
    expected = fm.attribute_paths(capture, attribution.target_ids[0]).top(10)
    assert len(rows) == 10
    for cells, row in zip(rows, expected.itertuples(), strict=True):
        assert cells[0].text == f"{row.layer}.{row.neuron}"
        assert cells[1].text.split() == [row.token.replace(" ", "·"), str(row.position)]
        assert cells[2].values == [row.coefficient]
        assert cells[3].values == [row.logit]
        assert cells[5].values == [row.share]


def test_provenance_is_whole(page: Page, attribution: fm.prompts.Attribution) -> None:
    for value in (attribution.provenance.fingerprint, "float32", "folded", attribution.provenance.version):
        assert value in page.words


def test_the_prompt_shows_its_beginning_and_its_spaces(page: Page, capture: fm.prompts.Capture) -> None:
    shown = " ".join(token.replace(" ", "·") for token in capture.token_strings())
    assert shown in page.words


def test_needs_nothing_from_outside(html: str, page: Page) -> None:
    html = unscripted(html)
    assert "//" not in html
    assert "@import" not in html
    assert "url(" not in html
    loaders = {"script", "link", "img", "iframe", "object", "embed", "video", "audio", "source", "base", "form", "use"}
    assert not loaders & {tag for tag, _ in Page(html).tags}
    for tag, attributes in page.tags:
        assert not {"src", "href", "xlink:href", "action", "data"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag


def test_is_accessible(page: Page) -> None:
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
    assert ("html", {"lang": "en"}) in page.tags


def test_a_hostile_prompt_stays_text(atlas: fm.Model, tmp_path: Path) -> None:
    html = unscripted(fm.report(atlas, HOSTILE, out=tmp_path / "report.html").read_text())
    assert "<script" not in html
    assert "<img" not in html
    assert {tag for tag, _ in Page(html).tags}.isdisjoint({"script", "img"})


def test_hostile_tokens_and_names_stay_text(
    capture: fm.prompts.Capture, attribution: fm.prompts.Attribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fm.Model, "token_strings", lambda self, ids: [HOSTILE for _ in ids])
    html = report_html(
        capture,
        replace(
            attribution,
            tokens=(HOSTILE,) * len(attribution.tokens),
            target_tokens=(HOSTILE,),
            foil=HOSTILE,
            foil_id=5,
            provenance=replace(attribution.provenance, model=HOSTILE),
        ),
        paths=fm.attribute_paths(capture, attribution.target_ids[0]),
        top=3,
        tokens=2,
    )
    html = unscripted(html)
    page = Page(html)
    assert "<script" not in html
    assert "<img" not in html
    assert page.text.count("<script>alert(1)</script>") > 20
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes or "src" in attributes]


def test_a_foil_turns_the_question_into_a_difference(
    atlas: fm.Model, capture: fm.prompts.Capture, tmp_path: Path
) -> None:
    best, worse = (int(i) for i in capture.predictions(k=50)["token_id"].iloc[[0, 49]])
    for target, foil, verb in ((best, worse, "leads"), (worse, best, "trails")):
        expected = fm.attribute(capture, target, foil)
        page = Page(fm.report(atlas, PROMPT, target=target, foil=foil, out=tmp_path / "report.html", top=3).read_text())
        assert f"{verb} {expected.foil.replace(' ', '·')} by {abs(expected.logit):.2f} logits" in page.words
        assert page.tables["memories"][1][2].values == [expected.top(1)["logit"].iloc[0]]
        assert page.tables["ledger"][-2][2].values == [expected.logit]
        assert page.tables["predictions"][-1][0].text == "50"
        assert "rather than" in page.headings[0]


def test_a_prompt_of_one_token(atlas: fm.Model, tmp_path: Path) -> None:
    page = Page(fm.report(atlas, "The", prepend_bos=False, out=tmp_path / "report.html").read_text())
    assert page.headings[1:] == SECTIONS
    assert "<|endoftext|> The" not in page.words
    assert "prepend_bos no" in page.words


def test_an_earlier_position_is_marked(atlas: fm.Model, tmp_path: Path) -> None:
    page = Page(fm.report(atlas, PROMPT, position=-3, out=tmp_path / "report.html").read_text())
    columns = [attributes for _, attributes in page.tags if attributes.get("class") == "fm-column"]
    assert len(columns) == len(atlas.tokenize(PROMPT)) - 2  # what comes later cannot reach it
    assert len([1 for tag, attributes in page.tags if attributes.get("class") == "unseen"]) == 2
    with pytest.raises(OutOfRangeError, match="position 99"):
        fm.report(atlas, PROMPT, position=99, out=tmp_path / "report.html")


def test_a_negative_coefficient_is_pointed_out(
    capture: fm.prompts.Capture, attribution: fm.prompts.Attribution
) -> None:
    plain = replace(attribution, coefficients=attribution.coefficients.abs())
    turned = replace(attribution, coefficients=-attribution.coefficients.abs())
    paths = fm.attribute_paths(capture)
    assert "turned round" not in Page(report_html(capture, plain, paths, top=3, tokens=1)).words
    assert Page(report_html(capture, turned, paths, top=3, tokens=1)).words.count("turned round") == 3


def test_a_context_full_of_tokens(atlas: fm.Model, tmp_path: Path) -> None:
    ids = [5 + i % 200 for i in range(atlas.n_ctx)]
    page = Page(fm.report(atlas, ids, out=tmp_path / "report.html", top=1).read_text())
    columns = [attributes for _, attributes in page.tags if attributes.get("class") == "fm-column"]
    assert len(columns) == atlas.n_ctx


def test_a_failed_report_leaves_an_older_one(atlas: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    out.write_text("older")
    with pytest.raises(InputError):
        fm.report(atlas, PROMPT, target="", out=out)

    def fail(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="Permission denied"):
        fm.report(atlas, PROMPT, out=out)
    assert out.read_text() == "older"
    assert list(tmp_path.iterdir()) == [out]


def test_what_cannot_be_reported(atlas: fm.Model, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(FileError, match="there is no folder"):
        fm.report(atlas, PROMPT, out=tmp_path / "missing" / "report.html")
    with pytest.raises(FileError, match="is a folder"):
        fm.report(atlas, PROMPT, out=tmp_path)
    with pytest.raises(InputError, match="one prompt, not 2"):
        fm.report(atlas, [PROMPT, PROMPT], out=out)
    with pytest.raises(InputError, match="top must be at least 1"):
        fm.report(atlas, PROMPT, out=out, top=0)
    with pytest.raises(InputError, match="tokens must be at least 1"):
        fm.report(atlas, PROMPT, out=out, tokens=0)
    assert not out.exists()
