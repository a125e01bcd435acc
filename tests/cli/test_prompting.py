"""What only commands that read a prompt do: settings of the run, files beside the result, continuations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.models.answers import generate
from ffnmem.scanning import Store
from ffnmem.vocabulary.projections import written_tokens

from ..pages.page import Page
from .running import PROMPT, data, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return [PROMPT, "--model", tiny_folder, "--target", " Paris", "--foil", " Rome"]


def test_predictions_are_read_where_the_attribution_is(tiny_folder: Path, tiny: fm.Model) -> None:
    found = data("attribute", PROMPT, "--model", tiny_folder, "--position", 2)
    assert found["predictions"] == fm.capture(tiny, PROMPT).predictions(2).to_dict("records")
    assert found["target_tokens"] == [found["predictions"][0]["token"]]


def test_full_tells_both_sides(asked: list[Any], tiny: fm.Model) -> None:
    mine = fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")
    tokens = written_tokens(tiny, mine.top(3), [mine.target_ids[0], mine.foil_id])
    for row in data("attribute", *asked, "--top", 3, "--full")["neurons"]:
        promoted, suppressed, _ = tokens[row["layer"], row["neuron"]]
        assert (row["promoted"], row["suppressed"]) == (promoted, suppressed)
    assert "suppresses" in table("attribute", *asked, "--top", 3, "--full")


def test_settings_reach_the_model(asked: list[Any], tiny: fm.Model) -> None:
    """An option that does nothing would be believed."""
    found = data("attribute", *asked, "--no-prepend-bos", "--dtype", "float64")
    assert found["tokens"] == fm.capture(tiny, PROMPT).token_strings()[1:]
    assert (found["provenance"]["prepend_bos"], found["provenance"]["dtype"]) == (False, "float64")
    assert found["error"] < 1e-12
    assert data("attribute", *asked[:3], "--target", " Parisian", "--first-token")["target_tokens"] == [" Paris"]


def test_a_missing_space_is_noticed(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """'London' at the beginning of a text is another token than ' London', and what was meant is the likelier one."""
    monkeypatch.setattr("ffnmem.cli.options.ModelChoice.load", lambda choice: atlas)
    prompt = "The Colosseum is located in the city"
    assert "' of'" in run("attribute", prompt, "--target", "of", "--csv").stderr
    assert run("attribute", prompt, "--target", " of", "--csv").stderr == ""


def test_files_beside_a_circuit(asked: list[Any], tiny_store: Store, tmp_path: Path) -> None:
    graph, html = tmp_path / "graph.json", tmp_path / "circuit.html"
    files = ("--export", graph, "--html", html, "--store", tiny_store.folder)
    result = run("circuit", *asked, "--nodes", 30, "--heads", *files, "--json")
    assert result.stderr == f"ffnmem: wrote {graph}\nffnmem: wrote {html}\n"
    nodes = json.loads(result.stdout)["nodes"]
    assert {node["kind"] for node in nodes} >= {"head", "firing"}
    assert any(node["feature_type"] == "attention head" for node in json.loads(graph.read_text("utf-8"))["nodes"])
    assert len(Page(html.read_text("utf-8")).tables["nodes"]) == len(nodes) + 1


def test_a_text_goes_on_both_ways(tiny: fm.Model, tiny_folder: Path) -> None:
    """With the same seed."""
    changes = ["--set", "0.3=2,1.all=0", "--scale", "0.5=-1.5", "--add", "1.7=+.5", "--add", "1.8=1e-1"]
    asked = ("intervene", PROMPT, "--model", tiny_folder, *changes)
    found = data(*asked, "--generate", 6, "--temperature", 2, "--seed", 3)["generated"]
    tokens, change = tiny.tokenize(PROMPT), fm.interventions
    before = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    made = {(0, 3): change.Set(2.0), (1, None): change.Set(0.0), (0, 5): change.Scale(-1.5), (1, 7): change.Add(0.5)}
    with fm.intervene(tiny, {**made, (1, 8): change.Add(0.1)}):
        after = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    assert (found["before"]["token_ids"], found["after"]["token_ids"]) == (before, after)
    assert found["after"]["text"] == tiny.tokenizer.decode(after)
    assert found["after"]["tokens"] == tiny.token_strings(after)
    assert data(*asked, "--generate", 2, "--at", 0)["generated"]["before"]["token_ids"] == generate(tiny, tokens, 2)
