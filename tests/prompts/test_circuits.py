"""``circuit``: the graph of given firings, whose edges sum to what every node read; and circuit-tracer's form of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, unwarned
from ffnmem.models import Model
from ffnmem.prompts import Circuit
from ffnmem.prompts.circuit_edges import Firing, FrozenPass
from ffnmem.prompts.circuits import ANSWER, REST
from ffnmem.prompts.firings import PromptQuestion

from ..architectures import DECODERS
from ..helpers import PROMPT, allclose, build_twins, refuses
from ..interventions.test_contrasts import likelier_first

PLACES = ["layer", "neuron", "position"]


def contrast_of(model: Model) -> fm.interventions.Contrast:
    """Of a random model, which says the same after both prompts."""
    with unwarned():
        return fm.contrast(model, *likelier_first(model, " Paris", " Rome"), " Paris", " Rome", random=1)


@pytest.fixture(scope="module")
def captured(tiny64: Model) -> fm.prompts.Capture:
    return fm.capture(tiny64, PROMPT)


@pytest.fixture(scope="module")
def given(captured: fm.prompts.Capture) -> pd.DataFrame:
    return fm.causal_scores(captured, " Paris", " Rome", exact=0).top(30)


@pytest.fixture(scope="module")
def found(captured: fm.prompts.Capture, given: pd.DataFrame) -> Circuit:
    return fm.circuit(captured, given, " Paris", " Rome")


def test_edges_sum_to_what_every_node_read(architecture: Model) -> None:
    # if it failed, a path through attention would be missing, or read along another direction; here in float32
    capture = fm.capture(architecture, [PROMPT, "Rome is"])
    for prompt in (0, 1):
        some = fm.causal_scores(capture, " Paris", " Rome", prompt=prompt, exact=0).top(12)
        circuit = fm.circuit(capture, some, " Paris", " Rome", prompt=prompt)
        assert circuit.error < 1e-4 * max(1.0, circuit.nodes["reads"].abs().max())
        assert set(circuit.edges["input"]) == {"logit", *(("gate", "linear") if architecture.gated else ("pre",))}
        sums = circuit.edges.groupby(["target", "input"])["weight"].sum()
        held = {"pre": capture.pre, "gate": capture.pre, "linear": capture.linear}
        for (target, name), total in sums.items():
            if target != ANSWER:
                row = circuit.nodes.set_index("id").loc[target]
                read = float(held[name][row["layer"]][prompt, row["position"], row["neuron"]])
                assert read == pytest.approx(row["linear" if name == "linear" else "reads"], abs=1e-6)
                assert total == pytest.approx(read, abs=1e-6)
        assert sums[ANSWER].item() == pytest.approx(circuit.logit, abs=1e-6)
        shares = circuit.edges.groupby(["target", "input"])["share"].sum()
        assert allclose(shares, np.ones(len(shares)), 1e-9)


def test_the_answers_edges_are_the_path_attribution(captured: fm.prompts.Capture, found: Circuit) -> None:
    paths = fm.attribute_paths(captured, " Paris", " Rome")
    into = found.edges[found.edges["target"] == ANSWER].set_index("source")["weight"]
    for row in found.firings.itertuples():
        expected = float(paths.scores[row.layer, row.position, row.neuron])
        assert into.get(row.id, 0.0) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    parts = paths.components.groupby("component")["logit"].sum()
    embedded = into[into.index.str.startswith("embedding")].sum()
    assert embedded == pytest.approx(parts["embedding"] + parts.get("position", 0.0), rel=1e-9)


def test_an_edge_is_the_effect_of_a_firing_with_all_else_held(captured: fm.prompts.Capture) -> None:
    """Of the first layer on the second: no FFN stands between, so only attention and norms are held."""
    frozen, model = FrozenPass(PromptQuestion.of(captured, " Paris", " Rome", -1, 0, False)), captured.model
    reader = Firing(1, 7, 4)
    sources = [Firing(0, n, p) for n in (3, 11) for p in (1, 4)]
    weights, _, _ = frozen.edges(frozen.inputs(reader), sources)
    values = model.ffn[0].values.detach()
    for weight, source in zip(weights[0], sources, strict=True):
        written = torch.zeros(frozen.pos + 1, model.d_model, dtype=torch.float64)
        written[source.position] = captured.coefficients[0][0, source.position, source.neuron] * values[source.neuron]
        held = frozen.attentions[1]
        normed = (held.norm.centre(written) * held.norm.gain / held.scale.unsqueeze(-1)).unsqueeze(0)
        with torch.no_grad():
            carried = held.writes(normed) - held.writes(torch.zeros_like(normed)) + written
        norm = model.norm_before(1)
        read = norm.centre(carried[4]) * norm.gain / frozen.scales[1][4]
        assert float(weight) == pytest.approx(float(read @ model.ffn[1].keys[7].detach()), rel=1e-9, abs=1e-13)


def test_blocks_of_inputs_change_nothing(
    captured: fm.prompts.Capture, given: pd.DataFrame, found: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffnmem.prompts.circuits.BLOCK", 7)
    again = fm.circuit(captured, given, " Paris", " Rome")
    assert again.edges["source"].equals(found.edges["source"])
    assert allclose(again.edges["weight"], found.edges["weight"], 1e-12)


def test_nodes_are_the_firings_that_were_given(captured: fm.prompts.Capture, given: Any, found: Circuit) -> None:
    """In their order, with their scores; the first of them, where fewer are drawn: the others join the rest."""
    assert found.firings[PLACES].astype(int).equals(given[PLACES].astype(int))
    assert allclose(found.firings["score"], given["score"], 1e-9)
    assert allclose(found.firings["coefficient"], given["coefficient"], 1e-9)
    assert set(found.edges["source"]) <= {*found.nodes["id"], REST}
    assert set(found.edges["target"]) == {ANSWER, *found.firings["id"]}
    nodes = found.nodes.set_index("id")
    for edge in found.edges[found.edges["source"] != REST].itertuples():  # nothing reads what comes later
        source, target = nodes.loc[edge.source], nodes.loc[edge.target]
        assert source["position"] <= target["position"]
        assert edge.target == ANSWER or source["kind"] == "embedding" or source["layer"] < target["layer"]
    few = fm.circuit(captured, given, " Paris", " Rome", nodes=5)
    assert (few.given, len(few.firings)) == (30, 5)
    answer = few.edges[few.edges["target"] == ANSWER].set_index("source")["weight"]
    more = found.edges[found.edges["target"] == ANSWER].set_index("source")["weight"]
    others = more.reindex([*found.firings["id"][5:], REST]).fillna(0.0).sum()
    assert answer[REST] == pytest.approx(others, abs=1e-12)


def test_firings_may_be_given_in_any_form(captured: fm.prompts.Capture) -> None:
    asked = captured, " Paris", " Rome"
    smallest = fm.minimal_circuit(*asked)
    expected = fm.circuit(captured, smallest, *asked[1:])
    triples = [*smallest.firings[PLACES].itertuples(index=False, name=None)]
    for form in (smallest.firings, triples, [f"{layer}.{neuron}@{place}" for layer, neuron, place in triples]):
        assert fm.circuit(captured, form, *asked[1:]).edges.equals(expected.edges)
    assert expected.kept == pytest.approx(smallest.faithfulness)
    everywhere = fm.circuit(captured, ["1.7"], *asked[1:]).firings
    assert everywhere["position"].tolist() == list(range(len(expected.tokens)))


def test_the_firings_of_a_contrast(tiny64: Model) -> None:
    """Of the prompt's own run, or as a difference between both runs, in one class."""
    contrast = contrast_of(tiny64)
    own = fm.circuit(fm.capture(tiny64, torch.tensor([contrast.answer.tokens])), contrast, contrast.answer)
    between = contrast.graph()
    assert type(own) is type(between)
    count = min(len(own.firings), len(between.firings))
    assert own.firings["id"].head(count).tolist() == between.firings["id"].head(count).tolist()
    assert (own.compared, between.compared, between.kept, between.verdict) == (False, True, None, None)
    assert not (between.nodes["kind"] == "embedding").any()


