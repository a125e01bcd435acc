"""Do verdicts agree with readers? Neurons drawn at random, read blind, and compared with their verdicts.

``draw STORE FOLDER`` writes ``blind.md`` and ``blind.json``, the nine strongest contexts of each of 60 neurons in
random order without anything that was measured, and ``key.json``, which neurons they are. Neurons are drawn uniformly
from all layers, and the side of each is that of its largest coefficient by size; one with fewer than nine examples
there (sequences in which the coefficient reaches half of its largest) cannot be read or measured, and the next takes
its place.

``verdicts STORE FOLDER`` adds what ``ffnmem polysemanticity --store STORE --sign both`` has kept, and writes
``neurons.json``: the neurons, their verdicts, and a few words around each firing token.

``agreement [FOLDER]`` compares these with each reader's ``reader1.json``, ``reader2.json``: for each number the kind
("one", "several" or "unclear") and a label. ``page [FOLDER]`` writes all of it as Markdown (docs/results/reading.md).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ffnmem as fm
from ffnmem.neurons.inputs import firing
from ffnmem.neurons.measuring import MEANINGS, read_one, rule_key
from ffnmem.neurons.verdicts import Estimate, share_interval
from ffnmem.neurons.verdicts import verdicts as judge
from ffnmem.scanning.state import position_of, sequence_of

NEURONS, CONTEXTS, WIDTH = 60, 9, 12
WORDS, LISTED = 4, 4  # tokens on each side that are published, and contexts of the page
DRAWS = 10_000
ABOVE = (1.35, 2, 2.5, 3, 4)  # rules that are tried
KINDS = ("one", "several", "unclear")
KIND_OF = {"monosemantic": "one", "polysemantic": "several", "unclear": "unclear"}
DATA = Path(__file__).resolve().parent.parent / "data" / "reading"
HEAD = """# Contexts to be read

Each number is one unit of a language model. It was active at the token between **[** and **]** in each of its lines;
the order of the lines says nothing. Does what it is active at have one meaning, or several that have nothing to do with
each other?
"""


# -- what is read ------------------------------------------------------------------------------------------------------


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


def contexts(store: Any, places: Sequence[int], width: int) -> list[dict[str, str]]:
    at = [(int(sequence_of(place)), int(position_of(place))) for place in places]
    return [
        {"before": "".join(w.tokens[: w.at]), "token": w.tokens[w.at], "after": "".join(w.tokens[w.at + 1 :])}
        for w in store.contexts.windows(at, width)
    ]


def draw(folder: Path, out: Path, count: int, seed: int) -> None:
    store = fm.open_store(folder)
    kept, passed = drawn(store, count, seed)
    rng = np.random.default_rng([seed, 61])
    blind: dict[str, list[dict[str, str]]] = {}
    text = [HEAD]
    for number, row in enumerate(kept, 1):
        lines = contexts(store, rng.permutation(np.array(row["places"])).tolist(), WIDTH)
        blind[str(number)] = lines
        text.append(f"## {number}\n")
        text += [f"- {one_line(o['before'])}**[{one_line(o['token'])}]**{one_line(o['after'])}" for o in lines]
        text.append("")
    out.mkdir(parents=True, exist_ok=True)
    provenance = store.provenance | {"reading": {"seed": seed, "contexts": CONTEXTS, "width": WIDTH}}
    key = {"neurons": {str(i): row for i, row in enumerate(kept, 1)}, "passed": passed, "provenance": provenance}
    write(out / "key.json", key)
    write(out / "blind.json", blind)
    (out / "blind.md").write_text("\n".join(text))
    print(f"{len(kept)} neurons drawn, {len(passed)} passed over with fewer than {CONTEXTS} examples")


def one_line(text: str) -> str:
    return text.replace("\n", "↵")


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def verdicts(folder: Path, out: Path) -> None:
    """What is kept is judged by today's rule, as the command would."""
    store = fm.open_store(folder)
    rule = rule_key(fm.neurons.Rule())
    key = json.loads((out / "key.json").read_text())
    for row in key["neurons"].values():
        found = read_one(store, row["layer"], row["neuron"], row["sign"], {"rule": rule})
        if found is None:
            raise SystemExit(f"{folder} keeps no meanings of {row['sign']} coefficients: ffnmem polysemanticity first")
        row |= {name: found[name] for name in ("examples", "verdict", "why")}
        row |= {name: round(found[name], 4) for name in MEANINGS}
        row["contexts"] = contexts(store, row.pop("places"), WORDS)
        settings = found["provenance"]
    key["provenance"] = settings | {"reading": key["provenance"]["reading"]}
    key["tokens"] = store.n_tokens
    write(out / "neurons.json", key)
    print(f"{len(key['neurons'])} neurons with their verdicts in {out / 'neurons.json'}")


