"""``LayerPass``: the layers alone, as fast as Hugging Face runs them, and which positions a pass reads."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.errors import HookError, UnsupportedModelError, listed
from .experts import ExpertProjection, Mixture, find_mixture
from .hooks import OnTensor, UndoList, keeper, listening, on_meta
from .layout import bound_masks, decoder_of, inner, turn_rows_apart
from .model import AGREE, HALF, PROBE, Model
from .norms import widen

# What forward passes read: which positions of which rows, with pads and caches, told before the layers run.


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass.

    Attributes:
        positions: ``[batch, pos]``, each column's position in its row's text, −1 at pads. Tokens that a cache holds
            count: the first token after a prompt of 9 stands at position 9.
        lengths: ``[batch]``, tokens of each row's prompt, which is what the first pass without a cache read; None if
            that pass was not seen.
    """

    positions: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"] | None


class Here(threading.local):
    """What a reader knows of one thread: its pass, and of its last prompt how long each row is and how many pads."""

    current: ForwardPass | None = None
    lengths: Int[Tensor, " batch"] | None = None
    pads: Int[Tensor, " batch"] | None = None

    def __reduce__(self) -> tuple[type[Here], tuple[()]]:
        return Here, ()  # with a copy of a model that is followed


class Reader:
    """Follows a model's forward passes, each thread's by themselves; ``current`` is the one that runs, or None."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        decoder = model.layout.decoder
        if decoder is None:
            raise HookError(
                f"{model.name}: the module that reads tokens was not found, so its passes cannot be followed"
            )
        self.decoder = decoder
        self.signature = inspect.signature(self.decoder.forward)
        self.ran = False
        self.here = Here()

    @property
    def current(self) -> ForwardPass | None:
        """The pass that runs in this thread."""
        return self.here.current

    def follow(self, undo: UndoList) -> None:
        """Follow what runs until the block ends."""
        undo.hook(self.decoder, self.begin, before=True, with_kwargs=True)
        undo.hook(self.decoder, self.end, always_call=True)

    def begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = self.signature.bind_partial(*args, **kwargs).arguments
        read = found.get("input_ids") if found.get("input_ids") is not None else found.get("inputs_embeds")
        if not isinstance(read, Tensor):
            raise HookError(f"{self.name}: a pass without input_ids and inputs_embeds cannot be followed")
        # By what it can do: transformers has had two names for it.
        cache = next((value for value in (*args, *kwargs.values()) if hasattr(value, "get_seq_length")), None)
        past = 0 if cache is None else int(cache.get_seq_length())
        mask = found.get("attention_mask")
        if mask is not None and (mask.ndim != 2 or mask.shape[1] < past + read.shape[1]):
            shape = list(mask.shape)
            raise HookError(f"{self.name}: positions cannot be told from an attention mask of shape {shape}")
        seen = None if mask is None else mask[:, : past + read.shape[1]].bool()
        self.here.current = self.reading(read.shape[0], read.shape[1], past, seen, read.device)

    def reading(
        self, batch: int, columns: int, past: int, mask: Bool[Tensor, "batch seen"] | None, device: torch.device
    ) -> ForwardPass:
        """What a pass over ``columns`` reads after ``past`` cached ones; without a mask all of a prompt counts."""
        here = self.here
        known = here.lengths is not None and len(here.lengths) == batch
        if mask is None:
            if past == 0 or not known:
                here.pads = torch.zeros(batch, dtype=torch.long, device=device)
            assert here.pads is not None
            positions = past + torch.arange(columns, device=device) - here.pads.unsqueeze(-1)
            positions = positions.clamp(min=-1)
        else:
            positions = (mask.long().cumsum(-1) - 1).masked_fill(~mask, -1)[:, past:]
        if past == 0:
            here.lengths = (positions >= 0).sum(-1)
            here.pads = columns - here.lengths
        elif not known:
            here.lengths = None
        return ForwardPass(positions, here.lengths)

    def end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.ran = self.ran or self.here.current is not None
        self.here.current = None


# `LayerPass`: the layers alone, as fast as Hugging Face runs them, for passes over much text.
#
# A TransformerBridge forces eager attention and wraps every module. For a scan, which looks at FFNs only, a second
# module tree is built around the *same* weights (or a copy in another dtype), with fused attention and a fused GELU,
# and the pass stops at the last layer's coefficients: neither the last projection nor the unembedding is computed.

OnLayer = Callable[[int, Float[Tensor, "tokens d_mlp"], Float[Tensor, "tokens d_mlp"]], None]
OnLinear = Callable[[int, Float[Tensor, "tokens d_mlp"]], None]
OnInput = Callable[[int, Float[Tensor, "rows pos d_model"]], None]
OnFinal = Callable[[Float[Tensor, "rows pos d_model"]], None]


class Enough(Exception):
    """The last layer's coefficients are there: the rest of the pass is not needed."""


