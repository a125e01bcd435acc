"""The page of a circuit: what its file holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.pages.circuit_drawing import LARGEST, drawing
from ffnmem.pages.circuits import DRAWN, circuit_html, plain_rows
from ffnmem.prompts.circuits import PRUNED, Circuit
from ffnmem.scanning import Store

from ..helpers import PROMPT, allclose, refuses
from .page import Page


@pytest.fixture(scope="module")
def circuit(tiny: fm.Model) -> Circuit:
    return fm.circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", nodes=40)


@pytest.fixture(scope="module")
def html(circuit: Circuit, tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("circuit") / "circuit.html"
    return fm.pages.circuit(circuit, out, tiny_store, tiny, cards=3, tokens=4).read_text("utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def data_of(html: str) -> Any:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def test_the_table_is_the_nodes(page: Page, circuit: Circuit) -> None:
    """Every node, with the frame's numbers to the last digit."""
    _, *rows = page.tables["nodes"]
    sums = circuit.sums().groupby("target")
    assert len(rows) == len(circuit.nodes)
    for cells, node in zip(rows, plain_rows(circuit.nodes), strict=True):
        into = sums.get_group(node.id) if node.id in sums.groups else None
        expected = [] if into is None else [v for row in into.itertuples() for v in (row.sum, row.read)]
        assert cells[3].values == expected
        given = (node.coefficient, node.error, node.influence, node.score)
        found = [cells[i].values for i in (2, 4, 5, 6)]
        assert found == [[] if value is None else [value] for value in given]
        if node.kind == "firing":
            assert cells[0].text == f"{node.layer}.{node.neuron}"
            assert cells[1].text.split()[-1] == str(node.position)


def test_the_edges_are_the_frame(html: str, circuit: Circuit) -> None:
    """All of them, pruned ones too, so that what the script shows of a node sums to what it read."""
    data, ids = data_of(html), list(circuit.nodes["id"])
    found = {(ids[s], ids[t], data["inputs"][i]): weight for s, t, i, weight in data["edges"]}
    told = {"pre": "pre-activation", "logit": "logit"}
    expected = {(row.source, row.target, told[row.input]): row.weight for row in circuit.edges.itertuples()}
    assert list(found) != list(expected)  # those that carry most stand first
    assert found == pytest.approx(expected, rel=1e-6)
    assert ids[data["pruned"]] == PRUNED
    share = circuit.edges.set_index(["source", "target"])["share"]
    influence = circuit.nodes.set_index("id")["influence"]
    through = [share[ids[s], ids[t]] * influence[ids[t]] for s, t, _, _ in data["edges"]]
    assert through == sorted(through, reverse=True)


def test_every_node_is_drawn_in_its_cell(html: str, page: Page, circuit: Circuit) -> None:
    """By layer from below, by position from the left; those of one cell apart."""
    nodes = plain_rows(circuit.nodes)
    drawn = [attrs for tag, attrs in page.tags if tag == "a" and "node" in attrs.get("class", "")]
    assert [attrs["href"] for attrs in drawn] == [f"#r{i}" for i in range(len(nodes))]
    assert [attrs["id"] for tag, attrs in page.tags if tag == "tr" and "id" in attrs] == [
        f"r{i}" for i in range(len(nodes))
    ]
    at = [tuple(place) for place in data_of(html)["at"]]
    assert len(set(at)) == len(nodes)
    for node, attrs in zip(nodes, drawn, strict=True):
        if node.kind == "firing":
            assert attrs["class"] == f"node {'plus' if node.coefficient >= 0 else 'minus'}"
        else:
            assert attrs["class"] == f"node {node.kind if node.kind in ('answer', PRUNED) else 'other'}"
    assert sum(title.startswith("neuron ") for title in page.titles) == len(circuit.firings)
    strongest = max((i for i, node in enumerate(nodes) if node.kind == "firing"), key=lambda i: nodes[i].influence)
    sizes = [place.path.count(f"{LARGEST:g} {LARGEST:g}") for place in drawing(nodes, circuit.tokens, 8).places]
    assert [i for i, count in enumerate(sizes) if count and nodes[i].kind == "firing"] == [strongest]
    firings = [(node, place) for node, place in zip(nodes, at, strict=True) if node.kind == "firing"]
    for one, (x, y) in firings:
        for other, (u, v) in firings:
            assert one.position >= other.position or x < u
            assert one.layer >= other.layer or y > v
    assert max(y for _, y in at[1:]) == at[nodes.index(next(n for n in nodes if n.kind == "embedding"))][1]
    assert at[0][1] == min(y for _, y in at)
    assert all(
        place[0] < min(x for _, (x, _) in firings) for n, place in zip(nodes, at, strict=True) if n.kind == "bias"
    )


def test_edges_are_drawn_without_scripts(page: Page, circuit: Circuit) -> None:
    """As many as the page begins with, and none from what was pruned, which reaches every node."""
    paths = [attrs["d"] for tag, attrs in page.tags if tag == "path" and attrs.get("class", "").startswith("edge ")]
    count = sum(circuit.edges["source"] != PRUNED)
    assert sum(d.count("M") for d in paths) - 2 == min(count, DRAWN)  # the key has two
    assert f"{count:,} edges between" in page.words


