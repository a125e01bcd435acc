"""What ablations and knowledge neurons say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.core.sheets import Table

from ..helpers import PROMPT
from ..pages.hostile import HOSTILE, UNSEEN
from ..pages.page import Page


@pytest.fixture(scope="module")
def ablation(tiny: fm.Model) -> fm.interventions.Ablation:
    return fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", top=23, positions=[1, -1])


@pytest.fixture(scope="module")
def knowledge(tiny: fm.Model) -> fm.interventions.KnowledgeNeurons:
    return fm.interventions.knowledge_neurons(fm.capture(tiny, PROMPT), " Paris")


def test_ablation(ablation: fm.interventions.Ablation) -> None:
    (table,) = (block for block in ablation.sheet(20).blocks if isinstance(block, Table))
    assert len(table.rows) == 20
    for row, expected in zip(table.rows, ablation.neurons.itertuples(), strict=False):
        assert row[0] == (expected.layer, expected.neuron)
        assert row[3:5] == (expected.direct, expected.logit)
    assert "3 more in .neurons" in table.caption
    page = Page(ablation._repr_html_())
    assert "at position 1, 8" in page.words
    assert ablation.provenance.fingerprint in page.words


def test_knowledge(knowledge: fm.interventions.KnowledgeNeurons) -> None:
    neurons, layers = (block for block in knowledge.sheet(20).blocks if isinstance(block, Table))
    for row, expected in zip(neurons.rows, knowledge.top(20).itertuples(), strict=True):
        assert row[0] == (expected.layer, expected.neuron)
        assert row[2] == expected.attribution
    assert [row[0] for row in layers.rows] == [0, 1]
    assert f"{len(knowledge.selected)} with at least" in Page(knowledge._repr_html_()).words


def test_nothing_gets_out(ablation: fm.interventions.Ablation, knowledge: fm.interventions.KnowledgeNeurons) -> None:
    """Tokens are what a text made of them."""
    tokens = (HOSTILE,) * len(ablation.tokens)
    provenance = replace(ablation.provenance, model=HOSTILE)
    hostile, other = replace(ablation, target=HOSTILE, foil=HOSTILE, tokens=tokens), replace(knowledge, target=HOSTILE)
    named = [replace(found, provenance=provenance) for found in (hostile, other)]
    for found in (hostile, other, *named):
        html = found._repr_html_()
        Page(html)
        assert "<script>" not in html
        assert "<img" not in html
        assert not set(UNSEEN) & set(html)
