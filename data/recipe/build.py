"""Rebuild the embedded model from its seeds: ``make atlas``, or ``python data/recipe/build.py [--out DIR]``.

Writes the facts, trains, measures, and writes the model card. Tens of minutes on two CPU cores, less on a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from card import write_card
from measure import measure_and_write
from moments import write_moments
from train import Settings, train
from world import ATLAS, fact_records, read_world

from ffnmem.facts import Fact, write_facts


def write_atlas_facts(folder: Path) -> int:
    """``facts.jsonl`` of the written world; returns how many."""
    facts = [Fact.from_dict(record) for record in fact_records(read_world())]
    write_facts(facts, folder / "facts.jsonl")
    return len(facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ATLAS)
    parser.add_argument("--facts-only", action="store_true", help="write facts.jsonl and stop")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"{write_atlas_facts(arguments.out)} facts")
    if not arguments.facts_only:
        train(Settings(), arguments.out)
        measure_and_write(arguments.out)
        write_card(arguments.out)
        write_moments(arguments.out)


if __name__ == "__main__":
    main()
