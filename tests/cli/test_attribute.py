"""``ffnmem attribute``: the library's own numbers, in three forms."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
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


def plain_provenance(found: dict[str, Any]) -> dict[str, Any]:
    """Without the name: the same weights were loaded from another place."""
    return {**found, "provenance": {k: v for k, v in found["provenance"].items() if k != "model"}}


def test_json_is_the_librarys(asked: list[Any], expected: fm.prompts.Attribution, tiny: fm.Model) -> None:
    """The command line would say something else than the notebook."""
    found = data(*asked, "--top", 7)
    predictions = found.pop("predictions")
    assert plain_provenance(found) == plain_provenance(expected.to_dict(7))
    assert predictions == fm.capture(tiny, PROMPT).predictions().to_dict("records")


def test_json_at_another_position(tiny_folder: Path, tiny: fm.Model) -> None:
    """Predictions must be read where the attribution is."""
    found = data("attribute", PROMPT, "--model", tiny_folder, "--position", 2)
    assert found["positions"] == [2]
    assert found["predictions"] == fm.capture(tiny, PROMPT).predictions(2).to_dict("records")
    assert found["target_tokens"] == [found["predictions"][0]["token"]]


def test_csv_is_the_neurons(asked: list[Any], expected: fm.prompts.Attribution) -> None:
    result = run(*asked, "--top", 9, "--csv")
    assert result.stderr == ""
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected.top(9))


def test_full_tells_both_sides(asked: list[Any], expected: fm.prompts.Attribution, tiny: fm.Model) -> None:
    both = data(*asked, "--top", 3, "--full")["neurons"]
    tokens = written_tokens(tiny, expected.top(3), [expected.target_ids[0], expected.foil_id])
    for row in both:
        promoted, suppressed, _ = tokens[row["layer"], row["neuron"]]
        assert (row["promoted"], row["suppressed"]) == (promoted, suppressed)
    assert "suppresses" in table(*asked, "--top", 3, "--full")


def test_layers_restrict_the_neurons_only(asked: list[Any], expected: fm.prompts.Attribution) -> None:
    """The top of a layer, not what the layer has in the top; the ledger stays complete."""
    found = data(*asked, "--top", 9, "--layer", 0)
    wanted = expected.neurons.query("layer == 0").head(9)
    assert found["neurons"] == wanted.to_dict("records")
    assert found["components"] == expected.to_dict()["components"]
    assert data(*asked, "--layer", 0, "--layer", "-1")["neurons"] == data(*asked)["neurons"]


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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table(asked: list[Any], expected: fm.prompts.Attribution, width: int) -> None:
    """Every part that the manual promises, in the width there is."""
    out = table(*asked, "--top", 5, width=width)
    for label in ("prompt", "after", "next", "target", "foil", "logit", "memories"):
        assert f"\n{label} " in f"\n{out}"
    assert "<|endoftext|> The ·Eiffel ·Tower ·is ·in ·the ·city ·of" in " ".join(out.split())
    assert "promotes" in out
    for row in expected.top(5).itertuples():
        assert f"\n{row.layer}.{row.neuron} " in out
    assert f"{expected.logit:.3f}" in out
    assert expected.provenance.fingerprint in out


def test_tokens_are_no_markup(tiny_folder: Path) -> None:
    """A prompt could recolour the table, or break it with an unclosed tag."""
    out = table("attribute", "[red]x[/blue]\x1b[31m\n", "--model", tiny_folder)
    assert "[ r e d ] x [ / b l u e ] \\x1b [ 3 1 m ↵" in out
    assert "\x1b" not in out


def test_a_missing_space_is_noticed(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """'London' at the beginning of a text is another token than ' London', and what was meant is the likelier one."""
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", lambda choice: atlas)
    prompt = "The Colosseum is located in the city"
    assert "' of'" in run("attribute", prompt, "--target", "of", "--csv").stderr
    assert run("attribute", prompt, "--target", " of", "--csv").stderr == ""


def test_plot_beside_data(asked: list[Any], tmp_path: Path) -> None:
    """The picture must not disturb what is piped on."""
    result = run(*asked, "--csv", "--plot", tmp_path / "plot.svg")
    assert result.stdout == run(*asked, "--csv").stdout
    assert result.stderr == f"ffnmem: wrote {tmp_path / 'plot.svg'}\n"
    assert "<svg" in (tmp_path / "plot.svg").read_text("utf-8")


def test_atlas_knows_paris() -> None:
    """The demonstration, as a user types it."""
    out = table("attribute", "The Eiffel Tower is located in the city of", "--target", " Paris", "--top", 10)
    assert "rank 1" in out
    assert "atlas" in out.splitlines()[-1]
