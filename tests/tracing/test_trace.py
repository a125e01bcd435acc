"""One fact's trace as arrays, a table, JSON and a line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.errors import InputError
from ffnmem.tracing import Trace, trace_fact
from tests.helpers import PROMPT, allclose, refuses


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", samples=3, noise=1.0, severed=("attention",))


def test_effects(found: Trace) -> None:
    """Indirect: score minus corrupted; total: clean minus corrupted."""
    assert found.corrupted == pytest.approx(found.samples.mean())
    assert found.total == pytest.approx(found.clean - found.corrupted)
    assert allclose(found.indirect("ffn"), found.scores["ffn"] - found.samples.mean(), 1e-12)
    assert allclose(found.indirect(), found.indirect("state"), 0)
    with refuses(InputError, ValueError, "mlp", "severed_attention"):
        found.indirect("mlp")


def test_one_row_a_cell(found: Trace) -> None:
    frame = found.to_frame()
    assert list(frame.columns) == ["kind", "layer", "position", "token", "score", "indirect"]
    assert len(frame) == 4 * found.n_layers * len(found.tokens)
    for row in frame.sample(20, random_state=0).itertuples():
        assert row.score == found.scores[row.kind][row.layer, row.position]
        assert row.token == found.tokens[row.position]
        assert row.indirect == found.indirect(row.kind)[row.layer, row.position]


def test_through_json_and_back(found: Trace) -> None:
    """A resumed run would else average other numbers than the run that was stopped."""
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    again = Trace.from_dict(record)
    assert again.to_dict() == found.to_dict()
    assert again.provenance.as_dict() == found.provenance.as_dict()
    assert again.subject == found.subject
    assert again.scores["ffn"].dtype == np.float64
    for kind in found.kinds:
        assert (again.scores[kind] == found.scores[kind]).all()


def test_repr(found: Trace) -> None:
    assert "\n" not in repr(found)
    assert f"clean {found.clean:.3f}" in repr(found)
    assert PROMPT in repr(found)


def test_provenance_says_how(found: Trace) -> None:
    recorded = found.provenance.as_dict()
    assert recorded["window"] == 1
    assert recorded["noise"] == 1.0
    assert recorded["samples"] == 3
    assert recorded["kinds"] == "state, ffn, attention, severed_attention"


def test_displays(found: Trace) -> None:
    """Token text is untrusted; the pictures are tested with their modules."""
    assert "<script>" not in replace(found, answer="<script>")._repr_html_()
    assert len(found.plot()) == 4
