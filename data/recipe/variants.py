"""Short training runs of other recipes, measured alike: ``python data/recipe/variants.py [NAME …]``.

Each takes about a third of the full run. Results are added to ``variants.json``, from which the model card is written;
the other rows there were trials and full runs of their own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from card import VARIANTS
from measure import measure
from train import Settings, train

SHORT = replace(Settings(), tokens=3_000_000)
RECIPES = {"as atlas, shorter": SHORT, "no structured dropout": replace(SHORT, ffn_dropout=0.0)}


def run(name: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        train(RECIPES[name], Path(folder))
        found = measure(Path(folder), limit=4000)
    silent = found["ablation"]["all_layers"]
    return {
        "name": name,
        "tokens": RECIPES[name].tokens,
        "recall_train": found["recall_train"],
        "recall_held_out": found["recall_held_out"],
        **silent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(RECIPES), metavar="NAME", help=f"of {', '.join(RECIPES)}")
    for name in parser.parse_args().names:
        results = json.loads(VARIANTS.read_text()) if VARIANTS.is_file() else []
        results = [r for r in results if r["name"] != name] + [run(name)]
        VARIANTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
