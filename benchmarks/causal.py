"""How well the scores of ``causal_scores`` tell what the removal of single firings does, and what they cost.

On facts whose answer is the model's top token, the target against the most probable other token: some firings of each
(the largest by every rule, and as many at random) are set to zero one at a time, exactly, each by a pass of its
own from its layer on. Printed: the correlation with the scores over all of them, how many of the ten largest each rule
finds among its own ten largest, how much of the answers the 200 largest firings keep where all others are at their
means over ordinary text (as computed from what is kept, and as recorded), with the areas under the whole curve, and
what a rule costs as a ratio to one forward pass of the same model, in turns.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import gpt2_small, machine, paired, toy_tokenizer

import ffnmem as fm
from ffnmem.models.replaying import PlainLayers, Replay
from ffnmem.prompts import Capture

RULES: dict[str, dict[str, Any]] = {
    "gradient": {"rule": "gradient"},
    "ig": {"rule": "ig"},
}
OVERLAP, BATCH, DRAWS = 10, 128, 2000
SIZES = (10, 20, 50, 100, 200, 500, 1000)
CORPUS = Path(__file__).parent.parent / "data/corpus/atlas.jsonl.gz"


def known(model: fm.Model, source: str, count: int) -> list[tuple[Capture, int, int]]:
    """Captures of prompts, the answer and the most probable other token."""
    found = []
    for fact in fm.load_facts(source):
        capture = fm.capture(model, fact.text, logits=True)
        assert capture.logits is not None
        first, second = capture.logits[0, -1].topk(2).indices.tolist()
        if model.ids_of(" " + fact.target_true)[0] == first:
            found.append((capture, first, second))
        if len(found) == count:
            break
    return found


def exact(capture: Capture, target: int, foil: int, firings: list[tuple[int, int, int]]) -> np.ndarray:
    """What the difference of two logits loses where one firing (layer, position, neuron) is zero; in their order."""
    model = capture.model
    replay = Replay(PlainLayers(model), capture.tokens)

    def logits(final: torch.Tensor) -> torch.Tensor:
        found = replay.logits(final).double()
        return found[:, target] - found[:, foil]

    lost = np.zeros(len(firings))
    order = sorted(range(len(firings)), key=lambda i: firings[i])
    with torch.no_grad():
        clean = float(logits(replay.stream[model.n_layers][:, -1]))
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            first = min(firings[i][1] for i in some)
            more = torch.zeros(len(some), replay.length - first, model.d_model, dtype=model.dtype)
            for row, (layer, position, neuron) in enumerate(firings[i] for i in some):
                m = replay.coefficients[layer][0, position, neuron]
                more[row, position - first] = -m * model.ffn[layer].values[neuron]
            layers = [firings[i][0] for i in some]
            final = replay.finish(layers, replay.outputs(layers, first, more))[:, -1]
            lost[some] = clean - logits(final).numpy()
    return lost


def agreement(captures: list[tuple[Capture, int, int]], most: int) -> dict[str, dict[str, float]]:
    """By rule, correlation with exact ablation (mean over facts, and of all firings) and overlap of the largest."""
    scores: dict[str, list[np.ndarray]] = {name: [] for name in (*RULES, "paths")}
    effects, overlaps = [], {name: [] for name in scores}
    generator = np.random.default_rng(0)
    for capture, target, foil in captures:
        found = {name: fm.causal_scores(capture, target, foil, **rule, exact=0).scores for name, rule in RULES.items()}
        found["paths"] = fm.attribute_paths(capture, target, foil).scores
        flat = {name: tensor.double().numpy().ravel() for name, tensor in found.items()}
        size = len(flat["paths"])
        chosen = set(generator.choice(size, most, replace=False).tolist())
        for values in flat.values():
            chosen |= set(np.argsort(-np.abs(values))[:most].tolist())
        places = np.array(sorted(chosen))
        triples = list(zip(*(a.tolist() for a in np.unravel_index(places, found["paths"].shape)), strict=True))
        lost = exact(capture, target, foil, triples)
        effects.append(lost)
        largest = set(np.argsort(-np.abs(lost))[:OVERLAP].tolist())
        for name, values in flat.items():
            scores[name].append(values[places])
            mine = set(np.argsort(-np.abs(values[places]))[:OVERLAP].tolist())
            overlaps[name].append(len(mine & largest) / OVERLAP)
    return {
        name: {
            "correlation": float(np.corrcoef(np.concatenate(scores[name]), np.concatenate(effects))[0, 1]),
            "by_fact": float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(scores[name], effects, strict=True)])),
            "overlap": float(np.mean(overlaps[name])),
        }
        for name in scores
    }


def means(model: fm.Model, text: Path, tokens: int, width: int = 64) -> torch.Tensor:
    """Mean coefficients over the first tokens of a text or of a compressed file of texts, ``[layer, d_mlp]``."""
    if text.suffix == ".gz":
        with gzip.open(text, "rt") as lines:
            whole = "\n".join(json.loads(line)["text"] for _, line in zip(range(tokens // 5), lines, strict=False))
    else:
        whole = text.read_text()[: tokens * 8]
    ids = torch.tensor(model.ids_of(whole)[:tokens])
    total, count = torch.zeros(model.n_layers, model.d_mlp, dtype=torch.float64), 0
    bos = [] if model.bos_token_id is None or not model.prepend_bos else [model.bos_token_id]
    for row in ids.split(width - len(bos)):
        capture = fm.capture(model, torch.cat([torch.tensor(bos, dtype=torch.long), row]))
        total += torch.stack([capture.coefficients[i][0, len(bos) :].double().sum(0) for i in range(model.n_layers)])
        count += len(row)
    return total / count


def enough(captures: list[tuple[Capture, int, int]], mean: torch.Tensor) -> dict[str, dict[str, Any]]:
    """By rule and by what kept firings are: the share of the answers kept, and the areas under the curve; over facts as
    MIB pools them, differences of logits first, with a bootstrap interval."""
    results: dict[str, list[Any]] = {}
    for capture, target, foil in captures:
        for name, rule in {**RULES, "paths": {}}.items():
            if rule.get("rule") == "ig":
                continue
            scores = (
                fm.causal_scores(capture, target, foil, mean=mean, **rule, exact=0)
                if rule
                else fm.attribute_paths(capture, target, foil)
            )
            for recorded in (False, True):
                total = scores.coefficients[:, int(capture.starts_with_bos) :].numel()
                sizes = [*SIZES, *(round(total * share) for share in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0))]
                found = fm.faithfulness(
                    capture,
                    target,
                    foil,
                    scores,
                    mean=mean,
                    recorded=recorded,
                    sizes=sizes,
                    random=int(name == "gradient"),
                )
                results.setdefault(f"{name}{', recorded' * recorded}", []).append(found)
    told = {}
    for name, all_of_it in results.items():
        at = pd.DataFrame([found.at(200) for found in all_of_it])
        weight = np.array([found.logit - found.without for found in all_of_it])
        picks = np.random.default_rng(0).integers(len(at), size=(DRAWS, len(at)))
        kept = at["faithfulness"].to_numpy()
        low, high = np.quantile((kept * weight)[picks].sum(1) / weight[picks].sum(1), [0.025, 0.975])
        areas = {
            "cpr": np.average([found.cpr for found in all_of_it], weights=weight),
            "cmd": np.average([found.cmd for found in all_of_it], weights=np.abs(weight)),
        }
        pooled = {column: np.average(at[column], weights=weight) for column in at if column != "size"}
        told[name] = {**pooled, "low": low, "high": high, "mean": kept.mean(), "median": np.median(kept), **areas}
    return {name: {key: float(value) for key, value in of.items()} for name, of in told.items()}


def cost(capture: Capture, rounds: int) -> dict[str, float]:
    """Seconds of each rule as a ratio to a forward pass with logits of the same prompt, medians of turns."""
    model = capture.model

    def forward() -> None:
        with torch.no_grad():
            model.hf_model(capture.tokens, use_cache=False)

    ratios = {}
    for name, rule in RULES.items():
        if rule["rule"] != "ig":
            times = paired(lambda rule=rule: fm.causal_scores(capture, 11, 12, **rule, exact=0), forward, rounds)
            ratios[name] = statistics.median(a for a, _ in times) / statistics.median(b for _, b in times)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--facts", metavar="FILE", help="default: atlas's own")
    parser.add_argument("--text", type=Path, default=CORPUS, help="for means; default: atlas's corpus")
    parser.add_argument("--tokens", type=int, default=8000, help="of the text")
    parser.add_argument("--limit", type=int, default=30)
    parser.add_argument("--largest", type=int, default=100, help="firings of each rule, and at random, to remove")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = fm.load(arguments.model)
    captures = known(model, "atlas" if arguments.facts is None else str(Path(arguments.facts)), arguments.limit)
    shape = gpt2_small()
    other = fm.load(shape, tokenizer=toy_tokenizer(shape.config.vocab_size), device="cpu")
    tokens = torch.randint(0, 50_000, (1, 32), generator=torch.Generator().manual_seed(0))
    result = {
        "model": model.name,
        "facts": len(captures),
        "agreement": agreement(captures, arguments.largest),
        "enough": enough(captures, means(model, arguments.text, arguments.tokens)),
        "cost": cost(captures[0][0], arguments.rounds),
        "cost_gpt2_shape": cost(fm.capture(other, tokens), arguments.rounds),
        **machine(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{model.name}, {len(captures)} facts         correlation   by fact   overlap of the ten largest")
    for name, found in result["agreement"].items():
        print(f"{name:28} {found['correlation']:10.3f} {found['by_fact']:9.3f} {found['overlap']:9.2f}")
    print("kept by the 200 largest      of all answers (95%)     mean of facts  median   the rest keep   CPR     CMD")
    for name, kept in result["enough"].items():
        interval = f"{kept['faithfulness']:.2f} ({kept['low']:.2f} to {kept['high']:.2f})"
        areas = f"{kept['cpr']:.3f} {kept['cmd']:8.3f}"
        print(
            f"{name:33} {interval:24} {kept['mean']:.2f} {kept['median']:9.2f} {kept['completeness']:9.2f} {areas:>18}"
        )
        if "random" in kept:
            print(f"{'  as many at random':33} {kept['random']:.2f}")
    print("cost, in forward passes      this model   GPT-2 small's shape, 32 tokens")
    for name, ratio in result["cost"].items():
        print(f"{name:28} {ratio:10.2f} {result['cost_gpt2_shape'][name]:9.2f}")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