class LayerPass:
    """A model's layers without its unembedding, sharing its weights; hooks on the model's bridge are not seen.

    Args:
        model: whose weights to run; edits of its weights made before are seen.
        dtype: None or the model's own shares the weights; another one copies them.

    Attributes:
        attention: ``"sdpa"``, or ``"eager"`` where the architecture has no other.
        mixtures: what holds the experts of each layer; None for a dense one.
    """

    def __init__(self, model: Model, dtype: torch.dtype | None = None) -> None:
        self.n_layers, self.own_positions = model.n_layers, model.own_positions
        self.dtype = model.dtype if dtype is None else dtype
        self.network, self.attention = network_around(model, self.dtype)
        counterparts = Counterparts(model, self.network)
        self.projections = [counterparts.projections(layer) for layer in range(model.n_layers)]
        self.mixtures = [getattr(parts.modules[0], "mixture", None) for parts in self.projections]
        fuse_gelu(self.network)
        fuse_norms(self.network)
        fuse_gates(self.network)
        self.body: Any = decoder_of(self.network)

    def run(
        self,
        tokens: Int[Tensor, "rows pos"],
        on_layer: OnLayer | None = None,
        *,
        lengths: Int[Tensor | np.ndarray, " rows"] | None = None,
        on_input: OnInput | None = None,
        on_linear: OnLinear | None = None,
        on_final: OnFinal | None = None,
        until: int | None = None,
    ) -> None:
        """One pass over right-padded rows of ``lengths``, by default without pads; ``on_layer(layer, pre,
        coefficients)`` is told of each layer at once.

        Both are ``[rows·pos, d_mlp]`` in the pass's dtype. ``on_input(layer, x)`` is told what each FFN reads, and
        ``on_linear(layer, linear)``, just before ``on_layer``, of the linear parts of gated FFNs.
        ``until`` is the last layer to run; with ``on_input`` alone, the pass ends at what its FFN reads. With
        ``on_final(x)`` the pass goes on to its end, and that is told the output of the final norm. Raises HookError if
        a layer did not run.
        """
        last = self.n_layers - 1 if until is None or on_final is not None else until
        before: dict[int, tuple[Tensor, Tensor | None]] = {}
        seen = 0

        def keep(layer: int, pre: Tensor, linear: Tensor | None) -> None:
            before[layer] = (pre, linear)

        def receive(layer: int, coefficients: Tensor) -> None:
            nonlocal seen
            seen += 1
            pre, linear = before.pop(layer)
            if on_linear is not None and linear is not None:
                on_linear(layer, linear.reshape(-1, linear.shape[-1]))
            if on_layer is not None:
                on_layer(layer, pre.reshape(-1, pre.shape[-1]), coefficients.reshape(-1, coefficients.shape[-1]))
            if layer == last and on_final is None:
                raise Enough

        def read(layer: int, x: Tensor) -> None:
            nonlocal seen
            if on_input is None:
                return
            on_input(layer, x.reshape(*tokens.shape, x.shape[-1]))  # OPT flattens batch and position
            if layer == last and not (on_layer or on_linear or on_final):
                seen += 1
                raise Enough

        inputs: list[tuple[nn.Module, OnTensor]] = []
        outputs: list[tuple[nn.Module, OnTensor]] = []
        for layer, parts in enumerate(self.projections):
            inputs += [(parts.modules[0], partial(read, layer)), (parts.out, partial(receive, layer))]
            outputs += parts.outputs(partial(keep, layer))
        with suppress(Enough), listening(inputs, outputs), torch.inference_mode():
            own = {} if lengths is None else self.own_positions(lengths, tokens.shape[1])
            final = self.body(input_ids=tokens, use_cache=False, **own)[0]
            if on_final is not None:
                on_final(final)
        if seen != last + 1:
            raise HookError(f"{seen} of {last + 1} FFN layers ran in this pass")