def test_the_verdict_says_what_to_try(captured: fm.prompts.Capture, given: Any, found: Circuit) -> None:
    """A graph that does not carry the answer ended there, and nobody knew what to do next."""
    alone = fm.faithfulness(captured, " Paris", " Rome", given, random=0)
    assert found.kept == pytest.approx(alone.curve["faithfulness"].item())
    carried = replace(found, kept=0.9).verdict
    assert carried == "These 30 firings carry the answer: 90.0% of it is kept, all others at zero."
    little = str(replace(found, kept=0.02).verdict)
    assert little.startswith("These 30 firings are not enough for the answer: 2.0% of it is kept")
    assert "--share" in little
    part = str(replace(found, kept=0.02, given=99).verdict)
    assert "The first 30 firings of 99 given" in part
    assert "--nodes 99" in part
    assert all("ffnmem contrast" in words for words in (little, part))
    assert fm.circuit(captured, given, " Paris", " Rome", mean=captured).reference.startswith("mean over a capture")


def test_a_logit_minus_its_like_is_made_by_no_firing(tokenizer: Any) -> None:
    capture = fm.capture(fm.load(build_twins(tokenizer), tokenizer=tokenizer, dtype="float64"), PROMPT)
    circuit = fm.circuit(capture, [(0, 1, 2)], " Paris", " Rome")
    assert (circuit.logit, circuit.kept, circuit.verdict) == (0.0, None, None)
    assert circuit.edges.loc[circuit.edges["target"] == ANSWER, "weight"].abs().max() == 0.0


