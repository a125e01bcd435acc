"""``neuron_health``: planted unhealthy neurons, a plain computation, what does not count, and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.ffn.activations import activation
from ffnmem.neurons import neuron_health

from ..helpers import Pair, allclose, refuses
from ..scanning.texts import tiny_texts
from .made import TEXTS, pushed


def row(found: Any, layer: int, neuron: int) -> Any:
    rows = found.neurons
    return rows[(rows["layer"] == layer) & (rows["neuron"] == neuron)].iloc[0]


def test_planted_relu(tokenizer: Any) -> None:
    """A dead ReLU neuron is stuck and carries nothing; one that is always on is linear."""
    model = pushed("opt", tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0})
    found = neuron_health(model, TEXTS)
    dead, on = row(found, 0, 3), row(found, 1, 5)
    assert (dead.dead, dead.stuck, dead.saturated, dead.fires, dead.flat) == (True, True, True, 0, 1)
    assert dead.flow_pre == dead.flow_pre_rms == dead.local_gradient == 0
    assert dead.flow_coefficient > 0  # a firing would matter: it is the key that does not hear of it
    assert (on.dead, on.stuck, on.saturated, on.fires, on.linear) == (False, False, True, 1, 1)
    assert on.flow_pre == on.flow_coefficient > 0
    relu = found.neurons
    assert (relu["stuck"] == relu["dead"]).all()
    assert (relu["flat"] + relu["linear"]).tolist() == [1.0] * len(relu)
    assert found.layers["stuck"].tolist()[0] == pytest.approx(relu[relu["layer"] == 0]["stuck"].mean())


def test_planted_gelu(tokenizer: Any) -> None:
    """A GELU neuron that never fires still passes a gradient, unless it lies far to the left."""
    model = pushed("gpt2", tokenizer, {(0, 3): -0.5, (1, 5): -1000.0, (1, 6): 1000.0})
    found = neuron_health(model, TEXTS)
    shallow, deep, on = row(found, 0, 3), row(found, 1, 5), row(found, 1, 6)
    assert (shallow.dead, shallow.stuck, shallow.saturated) == (True, False, False)
    assert shallow.flow_pre > 0.01 * shallow.flow_coefficient
    slope = float(activation("gelu_new").gradient(torch.tensor(-0.5, dtype=torch.float64)))
    assert shallow.local_gradient == pytest.approx(slope, abs=1e-12)
    assert (deep.dead, deep.stuck, deep.saturated, deep.flow_pre) == (True, True, True, 0)
    assert (on.dead, on.stuck, on.saturated, on.linear) == (False, False, True, 1)


def plain(model: fm.Model, texts: list[str]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Pre-activations of content by hooks of the bridge, and coefficients, text by text."""
    pres: list[list[torch.Tensor]] = [[] for _ in range(model.n_layers)]
    ms: list[list[torch.Tensor]] = [[] for _ in range(model.n_layers)]
    for text in texts:
        capture = fm.capture(model, text, prepend_bos=True)
        keep = [int(t) not in model.special_token_ids for t in capture.tokens[0]]
        for layer in range(model.n_layers):
            pres[layer].append(capture.pre[layer][0, keep])
            ms[layer].append(capture.coefficients[layer][0, keep])
    return [torch.cat(x) for x in pres], [torch.cat(x) for x in ms]