@dataclass(frozen=True)
class Projections:
    """The projections of one FFN as plain modules.

    Attributes:
        modules: what is called on the FFN's input: keys; gates and keys; or one module that holds both (Phi 3).
        out: the down projection.
    """

    modules: tuple[nn.Module, ...]
    out: nn.Module
    joint: bool = False

    def outputs(self, receive: Callable[[Tensor, Tensor | None], None]) -> list[tuple[nn.Module, OnTensor]]:
        """For :func:`listening`: calls ``receive`` with the pre-activations, and the linear parts of a gated FFN."""
        if len(self.modules) == 1:
            return [(self.modules[0], lambda out: receive(*self.split(out)))]
        gate: list[Tensor] = []
        return [(self.modules[0], gate.append), (self.modules[1], lambda out: receive(gate.pop(), out))]

    def split(self, out: Tensor) -> tuple[Tensor, Tensor | None]:
        """What one projection gives, as pre-activations and linear parts."""
        if not self.joint:
            return out, None
        pre, linear = out.chunk(2, dim=-1)
        return pre, linear

    def pre(self, x: Float[Tensor, "*rows d_model"]) -> tuple[Tensor, Tensor | None]:
        """Pre-activations of what the FFN reads, and the linear parts of a gated one."""
        if len(self.modules) == 1:
            return self.split(self.modules[0](x))
        gate, key = self.modules
        return gate(x), key(x)


class Counterparts:
    """Which module of a plain network stands for which of a model's bridge."""

    def __init__(self, model: Model, network: nn.Module) -> None:
        self.model = model
        self.found = dict(network.named_modules())
        stand_for = {path: behind(model.hf_model, path) for path in self.found}
        self.names = {id(inner(module)): path for path, module in stand_for.items() if isinstance(module, nn.Module)}

    def __call__(self, module: nn.Module) -> nn.Module:
        if isinstance(module, ExpertProjection):
            mixture = self.found[self.names[id(module.mixture)]]
            return mixture.projections[module.mixture.projections.index(module)]
        path = self.names.get(id(inner(module)))
        if path is None:
            own = type(inner(module)).__name__
            raise UnsupportedModelError(
                f"{self.model.name} ({self.model.architecture}): a {own} of TransformerLens stands "
                "in place of one of its own modules, so its layers cannot be run by themselves"
            )
        return self.found[path]

    def maybe(self, module: nn.Module | None) -> nn.Module | None:
        return None if module is None else self(module)

    def projections(self, layer: int) -> Projections:
        """Of one layer's FFN."""
        ffn, joint = self.model.ffn[layer], self.model.layout.architecture.joint
        out = self(ffn.project_out)
        if joint is not None:
            holder = self.names[id(ffn.project_out)].rpartition(".")[0]
            return Projections((self.found[f"{holder}.{joint}"],), out, joint=True)
        keys = self(ffn.project_in)
        return Projections((keys,) if ffn.project_gate is None else (self(ffn.project_gate), keys), out)


def network_around(model: Model, dtype: torch.dtype, attention: str = "sdpa") -> tuple[nn.Module, str]:
    """A plain Hugging Face model around a bridge's weights, and the attention that it uses.

    Raises UnsupportedModelError while :func:`ffnmem.intervene` changes the model: its hooks are not seen here.
    """
    if model.interventions:
        raise UnsupportedModelError(
            f"{model.name} is under an intervention ({listed(model.interventions, 3)}), which its layers by themselves "
            "would not show: leave the block of intervene first"
        )
    original = model.hf_model
    config = copy.deepcopy(original.config)
    if any(ffn.mixture is not None for ffn in model.ffn):
        attention = config._attn_implementation  # what rounds otherwise may be routed otherwise
    with on_meta():
        try:
            # dtype=None: with another one Hugging Face changes the default of the process, which is every thread's.
            network = type(original)._from_config(config, attn_implementation=attention, dtype=None)
        except (ValueError, ImportError):  # how Hugging Face says that an architecture has no sdpa
            attention = "eager"
            network = type(original)._from_config(config, attn_implementation="eager", dtype=None)
    network.config.dtype = original.config.dtype
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
    for path, module in original.named_modules():
        if isinstance(module, Mixture):
            layer, _, name = path.rpartition(".")
            find_mixture(network.get_submodule(layer), name, module.form)
    if dtype == torch.float64:
        widen(network)
        plain = Counterparts(model, network)
        for block in model.layout.blocks:
            bound_masks(plain(block.attention), model.layout.architecture.mask_leaves_out)
    turn_rows_apart(network)
    return network.eval(), attention


