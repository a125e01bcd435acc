"""The layers alone, against the bridge's own forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models import layer_pass
from ffnmem.models.hooks import listening
from ffnmem.models.layer_pass import LayerPass, resolve

from ..helpers import Pair, allclose, hook_count, refuses

LENGTHS = [9, 6, 2]
Found = dict[int, tuple[torch.Tensor, torch.Tensor]]


def batch(model: fm.Model) -> torch.Tensor:
    """Rows of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, model.d_vocab, (3, max(LENGTHS)), generator=generator)
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = 0
    return tokens


def run(body: LayerPass, tokens: torch.Tensor) -> Found:
    found: Found = {}

    def keep(layer: int, pre: torch.Tensor, coefficients: torch.Tensor) -> None:
        found[layer] = (pre.clone().double(), coefficients.clone().double())

    body.run(tokens, keep)
    return found


def assert_equals_capture(model: fm.Model, found: Found, tolerance: float) -> None:
    tokens = batch(model)
    assert list(found) == list(range(model.n_layers))
    for row, length in enumerate(LENGTHS):
        capture = fm.capture(model, tokens[row, :length])
        for layer, tensors in found.items():
            for tensor, expected in zip(tensors, (capture.pre[layer], capture.coefficients[layer]), strict=True):
                ours = tensor.unflatten(0, tokens.shape)[row, :length]
                assert allclose(ours, expected[0], tolerance)


def test_equals_capture(pair: Pair) -> None:
    """Pads seen by the text before them, a mask or a position of the wrong kind, another activation."""
    body = LayerPass(pair.model)
    assert_equals_capture(pair.model, run(body, batch(pair.model)), 2e-5)
    assert body.attention in ("sdpa", "eager")
    assert body.dtype == torch.float32


def test_equals_capture_exactly_in_float64(pair64: Pair) -> None:
    assert_equals_capture(pair64.model, run(LayerPass(pair64.model), batch(pair64.model)), 1e-6)


def test_atlas(atlas: fm.Model) -> None:
    body = LayerPass(atlas)
    assert body.attention == "sdpa"
    assert_equals_capture(atlas, run(body, batch(atlas)), 2e-5)


def test_shares_the_weights(make_tiny: Callable[..., fm.Model]) -> None:
    """A copy would double the memory, and an edit would not be seen."""
    model = make_tiny()
    body = LayerPass(model)
    theirs = {p.data_ptr() for p in model.hf_model.parameters()}
    assert {p.data_ptr() for p in body.network.parameters()} <= theirs
    before = run(body, batch(model))
    with torch.no_grad():
        model.ffn[0].keys[3] *= 2
    after = run(body, batch(model))
    assert not torch.equal(before[0][0][:, 3], after[0][0][:, 3])
    assert_equals_capture(model, after, 2e-5)


def test_bfloat16_is_a_copy(make_tiny: Callable[..., fm.Model]) -> None:
    model = make_tiny()
    body = LayerPass(model, torch.bfloat16)
    assert {p.dtype for p in body.network.parameters()} == {torch.bfloat16}
    assert model.dtype == torch.float32
    dtypes = []
    body.run(batch(model), lambda _layer, pre, m: dtypes.extend([pre.dtype, m.dtype]))
    assert set(dtypes) == {torch.bfloat16}
    found, exact = run(body, batch(model)), run(LayerPass(model), batch(model))
    content = torch.cat([torch.arange(9), 9 + torch.arange(6), 18 + torch.arange(2)])
    for layer in found:
        error = (found[layer][1] - exact[layer][1])[content].abs().max() / exact[layer][1][content].abs().max()
        assert 0 < error < 0.1


