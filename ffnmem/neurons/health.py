"""``neuron_health``: which neurons are dead, stuck or saturated, on a sample of a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..core.errors import InputError, counted
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import ContextLength, Count, Division, Seed, Texts, checked
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection, TextSettings, draw_tokens
from ..corpus.packing import pack
from ..corpus.passes import read
from ..corpus.sources import open_corpus
from ..ffn.activations import Activation, activation
from ..models.experts import Mixture
from ..models.hooks import OnTensor, listening
from ..models.layer_pass import check_same
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.replaying import PlainLayers
from ..show.result import Result

TOLERANCE = 0.01
"""A neuron is flat at a position where |act′| is below this, and linear where |act′ − 1| is."""

SATURATED = 0.99
"""The share of positions in one regime, flat or linear, from which on a neuron is saturated."""


class LayerSums:
    """At how many positions each neuron of one layer fires, is above 0, flat and linear, in float64.

    Args:
        activation: of the layer. gated: whether coefficients are act(pre)·linear.
    """

    def __init__(self, activation: Activation, gated: bool) -> None:
        self.activation, self.gated = activation, gated
        # Positions; of a layer of experts those that are routed to each neuron's.
        self.n: Any = 0
        self.sums: dict[str, Float64[Tensor, " d_mlp"]] = {}
        self.finite = True

    def add(
        self,
        pre: Float[Tensor, "n d_mlp"],
        coefficients: Float[Tensor, "n d_mlp"],
        routed: Bool[Tensor, "n d_mlp"] | None = None,
    ) -> None:
        """Count positions, of experts those that are routed to them."""
        self.finite = self.finite and all(bool(part.isfinite().all()) for part in (pre, coefficients))
        slope = self.activation.gradient(at_least_float32(pre))
        self.n = self.n + (len(pre) if routed is None else routed.sum(0))
        flat, linear = slope.abs() < TOLERANCE, (slope - 1).abs() < TOLERANCE
        alive = pre > 0 if self.gated else coefficients > 0
        for name, part in {"fires": pre > 0, "alive": alive, "flat": flat, "linear": linear}.items():
            counts = (part if routed is None else part & routed).sum(0, dtype=torch.float64)
            self.sums[name] = counts + self.sums.get(name, 0)

    def frame(self, layer: int, positions: int | None = None) -> pd.DataFrame:
        """A row a neuron; :func:`neuron_health` says what the columns mean. ``positions``: in all, of a mixture."""
        by = {name: (part / self.n).cpu().numpy() for name, part in self.sums.items()}
        flat, linear = by["flat"], by["linear"]
        routed = torch.as_tensor(self.n, dtype=torch.float64).cpu() / (positions or 1)
        columns = {
            "layer": layer,
            "neuron": range(len(flat)),
            **({} if positions is None else {"routed": np.broadcast_to(routed, flat.shape)}),
            "fires": by["fires"],
            "dead": self.sums["alive"].cpu().numpy() == 0,
            "flat": flat,
            "linear": linear,
            "stuck": flat == 1,
            "saturated": (flat >= SATURATED) | (linear >= SATURATED),
        }
        return pd.DataFrame(columns)


class Measure:
    """The sums of every layer, batch by batch; the layers run by themselves, outside of the model's bridge.

    Raises UnsupportedModelError where hooks or an intervention change what the layers compute.
    """

    def __init__(self, model: Model) -> None:
        check_same(model)
        self.model, self.layers = model, PlainLayers(model)
        self.sums = [LayerSums(activation(ffn.activation), ffn.gates is not None) for ffn in model.ffn]
        self.positions = 0

    def add(self, page: Page) -> None:
        """Take one batch. Raises InputError where numbers are not finite."""
        if not len(page.places):
            return
        tokens = torch.from_numpy(page.batch.tokens).to(self.model.device)
        content = torch.from_numpy(page.mask.reshape(page.batch.tokens.shape)).to(self.model.device)
        self.positions += int(content.sum())
        self.run(tokens, content.flatten(), self.model.own_positions(page.batch.lengths, tokens.shape[1]))
        for layer, sums in enumerate(self.sums):
            if not sums.finite:
                raise InputError(f"coefficients of layer {layer} of {self.model.name} are not finite")

    @torch.no_grad()
    def run(
        self, tokens: Int[Tensor, "rows pos"], places: Bool[Tensor, " cells"], own_positions: dict[str, Tensor]
    ) -> None:
        """One pass, in which every layer's positions at ``places`` are counted."""
        routed: list[Tensor | None] = [None] * len(self.sums)
        before: list[Tensor] = []  # pre-activations of the FFN that is at work

        def receive(layer: int, coefficients: Tensor) -> None:
            its = routed[layer]
            pre, m = (flatten_positions(part)[places] for part in (before.pop(), coefficients))
            self.sums[layer].add(pre, m, None if its is None else its[places])

        def route(layer: int, mixture: Mixture, x: Tensor) -> None:
            routed[layer] = mixture.factors(flatten_positions(x)) != 0

        inputs: list[tuple[torch.nn.Module, OnTensor]] = []
        outputs: list[tuple[torch.nn.Module, OnTensor]] = []
        for layer, parts in enumerate(self.layers.parts):
            mixture = getattr(parts.projections.modules[0], "mixture", None)
            if mixture is not None:
                inputs.append((parts.projections.modules[0], partial(route, layer, mixture)))
            inputs.append((parts.project_out, partial(receive, layer)))
            outputs += parts.projections.outputs(lambda pre, _linear: before.append(pre))
        with listening(inputs, outputs):
            self.layers.body(input_ids=tokens, use_cache=False, **own_positions)