def behind(root: nn.Module, path: str) -> Any:
    """What a Hugging Face path leads to inside a bridge's rewired model; None where it leads nowhere."""
    found: Any = root
    for part in path.split(".") if path else ():
        found = getattr(inner(found), part, None) if isinstance(found, nn.Module) else None
    return found


def resolve(root: nn.Module, name: str, model_name: str) -> Tensor:
    """The tensor of a Hugging Face name inside a bridge's rewired model."""
    found = behind(root, name)
    if not isinstance(found, Tensor):
        raise UnsupportedModelError(f"{model_name} has no weight {name}, which a pass over its layers needs")
    return found


def fuse_gelu(network: nn.Module) -> None:
    """Replace Hugging Face's GELU in seven elementwise steps by torch's in one (equal to rounding)."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in ("NewGELUActivation", "FastGELUActivation", "PytorchGELUTanh", "GELUTanh"):
                setattr(module, name, nn.GELU(approximate="tanh"))


ROOT_MEAN_SQUARE = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Phi3RMSNorm")


def fuse_norms(network: nn.Module) -> None:
    """Have Hugging Face's RMSNorm in float32, four passes over its input, take two (equal to rounding).

    The modules stay, for hooks on them.
    """
    for module in network.modules():
        if type(module).__name__ in ROOT_MEAN_SQUARE and module.weight.dtype == torch.float32:
            module.forward = MethodType(root_mean_square, module)


def root_mean_square(norm: Any, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """x/√(mean of squares + ε) ⊙ weight."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    found: Tensor = (x * torch.rsqrt(length * length / x.shape[-1] + norm.variance_epsilon)).mul_(norm.weight)
    return found


GATED = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "GemmaMLP", "Gemma2MLP")
MADE_ANEW = ("SiLU", "SiLUActivation", "GELU")  # activations whose result is no view of what they are given


def fuse_gates(network: nn.Module) -> None:
    """Have Hugging Face's gated FFN write its coefficients where the activation's are, for one array of a layer's
    widest less (equal to the bit)."""
    for module in network.modules():
        if type(module).__name__ in GATED and type(module.act_fn).__name__ in MADE_ANEW:
            module.forward = MethodType(gated, module)


def gated(ffn: Any, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """Of a gate, keys and values."""
    opened = ffn.act_fn(ffn.gate_proj(x))
    found: Tensor = ffn.down_proj(opened.mul_(ffn.up_proj(x)))
    return found


def check_same(model: Model, layers: LayerPass | None = None) -> None:
    """Raise UnsupportedModelError if the bare layers compute other coefficients than the model's bridge does.

    ``layers``: those that will run, of any dtype; without them, or in another dtype, new ones are looked at.
    They would where hooks of the user's change what passes, or where the bridge has folded its norms into weights.
    """
    tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
    found: dict[int, Tensor] = {}
    expected: dict[int, Tensor] = {}
    with listening([(ffn.project_out, keeper(expected, ffn.layer, lambda m: m.flatten(0, -2))) for ffn in model.ffn]):
        model.body(tokens)
    if layers is None or layers.dtype != model.dtype:
        layers = LayerPass(model)
    layers.run(tokens, lambda layer, _pre, m: found.__setitem__(layer, m.clone()))
    if len(expected) != model.n_layers:
        raise HookError(f"{model.name}: only {len(expected)} of {model.n_layers} FFNs ran")
    allowed = AGREE.get(model.dtype, HALF)
    for layer, theirs in expected.items():
        difference = (found[layer] - theirs).abs()
        finite = difference.isfinite()  # what is not is the scan's to name
        if not bool(finite.any()):
            continue
        off = float(difference[finite].max() / theirs[finite].abs().max().clamp(min=1.0))
        if off > allowed:
            raise UnsupportedModelError(
                f"{model.name}: the layers by themselves compute other coefficients than its own pass (layer {layer}, "
                f"off by {off:.1g}): remove hooks that change them; a bridge must be without compatibility mode"
            )
