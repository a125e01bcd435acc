"""``capture``: one forward pass, everything that its FFNs read, computed and wrote, and the answer after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.errors import (
    HookError,
    InputError,
    InputTypeError,
    OutOfRangeError,
    check_index,
    counted,
    listed,
    quoted,
    warn,
)
from ..core.neuron_names import OF_NEURONS, LayerName
from ..core.provenance import Provenance
from ..core.saved import NOT_SAVED
from ..core.sheets import Line, Span, line, token
from ..core.token_text import printable
from ..core.types import Count, checked
from ..facts.answers import Answer, read_answer
from ..models.activation_cache import TOKEN_IDS, Key, as_cache, hook_name, part_of
from ..models.attention import AttentionPass
from ..models.chat import ChatText, Messages, prompt_provenance
from ..models.experts import RoutedTensor
from ..models.hooks import OpenBlock, keeper, listening
from ..models.layout import inner
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm, model_logits
from ..show.result import Result

# Answers as users write them, after a position of a captured prompt; and prompts that end in a space.

ENDING = 40  # of a prompt
LAST = 4  # words
Target = str | SupportsIndex | Answer | None


def answer_after(
    capture: Capture,
    target: Target,
    foil: str | SupportsIndex | None,
    row: int,
    position: int,
    first_token: bool = False,
) -> Answer:
    """The answer after a position of a captured prompt, by :func:`ffnmem.facts.read_answer`; one that is read already
    says itself after which.

    Raises: as there; InputError, too: an :class:`Answer` of another prompt.
    """
    tokens = tuple(capture.tokens[row, : position + 1].tolist())
    if isinstance(target, Answer):
        if target.prompt != tuple(capture.tokens[row, : len(target.prompt)].tolist()):
            raise InputError(f"the answer {quoted(target.target_text)} is of another prompt")
        return target
    return read_answer(
        capture.model, tokens, target, foil, first_token=first_token, logits=lambda: capture.logits_at(row, position)
    )


def answer_probability(capture: Capture, answer: Answer, row: int = 0) -> float:
    """The probability of the target's tokens that are read, of a capture made by :func:`with_answer`."""
    logs = torch.stack([capture.logits_at(row, p).detach().double().log_softmax(-1) for p in answer.positions])
    ids = torch.tensor(answer.read, device=logs.device)
    return float(logs.gather(1, ids.unsqueeze(1)).sum().exp())


def with_answer(taken: Capture, answer: Answer, row: int) -> tuple[Capture, int]:
    """A capture whose prompt goes on with all of the answer that is read, and its row: the same where none has to."""
    if tuple(taken.tokens[row, : len(answer.tokens)].tolist()) == answer.tokens:
        return taken, row
    taken.check_repeatable()
    longer = capture(taken.model, torch.tensor([answer.tokens]))
    return replace(longer, provenance=taken.provenance), 0


def warn_of_trailing_space(model: Model, *prompts: str) -> None:
    """Warn, once for all of them, of prompts whose last space is a token of its own, where it would else be part of
    the word that follows."""
    found = [one for one in prompts if not isinstance(one, ChatText) and ends_in_a_token(model, one)]
    if not found:
        return
    text = found[0].rstrip(" ")
    end = text if len(text) <= ENDING else f"…{text[-ENDING:]}"
    more = f" (and {counted(len(found) - 1, 'more prompt')})" if len(found) > 1 else ""
    warn(
        f"the prompt ends in a space, which is a token of its own to {model.name}, while most words bring theirs: "
        f"what is said next is not what follows {end!r}{more}; leave the space out"
    )


def ends_in_a_token(model: Model, prompt: str) -> bool:
    """Whether a prompt's last space would go with the word that follows, were there one.

    It is tried out: the prompt is continued by its own last words, and by "the".
    """
    words = prompt.split()
    if not prompt.endswith(" ") or not words:
        return False
    alone = model.ids_of(prompt)
    return any(model.ids_of(f"{prompt}{word}")[: len(alone)] != alone for word in (*words[-LAST:], "the"))


