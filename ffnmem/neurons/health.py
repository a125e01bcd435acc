"""``neuron_health``: which neurons never fire, which pass no gradient, on a sample of a corpus, forward and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError, counted
from ..core.neuron_names import add_experts
from ..core.number_text import decimals
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Origin, Sheet, Table
from ..core.token_text import printable
from ..core.types import Count, Division, Seed, Whole, at_least, checked
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection, TextSettings, draw_tokens
from ..corpus.packing import pack
from ..corpus.passes import read
from ..corpus.sources import open_corpus
from ..ffn.activations import Activation, activation
from ..models.answers import LOGITS
from ..models.experts import Mixture
from ..models.hooks import OnTensor, listening
from ..models.layer_pass import check_same
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.replaying import PlainLayers
from ..scanning.store import load_table
from ..show.result import Result

# What is added up over positions for each neuron of a layer, and the table that comes of it.

TOLERANCE = 0.01
"""A neuron is flat at a position where |act′| is below this, and linear where |act′ − 1| is."""

FLOWS = ("flow_coefficient", "flow_pre", "flow_coefficient_rms", "flow_pre_rms")
SATURATED = 0.99
"""The share of positions in one regime, flat or linear, from which on a neuron is saturated."""


class LayerSums:
    """Sums over positions in float64, for each neuron of one layer; as large as the layer is wide.

    Args:
        activation: of the layer. gated: whether coefficients are act(pre)·linear.
    """

    def __init__(self, activation: Activation, gated: bool) -> None:
        self.activation, self.gated = activation, gated
        # Positions; of a layer of experts those that are routed to each neuron's.
        self.n: Any = 0
        self.n_flow: Any = 0
        self.sums: dict[str, Float64[Tensor, " d_mlp"]] = {}

    def sum(self, parts: dict[str, Shaped[Tensor, "n d_mlp"]]) -> None:
        for name, part in parts.items():
            self.sums[name] = part.sum(0, dtype=torch.float64) + self.sums.get(name, 0)

    def add(
        self,
        pre: Float[Tensor, "n d_mlp"],
        coefficients: Float[Tensor, "n d_mlp"],
        routed: Bool[Tensor, "n d_mlp"] | None = None,
    ) -> Float[Tensor, "n d_mlp"]:
        """Count positions, of experts those that are routed to them; returns act′(pre), in at least float32."""
        slope = self.activation.gradient(at_least_float32(pre))
        self.n = self.n + (len(pre) if routed is None else routed.sum(0))
        flat, linear = slope.abs() < TOLERANCE, (slope - 1).abs() < TOLERANCE
        alive = pre > 0 if self.gated else coefficients > 0
        parts = {"fires": pre > 0, "alive": alive, "local_gradient": slope, "flat": flat, "linear": linear}
        self.sum(parts if routed is None else {name: part * routed for name, part in parts.items()})
        return slope

    def add_flow(
        self,
        gradient: Float[Tensor, "n d_mlp"],
        slope: Float[Tensor, "n d_mlp"],
        routed: Bool[Tensor, "n d_mlp"] | None = None,
    ) -> None:
        """Add ∂L/∂m of some positions, and with it ∂L/∂pre = ∂L/∂m · ∂m/∂pre.

        ``slope``: ∂m/∂pre, which is act′(pre), of gated FFNs act′(pre)·linear.
        """
        self.n_flow = self.n_flow + (len(gradient) if routed is None else routed.sum(0))
        gradient = at_least_float32(gradient if routed is None else gradient * routed)
        for name, by in (("flow_coefficient", gradient), ("flow_pre", gradient * slope)):
            by = by.abs()
            self.sum({name: by})
            self.sum({f"{name}_rms": by.square_()})

    @property
    def finite(self) -> bool:
        """False where a NaN or an infinity has come in."""
        return all(bool(part.isfinite().all()) for part in self.sums.values())

    def frame(self, layer: int, positions: int | None = None) -> pd.DataFrame:
        """A row a neuron; :func:`neuron_health` says what the columns mean. ``positions``: in all, of a mixture."""
        means = {name: part / (self.n_flow if "flow" in name else self.n) for name, part in self.sums.items()}
        by = {name: (mean**0.5 if name.endswith("rms") else mean).cpu().numpy() for name, mean in means.items()}
        flat, linear = by["flat"], by["linear"]
        columns = {
            "layer": layer,
            "neuron": range(len(flat)),
            **(
                {}
                if positions is None
                else {
                    "routed": np.broadcast_to(
                        torch.as_tensor(self.n, dtype=torch.float64).cpu() / positions, flat.shape
                    )
                }
            ),
            "fires": by["fires"],
            "dead": self.sums["alive"].cpu().numpy() == 0,
            "local_gradient": by["local_gradient"],
            "flat": flat,
            "linear": linear,
            "stuck": flat == 1,
            "saturated": (flat >= SATURATED) | (linear >= SATURATED),
        }
        return pd.DataFrame({**columns, **{name: by[name] for name in FLOWS if name in by}})


class Measure:
    """The sums of every layer, batch by batch.

    The layers run by themselves, outside of the model's bridge, and only coefficients carry gradients. Raises
    UnsupportedModelError where hooks or an intervention change what the layers compute.
    """

    def __init__(self, model: Model, flow: bool) -> None:
        check_same(model)
        self.model, self.flow, self.layers = model, flow, PlainLayers(model)
        self.sums = [LayerSums(activation(ffn.activation), ffn.gates is not None) for ffn in model.ffn]
        self.positions = self.scored = self.flowing = 0
        self.loss = 0.0

    def add(self, page: Page) -> None:
        """Take one batch. Raises InputError where numbers are not finite."""
        if not len(page.places):
            return
        tokens = torch.from_numpy(page.batch.tokens).to(self.model.device)
        content = torch.from_numpy(page.mask.reshape(page.batch.tokens.shape)).to(self.model.device)
        scored = scored_places(content)
        self.positions += int(content.sum())
        answering = find_answering(content, scored)
        coefficients, slopes, routed, final = self.run(tokens, content, answering)
        if self.flow:
            gradient, loss = self.loss_gradient(final.detach(), tokens, scored)
            self.loss, self.scored = self.loss + loss, self.scored + int(scored.sum())
            flowing = answering.flatten()
            self.flowing += int(flowing.sum())
            gradients = torch.autograd.grad(final, coefficients, gradient)
            for sums, of_layer, slope, its in zip(self.sums, gradients, slopes, routed, strict=True):
                sums.add_flow(flatten_positions(of_layer)[flowing], slope, None if its is None else its[flowing])
        for layer, sums in enumerate(self.sums):
            if not sums.finite:
                raise InputError(f"coefficients or gradients of layer {layer} of {self.model.name} are not finite")

    def run(
        self, tokens: Int[Tensor, "rows pos"], content: Bool[Tensor, "rows pos"], flowing: Bool[Tensor, "rows pos"]
    ) -> tuple[
        list[Tensor],
        list[Float[Tensor, "n d_mlp"]],
        list[Bool[Tensor, "cells d_mlp"] | None],
        Float[Tensor, "rows pos d_model"],
    ]:
        """One pass: by layer the coefficients, in the graph if there is a way back, ∂m/∂pre where ``flowing`` says, and
        where each neuron's expert is routed to, None in a dense layer; and the final norm's output."""
        ran: list[Tensor] = []
        routed: list[Tensor | None] = [None] * len(self.sums)
        slopes: list[Tensor] = []
        before: list[tuple[Tensor, Tensor | None]] = []  # pre-activations and linear parts of the FFN that is at work
        places, flowing = content.flatten(), flowing.flatten()

        def receive(coefficients: Tensor) -> None:
            pre, linear = before.pop()
            its = routed[len(ran)]
            with torch.no_grad():
                slope = self.sums[len(ran)].add(
                    flatten_positions(pre)[places],
                    flatten_positions(coefficients)[places],
                    None if its is None else its[places],
                )
                slope = slope[flowing[places]]
                slopes.append(slope if linear is None else slope * at_least_float32(flatten_positions(linear)[flowing]))
            if self.flow and not coefficients.requires_grad:  # the first layer's: the graph begins here
                coefficients.requires_grad_()
            ran.append(coefficients)

        def route(layer: int, mixture: Mixture, x: Tensor) -> None:
            with torch.no_grad():
                routed[layer] = mixture.factors(flatten_positions(x)) != 0

        inputs: list[tuple[torch.nn.Module, OnTensor]] = []
        outputs: list[tuple[torch.nn.Module, OnTensor]] = []
        for layer, parts in enumerate(self.layers.parts):
            mixture = getattr(parts.projections.modules[0], "mixture", None)
            if mixture is not None:
                inputs.append((parts.projections.modules[0], partial(route, layer, mixture)))
            inputs.append((parts.project_out, receive))
            outputs += parts.projections.outputs(lambda pre, linear: before.append((pre, linear)))
        with listening(inputs, outputs), torch.set_grad_enabled(self.flow):
            return ran, slopes, routed, self.layers.body(input_ids=tokens, use_cache=False)[0]

    def loss_gradient(
        self,
        final: Float[Tensor, "rows pos d_model"],
        tokens: Int[Tensor, "rows pos"],
        scored: Bool[Tensor, "rows pos"],
    ) -> tuple[Float[Tensor, "rows pos d_model"], float]:
        """∂L/∂(the final norm's output), and L; a few positions' logits at once, so that memory stays small."""
        gradient = torch.zeros_like(final)
        rows, at = scored.nonzero(as_tuple=True)
        loss = 0.0
        at_once = max(1, LOGITS // self.model.d_vocab)
        for start in range(0, len(rows), at_once):
            some_rows, some = rows[start : start + at_once], at[start : start + at_once]
            x = final[some_rows, some].requires_grad_()
            with torch.enable_grad():
                logits = at_least_float32(self.model.logits_of(x))
                each = F.cross_entropy(logits, tokens[some_rows, some + 1], reduction="none")
                (gradient[some_rows, some],) = torch.autograd.grad(each.sum(), x)
            loss += float(each.detach().double().sum())
        return gradient, loss


def flatten_positions(tensor: Tensor) -> Tensor:
    """``[rows·pos, d_mlp]``, also where an architecture (OPT) has flattened it before."""
    return tensor if tensor.ndim == 2 else rearrange(tensor, "rows pos d_mlp -> (rows pos) d_mlp")


def scored_places(content: Bool[Tensor, "rows pos"]) -> Bool[Tensor, "rows pos"]:
    """Where the next token is content, so that its prediction is in the loss."""
    return torch.cat([content[:, 1:], torch.zeros_like(content[:, :1])], dim=1)


def find_answering(content: Bool[Tensor, "rows pos"], scored: Bool[Tensor, "rows pos"]) -> Bool[Tensor, "rows pos"]:
    """Content that is followed by a scored prediction, its own included; elsewhere the gradient is 0 by construction.

    A sequence's last position predicts nothing: counting it would make neurons look weaker the shorter the texts are.
    """
    return content & (scored.flip(1).cumsum(1).flip(1) > 0)


# `NeuronHealth`: what a corpus said about every neuron: firing, dead, stuck, saturated, and its gradient.

FLAGS = ("dead", "stuck", "saturated")
NOT_SHOWN = ("tolerance", "saturated", "batch_tokens", "corpus_hash")  # of the settings, in a sheet


@checked
@dataclass(frozen=True, eq=False, repr=False)
class NeuronHealth(Result):
    """The health of every neuron over a corpus. Made by :func:`neuron_health`, which says what the columns mean.

    Attributes:
        neurons: one row a neuron.
        layers: one row a layer: ``layer``, ``neurons``, ``fires`` (mean over neurons), ``dead``, ``stuck``,
            ``saturated`` (shares of its neurons), ``saturated_linear`` (the share that is linear rather than flat at
            99% of positions), ``local_gradient`` (mean); with flow also ``flow_coefficient`` and ``flow_pre`` (means),
            and ``half_flow``: the smallest share of the layer's neurons that carries half of its ``flow_pre``.
        activation: of the layers, by its name in :mod:`ffnmem.ffn`.
        positions: counted, BOS, pads and special tokens left out.
        flow_positions: those of them that a scored prediction follows; 0 without flow.
        loss: the mean next-token loss in nats; None without flow.
        provenance: model, numeric type and settings.
    """

    main = "neurons"
    in_json = "layers neurons activation positions flow_positions loss"

    neurons: pd.DataFrame
    layers: pd.DataFrame
    activation: str
    positions: int
    flow_positions: int
    loss: float | None
    provenance: Provenance

    @property
    def flow(self) -> bool:
        """Whether the way back was run."""
        return "flow_pre" in self.neurons

    def extremes(self, top: Count = 5) -> pd.DataFrame:
        """The neurons at both ends, with a column ``kind`` in front.

        With flow "most gradient" and "least gradient", by ``flow_pre``; else "most flat" and "most linear". Ties go by
        layer and neuron. Raises InputError for ``top`` below 1.
        """
        ends = [("most gradient", "flow_pre", False), ("least gradient", "flow_pre", True)]
        if not self.flow:
            ends = [("most flat", "flat", False), ("most linear", "linear", False)]
        rows = [
            self.neurons.sort_values(column, ascending=rising, kind="stable").head(top).assign(kind=kind)
            for kind, column, rising in ends
        ]
        return pd.concat(rows, ignore_index=True)[["kind", *self.neurons.columns]]

    def first_rows(self, top: int | None = None) -> pd.DataFrame:
        """The rows by neuron: all, or the ``top`` at both ends, as ``extremes`` has them."""
        return self.neurons.copy() if top is None else self.extremes(top)

    def summary(self) -> str:
        shares = ", ".join(f"{self.neurons[flag].mean():.1%} {flag}" for flag in FLAGS)
        return (
            f"{printable(self.provenance.model)}, {counted(len(self.layers), 'layer')}, "
            f"{counted(len(self.neurons), 'neuron')} over {counted(self.positions, 'position')}: {shares}"
        )

    def sheet(self, top: Whole = 5) -> Sheet:
        """Each layer, and the ``top`` neurons at both ends."""
        origin = {name: value for name, value in self.provenance.to_dict().items() if name not in NOT_SHOWN}
        layers = Table.of(self.layers, title="layers", note="all columns", folded=True)
        load = self.load_table() if self.experts else None
        return Sheet.of(self.layer_table(), load, self.neuron_table(top), layers, Origin(origin))

    def load_table(self) -> Table:
        """How evenly tokens are routed to experts, and which are hardly used."""
        neurons = add_experts(self.neurons.copy(), self.experts).dropna(subset=["expert"])
        return load_table(
            neurons.groupby(["layer", "expert"])["routed"].first().rename("share").reset_index(), self.experts
        )

    def layer_table(self) -> Table:
        """A row a layer."""
        loss = "" if self.loss is None else f", loss {self.loss:.3f} nats"
        flow = "; half: neurons that carry half of dL/dpre" if self.flow else ""
        return Table.of(
            self.layers,
            "layer neurons",
            *(Column(name, "percent") for name in ("fires", *FLAGS)),
            Column("act'", "number", places=3, sign=True, of="local_gradient"),
            Column("dL/dpre", "number", digits=3, of="flow_pre") if self.flow else None,
            Column("half", "percent", of="half_flow") if self.flow else None,
            title=f"{counted(len(self.neurons), 'neuron')} ({self.activation}) over "
            f"{counted(self.positions, 'position')}{loss}",
            caption=f"fires, act': means over neurons; dead, stuck, saturated: shares of neurons{flow}",
        )

    def neuron_table(self, top: Whole = 5) -> Table:
        """The neurons at both ends."""
        found = self.extremes(top)
        places = decimals(found["flow_pre"], 3) + 1 if self.flow else 0
        return Table.of(
            found.assign(ends=found["kind"].where(found["kind"] != found["kind"].shift(), "")),
            "ends",
            Column("neuron", "neuron", left=False, of=("layer", "neuron")),
            *(Column(name, "percent") for name in ("fires", "flat", "linear")),
            Column("act'", "number", places=3, sign=True, of="local_gradient"),
            Column("dL/dpre", "number", places=places, of="flow_pre") if self.flow else None,
            Column("is", wraps=True, of=lambda row: ", ".join(list_flags(row))),
        )


def list_flags(row: Mapping[Any, Any]) -> list[str]:
    """What a neuron is; that a stuck one is saturated too goes without saying."""
    return [flag for flag in FLAGS if row[flag] and not (flag == "saturated" and row["stuck"])]


def summarise_layers(neurons: pd.DataFrame) -> pd.DataFrame:
    """The summary by layer of a table of neurons."""
    rows = []
    for layer, frame in neurons.groupby("layer"):
        row: dict[str, Any] = {"layer": layer, "neurons": len(frame), "fires": frame["fires"].mean()}
        row |= {flag: frame[flag].mean() for flag in FLAGS}
        row["saturated_linear"] = (frame["linear"] >= SATURATED).mean()
        row["local_gradient"] = frame["local_gradient"].mean()
        if "flow_pre" in frame:
            row |= {name: frame[name].mean() for name in ("flow_coefficient", "flow_pre")}
            row["half_flow"] = half_share(frame["flow_pre"].to_numpy())
        rows.append(row)
    return pd.DataFrame(rows)


def half_share(values: np.ndarray) -> float:
    """The smallest share of some values (none negative) that adds up to half of their sum; NaN where that is 0."""
    values = np.nan_to_num(values)  # of an expert that is never routed to
    total = float(values.sum())
    if not total > 0:
        return math.nan
    running = np.cumsum(np.sort(values)[::-1])
    return float((int(np.searchsorted(running, 0.5 * total)) + 1) / len(values))


# `neuron_health`: a sample of a corpus, forward and back, and what every neuron did and passed on.

TOKENS = 20_000


@checked
def neuron_health(
    model: Model,
    texts: Any,
    *,
    tokens: Count | None = TOKENS,
    context: Annotated[int, at_least(2)] | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    prepend_bos: bool | None = None,
    flow: bool = True,
    seed: Seed = 0,
    text: str = "text",
    documents: Division | None = None,
    progress: Progress | None = None,
) -> NeuronHealth:
    """Which neurons never fire, which pass no gradient, and how much of the loss's gradient each one carries.

    BOS, pads and special tokens count nowhere, neither as positions nor as predictions. Memory does not grow with the
    corpus: a batch's pre-activations, coefficients and gradients of all layers; lower ``batch_tokens`` for a large
    model. Sums are float64; the same call gives the same numbers, and other batches change rounding only.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        texts: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        tokens: of text to read, in whole sequences drawn at random; None for all of the corpus.
        context: the longest sequence in tokens, BOS included; default 128, or what the model reads.
        batch_tokens: of one pass, pads included.
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        flow: also run the way back; without it, the ``flow_`` columns are not there.
        seed: of the draw of sequences.
        text, documents: how to read the corpus, see :func:`ffnmem.corpus.open_corpus`.
        progress: called as ("health", done, total) in tokens of text.

    Returns:
        A :class:`NeuronHealth`. The columns of its ``neurons``, pre being what the activation takes (k·x + b, of gated
        FFNs the gate's g·x):

        ``fires``: share of positions where pre > 0. ``dead``: the coefficient is never above 0 (gated FFNs, whose
        coefficient has the sign of two factors: pre is never above 0). A dead GELU or SiLU neuron still writes a
        little, and still learns.
        ``local_gradient``: mean of act′(pre), act′ in closed form. ``flat``: share of positions where |act′| < 0.01,
        so that a gradient that reaches the coefficient does not reach the key. ``linear``: share where
        |act′ − 1| < 0.01. Where GELU′ and SiLU′ cross 0 and 1 a narrow band counts as such too.
        ``stuck``: flat at every position. For ReLU, act′ is then exactly 0 and nothing that was read changes the key; a
        dead ReLU neuron is always stuck, a dead GELU neuron is only if it lies far to the left at every position.
        ``saturated``: flat at 99% of positions, or linear at 99%: one regime, so a constant or a linear unit. That
        takes in stuck neurons, and ReLU neurons that fire rarely, which learn from the rest.
        ``flow_coefficient``: mean |∂L/∂m|, ``flow_pre``: mean |∂L/∂pre|, where ∂L/∂pre = ∂L/∂m · act′(pre) (gated:
        times the linear part), and their root mean squares with ``_rms``. L is the next-token loss summed over a
        sequence, in nats: the numbers are nats for one unit of m, or of pre, at one position. They do not depend on
        batches. Means are over positions that some prediction follows.

        Of a mixture of experts, ``routed`` is the share of positions that are routed to the neuron's expert, and
        everything else is of these: NaN where there are none, and dead.

    Raises:
        InputError: settings that cannot be, a corpus without text, an activation that :mod:`ffnmem.ffn` has not,
            numbers that are not finite. UnsupportedModelError: hooks change what the layers compute.

    Source: dead as in Voita et al. 2023 (2309.04827), §4; dying ReLUs: Maas et al. 2013, §2, and Lu et al. 2019
        (1903.06733); saturation as one regime: Glorot and Bengio 2010, §3; thresholds are ours.
    """
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), model, Path(folder) / "corpus")
        sequences = settings.sequences(packed)
        sample = Selection(sequences, settings, draw_tokens(sequences, tokens, seed))
        measure = Measure(model, flow)
        read(sample, measure.add, "health", progress)
        if not measure.positions:
            raise InputError(f"{packed.source} has no text but special tokens")
        of_all = measure.positions if model.experts else None
        frames = [sums.frame(layer, of_all) for layer, sums in enumerate(measure.sums)]
        neurons = pd.concat(frames, ignore_index=True)
        return NeuronHealth(
            neurons=neurons,
            layers=summarise_layers(neurons),
            activation=measure.sums[0].activation.name,
            positions=measure.positions,
            flow_positions=measure.flowing,
            loss=measure.loss / measure.scored if measure.scored else None,
            provenance=model.provenance(
                settings.prepend_bos,
                corpus=packed.source,
                corpus_hash=packed.hash,
                context=settings.context,
                tokens=measure.positions,
                sequences=f"{len(sample)} of {len(sequences)}",
                seed=seed,
                batch_tokens=settings.batch_tokens,
                tolerance=TOLERANCE,
                saturated=SATURATED,
            ),
        )
