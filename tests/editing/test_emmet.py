"""EMMET of one fact is ROME; of facts that contradict each other it is refused or softened."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import Edit, emmet, rome

from ..helpers import allclose, refuses, warned
from .plans import CONTEXTS, FACTS, moment_of

OPTIONS = {"contexts": CONTEXTS, "settings": {"steps": 4}, "force": True}


@warned("changes layer")
def test_of_one_fact_it_is_rome(tiny: fm.Model) -> None:
    """Gupta et al. 2024: both solve the same problem."""
    moment = moment_of(tiny)
    ours = emmet(tiny, FACTS[1], moment=moment, **OPTIONS)  # type: ignore[arg-type]
    theirs = rome(tiny, FACTS[1], moment=moment, **OPTIONS)  # type: ignore[arg-type]
    assert isinstance(theirs, Edit)
    assert ours.method == "emmet"
    assert allclose(ours.changes[0].delta(), theirs.changes[0].delta(), 1e-4)


@warned("changes layer")
def test_two_facts_with_one_key(tiny: fm.Model) -> None:
    """No matrix takes a key to two places; a small epsilon settles for the middle."""
    twins = [FACTS[0], replace(FACTS[0], target_new="London", id="twin")]
    moment = moment_of(tiny)
    with refuses(InputError, ValueError, "epsilon"):
        emmet(tiny, twins, moment=moment, **OPTIONS)  # type: ignore[arg-type]
    edit = emmet(tiny, twins, moment=moment, epsilon=0.1, **OPTIONS)  # type: ignore[arg-type]
    assert edit.settings["epsilon"] == 0.1
    with refuses(InputError, ValueError, "epsilon", "-1"):
        emmet(tiny, twins, moment=moment, epsilon=-1.0)
    assert float(edit.numbers["change"].iloc[0]) == pytest.approx(float(edit.numbers["change"].iloc[1]))