# -- how far it agrees -------------------------------------------------------------------------------------------------


class Readings:
    """Verdicts and readers, one kind a number."""

    def __init__(self, folder: Path) -> None:
        key = json.loads((folder / "neurons.json").read_text())
        self.neurons, self.passed, self.tokens = key["neurons"], key["passed"], key["tokens"]
        self.readers = [json.loads((folder / f"reader{i}.json").read_text()) for i in (1, 2)]
        self.numbers = sorted(self.neurons, key=int)
        for reader in self.readers:
            if set(reader) != set(self.numbers) or any(one["kind"] not in KINDS for one in reader.values()):
                raise SystemExit("a reader's file does not name a kind for every number")
        self.by = {
            "verdict": self.kinds([KIND_OF[self.neurons[n]["verdict"]] for n in self.numbers]),
            "reader 1": self.kinds([self.readers[0][n]["kind"] for n in self.numbers]),
            "reader 2": self.kinds([self.readers[1][n]["kind"] for n in self.numbers]),
        }

    def values(self, name: str) -> np.ndarray:
        return np.array([self.neurons[n][name] for n in self.numbers], np.float64)

    @staticmethod
    def kinds(names: list[str]) -> np.ndarray:
        return np.array([KINDS.index(name) for name in names])


PAIRS = (("verdict", "reader 1"), ("verdict", "reader 2"), ("reader 1", "reader 2"))


def kappa(one: np.ndarray, other: np.ndarray) -> float:
    """Cohen's: agreement beyond what the two would have by chance, as a share of what is left to agree on."""
    a, b = (np.bincount(some, minlength=len(KINDS)) / len(some) for some in (one, other))
    expected = float(a @ b)
    return (float((one == other).mean()) - expected) / (1 - expected) if expected < 1 else float("nan")


