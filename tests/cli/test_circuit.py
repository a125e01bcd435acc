"""``ffnmem circuit``: the graph of memories behind an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.scanning import Store

from ..pages.page import Page
from .running import PROMPT, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["circuit", PROMPT, "--target", " Paris", "--foil", " Rome", "--nodes", 30, "--model", tiny_folder]


@pytest.fixture
def expected(tiny: fm.Model) -> fm.prompts.Circuit:
    return fm.circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", nodes=30)


def test_table_tells_the_strongest_firings(asked: list[Any], expected: fm.prompts.Circuit, tiny: fm.Model) -> None:
    out = table(*asked, "--top", 2)
    alone = expected.faithfulness(fm.capture(tiny, PROMPT)).curve["faithfulness"].item()
    assert f"all others at zero, keep {alone:.1%}" in " ".join(out.split())
    for row in expected.firings.head(2).itertuples():
        assert re.search(rf"^{row.layer}\.{row.neuron} +", out, re.M)
    assert f"{len(expected.firings)} firings of {expected.expanded} expanded" in out


@pytest.mark.parametrize(("way", "kind", "title"), [("heads", "head", "head"), ("attention", "attention", "attention")])
def test_table_tells_the_strongest_heads(asked: list[Any], tiny: fm.Model, way: str, kind: str, title: str) -> None:
    expected = fm.circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", nodes=30, **{way: True})  # type: ignore[arg-type]
    nodes = expected.nodes[expected.nodes["kind"] == kind].nlargest(2, "influence")
    out = table(*asked, f"--{way}", "--top", 2).split(f"\n{title} ", 1)[1]
    for row in nodes.itertuples():
        name = f"{row.layer}" if kind == "attention" else f"{row.layer}.{row.head}"
        assert re.search(rf"^{re.escape(name)} .* {row.influence:.1%} ", out, re.M)


def test_plot_export_and_heads(asked: list[Any], tmp_path: Path) -> None:
    figure, graph = tmp_path / "circuit.svg", tmp_path / "graph.json"
    result = run(*asked, "--heads", "--plot", figure, "--export", graph, "--json")
    assert result.stderr.count("wrote") == 2
    assert figure.read_text().count("<svg") == 1
    assert {node["kind"] for node in json.loads(result.stdout)["nodes"]} >= {"head", "firing"}
    assert any(node["feature_type"] == "attention head" for node in json.loads(graph.read_text("utf-8"))["nodes"])


def test_page(asked: list[Any], expected: fm.prompts.Circuit, tiny_store: Store, tmp_path: Path) -> None:
    html = tmp_path / "circuit.html"
    result = run(*asked, "--html", html, "--store", tiny_store.folder, "--csv")
    assert result.stderr.splitlines()[-1] == f"ffnmem: wrote {html}"
    page = Page(html.read_text("utf-8"))
    assert len(page.tables["nodes"]) == len(expected.nodes) + 1
    assert "fm-table fm-plain" in page.tables