def flatten_positions(tensor: Tensor) -> Tensor:
    """``[rows·pos, d_mlp]``, also where an architecture (OPT) has flattened it before."""
    return tensor if tensor.ndim == 2 else rearrange(tensor, "rows pos d_mlp -> (rows pos) d_mlp")


FLAGS = ("dead", "stuck", "saturated")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class NeuronHealth(Result):
    """The health of every neuron over a corpus. Made by :func:`neuron_health`, which says what the columns mean.

    Attributes:
        neurons: one row a neuron.
        layers: fires, mean over neurons, and the shares of neurons that are dead, stuck, saturated: one row a layer,
            ``layer``, ``neurons``, ``fires``, ``dead``, ``stuck``, ``saturated``.
        activation: of the layers, by its name in :mod:`ffnmem.ffn`.
        positions: counted, BOS, pads and special tokens left out.
        provenance: model, numeric type and settings.
    """

    heading = "activation positions"
    tables: ClassVar = {
        "layers": "layer neurons fires dead stuck saturated",
        "extremes": "ends neuron fires flat linear is",
    }
    main, uncut, only_shown = "neurons", "layers", "extremes"

    neurons: pd.DataFrame
    layers: pd.DataFrame
    activation: str
    positions: int
    provenance: Provenance

    def extremes(self, top: Count = 5) -> pd.DataFrame:
        """The most flat and the most linear neurons; a column ``kind`` says which. Ties by layer and neuron. Raises
        InputError for ``top`` below 1."""
        rows = [
            self.neurons.sort_values(column, ascending=False, kind="stable").head(top).assign(kind=f"most {column}")
            for column in ("flat", "linear")
        ]
        return pd.concat(rows, ignore_index=True)[["kind", *self.neurons.columns]]

    def shown_neurons(self, top: Count | None = None) -> pd.DataFrame:
        """The rows by neuron: all, or the ``top`` at both ends, as ``extremes`` has them."""
        return self.neurons if top is None else self.extremes(top)

    def shown_extremes(self, top: Count | None = None) -> pd.DataFrame:
        """The same with what each is: that a stuck neuron is saturated too goes without saying."""
        found = self.extremes(top or len(self.neurons))
        told = [
            ", ".join(flag for flag in FLAGS if row[flag] and not (flag == "saturated" and row["stuck"]))
            for row in found.to_dict("records")
        ]
        return found.assign(ends=found["kind"].where(found["kind"] != found["kind"].shift(), ""), **{"is": told})

    @property
    def verdict(self) -> str:
        """How many neurons are dead, stuck, saturated."""
        shares = ", ".join(f"{self.neurons[flag].mean():.1%} {flag}" for flag in FLAGS)
        return f"Of {counted(len(self.neurons), 'neuron')} over {counted(self.positions, 'position')}: {shares}."


