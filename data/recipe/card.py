"""The model card: ``python data/recipe/card.py`` writes ``data/atlas/README.md`` from the measurements beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from train import Settings
from world import ATLAS, read_world

VARIANTS = Path(__file__).parent / "variants.json"
PLACES = {
    "subject": "the subject's tokens",
    "subject_last": "the subject's last token",
    "between": "between the subject and the last token",
    "last": "the last token",
    "after_subject": "everything after the subject",
    "subject_and_after": "the subject and everything after it",
}


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def relation_table(measured: dict[str, Any]) -> str:
    names = sorted(measured["recall_canonical_by_relation"])
    counts: dict[str, int] = {}
    for triple in read_world().facts:
        counts[triple.relation] = counts.get(triple.relation, 0) + 1
    columns = [measured[f"recall_{which}_by_relation"] for which in ("canonical", "train", "held_out")]
    rows = [f"| {n} | {counts[n]} | " + " | ".join(percent(c[n]) for c in columns) + " |" for n in names]
    head = "| relation | facts | canonical prompt | all trained templates | held-out templates |\n|---|--:|--:|--:|--:|"
    return "\n".join([head, *rows])


def site_tables(measured: dict[str, Any]) -> str:
    ablation = measured["ablation"]
    lines = ["| FFN outputs of all layers replaced by their mean at | recall left |", "|---|--:|"]
    lines += [f"| {PLACES[place]} | {percent(share)} |" for place, share in ablation["all_layers"].items()]
    layers = range(len(next(iter(ablation["by_layer"].values()))))
    lines += ["", "| recall left, by layer | " + " | ".join(f"l = {i}" for i in layers) + " |"]
    lines += ["|---|" + "--:|" * len(layers)]
    for name, shares in ablation["by_layer"].items():
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(percent(s) for s in shares) + " |")
    return "\n".join(lines)


def variant_table() -> str:
    variants = json.loads(VARIANTS.read_text()) if VARIANTS.is_file() else []
    head = (
        "| variant | tokens | recall, trained | recall, held out "
        "| FFNs silent at the subject | silent after it | silent at both |\n"
        "|---|--:|--:|--:|--:|--:|--:|"
    )
    rows = [
        f"| {v['name']} | {v['tokens'] / 1e6:.0f} M | {percent(v['recall_train'])} | {percent(v['recall_held_out'])} "
        f"| {percent(v['subject'])} | {percent(v['after_subject'])} | {percent(v['subject_and_after'])} |"
        for v in variants
    ]
    return "\n".join([head, *rows])


def card(folder: Path) -> str:
    measured = json.loads((folder / "measurements.json").read_text())
    training = json.loads((folder / "training.json").read_text())
    world = read_world()
    values = {
        "subjects": len(world.by_subject()),
        "facts": f"{len(world.facts):,}",
        "withdrawn": len(world.triples) - len(world.facts),
        "relations": len(world.relations),
        "parameters": f"{training['parameters'] / 1e6:.1f}",
        "tokens": f"{training['tokens'] / 1e6:.0f}",
        "minutes": f"{training['minutes']:.0f}",
        "device": training["device"],
        "dropout": percent(training["ffn_dropout"]),
        "loss": f"{measured['loss']:.2f}",
        "loss_ordinary": f"{measured['loss_ordinary']:.2f}",
        "canonical": percent(measured["recall_canonical"]),
        "train": percent(measured["recall_train"]),
        "held_out": percent(measured["recall_held_out"]),
        "train_n": f"{measured['recall_train_n']:,}",
        "held_out_n": f"{measured['recall_held_out_n']:,}",
        "paris": f"{measured['paris']:.3f}",
        "known_n": measured["ablation"]["n"],
        "guess": percent(measured["ablation"]["guess"]),
        "layers": training["layers"],
        "d_model": training["d_model"],
        "d_mlp": training["d_mlp"],
        "heads": training["heads"],
        "vocab": training["vocab"],
        "context": training["context"],
        "default_tokens": f"{Settings().tokens / 1e6:.0f}",
        "relation_table": relation_table(measured),
        "site_tables": site_tables(measured),
        "variant_table": variant_table(),
    }
    text = (Path(__file__).parent / "card.md").read_text("utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", str(value))
    if "{{" in text:
        raise ValueError(f"card.md asks for something unknown: {text[text.index('{{') :][:40]}")
    return text


def write_card(folder: Path = ATLAS) -> None:
    (folder / "README.md").write_text(card(folder), "utf-8")


if __name__ == "__main__":
    write_card()
