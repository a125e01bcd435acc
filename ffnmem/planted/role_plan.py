"""The plan of planted roles: what each neuron of a layer is for, drawn at random, and the truth that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from .lexicon import Lexicon

ROLES = ("prediction", "suppression", "partition", "entropy", "position", "frequency", "detector", "dead", "none")
TURNED = ("prediction", "suppression", "partition", "frequency", "dead", "none")  # whose key may lie along ± the value
CONTEXT = 64
ALONG = (0.65, 0.95)  # cosine of key and value of strengthening neurons, before noise
SEEN = 25  # times at least that a detector's tokens occur in the text
GAINS = (2.0, 3.0)  # pre-activation of detectors and position neurons where they fire, and below 0 elsewhere


@dataclass(frozen=True)
class Neuron:
    """What a neuron is made for: its role, the words, attribute or positions of it, its key's cosine with its value,
    and the pre-activation that is ``gain`` where a detector or position neuron fires and −``gain`` elsewhere."""

    role: str
    words: tuple[int, ...] = ()
    which: int = 0
    sign: int = 1
    span: tuple[int, int] = (0, 0)
    cosine: float = 0.0
    gain: float = 0.0

    @property
    def io(self) -> str:
        return "none" if self.cosine == 0 else "strengthening" if self.cosine > 0 else "weakening"


def plan_layer(rng: np.random.Generator, neurons: int, per_role: int, lexicon: Lexicon, *, last: bool) -> list[Neuron]:
    """What each neuron of a layer is for, in random order."""
    roles = [role for role in ROLES[:-1] if last or role != "entropy"] * per_role
    roles += ["none"] * (neurons - len(roles))
    planned = [plan_neuron(rng, roles[i], n, lexicon) for n, i in enumerate(rng.permutation(neurons))]
    turned = rng.permutation([i for i, neuron in enumerate(planned) if neuron.role in TURNED])
    for n, i in enumerate(turned[: 2 * per_role]):
        planned[i] = replace(planned[i], cosine=float(rng.uniform(*ALONG)) * (-1) ** n)
    return planned


def plan_neuron(rng: np.random.Generator, role: str, n: int, lexicon: Lexicon) -> Neuron:
    """The words, the attribute, the direction or the positions of a role."""
    sign = (-1) ** n
    if role in ("prediction", "suppression"):
        words = rng.choice(len(lexicon.words), int(rng.integers(2, 4)), replace=False)
        return Neuron(role, words=tuple(int(w) for w in words), sign=1 if role == "prediction" else -1)
    if role == "detector":
        common = np.flatnonzero(lexicon.counts >= SEEN)
        words = rng.choice(common, int(rng.integers(1, 6)), replace=False)
        return Neuron(role, words=tuple(int(w) for w in words), gain=float(rng.uniform(*GAINS)))
    if role == "partition":
        return Neuron(role, which=int(rng.integers(len(lexicon.splits))), sign=sign)
    if role == "entropy":
        return Neuron(role, which=int(rng.integers(len(lexicon.unread))), sign=sign)
    if role == "position":
        length, start = int(rng.integers(14, 33)), int(rng.integers(-6, 36))
        span = (max(start, 1), min(start + length, CONTEXT - 1))
        return Neuron(role, span=span, gain=float(rng.uniform(*GAINS)))
    return Neuron(role, sign=sign)


def truth(planned: Sequence[Sequence[Neuron]], lexicon: Lexicon) -> pd.DataFrame:
    """One row a neuron."""
    return pd.DataFrame(
        [
            {"layer": layer, "neuron": i, "role": neuron.role, "io": neuron.io, "detail": detail(neuron, lexicon)}
            for layer, neurons in enumerate(planned)
            for i, neuron in enumerate(neurons)
        ]
    )


def detail(neuron: Neuron, lexicon: Lexicon) -> str:
    """The tokens, letters, direction or positions of a role, in words."""
    up = neuron.sign > 0
    if neuron.words:
        return ", ".join(lexicon.words[word] for word in neuron.words)
    if neuron.role == "partition":
        return f"{lexicon.splits[neuron.which]} {'up' if up else 'down'}"
    if neuron.role == "entropy":
        return f"unread direction {neuron.which}"
    if neuron.role == "frequency":
        return f"frequent tokens {'up' if up else 'down'}"
    if neuron.role == "position":
        return f"positions {neuron.span[0]} to {neuron.span[1]}"
    return ""
