"""The plan of planted roles: as many neurons of each as asked for, of what the lexicon has, and told as they are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ffnmem.planted.roles import (
    ALONG,
    CONTEXT,
    GAINS,
    ROLES,
    SEEN,
    TURNED,
    PlannedRole,
    detail,
    plan_layer,
    plan_neuron,
    truth,
)
from ffnmem.planted.skeleton import Lexicon, draw_lexicon

NEURONS, PER_ROLE = 90, 7


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return draw_lexicon(np.random.default_rng(0), n_words=200, n_tokens=9000, d_model=96, unread=3, longest=CONTEXT - 1)


def plan(lexicon: Lexicon, seed: int = 0, *, last: bool = True) -> list[PlannedRole]:
    return plan_layer(np.random.default_rng(seed), NEURONS, PER_ROLE, lexicon, last=last)


@pytest.mark.parametrize("last", [False, True])
def test_as_many_of_each_role(lexicon: Lexicon, last: bool) -> None:
    """Precision and recall by role would be of other numbers than the truth says; entropy is of the last layer only."""
    counts = Counter(neuron.role for neuron in plan(lexicon, last=last))
    expected = dict.fromkeys(ROLES[:-1], PER_ROLE) | ({} if last else {"entropy": 0})
    assert {role: counts[role] for role in ROLES[:-1]} == expected
    assert counts["none"] == NEURONS - sum(expected.values())


def test_keys_lie_along_values_for_as_many_each_way(lexicon: Lexicon) -> None:
    """And only of neurons whose key has no other task, which a second one would spoil."""
    planned = plan(lexicon)
    assert Counter(neuron.io for neuron in planned) == {
        "strengthening": PER_ROLE,
        "weakening": PER_ROLE,
        "none": NEURONS - 2 * PER_ROLE,
    }
    for neuron in planned:
        if neuron.cosine:
            assert neuron.role in TURNED
            assert ALONG[0] <= abs(neuron.cosine) <= ALONG[1]


def test_the_same_seed_plans_the_same(lexicon: Lexicon) -> None:
    assert plan(lexicon, 3) == plan(lexicon, 3) != plan(lexicon, 4)


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_needs_is_there(role: str, lexicon: Lexicon) -> None:
    """A word, direction or position that does not exist cannot be written; a detector's word must occur often."""
    rng = np.random.default_rng(1)
    for n in range(40):
        neuron = plan_neuron(rng, role, n, lexicon)
        assert neuron.role == role
        assert neuron.cosine == 0
        fewest, most = {"prediction": (2, 3), "suppression": (2, 3), "detector": (1, 5)}.get(role, (0, 0))
        assert fewest <= len(set(neuron.words)) == len(neuron.words) <= most
        assert (GAINS[0] <= neuron.gain <= GAINS[1]) if role in ("detector", "position") else neuron.gain == 0
        if role == "detector":
            assert min(lexicon.counts[list(neuron.words)]) >= SEEN
        elif role == "position":
            assert 1 <= neuron.span[0] < neuron.span[1] <= CONTEXT - 1
        elif role in ("prediction", "suppression"):
            assert neuron.sign == (1 if role == "prediction" else -1)
        else:
            assert neuron.sign == (-1) ** n
        there = {"partition": len(lexicon.splits), "entropy": len(lexicon.unread)}.get(role, 1)
        assert 0 <= neuron.which < there


@pytest.mark.parametrize(
    ("neuron", "said"),
    [
        (PlannedRole("partition", which=1, sign=-1), "{split} down"),
        (PlannedRole("entropy", which=2), "unread direction 2"),
        (PlannedRole("frequency"), "frequent tokens up"),
        (PlannedRole("frequency", sign=-1), "frequent tokens down"),
        (PlannedRole("position", span=(3, 20)), "positions 3 to 20"),
        (PlannedRole("detector", words=(4, 0)), "{fifth}, {first}"),
        (PlannedRole("dead", sign=-1), ""),
        (PlannedRole("none"), ""),
    ],
    ids=lambda value: value.role if isinstance(value, PlannedRole) else None,
)
def test_details(neuron: PlannedRole, said: str, lexicon: Lexicon) -> None:
    """The truth is read by people, and by tests, which take the role's words and positions from it."""
    words = lexicon.words
    assert detail(neuron, lexicon) == said.format(split=lexicon.splits[1], first=words[0], fifth=words[4])


def test_truth_has_a_row_for_every_neuron_in_order(lexicon: Lexicon) -> None:
    planned = [plan(lexicon, 0, last=False), plan(lexicon, 1)]
    frame = truth(planned, lexicon)
    assert list(frame.columns) == ["layer", "neuron", "role", "io", "detail"]
    assert frame[["layer", "neuron"]].to_numpy().tolist() == [[i, j] for i in range(2) for j in range(NEURONS)]
    everyone = [neuron for layer in planned for neuron in layer]
    assert frame["role"].tolist() == [neuron.role for neuron in everyone]
    assert frame["io"].tolist() == [neuron.io for neuron in everyone]
    assert frame["detail"].tolist() == [detail(neuron, lexicon) for neuron in everyone]
