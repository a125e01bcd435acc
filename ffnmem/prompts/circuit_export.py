"""A circuit as the graph JSON that circuit-tracer's page and Neuronpedia read.

Their ids are ``layer_feature_position``, whole numbers all; here a feature is a neuron. What is no node of the graph is
an error node of layer 0 with −1 in the place of a feature, as theirs for what transcoders leave out.

Source: ``circuit_tracer/frontend/graph_models.py`` of safety-research/circuit-tracer, and ``graph-schema.json`` of
hijohnnylin/neuronpedia.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from .._version import __version__

FEATURE, ERROR, EMBEDDING, LOGIT = "cross layer transcoder", "mlp reconstruction error", "embedding", "logit"
"""The types of nodes that their pages know."""


def make_slug(text: str) -> str:
    """A text as the name of a graph: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "circuit"


def graph_json(circuit: Any, slug: str | None) -> dict[str, Any]:
    """A whole circuit as plain values."""
    prompt = "".join(circuit.tokens[circuit.starts_with_bos :])
    rest = {"kind": "rest", "layer": 0, "position": circuit.position}
    table = circuit.nodes.set_index("id", drop=False)
    up_to = circuit.firings.set_index("id")["influence"].sort_values(ascending=False, kind="stable").cumsum()
    known = {str(row["id"]): node_json(row, circuit, up_to) for row in table.to_dict("records")}
    known["rest"] = node_json(rest, circuit, up_to)
    weights: dict[tuple[str, str], float] = {}
    for edge in circuit.edges.itertuples():
        pair = known[edge.source]["node_id"], known[edge.target]["node_id"]
        weights[pair] = weights.get(pair, 0.0) + float(edge.weight) * slope(table, edge.target, edge.input)
    answer = known["answer"]["node_id"]
    return {
        "metadata": {
            "slug": make_slug(prompt if slug is None else slug),
            "scan": circuit.provenance.model,
            "transcoder_list": [],
            "prompt_tokens": list(circuit.tokens),
            "prompt": prompt,
            "node_threshold": None,
            "schema_version": 1,
            "info": {
                "description": "Neurons (memories) of the model itself, no transcoder; edges through frozen attention.",
                "generator": {"name": "ffnmem", "version": __version__},
            },
        },
        "qParams": {"pinnedIds": [answer], "supernodes": [], "linkType": "both", "clickedId": answer, "sg_pos": ""},
        "nodes": list(known.values()),
        "links": [
            {"source": source, "target": target, "weight": weight} for (source, target), weight in weights.items()
        ],
    }


def slope(nodes: pd.DataFrame, target: str, name: str) -> float:
    """What makes one number of a gated neuron's two inputs: half of what is added to each, in coefficients."""
    read = nodes.at[target, {"gate": "reads", "linear": "linear"}[name]] if name in ("gate", "linear") else 0.0
    return float(nodes.at[target, "coefficient"] / read / 2) if read else 1.0


def node_json(row: Mapping[Any, Any], circuit: Any, up_to: pd.Series) -> dict[str, Any]:
    """One node by their rules. ``up_to``: by id, the share of all influence of the firings up to each one, by which
    their pages prune."""
    kind, position = row["kind"], int(row["position"])
    if kind == "answer":
        against = "" if circuit.foil is None else f' against "{circuit.foil}"'
        clerp, layer, target = f'Output "{circuit.target}"{against}', str(circuit.n_layers + 1), circuit.target_id
        found = base(layer, target, position, LOGIT, f"L_{target}-{position}")
        clerp = f"{clerp} (p={circuit.probability:.3f})"
        return found | {"clerp": clerp, "token_prob": circuit.probability, "is_target_logit": True}
    if kind == "embedding":
        of = circuit.token_ids[position]
        found = base("E", position, position, EMBEDDING, f"E_{of}-{position}")
        return found | {"node_id": f"E_{of}_{position}", "clerp": f'Emb: "{row["token"]}"'}
    if kind == "rest":
        return base("0", -1, position, ERROR, f"0_-1-{position}") | {"clerp": "all that is not in the graph"}
    of_layer, neuron = int(row["layer"]), int(row["neuron"])
    found = base(str(of_layer), neuron, position, FEATURE, f"{of_layer}_{neuron}-0")
    return found | {
        "feature": (of_layer + neuron) * (of_layer + neuron + 1) // 2
        + neuron,  # the pairing by which features are numbered
        "clerp": f'memory {of_layer}.{neuron} at "{row["token"]}"',
        "activation": float(row["coefficient"]),
        "influence": float(up_to[row["id"]]),
    }


def base(layer: str, feature: int, position: int, kind: str, js: str) -> dict[str, Any]:
    return {
        "node_id": f"{layer}_{feature}_{position}",
        "feature": feature,
        "layer": layer,
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": js,
        "clerp": "",
        "influence": None,
        "activation": None,
    }
