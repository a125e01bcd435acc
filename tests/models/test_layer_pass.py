"""The layers alone, against the bridge's own forward pass; and what forward passes read, however the model is run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models.hooks import OpenBlock, first_tensor, listening
from ffnmem.models.layer_pass import LayerPass, Reader, check_same, resolve

from ..helpers import Pair, allclose, hook_count, refuses

LENGTHS = [9, 6, 2]
Found = dict[int, tuple[torch.Tensor, torch.Tensor]]


def batch(model: fm.Model) -> torch.Tensor:
    """Rows of different lengths, padded on the right."""
    tokens = torch.randint(1, model.d_vocab, (3, max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = 0
    return tokens


def run(body: LayerPass, tokens: torch.Tensor, **options: Any) -> Found:
    found: Found = {}
    body.run(tokens, lambda layer, pre, m: found.update({layer: (pre.clone().double(), m.clone().double())}), **options)
    return found


def equals_capture(model: fm.Model, body: LayerPass, tolerance: float) -> bool:
    """Whether pre-activations, coefficients and inputs of every row are those of a capture of it alone."""
    tokens, inputs, linear = batch(model), {}, {}

    def hear(into: dict[int, torch.Tensor], layer: int, x: torch.Tensor) -> None:
        into[layer] = x.clone()

    found = run(body, tokens, on_input=partial(hear, inputs), on_linear=partial(hear, linear))
    assert list(found) == list(inputs) == list(range(model.n_layers))
    for row, length in enumerate(LENGTHS):
        capture = fm.capture(model, tokens[row, :length])
        for layer, (pre, m) in found.items():
            flat = (pre, m, *([linear[layer]] if model.gated else []))
            whole = (inputs[layer], *(tensor.unflatten(0, tokens.shape) for tensor in flat))
            expected = [capture.ffn_in[layer], capture.pre[layer], capture.coefficients[layer]]
            expected += [capture.linear[layer]] if model.gated else []
            assert all(allclose(a[row, :length], b[0], tolerance) for a, b in zip(whole, expected, strict=True))
    return True


def test_equals_capture(pair64: Pair) -> None:
    """Pads seen by the text before them, a mask or a position of the wrong kind, another activation."""
    body = LayerPass(pair64.model)
    hooks = hook_count(body.network)
    assert equals_capture(pair64.model, body, 1e-6)
    assert hook_count(body.network) == hooks


def test_shares_the_weights_and_computes_what_is_needed(make_tiny: Callable[..., fm.Model]) -> None:
    """No copy, no gradients, and nothing behind the last coefficients, which is a quarter of GPT-2."""
    model = make_tiny()
    body, ran, kept = LayerPass(model), [], []
    theirs = {p.data_ptr() for p in model.hf_model.parameters()}
    assert {p.data_ptr() for p in body.network.parameters()} <= theirs
    with torch.no_grad():
        model.ffn[0].keys[3] *= 2
    assert equals_capture(model, body, 2e-5)
    assert (body.attention, body.dtype) == ("sdpa", torch.float32)
    for name, module in body.network.named_modules():
        module.register_forward_hook(lambda _m, _a, _o, name=name: ran.append(name))
    body.run(batch(model), lambda _layer, pre, m: kept.extend([pre.requires_grad, m.requires_grad]))
    assert kept == [False] * 4
    assert {"transformer.h.1.mlp.c_fc", "transformer.h.0.mlp.c_proj"} <= {*ran}
    assert not {"transformer.h.1.mlp.c_proj", "transformer.ln_f", "lm_head"} & {*ran}


def test_nothing_of_the_model_changes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that runs another attention, a hook that stays, or the default type, which is every thread's."""
    model, original = pair.model, pair.model.hf_model
    monkeypatch.setattr(torch, "set_default_dtype", lambda _dtype: pytest.fail("the default type was changed"))

    def state() -> list[Any]:
        modules = [(name, type(module)) for name, module in original.named_modules()]
        tensors = {name: (tensor.data_ptr(), tensor._version) for name, tensor in original.state_dict().items()}
        trained = [parameter.requires_grad for parameter in original.parameters()]
        config = copy.deepcopy(original.config.to_dict()), original.config._attn_implementation
        logits = fm.capture(model, batch(model)[:1], logits=True).logits
        return [modules, tensors, trained, config, hook_count(original), model.fingerprint, logits.tolist()]

    before, exact = state(), run(LayerPass(model), batch(model)[:1])
    copied = LayerPass(model, torch.bfloat16)
    assert {p.dtype for p in copied.network.parameters()} == {torch.bfloat16}
    for layer, (_, m) in run(copied, batch(model)[:1]).items():
        assert 0 < (m - exact[layer][1]).abs().max() / exact[layer][1].abs().max() < 0.1
    assert state() == before