def test_it_says_what_sums_to_what(page: Page, circuit: Circuit) -> None:
    assert f"{len(circuit.firings)} are left after pruning" in page.words
    assert f"{circuit.pruned_share:.0%} of the influence on the answer comes from what was pruned" in page.words
    assert page.headings[0].split() == ["The", "circuit", "of", "·Paris", "rather", "than", "·Rome"]
    assert circuit.provenance.fingerprint in page.words


def test_neurons_lead_to_their_cards(page: Page, circuit: Circuit, tiny: fm.Model) -> None:
    names = list(dict.fromkeys(f"{row.layer}.{row.neuron}" for row in circuit.firings.itertuples()))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs.get("class") == "fm-neuron"]
    cards = [attrs["id"] for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    assert cards == [f"n{name}" for name in names[:3]]
    assert set(links) == {f"#{anchor}" for anchor in cards}
    first = circuit.firings.iloc[0]
    sign = "promoted" if first["coefficient"] >= 0 else "suppressed"
    values = fm.project(tiny, int(first["layer"]), [int(first["neuron"])], k=4, side="value", basis="folded")
    tokens = [text.replace(" ", "·") for text in values.loc[values["sign"] == sign, "token"]]
    row = next(row for row in page.tables["nodes"][1:] if row[0].text == names[0])
    assert row[7].chips == tokens


def test_promoted_tokens_of_a_store_alone(circuit: Circuit, tiny_store: Store) -> None:
    """A card's tokens, turned round where the firing's coefficient is negative."""
    first = circuit.firings.iloc[0]
    found = tiny_store.neuron(int(first["layer"]), int(first["neuron"]))
    page = Page(circuit_html(circuit, [found], "", None, 1, 2))
    tokens = found.tokens("promoted" if first["coefficient"] >= 0 else "suppressed")
    row = next(row for row in page.tables["nodes"][1:] if row[0].text == found.name)
    assert row[7].chips == [text.replace(" ", "·") for text in tokens[:2]]


def test_gated_neurons_have_two_sums(gated: fm.Model, tmp_path: Path) -> None:
    circuit = fm.circuit(fm.capture(gated, PROMPT), nodes=10)
    html = fm.pages.circuit(circuit, tmp_path / "circuit.html").read_text("utf-8")
    rows = [row for row in Page(html).tables["nodes"][1:] if re.fullmatch(r"\d+\.\d+", row[0].text)]
    assert len(rows) == len(circuit.firings)
    for row, node in zip(rows, plain_rows(circuit.firings), strict=True):
        assert [row[3].values[i] for i in (1, 3)] == [node.pre, node.linear]
        assert allclose(row[3].values[::2], row[3].values[1::2], 1e-4)
        assert row[3].text.split()[0] == "gate"
    assert data_of(html)["inputs"] == ["gate", "linear part", "logit"]


def test_many_nodes_of_one_cell_stand_in_lines(circuit: Circuit) -> None:
    """500 nodes stay on a page as wide as a laptop's, and apart from each other."""
    first = plain_rows(circuit.firings.head(1))[0]
    nodes = [first._replace(id=f"1.{i}@3", neuron=i, layer=1, position=3) for i in range(500)]
    found = drawing(nodes, ["a"] * 5, 4)
    assert found.width <= 800
    assert len({(place.x, place.y) for place in found.places}) == 500
    (cell,) = {row.label for row in found.rows for p in found.places if row.top < p.y < row.bottom}
    assert cell == "1"


def test_what_cannot_be_written(circuit: Circuit, tiny_store: Store, atlas: fm.Model, tmp_path: Path) -> None:
    out = tmp_path / "circuit.html"
    with refuses(InputError, ValueError, "the model", atlas.fingerprint, circuit.provenance.fingerprint):
        fm.pages.circuit(circuit, out, model=atlas)
    other = replace(circuit, provenance=replace(circuit.provenance, fingerprint="another"))
    with refuses(InputError, ValueError, "the store", tiny_store.fingerprint, "another"):
        fm.pages.circuit(other, out, tiny_store)
    with pytest.raises(InputError, match="give store="):
        fm.pages.circuit(circuit, out, shade=True)
    with pytest.raises(InputError, match="cards must be at least 1"):
        fm.pages.circuit(circuit, out, cards=0)
    assert not out.exists()


def test_heads_stand_below_the_neurons_of_their_layer(tiny: fm.Model, tmp_path: Path) -> None:
    circuit = fm.circuit(fm.capture(tiny, PROMPT), nodes=20, heads=True)
    html = fm.pages.circuit(circuit, tmp_path / "circuit.html").read_text("utf-8")
    nodes, at = plain_rows(circuit.nodes), data_of(html)["at"]
    heads = [(node, y) for node, (_, y) in zip(nodes, at, strict=True) if node.kind == "head"]
    assert heads
    for head, y in heads:
        assert all(
            y > v for node, (_, v) in zip(nodes, at, strict=True) if node.kind == "firing" and node.layer == head.layer
        )
    names = {row[0].text for row in Page(html).tables["nodes"][1:]}
    assert {f"head {head.layer}.{head.head}" for head, _ in heads} <= names
    assert "what it writes" in data_of(html)["inputs"]
