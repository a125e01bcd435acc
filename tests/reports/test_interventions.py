"""What notebooks show of ablations and knowledge neurons."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.reports.interventions import NEURONS, ablation_html, knowledge_html
from tests.helpers import PROMPT

from .hostile import HOSTILE, UNSEEN
from .page import Page


@pytest.fixture(scope="module")
def ablation(tiny: fm.Model) -> fm.Ablation:
    return fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", top=NEURONS + 3, positions=[1, -1])


@pytest.fixture(scope="module")
def knowledge(tiny: fm.Model) -> fm.KnowledgeNeurons:
    return fm.knowledge_neurons(fm.capture(tiny, PROMPT), " Paris")


def test_ablation(ablation: fm.Ablation) -> None:
    page = Page(ablation._repr_html_())
    rows = page.tables["fm-table"][1:]
    assert len(rows) == NEURONS
    for row, expected in zip(rows, ablation.neurons.itertuples(), strict=False):
        assert row[0].text == f"{expected.layer}.{expected.neuron}"
        numbers = [value for cell in row for value in cell.values]
        assert numbers[:2] == pytest.approx([expected.direct, expected.logit])
    assert "3 more in .neurons" in page.words
    assert "at position 1, 8" in page.words
    assert ablation.provenance.fingerprint in page.words


def test_knowledge(knowledge: fm.KnowledgeNeurons) -> None:
    page = Page(knowledge._repr_html_())
    rows = page.tables["fm-table"]
    heads = [place for place, row in enumerate(rows) if row[0].text in ("memory", "layer")]
    neurons, layers = rows[heads[0] + 1 : heads[1]], rows[heads[1] + 1 :]
    for row, expected in zip(neurons, knowledge.top(NEURONS).itertuples(), strict=True):
        assert row[0].text == f"{expected.layer}.{expected.neuron}"
        assert row[2].values == pytest.approx([expected.attribution])
    assert [row[0].text for row in layers] == ["0", "1"]
    assert f"{len(knowledge.selected)} knowledge neurons" in page.words


def test_nothing_gets_out(ablation: fm.Ablation, knowledge: fm.KnowledgeNeurons) -> None:
    """Tokens are what a text made of them."""
    tokens = (HOSTILE,) * len(ablation.tokens)
    provenance = replace(ablation.provenance, model=HOSTILE)
    hostile, other = replace(ablation, target=HOSTILE, foil=HOSTILE, tokens=tokens), replace(knowledge, target=HOSTILE)
    named = [replace(found, provenance=provenance) for found in (hostile, other)]
    for html in (ablation_html(hostile), knowledge_html(other), ablation_html(named[0]), knowledge_html(named[1])):
        Page(html)
        assert "<script>" not in html
        assert "<img" not in html
    assert not set(UNSEEN) & {*ablation_html(hostile), *knowledge_html(other)}
