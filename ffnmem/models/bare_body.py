"""``BareBody``: the layers alone, as fast as Hugging Face runs them, for passes over much text.

A TransformerBridge forces eager attention and wraps every module. For a scan, which looks at FFNs only, a second module
tree is built around the *same* weights (or a copy in another dtype), with fused attention and a fused GELU, and the
pass
stops at the last layer's coefficients: neither the last projection nor the unembedding is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import HookError, UnsupportedModelError, listed
from ..hooks import listening
from .layout import inner
from .model import Model

OnLayer = Callable[[int, Float[Tensor, "tokens d_mlp"], Float[Tensor, "tokens d_mlp"]], None]
OnInput = Callable[[int, Float[Tensor, "rows pos d_model"]], None]


class Enough(Exception):
    """The last layer's coefficients are there: the rest of the pass is not needed."""


class BareBody:
    """A model's layers without its unembedding, sharing its weights; hooks on the model's bridge are not seen.

    Args:
        model: whose weights to run; edits of its weights made before are seen.
        dtype: None or the model's own shares the weights; another one copies them.

    Attributes:
        attention: ``"sdpa"``, or ``"eager"`` where the architecture has no other.
    """

    def __init__(self, model: Model, dtype: torch.dtype | None = None) -> None:
        self.n_layers, self.d_mlp = model.n_layers, model.d_mlp
        self.dtype = model.dtype if dtype is None else dtype
        self.network, self.attention = twin(model, self.dtype)
        names = {id(module): path for path, module in plain_modules(self.network, model.bridge.original_model)}
        found = dict(self.network.named_modules())
        self.projections = [(found[names[id(ffn.project_in)]], found[names[id(ffn.project_out)]]) for ffn in model.ffn]
        fuse_gelu(self.network)
        self.body: Any = self.network.base_model

    def run(
        self,
        tokens: Int[Tensor, "rows pos"],
        on_layer: OnLayer | None = None,
        *,
        on_input: OnInput | None = None,
        until: int | None = None,
    ) -> None:
        """One pass over right-padded rows; ``on_layer(layer, pre, coefficients)`` is told of each layer at once.

        Both are ``[rows·pos, d_mlp]`` in the pass's dtype. ``on_input(layer, x)`` is told what each FFN reads.
        ``until`` is the last layer to run. Raises HookError if a layer did not run.
        """
        last = self.n_layers - 1 if until is None else until
        before: dict[int, Tensor] = {}
        seen = 0
        handles = []

        def receive(layer: int, coefficients: Tensor) -> None:
            nonlocal seen
            seen += 1
            pre = before.pop(layer)
            if on_layer is not None:
                on_layer(layer, pre.reshape(-1, pre.shape[-1]), coefficients.reshape(-1, coefficients.shape[-1]))
            if layer == last:
                raise Enough

        def read(layer: int, x: Tensor) -> None:
            if on_input is not None:
                on_input(layer, x.reshape(*tokens.shape, x.shape[-1]))  # OPT flattens batch and position

        for layer, (project_in, project_out) in enumerate(self.projections):
            handles += [
                project_in.register_forward_pre_hook(lambda _m, args, layer=layer: read(layer, args[0])),
                project_in.register_forward_hook(lambda _m, _a, out, layer=layer: before.__setitem__(layer, out)),
                project_out.register_forward_pre_hook(lambda _m, args, layer=layer: receive(layer, args[0])),
            ]
        try:
            with torch.inference_mode():
                self.body(input_ids=tokens, use_cache=False)
        except Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        if seen != last + 1:
            raise HookError(f"{seen} of {last + 1} FFN layers ran in this pass")


