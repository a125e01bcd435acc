"""``neuron_health``: a sample of a corpus, forward and back, and what every neuron did and passed on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..arguments import public
from ..corpus import open_corpus, pack
from ..corpus.excerpts import BATCH_TOKENS, Drawn, Page, TextSettings, draw_tokens
from ..corpus.passes import read
from ..errors import InputError, check_count, check_seed
from ..ffn.activations import activation
from ..models import Model
from ..models.norms import at_least_float32
from ..models.turns import in_turn
from ..progress import Progress
from .backward import Passes, answering, scored_places
from .health import NeuronHealth, layer_rows
from .sums import SATURATED, TOLERANCE, LayerSums

TOKENS = 20_000


@public
@in_turn
def neuron_health(
    model: Model,
    texts: Any,
    *,
    tokens: int | None = TOKENS,
    context: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    prepend_bos: bool | None = None,
    flow: bool = True,
    seed: int = 0,
    text: str = "text",
    documents: str | None = None,
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
        text, documents: how to read the corpus, see :func:`ffnmem.open_corpus`.
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

    Raises:
        InputError: settings that cannot be, a corpus without text, an activation that :mod:`ffnmem.ffn` has not,
            numbers that are not finite. UnsupportedModelError: hooks change what the layers compute.

    Source: dead as in Voita et al. 2023 (2309.04827), §4; dying ReLUs: Maas et al. 2013, §2, and Lu et al. 2019
        (1903.06733); saturation as one regime: Glorot and Bengio 2010, §3; thresholds are ours.
    """
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    wanted = None if tokens is None else check_count("tokens", tokens)
    check_seed(seed)
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), model, Path(folder) / "corpus")
        sequences = settings.sequences(packed)
        sample = Drawn(sequences, settings, draw_tokens(sequences, wanted, seed))
        measure = Measure(model, flow)
        read(sample, measure.add, "health", progress)
        if not measure.positions:
            raise InputError(f"{packed.source} has no text but special tokens")
        neurons = measure.frame()
        return NeuronHealth(
            neurons=neurons,
            layers=layer_rows(neurons),
            activation=measure.sums[0].activation.name,
            positions=measure.positions,
            flow_positions=measure.sums[0].n_flow,
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


class Measure:
    """The sums of every layer, batch by batch."""

    def __init__(self, model: Model, flow: bool) -> None:
        self.model, self.flow = model, flow
        self.sums = [
            LayerSums(activation(ffn.activation), ffn.d_mlp, ffn.gates is not None, model.device) for ffn in model.ffn
        ]
        self.passes = Passes(model)
        self.positions = self.scored = 0
        self.loss = 0.0

    def add(self, page: Page) -> None:
        """Take one batch. Raises InputError where numbers are not finite."""
        if not len(page.places):
            return
        tokens = torch.from_numpy(page.batch.tokens).to(self.model.device)
        content = torch.from_numpy(page.mask.reshape(page.batch.tokens.shape)).to(self.model.device)
        scored = scored_places(content)
        places = content.flatten().nonzero().squeeze(1)
        answers = answering(content, scored).flatten()
        of_places, flowing = answers[places], answers.nonzero().squeeze(1)
        slopes: dict[int, Float[Tensor, "n d_mlp"]] = {}

        def on_layer(layer: int, pre: Tensor, coefficients: Tensor, linear: Tensor | None) -> None:
            slope = self.sums[layer].add(pre[places], coefficients[places])
            if self.flow:
                slope = slope[of_places]
                slopes[layer] = slope if linear is None else slope * at_least_float32(linear[flowing])

        def on_gradient(layer: int, gradient: Tensor) -> None:
            self.sums[layer].add_flow(gradient[flowing], slopes.pop(layer))

        if self.flow:
            self.loss += self.passes.run(tokens, on_layer, on_gradient, scored)
            self.scored += int(scored.sum())
        else:
            self.passes.run(tokens, on_layer)
        self.positions += len(places)
        self.check_finite()

    def check_finite(self) -> None:
        for layer, sums in enumerate(self.sums):
            if not sums.finite:
                raise InputError(f"coefficients or gradients of layer {layer} of {self.model.name} are not finite")

    def frame(self) -> pd.DataFrame:
        frames = [sums.frame(layer, self.flow) for layer, sums in enumerate(self.sums)]
        return pd.concat(frames, ignore_index=True)
