"""``condensed``: groups as one node each; sums stay true, and influence is what reaches a group from outside."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.prompts.circuits import ANSWER, PRUNED
from ffnmem.prompts.condensing import condensed, id_of

from ..helpers import PROMPT, allclose, refuses


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> fm.prompts.Circuit:
    return fm.circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", nodes=24, node_threshold=1.0, edge_threshold=1.0)


def test_sums_stay_true(architecture: fm.Model) -> None:
    circuit = fm.circuit(fm.capture(architecture, "The Eiffel Tower is in Paris"), " Paris", " Rome", nodes=16)
    ids = [str(one) for one in circuit.firings["id"]]
    few = condensed(circuit, {"a": ids[:3], "b": [*ids[4:6], "embedding@1"]})
    sums = few.sums()
    assert allclose(sums["sum"], sums["read"], 1e-3)
    assert {id_of("a"), id_of("b")} <= set(few.nodes["id"])
    into = few.edges[(few.edges["target"] == ANSWER)]["weight"].sum()
    assert into == pytest.approx(circuit.logit, abs=1e-4)


def test_a_group_adds_what_its_members_add(found: fm.prompts.Circuit) -> None:
    ids = [str(one) for one in found.firings["id"].head(4)]
    few = condensed(found, {"some": ids})
    nodes, own = found.nodes.set_index("id"), few.nodes.set_index("id").loc[id_of("some")]
    assert own["score"] == pytest.approx(nodes.loc[ids, "score"].sum())
    out = few.edges[few.edges["source"] == id_of("some")]
    before = found.edges[found.edges["source"].isin(ids) & ~found.edges["target"].isin(ids)]
    assert out["weight"].sum() == pytest.approx(before["weight"].sum())
    assert not (few.edges["source"] == few.edges["target"]).any()
    biased = few.edges["source"].str.startswith("bias")
    shares = few.edges[~biased].groupby("target")["share"].sum()
    assert allclose(shares, [1.0] * len(shares), 1e-6)


def test_influence_within_a_group_counts_once(found: fm.prompts.Circuit) -> None:
    """All nodes but the answer as one group: what reaches it is all there is, however they read each other."""
    kinds = found.nodes.set_index("id")["kind"]
    ids = [str(one) for one in kinds.index[~kinds.isin([ANSWER, PRUNED, "bias"])]]
    few = condensed(found, {"all": ids})
    own = few.nodes.set_index("id").loc[id_of("all"), "influence"]
    direct = found.edges[(found.edges["target"] == ANSWER) & found.edges["source"].isin(ids)]["share"].sum()
    through = few.edges[(few.edges["target"] == ANSWER) & (few.edges["source"] == id_of("all"))]["share"].sum()
    assert through == pytest.approx(direct)
    assert own == pytest.approx(direct, rel=1e-6)


def test_nothing_to_group_changes_nothing(found: fm.prompts.Circuit) -> None:
    assert condensed(found, {}) is found


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"a": []}, "no nodes"),
        ({"a": ["9.9@9"]}, "has no node '9.9@9'"),
        ({"a": [ANSWER]}, "cannot be grouped"),
        ({"a": [PRUNED]}, "cannot be grouped"),
        ({"a": ["embedding@1"], "b": ["embedding@1"]}, "two groups"),
    ],
)
def test_what_is_no_group(found: fm.prompts.Circuit, groups: dict[str, list[str]], words: str) -> None:
    with refuses(InputError, ValueError, words):
        condensed(found, groups)
