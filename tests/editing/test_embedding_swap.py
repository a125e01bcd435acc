"""Knowledge-neuron edits: the chosen rows, the direction, and nothing else."""

from __future__ import annotations

import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import Edit, embedding_swap

from ..helpers import allclose, refuses, warned
from .plans import FACTS


@warned("changes layer")
def test_only_the_knowledge_neurons_values_move(tiny: fm.Model) -> None:
    """By λ₂ times the new answer's embedding less λ₁ times the old one's."""
    fact = FACTS[0]
    edit = embedding_swap(tiny, fact, neurons=3, less=0.5, more=2.0)
    assert isinstance(edit, Edit)
    old, new = tiny.token_id(" France"), tiny.token_id(" Rome")
    top = fm.interventions.knowledge_neurons(fm.capture(tiny, fact.text), old).neurons.query("attribution > 0").head(3)
    wanted = {(int(row.layer), int(row.neuron)) for row in top.itertuples()}
    direction = (2.0 * tiny.embedding[new] - 0.5 * tiny.embedding[old]).detach().double()
    moved = set()
    for change in edit.changes:
        for neuron, row in enumerate(change.delta()):
            if bool(row.any()):
                moved.add((change.layer, neuron))
                assert allclose(row, direction, 1e-6)
    assert moved == wanted
    assert edit.numbers["neurons"][0] == " ".join(
        f"{layer}.{neuron}" for layer, neuron in zip(top["layer"], top["neuron"], strict=True)
    )


@warned("changes layer")
def test_some_facts_give_some_edits(tiny: fm.Model) -> None:
    done: list[int] = []
    edits = embedding_swap(tiny, FACTS[::2], force=True, progress=lambda _, i, _n: done.append(i))
    assert isinstance(edits, tuple)
    assert [edit.facts[0].id for edit in edits] == ["paris", "london"]
    assert done == [1, 2]
    assert all(torch.isfinite(change.right).all() for edit in edits for change in edit.changes)


@warned("changes layer")
def test_refusals(tiny: fm.Model) -> None:
    for options, named in (({"neurons": 0}, "neurons"), ({"less": -1.0}, "less"), ({"more": -1.0}, "more")):
        with refuses(InputError, ValueError, named):
            embedding_swap(tiny, FACTS[0], **options)
    with refuses(InputError, ValueError, "' Paris'", "first tokens"):
        embedding_swap(tiny, FACTS[1], " Paris city")
    with refuses(InputError, ValueError, "'The city of Paris is in'", "times its own norm"):
        embedding_swap(tiny, FACTS[0], more=1e6)
    assert isinstance(embedding_swap(tiny, FACTS[0], more=1e6, force=True), Edit)
