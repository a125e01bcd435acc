"""The empty model, its tokenizer, its directions and its heads do what planted memories count on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.planted.skeleton import (
    BOS,
    SPECIAL,
    Clock,
    Room,
    add_noise,
    build_tokenizer,
    empty_gpt2,
    ffn_inputs,
    norm_outputs,
    solve_keys,
    stems,
    unit_rows,
    write_embeddings,
    write_ffn,
    write_head,
    write_previous_token_head,
)

from ..helpers import allclose, refuses


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# -- words -------------------------------------------------------------------------------------------------------------


def test_every_word_is_one_token_with_the_space_before_it() -> None:
    tokenizer = build_tokenizer(["bada", "kolu"])
    assert [tokenizer.decode([i]) for i in range(4)] == [*SPECIAL, " bada", " kolu"]
    for text in ("bada kolu", " bada kolu", "bada\nkolu", "bada \n\n  kolu"):
        assert tokenizer(text)["input_ids"] == [2, 3]
    assert tokenizer("bada zzz")["input_ids"] == [2, 1]
    assert tokenizer(f"{BOS} bada")["input_ids"] == [0, 2]
    assert tokenizer.decode([2, 3]) == " bada kolu"


def test_words_must_differ() -> None:
    with refuses(InputError, ValueError, "words", "differ"):
        build_tokenizer(["bada", "bada"])


@pytest.mark.parametrize("count", [1, 500, 4900, 6000])
def test_stems_differ(count: int) -> None:
    found = stems(count, rng())
    assert len(set(found)) == count == len(found)
    assert stems(count, rng()) == found


def test_too_many_stems_are_refused() -> None:
    with refuses(InputError, ValueError, "347900", "400000"):
        stems(400_000, rng())


# -- directions and weights --------------------------------------------------------------------------------------------


def test_directions_are_orthonormal_and_no_norm_removes_them() -> None:
    room = Room(16, rng())
    taken = torch.cat([room.take(5), room.take(10)])
    assert allclose(taken @ taken.T, torch.eye(15), 1e-12)
    assert allclose(taken.sum(-1), torch.zeros(15), 1e-12)
    with refuses(InputError, ValueError, "d_model", "1 ", "0 are free"):
        room.take(1)


def test_unit_rows_lie_in_their_room() -> None:
    room = Room(16, rng()).take(4)
    found = unit_rows(20, room, rng())
    assert allclose(found.norm(dim=-1), torch.ones(20), 1e-12)
    assert allclose(found @ room.T @ room, found, 1e-12)


def test_an_empty_model_says_nothing_until_something_is_written() -> None:
    hf = empty_gpt2(5, n_layers=2, d_model=8, d_mlp=6, n_ctx=4)
    tokens = torch.tensor([[0, 1, 2, 3]])
    assert not hf(tokens).logits.any()
    embeddings = unit_rows(5, Room(8, rng()).take(7), rng())
    write_embeddings(hf, embeddings, torch.zeros(4, 8, dtype=torch.float64))
    expected = torch.nn.functional.layer_norm(embeddings[:4], (8,))
    assert allclose(ffn_inputs(hf, 0, tokens)[0], expected, 1e-3)
    assert allclose(norm_outputs(hf, 1, tokens)[0], expected, 1e-3)


def test_memories_stand_where_they_were_written() -> None:
    """Neuron i: gelu(kᵢ·x + bᵢ)·vᵢ."""
    hf = empty_gpt2(5, n_layers=2, d_model=8, d_mlp=6, n_ctx=4)
    keys, values = (torch.tensor(rng().standard_normal((6, 8))) for _ in range(2))
    bias = torch.arange(6, dtype=torch.float64) - 3
    write_ffn(hf, 1, keys, bias, values)
    x = torch.tensor(rng().standard_normal((3, 8)))
    coefficients = torch.nn.functional.gelu(x @ keys.T + bias, approximate="tanh")
    assert allclose(hf.transformer.h[1].mlp(x.float()), coefficients @ values, 1e-5)
    assert not hf.transformer.h[0].mlp(x.float()).any()


@pytest.mark.parametrize("head", [0, 1])
def test_a_head_looks_one_word_back(head: int) -> None:
    """At every position of the context what it writes is the previous token's content, to a hundredth."""
    n_ctx, d_model = 64, 64
    room, generator = Room(d_model, rng()), rng()
    clock, content, carried = Clock(room.take(24), 0.5, generator), room.take(8), room.take(8)
    hf = empty_gpt2(8, n_layers=1, d_model=d_model, d_mlp=4, n_ctx=n_ctx, n_heads=2)
    write_embeddings(hf, content, clock.positions(n_ctx))
    scale = (d_model / (1 + 0.5**2)) ** 0.5
    write_previous_token_head(hf, 0, clock, scale=scale, value=content.T, out=carried / scale, head=head)
    tokens = torch.tensor(generator.integers(0, 8, (3, n_ctx)))
    with torch.no_grad():
        block = hf.transformer.h[0]
        x = hf.transformer.wte(tokens) + hf.transformer.wpe(torch.arange(n_ctx))
        written = block.attn(block.ln_1(x))[0].double() @ carried.T
    assert allclose(written[:, 1:], torch.eye(8)[tokens[:, :-1]], 0.01)