# `capture`: one forward pass, and everything that its FFNs read, computed and wrote.

MOST = 1 << 20
Prompt = str | Sequence[str] | Sequence[SupportsIndex] | Tensor
Layers = LayerName | Iterable[LayerName] | None
LAYER_PARTS = ("pre", "linear", "coefficients", "ffn_in", "ffn_out")
OF_FFN = (*LAYER_PARTS, "added")  # what is known of each layer that was captured, without the others


@dataclass(frozen=True, eq=False)
class Residual:
    """What the other components added to the residual stream, and both sides of the final norm.

    The embedding is what enters the first layer without position embeddings: scaled or normed where a model does that.
    """

    embedding: Float[Tensor, "batch pos d_model"]
    position: Float[Tensor, "batch pos d_model"] | None
    attention: Mapping[int, Float[Tensor, "batch pos d_model"]]
    final_in: Float[Tensor, "batch pos d_model"]
    final_out: Float[Tensor, "batch pos d_model"]


PROMPTS = 10
TOKENS = 64  # of each prompt


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Capture(Result):
    """The FFNs of a model on some prompts. Made by :func:`capture`; tensors of pads are zero.

    Attributes:
        tokens: ``[batch, pos]`` token ids, shorter prompts padded on the right.
        mask: ``[batch, pos]``, False at pads.
        layers: the layers captured.
        pre: per layer, the pre-activations kᵢ·x + bᵢ, ``[batch, pos, d_mlp]``; of gated FFNs gᵢ·x.
        linear: per layer, the linear parts kᵢ·x of gated FFNs, ``[batch, pos, d_mlp]``; empty for classic ones.
        coefficients: per layer, the coefficients mᵢ = act(pre), of gated FFNs act(pre)·linear, ``[batch, pos, d_mlp]``.
        ffn_in: per layer, the normed input x of the FFN, ``[batch, pos, d_model]``.
        ffn_out: per layer, its output Σ mᵢvᵢ + b, ``[batch, pos, d_model]``, before a norm behind the FFN (Gemma 2).
        residual: what attribution needs besides; None unless every layer was captured.
        logits: ``[batch, pos, vocab]`` if asked for.
    """

    heading = "prompts layers shapes"
    tables: ClassVar = {"places": "| prompt position token token_id"}

    model: Model
    tokens: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    layers: tuple[int, ...]
    pre: Mapping[int, Float[Tensor, "batch pos d_mlp"]]
    linear: Mapping[int, Float[Tensor, "batch pos d_mlp"]]
    coefficients: Mapping[int, Float[Tensor, "batch pos d_mlp"]]
    ffn_in: Mapping[int, Float[Tensor, "batch pos d_model"]]
    ffn_out: Mapping[int, Float[Tensor, "batch pos d_model"]]
    residual: Residual | None
    logits: Float[Tensor, "batch pos vocab"] | None
    provenance: Provenance
    attended: AttentionPass | None = field(default=None, repr=False, metadata=NOT_SAVED)
    """How attention was called, and of a short prompt where it looked; None of several, which run again if needed."""

    @property
    def content(self) -> Bool[Tensor, "batch pos"]:
        """True where statistics may look: no pads, no special tokens, no beginning-of-sequence token."""
        special = torch.tensor(sorted(self.model.special_token_ids), device=self.tokens.device)
        return self.mask & ~torch.isin(self.tokens, special)

    @property
    def starts_with_bos(self) -> bool:
        """Whether every prompt begins with the beginning-of-sequence token."""
        return self.model.bos_token_id is not None and bool((self.tokens[:, 0] == self.model.bos_token_id).all())

    def routing(self) -> pd.DataFrame:
        """Which experts each token is routed to, in layers that have some; shared experts are left out.

        Returns: one row a layer, token and expert: layer, prompt, position, token, expert, ``weight`` (what the router
        gives it; the coefficients of its neurons are that many times as large).

        Raises: InputError: a model without experts in the layers captured, or one that has changed since.
        """
        self.check_current()
        rows = []
        for layer in self.layers:
            mixture = self.model.ffn[layer].mixture
            if mixture is not None:
                scale, _ = mixture.route(self.ffn_in[layer].flatten(0, 1))
                scale = scale.detach().view(*self.mask.shape, -1).masked_fill(~self.mask.unsqueeze(-1), 0)
                rows += [(layer, *place, float(scale[tuple(place)])) for place in scale.nonzero().tolist()]
        if not rows:
            where = (
                ""
                if len(self.layers) == self.model.n_layers
                else f" in layer{'s' * (len(self.layers) > 1)} {listed(self.layers)}"
            )
            raise InputError(f"{self.model.name} has no experts{where}, and so no router")
        found = pd.DataFrame(rows, columns=["layer", "prompt", "position", "expert", "weight"])
        texts = [self.token_strings(prompt) for prompt in range(len(self.tokens))]
        tokens = [texts[prompt][at] for prompt, at in zip(found["prompt"], found["position"], strict=True)]
        found.insert(3, "token", tokens)
        return found

    def check_current(self) -> None:
        """Raise InputError if the model's weights are no longer those of this capture: its sums would not hold."""
        if self.model.fingerprint != self.provenance.fingerprint:
            raise InputError(f"{self.model.name}'s weights have changed since this capture: capture the prompt again")

    def check_repeatable(self) -> None:
        """:meth:`check_current`, and InputError if the model would run otherwise now: another intervention, or none."""
        self.check_current()
        then, now = dict(self.provenance.settings).get("interventions", ""), "; ".join(self.model.interventions)
        if then != now:
            raise InputError(
                f"the capture was made under {f'an intervention ({then})' if then else 'no intervention'}, and now "
                f"there is {now or 'none'}: capture the prompt again"
            )

    def length(self, prompt: SupportsIndex | None = None) -> int:
        """Tokens of a prompt, pads not counted."""
        return int(self.mask[self.row(prompt)].sum())

    def row(self, prompt: SupportsIndex | None) -> int:
        """A prompt as an index; None is the only one. Raises InputError: there are several. OutOfRangeError."""
        batch = self.tokens.shape[0]
        if prompt is None and batch > 1:
            raise InputError(f"this capture has {batch} prompts: say which one, by prompt=0 to {batch - 1}")
        return 0 if prompt is None else check_index("prompt", prompt, batch, "this capture")

    def position(self, position: SupportsIndex, prompt: SupportsIndex | None = None) -> int:
        """A position of a prompt as an index; negatives count from the prompt's own end. Raises OutOfRangeError."""
        return check_index("position", position, self.length(prompt), "this prompt")

    def token_strings(self, prompt: SupportsIndex | None = None) -> list[str]:
        return self.model.token_strings(self.tokens[self.row(prompt), : self.length(prompt)])

    def predictions(
        self, position: SupportsIndex = -1, k: Count = 10, prompt: SupportsIndex | None = None
    ) -> pd.DataFrame:
        """The model's most probable next tokens at a position: rank, token, token_id, logit, probability.

        ``prompt``: which one of several. Raises InputError: there are several, and none is named. OutOfRangeError.
        """
        return self.ranked(position, {}, k, prompt).drop(columns="role")

    def ranked(
        self, position: SupportsIndex, roles: Mapping[int, str], k: Count = 10, prompt: SupportsIndex | None = None
    ) -> pd.DataFrame:
        """:meth:`predictions` with a column role, and rows of those that have one ("target", "foil"), by their ids."""
        logits = self.logits_at(self.row(prompt), self.position(position, prompt)).detach().double()
        ids = logits.topk(min(k, logits.numel())).indices.tolist()
        below = [i for i in roles if i not in ids]
        ranks = [*range(1, len(ids) + 1), *(int((logits > logits[i]).sum()) + 1 for i in below)]
        ids += below
        found = {
            "rank": ranks,
            "token": self.model.token_strings(ids),
            "token_id": ids,
            "logit": logits[ids].tolist(),
            "probability": logits.softmax(-1)[ids].tolist(),
            "role": [roles.get(i, "") for i in ids],
        }
        return pd.DataFrame(found).sort_values("rank", kind="stable", ignore_index=True)

    def logits_at(self, row: int, position: int) -> Float[Tensor, " vocab"]:
        """The logits at one position, unembedded only there unless all were captured."""
        if self.logits is not None:
            return self.logits[row, position]
        if self.residual is None:
            raise InputError("predictions need every layer captured, or capture(…, logits=True)")
        return self.model.logits_of(self.residual.final_out[row, position])

    def read_along(
        self, row: int, positions: Sequence[int], targets: Int[Tensor, " n"], foil: int | None
    ) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, " n"], Float[Tensor, " n"]]:
        """At some positions, the direction of the stream along which a target's logit (minus the foil's) is read, with
        the final norm's scale as it was; what biases add to it; and the model's own logit."""
        residual, norm, at = self.residual, FinalNorm(self.model), list(positions)
        assert residual is not None
        directions, constants = norm.directions(targets, foil)
        scale = norm.scale(at_least_float32(residual.final_in[row, at])).unsqueeze(-1)
        logits = model_logits(self.model, residual.final_out[row, at], targets, foil)
        return directions / scale, constants, logits

    def __getitem__(self, name: object) -> Tensor:  # object: what is no text is refused below, by an example
        """A tensor by TransformerLens' name of its place: ``capture["blocks.3.mlp.hook_post"]``.

        Raises InputError for a name that is none, OutOfRangeError for a layer that was not captured.
        """
        if not isinstance(name, str):
            raise InputTypeError(f"a place is a text such as 'blocks.3.mlp.hook_post', not {type(name).__name__}")
        part, layer = part_of(name, self.model.n_layers)
        if part == "linear" and not self.model.gated:
            if not name.endswith("mlp.in.hook_out"):
                raise InputError(f"{self.model.name} is not gated: its FFNs have no {name}")
            part = "pre"
        held = self.by_place()
        if (part, layer) not in held:
            missing = f"layer {layer} was not captured" if part in OF_FFN else "capture every layer for it"
            raise OutOfRangeError(f"this capture has no {name}: {missing}")
        return held[part, layer]

    def by_place(self) -> dict[Key, Tensor]:
        """All that it holds, by part and layer (−1: of the whole model)."""
        found = {(part, layer): tensor for part in LAYER_PARTS for layer, tensor in getattr(self, part).items()}
        residual, layout = self.residual, self.model.layout
        with torch.no_grad():
            for layer in self.layers:
                found["added", layer] = layout.through(layout.blocks[layer].post, self.ffn_out[layer])
        if residual is None:
            return found
        stream = residual.embedding if residual.position is None else residual.embedding + residual.position
        for layer in range(len(layout.blocks)):
            attention = residual.attention[layer]
            found["attention", layer], found["resid_pre", layer] = attention, stream
            stream = stream + attention + found["added", layer]
            found["resid_post", layer] = residual.final_in if layer == len(layout.blocks) - 1 else stream
        found["embedding", -1] = residual.embedding
        if residual.position is not None:
            found["position", -1] = residual.position
        found["final_in", -1], found["final_out", -1] = residual.final_in, residual.final_out
        return found

    def to_cache(self) -> Any:
        """All that it holds as TransformerLens' ``ActivationCache`` around ``model.to_bridge()``, under its names.

        Attention's queries, keys, values and patterns, which a capture does not keep, are not in it. The residual
        streams between the layers are summed from what was written.
        """
        places = {hook_name(part, layer): tensor for (part, layer), tensor in self.by_place().items()}
        places[TOKEN_IDS] = self.tokens
        return as_cache(places, self.model)

    @property
    def title(self) -> str:
        batch, running = len(self.prompts), self.layers == tuple(range(self.layers[0], self.layers[-1] + 1))
        named = f"{self.layers[0]} to {self.layers[-1]}" if running and len(self.layers) > 2 else listed(self.layers)
        return f"Capture of {counted(batch, 'prompt')}, layers {named} of {self.model.name}"

    @property
    def prompts(self) -> list[list[str]]:
        """The tokens of each."""
        return [self.token_strings(prompt) for prompt in range(self.tokens.shape[0])]

    @property
    def shown_prompts(self) -> tuple[Line, ...]:
        """The first tokens of the first ones."""
        lines, special = [], self.model.special_token_ids
        for prompt, texts in enumerate(self.prompts[:PROMPTS]):
            ids = self.tokens[prompt, :TOKENS].tolist()
            parts: list[str | Span] = [
                token(text, "special" if i in special else "") for text, i in zip(texts, ids, strict=False)
            ]
            more = [f"… and {counted(len(texts) - TOKENS, 'more token')}"] if len(texts) > TOKENS else []
            lines.append(line(*(one for part in [*parts, *more] for one in (part, " "))))
        if len(self.prompts) > PROMPTS:
            lines.append(line(f"… and {counted(len(self.prompts) - PROMPTS, 'more prompt')}"))
        return tuple(lines)

    @property
    def shapes(self) -> str:
        """Of its tensors."""
        (batch, pos), d_model = self.tokens.shape, self.model.d_model
        widths = sorted({self.model.ffn[layer].d_mlp for layer in self.layers})
        return (
            f"tokens {[batch, pos]} · pre, coefficients {listed([[batch, pos, width] for width in widths])} per layer"
            f" · ffn_in, ffn_out {[batch, pos, d_model]} per layer"
        ) + ("" if self.logits is None else f" · logits {list(self.logits.shape)}")

    def __repr__(self) -> str:
        return f"Capture({printable(self.title.removeprefix('Capture of '))})"

    @property
    def places(self) -> pd.DataFrame:
        """One row a token that is no pad: prompt, position, token, token_id."""
        found = [
            (prompt, position, text, int(self.tokens[prompt, position]))
            for prompt in range(self.tokens.shape[0])
            for position, text in enumerate(self.token_strings(prompt))
        ]
        return pd.DataFrame(found, columns=["prompt", "position", "token", "token_id"])


