"""``circuit``: edges that sum to what every node read, pruning that keeps the sums, and the graph's own operations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.core.sheets import Facts
from ffnmem.models import Model
from ffnmem.prompts.circuit_edges import Firing, FrozenPass
from ffnmem.prompts.circuit_export import OWN
from ffnmem.prompts.circuit_pruning import prune
from ffnmem.prompts.circuits import ANSWER, EDGES, NODES, PRUNED, Circuit
from ffnmem.prompts.condensing import condense, group_id
from ffnmem.prompts.firings import PromptQuestion

from ..architectures import DECODERS
from ..helpers import PROMPT, allclose, build_twins, printed, refuses

UNPRUNED: dict[str, Any] = {"node_threshold": 1.0, "edge_threshold": 1.0}


@pytest.fixture(scope="module")
def captured(tiny64: Model) -> fm.prompts.Capture:
    return fm.capture(tiny64, PROMPT)


@pytest.fixture(scope="module")
def found(captured: fm.prompts.Capture) -> Circuit:
    return fm.circuit(captured, " Paris", " Rome", nodes=40)


@pytest.fixture(scope="module")
def everything(captured: fm.prompts.Capture) -> Circuit:
    return fm.circuit(captured, " Paris", " Rome", nodes=10_000, **UNPRUNED)


@pytest.mark.parametrize("way", [{}, {"attention": True}, {"heads": True}])
def test_edges_sum_to_what_every_node_read(architecture: Model, way: dict[str, bool]) -> None:
    # if it failed, a path through attention would be missing, or read along another direction; here in float32
    capture = fm.capture(architecture, [PROMPT, "Rome is"])
    for prompt in (0, 1):
        circuit = fm.circuit(capture, " Paris", " Rome", prompt=prompt, nodes=20, **way)
        assert circuit.error < 1e-4
        sums = circuit.sums()
        assert allclose(sums["sum"], sums["read"], 1e-4)
        read = {"logit", *(("gate", "linear") if architecture.gated else ("pre",))}
        assert read <= {*sums["input"]} <= {*read, "write"}
        # Of a node with two inputs, each has half of the node's share.
        shares = circuit.edges[~circuit.edges["source"].str.startswith("bias")].groupby("target")["share"].sum()
        assert allclose(shares, torch.ones(len(shares)), 1e-4)


def test_the_answers_edges_are_the_path_attribution(captured: fm.prompts.Capture, found: Circuit) -> None:
    paths = fm.attribute_paths(captured, " Paris", " Rome")
    for row in found.firings.itertuples():
        expected = float(paths.scores[row.layer, row.position, row.neuron])
        assert row.score == pytest.approx(expected, rel=1e-9, abs=1e-12)
    into = found.edges[found.edges["target"] == ANSWER].set_index("source")["weight"]
    direct = found.nodes.set_index("id")["score"]
    assert allclose(into, direct[into.index], 1e-12)


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


def test_influence_is_the_series_of_powers(captured: fm.prompts.Capture, everything: Circuit, tokenizer: Any) -> None:
    """Of firings with one input each, of gated ones with two, and of heads. With room for all, the greedy order's first
    ones are those of the exact influence."""
    llama = fm.capture(fm.load(DECODERS["Llama"](), tokenizer=tokenizer, dtype="float64"), "The Eiffel Tower is")
    gated = fm.circuit(llama, " Paris", " Rome", nodes=10_000, **UNPRUNED)
    heads = fm.circuit(captured, " Paris", " Rome", nodes=60, heads=True, **UNPRUNED)
    for capture, whole in ((captured, everything), (llama, gated), (captured, heads)):
        ids = whole.nodes["id"]
        shares = whole.edges.pivot_table("share", "target", "source", "sum", fill_value=0.0)
        shares = shares.reindex(index=ids, columns=ids, fill_value=0.0).to_numpy()
        series = np.linalg.inv(np.eye(len(ids)) - shares)[0]
        some = ~whole.nodes["kind"].isin(["bias", "pruned"])  # of biases, pruning takes the smallest edges
        assert allclose(series[some], whole.nodes["influence"][some], 1e-9)
        few = fm.circuit(capture, " Paris", " Rome", nodes=60, **UNPRUNED)
        assert len({*few.firings["id"]} & {*whole.firings["id"][:60]}) >= 50


def test_thresholds_keep_sums_and_the_fewest_firings(captured: fm.prompts.Capture) -> None:
    whole = fm.circuit(captured, " Paris", nodes=40, **UNPRUNED).firings
    for threshold in (1.0, 0.8, 0.3):
        circuit = fm.circuit(captured, " Paris", nodes=40, node_threshold=threshold)
        sums = circuit.sums()
        assert allclose(sums["sum"], sums["read"], 1e-10)
        varying = circuit.edges[~circuit.edges["source"].str.startswith("bias")]
        shares = varying.groupby("target")["share"].sum()
        assert allclose(shares, torch.ones(len(shares)), 1e-9)
        assert {*circuit.firings["id"]} <= {*circuit.edges["source"]}  # none that nothing reads
        before = whole["influence"].cumsum() - whole["influence"]
        fewest = whole["id"][before < threshold * whole["influence"].sum()]
        circuit = fm.circuit(captured, " Paris", nodes=40, node_threshold=threshold, edge_threshold=1.0)
        assert circuit.firings["id"].tolist() == fewest.tolist()


def test_biases_do_not_count_for_the_threshold() -> None:
    """Edges of firings would be cut for those of biases, which are the same in every prompt."""
    shares = torch.rand(6, 5 + 2 + 3, generator=torch.Generator().manual_seed(1)).double().triu()
    for threshold in (0.9, 0.4):
        cut, alone = prune(shares, 1.0, threshold, 3), prune(shares[:, :-3], 1.0, threshold)
        assert torch.equal(cut.edges[:, :-3], alone.edges)
        assert 0 < cut.edges[:, -3:].sum() < cut.edges[:, -3:].numel()


def test_columns_and_ids(found: Circuit) -> None:
    assert {name: str(kind).replace("object", "str") for name, kind in found.nodes.dtypes.items()} == NODES
    assert {name: str(kind).replace("object", "str") for name, kind in found.edges.dtypes.items()} == EDGES
    nodes = found.nodes.set_index("id")
    assert nodes.index.is_unique
    for row in found.firings.itertuples():
        assert row.id == f"{row.layer}.{row.neuron}@{row.position}"
        assert row.token == found.tokens[row.position]
    assert set(found.edges["target"]) == {ANSWER, *found.firings["id"]}
    assert found.firings["influence"].is_monotonic_decreasing
    assert "firings" not in found.provenance.to_dict()
    for edge in found.edges.itertuples():  # nothing reads what comes later
        source, target = nodes.loc[edge.source], nodes.loc[edge.target]
        assert target["kind"] == ANSWER or source["kind"] != "firing" or source["layer"] < target["layer"]
        assert pd.isna(source["position"]) or source["position"] <= target["position"]


def test_given_firings_are_the_graph(captured: fm.prompts.Capture, found: Circuit) -> None:
    """Its edges sum to what is read, of a subgraph too; what they keep of the answer is said first if it is little."""
    given = found.firings.iloc[3:20]
    some = fm.circuit(captured, " Paris", " Rome", firings=given, **UNPRUNED)
    assert set(some.firings["id"]) <= set(given["id"])
    assert some.error < 1e-10
    assert some.provenance.to_dict()["firings"] == "given"
    names = [*found.firings["id"][:5], "embedding@2"]
    part = found.subgraph(names)
    assert set(part.nodes["id"]) == {ANSWER, PRUNED, *names}
    sums = part.sums()
    assert allclose(sums["sum"], sums["read"], 1e-10)
    assert found.pruned_share < part.pruned_share <= 1
    text = " ".join(" ".join(printed(found.sheet(3), 250)).split())
    for name, position in zip(found.firings["id"][:3], found.firings["position"], strict=False):
        into = found.edges[(found.edges["target"] == name) & (found.edges["source"] != PRUNED)]
        source = into.loc[into["weight"].abs().idxmax(), "source"].removesuffix(f"@{position}")
        assert source.startswith("embedding") or source.replace("@", " at ") in text  # reads most from
    alone = found.faithfulness(captured)
    for kept, leads in ((0.005, True), (0.7, False)):
        facts = found.sheet(3, replace(alone, curve=alone.curve.assign(faithfulness=kept))).blocks[0]
        assert isinstance(facts, Facts)
        assert (next(iter(facts.rows)) == "verdict", "alone" in facts.rows) == (leads, not leads)


def test_a_logit_minus_its_like_has_no_graph(tokenizer: Any) -> None:
    """No row of the table would have a layer."""
    capture = fm.capture(fm.load(build_twins(tokenizer), tokenizer=tokenizer, dtype="float64"), PROMPT)
    for way in ({}, {"heads": True}):
        circuit = fm.circuit(capture, " Paris", " Rome", **way)
        assert circuit.logit == 0.0
        assert circuit.nodes["kind"].tolist() == ["answer", "pruned"]


def test_merging_takes_means(tiny64: Model) -> None:
    one, two = (
        fm.circuit(fm.capture(tiny64, f"The {city} is in the city of"), " Rome", nodes=30)
        for city in ("Eiffel", "Tower")
    )
    both = one.merge(two)
    assert both.prompts == 2
    assert both.tokens != one.tokens
    assert " Eiffel/ Tower" in both.tokens
    sums = both.sums()
    assert allclose(sums["sum"], sums["read"], 1e-10)
    shared = set(one.firings["id"]) & set(two.firings["id"])
    assert shared
    for name in shared:
        pre = [circuit.nodes.set_index("id").at[name, "pre"] for circuit in (one, two, both)]
        assert pre[2] == pytest.approx((pre[0] + pre[1]) / 2)
    alone = next(iter(set(one.firings["id"]) - shared))
    assert both.nodes.set_index("id").at[alone, "influence"] == pytest.approx(
        one.nodes.set_index("id").at[alone, "influence"] / 2
    )
    assert allclose(one.merge(one).edges["weight"], one.edges["weight"], 1e-12)


REFUSED: list[tuple[type[Exception], type[Exception], dict[str, Any], tuple[str, ...]]] = [
    (InputError, ValueError, {"heads": True, "attention": True}, ("exclude each other",)),
    (InputError, ValueError, {"firings": []}, ("firings is empty",)),
    (OutOfRangeError, IndexError, {"firings": [(0, 1, 99)]}, ("position 99",)),
    (InputError, ValueError, {"node_threshold": 0}, ("node_threshold",)),
    (InputError, ValueError, {"node_threshold": 1.5}, ("node_threshold",)),
    (InputError, ValueError, {"edge_threshold": -1}, ("edge_threshold",)),
    (InputError, ValueError, {"nodes": 0}, ("nodes",)),
    # What it takes grows with the square of the prompt: whoever gives a long one would lose the process to it.
    (InputError, ValueError, {"memory": 1e-6}, ("9 tokens", "GiB", "memory")),
]


def test_what_cannot_be_is_refused(
    tiny64: Model, captured: fm.prompts.Capture, found: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for *kinds, options, named in REFUSED:
        with refuses(*kinds, *named):
            fm.circuit(captured, " Paris", **options)
    assert fm.circuit(captured, " Paris", nodes=3, memory=0.01).expanded == 3
    with monkeypatch.context() as patched:
        patched.setattr("ffnmem.prompts.circuit_pruning.ROOM", 0.0)
        patched.setattr("ffnmem.prompts.circuit_pruning.weight_bytes", lambda model: 1000)
        with refuses(InputError, ValueError, "memory is 9.31e-07 GiB"):  # by default, what the weights take
            fm.circuit(captured, " Paris", nodes=3)
        patched.setattr("ffnmem.prompts.circuit_pruning.block_size", lambda question: 2)
        heads, n = captured.model.n_layers * captured.model.hf_model.config.n_head, captured.tokens.shape[1]
        needed = 8 / 2**30 * (2 * heads * n**2 + 5 * captured.model.n_layers * captured.model.d_mlp * n)
        with refuses(InputError, ValueError, "memory"):
            fm.circuit(captured, " Paris", nodes=3, memory=0.99 * needed)
        assert fm.circuit(captured, " Paris", nodes=3, memory=1.01 * needed).expanded == 3
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: fm.circuit(fm.capture(tiny64, PROMPT, layers=[0]), " Paris"), "every layer"),
        (lambda: found.subgraph(["9.9@9"]), "no node '9.9@9'"),
        (lambda: found.merge(fm.circuit(captured, " Paris", nodes=5)), "with a foil"),
        (lambda: found.merge(fm.circuit(fm.capture(tiny64, "The city"), " Rome", nodes=5)), "no positions in common"),
        (lambda: found.export("dot"), "circuit-tracer"),  # type: ignore[arg-type]
        (lambda: found.faithfulness(fm.capture(tiny64, "The city of Paris is in")), "another prompt"),
        (lambda: found.supernodes(0), "similarity"),
    ]
    groups = ([], "no nodes"), (["9.9@9"], "has no node '9.9@9'"), ([ANSWER], "cannot be"), ([PRUNED], "cannot be")
    calls += [(lambda ids=ids: condense(found, {"a": ids}), says) for ids, says in groups]  # type: ignore[misc]
    calls.append((lambda: condense(found, {"a": ["embedding@1"], "b": ["embedding@1"]}), "two groups"))
    for call, says in calls:
        with refuses(InputError, ValueError, says):
            call()


# -- attention as nodes ----------------------------------------------------------------------------------------------


def test_heads_are_their_layers_attention(captured: fm.prompts.Capture) -> None:
    """What the heads of a layer add to a neuron together is what the layer's attention adds to it."""
    whole, parts = (
        fm.circuit(captured, " Paris", nodes=60, **UNPRUNED, **{way: True}).edges for way in ("attention", "heads")
    )
    layers = whole[whole["source"].str.startswith("attention.") & ~whole["target"].str.startswith("attention.")]
    heads = parts[parts["source"].str.startswith("head.")]
    name = heads["source"].str.replace(r"head\.(\d+)\.\d+@", r"attention.\1@", regex=True)
    summed = heads["weight"].groupby([name, heads["target"], heads["input"]]).sum()
    counts = heads["weight"].groupby([name, heads["target"], heads["input"]]).size()
    n_heads = captured.model.hf_model.config.n_head
    compared = 0
    for edge in layers.itertuples():
        key = (edge.source, edge.target, edge.input)
        if counts.get(key, 0) == n_heads:
            assert summed[key] == pytest.approx(edge.weight, abs=1e-12)
            compared += 1
    assert compared > 10
    circuit = fm.circuit(captured, " Paris", " Rome", nodes=40, heads=True, node_threshold=1.0)
    nodes = circuit.nodes.set_index("id")
    assert (nodes["kind"] == "head").any()
    for edge in circuit.edges.itertuples():  # only a head reads another position
        source, target = nodes.loc[edge.source], nodes.loc[edge.target]
        if target["kind"] != "head" and not pd.isna(source["position"]):
            assert source["position"] == target["position"]


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
    assert {name for group in params["supernodes"] for name in group[1:]} | set(params["pinnedIds"]) <= set(ids)
    assert all(len(group) > 2 for group in params["supernodes"])  # a name, and two or more


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_the_export_keeps_their_rules_and_our_sums(name: str, tokenizer: Any, tmp_path: Path) -> None:
    """Links sum to what a neuron read; of a gated one, whose inputs are two, to its coefficient."""
    capture = fm.capture(fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64"), PROMPT)
    for way in ({}, {"attention": True}, {"heads": True}):
        circuit = fm.circuit(capture, " Paris", " Rome", nodes=30, **way)
        found = circuit.export("circuit-tracer", tmp_path / "graph.json", supernodes=circuit.supernodes())
        assert json.loads((tmp_path / "graph.json").read_text("utf-8")) == found
        check_graph(found)
        names = [node["clerp"] for node in found["nodes"]]
        assert any('Output " Paris" against " Rome"' in name for name in names)
        assert names.count("what was pruned") == (circuit.nodes["kind"] == "pruned").sum()
        groups = circuit.supernodes().groupby("supernode").size()
        assert len(found["qParams"]["supernodes"]) == (groups > 1).sum()
        attending = circuit.nodes[circuit.nodes["kind"].isin(["attention", "head"])]
        named = {f"{row.layer}.{row.head}" if "heads" in way else f"{row.layer}" for row in attending.itertuples()}
        first = {line.split()[0] for line in printed(circuit.sheet(99), 250) if line}
        assert first >= named | {kind.removesuffix("s") for kind in way}
        assert max(node["influence"] or 0.0 for node in found["nodes"]) == pytest.approx(1)
        biases = [node for node in found["nodes"] if node["clerp"].startswith("biases")]
        assert {node["clerp"] for node in biases if node["feature"] == OWN} <= {"biases of what reads"}
        assert all(node["clerp"].endswith(f"layer {node['layer']}") for node in biases if node["feature"] != OWN)
        sums: dict[str, float] = {}
        for link in found["links"]:
            sums[link["target"]] = sums.get(link["target"], 0.0) + link["weight"]
        for row in circuit.firings.itertuples():
            expected = row.coefficient if name == "Llama" else row.pre
            assert sums[f"{row.layer}_{row.neuron}_{row.position}"] == pytest.approx(expected, abs=1e-9)


def test_groups_add_what_their_members_add(everything: Circuit) -> None:
    """Influence within a group counts once, however its members read each other."""
    found = everything
    ids = [str(one) for one in found.firings["id"].head(4)]
    few = condense(found, {"some": ids})
    nodes, own = found.nodes.set_index("id"), few.nodes.set_index("id").loc[group_id("some")]
    assert own["score"] == pytest.approx(nodes.loc[ids, "score"].sum())
    out = few.edges[few.edges["source"] == group_id("some")]
    before = found.edges[found.edges["source"].isin(ids) & ~found.edges["target"].isin(ids)]
    assert out["weight"].sum() == pytest.approx(before["weight"].sum())
    assert not (few.edges["source"] == few.edges["target"]).any()
    shares = few.edges[~few.edges["source"].str.startswith("bias")].groupby("target")["share"].sum()
    assert allclose(shares, [1.0] * len(shares), 1e-6)
    every = [str(one) for one in nodes.index[~nodes["kind"].isin([ANSWER, PRUNED, "bias"])]]
    whole = condense(found, {"all": every}).nodes.set_index("id").loc[group_id("all"), "influence"]
    direct = found.edges[(found.edges["target"] == ANSWER) & found.edges["source"].isin(every)]["share"].sum()
    assert whole == pytest.approx(direct, rel=1e-6)


def test_sums_of_groups_stay_true(architecture: Model) -> None:
    circuit = fm.circuit(fm.capture(architecture, "The Eiffel Tower is in Paris"), " Paris", " Rome", nodes=16)
    ids = [str(one) for one in circuit.firings["id"]]
    few = condense(circuit, {"a": ids[:3], "b": [*ids[4:6], "embedding@1"]})
    sums = few.sums()
    assert allclose(sums["sum"], sums["read"], 1e-3)
    assert few.edges[(few.edges["target"] == ANSWER)]["weight"].sum() == pytest.approx(circuit.logit, abs=1e-4)


def test_firings_that_read_and_write_alike_are_one_supernode(found: Circuit) -> None:
    """b1 and b2 read a and are read by c; d reads a too, but is read by the answer: like b in one way alone."""
    ids = ["answer", "0.0@0", "1.1@0", "1.2@0", "2.3@0", "1.4@0"]
    nodes = pd.DataFrame({"id": ids, "kind": ["answer", *["firing"] * 5], "layer": 0, "neuron": 0, "position": 0,
                          "token": "", "influence": 0.1})  # fmt: skip
    pairs = [(1, 2), (1, 3), (1, 5), (2, 4), (3, 4), (4, 0), (5, 0)]
    edges = pd.DataFrame([{"source": ids[s], "target": ids[t], "input": "pre", "weight": 2.0, "share": 0.5}
                          for s, t in pairs])  # fmt: skip
    groups = replace(found, nodes=nodes, edges=edges).supernodes(0.5).set_index("id")["supernode"]
    assert sorted(groups.index) == sorted(ids[1:])
    assert groups["1.1@0"] == groups["1.2@0"]
    assert groups.nunique() == 4
    assert found.subgraph(found.firings["id"][:1]).supernodes()["size"].tolist() == [1]
    edges.loc[3, "weight"] = -2.0  # now one of them takes from what the other adds to
    assert replace(found, nodes=nodes, edges=edges).supernodes(0.5)["supernode"].nunique() == 5
