"""``capture``: one forward pass, and everything that its FFNs read, computed and wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .arguments import public
from .core.sheets import Content, Facts, Fitting, Line, Origin, Sheet, Span, line, token
from .errors import HookError, InputError, check_count, check_index, listed
from .hooks import OnTensor, listening
from .models import Model
from .models.layout import inner
from .models.turns import Turns, in_turn
from .provenance import Provenance
from .show.result import Result
from .targets import warn_of_trailing_space
from .token_text import printable

Prompt = str | Sequence[str] | Sequence[SupportsIndex] | Tensor


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


@dataclass(frozen=True)
class Prediction:
    """A token that may follow. ``role``: "target", "foil" or nothing."""

    rank: int
    role: str
    token: str
    logit: float
    probability: float


PROMPTS = 10
TOKENS = 64  # of each prompt


@public
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

    @property
    def turns(self) -> Turns:
        """Of its model."""
        return self.model.turns

    @property
    def content(self) -> Bool[Tensor, "batch pos"]:
        """True where statistics may look: no pads, no special tokens, no beginning-of-sequence token."""
        special = torch.tensor(sorted(self.model.special_token_ids), device=self.tokens.device)
        return self.mask & ~torch.isin(self.tokens, special)

    @property
    def starts_with_bos(self) -> bool:
        """Whether every prompt begins with the beginning-of-sequence token."""
        return self.model.bos_token_id is not None and bool((self.tokens[:, 0] == self.model.bos_token_id).all())

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

    def length(self, prompt: SupportsIndex = 0) -> int:
        """Tokens of a prompt, pads not counted."""
        return int(self.mask[self.row(prompt)].sum())

    def row(self, prompt: SupportsIndex) -> int:
        return check_index("prompt", prompt, self.tokens.shape[0], "this capture")

    def position(self, position: SupportsIndex, prompt: SupportsIndex = 0) -> int:
        """A position of a prompt as an index; negatives count from the prompt's own end. Raises OutOfRangeError."""
        return check_index("position", position, self.length(prompt), "this prompt")

    def token_strings(self, prompt: SupportsIndex = 0) -> list[str]:
        return self.model.token_strings(self.tokens[self.row(prompt), : self.length(prompt)])

    def predictions(self, position: SupportsIndex = -1, k: int = 10, prompt: SupportsIndex = 0) -> pd.DataFrame:
        """The model's most probable next tokens at a position: rank, token, token_id, logit, probability."""
        row, pos = self.row(prompt), self.position(position, prompt)
        logits = self.logits_at(row, pos).double()
        top = logits.topk(min(check_count("k", k), logits.numel()))
        ids = top.indices.tolist()
        return pd.DataFrame(
            {
                "rank": range(1, len(ids) + 1),
                "token": self.model.token_strings(ids),
                "token_id": ids,
                "logit": top.values.tolist(),
                "probability": logits.softmax(-1)[top.indices].tolist(),
            }
        )

    def ranked(self, position: int, roles: Mapping[int, str], k: int = 10, prompt: int = 0) -> list[Prediction]:
        """The model's top ``k`` tokens after a position, and those with a role if they are not among them, at their own
        rank. ``roles``: what a token id is called ("target", "foil")."""
        logits = self.logits_at(self.row(prompt), self.position(position, prompt)).detach().double()
        probabilities = logits.softmax(-1)
        ids = [int(i) for i in self.predictions(position, k)["token_id"]]
        shown = len(ids)
        ids += [i for i in roles if i not in ids]
        found = [
            Prediction(
                # Below the top, what equal logits come before does not matter.
                rank=place if place <= shown else int((logits > logits[i]).sum()) + 1,
                role=roles.get(i, ""),
                token=token,
                logit=float(logits[i]),
                probability=float(probabilities[i]),
            )
            for place, (i, token) in enumerate(zip(ids, self.model.token_strings(ids), strict=True), start=1)
        ]
        return sorted(found, key=lambda prediction: prediction.rank)

    def logits_at(self, row: int, position: int) -> Float[Tensor, " vocab"]:
        """The logits at one position, unembedded only there unless all were captured."""
        if self.logits is not None:
            return self.logits[row, position]
        if self.residual is None:
            raise InputError("predictions need every layer captured, or capture(…, logits=True)")
        return self.model.logits_of(self.residual.final_out[row, position])

    def summary(self) -> str:
        batch, pos = self.tokens.shape
        prompts = f"{batch} prompt{'s' * (batch > 1)}"
        return f"{prompts}, {pos} tokens, layers {list(self.layers)} of {printable(self.model.name)}"

    def sheet(self) -> Sheet:
        """The prompts' tokens (the first ones of many or long prompts), layers, shapes and provenance."""
        batch, pos = self.tokens.shape
        layers, first = self.layers, self.layers[0]
        running = len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1
        named = f"{layers[0]} to {layers[-1]}" if running else ", ".join(map(str, layers))
        facts: dict[str, Content] = {}
        for prompt in range(min(batch, PROMPTS)):
            more = self.length(prompt) - TOKENS
            shown: list[Line] = [(one,) for one in self.prompt_spans(prompt)]
            shown += [line(f"… and {more:,} more tokens")] if more > 0 else []
            facts["prompt" if batch == 1 else f"prompt {prompt}"] = Fitting(tuple(shown), whole=True)
        if batch > PROMPTS:
            facts["…"] = f"and {batch - PROMPTS:,} more prompts"
        shapes = {
            "tokens": [batch, pos],
            "pre, coefficients": list(self.coefficients[first].shape),
            "ffn_in, ffn_out": list(self.ffn_out[first].shape),
            **({} if self.logits is None else {"logits": list(self.logits.shape)}),
        }
        facts["shapes"] = " · ".join(
            f"{name} {shape}{' per layer' if ',' in name else ''}" for name, shape in shapes.items()
        )
        title = f"Capture of {batch:,} prompt{'s' * (batch != 1)}, layers {named} of {self.model.name}"
        return Sheet.of(Facts(facts), Origin(self.provenance.as_dict()), title=title)

    def prompt_spans(self, prompt: int = 0, limit: int = TOKENS) -> list[Span]:
        """A prompt's first tokens; special ones stand back, and the beginning of sequence is called so."""
        special = self.model.special_token_ids
        ids = [int(i) for i in self.tokens[self.row(prompt), : self.length(prompt)][:limit]]
        return [
            Span("BOS", "special", note=text)
            if place == 0 and token_id == self.model.bos_token_id
            else token(text, "special" if token_id in special else "")
            for place, (token_id, text) in enumerate(zip(ids, self.model.token_strings(ids), strict=True))
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row a token that is no pad: prompt, position, token, token_id."""
        found = [
            (prompt, position, text, int(self.tokens[prompt, position]))
            for prompt in range(self.tokens.shape[0])
            for position, text in enumerate(self.token_strings(prompt))
        ]
        return pd.DataFrame(found, columns=["prompt", "position", "token", "token_id"])

    def to_dict(self) -> dict[str, Any]:
        """What was captured, as plain values; not the tensors."""
        return {
            "prompts": [self.token_strings(prompt) for prompt in range(self.tokens.shape[0])],
            "layers": list(self.layers),
            "residual": self.residual is not None,
            "logits": self.logits is not None,
            "provenance": self.provenance.as_dict(),
        }


@public
@in_turn
def capture(
    model: Model,
    prompt: Prompt,
    *,
    layers: SupportsIndex | Iterable[SupportsIndex] | None = None,
    logits: bool = False,
    prepend_bos: bool | None = None,
) -> Capture:
    """Run the model once and keep what its FFNs read, computed and wrote.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: a text, a list of texts (padded on the right, pads masked everywhere), or token ids ``[pos]`` or
            ``[batch, pos]``, which are taken as they are.
        layers: which layers to keep (memory grows with them); default all, which attribution needs.
        logits: also keep the logits ``[batch, pos, vocab]``.
        prepend_bos: put the beginning-of-sequence token in front of texts; default ``model.prepend_bos``.

    A prompt that ends in a space which is a token of its own is warned of.

    Raises:
        InputError: an empty or over-long prompt. OutOfRangeError: no such layer. HookError: a module did not run.

    Source: Geva et al. 2021 (2012.14913), eq. 2, for the words; the values are the model's own.
    """
    bos = model.prepend_bos if prepend_bos is None else prepend_bos
    tokens, mask, added_bos = encode(model, prompt, bos)
    everything = layers is None
    chosen = tuple(range(model.n_layers)) if layers is None else choose_layers(model, layers)
    recorder = Recorder(tokens.shape, mask)
    recorder.watch_ffns(model, chosen)
    if everything:
        recorder.watch_residual(model)
    elif logits:
        recorder.watch_output(model.layout.final_norm, "final_out")
    with listening(recorder.inputs, recorder.outputs):
        model.body(tokens, None if bool(mask.all()) else mask)
    found = recorder.collected()
    return Capture(
        model=model,
        tokens=tokens,
        mask=mask,
        layers=chosen,
        pre=by_layer(found, "pre", chosen),
        linear=by_layer(found, "linear", chosen if model.gated else ()),
        coefficients=by_layer(found, "coefficients", chosen),
        ffn_in=by_layer(found, "ffn_in", chosen),
        ffn_out=by_layer(found, "ffn_out", chosen),
        residual=residual_of(found, model) if everything else None,
        logits=model.logits_of(found["final_out", -1]) if logits else None,
        provenance=model.provenance(prepend_bos=added_bos),
    )


class Recorder:
    """Collects tensors from modules by name and layer, as ``[batch, pos, …]`` with pads zeroed."""

    def __init__(self, shape: torch.Size, mask: Bool[Tensor, "batch pos"]) -> None:
        self.shape = shape
        self.pads = None if bool(mask.all()) else ~mask
        self.found: dict[tuple[str, int], Tensor] = {}
        self.expected: set[tuple[str, int]] = set()
        self.inputs: list[tuple[nn.Module, OnTensor]] = []
        self.outputs: list[tuple[nn.Module, OnTensor]] = []

    def keeper(self, name: str, layer: int) -> OnTensor:
        self.expected.add((name, layer))

        def keep(tensor: Tensor) -> None:
            # Some models flatten batch and position for their FFN (OPT); position embeddings come as a batch of one.
            value = tensor.detach().reshape(-1, self.shape[1], tensor.shape[-1])
            if value.shape[0] != self.shape[0]:
                value = value.expand(self.shape[0], -1, -1)
            self.found[name, layer] = value if self.pads is None else value.masked_fill(self.pads.unsqueeze(-1), 0)

        return keep

    def watch_input(self, module: nn.Module, name: str, layer: int = -1) -> None:
        self.inputs.append((module, self.keeper(name, layer)))

    def watch_output(self, module: nn.Module, name: str, layer: int = -1) -> None:
        self.outputs.append((module, self.keeper(name, layer)))

    def watch_ffns(self, model: Model, layers: Sequence[int]) -> None:
        for layer in layers:
            block = model.layout.blocks[layer]
            # Inputs at the weights themselves: behind the bridge's own hooks, so that what those change is seen.
            self.watch_input(inner(block.project_in), "ffn_in", layer)
            if block.project_gate is None:
                self.watch_output(block.project_in, "pre", layer)
            else:
                self.watch_output(block.project_gate, "pre", layer)
                self.watch_output(block.project_in, "linear", layer)
            self.watch_input(inner(block.project_out), "coefficients", layer)
            self.watch_output(block.project_out, "ffn_out", layer)

    def watch_residual(self, model: Model) -> None:
        layout = model.layout
        if layout.position_embedding is not None:
            self.watch_output(layout.embedding, "embedding")
            self.watch_output(layout.position_embedding, "position")
        else:
            self.watch_input(layout.blocks[0].whole, "embedding")
        for layer, block in enumerate(layout.blocks):
            self.watch_output(block.attention_out, "attention", layer)
            if block.attention_post is not None:
                self.watch_output(block.attention_post, "attention", layer)  # the later one stays
        self.watch_input(layout.final_norm, "final_in")
        self.watch_output(layout.final_norm, "final_out")

    def collected(self) -> dict[tuple[str, int], Tensor]:
        """What was found; raises HookError naming everything that stayed silent."""
        silent = sorted(self.expected - set(self.found))
        if silent:
            names = [name if layer < 0 else f"{name} of layer {layer}" for name, layer in silent]
            raise HookError(f"these hooks did not fire, so nothing is returned: {listed(names)}")
        return self.found


def by_layer(found: Mapping[tuple[str, int], Tensor], name: str, layers: Sequence[int]) -> Mapping[int, Tensor]:
    return MappingProxyType({layer: found[name, layer] for layer in layers})


def residual_of(found: Mapping[tuple[str, int], Tensor], model: Model) -> Residual:
    return Residual(
        embedding=found["embedding", -1],
        position=found.get(("position", -1)),
        attention=MappingProxyType(
            {
                layer: written if model.layout.write_scale == 1.0 else written * model.layout.write_scale
                for layer, written in by_layer(found, "attention", range(model.n_layers)).items()
            }
        ),
        final_in=found["final_in", -1],
        final_out=found["final_out", -1],
    )


def choose_layers(model: Model, layers: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    asked = list(layers) if isinstance(layers, Iterable) else [layers]
    if not asked:
        raise InputError("layers is empty: name at least one layer, or leave it out for all")
    return tuple(sorted({model.layer(layer) for layer in asked}))


def encode(model: Model, prompt: Prompt, bos: bool) -> tuple[Tensor, Tensor, bool | None]:
    """Tokens and mask ``[batch, pos]``, and whether a beginning-of-sequence token was added (None for given ids)."""
    if isinstance(prompt, str):
        rows, added = [model.tokenize(prompt, bos)], bos
        warn_of_trailing_space(model, prompt)
    elif isinstance(prompt, Tensor):
        tokens = check_tokens(model, prompt)
        return tokens, torch.ones_like(tokens, dtype=torch.bool), None
    else:
        if not isinstance(prompt, Iterable):
            raise InputError(f"a prompt is a text, a list of texts, or token ids, not {type(prompt).__name__}")
        items: list[Any] = list(prompt)
        if not items:
            raise InputError("the list of prompts is empty")
        ids = [int(item) for item in items if not isinstance(item, bool) and isinstance(item, Integral)]
        if len(ids) == len(items):
            if not all(0 <= i < model.d_vocab for i in ids):
                raise InputError(f"token ids must lie between 0 and {model.d_vocab - 1} for {model.name}")
            return encode(model, torch.tensor(ids), bos)
        if not all(isinstance(item, str) for item in items):
            raise InputError("a prompt is a text, a list of texts, or token ids")
        rows, added = [model.tokenize(str(item), bos) for item in items], bos
        warn_of_trailing_space(model, *map(str, items))
    width = max(len(row) for row in rows)
    pad = model.bos_token_id or 0
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    return tokens, torch.arange(width, device=model.device) < lengths.unsqueeze(-1), added


def check_tokens(model: Model, tokens: Tensor) -> Tensor:
    if tokens.ndim not in (1, 2) or tokens.numel() == 0 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        found = f"{tokens.dtype} {list(tokens.shape)}"
        raise InputError(f"token ids must be whole numbers of shape [pos] or [batch, pos], not {found}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= model.d_vocab:
        raise InputError(f"token ids must lie between 0 and {model.d_vocab - 1} for {model.name}")
    if tokens.shape[-1] > model.n_ctx:
        raise InputError(f"the prompt has {tokens.shape[-1]} tokens; {model.name} reads at most {model.n_ctx}")
    return tokens.reshape(-1, tokens.shape[-1]).long().to(model.device)
