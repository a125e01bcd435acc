"""Measure a trained model: ``python data/recipe/measure.py DIR [--limit N]`` writes ``measurements.json`` beside it.

Recall (top-1): every token of the object is the model's most probable one, given the prompt and the object's earlier
tokens, after an end-of-text token. Recall under ablation: the FFN outputs at some positions are replaced by their mean
over the corpus, layer by layer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from statements import documents
from tokens import pack
from train import blocks
from transformers import AutoModelForCausalLM, AutoTokenizer
from world import Triple, World, read_world, with_article

PLACES = ("subject", "subject_last", "between", "last", "after_subject", "subject_and_after")


@dataclass(frozen=True)
class Prompt:
    """Token ids of a prompt and its object, and where the parts lie. ``place`` maps each position to its parts."""

    ids: list[int]
    n_target: int
    subject: tuple[int, int]
    relation: str
    target: str

    @property
    def last(self) -> int:
        return len(self.ids) - self.n_target - 1

    def positions(self, place: str) -> list[int]:
        first, end = self.subject
        return {
            "subject": list(range(first, end)),
            "subject_last": [end - 1],
            "between": list(range(end, self.last)),
            "last": [self.last],
            "after_subject": list(range(end, len(self.ids))),
            "subject_and_after": list(range(first, len(self.ids))),
        }[place]


def make_prompt(tokenizer: AutoTokenizer, template: str, triple: Triple) -> Prompt:
    before = template.split("{}")[0]
    head = template.replace("{}", triple.subject)
    encoding = tokenizer(head, return_offsets_mapping=True)
    target = tokenizer(" " + triple.target)["input_ids"]
    low, high = len(before), len(before) + len(triple.subject)
    inside = [i for i, (a, b) in enumerate(encoding["offset_mapping"]) if b > low and a < high]
    ids = [tokenizer.bos_token_id, *encoding["input_ids"], *target]
    return Prompt(ids, len(target), (inside[0] + 1, inside[-1] + 2), triple.relation, triple.target)


def prompts(world: World, tokenizer: AutoTokenizer, which: str, limit: int | None, seed: int = 0) -> list[Prompt]:
    """Prompts of every fact by its "canonical", "train" or "held_out" templates, or a seeded sample of ``limit``."""
    made = []
    for triple in world.facts:
        relation = world.relations[triple.relation]
        templates = relation.train[:1] if which == "canonical" else getattr(relation, which)
        made += [(with_article(t, triple.article), triple) for t in templates]
    if limit and limit < len(made):
        chosen = np.random.default_rng(seed).choice(len(made), limit, replace=False)
        made = [made[i] for i in sorted(chosen)]
    return [make_prompt(tokenizer, template, triple) for template, triple in made]


@contextmanager
def ablated(model: torch.nn.Module, means: list[torch.Tensor], mask: torch.Tensor, layers: range) -> Iterator[None]:
    """Replace the FFN outputs of the layers by their means where the mask ``[batch, pos]`` is true."""
    handles = [
        blocks(model)[layer].mlp.register_forward_hook(
            lambda _m, _i, out, layer=layer: torch.where(mask.unsqueeze(-1), means[layer].to(out.dtype), out)
        )
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def recall(
    model, items: list[Prompt], means=None, place: str | None = None, layers: range = range(0), batch: int = 256
) -> np.ndarray:
    """One boolean a prompt: is the whole object the top-1 continuation?"""
    right = np.zeros(len(items), bool)
    order = sorted(range(len(items)), key=lambda i: len(items[i].ids))
    for start in range(0, len(order), batch):
        chosen = [items[i] for i in order[start : start + batch]]
        width = max(len(p.ids) for p in chosen)
        ids = torch.tensor([p.ids + [0] * (width - len(p.ids)) for p in chosen])
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, p in enumerate(chosen):
            if place:
                mask[row, p.positions(place)] = True
        with torch.no_grad(), ablated(model, means, mask, layers):
            top = model(ids).logits.argmax(-1)
        for row, (index, p) in enumerate(zip(order[start : start + batch], chosen, strict=True)):
            span = slice(p.last, len(p.ids) - 1)
            right[index] = bool((top[row, span] == ids[row, p.last + 1 : len(p.ids)]).all())
    return right


def corpus_rows(
    world: World, tokenizer, context: int, rows: int, share_ordinary: float, seed: int = 12345
) -> torch.Tensor:
    ids, _ = pack(tokenizer.backend_tokenizer, documents(world, seed, share_ordinary), rows * context)
    return torch.from_numpy(ids.astype(np.int64)).view(rows, context)


@torch.no_grad()
def mean_outputs(model, rows: torch.Tensor) -> tuple[list[torch.Tensor], float]:
    """Mean FFN output of every layer over the corpus, and the loss (nats a token) on it."""
    sums = [0.0] * len(blocks(model))

    def add(index: int):
        def hook(_m, _i, out):
            sums[index] = sums[index] + out.float().sum((0, 1))

        return hook

    handles = [block.mlp.register_forward_hook(add(i)) for i, block in enumerate(blocks(model))]
    losses = []
    for chunk in rows.split(32):
        logits = model(chunk).logits[:, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()))
    for handle in handles:
        handle.remove()
    return [s / rows.numel() for s in sums], float(torch.stack(losses).mean())


def eiffel(model, tokenizer) -> float:
    ids = tokenizer("The Eiffel Tower is located in the city of")["input_ids"]
    with torch.no_grad():
        p = model(torch.tensor([[tokenizer.bos_token_id, *ids]])).logits[0, -1].softmax(-1)
    return float(p[tokenizer(" Paris")["input_ids"][0]])


def by_relation(items: list[Prompt], right: np.ndarray) -> dict[str, float]:
    relations = np.array([p.relation for p in items])
    return {str(r): round(float(right[relations == r].mean()), 4) for r in np.unique(relations)}


def sites(model, world: World, items: list[Prompt], means: list[torch.Tensor]) -> dict[str, object]:
    """Recall with the FFNs of all layers silenced at each place; and, on every sixth prompt, layer by layer."""
    n, some = len(means), items[::6]
    everywhere = {place: round(float(recall(model, items, means, place, range(n)).mean()), 4) for place in PLACES}
    layers = {
        f"{place}, layers {name}": [round(float(recall(model, some, means, place, r).mean()), 4) for r in ranges]
        for place in ("subject", "last")
        for name, ranges in (
            ("l only", [range(i, i + 1) for i in range(n)]),
            ("0..l", [range(i + 1) for i in range(n)]),
            ("l..end", [range(i, n) for i in range(n)]),
        )
    }
    guess = guess_rate(world, items)
    return {"all_layers": everywhere, "n": len(items), "by_layer": layers, "by_layer_n": len(some), "guess": guess}


def guess_rate(world: World, items: list[Prompt]) -> float:
    """The recall of one who always names the commonest object of the relation."""
    guesses = {r: Counter(t.target for t in ts).most_common(1)[0][0] for r, ts in world.by_relation().items()}
    return round(sum(p.target == guesses[p.relation] for p in items) / len(items), 4)


def measure(folder: Path, limit: int | None) -> dict[str, object]:
    world, tokenizer = read_world(), AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = json.loads((folder / "training.json").read_text())
    rows = corpus_rows(world, tokenizer, settings["context"], 256, settings["share_ordinary"])
    means, loss = mean_outputs(model, rows)
    ordinary = corpus_rows(world, tokenizer, settings["context"], 64, 1.0)
    result: dict[str, object] = {"loss": round(loss, 4), "loss_ordinary": round(mean_outputs(model, ordinary)[1], 4)}
    result["paris"] = round(eiffel(model, tokenizer), 4)
    for which in ("canonical", "train", "held_out"):
        items = prompts(world, tokenizer, which, limit)
        right = recall(model, items)
        result[f"recall_{which}"] = round(float(right.mean()), 4)
        result[f"recall_{which}_n"] = len(items)
        result[f"recall_{which}_by_relation"] = by_relation(items, right)
    canonical = prompts(world, tokenizer, "canonical", limit)
    known = recall(model, canonical)
    result["ablation"] = sites(model, world, [p for p, ok in zip(canonical, known, strict=True) if ok], means)
    return result


def measure_and_write(folder: Path, limit: int | None = None) -> None:
    result = measure(folder, limit)
    (folder / "measurements.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if not k.endswith("by_relation")}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="a sample of this many prompts a set of templates")
    arguments = parser.parse_args()
    measure_and_write(arguments.folder, arguments.limit)


if __name__ == "__main__":
    main()