REFUSED: list[tuple[type[Exception], type[Exception], Any, tuple[str, ...]]] = [
    (InputError, ValueError, [], ("firings is empty",)),
    (InputError, ValueError, ["3.17@x"], ("LAYER.NEURON@POSITION", "3.17@x")),
    (InputError, ValueError, ["x"], ("x",)),
    (InputError, ValueError, 5, ("firings are names",)),
    (OutOfRangeError, IndexError, [(0, 1, 99)], ("position 99",)),
    (OutOfRangeError, IndexError, ["0.1@99"], ("position 99",)),
]


def test_what_cannot_be_is_refused(tiny64: Model, captured: fm.prompts.Capture, found: Circuit) -> None:
    for *kinds, firings, named in REFUSED:
        with refuses(*kinds, *named):
            fm.circuit(captured, firings, " Paris")
    with refuses(InputError, ValueError, "every layer"):
        fm.circuit(fm.capture(tiny64, PROMPT, layers=[0]), [(0, 1, 2)], " Paris")
    with refuses(InputError, ValueError, "circuit-tracer"):
        found.export("dot")  # type: ignore[arg-type]


# -- what is made of it ----------------------------------------------------------------------------------------------

NODE = {
    "node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str, "token_prob": float,
    "is_target_logit": bool, "run_idx": int, "reverse_ctx_idx": int, "jsNodeId": str, "clerp": str,
    "influence": (float, type(None)), "activation": (float, type(None)),
}  # fmt: skip
"""circuit-tracer's model of a node, which Neuronpedia's schema is wider than."""
PARAMS = {"pinnedIds": list, "supernodes": list, "linkType": str, "clickedId": str, "sg_pos": str}


def check_graph(found: dict[str, Any]) -> None:
    """The rules of circuit-tracer's ``graph_models.py`` and of Neuronpedia's ``graph-schema.json``."""
    assert set(found) == {"metadata", "qParams", "nodes", "links"}
    metadata, params = found["metadata"], found["qParams"]
    assert {"slug", "scan", "prompt", "prompt_tokens", "transcoder_list", "node_threshold"} <= set(metadata)
    assert {name: type(value) for name, value in params.items()} == PARAMS
    kinds: dict[str, list[str]] = {"cross layer transcoder": []}
    for node in found["nodes"]:
        kinds.setdefault(node["feature_type"], []).append(node["jsNodeId"])
        assert {name: isinstance(node[name], kind) for name, kind in NODE.items()} == dict.fromkeys(node, True)
        assert 0 <= node["ctx_idx"] < len(metadata["prompt_tokens"])
        if node["layer"] != "E":  # their pages read three whole numbers
            layer, feature, position = map(int, node["node_id"].split("_"))
            assert (str(layer), position) == (node["layer"], node["ctx_idx"])
            if node["feature_type"] == "cross layer transcoder":
                assert node["feature"] == (layer + feature) * (layer + feature + 1) // 2 + feature
                assert node["jsNodeId"] == f"{layer}_{feature}-0"
            elif node["feature_type"] != "logit":  # a neuron has the number itself
                assert node["feature"] < 0
    neurons = set(kinds.pop("cross layer transcoder"))
    others = [name for names in kinds.values() for name in names]
    assert len({*others} - neurons) == len(others)
    ids = [node["node_id"] for node in found["nodes"]]
    pairs = [(link["source"], link["target"]) for link in found["links"]]
    assert (len(set(ids)), len(set(pairs))) == (len(ids), len(pairs))
    assert {name for pair in pairs for name in pair} <= set(ids)
    assert set(params["pinnedIds"]) <= set(ids)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_the_export_keeps_their_rules_and_our_sums(name: str, tokenizer: Any, tmp_path: Path) -> None:
    """Links sum to what a neuron read; of a gated one, whose inputs are two, to its coefficient."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    some = fm.causal_scores(capture, " Paris", " Rome", exact=0).top(20)
    circuit = fm.circuit(capture, some, " Paris", " Rome")
    found = circuit.export("circuit-tracer", tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text("utf-8")) == found
    check_graph(found)
    names = [node["clerp"] for node in found["nodes"]]
    assert any('Output " Paris" against " Rome"' in name for name in names)
    assert names.count("all that is not in the graph") == 1
    assert max(node["influence"] or 0.0 for node in found["nodes"]) == pytest.approx(1)
    least = fm.circuit(capture, some[::-1], " Paris", " Rome").export()  # in whatever order firings are given
    strongest = f"{some['layer'][0]}_{some['neuron'][0]}_{some['position'][0]}"
    for graph in (found, least):
        share = {node["node_id"]: node["influence"] for node in graph["nodes"]}
        assert share[strongest] == pytest.approx(circuit.firings["influence"].max())
    sums: dict[str, float] = {}
    for link in found["links"]:
        sums[link["target"]] = sums.get(link["target"], 0.0) + link["weight"]
    for row in circuit.firings.itertuples():
        expected = row.coefficient if name == "Llama" else row.reads
        assert sums[f"{row.layer}_{row.neuron}_{row.position}"] == pytest.approx(expected, abs=1e-9)
    check_graph(contrast_of(model).graph(9).export())
