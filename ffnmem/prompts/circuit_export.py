"""A circuit as the graph JSON that circuit-tracer's page and Neuronpedia read.

Their ids are ``layer_feature_position``, whole numbers all; here a feature is a neuron. What is none has a negative
number in its place, so that no id can be another's: of what was pruned −1 (which theirs is for what transcoders leave
out), of a layer's biases −2, of a reader's own −3, of an attention layer −4, of head h −10 − h. Token and position
embeddings are one node a token there.

Source: ``circuit_tracer/frontend/graph_models.py`` of safety-research/circuit-tracer, and ``graph-schema.json`` of
hijohnnylin/neuronpedia.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from .._version import __version__

PRUNED, BIASES, OWN, LAYER, HEADS = -1, -2, -3, -4, -10
FEATURE, ERROR, EMBEDDING, LOGIT = "cross layer transcoder", "mlp reconstruction error", "embedding", "logit"
"""The types of nodes that their pages know."""
ATTENTION = "attention head"


def cantor(x: int, y: int) -> int:
    """The pairing of two whole numbers in one that circuit-tracer numbers features by."""
    return (x + y) * (x + y + 1) // 2 + y


def make_slug(text: str) -> str:
    """A text as the name of a graph: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "circuit"


def graph_json(circuit: Any, slug: str | None, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A whole circuit as plain values; ``groups``: names of supernodes, and the ids of their nodes."""
    nodes, edges, settings = circuit.nodes, circuit.edges, dict(circuit.provenance.settings)
    prompt = "".join(circuit.tokens[circuit.starts_with_bos :])
    known = {str(row["id"]): node_json(row, circuit) for row in nodes.to_dict("records")}
    for name, share in accumulate_influence(nodes).items():
        known[name]["influence"] = share
    found: dict[str, dict[str, Any]] = {}
    for node in known.values():
        found.setdefault(node["node_id"], node)
    ids = {name: str(node["node_id"]) for name, node in known.items()}
    weights: dict[tuple[str, str], float] = {}
    for edge in weigh_links(nodes, edges).itertuples():
        pair = ids[str(edge.source)], ids[str(edge.target)]
        weights[pair] = weights.get(pair, 0.0) + float(edge.weight)
    supernodes = [[name, *(ids[member] for member in members)] for name, members in groups.items()]
    return {
        "metadata": {
            "slug": make_slug(prompt if slug is None else slug),
            "scan": circuit.provenance.model,
            "transcoder_list": [],
            "prompt_tokens": list(circuit.tokens),
            "prompt": prompt,
            "node_threshold": settings.get("node_threshold"),
            "schema_version": 1,
            "info": {
                "description": "Neurons (memories) of the model itself, no transcoder; edges through frozen attention.",
                "generator": {"name": "ffnmem", "version": __version__},
            },
            "generation_settings": {"max_feature_nodes": settings.get("nodes")},
            "pruning_settings": {name: settings.get(name) for name in ("node_threshold", "edge_threshold")},
        },
        "qParams": {
            "pinnedIds": list(dict.fromkeys([ids["answer"], *(one for group in supernodes for one in group[1:])])),
            "supernodes": supernodes,
            "linkType": "both",
            "clickedId": ids["answer"],
            "sg_pos": "",
        },
        "nodes": list(found.values()),
        "links": [
            {"source": source, "target": target, "weight": weight} for (source, target), weight in weights.items()
        ],
    }


def accumulate_influence(nodes: pd.DataFrame) -> dict[str, float]:
    """The share of all influence that firings and heads up to each have together, by which their pages prune."""
    some = nodes[nodes["kind"].isin(["firing", "attention", "head"])]
    some = some.sort_values("influence", ascending=False, kind="stable")
    total = float(some["influence"].sum()) or 1.0
    return {str(name): float(share) for name, share in zip(some["id"], some["influence"].cumsum() / total, strict=True)}


def weigh_links(nodes: pd.DataFrame, edges: pd.DataFrame) -> pd.DataFrame:
    """One number a link: of a gated neuron, half of what is added to each input, in coefficients."""
    by_id = nodes.set_index("id")
    inputs = {"gate": by_id["pre"], "linear": by_id["linear"]}
    scale = [
        1.0
        if one not in inputs or not inputs[one][target]
        else float(by_id["coefficient"][target] / inputs[one][target] / 2)
        for target, one in zip(edges["target"], edges["input"], strict=True)
    ]
    return edges.assign(weight=edges["weight"] * scale)


def node_json(row: Mapping[Any, Any], circuit: Any) -> dict[str, Any]:
    """One node by their rules."""
    kind, position = row["kind"], circuit.position if pd.isna(row["position"]) else int(row["position"])
    layer = 0 if pd.isna(row["layer"]) else int(row["layer"])
    if kind == "answer":
        against = "" if circuit.foil is None else f' against "{circuit.foil}"'
        name = {"layer": str(circuit.n_layers + 1), "feature": circuit.target_id, "feature_type": LOGIT}
        return base(name, position, f"L_{circuit.target_id}-{position}") | {
            "clerp": f'Output "{circuit.target}"{against} (p={circuit.probability:.3f})',
            "token_prob": circuit.probability,
            "is_target_logit": True,
        }
    if kind in ("embedding", "position"):
        token = circuit.token_ids[position]
        found = base({"layer": "E", "feature": position, "feature_type": EMBEDDING}, position, f"E_{token}-{position}")
        return found | {"node_id": f"E_{token}_{position}", "clerp": f'Emb: "{row["token"]}"'}
    if kind == "firing":
        neuron = int(row["neuron"])
        found = base({"layer": str(layer), "feature": neuron, "feature_type": FEATURE}, position, f"{layer}_{neuron}-0")
        clerp = f'memory {layer}.{neuron} at "{row["token"]}"'
        return found | {"feature": cantor(layer, neuron), "clerp": clerp, "activation": float(row["coefficient"])}
    if kind in ("attention", "head"):
        number = LAYER if kind == "attention" else HEADS - int(row["head"])
        words = f"attention {layer}" if kind == "attention" else f"head {layer}.{int(row['head'])}"
        clerp, kind = f'{words} at "{row["token"]}"', ATTENTION
    elif kind == "pruned":
        number, clerp, kind = PRUNED, "what was pruned", ERROR
    else:
        number = OWN if pd.isna(row["layer"]) else BIASES
        clerp, kind = "biases of what reads" if number == OWN else f"biases of layer {layer}", ERROR
    name = {"layer": str(layer), "feature": number, "feature_type": kind}
    return base(name, position, f"{layer}_{number}-{position}") | {"clerp": clerp}


def base(name: dict[str, Any], position: int, js: str) -> dict[str, Any]:
    return {
        "node_id": f"{name['layer']}_{name['feature']}_{position}",
        **name,
        "ctx_idx": position,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": js,
        "clerp": "",
        "influence": None,
        "activation": None,
    }
