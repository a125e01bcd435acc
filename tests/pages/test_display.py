from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.prompts.captures import PROMPTS, TOKENS

from .page import Page

NEURONS = 10
PROMPT = "The Eiffel Tower is located in the city of"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def attribution(atlas: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(atlas, PROMPT))


def column(page: Page, head: str) -> list[list[float]]:
    """The numbers below a head, of the first table that has it."""
    rows = [row for _, _, rows in page.listed for row in rows]
    start = next(i for i, row in enumerate(rows) if head in [cell.text for cell in row])
    place = [cell.text for cell in rows[start]].index(head)
    width = len(rows[start])
    found = []
    for row in rows[start + 1 :]:
        if len(row) != width or row[0].text in ("component", "fired at", "neuron"):
            break
        found.append(row[place].values)
    return found


def test_attribution_shows_its_numbers(attribution: fm.prompts.Attribution) -> None:
    page = Page(attribution._repr_html_())
    expected = attribution.top(NEURONS)
    names = [f"{row.layer}.{row.neuron}" for row in expected.itertuples()]
    assert [row[0].text for row in [row for _, _, rows in page.listed for row in rows] if row[0].text in names] == names
    assert column(page, "logit") == [[value] for value in expected["logit"]]
    by_layer = attribution.components.dropna().groupby("layer")["logit"].sum()
    together = [value for cell in column(page, "together") for value in cell]
    assert together[2 : 2 + len(by_layer)] == pytest.approx(by_layer.tolist())
    assert f"of the logit {attribution.logit:.3f}" in page.words
    assert "error" in page.words
    assert attribution.provenance.fingerprint in page.words


def test_attribution_of_many_positions(atlas: fm.Model) -> None:
    attribution = fm.attribute(fm.capture(atlas, [5 + i for i in range(31)]), fm.prompts.NEXT)
    _, *rows = Page(attribution._repr_html_()).listed[0][2]
    assert [int(row[0].text) for row in rows] == list(range(30))
    assert [row[3].values[0] for row in rows] == attribution.logits.tolist()


def test_capture_shows_prompts_layers_shapes_and_provenance(atlas: fm.Model) -> None:
    capture = fm.capture(atlas, [PROMPT, "The\n"], layers=[1, 3], logits=True)
    page = Page(capture._repr_html_())
    assert "Capture of 2 prompts, layers 1, 3 of atlas" in page.words
    assert "<|endoftext|> The" in page.words
    assert "↵" in page.words
    batch, pos = capture.tokens.shape
    assert f"pre, coefficients [{batch}, {pos}, {atlas.d_mlp}] per layer" in page.words
    assert f"logits [{batch}, {pos}, {atlas.d_vocab}]" in page.words
    assert capture.provenance.fingerprint in page.words


def test_large_captures_stay_small(atlas: fm.Model) -> None:
    many = Page(fm.capture(atlas, ["The"] * (PROMPTS + 3))._repr_html_())
    assert "and 3 more prompts" in many.words
    long = Page(fm.capture(atlas, [5] * (TOKENS + 7))._repr_html_())
    assert "… and 7 more tokens" in long.words


def test_hostile_text_is_escaped(atlas: fm.Model, attribution: fm.prompts.Attribution) -> None:
    capture = fm.capture(atlas, HOSTILE)
    provenance = replace(capture.provenance, model=HOSTILE)
    poisoned = replace(attribution, target_tokens=(HOSTILE,), foil=HOSTILE, tokens=(HOSTILE,) * len(attribution.tokens))
    many = fm.attribute(capture, fm.prompts.NEXT)
    for html in (
        replace(capture, provenance=provenance)._repr_html_(),
        replace(poisoned, provenance=provenance)._repr_html_(),
        replace(many, tokens=(HOSTILE,) * len(many.tokens), foil=HOSTILE)._repr_html_(),
    ):
        assert "<script" not in html
        assert "script" in Page(html).words


@pytest.mark.parametrize("foil", [None, " Rome"])
def test_paths_show_their_firings(atlas: fm.Model, foil: str | None) -> None:
    paths = fm.attribute_paths(fm.capture(atlas, PROMPT), " Paris", foil)
    page = Page(paths._repr_html_())
    expected = paths.top(NEURONS)
    assert column(page, "logit") == [[value] for value in expected["logit"]]
    assert f"wrote {float(paths.map.sum()):+.3f} of it" in page.words
    assert ("·Rome" in page.words) == (foil is not None)