def test_the_clock_turns_back() -> None:
    clock = Clock(Room(32, rng()).take(12), 0.5, rng())
    at = torch.arange(10, dtype=torch.float64)
    assert allclose(clock.code(at + 1) @ clock.step_back(), clock.code(at), 1e-12)
    assert allclose(clock.positions(10).norm(dim=-1), torch.full((10,), 0.5), 1e-12)


def test_a_head_is_not_wider_than_it_is() -> None:
    hf = empty_gpt2(5, n_layers=1, d_model=8, d_mlp=6, n_ctx=4, n_heads=4)
    wide, narrow = torch.zeros(8, 3), torch.zeros(8, 1)
    with refuses(InputError, ValueError, "width 2", "3"):
        write_head(hf, 0, query=wide, key=wide, value=narrow, out=narrow.T)


def test_noise_is_relative_to_each_row() -> None:
    """A neuron of small weights gets little of it, one of zero weights none."""
    hf = empty_gpt2(5, n_layers=1, d_model=64, d_mlp=40, n_ctx=4)
    keys = torch.tensor(rng().standard_normal((40, 64))) * torch.logspace(-3, 3, 40, dtype=torch.float64)[:, None]
    keys[0] = 0
    write_ffn(hf, 0, keys, torch.zeros(40, dtype=torch.float64), keys)
    add_noise(hf, 0.1, rng())
    for weight in (hf.transformer.h[0].mlp.c_fc.weight.T, hf.transformer.h[0].mlp.c_proj.weight):
        change = (weight.detach().double() - keys).norm(dim=-1)
        assert change[0] == 0
        assert (change[1:] / keys[1:].norm(dim=-1) / 0.1 - 1).abs().max() < 0.4
    assert not hf.transformer.wte.weight.any()


# -- keys solved for ---------------------------------------------------------------------------------------------------


def test_keys_meet_targets_where_they_can() -> None:
    """With more dimensions than features and no scatter, exactly."""
    means, targets = (torch.tensor(rng().standard_normal(shape)) for shape in ((5, 12), (5, 7)))
    targets = targets.abs() * (targets > 0)
    targets[0] = 1  # every neuron has a feature
    keys = solve_keys(means, torch.zeros(12, 12, dtype=torch.float64), targets)
    assert allclose(means @ keys.T, targets, 1e-3)


def test_scatter_turns_keys_away_from_noise() -> None:
    """Along a direction in which inputs of one feature differ much, a key is smaller than without."""
    means = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    scatter = torch.diag(torch.tensor([10.0, 0.1], dtype=torch.float64))
    keys = solve_keys(means, scatter, torch.tensor([[1.0], [0.0]], dtype=torch.float64))
    assert abs(float(keys[0, 0])) < 0.1 * abs(float(keys[0, 1]))
    assert float(keys[0] @ means[0]) == pytest.approx(1.0)
