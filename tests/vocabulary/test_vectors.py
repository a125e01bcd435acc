"""Values and keys, ready for the vocabulary."""

from __future__ import annotations

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.models.layout import inner
from ffnmem.vocabulary.vectors import check_sides, everything, ready, side_tokens, side_vectors

from ..helpers import Pair, allclose, refuses


def test_folded_vectors_written_out(tiny: fm.Model) -> None:
    """The wrong norm's gain, or a mean in the wrong place."""
    value, key = tiny.ffn[1].values[5].detach(), tiny.ffn[1].keys[5].detach()
    final = inner(tiny.layout.final_norm).weight.detach()
    before = inner(tiny.layout.blocks[1].norm).weight.detach()
    assert allclose(side_vectors(tiny, 1, [5], "value", "folded")[0], (value - value.mean()) * final)
    assert allclose(side_vectors(tiny, 1, [5], "key", "folded")[0], key * before - (key * before).mean())
    for side, raw in (("value", value), ("key", key)):
        assert torch.equal(side_vectors(tiny, 1, [5], side, "raw")[0], raw)
        assert torch.equal(ready(tiny, 1, side, raw[None], "raw")[0], raw)


@pytest.mark.parametrize("side", ["value", "key"])
def test_a_neuron_is_the_same_alone_and_among_all(architecture: fm.Model, side: str) -> None:
    """Bit for bit: the mean's last bit must not depend on the block."""
    whole = side_vectors(architecture, 0, everything(architecture, 0), side, "folded")
    for neuron in (0, 7, 63):
        assert torch.equal(side_vectors(architecture, 0, [neuron], side, "folded")[0], whole[neuron])


def test_sides_meet_their_matrix(pair: Pair) -> None:
    assert torch.equal(side_tokens(pair.model, "value"), pair.model.unembedding.detach())
    assert torch.equal(side_tokens(pair.model, "key"), pair.model.embedding.detach())


def test_sides(architecture: fm.Model) -> None:
    assert check_sides("key", architecture) == ["key"]
    assert check_sides(("key", "value", "key"), architecture) == ["key", "value"]
    assert check_sides(None, architecture) == ["value", "key", *["gate"] * architecture.gated]
    with refuses(InputError, ValueError, "no side"):
        check_sides([], architecture)
    with refuses(InputError, ValueError, "'both'", "'value'"):
        check_sides("both", architecture)


def test_gates(architecture: fm.Model) -> None:
    """A gate read through another norm than its key, or the gates of a model that has none taken for its keys."""
    if not architecture.gated:
        with refuses(InputError, ValueError, "no gates"):
            side_vectors(architecture, 0, [3], "gate", "folded")
        return
    gates = architecture.ffn[0].gates
    assert gates is not None
    assert torch.equal(side_vectors(architecture, 0, [3], "gate", "raw")[0], gates[3].detach())
    ratio = side_vectors(architecture, 0, [3], "gate", "folded")[0] / gates[3].detach()
    assert allclose(
        ratio, side_vectors(architecture, 0, [3], "key", "folded")[0] / architecture.ffn[0].keys[3].detach()
    )
    assert torch.equal(side_tokens(architecture, "gate"), architecture.embedding.detach())
