"""Write the second moments that ship with atlas: ``python data/recipe/moments.py`` (some ten minutes).

C = E[m mᵀ] of every layer over text like the bundled corpus, with a seed of its own and six times as much: with the
bundled 235 thousand tokens neighbours are held less well. Packed triangles in float32. Half that size is not
enough: for the keys of 100 facts, ``--compare`` prints how far u = C⁻¹k/‖C⁻¹k‖ moves when C is stored in fewer bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from corpus import texts
from torch import Tensor
from world import ATLAS, read_world

import ffnmem as fm
from ffnmem.editing import SecondMoment, second_moment
from ffnmem.editing.moments import RIDGE, SHIPPED
from ffnmem.facts.questions import ask_about

FACTS = 100
SEED = 7_002  # neither the training text's nor the bundled corpus'
CHARACTERS = 6_000_000


def scaled(matrix: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """C with its correlations rounded and its diagonal kept."""
    root = torch.diagonal(matrix).sqrt()
    return rounded(matrix / root[:, None] / root) * root[:, None] * root


STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda c: c.float().double(),
    "float16, scaled": lambda c: scaled(c, lambda r: r.half().double()),
    "int16, scaled": lambda c: scaled(c, lambda r: (r * 32767).round() / 32767),
    "bfloat16": lambda c: c.bfloat16().double(),
}


def subject_keys(model: fm.Model) -> list[Tensor]:
    """Each layer's coefficients at the last token of some subjects."""
    facts = fm.load_facts("atlas")
    found = []
    for fact in facts[:: len(facts) // FACTS]:
        asked = ask_about(model, fact.prompt, fact.subject)
        capture = fm.capture(model, asked.text)
        found.append(torch.stack([capture.coefficients[i][0, asked.subject_last] for i in range(model.n_layers)]))
    return list(torch.stack(found, dim=1))


def directions(matrix: Tensor, keys: Tensor) -> Tensor:
    ridge = RIDGE * torch.diagonal(matrix).mean() * torch.eye(len(matrix), dtype=matrix.dtype)
    solved = torch.linalg.solve(matrix + ridge, keys.double().T).T
    return solved / solved.norm(dim=1, keepdim=True)


def compare(model: fm.Model, moment: SecondMoment) -> None:
    """Print the largest ‖u − u in full‖ by layer and kind of storage."""
    for layer, keys in enumerate(subject_keys(model)):
        full = directions(moment.matrix(layer), keys)
        for name, stored in STORED.items():
            off = (directions(stored(moment.matrix(layer)), keys) - full).norm(dim=1)
            print(f"layer {layer}, {name}: {float(off.max()):.1e}")


def write_moments(folder: Path) -> SecondMoment:
    """Write the second moments of the model in a folder beside it."""
    moment = second_moment(fm.load(str(folder)), list(texts(read_world(), SEED, CHARACTERS)))
    moment.save(folder / SHIPPED, "float32")
    return moment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ATLAS, help="the folder of the model")
    parser.add_argument("--compare", action="store_true", help="also print what storage in fewer bits would do")
    arguments = parser.parse_args()
    moment = write_moments(arguments.out)
    print(moment.to_frame().to_string(index=False))
    if arguments.compare:
        compare(fm.load(str(arguments.out)), moment)
    print(f"{arguments.out / SHIPPED}: {moment.count} tokens")


if __name__ == "__main__":
    main()
