import re
from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.reports.display import NEURONS, POSITIONS, PROMPTS, TOKENS
from ffnmem.show.framing import ROOT

from .page import Page

PROMPT = "The Eiffel Tower is located in the city of"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def attribution(atlas: fm.Model) -> fm.Attribution:
    return fm.attribute(fm.capture(atlas, PROMPT))


def test_attribution_shows_its_numbers(attribution: fm.Attribution) -> None:
    page = Page(attribution._repr_html_())
    (neurons, components) = (rows for rows in split(page.tables["fm-table"]))
    rows = attribution.top(NEURONS)
    assert [row[0].text for row in neurons] == [f"{row.layer}.{row.neuron}" for row in rows.itertuples()]
    assert [row[2].values[0] for row in neurons] == rows["logit"].tolist()
    *steps, total = components
    assert [row[1].values[0] for row in steps] == attribution.components["logit"].tolist()
    assert total[1].values[0] == pytest.approx(attribution.components["logit"].sum())
    assert f"has logit {attribution.logit:.2f}; FFN memories wrote" in page.words
    assert "error" in page.words
    assert attribution.provenance.fingerprint in page.words


def split(rows: list) -> list[list]:
    """The rows of several tables of one class, at their heads, without these."""
    heads = [index for index, row in enumerate(rows) if row[0].text in ("memory", "component")]
    return [rows[start + 1 : end] for start, end in zip(heads, [*heads[1:], None], strict=True)]


def test_attribution_against_a_foil(atlas: fm.Model) -> None:
    capture = fm.capture(atlas, PROMPT)
    first, second = capture.predictions(k=2)["token_id"]
    assert "logits; FFN memories" in Page(fm.attribute(capture, first, second)._repr_html_()).words
    assert "trails" in Page(fm.attribute(capture, second, first)._repr_html_()).words
    assert "is level with" in Page(fm.attribute(capture, first, first)._repr_html_()).words


def test_attribution_of_many_positions_shows_the_first(atlas: fm.Model) -> None:
    attribution = fm.attribute(fm.capture(atlas, [5 + i for i in range(POSITIONS + 11)]), fm.NEXT)
    page = Page(attribution._repr_html_())
    _, *rows = page.tables["fm-table"]
    assert [int(row[0].text) for row in rows] == list(range(POSITIONS))
    assert [row[3].values[0] for row in rows] == attribution.logits[:POSITIONS].tolist()
    assert "… and 10 more positions" in page.words


def test_capture_shows_prompts_layers_shapes_and_provenance(atlas: fm.Model) -> None:
    capture = fm.capture(atlas, [PROMPT, "The\n"], layers=[1, 3], logits=True)
    page = Page(capture._repr_html_())
    assert "Capture of 2 prompts, layers 1, 3 of atlas" in page.words
    assert "BOS The" in page.words
    assert "↵" in page.words
    batch, pos = capture.tokens.shape
    assert f"pre, coefficients [{batch}, {pos}, {atlas.d_mlp}] per layer" in page.words
    assert f"logits [{batch}, {pos}, {atlas.d_vocab}]" in page.words
    assert capture.provenance.fingerprint in page.words


def test_large_captures_stay_small(atlas: fm.Model) -> None:
    many = Page(fm.capture(atlas, ["The"] * (PROMPTS + 3))._repr_html_())
    assert "… and 3 more prompts" in many.words
    long = Page(fm.capture(atlas, [5] * (TOKENS + 7))._repr_html_())
    assert "… and 7 more tokens" in long.words


def test_hostile_text_is_escaped(atlas: fm.Model, attribution: fm.Attribution) -> None:
    capture = fm.capture(atlas, HOSTILE)
    provenance = replace(capture.provenance, model=HOSTILE)
    poisoned = replace(attribution, target_tokens=(HOSTILE,), foil=HOSTILE, tokens=(HOSTILE,) * len(attribution.tokens))
    many = fm.attribute(capture, fm.NEXT)
    for html in (
        replace(capture, provenance=provenance)._repr_html_(),
        replace(poisoned, provenance=provenance)._repr_html_(),
        replace(many, tokens=(HOSTILE,) * len(many.tokens), foil=HOSTILE)._repr_html_(),
    ):
        assert "<script" not in html
        assert "script" in Page(html).words


def test_styles_stay_inside(attribution: fm.Attribution) -> None:
    html = attribution._repr_html_()
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{[^{}]*\}", style[1]) for part in rule.split(", ")]
    assert len(selectors) > 20
    assert all(selector.split()[0].startswith(ROOT) for selector in selectors)
    assert "//" not in html


@pytest.mark.parametrize("foil", [None, " Rome"])
def test_paths_show_their_firings(atlas: fm.Model, foil: str | None) -> None:
    paths = fm.attribute_paths(fm.capture(atlas, PROMPT), " Paris", foil)
    page = Page(paths._repr_html_())
    _, *rows = page.tables["fm-table"]
    expected = paths.top(NEURONS)
    assert [row[0].text for row in rows] == [f"{row.layer}.{row.neuron}" for row in expected.itertuples()]
    assert [row[3].values[0] for row in rows] == expected["logit"].tolist()
    assert f"memories add +{float(paths.map.sum()):.2f} to" in page.words
    assert ("rather than ·Rome" in page.words) == (foil is not None)


def test_hostile_tokens_in_paths_stay_text(atlas: fm.Model) -> None:
    paths = fm.attribute_paths(fm.capture(atlas, PROMPT), " Paris")
    html = replace(paths, tokens=(HOSTILE,) * len(paths.tokens), target=HOSTILE, foil=HOSTILE)._repr_html_()
    assert "<script" not in html
