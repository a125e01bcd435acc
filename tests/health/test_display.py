"""HTML of results: a row a layer or step, and names that are escaped."""

from __future__ import annotations

from dataclasses import replace

import ffnmem as fm
from ffnmem.health import dying_relu, neuron_health
from tests.health.made import TEXTS


def test_health(tiny: fm.Model) -> None:
    """A model's name is the user's text: it would run as HTML."""
    found = neuron_health(tiny, TEXTS, flow=False)
    evil = replace(found, provenance=replace(found.provenance, model="<script>x</script>"), activation="<b>gelu</b>")
    page = evil._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") == 1 + tiny.n_layers


def test_dying() -> None:
    """Steps left out of the table."""
    found = dying_relu(steps=4, activations=["relu", "gelu"])
    assert found._repr_html_().count("<tr>") == 1 + len(found.frame)
