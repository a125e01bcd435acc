"""Edits on models that nobody tuned them on: ``python data/recipe/elsewhere.py --out DIR`` (some 25 minutes).

Four small models of other shapes, seeds and worlds. The worlds of two keep a random quarter of atlas' subjects and give
each the attributes of another one of its class, so that nothing is where atlas has it; those of the other two are of
800 invented people each, in other sentences, and one of these models has gated FFNs. Each model is trained, its second
moments are taken, and facts that it knows are rewritten with the settings that ffnmem derives from its size. Models
that are in DIR already are used; of other settings they are refused. ``--tokens 4000000 --precision bfloat16`` trains
models that know their facts well, each in some twelve minutes of a core that has bfloat16 matrix units.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import pandas as pd
from people import invented_people
from statements import documents
from train import Settings, train
from world import Triple, World, fact_records, grouped, read_world

import ffnmem as fm
from ffnmem.editing.moments import SHIPPED
from ffnmem.evaluation import Scores
from ffnmem.facts import Fact

EDITORS = ("rome", "rome_original", "memit", "alphaedit")
DOCUMENTS = 24_000  # about a million tokens for the second moment
TOKENS = 2_000_000


@dataclass(frozen=True)
class Elsewhere:
    """A model to train: its shape, the seed of its world, text and weights, and whose world it is."""

    name: str
    settings: Settings
    world: Callable[[int], World]


SHARED = Settings(vocab=4096, tokens=TOKENS, precision="float32")


def other_world(seed: int) -> World:
    """A random quarter of each class' subjects of atlas' world, each with the attributes of another of them."""
    rng, world = random.Random(seed), read_world()
    by_subject = world.by_subject()
    triples: list[Triple] = []
    for names in grouped(by_subject, lambda name: name.split(":")[0]).values():
        chosen = rng.sample(names, len(names) // 4)
        for name, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
            own = by_subject[name][0]
            triples += [replace(triple, subject=own.subject, article=own.article) for triple in by_subject[other]]
    return World(world.relations, tuple(triples), tuple(triples))


PEOPLE = replace(SHARED, share_ordinary=0.1, ffn_dropout=0.0)
MODELS = (
    Elsewhere("narrow", replace(SHARED, layers=8, d_model=192, d_mlp=768, heads=6, seed=31), other_world),
    Elsewhere("shallow", replace(SHARED, layers=4, d_model=256, d_mlp=1024, heads=4, seed=57), other_world),
    Elsewhere("people", replace(PEOPLE, layers=5, d_model=224, d_mlp=896, heads=7, seed=83), invented_people),
    Elsewhere(
        "gated", replace(PEOPLE, layers=6, d_model=192, d_mlp=512, heads=6, seed=19, gated=True), invented_people
    ),
)


def texts(world: World, settings: Settings) -> Iterator[str]:
    """What the second moment is taken over: text like the training's, with another seed."""
    for document in islice(documents(world, settings.seed + 7_000, settings.share_ordinary), DOCUMENTS):
        yield document.text


def trained(chosen: Elsewhere, folder: Path) -> tuple[fm.Model, list[Fact]]:
    """The model and its world's facts, trained first if the folder has none."""
    world = chosen.world(chosen.settings.seed)
    if not (folder / "training.json").is_file():  # written last
        train(chosen.settings, folder, world)
    kept = json.loads((folder / "training.json").read_text())
    other = [f"{name} {kept[name]}" for name, value in asdict(chosen.settings).items() if kept[name] != value]
    if other:
        raise SystemExit(f"{folder} has a model of other settings ({', '.join(other)}): give another --out")
    model = fm.load(str(folder))
    if not (folder / SHIPPED).is_file():
        fm.editing.second_moment(model, list(texts(world, chosen.settings))).save(folder / SHIPPED, "float32")
    return model, [Fact.from_dict(record) for record in fact_records(world, chosen.settings.seed)]


def scored(model: fm.Model, facts: list[Fact], folder: Path, limit: int, seed: int) -> tuple[Scores, float]:
    """Edits of a sample of the facts that the model knows; and the share of those drawn that it knows."""
    drawn = random.Random(seed).sample(facts, min(4 * limit, len(facts)))
    known = fm.facts.filter_known(model, drawn).facts
    some = [fact for fact in known if fact.target_new and fact.neighbours][:limit]
    scores = fm.evaluate(model, some, EDITORS[0], compare=EDITORS[1:], moment=folder / SHIPPED, seed=seed)
    return scores, len(known) / len(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the models")
    parser.add_argument("--limit", type=int, default=100, help="facts of each model (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the facts, the contexts and the intervals")
    parser.add_argument("--only", choices=[chosen.name for chosen in MODELS], help="this model alone")
    parser.add_argument("--train-only", action="store_true", help="train the models and stop")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="to train on (default %(default)s)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default=SHARED.precision, help="of training")
    arguments = parser.parse_args()
    for chosen in MODELS:
        if arguments.only not in (None, chosen.name):
            continue
        settings = replace(chosen.settings, tokens=arguments.tokens, precision=arguments.precision)
        chosen = replace(chosen, settings=settings)
        folder = arguments.out / chosen.name
        model, facts = trained(chosen, folder)
        if arguments.train_only:
            continue
        scores, share = scored(model, facts, folder, arguments.limit, arguments.seed)
        wanted = scores.summary[scores.summary["metric"].isin(["ES", "PS", "NS", "NS_plus", "S"])]
        print(f"{chosen.name}: {chosen.settings.layers} layers, {len(facts)} facts, {share:.0%} known")
        with pd.option_context("display.width", 120):
            print(wanted.to_string(index=False))


if __name__ == "__main__":
    main()