TOKENS = 20_000


@checked
def neuron_health(
    model: Model,
    texts: Texts,
    *,
    tokens: Count | None = TOKENS,
    context: ContextLength | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    prepend_bos: bool | None = None,
    seed: Seed = 0,
    text: str = "text",
    documents: Division | None = None,
    progress: Progress | None = None,
) -> NeuronHealth:
    """Dead, stuck and saturated neurons.

    Reads a sample of a corpus and says how every neuron fares. Dead: never fires. Stuck: passes no gradient at any
    position read (|act′| < 0.01 at all), as every dead ReLU neuron; a dead GELU neuron need not be. Saturated: in one
    regime at 99% of positions, flat (|act′| < 0.01) or linear (|act′ − 1| < 0.01).

    BOS, pads and special tokens do not count. Memory does not grow with the corpus: a batch's pre-activations and
    coefficients of one layer. Sums are float64; the same call gives the same numbers, and other batches change rounding
    only.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        texts: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        tokens: of text to read, in whole sequences drawn at random; None for all of the corpus.
        context: the longest sequence in tokens, BOS included; default 128, or what the model reads.
        batch_tokens: of one pass, pads included.
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        seed: of the draw of sequences.
        text: the field of a record that is its text, see :func:`ffnmem.corpus.open_corpus`.
        documents: what is a document of a .txt file: what blank lines separate, a line, or all of it.
        progress: called as ("health", done, total) in tokens of text.

    Returns:
        A :class:`NeuronHealth`. The columns of its ``neurons``, pre being what the activation takes (k·x + b, of gated
        FFNs the gate's g·x):

        ``fires``: share of positions where pre > 0. ``dead``: the coefficient is never above 0 (gated FFNs, whose
        coefficient has the sign of two factors: pre is never above 0). A dead GELU or SiLU neuron still writes a
        little, and still learns.
        ``flat``: share of positions where |act′(pre)| < 0.01, act′ in closed form, so that a gradient that reaches the
        coefficient does not reach the key. ``linear``: share where |act′ − 1| < 0.01. Where GELU′ and SiLU′ cross 0 and
        1 a narrow band counts as such too.
        ``stuck``: flat at every position. For ReLU, act′ is then exactly 0 and nothing that was read changes the key; a
        dead ReLU neuron is always stuck, a dead GELU neuron is only if it lies far to the left at every position.
        ``saturated``: flat at 99% of positions, or linear at 99%: one regime, so a constant or a linear unit. That
        takes in stuck neurons, and ReLU neurons that fire rarely, which learn from the rest.

        Of a mixture of experts, ``routed`` is the share of positions that are routed to the neuron's expert, and
        everything else is of these: NaN where there are none, and dead.

    Raises:
        InputError: settings that cannot be, a corpus without text, an activation that :mod:`ffnmem.ffn` has not,
            numbers that are not finite. UnsupportedModelError: hooks change what the layers compute.

    Source: dead as in Voita et al. 2023 (2309.04827), §4; dying ReLUs: Maas et al. 2013, §2, and Lu et al. 2019
        (1903.06733); saturation as one regime: Glorot and Bengio 2010, §3; thresholds are ours.

    Example:
        $ ffnmem health atlas
        $ ffnmem health texts.jsonl --tokens 5000 --top 10
        $ ffnmem health atlas --plot health.png
    """
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), model, Path(folder) / "corpus")
        sequences = settings.sequences(packed)
        sample = Selection(sequences, settings, draw_tokens(sequences, tokens, seed))
        measure = Measure(model)
        read(sample, measure.add, "health", progress)
        if not measure.positions:
            raise InputError(f"{packed.source} has no text but special tokens")
        of_all = measure.positions if model.experts else None
        frames = [sums.frame(layer, of_all) for layer, sums in enumerate(measure.sums)]
        neurons = pd.concat(frames, ignore_index=True)
        layers = neurons.groupby("layer")[["fires", *FLAGS]].mean()
        layers.insert(0, "neurons", neurons.groupby("layer").size())
        return NeuronHealth(
            neurons=neurons,
            layers=layers.reset_index(),
            activation=measure.sums[0].activation.name,
            positions=measure.positions,
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
