"""Commands about prompts, facts and pages: what of them no contract of ``test_operations.py`` holds."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.explorer.exploring import ASKED
from ffnmem.models.answers import generate
from ffnmem.scanning import Store

from ..comparing.made import TEXTS, permuted
from ..helpers import REPOSITORY
from ..pages.page import Page
from .running import PROMPT, csv, data, mistake, run


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return [PROMPT, "--model", tiny_folder, "--target", " Paris", "--foil", " Rome"]


def test_settings_reach_the_model(asked: list[Any], tiny: fm.Model) -> None:
    """An option that does nothing would be believed."""
    found = data("attribute", *asked, "--no-prepend-bos", "--dtype", "float64")
    assert found["prompt"]["tokens"] == fm.capture(tiny, PROMPT).token_strings()[1:]
    assert (found["provenance"]["prepend_bos"], found["provenance"]["dtype"]) == (False, "float64")
    assert found["error"] < 1e-12
    assert data("attribute", *asked[:3], "--target", " Parisian", "--first-token")["target"] == " Paris"
    found = data("attribute", *asked[:3], "--position", 2)
    expected = fm.capture(tiny, PROMPT).predictions(2, 5)
    assert [row["token"] for row in found["predictions"]] == expected["token"].tolist()
    assert found["target"] == expected["token"][0]


def test_a_missing_space_is_noticed(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """'London' at the beginning of a text is another token than ' London', and what was meant is the likelier one."""
    monkeypatch.setattr(fm, "load", lambda *_, **__: atlas)
    prompt = "The Colosseum is located in the city"
    assert "' of'" in run("attribute", prompt, "--target", "of", "--csv").stderr
    assert run("attribute", prompt, "--target", " of", "--csv", "--top", 3).stderr == ""


def test_files_beside_a_circuit(asked: list[Any], tmp_path: Path) -> None:
    graph, html = tmp_path / "graph.json", tmp_path / "circuit.html"
    result = run("circuit", *asked, "--firings", "0.5@3,1.7", "--export", graph, "--html", html, "--json", "--full")
    assert result.stderr == f"ffnmem: wrote {html}\n"
    nodes = json.loads(result.stdout)["nodes"]
    assert {node["kind"] for node in nodes} == {"answer", "embedding", "firing"}
    assert len(json.loads(graph.read_text("utf-8"))["nodes"]) == len(nodes) + 1
    images = [attrs for tag, attrs in Page(html.read_text("utf-8")).tags if tag == "img"]
    assert [one["src"].partition(",")[0] for one in images] == ["data:image/svg+xml;base64"]


def test_a_text_goes_on_both_ways(tiny: fm.Model, tiny_folder: Path) -> None:
    """With the same seed."""
    changes = ["0.3=2,1.all=0", "0.5=x-1.5", "1.7+=.5", "1.8+=1e-1"]
    given = ("intervene", PROMPT, *changes, "--model", tiny_folder)
    found = data(*given, "--generate", 6, "--temperature", 2, "--seed", 3)["continuations"]
    tokens, change = tiny.tokenize(PROMPT), fm.interventions
    before = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    made = {(0, 3): change.Set(2.0), (1, None): change.Set(0.0), (0, 5): change.Scale(-1.5), (1, 7): change.Add(0.5)}
    with fm.intervene(tiny, {**made, (1, 8): change.Add(0.1)}):
        after = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    assert [row["token_ids"] for row in found] == [before, after]
    assert found[1]["text"] == tiny.tokenizer.decode(after)
    assert data(*given, "--generate", 2, "--at", 0)["continuations"][0]["token_ids"] == generate(tiny, tokens, 2)


# -- many facts --------------------------------------------------------------------------------------------------------

FACTS = ("atlas", "--relation", "landmark.city", "--limit", 2)


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        (("trace-facts", *FACTS, "--samples", 2), "kind group layer mean low high n"),
        (
            ("trace-facts", *FACTS, "--way", "silence", "--known"),
            "kind group layer loss low high share share_low share_high n",
        ),
        (("knockout-facts", *FACTS, "--known"), "kind group layer share low high loss n"),
    ],
    ids=["trace", "silence", "knockout"],
)
def test_many_facts(
    command: tuple[object, ...], columns: str, atlas: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The means by group. --limit counts those that are known: it would else be a smaller number than asked for."""
    monkeypatch.setattr(fm, "load", lambda *_, **__: atlas)
    ran = run(*command, "--out", tmp_path / "kept", "--json", "--full", "--plot", tmp_path / "many.png")
    assert ("atlas knows 9" in ran.stderr) == ("--known" in command)
    found = json.loads(ran.stdout)
    assert found["n"] == len(found["facts"]) == 2
    assert {row["group"] for row in found["groups"]} >= {"last subject"}
    assert (tmp_path / "many.png").is_file()
    assert list(csv(*command, "--out", tmp_path / "kept")) == columns.split()
    if "--known" not in command:
        mistake(*command, "--window", 1, "--out", tmp_path / "kept", named=("window", "another folder"))


def test_a_comparison(tiny_folder: Path, tmp_path: Path) -> None:
    """Of a permuted copy: the place of every neuron."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(TEXTS[:30]), "utf-8")
    model = fm.load(tiny_folder)
    order, folder = permuted(model, 0, 1), tmp_path / "copy"
    model.hf_model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    found = data("compare", folder, "--model", tiny_folder, "--texts", corpus, "--reach", 9, "--full")
    assert [row["match_neuron"] for row in found["neurons"] if row["layer"] == 0] == order.tolist()
    assert found["counts"]["permuted"] > 50


# -- the explorer ------------------------------------------------------------------------------------------------------


def test_what_the_explorer_opens(tiny_store: Store, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model with its facts; another with those that it answers; a store with its model."""
    served: list[Any] = []

    def serve(explorer: Any, *, port: int, ready: Any) -> None:
        served.append((explorer, port))
        ready(f"http://127.0.0.1:{port}/")

    monkeypatch.setattr("ffnmem.explorer.server.serve", serve)
    monkeypatch.setattr("webbrowser.open", lambda address: served.append(address))
    done = run("explore", "--port", "9001")
    assert done.stdout == "http://127.0.0.1:9001/\n"
    assert "Ctrl-C ends it" in done.stderr
    (explorer, port), opened = served
    assert (explorer.model.name, len(explorer.facts), explorer.store, port) == ("atlas", 3993, None, 9001)
    assert opened == "http://127.0.0.1:9001/"
    run("explore", "--store", tiny_store.folder, "--model", tiny_folder, "--no-browser")
    explorer = served[2][0]
    assert explorer.store is not None
    assert explorer.facts == ()  # of random weights: it answers none
    mistake("explore", "--store", tiny_store.folder, "--model", "atlas", named=("atlas",))
    run("explore", "--model", REPOSITORY / "data" / "atlas", "--no-browser")
    explorer = served[3][0]
    assert 20 < len(explorer.facts) <= ASKED
    assert len(fm.facts.filter_known(explorer.model, explorer.facts)) == len(explorer.facts)
    assert explorer.model.name in explorer.source


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("starlette", "uvicorn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    mistake("explore", named=("the explorer needs starlette and uvicorn: pip install 'ffnmem[explorer]'",))