def twin(model: Model, dtype: torch.dtype, attention: str = "sdpa") -> tuple[nn.Module, str]:
    """A plain Hugging Face model around a bridge's weights, and the attention that it uses.

    Raises UnsupportedModelError while :func:`ffnmem.intervene` changes the model: its hooks are not seen here.
    """
    if model.interventions:
        raise UnsupportedModelError(
            f"{model.name} is under an intervention ({listed(model.interventions, 3)}), which its layers by themselves "
            "would not show: leave the block of intervene first"
        )
    original = model.bridge.original_model
    config = copy.deepcopy(original.config)
    with torch.device("meta"):
        try:
            network = type(original)._from_config(config, attn_implementation=attention)
        except (ValueError, ImportError):  # how Hugging Face says that an architecture has no sdpa
            attention = "eager"
            network = type(original)._from_config(config, attn_implementation="eager")
    for name, kind in [
        *((name, "parameter") for name, _ in network.named_parameters(remove_duplicate=False)),
        *((name, "buffer") for name, _ in network.named_buffers(remove_duplicate=False)),
    ]:
        path, _, leaf = name.rpartition(".")
        tensor = resolve(original, name, model.name)
        holder = network.get_submodule(path)
        if kind == "buffer":
            holder._buffers[leaf] = tensor  # positions and masks keep their own dtype
        else:
            holder._parameters[leaf] = nn.Parameter(tensor.detach().to(dtype), requires_grad=False)
    return network.eval(), attention


def resolve(root: nn.Module, name: str, model_name: str) -> Tensor:
    """The tensor of a Hugging Face name inside a bridge's rewired model."""
    found: Any = root
    for part in name.split("."):
        found = getattr(inner(found), part, None) if isinstance(found, nn.Module) else None
    if not isinstance(found, Tensor):
        raise UnsupportedModelError(f"{model_name} has no weight {name}, which a pass over its layers needs")
    return found


def plain_modules(network: nn.Module, root: nn.Module) -> list[tuple[str, nn.Module]]:
    """The bridge's Hugging Face module for each path of the plain network."""
    pairs = []
    for path, _ in network.named_modules():
        found: Any = root
        for part in path.split(".") if path else []:
            found = getattr(inner(found), part, None) if isinstance(found, nn.Module) else None
        if isinstance(found, nn.Module):
            pairs.append((path, inner(found)))
    return pairs


def fuse_gelu(network: nn.Module) -> None:
    """Replace Hugging Face's GELU in seven elementwise steps by torch's in one (equal to rounding)."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in ("NewGELUActivation", "FastGELUActivation", "PytorchGELUTanh", "GELUTanh"):
                setattr(module, name, nn.GELU(approximate="tanh"))


PROBE = 8  # tokens
AGREE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the largest coefficient; half precision below
HALF = 0.1


def check_same(model: Model) -> None:
    """Raise UnsupportedModelError if the bare layers compute other coefficients than the model's bridge does.

    They would where hooks of the user's change what passes, or where the bridge has folded its norms into weights.
    """
    tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
    found: dict[int, Tensor] = {}
    expected: dict[int, Tensor] = {}

    def keeper(layer: int) -> Callable[[Tensor], None]:
        return lambda tensor: expected.__setitem__(layer, tensor.detach().reshape(-1, tensor.shape[-1]))

    with listening(inputs=[(ffn.project_out, keeper(ffn.layer)) for ffn in model.ffn]):
        model.body(tokens)
    BareBody(model).run(tokens, lambda layer, _pre, m: found.__setitem__(layer, m.clone()))
    allowed = AGREE.get(model.dtype, HALF)
    for layer, theirs in expected.items():
        difference = (found[layer] - theirs).abs()
        finite = difference.isfinite()  # what is not is the scan's to name
        if not bool(finite.any()):
            continue
        off = float(difference[finite].max() / theirs[finite].abs().max().clamp(min=1.0))
        if off > allowed:
            raise UnsupportedModelError(
                f"{model.name}: the layers by themselves compute other coefficients than the bridge (layer {layer}, "
                f"off by {off:.1g}): remove hooks that change them, and load it without compatibility mode"
            )
