"""The firings that decide between two prompts' answers: how few, how surely, and how long it takes to find them.

Tasks are pairs that differ in one thing: agreement with a subject across a noun phrase or a relative clause, the gender
of a pronoun, tense, the larger year, and facts of a file in one template that the model says both of. Of each pair the
set is found by ``contrast``; printed are medians over pairs of how many firings it has, of all, its sufficiency,
necessity and transfer, the sufficiency of as many firings at random, and seconds. ``--beside``: the sufficiency of as
many chosen in one step: by the score of a contrast (the mean of both runs' gradients), by the gradient of the prompt's
run alone, by integrated gradients, and by what they add along all paths. ``--over``: what recurs
in one half of the pairs does in the other.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from common import machine

import ffnmem as fm
from ffnmem.interventions import Contrast
from ffnmem.interventions.contrasts import Between, align_both
from ffnmem.interventions.contrasts_over import compare_pairs

NOUNS = ("key", "book", "dog", "author", "teacher", "picture", "farmer", "problem", "road", "letter", "toy", "window",
         "pilot", "student", "house", "song")  # fmt: skip
PHRASES = ("to the cabinet", "on the table", "near the house", "of the report", "at the school", "of the boy",
           "near the river", "with the car", "to the village", "from the lawyer", "under the bed", "of the church",
           "of the plane", "in the class", "by the lake", "of the singer")  # fmt: skip
CLAUSES = ("that the man likes", "that the woman saw", "that the child found", "that my friend knows")
NAMES = (("John", "Mary"), ("Peter", "Anna"), ("Robert", "Susan"), ("George", "Laura"), ("Frank", "Julia"),
         ("Henry", "Alice"), ("Paul", "Emma"), ("David", "Sarah"))  # fmt: skip
TENSES = ("Every day she", "Every morning the teacher", "Every week my father", "Every year the king", "Every night he",
          "Every summer our neighbour")  # fmt: skip
STEPS = 20  # of integrated gradients
YEARS, WAR = range(12, 92, 10), "The war lasted from the year 17"


def tasks(model: fm.Model, facts: str | None, limit: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """Pairs by task: prompt, counterfactual, target, foil."""
    found = {
        "agreement, noun phrase": [
            (f"The {noun}s {phrase}", f"The {noun} {phrase}", " are", " is")
            for noun, phrase in zip(NOUNS, PHRASES, strict=True)
        ],
        "agreement, relative clause": [
            (f"The {noun}s {CLAUSES[i % 4]}", f"The {noun} {CLAUSES[i % 4]}", " are", " is")
            for i, noun in enumerate(NOUNS)
        ],
        "pronoun": [(f"{one} said that", f"{other} said that", " he", " she") for one, other in NAMES],
        "tense": [(start.replace("Every", "Last"), start, " was", " is") for start in TENSES],
        "greater year": [
            (f"{WAR}{year} to the year 17", f"{WAR}{year - 10} to the year 17", str(year)[0], str(year - 10)[0])
            for year in YEARS[1:]
        ],
    }
    if facts is not None:
        found["facts"] = fact_pairs(model, facts)
    return {name: pairs[:limit] for name, pairs in found.items()}


def fact_pairs(model: fm.Model, source: str) -> list[tuple[str, str, str, str]]:
    """One pair for each template of which the model says two facts with different answers."""
    known: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for fact in fm.load_facts(source):
        said = fm.capture(model, fact.text).predictions(-1, 1)["token"].iloc[0]
        if len(said.strip()) > 1 and f" {fact.target_true.strip()}".startswith(said):
            known[fact.prompt].append((fact.text, said))
    found = []
    for some in known.values():
        random.Random(3).shuffle(some)
        pair = next(((a, b) for i, a in enumerate(some) for b in some[i + 1 :] if a[1] != b[1]), None)
        if pair is not None:
            (one, target), (other, foil) = pair
            found.append((one, other, target, foil))
    return found


def says_both(model: fm.Model, pair: tuple[str, str, str, str]) -> bool:
    """Whether the model prefers the target after the prompt, and the foil after the counterfactual."""
    one, other, target, foil = pair
    logits = [fm.attribute(fm.capture(model, text), target, foil).logit for text in (one, other)]
    return logits[0] > 0 > logits[1]


def slopes(between: Between, shares: Sequence[float]) -> torch.Tensor:
    """Each firing's difference times the mean gradient of runs with all coefficients at these shares of the way from
    the counterfactual's to the prompt's, by one hook a layer."""
    total = torch.zeros_like(between.own)
    for share in shares:
        given = between.own - (1 - share) * between.away
        gradients, _, _ = between.here.gradients(1, lambda layer, _, given=given: given[layer, None])  # type: ignore[misc]
        total += torch.cat(gradients)
    return between.away * total / len(shares)


def in_one_step(model: fm.Model, found: Contrast, pair: tuple[str, str, str, str]) -> dict[str, float]:
    """The share kept by as many firings as were found, chosen in one step by each of some scores."""
    one, other, target, foil = pair
    size, capture = len(found.firings), fm.capture(model, one)
    between = align_both(model, one, other, target, foil, None, False, None, 1024)
    scores = {
        "by both gradients": found.scores,
        "by the prompt's": slopes(between, [1.0]),
        "by integrated gradients": slopes(between, [(i + 0.5) / STEPS for i in range(STEPS)]),
        "by paths": fm.attribute_paths(capture, target, foil).scores,
    }
    kept = {}
    for name, score in scores.items():
        free = score.masked_fill(between.keeping.always.reshape(1, -1, 1), -torch.inf).flatten()
        chosen = free.topk(size).indices.cpu().numpy()
        kept[name] = float(between.kept_and_lost([chosen])[0][0])
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--facts", help="a file of facts, or atlas")
    parser.add_argument("--limit", type=int, default=16, help="pairs of a task at most")
    parser.add_argument("--beside", action="store_true", help="and as many firings chosen in one step")
    parser.add_argument("--over", action="store_true", help="and what recurs, in the other half of the pairs")
    parser.add_argument("--json", help="write all numbers there")
    given = parser.parse_args()
    model = fm.load(given.model)
    print(machine())
    rows: list[dict[str, Any]] = []
    for name, pairs in tasks(model, given.facts, given.limit).items():
        pairs = [pair for pair in pairs if says_both(model, pair)]
        if len(pairs) < 4:
            print(f"{name}: the model says only {len(pairs)} pairs of it")
            continue
        each, sets = [], []
        for pair in pairs:
            began = time.perf_counter()
            found = fm.contrast(model, *pair)
            sets.append(found)
            one: dict[str, Any] = {
                "firings": len(found.firings),
                "of": found.total,
                "seconds": time.perf_counter() - began,
                "carried": found.carried,
                **{measure: found.share(measure) for measure in ("sufficiency", "necessity", "transfer")},
                "random": found.proof["random"].iloc[0],
                "next by score": found.proof["alike"].iloc[0],
            }
            each.append(one | (in_one_step(model, found, pair) if given.beside else {}))
        row: dict[str, Any] = {"task": name, "pairs": len(pairs)}
        row |= {key: statistics.median(one[key] for one in each) for key in each[0]}
        row |= {"least": min(one["firings"] for one in each), "most": max(one["firings"] for one in each)}
        row |= {"necessity, least": min(one["necessity"] for one in each)}
        if given.over:
            task = compare_pairs(model, pairs, sets, {"random": 3, "seed": 0, "prepend_bos": None})
            kept = task.summary_of_held_out
            row |= {"recurring": len(task.recurring), "held out": kept["sufficiency"]}
            row |= {"held out, necessity": kept["necessity"], "held out, size": task.held_out["size"].mean()}
            print(task.top(10).round(2).to_string(index=False), "\n")
        rows.append(row)
        print(pd.Series(row).to_string(), "\n", flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
