"""``ffnmem ablate``: the library's own numbers, in three forms."""

from __future__ import annotations

from pathlib import Path

import pytest

import ffnmem as fm

from .running import PROMPT, data, table


def test_integrated_gradients_choose(tiny: fm.Model, tiny_folder: Path) -> None:
    capture = fm.capture(tiny, PROMPT)
    asked = ("ablate", PROMPT, "--model", tiny_folder, "--target", " Paris", "--attribution", "integrated-gradients")
    asked = (*asked, "--top", 6)
    found = data(*asked)["neurons"]
    expected = fm.interventions.knowledge_neurons(capture, " Paris").top(6)
    wanted = {(row.layer, row.neuron): row.attribution for row in expected.itertuples()}
    assert {(row["layer"], row["neuron"]): row["attribution"] for row in found} == pytest.approx(wanted)
    effects = fm.ablate(capture, " Paris", neurons=list(wanted)).neurons
    assert [row["logit"] for row in found] == effects["logit"].tolist()
    assert "attribution" in table(*asked)
