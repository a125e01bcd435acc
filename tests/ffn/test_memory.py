"""An FFN as a sum over memories, as one map without its activation, and position by position."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError
from ffnmem.ffn.activations import activation
from ffnmem.ffn.layers import classic_ffn, gated_ffn
from ffnmem.ffn.memory import as_memory, collapse, position_leak

from ..helpers import PROMPT, allclose, refuses
from .test_layers import draw

D, M = 6, 20


def weights(seed: int = 0) -> dict[str, Any]:
    return {
        "keys": draw(M, D, seed=seed + 1),
        "values": draw(M, D, seed=seed + 2),
        "key_bias": draw(M, seed=seed + 3),
        "value_bias": draw(D, seed=seed + 4),
    }


def by_hand(x: Tensor, w: dict[str, Tensor], gates: Tensor | None = None) -> Tensor:
    """Σᵢ mᵢvᵢ + b, one neuron at a time."""
    y = w["value_bias"].clone()
    for i in range(M):
        pre = w["keys"][i] @ x + w["key_bias"][i]
        m = activation("silu")(pre) if gates is None else activation("silu")(gates[i] @ x) * pre
        y = y + m * w["values"][i]
    return y


@pytest.mark.parametrize("gated", [False, True])
def test_the_sum_over_memories_is_the_ffn(gated: bool) -> None:
    """FFN(x) = Σᵢ mᵢvᵢ + b would not hold: what is shown as memories would not be what the layer writes."""
    x, w = draw(2, 3, D), weights()
    gates = draw(M, D, seed=9) if gated else None
    found = as_memory(x, **w, gates=gates, activation="silu")
    if gates is None:
        ffn = classic_ffn(x, w["keys"].T, w["values"], w["key_bias"], w["value_bias"], "silu")
    else:
        biases = {"b_up": w["key_bias"], "b_down": w["value_bias"]}
        ffn = gated_ffn(x, gates.T, w["keys"].T, w["values"], "swiglu", **biases)
    assert allclose(found.output, ffn, 1e-12)
    for row in range(2):
        for pos in range(3):
            assert allclose(found.output[row, pos], by_hand(x[row, pos], w, gates), 1e-12)


def test_the_slots_sum_up_to_the_output() -> None:
    """Coefficients, order and values would not belong together; shares would not be shares of the output."""
    x, w = draw(D), weights()
    found = as_memory(x, **w)
    rebuilt = found.coefficients[found.neurons] @ w["values"][found.neurons] + w["value_bias"]
    assert allclose(rebuilt, found.output, 1e-12)
    assert allclose(found.shares.sum() + found.bias_shares, 1.0, 1e-12)
    assert allclose(
        found.weights, found.coefficients[found.neurons].abs() * w["values"][found.neurons].norm(dim=-1), 1e-12
    )
    assert (found.weights.diff() <= 0).all()


def test_the_top_slots_are_the_first_of_all() -> None:
    """``top`` would keep others than the heaviest; shares would be of the kept sum instead of the output."""
    x, w = draw(4, 2, D), weights()
    whole, kept = as_memory(x, **w), as_memory(x, **w, top=3)
    assert kept.neurons.shape == (4, 2, 3)
    assert torch.equal(kept.neurons, whole.neurons[..., :3])
    assert torch.equal(kept.shares, whole.shares[..., :3])
    assert torch.equal(kept.output, whole.output)
    assert as_memory(x, **w, top=99).neurons.shape == whole.neurons.shape == (4, 2, M)


def test_equal_weights_keep_the_lower_index_first() -> None:
    """The same input would show other slots from run to run."""
    x, w = draw(D), weights()
    twins = {name: tensor[[0] * M] if tensor.shape[0] == M else tensor for name, tensor in w.items()}
    assert as_memory(x, **twins).neurons.tolist() == list(range(M))


def test_the_table_is_decomposes(tiny: fm.Model) -> None:
    """A model's layer would have other memories here than in ``decompose``."""
    capture = fm.capture(tiny, PROMPT)
    ffn = tiny.ffn[1]
    found = as_memory(
        capture.ffn_in[1][0, -1],
        ffn.keys.detach(),
        ffn.values.detach(),
        ffn.key_bias,
        ffn.value_bias,
        activation=ffn.activation,
    ).to_frame()
    expected = fm.decompose(capture, layer=1)
    assert found["neuron"].tolist() == expected["neuron"].tolist()
    for column in ("coefficient", "value_norm", "weight", "share"):
        assert allclose(found[column].to_numpy(), expected[column].to_numpy(), 1e-5)


