"""A mixture of experts and its dense twins, trained alike: ``python data/recipe/mixture.py --out DIR [NAME …]``.

The same text, seeds, optimiser, depth and width as atlas, and about as many active parameters a token: 8 experts, of
which each token goes to two. ``dense`` is one gated FFN with as many active parameters as the mixture, ``wide`` one
with as many neurons. With ``--small`` half as wide, in four layers, on fewer tokens: some minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from measure import measure_and_write
from train import Settings, train

EXPERTS, ROUTED, WIDTH = 8, 2, 344
RECIPES = {
    "mixture": replace(Settings(), experts=EXPERTS, routed=ROUTED, d_mlp=WIDTH),
    "dense": replace(Settings(), gated=True, d_mlp=ROUTED * WIDTH),
    "wide": replace(Settings(), gated=True, d_mlp=EXPERTS * WIDTH),
}


def small(settings: Settings) -> Settings:
    return replace(settings, layers=4, d_model=128, heads=4, d_mlp=settings.d_mlp // 2, tokens=1_200_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(RECIPES)}; default: the first two")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(RECIPES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(RECIPES)}")
    for name in arguments.names or ("mixture", "dense"):
        train(small(RECIPES[name]) if arguments.small else RECIPES[name], arguments.out / name)
        measure_and_write(arguments.out / name, limit=4000)


if __name__ == "__main__":
    main()