def test_what_fails_and_what_does_not_run(make_tiny: Callable[..., fm.Model]) -> None:
    """Statistics of some layers would be left empty in silence, or a hook stay."""
    model = make_tiny()
    body = LayerPass(model)
    with pytest.raises(ZeroDivisionError):
        body.run(batch(model), lambda *_: 1 / 0)  # type: ignore[arg-type]
    assert hook_count(body.network) == 0
    body.body.h = nn.ModuleList([body.body.h[0]])
    with refuses(HookError, RuntimeError, "1 of 2 FFN layers"):
        run(body, batch(model))
    assert hook_count(body.network) == 0
    with refuses(UnsupportedModelError, ValueError, "tiny", "transformer.h.7.mlp"):
        resolve(model.hf_model, "transformer.h.7.mlp", "tiny")


def test_a_bridge_which_computes_otherwise_is_refused(make_tiny: Callable[..., fm.Model]) -> None:
    """The bare layers would be scanned in place of what the bridge runs."""
    model = make_tiny()
    check_same(model)
    model.to_bridge().enable_compatibility_mode()
    with refuses(UnsupportedModelError, ValueError, "compatibility mode", "layer 0"):
        check_same(fm.load(model.to_bridge()))


# -- what passes read -------------------------------------------------------------------------------------------------


def positions_seen(model: fm.Model, run: Any) -> list[list[list[int]]]:
    """The positions of each pass while ``run`` runs, as the layers see them."""
    reader, seen = Reader(model), []

    def look(_module: nn.Module, _args: Any) -> None:
        assert reader.current is not None
        seen.append(reader.current.positions.tolist())

    handle = model.ffn[0].project_out.register_forward_pre_hook(look)
    with OpenBlock() as block:
        reader.follow(block)
        run()
    handle.remove()
    assert reader.current is None
    assert reader.ran
    return seen


# TransformerLens 4.3 hands transformers 5.24 its cache under the name that it had until then.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_positions_go_on_under_a_cache_and_pads_have_none(architecture: fm.Model) -> None:
    """After the first pass each sees one token, whose position is not 0; positions count a row's own text."""
    model, hf, bridge = architecture, architecture.hf_model, architecture.to_bridge()
    tokens = torch.tensor([model.tokenize("The city of")])
    n = tokens.shape[1]
    whole, options = [list(range(n))], {"max_new_tokens": 3, "do_sample": False}
    ours = positions_seen(model, lambda: hf.generate(tokens, pad_token_id=0, **options))
    bridges = positions_seen(model, lambda: bridge.generate(tokens, stop_at_eos=False, verbose=False, **options))
    assert ours == bridges == [whole, [[n]], [[n + 1]]]
    assert positions_seen(model, lambda: bridge(tokens)) == [whole]
    padded = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])
    right = torch.tensor([[True] * 4, [True, True, False, False]])
    assert positions_seen(model, lambda: model.body(padded, right)) == [[[0, 1, 2, 3], [0, 1, -1, -1]]]
    left = {"attention_mask": right.flip(1).long(), "pad_token_id": 0, **options}
    found = positions_seen(model, lambda: hf.generate(padded.flip(1), **left))
    assert found == [[[0, 1, 2, 3], [-1, -1, 0, 1]], [[4], [2]], [[5], [3]]]


def test_what_cannot_be_followed_leaves_nothing(tiny: fm.Model) -> None:
    before, reader = hook_count(tiny.hf_model), Reader(tiny)
    with refuses(HookError, RuntimeError, "input_ids"):
        reader.begin(reader.decoder, (), {})
    with refuses(HookError, RuntimeError, "[1, 1, 3, 3]"):
        reader.begin(reader.decoder, (torch.ones(1, 3).long(),), {"attention_mask": torch.ones(1, 1, 3, 3)})
    with OpenBlock() as block:
        reader.follow(block)
        with pytest.raises(IndexError):
            tiny.body(torch.tensor([[10**6]]))
    assert hook_count(tiny.hf_model) == before
    assert reader.current is None


class Doubles(nn.Module):
    """Returns a tuple, as attention modules do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return 2 * x, None


def test_listeners_hear_their_own_module_and_go() -> None:
    """The wrong side, module or part of a tuple would be recorded, or a leaked hook change every later run."""
    heard: list[tuple[str, list[float]]] = []
    one, other, x = Doubles(), nn.Identity(), torch.arange(3.0)

    def hear(name: str) -> Callable[[torch.Tensor], None]:
        return lambda t: heard.append((name, t.tolist()))

    with listening([(one, hear("in")), (other, hear("other"))], [(one, hear("out"))]):
        assert torch.equal(one(x)[0], 2 * x)
        other(x)
        assert hook_count(one) == 2
    assert heard == [("in", [0, 1, 2]), ("out", [0, 2, 4]), ("other", [0, 1, 2])]
    with pytest.raises(ZeroDivisionError), listening([], [(one, lambda t: 1 / 0)]):  # type: ignore[arg-type, return-value]
        one(x)
    with pytest.raises(AttributeError), listening([], iter([(one, hear("")), (None, hear(""))])):  # type: ignore[list-item]
        pass
    assert hook_count(one) == 0
    assert first_tensor((x, None)) is first_tensor(x) is x
