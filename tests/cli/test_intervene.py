"""``ffnmem intervene``: before and after, and how the text goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.models.answers import generate

from .running import PROMPT, data

CHANGES = ["--set", "0.3=2,1.all=0", "--scale", "0.5=-1.5", "--add", "1.7=+.5", "--add", "1.8=1e-1"]
ASKED = {
    (0, 3): fm.interventions.Set(2.0),
    (1, None): fm.interventions.Set(0.0),
    (0, 5): fm.interventions.Scale(-1.5),
    (1, 7): fm.interventions.Add(0.5),
    (1, 8): fm.interventions.Add(0.1),
}


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["intervene", PROMPT, "--model", tiny_folder, *CHANGES]


def test_generation(asked: list[Any], tiny: fm.Model) -> None:
    """Both ways, with the same seed."""
    found = data(*asked, "--generate", 6, "--temperature", 2, "--seed", 3)["generated"]
    tokens = tiny.tokenize(PROMPT)
    before = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    with fm.intervene(tiny, ASKED):
        after = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    assert (found["before"]["token_ids"], found["after"]["token_ids"]) == (before, after)
    assert found["after"]["text"] == tiny.tokenizer.decode(after)
    assert found["after"]["tokens"] == tiny.token_strings(after)
    assert data(*asked, "--generate", 2, "--at", 0)["generated"]["before"]["token_ids"] == generate(tiny, tokens, 2)