def test_nothing_of_the_model_changes(pair: Pair) -> None:
    """A bridge that runs another attention, or a hook that stays, would change every later result."""
    model = pair.model
    original = model.hf_model
    tokens = batch(model)[:1]
    config, hooks = copy.deepcopy(original.config), hook_count(original)
    modules = [(name, type(module)) for name, module in original.named_modules()]
    trained = [parameter.requires_grad for parameter in original.parameters()]
    tensors = {name: (tensor.data_ptr(), tensor._version) for name, tensor in original.state_dict().items()}
    logits = fm.capture(model, tokens, logits=True).logits
    fingerprint = model.fingerprint
    for dtype in (None, torch.bfloat16):
        run(LayerPass(model, dtype), batch(model))
    assert original.config.to_dict() == config.to_dict()
    assert original.config._attn_implementation == config._attn_implementation
    assert hook_count(original) == hooks
    assert [(name, type(module)) for name, module in original.named_modules()] == modules
    assert {name: (tensor.data_ptr(), tensor._version) for name, tensor in original.state_dict().items()} == tensors
    assert model.fingerprint == fingerprint
    again = fm.capture(model, tokens, logits=True).logits
    assert logits is not None
    assert again is not None
    assert torch.equal(logits, again)
    assert [parameter.requires_grad for parameter in original.parameters()] == trained


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_default_type_is_let_alone(
    make_tiny: Callable[..., fm.Model], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is every thread's: two that build at once could even leave it changed."""
    model = make_tiny(dtype=dtype)
    monkeypatch.setattr(torch, "set_default_dtype", lambda _dtype: pytest.fail("the default type was changed"))
    body = LayerPass(model)
    assert body.network.config.dtype == model.hf_model.config.dtype
    run(body, batch(model))


def test_hooks_are_gone_afterwards(tiny: fm.Model) -> None:
    body = LayerPass(tiny)
    before = hook_count(body.network)
    run(body, batch(tiny))
    assert hook_count(body.network) == before == 0

    def fail(_layer: int, _pre: torch.Tensor, _coefficients: torch.Tensor) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body.run(batch(tiny), fail)
    assert hook_count(body.network) == 0
    assert len(run(body, batch(tiny))) == 2


def test_no_gradients_are_kept(tiny: fm.Model) -> None:
    """Memory would grow with every batch."""
    kept = []
    LayerPass(tiny).run(batch(tiny), lambda _layer, pre, m: kept.extend([pre.requires_grad, m.requires_grad]))
    assert kept == [False] * 4


def test_stops_at_the_last_layers_coefficients(tiny: fm.Model) -> None:
    """What comes after costs a quarter of GPT-2's pass."""
    body = LayerPass(tiny)
    ran = []
    for name, module in body.network.named_modules():
        module.register_forward_hook(lambda _m, _a, _o, name=name: ran.append(name))
    run(body, batch(tiny))
    assert "transformer.h.1.mlp.c_fc" in ran
    assert "transformer.h.0.mlp.c_proj" in ran
    assert not {"transformer.h.1.mlp.c_proj", "transformer.ln_f", "lm_head"} & set(ran)


def test_a_layer_that_does_not_run(make_tiny: Callable[..., fm.Model]) -> None:
    """Statistics of some layers would be left empty in silence."""
    body = LayerPass(make_tiny())
    body.body.h = torch.nn.ModuleList([body.body.h[0]])
    with refuses(HookError, RuntimeError, "1 of 2 FFN layers"):
        run(body, batch(make_tiny()))
    assert hook_count(body.network) == 0


def test_a_weight_that_is_not_there(tiny: fm.Model) -> None:
    with refuses(UnsupportedModelError, ValueError, "tiny", "transformer.h.7.mlp"):
        resolve(tiny.hf_model, "transformer.h.7.mlp", "tiny")


def test_architectures_without_fused_attention(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have no sdpa: they run as they are, and say so."""
    kind = type(tiny.hf_model)
    make = kind._from_config

    def only_eager(config: object, attn_implementation: str, **options: object) -> object:
        if attn_implementation == "sdpa":
            raise ValueError("does not support scaled_dot_product_attention")
        return make(config, attn_implementation=attn_implementation, **options)

    monkeypatch.setattr(kind, "_from_config", only_eager)
    body = LayerPass(tiny)
    assert body.attention == "eager"
    assert_equals_capture(tiny, run(body, batch(tiny)), 2e-5)


def test_the_fused_gelu_is_the_same_function(tiny: fm.Model) -> None:
    network = LayerPass(tiny).network
    (fused, *_) = [m for m in network.modules() if isinstance(m, torch.nn.GELU)]
    x = torch.linspace(-8, 8, 999, dtype=torch.float64)
    expected = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    assert allclose(fused(x), expected, 1e-12)
    assert not any(type(m).__name__ in ("NewGELUActivation", "FastGELUActivation") for m in network.modules())
    assert layer_pass.fuse_gelu(network) is None


def test_a_gated_ffn_with_an_array_less_is_the_same_to_the_bit(gated: fm.Model) -> None:
    """Coefficients that overwrite the gate's pre-activations, which were told of and are still to be read."""
    network = LayerPass(gated).network
    (ffn, *_) = [m for m in network.modules() if type(m).__name__ in layer_pass.GATED]
    x = torch.randn(3, 5, gated.d_model, generator=torch.Generator().manual_seed(0))
    told: list[torch.Tensor] = []
    with torch.inference_mode(), listening(outputs=[(ffn.gate_proj, told.append)]):
        assert ffn.forward.__func__ is layer_pass.gated
        assert (ffn(x) == type(ffn).forward(ffn, x)).all()
        assert (told[0] == ffn.gate_proj(x)).all()


def test_that_a_bridge_which_computes_otherwise_is_refused(tiny_hf: Any, tokenizer: Any) -> None:
    """The bare layers would be scanned in place of what the bridge runs."""
    from ffnmem.models.layer_pass import check_same

    model = fm.load(tiny_hf, tokenizer=tokenizer)
    check_same(model)
    model.to_bridge().enable_compatibility_mode()
    with refuses(UnsupportedModelError, ValueError, "compatibility mode", "layer 0"):
        check_same(fm.load(model.to_bridge()))


def test_what_each_ffn_reads(pair: Pair) -> None:
    """Pads aside, the capture's own inputs, told with rows and positions, before the coefficients."""
    body, tokens = LayerPass(pair.model), batch(pair.model)
    inputs: dict[int, torch.Tensor] = {}
    body.run(tokens, on_input=lambda layer, x: inputs.__setitem__(layer, x.clone()))
    assert list(inputs) == [0, 1]
    for row, length in enumerate(LENGTHS):
        capture = fm.capture(pair.model, tokens[row, :length])
        for layer, x in inputs.items():
            assert allclose(x[row, :length], capture.ffn_in[layer][0], 2e-5)
    assert hook_count(body.network) == 0


def test_until_a_layer(tiny: fm.Model) -> None:
    """Those above it must not run, and those below are told of as ever."""
    body = LayerPass(tiny)
    ran, told = [], []
    body.body.h[1].register_forward_pre_hook(lambda _m, _a: ran.append(1))
    whole = run(LayerPass(tiny), batch(tiny))
    found: Found = {}
    body.run(
        batch(tiny),
        lambda layer, pre, m: found.__setitem__(layer, (pre.double(), m.double())),
        on_input=lambda layer, x: told.append(layer),
        until=0,
    )
    assert (ran, told, list(found)) == ([], [0], [0])
    assert torch.equal(found[0][1], whole[0][1])
    with refuses(HookError, RuntimeError, "2 of 3 FFN layers"):
        body.run(batch(tiny), until=2)
