"""``ffnmem attribute``: the library's own numbers, in three forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.vocabulary.projections import written_tokens

from ..helpers import build_twins
from .running import PROMPT, data, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["attribute", PROMPT, "--model", tiny_folder, "--target", " Paris", "--foil", " Rome"]


@pytest.fixture
def expected(tiny: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")


def test_json_at_another_position(tiny_folder: Path, tiny: fm.Model) -> None:
    """Predictions must be read where the attribution is."""
    found = data("attribute", PROMPT, "--model", tiny_folder, "--position", 2)
    assert found["positions"] == [2]
    assert found["predictions"] == fm.capture(tiny, PROMPT).predictions(2).to_dict("records")
    assert found["target_tokens"] == [found["predictions"][0]["token"]]


def test_full_tells_both_sides(asked: list[Any], expected: fm.prompts.Attribution, tiny: fm.Model) -> None:
    both = data(*asked, "--top", 3, "--full")["neurons"]
    tokens = written_tokens(tiny, expected.top(3), [expected.target_ids[0], expected.foil_id])
    for row in both:
        promoted, suppressed, _ = tokens[row["layer"], row["neuron"]]
        assert (row["promoted"], row["suppressed"]) == (promoted, suppressed)
    assert "suppresses" in table(*asked, "--top", 3, "--full")


def test_settings_reach_the_model(asked: list[Any], expected: fm.prompts.Attribution) -> None:
    """An option that does nothing would be believed."""
    found = data(*asked, "--no-prepend-bos", "--dtype", "float64")
    assert found["tokens"] == list(expected.tokens[1:])
    assert found["provenance"]["prepend_bos"] is False
    assert found["provenance"]["dtype"] == "float64"
    assert found["error"] < 1e-12


def test_first_token(asked: list[Any]) -> None:
    found = data(*asked[:4], "--target", " Parisian", "--first-token")
    assert found["target_tokens"] == [" Paris"]


def test_a_share_of_nothing_is_no_number(tiny: fm.Model, tmp_path: Path) -> None:
    """The logit of a token minus its twin's is zero, and NaN is no JSON."""
    build_twins(tiny.tokenizer).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    asked = ("attribute", PROMPT, "--model", tmp_path, "--target", " Paris", "--foil", " Rome")
    found = data(*asked)
    assert found["logits"] == [0.0]
    assert {neuron["share"] for neuron in found["neurons"]} == {None}
    assert "–" in table(*asked)


def test_a_missing_space_is_noticed(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """'London' at the beginning of a text is another token than ' London', and what was meant is the likelier one."""
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", lambda choice: atlas)
    prompt = "The Colosseum is located in the city"
    assert "' of'" in run("attribute", prompt, "--target", "of", "--csv").stderr
    assert run("attribute", prompt, "--target", " of", "--csv").stderr == ""


def test_atlas_knows_paris() -> None:
    """The demonstration, as a user types it."""
    out = table("attribute", "The Eiffel Tower is located in the city of", "--target", " Paris", "--top", 10)
    assert "rank 1" in out
    assert "atlas" in out.splitlines()[-1]
