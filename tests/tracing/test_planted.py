"""Causal tracing finds where planted facts are stored."""

from __future__ import annotations

import numpy as np
import pytest

import ffnmem as fm

from ..planted_models import CARRIER, EARLY, FINDER, SUBJECT_LAST, plant_facts

LAST = 4  # of a prompt's positions


@pytest.mark.parametrize("site", ["early", "late"])
def test_tracing_finds_where_a_fact_is_stored_and_nowhere_else(site: str) -> None:
    """Early facts come back at the subject's end in layer 1, late ones at the last token in layer 2."""
    planted, back = plant_facts(1, site, n_subjects=12, n_objects=4, n_none=12), []
    for fact in planted.facts[::4]:
        trace = fm.trace_fact(planted.model, fact, kinds=["ffn"], window=1, samples=4)
        shares = trace.indirect("ffn") / trace.total
        back.append([shares[EARLY, SUBJECT_LAST], shares[CARRIER, LAST]][:: 1 if site == "early" else -1])
        assert np.abs(shares[[EARLY, CARRIER], [LAST, SUBJECT_LAST]]).max() < 0.15
        assert shares[FINDER, SUBJECT_LAST] > 0.5
    own, other = np.transpose(back)
    assert own.mean() > 0.8
    assert (own > other).all()
    assert abs(other.mean()) < 0.1