@checked
def capture(
    model: Model,
    prompt: Prompt | None = None,
    *,
    messages: Messages | None = None,
    layers: Layers = None,
    logits: bool = False,
    prepend_bos: bool | None = None,
) -> Capture:
    """Run the model once and keep what its FFNs read, computed and wrote.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: a text, a list of texts (padded on the right, pads masked everywhere), or token ids ``[pos]`` or
            ``[batch, pos]``, which are taken as they are.
        messages: in place of a prompt, a conversation such as ``[{"role": "user", "content": "Hello"}]``, which the
            tokenizer's chat template makes a text of (:meth:`Model.chat_text`), up to where the model's answer begins.
        layers: which layers to keep (memory grows with them); default all, which attribution needs. A place may be
            named as in TransformerLens, ``"blocks.3.mlp.hook_post"``, and means its layer.
        logits: also keep the logits ``[batch, pos, vocab]``.
        prepend_bos: put the beginning-of-sequence token in front of texts that do not begin with it; default
            ``model.prepend_bos``, and of messages what the template writes.

    A prompt that ends in a space which is a token of its own is warned of.

    Raises:
        InputError: an empty or over-long prompt, or both a prompt and messages; messages without a chat template, or
            that it does not take.
        OutOfRangeError: no such layer. HookError: a module did not run. ModelError: the pass gave NaN or infinities.

    Source: Geva et al. 2021 (2012.14913), eq. 2, for the words; the values are the model's own.
    """
    if (prompt is None) == (messages is None):
        raise InputError("give a prompt, or messages, and not both")
    asked = prompt if messages is None else model.chat_text(messages)
    tokens, mask, added_bos = encode(model, asked, prepend_bos)
    everything = layers is None
    chosen = tuple(range(model.n_layers)) if layers is None else choose_layers(model, layers)
    attended = AttentionPass(model) if everything and len(tokens) == 1 else None
    with nullcontext() if attended is None else OpenBlock(attended.recorded):
        found = record(model, tokens, mask, chosen, everything, logits)
    cap = model.layout.soft_cap
    return Capture(
        model=model,
        tokens=tokens,
        mask=mask,
        layers=chosen,
        **{part: by_layer(found, part) for part in LAYER_PARTS},
        residual=Residual(
            embedding=found["embedding", -1],
            position=found.get(("position", -1)),
            attention=by_layer(found, "attention"),
            final_in=found["final_in", -1],
            final_out=found["final_out", -1],
        )
        if everything
        else None,
        logits=model.logits_of(found["final_out", -1]) if logits else None,
        provenance=prompt_provenance(
            model.provenance(added_bos, **({} if cap is None else {"soft_cap": cap})),
            asked,
            model.begins(tokens[0].tolist()),
        ),
        attended=attended,
    )


