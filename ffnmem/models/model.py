"""``Model``: one language model, its FFNs as memories, and its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.errors import InputError, ModelError, UnsupportedModelError, check_index, quoted
from ..core.foreign import foreign
from ..core.neuron_names import (
    ExpertSizes,
    LayerName,
    NeuronName,
    describe_experts,
    layer_of,
    neuron_index,
    place_of,
)
from ..core.provenance import Live, Provenance
from ..core.token_text import token_texts, visible
from ..core.types import checked
from .bridging import boot, copy_around
from .chat import ChatText, Messages, render_chat
from .configs import Hyperparameters, notes_of
from .fingerprints import hashed_parameters
from .hooks import hook_tables
from .layout import FFN, Layout, bound_masks, inner, read_activation, read_layout, turn_rows_apart
from .norms import NormMap

RUNS_BY = (
    "attention_multiplier",
    "attn_logit_softcapping",
    "embedding_multiplier",
    "layer_types",
    "query_pre_attn_scalar",
    "sliding_window",
)
"""Settings that change what the same weights compute."""

PROBE = 8  # tokens
AGREE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the largest number that two ways of running give
HALF = 0.1  # the same in half precision


@checked
class Model(Live):
    """A decoder-only language model whose FFNs can be read as key-value memories. Made by :func:`ffnmem.load`.

    Attributes:
        hf_model: the Hugging Face model that runs; the one inside the bridge that was handed to ``load``.
        tokenizer: the Hugging Face tokenizer.
        ffn: one :class:`FFN` view a layer.
        prepend_bos: whether texts get the beginning-of-sequence token in front.
        layout: the modules from embedding to unembedding.
        short_ctx: the longest text, in tokens, whose positions are turned by LongRoPE's short factors; None without it.
        edits: the edits that its weights hold now, in their order; empty for a model as it was loaded.

    Use a model from one thread at a time, and load another model for another thread.

    TransformerLens is imported when ``to_bridge`` is called, and for an architecture that only TransformerLens knows
    the parts of: one that is not in the table of architectures.
    """

    def __init__(
        self, hf_model: Any, tokenizer: Any, name: str, prepend_bos: bool | None = None, bridge: Any = None
    ) -> None:
        self.hf_model = hf_model
        self.name = name
        self.tokenizer = tokenizer
        # Without its files, a tokenizer may come up with special tokens only instead of failing.
        if self.tokenizer is None or set(self.tokenizer.get_vocab()) <= set(self.tokenizer.all_special_tokens):
            raise InputError(f"{name} has no tokenizer: pass tokenizer=… to load, or to the bridge when it boots")
        self._bridge = bridge
        self.layout: Layout = read_layout(hf_model, name, bridge)
        self.short_ctx = turn_rows_apart(hf_model)
        places: dict[int, int] = {}
        for layer, block in enumerate(self.layout.blocks):
            other = places.setdefault(id(inner(block.project_out)), layer)
            if other != layer:
                raise UnsupportedModelError(
                    f"layers {other} and {layer} of {name} are one module, whose two passes cannot be told apart: give "
                    "each layer its own, by copy.deepcopy"
                )
        self.numbers = (
            Hyperparameters.of_network(hf_model, self.layout.architecture)
            if bridge is None
            else Hyperparameters.of_bridge(bridge)
        )
        activation = read_activation(hf_model.config, self.layout.architecture, f"{name} ({self.architecture})")
        self.ffn: tuple[FFN, ...] = tuple(
            FFN(i, inner(b.project_in), inner(b.project_out), activation, b.project_gate and inner(b.project_gate))
            for i, b in enumerate(self.layout.blocks)
        )
        # Nothing is put before a text that its tokenizer does not name as a beginning.
        named = self.bos_token_id is not None
        self.prepend_bos = self.numbers.prepend_bos and named if prepend_bos is None else prepend_bos
        self.edits: Sequence[Any] = ()
        self.inexact: set[str] = set()  # the identities that were warned of
        self._fingerprint: tuple[dict[str, tuple[int, int]], str] | None = None
        if self.prepend_bos and self.bos_token_id is None:
            raise InputError(f"{name}'s tokenizer has no beginning-of-sequence token: load with prepend_bos=False")

    def to_bridge(self) -> Any:
        """TransformerLens' ``TransformerBridge``: the one that was handed to ``load``, or one around the same weights.

        The latter is made when first asked for. Its parameters are those of this model, and a change of either is one
        of both; only the parts of a projection that TransformerLens takes apart (attention's queries, keys and values,
        where Hugging Face keeps them in one) may be copies. It sees interventions and edits of this model. The model
        itself runs on by its own modules: hooks that are hung on the bridge act on ``fm.load(bridge)`` alone. Numbers
        may differ in their last digit, since TransformerLens computes attention itself.

        Raises UnsupportedModelError: TransformerLens does not know the architecture, or computes something else.
        """
        if self._bridge is None:
            if any(ffn.mixture is not None for ffn in self.ffn):
                raise UnsupportedModelError(
                    f"{self.name} ({self.architecture}) has no bridge: its experts run as one FFN a layer here, which "
                    "TransformerLens does not know; hand the original model to TransformerLens itself"
                )
            changed = [self.layout.decoder or self.layout.body, *(ffn.project_out for ffn in self.ffn)]
            network, copies = copy_around(self.hf_model, changed)
            expected = self.probe(network.base_model)
            bridge = boot(network, self.tokenizer, self.name, self.dtype)
            if self.dtype == torch.float64:
                for block in bridge.blocks:
                    bound_masks(block.attn, self.layout.architecture.mask_leaves_out)
            who = f"{self.name} ({self.architecture})"
            with foreign(UnsupportedModelError, f"{who} does not run under TransformerLens"):
                found = self.probe(bridge.original_model.base_model)
            off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
            if not off <= AGREE.get(self.dtype, HALF):
                raise UnsupportedModelError(f"{who}: under TransformerLens it gives other logits (off by {off:.1g})")
            for module, copied in copies:  # only now, so that nobody's hooks see the probes
                vars(copied).update(hook_tables(module))
            self._bridge = bridge
        return self._bridge

    def probe(self, body: nn.Module) -> Float[Tensor, "pos vocab"]:
        """The logits of a few tokens that went through a body."""
        tokens = torch.arange(min(PROBE, self.d_vocab, self.n_ctx), device=self.device).unsqueeze(0)
        with torch.no_grad():
            final = body(input_ids=tokens, use_cache=False).last_hidden_state
        return self.logits_of(final[0])

    # -- sizes ---------------------------------------------------------------------------------------------------

    @property
    def n_layers(self) -> int:
        return len(self.ffn)

    @property
    def d_model(self) -> int:
        return self.ffn[0].d_model

    @property
    def widths(self) -> tuple[int, ...]:
        """How many neurons each layer has; not all as many where some layers are dense and others have experts."""
        return tuple(ffn.d_mlp for ffn in self.ffn)

    @property
    def d_mlp(self) -> int:
        """The neurons of the widest layer; of one layer: ``ffn[layer].d_mlp``."""
        return max(self.widths)

    def stack_layers(self, by_layer: Iterable[Float[Tensor, "*_ _"]], dim: int = 0) -> Float[Tensor, "..."]:
        """Tensors of the neurons of some layers as one, ``[…, d_mlp]``: narrower layers have zeros behind theirs."""
        widest = self.d_mlp
        return torch.stack(
            [
                one if one.shape[-1] == widest else nn.functional.pad(one, (0, widest - one.shape[-1]))
                for one in by_layer
            ],
            dim,
        )

    @property
    def experts(self) -> tuple[ExpertSizes | None, ...]:
        """The sizes of each layer's experts, None for a dense one; empty for a model without any."""
        sizes = tuple(ffn.expert_sizes for ffn in self.ffn)
        return sizes if any(sizes) else ()

    @property
    def n_ctx(self) -> int:
        """The longest text in tokens, the beginning-of-sequence token included."""
        return int(self.numbers.n_ctx)

    @property
    def d_vocab(self) -> int:
        return int(self.unembedding.shape[0])

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.dtype

    @property
    def architecture(self) -> str:
        return self.numbers.architecture

    @property
    def gated(self) -> bool:
        """Whether its FFNs are gated, so that every neuron has two keys."""
        return self.ffn[0].gated

    # -- norms ---------------------------------------------------------------------------------------------------

    @property
    def centred(self) -> bool:
        """Whether its norms take the mean out of the residual stream (LayerNorm), or leave it in (RMSNorm)."""
        return self.layout.architecture.norm_kind.centred

    def norm_before(self, layer: int) -> NormMap | None:
        """The norm of what an FFN reads, as its weights are now; None where it reads the stream itself (OLMo 2)."""
        return self.layout.norm(self.layout.blocks[layer].norm, self.d_model)

    def norm_after(self, layer: int) -> NormMap | None:
        """The norm of what an FFN writes, before it is added; None where there is none, as in most models."""
        return self.layout.norm(self.layout.blocks[layer].post, self.d_model)

    # -- the ends of the residual stream -------------------------------------------------------------------------

    @property
    def embedding(self) -> Float[Tensor, "vocab d_model"]:
        """Token embeddings W_E, one row a token."""
        weight: Tensor = inner(self.layout.embedding).weight
        return weight

    @property
    def unembedding(self) -> Float[Tensor, "vocab d_model"]:
        """W_U with one row a token (the transpose of the papers' W_U)."""
        weight: Tensor = inner(self.layout.unembedding).weight
        return weight

    @property
    def unembedding_bias(self) -> Float[Tensor, " vocab"] | None:
        return getattr(inner(self.layout.unembedding), "bias", None)

    # -- running -------------------------------------------------------------------------------------------------

    def body(self, tokens: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"] | None = None) -> None:
        """Run every layer and the final norm, without the unembedding; hooks see what passes; mask: False at pads."""
        with torch.no_grad():
            own = {} if mask is None else self.own_positions(mask.sum(1), mask.shape[1])
            self.layout.body(input_ids=tokens, attention_mask=mask, use_cache=False, **own)

    def own_positions(
        self, lengths: Int[Tensor | np.ndarray, " rows"], width: int
    ) -> dict[str, Int[Tensor, "rows pos"]]:
        """What tells a body where rows end that are padded on the right, if some have LongRoPE's factors of long texts.

        Nothing where no row's length changes another's numbers.
        """
        if self.short_ctx is None or width <= self.short_ctx or int(lengths.min()) == width:
            return {}
        last = torch.as_tensor(lengths, device=self.device).unsqueeze(1) - 1
        return {"position_ids": torch.minimum(torch.arange(width, device=self.device), last)}

    def logits_of(self, final: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Logits of outputs of the final norm."""
        bias = self.unembedding_bias
        return self.capped(
            torch.nn.functional.linear(final, self.unembedding.detach(), None if bias is None else bias.detach())
        )

    def logit_lens(self, stream: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Logits that the model would give if its layers ended with these residual streams.

        Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
        """
        with torch.no_grad():
            return self.logits_of(inner(self.layout.final_norm)(stream))

    def capped(self, logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
        """Products with the unembedding as logits: scaled and soft-capped where the model does that."""
        layout = self.layout
        if layout.logit_scale != 1.0:
            logits = logits * layout.logit_scale
        return logits if layout.soft_cap is None else layout.soft_cap * torch.tanh(logits / layout.soft_cap)

    @property
    def advice(self) -> str:
        """What to try where its dtype does not do, as the end of a message; nothing where there is nothing."""
        return ": load it in float32" if self.dtype in (torch.bfloat16, torch.float16) else ""

    def check_finite(self, end: Tensor, wrote: Mapping[int, Tensor]) -> None:
        """Raise ModelError where the end of a pass has NaN or infinities, naming the first layer whose FFN wrote some.

        ``wrote``: what FFNs wrote in the pass, by layer.
        """
        if bool(end.isfinite().all()):
            return
        first = next((layer for layer, written in wrote.items() if not bool(written.isfinite().all())), None)
        where = "behind its last layer" if first is None else f"from layer {first} on"
        dtype = str(self.dtype).removeprefix("torch.")
        raise ModelError(
            f"{self.name} ({self.architecture}) gives no numbers (NaN or infinity) {where} in {dtype}{self.advice}"
        )

    # -- tokens --------------------------------------------------------------------------------------------------

    @property
    def bos_token_id(self) -> int | None:
        """None where the tokenizer names none, or one that the model has no embedding of, as TransformerLens adds."""
        token_id = self.tokenizer.bos_token_id
        return None if token_id is None or token_id >= self.d_vocab else int(token_id)

    @property
    def special_token_ids(self) -> frozenset[int]:
        return frozenset(int(i) for i in self.tokenizer.all_special_ids)

    def tokenize(self, text: str, prepend_bos: bool | None = None) -> list[int]:
        """Token ids of a text; raises InputError when it is empty or longer than the model reads.

        A text that brings its own beginning-of-sequence token gets no second one, and that of a chat template none
        unless it is asked for.
        """
        bos = (self.prepend_bos and not isinstance(text, ChatText)) if prepend_bos is None else prepend_bos
        ids = self.ids_of(text)
        if not ids:
            raise InputError("the prompt is empty: give at least one token of text")
        if bos:
            if self.bos_token_id is None:
                raise InputError(f"{self.name}'s tokenizer has no beginning-of-sequence token: use prepend_bos=False")
            ids = self.begun(ids)
        if len(ids) > self.n_ctx:
            raise InputError(f"the prompt has {len(ids)} tokens; {self.name} reads at most {self.n_ctx}")
        return ids

    def chat_text(self, messages: Messages) -> ChatText:
        """Messages as a prompt, by the tokenizer's chat template, up to where the model's own message begins.

        Args:
            messages: such as ``[{"role": "user", "content": "Hello"}]``.

        Raises: InputError: no template, or one that does not take these messages. InputTypeError: no messages.
        """
        return render_chat(self.tokenizer, self.name, messages)

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether token ids begin with the beginning-of-sequence token."""
        return bool(ids) and ids[0] == self.bos_token_id

    def begun(self, ids: list[int]) -> list[int]:
        """Token ids behind the beginning-of-sequence token, which is put there unless it stands there."""
        return ids if self.bos_token_id is None or self.begins(ids) else [self.bos_token_id, *ids]

    def ids_of(self, text: str) -> list[int]:
        """Token ids of a text as it stands; raises InputError for a token that the model has no embedding of."""
        with foreign(InputError, f"the tokenizer of {self.name} cannot read this text"):
            # Not verbose: of a long text, a part of which is all that is read, transformers would say that it is long.
            ids = [int(i) for i in self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]
        if ids and max(ids) >= self.d_vocab:  # one that its tokenizer shares with other models
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise InputError(f"{quoted(token)} is a token that {self.name} has no embedding of: leave it out")
        return ids

    def token_strings(self, ids: Sequence[int] | Tensor) -> list[str]:
        """The text of each token as it stands within a text, a space before a word included: what tables show.

        No two tokens of a vocabulary have one text, but for those whose bytes are no character by themselves: these
        show as ``�``. One without a text shows its id: ``[50280]``.
        """
        if getattr(self.tokenizer, "is_fast", False):
            return token_texts(self.tokenizer.backend_tokenizer, ids)
        names, special = self.tokenizer.convert_ids_to_tokens([int(i) for i in ids]), self.tokenizer.all_special_tokens
        return [
            name.replace("▁", " ")  # SentencePiece's space, which a text's first token loses
            if name is not None and ("▁" in name or name in special)
            else self.tokenizer.decode([int(i)], clean_up_tokenization_spaces=False) or f"[{int(i)}]"
            for i, name in zip(ids, names, strict=True)
        ]

    def token_line(self, ids: Sequence[int]) -> str:
        """The first tokens of a text as a message shows them: ``·p | ar | is``."""
        shown = " | ".join(visible(token, 16) for token in self.token_strings(ids[:8]))
        return shown if len(ids) <= 8 else f"{shown} | …"

    def token_id(self, token: str | SupportsIndex, first: bool = False) -> int:
        """The id of one token given as text, as :meth:`token_strings` shows it (with its leading space), or as an id.

        With ``first``, the first token of a longer text. Raises InputError, showing the tokens, when a text is not
        one token of this model.
        """
        if not isinstance(token, str):
            return check_index("token id", token, self.d_vocab, self.name)
        ids = self.ids_of(token)
        if not ids:
            raise InputError("the target is empty: give one token, such as ' Paris'")
        if self.token_strings(ids) != [token] and "�" not in token:  # alone, it may get a space of the tokenizer's own
            with suppress(ValueError):
                return self.token_strings(range(min(len(self.tokenizer), self.d_vocab))).index(token)
        if len(ids) > 1 and not first:
            hint = (
                "" if token.startswith(" ") else f"; most words follow a space: perhaps {quoted(' ' + token)} was meant"
            )
            raise InputError(
                f"{quoted(token)} is {len(ids)} tokens of {self.name} ({self.token_line(ids)}){hint}; "
                "give one token, or ask for its first one (first_token=True, --first-token)"
            )
        if ids[0] == self.tokenizer.unk_token_id and token != self.tokenizer.unk_token:
            raise InputError(f"{quoted(token)} is no token of {self.name}")
        return ids[0]

    # -- identity ------------------------------------------------------------------------------------------------

    def identified(self) -> tuple[str, str]:
        """Its name and fingerprint, by which results that hold it are saved and loaded."""
        return self.name, self.fingerprint

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any weight, its type, or how the weights are put together.

        Hashed when first asked for, and again after an in-place change of a parameter (writes through ``.data`` are
        not noticed). A bridge's is that of the same model without one where TransformerLens shows the weights as
        Hugging Face keeps them, and for GPT-2.
        """
        state = self.weight_state()
        if self._fingerprint is None or self._fingerprint[0] != state:
            numbers = self.numbers
            shape = (self.n_layers, numbers.n_heads, numbers.parallel)
            digest = hashlib.sha256(f"{self.architecture}:{shape}:{self.ffn[0].activation}:{numbers.eps}".encode())
            scales = (self.layout.write_scale, self.layout.logit_scale, self.layout.soft_cap)
            if scales != (1.0, 1.0, None):
                digest.update(str(scales).encode())
            for field in RUNS_BY:
                value = getattr(self.hf_model.config, field, None)
                if value is not None:
                    digest.update(f"{field}:{value}".encode())
            for name, parameter in hashed_parameters(self.hf_model):
                digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}".encode())
                flat = parameter.detach().cpu().contiguous().flatten()
                digest.update(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]
            self._fingerprint = (state, digest.hexdigest()[:12])
        return self._fingerprint[1]

    @property
    def unedited_fingerprint(self) -> str:
        """The fingerprint of the model without the edits that its weights hold now."""
        return str(getattr(self.edits, "fingerprint", "") or self.fingerprint)

    def weight_state(self) -> dict[str, tuple[int, int]]:
        """Where each parameter lies and how often it was changed in place: the same state holds the same weights."""
        return {name: (p.data_ptr(), p._version) for name, p in self.hf_model.named_parameters()}

    def remember_fingerprint(self, fingerprint: str) -> None:
        """Take the word of who knows what the weights are now, such as one who put them back, and do not hash them."""
        self._fingerprint = (self.weight_state(), fingerprint)

    @property
    def interventions(self) -> tuple[str, ...]:
        """What :func:`ffnmem.intervene` changes at this moment, in words; empty outside its blocks."""
        hooks = [hook for ffn in self.ffn for hook in ffn.project_out._forward_pre_hooks.values()]
        return tuple(dict.fromkeys(str(hook.intervention) for hook in hooks if hasattr(hook, "intervention")))

    def provenance(self, prepend_bos: bool | None = None, **settings: Any) -> Provenance:
        quantization = notes_of(self.hf_model.config).get("quantization")
        if quantization is not None:
            settings["quantization"] = str(quantization)
        if self.interventions:
            settings["interventions"] = "; ".join(self.interventions)
        if len(self.edits):
            settings["edits"] = "; ".join(f"{edit.title} ({edit.digest})" for edit in self.edits)
        if self.experts:
            settings["experts"] = describe_experts(self.experts)
        return Provenance(
            model=self.name,
            fingerprint=self.fingerprint,
            dtype=str(self.dtype).removeprefix("torch."),
            device=str(self.device),
            prepend_bos=prepend_bos,
            settings=tuple(settings.items()),
        )

    def layer(self, layer: LayerName) -> int:
        """``layer`` as an index, negatives from the end, or named by a place in it (``"blocks.3.mlp.hook_post"``).

        Raises: OutOfRangeError: no such layer. InputError: a text that names none.
        """
        return check_index("layer", layer_of(layer, self.n_layers), self.n_layers, self.name)

    def neuron(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> int:
        """A neuron's index in its layer; raises OutOfRangeError. It may be one name, as in ``model.neuron("3.17")``."""
        layer, neuron = place_of(layer, neuron)
        ffn = self.ffn[self.layer(layer)]
        return neuron_index(neuron, ffn.d_mlp, ffn.expert_sizes, f"layer {layer} of {self.name}")

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        experts = f" (experts {describe_experts(self.experts)})" if self.experts else ""
        return (
            f"Model({self.name!r}: {self.architecture}, {self.n_layers} layers, d_model {self.d_model}, "
            f"d_mlp {' or '.join(map(str, sorted({*self.widths})))}{experts}, vocabulary {self.d_vocab}, "
            f"context {self.n_ctx}, {dtype} on {self.device})"
        )