def test_equals_a_plain_computation(pair64: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares would be of other positions: pads, BOS, or a special token inside a text (here " Rome")."""
    model = pair64.model
    special = model.special_token_ids | {model.token_id(" Rome")}
    monkeypatch.setattr(fm.Model, "special_token_ids", property(lambda _model: special))
    found = neuron_health(model, TEXTS, prepend_bos=True)
    pres, ms = plain(model, TEXTS)
    assert found.positions == len(pres[0])
    for layer in range(model.n_layers):
        frame = found.neurons[found.neurons["layer"] == layer]
        slope = activation(model.ffn[layer].activation).gradient(pres[layer])
        assert allclose(frame["fires"], (pres[layer] > 0).double().mean(0), 1e-12)
        assert allclose(frame["local_gradient"], slope.double().mean(0), 1e-6)
        fired = (ms[layer] > 0) if model.ffn[layer].gates is None else (pres[layer] > 0)
        assert frame["dead"].tolist() == (~fired.any(0)).tolist()


def test_flow_is_of_each_text_by_itself(tiny: fm.Model) -> None:
    """Texts that share a batch would share their gradient, or the mean be over other positions."""
    texts = [TEXTS[0], TEXTS[2]]
    both = neuron_health(tiny, texts)
    alone = [neuron_health(tiny, [text]) for text in texts]
    weights = [one.flow_positions for one in alone]
    assert both.flow_positions == sum(weights) == both.positions - 2  # no prediction follows the last token
    for column, power in (("flow_coefficient", 1), ("flow_pre", 1), ("flow_pre_rms", 2)):
        parts = [one.neurons[column] ** power * n for one, n in zip(alone, weights, strict=True)]
        assert allclose(both.neurons[column] ** power, sum(parts) / sum(weights), 1e-5)


def test_the_loss_is_the_models(pair64: Pair) -> None:
    """Nats of another loss than that of predicting each next token of text."""
    text = TEXTS[0]
    found = neuron_health(pair64.model, [text], prepend_bos=True)
    tokens = torch.tensor([pair64.model.tokenize(text, prepend_bos=True)])
    log = pair64.logits(tokens).double().log_softmax(-1)
    assert found.loss == pytest.approx(-float(log[0, :-1].gather(1, tokens[0, 1:, None]).mean()), abs=1e-5)


def test_batches_change_rounding_only(make_tiny: Any) -> None:
    """How much memory a machine has would change the numbers."""
    model = make_tiny(dtype="float64")
    small, large = (neuron_health(model, tiny_texts(), batch_tokens=n) for n in (40, 4000))
    assert small.positions == large.positions
    assert allclose(small.neurons, large.neurons, 1e-12)
    assert small.loss == pytest.approx(large.loss, abs=1e-12)


def test_the_same_call_twice(tiny: fm.Model) -> None:
    """Numbers that cannot be found again."""
    a, b, c = (neuron_health(tiny, tiny_texts(), tokens=100, seed=seed) for seed in (0, 0, 1))
    assert a.neurons.equals(b.neurons)
    assert not a.neurons.equals(c.neurons)
    assert 100 <= a.positions < 100 + tiny.n_ctx


def test_without_flow(tiny: fm.Model) -> None:
    """The statistics of the way forward would depend on the way back."""
    with_flow, without = (neuron_health(tiny, TEXTS, flow=flow) for flow in (True, False))
    assert without.loss is None
    assert without.flow_positions == 0
    assert not [name for name in without.neurons if name.startswith("flow_")]
    assert without.neurons.equals(with_flow.neurons[without.neurons.columns])


def test_provenance_and_progress(tiny: fm.Model) -> None:
    """A result would not say of which text it is, or a bar not end."""
    seen: list[tuple[str, int, int]] = []
    found = neuron_health(tiny, tiny_texts(), tokens=80, progress=lambda *step: seen.append(step), batch_tokens=40)
    settings = found.provenance.to_dict()
    assert settings["tokens"] == found.positions
    assert settings["corpus_hash"]
    assert settings["seed"] == 0
    assert found.provenance.prepend_bos is tiny.prepend_bos
    assert seen[-1] == ("health", found.positions, found.positions)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_special_tokens_are_not_predicted(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow would be that of predicting them too, or the loss hold what no text says."""
    text = " Paris is in Rome"
    whole = neuron_health(tiny, [text])
    monkeypatch.setattr(fm.Model, "special_token_ids", property(lambda model: {0, model.token_id(" Rome")}))
    found = neuron_health(tiny, [text])
    assert (whole.positions, whole.flow_positions) == (4, 3)
    assert (found.positions, found.flow_positions) == (3, 2)
    before = neuron_health(tiny, [text.removesuffix(" Rome")])
    assert found.loss == pytest.approx(before.loss, abs=1e-6)
    assert allclose(found.neurons["flow_pre"], before.neurons["flow_pre"], 1e-6)
    with refuses(InputError, ValueError, "no text but special"):
        neuron_health(tiny, [" Rome"])


def test_mistakes(tiny: fm.Model, make_tiny: Any) -> None:
    with refuses(InputError, ValueError, "tokens", "0"):
        neuron_health(tiny, TEXTS, tokens=0)
    with refuses(InputError, ValueError, "seed", "-1"):
        neuron_health(tiny, TEXTS, seed=-1)
    with refuses(InputError, ValueError, "context 64", "32"):
        neuron_health(tiny, TEXTS, context=64)
    with refuses(FileError, OSError, "no text"):
        neuron_health(tiny, [""])
    broken = make_tiny()
    with torch.no_grad():
        broken.ffn[1].values[3] = torch.inf
    with refuses(InputError, ValueError, "not finite", "layer"):
        neuron_health(broken, TEXTS)