def record(
    model: Model, tokens: Tensor, mask: Tensor, layers: Sequence[int], everything: bool, logits: bool
) -> dict[Key, Any]:
    """The parts of a capture, by one pass of the model; pads are zero. Raises HookError: a module that did not run."""
    layout, (batch, length) = model.layout, tokens.shape
    pads = None if bool(mask.all()) else ~mask.unsqueeze(-1)
    found: dict[Key, Any] = {}
    befores: dict[Key, nn.Module] = {}
    afters: dict[Key, list[nn.Module]] = {}  # of several, what the later one gives stays
    for layer in layers:
        block = layout.blocks[layer]
        # Inputs at the weights themselves: behind the bridge's own hooks, so that what those change is seen.
        befores["ffn_in", layer], befores["coefficients", layer] = inner(block.project_in), inner(block.project_out)
        if block.project_gate is None:
            afters["pre", layer] = [block.project_in]
        else:
            afters["pre", layer], afters["linear", layer] = [block.project_gate], [block.project_in]
        afters["ffn_out", layer] = [block.project_out]
    if everything:
        if layout.position_embedding is not None:
            afters["embedding", -1], afters["position", -1] = [layout.embedding], [layout.position_embedding]
        else:
            befores["embedding", -1] = layout.blocks[0].whole
        for layer, block in enumerate(layout.blocks):
            behind = [] if block.attention_post is None else [block.attention_post]
            afters["attention", layer] = [block.attention_out, *behind]
        befores["final_in", -1] = layout.final_norm
    if everything or logits:
        afters["final_out", -1] = [layout.final_norm]

    def shaped(tensor: Tensor) -> Tensor:
        # Some models flatten batch and position for their FFN (OPT); position embeddings come as a batch of one.
        value = tensor.reshape(-1, length, tensor.shape[-1])
        value = value if value.shape[0] == batch else value.expand(batch, -1, -1)
        # A copy: Falcon adds attention to what its FFN wrote in place.
        return value.clone() if pads is None else value.masked_fill(pads, 0)

    def kept(key: Key) -> Callable[[Tensor], Any]:
        """How a part is kept: of experts without the zeros of those that a token is not routed to."""
        sizes = model.ffn[key[1]].expert_sizes if key[0] in OF_NEURONS else None
        return shaped if sizes is None else lambda tensor: RoutedTensor.of(shaped(tensor), sizes)

    inputs = [(module, keeper(found, key, kept(key))) for key, module in befores.items()]
    outputs = [(module, keeper(found, key, kept(key))) for key, modules in afters.items() for module in modules]
    with listening(inputs, outputs):
        model.body(tokens, None if pads is None else mask)
    silent = sorted({*befores, *afters} - {*found})
    if silent:
        names = [name if layer < 0 else f"{name} of layer {layer}" for name, layer in silent]
        raise HookError(f"these hooks did not fire, so nothing is returned: {listed(names)}")
    wrote = {layer: found["ffn_out", layer] for layer in layers}
    model.check_finite(found["final_out", -1] if ("final_out", -1) in found else wrote[layers[-1]], wrote)
    scale = layout.write_scale
    if scale != 1.0:
        found |= {key: written * scale for key, written in found.items() if key[0] == "attention"}
    return found