def kappa_interval(one: np.ndarray, other: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95%, by a bootstrap over neurons."""
    picks = np.random.default_rng(seed).integers(len(one), size=(DRAWS, len(one)))
    low, high = np.nanquantile([kappa(one[pick], other[pick]) for pick in picks], (0.025, 0.975))
    return float(low), float(high)


def agreement_rows(found: Readings) -> list[str]:
    rows = ["| | neurons | agree | Cohen's κ |", "|---|--:|--:|--:|"]
    for first, second in PAIRS:
        for which in ("all", "decided"):
            one, other = found.by[first], found.by[second]
            if which == "decided":
                both = (one < 2) & (other < 2)
                one, other = one[both], other[both]
            same = int((one == other).sum())
            low, high = share_interval(same, len(one))
            ends = kappa_interval(one, other)
            name = f"{first}, {second}{'' if which == 'all' else ', both decided'}"
            share = f"{same} ({same / len(one):.0%}, {low:.0%} to {high:.0%})"
            rows.append(f"| {name} | {len(one)} | {share} | {kappa(one, other):.2f} ({ends[0]:.2f} to {ends[1]:.2f}) |")
    return rows


def confusion_rows(found: Readings, first: str, second: str) -> list[str]:
    names = KINDS if first != "verdict" else tuple(KIND_OF)
    rows = [f"| {first} \\ {second} | {' | '.join(KINDS)} |", "|---|--:|--:|--:|"]
    for i, name in enumerate(names):
        counts = [int(((found.by[first] == i) & (found.by[second] == j)).sum()) for j in range(len(KINDS))]
        rows.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return rows


def above_chance(values: np.ndarray, several: np.ndarray) -> float:
    """AUROC: the chance that one read as several has the larger value, ties half; NaN of one kind."""
    if several.all() or not several.any():
        return float("nan")
    a, b = values[several][:, None], values[~several][None]
    return float((a > b).mean() + (a == b).mean() / 2)


def best_line(values: np.ndarray, several: np.ndarray) -> float:
    """Where a line between one and several agrees most: in the middle (of logarithms) of all such."""
    ordered = np.sort(values)
    lines = np.sqrt(ordered[1:] * ordered[:-1])
    right = np.array([((values > line) == several).mean() for line in lines])
    return float(np.exp(np.log(lines[right == right.max()]).mean()))


def order_rows(found: Readings, seed: int = 0) -> list[str]:
    """Whether the number of meanings orders neurons as readers do, and where their line is."""
    rows = ["| | decided | AUROC of meanings | best line | agree, leave-one-out |", "|---|--:|--:|--:|--:|"]
    for name in ("reader 1", "reader 2"):
        decided = found.by[name] < 2
        values, several = found.values("meanings")[decided], found.by[name][decided] == 1
        picks = np.random.default_rng(seed).integers(len(values), size=(DRAWS, len(values)))
        low, high = np.nanquantile([above_chance(values[pick], several[pick]) for pick in picks], (0.025, 0.975))
        others = ~np.eye(len(values), dtype=bool)
        lines = np.array([best_line(values[one], several[one]) for one in others])
        right = int(((values > lines) == several).sum())
        ends = share_interval(right, len(values))
        rows.append(
            f"| {name} | {len(values)} | {above_chance(values, several):.2f} ({low:.2f} to {high:.2f}) | "
            f"{best_line(values, several):.1f} | {right} ({right / len(values):.0%}, {ends[0]:.0%} to {ends[1]:.0%}) |"
        )
    return rows


def rule_rows(found: Readings) -> list[str]:
    """What other rules than the default would have agreed with."""
    rows = [
        "| `--above` | monosemantic, polysemantic, unclear | both decided | agree with reader 1 | Cohen's κ |",
        "|--:|--:|--:|--:|--:|",
    ]
    estimate = Estimate(*(found.values(name) for name in MEANINGS))
    for above in ABOVE:
        told, _ = judge(
            np.ones(len(found.numbers), bool),
            found.values("examples").astype(np.int64),
            estimate,
            fm.neurons.Rule(above),
        )
        kinds, read = found.kinds([KIND_OF[one] for one in told]), found.by["reader 1"]
        both = (kinds < 2) & (read < 2)
        same, counts = int((kinds == read)[both].sum()), np.bincount(kinds, minlength=3)
        ends = kappa_interval(kinds[both], read[both])
        rows.append(
            f"| {above:g} | {', '.join(map(str, counts))} | {both.sum()} | {same} ({same / both.sum():.0%}) | "
            f"{kappa(kinds[both], read[both]):.2f} ({ends[0]:.2f} to {ends[1]:.2f}) |"
        )
    return rows


def agreement(folder: Path) -> None:
    found = Readings(folder)
    print("\n".join([*agreement_rows(found), ""]))
    for pair in PAIRS:
        print("\n".join([*confusion_rows(found, *pair), ""]))
    print("\n".join([*order_rows(found), "", *rule_rows(found), ""]))
    told = [found.neurons[n]["why"] for n in found.numbers if found.neurons[n]["why"]]
    for why in sorted(set(told)):
        print(f"{told.count(why)} unclear: {why}")


PAGE = """# Sixty neurons, read blind

Do the [verdicts](../guide/polysemanticity.md) agree with a reader? Sixty neurons of [SmolLM2](../smollm2.md) were drawn
uniformly from all 30 layers, each on the side of its largest coefficient, on {tokens:,} tokens of WikiText-2. {passed}
others that were drawn had fewer than nine examples and were left out.

Two readers saw the nine strongest contexts of each neuron (12 tokens on both sides), in random order and without the
verdict. They wrote down whether the neuron has one meaning or several, and which. Each reader was a language model that
was given nothing else. Two limits: being of one kind, the readers may share mistakes; and they saw nine contexts, while
a verdict uses up to 40.

## Do they agree?

{agreement}

{confusion}

What is called monosemantic is read as one meaning, and nine in ten neurons that are read as several are called
polysemantic. But readers see one meaning in some neurons where the rule sees several: "was" and "were", the word after
"of", words for success and failure.

## Where readers draw the line

The *number* of meanings orders neurons as readers do, but readers call a neuron "several" only from a higher number on.
The rule's threshold comes from [planted models](calibration.md), where two meanings are two words with nothing in
common.

{order}

{rules}

The last table uses the same neurons on which one would choose a threshold, so it is not a test of it. It shows which
way to move `--above` for verdicts like a reader's. The default stays at what planted meanings give, whose truth is
known.

`python benchmarks/reading.py agreement` prints these tables from `data/reading`. Intervals are 95%: Wilson's for
shares, a bootstrap over neurons for κ. `draw` and `verdicts` make the material again from a store.

## The neurons

Columns: the number of meanings with its interval, and of how many examples; what the readers wrote; and {listed} of the
nine contexts, with the token where the neuron fires in bold (␣: a space or a line's end). − marks the side of negative
coefficients. The text is WikiText-2 (Merity et al. 2016), from Wikipedia, CC BY-SA 3.0.

{neurons}
"""


def cell(text: str) -> str:
    """Text of others as a cell of a Markdown table: nothing of it is markup."""
    found = "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in one_line(text))
    return found.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def context_cell(context: dict[str, str]) -> str:
    before, token, after = (cell(context[part]) for part in ("before", "token", "after"))
    space = " " if token[:1] == " " and token.strip() else ""
    return f"{before.lstrip()}{space}**{token.strip() or '␣'}**{after.rstrip()}"


def page(folder: Path) -> None:
    found = Readings(folder)
    rows = ["| | neuron | verdict | reader 1 | reader 2 | contexts |", "|--:|---|---|---|---|---|"]
    for number in found.numbers:
        row = found.neurons[number]
        sign = "" if row["sign"] == "positive" else " −"
        ends = f"{row['meanings_low']:.2f} to {row['meanings_high']:.2f}"
        told = f"{row['verdict']}, {row['meanings']:.2f} ({ends}) of {row['examples']}"
        read = [f"{reader[number]['kind']}: {cell(reader[number]['label'])}" for reader in found.readers]
        shown = " · ".join(context_cell(one) for one in row["contexts"][:LISTED])
        rows.append(f"| {number} | {row['layer']}.{row['neuron']}{sign} | {told} | {' | '.join(read)} | {shown} |")
    tables = [
        *confusion_rows(found, *PAIRS[0]),
        "",
        *confusion_rows(found, *PAIRS[1]),
        "",
        *confusion_rows(found, *PAIRS[2]),
    ]
    print(
        PAGE.format(
            tokens=found.tokens,
            passed=len(found.passed),
            agreement="\n".join(agreement_rows(found)),
            confusion="\n".join(tables),
            order="\n".join(order_rows(found)),
            rules="\n".join(rule_rows(found)),
            listed=LISTED,
            neurons="\n".join(rows),
        ),
        end="",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("store", type=Path)
    drawing.add_argument("folder", type=Path)
    drawing.add_argument("--neurons", type=int, default=NEURONS)
    drawing.add_argument("--seed", type=int, default=0)
    judging = commands.add_parser("verdicts")
    judging.add_argument("store", type=Path)
    judging.add_argument("folder", type=Path)
    for name in ("agreement", "page"):
        commands.add_parser(name).add_argument("folder", type=Path, nargs="?", default=DATA)
    asked = parser.parse_args()
    if asked.command == "draw":
        draw(asked.store, asked.folder, asked.neurons, asked.seed)
    elif asked.command == "verdicts":
        verdicts(asked.store, asked.folder)
    else:
        {"agreement": agreement, "page": page}[asked.command](asked.folder)


if __name__ == "__main__":
    main()