def test_tables_and_texts() -> None:
    """A result could not be read, or not be written as JSON."""
    found = as_memory(draw(4, D), **weights(), top=2)
    frame = found.to_frame()
    assert list(frame.columns) == ["row", "neuron", "coefficient", "value_norm", "weight", "share"]
    assert frame["row"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert frame["neuron"].tolist()[2::3] == [-1] * 4
    assert allclose(frame["coefficient"][1], found.coefficients[0, found.neurons[0, 1]], 0)
    assert len(json.loads(json.dumps(found.to_dict()))["slots"]) == 12
    assert repr(found) == "Memory(4 inputs, 20 neurons, 2 slots kept)"
    lines = found.sheet(5).blocks[1]
    assert [row[:2] for row in lines.rows][1:3] == [("0", str(int(found.neurons[0, 1]))), ("0", "bias")]
    assert lines.rows[1][2:] == tuple(frame.loc[1, ["coefficient", "value_norm", "weight", "share"]])
    assert (len(lines.rows), lines.caption) == (5, "7 more")


def test_no_biases_and_no_output() -> None:
    """A zero output would make every share NaN."""
    w = weights()
    found = as_memory(torch.zeros(D, dtype=torch.float64), w["keys"], w["values"])
    assert found.bias_norm == 0
    assert allclose(found.output, torch.zeros(D), 0)
    assert not found.shares.isnan().any()


def test_without_its_activation_an_ffn_is_one_affine_map() -> None:
    """The reason for the activation would be told wrong: two linear layers in a row are one."""
    x, w_in, w_out, b_in, b_out = draw(8, D), draw(D, M), draw(M, D, seed=1), draw(M, seed=2), draw(D, seed=3)
    one = collapse(w_in, w_out, b_in, b_out)
    assert one.weight.shape == (D, D)
    assert allclose(one(x), classic_ffn(x, w_in, w_out, b_in, b_out, "identity"), 1e-12)
    bare = collapse(w_in, w_out)
    assert allclose(bare(x), x @ w_in @ w_out, 1e-12)
    assert allclose(bare.bias, torch.zeros(D), 0)
    assert repr(bare) == "Affine(6 to 6)"
    with pytest.raises(InputError):
        collapse(w_in, w_out.T)


def test_with_its_activation_it_is_none() -> None:
    """``collapse`` would be thought to hold for the FFN as it is: f(x) + f(−x) = 2b of any affine map fails."""
    x, w_in, w_out = draw(8, D), draw(D, M), draw(M, D, seed=1)
    assert (classic_ffn(x, w_in, w_out) + classic_ffn(-x, w_in, w_out)).abs().max() > 1


def test_the_bilinear_ffn_does_not_collapse() -> None:
    """A gated FFN without activation would be taken for linear: it is quadratic, f(2x) = 4f(x) and f(−x) = f(x)."""
    x, w_gate, w_up, w_down = draw(8, D), draw(D, M), draw(D, M, seed=1), draw(M, D, seed=2)

    def f(x: Tensor) -> Tensor:
        return gated_ffn(x, w_gate, w_up, w_down, "bilinear")

    assert allclose(f(2 * x), 4 * f(x), 1e-12)
    assert allclose(f(-x), f(x), 1e-12)
    assert (f(2 * x) - 2 * f(x)).abs().max() > 1


def attention(x: Tensor) -> Tensor:
    """One causal head whose queries, keys and values are its inputs."""
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_an_ffn_leaks_nothing_to_other_positions() -> None:
    """An FFN would mix positions, or the check would see none where there is: attention leaks, forwards alone."""
    x, w_in, w_out = draw(2, 7, D), draw(D, M), draw(M, D, seed=1)
    assert position_leak(lambda x: classic_ffn(x, w_in, w_out), x) == 0
    assert position_leak(attention, x) > 1e-3
    assert position_leak(attention, x, position=-1) == 0  # causal: nothing stands behind the last position
    assert position_leak(attention, x, position=0) > 1e-3


def test_the_leak_repeats_with_its_seed() -> None:
    """The figure could not be reproduced, or the caller's random numbers would change."""
    x = draw(7, D)
    state = torch.get_rng_state()
    assert position_leak(attention, x, seed=3) == position_leak(attention, x, seed=3)
    assert position_leak(attention, x, seed=3) != position_leak(attention, x, seed=4)
    assert torch.equal(torch.get_rng_state(), state)


def unchanged(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("call", "named"),
    [
        *(
            (lambda changes=changes: as_memory(draw(D), **{**weights(), **changes}), ("must",))
            for changes in ({"keys": draw(M, D + 1)}, {"values": draw(M - 1, D)}, {"gates": draw(M, D + 1)})
        ),
        (lambda: as_memory(draw(D), **weights(), gate_bias=draw(M)), ("gate_bias", "gates")),
        (lambda: as_memory(draw(D), **weights(), top=0), ("top", "0")),
        (lambda: position_leak(unchanged, draw(1, D)), ("[1, 6]", "1 positions")),
        (lambda: position_leak(lambda x: x[..., :5], draw(3, D)), ("[3, 6]", "[3, 5]")),
        (lambda: position_leak(unchanged, draw(3, D), position=3), ("position 3",)),
    ],
)
def test_mistakes(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    """Keys of another layer would be multiplied until something breaks; one position be reported to leak nothing."""
    with refuses(FfnmemError, Exception, *named):
        call()