class LayerTensors(Mapping[int, Tensor]):
    """Tensors by layer; one of experts, which is held without its zeros, is laid out when it is read."""

    def __init__(self, held: Mapping[int, Tensor | RoutedTensor]) -> None:
        self.held = held
        self.last: tuple[int, Tensor] | None = None

    def __getitem__(self, layer: SupportsIndex) -> Tensor:
        number = layer.__index__()
        found = self.held[number]
        if isinstance(found, Tensor):
            return found
        last = self.last  # whoever reads a layer reads it again and again, a neuron at a time
        if last is None or last[0] != number:
            self.last = last = number, found.whole()
        return last[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def by_layer(found: Mapping[Key, Any], name: str) -> Mapping[int, Tensor]:
    return MappingProxyType(LayerTensors({layer: found[part, layer] for part, layer in sorted(found) if part == name}))


def choose_layers(model: Model, layers: Layers) -> tuple[int, ...]:
    asked: list[Any] = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    if not asked:
        raise InputError("layers is empty: name at least one layer, or leave it out for all")
    return tuple(sorted({model.layer(layer) for layer in asked}))


def encode(model: Model, prompt: Any, bos: bool | None) -> tuple[Tensor, Tensor, bool | None]:
    """Tokens and mask ``[batch, pos]``, and whether texts get a beginning-of-sequence token (None for given ids)."""
    if not isinstance(prompt, str | Tensor) and len(prompt) > MOST:
        raise InputError(f"a list of prompts has at most {MOST:,} texts or token ids, not {len(prompt):,}")
    texts: list[Any] = [prompt] if isinstance(prompt, str | Tensor) else [*prompt]
    if not texts:
        raise InputError("the prompt is empty: give a text, texts, or token ids")
    if not isinstance(texts[0], str):
        tokens = check_tokens(model, prompt if isinstance(prompt, Tensor) else texts)
        return tokens, torch.ones_like(tokens, dtype=torch.bool), None
    rows = [model.tokenize(text, bos) for text in texts]
    warn_of_trailing_space(model, *texts)
    pad, width = model.bos_token_id or 0, max(map(len, rows))
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    added = model.prepend_bos if bos is None else bos
    return tokens, torch.arange(width, device=model.device) < lengths.unsqueeze(-1), added


def check_tokens(model: Model, prompt: Any) -> Tensor:
    """Token ids as ``[batch, pos]``; raises InputError for what is none of the model's, or more than it reads."""
    try:
        tokens = prompt if isinstance(prompt, Tensor) else torch.as_tensor(np.array(prompt))
    except (TypeError, ValueError):
        raise InputError("a prompt is a text, a list of texts, or token ids") from None
    if tokens.ndim not in (1, 2) or tokens.numel() == 0 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        found = f"{tokens.dtype} {list(tokens.shape)}"
        raise InputError(f"token ids must be whole numbers of shape [pos] or [batch, pos], not {found}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= model.d_vocab:
        raise InputError(f"token ids must lie between 0 and {model.d_vocab - 1} for {model.name}")
    if tokens.shape[-1] > model.n_ctx:
        raise InputError(
            f"the prompt has {counted(tokens.shape[-1], 'token')}; {model.name} reads at most {model.n_ctx}"
        )
    return tokens.reshape(-1, tokens.shape[-1]).long().to(model.device)
