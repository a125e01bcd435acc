"""Do verdicts agree with readers? Neurons drawn at random, read blind, and compared with what fm.polysemanticity says.

``draw STORE FOLDER`` writes ``blind.md`` and ``blind.json``, the nine strongest contexts of each of 60 neurons in random
order without anything that was measured, and ``key.json``, which neurons they are. Neurons are drawn uniformly from all
layers, and the side of each is that of its largest coefficient by size; one with fewer than nine examples on that side
(sequences in which the coefficient reaches half of its largest) cannot be read or measured, and the next takes its place.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import ffnmem as fm
from ffnmem.neurons.inputs import firing
from ffnmem.scanning.state import position_of, sequence_of

NEURONS, CONTEXTS, WIDTH = 60, 9, 12
HEAD = """# Contexts to be read

Each number is one unit of a language model. It was active at the token between **[** and **]** in each of its lines; the
order of the lines says nothing. Does what it is active at have one meaning, or several that have nothing to do with each
other?
"""


def sides(store: Any, layer: int, neuron: int) -> tuple[str, Any]:
    """The side of the largest coefficient by size, and the examples there."""
    found = {sign: firing(store, layer, np.array([neuron]), sign) for sign in ("positive", "negative")}
    return max(found.items(), key=lambda item: float(item[1].extreme[0]))


def drawn(store: Any, count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Neurons with enough examples, and those that were passed over before there were ``count``."""
    everywhere = [(layer, neuron) for layer in range(store.n_layers) for neuron in range(store.d_mlp(layer))]
    kept: list[dict[str, Any]] = []
    passed: list[dict[str, Any]] = []
    for at in np.random.default_rng([seed, 60]).permutation(len(everywhere)).tolist():
        layer, neuron = everywhere[at]
        sign, found = sides(store, layer, neuron)
        examples = int(found.counts[0])
        row = {"layer": layer, "neuron": neuron, "sign": sign, "examples": examples}
        if examples < CONTEXTS:
            passed.append(row)
            continue
        kept.append(row | {"places": found.places[0, :CONTEXTS].tolist()})
        if len(kept) == count:
            return kept, passed
    raise SystemExit(f"only {len(kept)} neurons of the store have {CONTEXTS} examples")


def draw(folder: Path, out: Path, count: int, seed: int) -> None:
    store = fm.open_store(folder)
    kept, passed = drawn(store, count, seed)
    rng = np.random.default_rng([seed, 61])
    blind: dict[str, list[dict[str, str]]] = {}
    text = [HEAD]
    for number, row in enumerate(kept, 1):
        places = rng.permutation(np.array(row["places"]))
        at = zip(sequence_of(places).tolist(), position_of(places).tolist(), strict=True)
        windows = store.contexts.windows(at, WIDTH)
        lines = [
            {"before": "".join(w.tokens[: w.at]), "token": w.tokens[w.at], "after": "".join(w.tokens[w.at + 1 :])}
            for w in windows
        ]
        blind[str(number)] = lines
        text.append(f"## {number}\n")
        text += [f"- {one_line(o['before'])}**[{one_line(o['token'])}]**{one_line(o['after'])}" for o in lines]
        text.append("")
        row["contexts"] = lines
    out.mkdir(parents=True, exist_ok=True)
    provenance = store.provenance | {"reading": {"seed": seed, "contexts": CONTEXTS, "width": WIDTH}}
    key = {"neurons": {str(i): row for i, row in enumerate(kept, 1)}, "passed": passed, "provenance": provenance}
    (out / "key.json").write_text(json.dumps(key, indent=1))
    (out / "blind.json").write_text(json.dumps(blind, indent=1, ensure_ascii=False))
    (out / "blind.md").write_text("\n".join(text))
    print(f"{len(kept)} neurons drawn, {len(passed)} passed over with fewer than {CONTEXTS} examples")


def one_line(text: str) -> str:
    return text.replace("\n", "↵")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("draw")
    one.add_argument("store", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--neurons", type=int, default=NEURONS)
    one.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw(asked.store, asked.out, asked.neurons, asked.seed)


if __name__ == "__main__":
    main()
