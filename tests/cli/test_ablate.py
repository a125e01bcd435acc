"""``ffnmem ablate``: the library's own numbers, in three forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm

from .running import PROMPT, data, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["ablate", PROMPT, "--model", tiny_folder, "--target", " Paris"]


@pytest.fixture(scope="module")
def capture(tiny: fm.Model) -> fm.prompts.Capture:
    return fm.capture(tiny, PROMPT)


def test_integrated_gradients_choose(asked: list[Any], capture: fm.prompts.Capture) -> None:
    found = data(*asked, "--attribution", "integrated-gradients", "--top", 6)["neurons"]
    expected = fm.interventions.knowledge_neurons(capture, " Paris").top(6)
    wanted = {(row.layer, row.neuron): row.attribution for row in expected.itertuples()}
    assert {(row["layer"], row["neuron"]): row["attribution"] for row in found} == pytest.approx(wanted)
    effects = fm.ablate(capture, " Paris", neurons=list(wanted)).neurons
    assert [row["logit"] for row in found] == effects["logit"].tolist()
    assert "attribution" in table(*asked, "--attribution", "integrated-gradients", "--top", 6)
