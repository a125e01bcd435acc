"""``neuron_health``: against plain hooks, planted unhealthy neurons, what does not count, and what it shows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.core.sheets import Table
from ffnmem.ffn.activations import activation
from ffnmem.neurons import NeuronHealth, neuron_health

from ..architectures import DECODERS
from ..helpers import Pair, allclose, hook_count, refuses
from ..scanning.texts import tiny_texts
from .made import TEXTS, pushed


def plain(pair: Pair, texts: list[str], special: set[int]) -> tuple[pd.DataFrame, int]:
    """Every column from the Hugging Face model, text by text, and how many positions count."""
    model, hf = pair.model, pair.model.hf_model
    kept: dict[str, list[list[torch.Tensor]]] = {name: [[] for _ in model.ffn] for name in ("pre", "m")}
    for text in texts:
        ran: dict[str, list[torch.Tensor]] = {"pre": [], "m": []}

        def keep(name: str, tensor: torch.Tensor, ran: dict[str, list[torch.Tensor]] = ran) -> None:
            ran[name].append(tensor)

        handles = []
        for ffn in model.ffn:
            front = ffn.project_in if ffn.project_gate is None else ffn.project_gate
            handles.append(front.register_forward_hook(lambda _m, _a, out: keep("pre", out)))
            handles.append(ffn.project_out.register_forward_pre_hook(lambda _m, args: keep("m", args[0])))
        tokens = torch.tensor([model.tokenize(text, prepend_bos=True)])
        content = torch.tensor([at > 0 and int(token) not in special for at, token in enumerate(tokens[0])])
        try:
            with torch.no_grad():
                hf(input_ids=tokens)
        finally:
            for handle in handles:
                handle.remove()
        for name, by_layer in kept.items():
            for layer, tensors in enumerate(by_layer):
                tensors.append(ran[name][layer].reshape(len(content), -1)[content])
    frames = []
    for layer, ffn in enumerate(model.ffn):
        pre, m = (torch.cat(parts[layer]).double() for parts in kept.values())
        slope = activation(ffn.activation).gradient(pre)
        flat, linear = (slope.abs() < 0.01).double().mean(0), ((slope - 1).abs() < 0.01).double().mean(0)
        columns = {
            "fires": (pre > 0).double().mean(0),
            "dead": ((pre if model.gated else m) <= 0).all(0),
            "flat": flat,
            "linear": linear,
            "stuck": flat == 1,
            "saturated": (flat >= 0.99) | (linear >= 0.99),
        }
        frames.append(pd.DataFrame({"layer": layer, "neuron": range(ffn.d_mlp), **columns}))
    return pd.concat(frames, ignore_index=True), sum(len(part) for part in kept["pre"][0])


def test_equals_plain_hooks(pair64: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """No position counts that does not: pads, BOS, a special token inside (" Rome")."""
    special = pair64.model.special_token_ids | {pair64.model.token_id(" Rome")}
    monkeypatch.setattr(fm.Model, "special_token_ids", property(lambda _model: special))
    expected, positions = plain(pair64, TEXTS, special)
    found = neuron_health(pair64.model, TEXTS, prepend_bos=True)
    assert found.positions == positions
    assert list(found.neurons) == list(expected)
    for name in expected:
        assert allclose(found.neurons[name].astype(float), expected[name].astype(float), 1e-12), name
    with refuses(InputError, ValueError, "no text but special"):
        neuron_health(pair64.model, [" Rome"])


@pytest.mark.parametrize(
    ("kind", "never", "always"), [("opt", (0, 3, -1000.0), (1, 5, 1000.0)), ("gpt2", (1, 5, -1000.0), (1, 6, 1000.0))]
)
def test_planted(kind: str, never: tuple[int, int, float], always: tuple[int, int, float], tokenizer: Any) -> None:
    """A neuron far to the left is stuck; a GELU near 0 is dead, not stuck; always on is linear."""
    model = pushed(kind, tokenizer, {(layer, n): by for layer, n, by in (never, always, (0, 9, -0.5), (0, 10, 0.0))})
    found = neuron_health(model, TEXTS, prepend_bos=True)
    expected, _ = plain(Pair(kind, model.hf_model, model), TEXTS, {0})
    for name in expected:
        assert allclose(found.neurons[name].astype(float), expected[name].astype(float), 1e-6), name
    rows = found.neurons.set_index(["layer", "neuron"])
    names = ["dead", "stuck", "saturated", "fires", "flat", "linear"]
    assert rows.loc[never[:2], names].tolist() == [True, True, True, 0, 1, 0]
    assert rows.loc[always[:2], names].tolist() == [False, False, True, 1, 0, 1]
    assert rows.loc[(0, 9), ["dead", "stuck"]].tolist() == [True, kind == "opt"]


def test_an_experts_neurons_are_judged_where_they_are_routed_to(tokenizer: Any) -> None:
    """Elsewhere they are 0, which is neither firing nor flat."""
    model = fm.load(DECODERS["Qwen 2 MoE"](), tokenizer=tokenizer)
    found = neuron_health(model, TEXTS, prepend_bos=True).neurons
    captured = [fm.capture(model, text, prepend_bos=True) for text in TEXTS]
    for layer, rows in found.groupby("layer"):
        m = torch.cat([one.coefficients[layer][one.content] for one in captured])
        pre = torch.cat([one.pre[layer][one.content] for one in captured])
        routed = m != 0
        fires = ((pre > 0) & routed).sum(0) / routed.sum(0)
        assert allclose(rows["routed"], routed.double().mean(0), 1e-12)
        assert allclose(rows["fires"].dropna(), fires[routed.any(0)], 1e-6)
        assert 0 < routed.double().mean() < 1


def test_a_sample_of_the_text(tiny: fm.Model, make_tiny: Any) -> None:
    """Drawn by its seed, told in the provenance, with progress to its end. Batches change rounding only."""
    model = make_tiny(dtype="float64")
    small, large = (neuron_health(model, tiny_texts(), batch_tokens=n) for n in (40, 4000))
    assert small.positions == large.positions
    assert allclose(small.neurons, large.neurons, 1e-12)
    seen: list[tuple[str, int, int]] = []
    options: dict[str, Any] = {"tokens": 100, "batch_tokens": 40, "progress": lambda *step: seen.append(step)}
    a, b, c = (neuron_health(tiny, tiny_texts(), seed=seed, **options) for seed in (1, 1, 0))
    assert a.neurons.equals(b.neurons)
    assert not a.neurons.equals(c.neurons)
    assert 100 <= c.positions < 100 + tiny.n_ctx
    settings = c.provenance.to_dict()
    assert (settings["tokens"], settings["seed"], settings["batch_tokens"]) == (c.positions, 0, 40)
    assert settings["corpus_hash"]
    assert seen[-1] == ("health", c.positions, c.positions)


def test_nothing_is_left_behind(make_tiny: Any) -> None:
    """Hooks that leak; and layers by themselves do not show interventions."""
    model = make_tiny()
    before = hook_count(model.hf_model)
    neuron_health(model, TEXTS)
    assert hook_count(model.hf_model) == before
    with fm.intervene(model, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        neuron_health(model, TEXTS)
    with torch.no_grad():
        model.ffn[0].values[3] = torch.inf
    with refuses(InputError, ValueError, "not finite", "layer"):
        neuron_health(model, TEXTS)


@pytest.fixture(scope="module")
def health(tokenizer: Any) -> NeuronHealth:
    return neuron_health(pushed("opt", tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0}), TEXTS)


def test_layers_summarise_neurons(health: NeuronHealth) -> None:
    """A layer's row would be of another layer, or a sum for a mean."""
    for layer, frame in health.neurons.groupby("layer"):
        row = health.layers.set_index("layer").loc[layer]
        assert row["neurons"] == len(frame) == 64
        for column in ("fires", "dead", "stuck", "saturated"):
            assert row[column] == pytest.approx(frame[column].mean())


def test_sheet(health: NeuronHealth) -> None:
    """A number of another layer or neuron; a stuck neuron that looks like any other."""
    layers, neurons = [block for block in health.sheet(3).blocks if isinstance(block, Table)]
    names = ("layer", "neurons", "fires", "dead", "stuck", "saturated")
    assert list(layers.rows) == [tuple(row[name] for name in names) for row in health.layers.to_dict("records")]
    assert f"{health.positions:,} positions" in health.verdict
    assert health.first_rows(3).equals(health.extremes(3))
    assert health.first_rows().equals(health.neurons)
    ends = health.extremes(3).to_dict("records")
    for rows, name in ((ends[:3], "flat"), (ends[3:], "linear")):
        assert [row[name] for row in rows] == health.neurons[name].nlargest(3).tolist()
    assert [row[0] for row in neurons.rows] == ["most flat", None, None, "most linear", None, None]
    for line, row in zip(neurons.rows, ends, strict=True):
        numbers = (row[name] for name in ("fires", "flat", "linear"))
        assert line[1:-1] == ((row["layer"], row["neuron"]), *numbers)
    assert str(neurons.rows[0][-1]) == "dead, stuck"  # saturated goes without saying
