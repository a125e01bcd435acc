"""``knowledge_neurons``: integrated gradients of an answer's probability along each layer's coefficients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.number_text import format_probability
from ..core.sheets import Sheet, Table
from ..core.types import Count, Whole, checked
from ..facts.fact import Fact
from ..models.norms import at_least_float32
from ..models.turns import Turns, in_turn
from ..prompts.answer_text import AnswerResult, describe_answer
from ..prompts.attribution import Next, rank_cells
from ..prompts.captures import Capture, Target, capture
from .ablating import RestartedQuestion

STEPS, THRESHOLD, SHARE = 20, 0.2, 0.7  # Dai et al. 2022, §3.1 and §4.3
BATCH = 64


@checked
@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeNeurons(AnswerResult):
    """Which neurons an answer's probability is owed to, layer by layer. Made by
    :func:`ffnmem.interventions.knowledge_neurons`.

    Attributes:
        attributions: ``[layer, d_mlp]``, in probability. A layer's sum is P(coefficients) − P(all its coefficients 0).
        coefficients: ``[layer, d_mlp]``, at the position.
        without: ``[layer]``, the answer's probability with all of a layer's coefficients 0 at the position.
        probability: the answer's probability in the clean pass.
        capture, prompt: what was asked; tokens: all of the prompt; target: of which token; position: where.
        steps, threshold: of the integral; the least share of the largest attribution that counts as a knowledge neuron.
    """

    main = "neurons"
    in_json = "tokens position target probability error selected neurons layers"
    in_repr = "target probability selected error"

    attributions: Float[Tensor, "layer d_mlp"]
    coefficients: Float[Tensor, "layer d_mlp"]
    without: Float[Tensor, " layer"]
    probability: float
    capture: Capture
    prompt: int
    steps: int
    threshold: float

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, largest \\|attribution\\| first: layer, neuron, coefficient, attribution, share (of the
        largest attribution; NaN where none is positive)."""
        return self.top(None)

    def top(self, k: Count | None = 20) -> pd.DataFrame:
        """The ``k`` neurons with the largest \\|attribution\\| (all for None), as ``neurons``."""
        arrays = {"attribution": self.attributions, "coefficient": self.coefficients}
        frame = rank_cells(["layer", "neuron"], self.capture.model.widths, k, **arrays)
        best = float(self.attributions.max())
        frame = frame.assign(share=frame["attribution"] / (best if best > 0 else np.nan))
        frame = frame[["layer", "neuron", "coefficient", "attribution", "share"]]
        frame.attrs = {"target": self.target, "provenance": self.provenance.to_dict()}
        return frame

    @property
    def selected(self) -> pd.DataFrame:
        """The knowledge neurons: rows of ``neurons`` whose share is at least the threshold."""
        return self.neurons[self.neurons["share"] >= self.threshold].reset_index(drop=True)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row a layer: layer, attribution (the sum), expected (P − P without the layer's coefficients), error."""
        sums = self.attributions.double().sum(-1).cpu().numpy()
        expected = self.probability - self.without.double().cpu().numpy()
        return pd.DataFrame(
            {
                "layer": range(len(sums)),
                "attribution": sums,
                "expected": expected,
                "error": np.abs(sums - expected),
            }
        )

    @property
    def error(self) -> float:
        """The largest \\|sum − expected\\| of a layer, in probability: what the steps miss of the integral."""
        return float(self.layers["error"].max())

    @property
    def turns(self) -> Turns:
        """Of its model."""
        return self.capture.turns

    @in_turn
    def refine(self, prompts: Fact | Iterable[str], share: float = SHARE) -> pd.DataFrame:
        """Ask the same in other words, and count in how many prompts a neuron passes the threshold.

        Args:
            prompts: a fact, whose prompt and paraphrases are asked, or texts that the same token follows.
            share: of the prompts in which a neuron must pass the threshold to be kept.

        Returns:
            One row a neuron that passes in at least one prompt, this one's own included: layer, neuron, coefficient and
            attribution (means over the prompts), prompts (the share in which it passes), kept; most prompts first.

        Raises: InputError: no prompts, or a share outside 0 to 1.

        Source: Dai et al. 2022 (2104.08696), §3.2.
        """
        if not 0 < share <= 1:
            raise InputError(f"share must lie above 0 and at most at 1, not {quoted(share)}")
        texts = read_texts(prompts)
        model = self.capture.model
        found = [self]
        own = self.capture.tokens[self.prompt, : self.position + 1].tolist()
        for text in texts:
            other = capture(model, text, prepend_bos=self.capture.provenance.prepend_bos)
            if other.tokens[0].tolist() != own:
                found.append(knowledge_neurons(other, self.target_id, steps=self.steps, threshold=self.threshold))
        attributions = torch.stack([one.attributions for one in found])
        largest = attributions.amax(dim=(1, 2), keepdim=True)
        passes = ((attributions >= self.threshold * largest) & (attributions > 0)).double().mean(0)
        layers, neurons = (passes > 0).nonzero(as_tuple=True)
        frame = pd.DataFrame(
            {
                "layer": layers.tolist(),
                "neuron": neurons.tolist(),
                "coefficient": torch.stack([one.coefficients for one in found]).mean(0)[layers, neurons].tolist(),
                "attribution": attributions.mean(0)[layers, neurons].tolist(),
                "prompts": passes[layers, neurons].tolist(),
            }
        )
        frame["kept"] = frame["prompts"] >= share
        frame = frame.sort_values(["prompts", "attribution"], ascending=False, kind="stable", ignore_index=True)
        frame.attrs = {
            "target": self.target,
            "provenance": self.provenance.with_settings(prompts=len(found), share=share).to_dict(),
        }
        return frame

    def sheet(self, top: Whole = 20) -> Sheet:
        """The answer, the ``top`` neurons, and each layer's sum against what it should be."""
        facts = describe_answer(self) | {
            "probability": format_probability(self.probability),
            "knowledge neurons": f"{len(self.selected):,} with at least {self.threshold:.0%} of the largest",
        }
        missed = "in probability; error: what a layer’s sum misses of P − P without its coefficients"
        return Sheet.of(
            facts,
            Table.of(self.top(top), "neuron coefficient attribution share"),
            Table.of(self.layers, "layer attribution error", caption=missed),
            self.provenance,
        )


@checked
@in_turn
def knowledge_neurons(
    capture: Capture,
    target: Target | Next = None,
    position: SupportsIndex = -1,
    *,
    steps: Count = STEPS,
    threshold: float = THRESHOLD,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    batch: Count = BATCH,
) -> KnowledgeNeurons:
    """Knowledge-neuron attribution: what each coefficient adds to an answer's probability as its layer fades in.

    For each layer by itself, all its coefficients at the position are scaled from 0 to what they are, and
    mᵢ·∂P/∂mᵢ is averaged on the way (integrated gradients). The midpoints of ``steps`` equal parts are taken, where
    the paper takes their right ends: the error falls with the square of the steps. Each layer restarts above itself
    with all below reused, its steps in one batch.

    Args:
        capture: of all layers, without an intervention.
        target: as :func:`ffnmem.attribute` takes it, one token; default: the model's own top token.
        position: where the coefficients are scaled and the answer is read.
        steps: of the integral.
        threshold: the share of the largest attribution from which on a neuron is a knowledge neuron.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target alone.
        batch: steps at once, at least one layer's.

    Raises:
        InputError: no single target, a partial or outdated capture, a threshold outside 0 to 1. OutOfRangeError: no
            such position or prompt. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Dai et al. 2022 (2104.08696), eq. 2 and §3.1; their program's scaling of the layer's whole vector.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"threshold must lie above 0 and at most at 1, not {quoted(threshold)}")
    question = RestartedQuestion.of(capture, target, None, position, prompt, first_token)
    layers = question.model.n_layers
    at_once = max(1, batch // (steps + 1))
    parts = [
        integrate_gradients(question, range(begin, min(begin + at_once, layers)), steps)
        for begin in range(0, layers, at_once)
    ]
    return KnowledgeNeurons(
        attributions=torch.cat([attributions for attributions, _ in parts]),
        coefficients=at_least_float32(question.coefficients[:, -1]),
        without=torch.cat([without for _, without in parts]),
        probability=float(question.scores(question.clean)[1].exp()),
        capture=capture,
        prompt=question.row,
        steps=steps,
        threshold=threshold,
        **question.result_fields() | {"tokens": tuple(capture.token_strings(question.row))},
        provenance=capture.provenance.with_settings(steps=steps, rule="midpoint", threshold=threshold),
    )


def integrate_gradients(
    question: RestartedQuestion, layers: range, steps: int
) -> tuple[Float[Tensor, "layer d_mlp"], Float[Tensor, " layer"]]:
    """Attributions of some layers' neurons, and the probability without each layer's coefficients."""
    replay, model = question.replay, question.model
    shares = (torch.arange(steps, dtype=model.dtype, device=model.device) + 0.5) / steps
    shares = torch.cat([shares, shares.new_zeros(1)])  # and once without the layer, to check the sum
    m = [replay.coefficients[layer][0, -1] for layer in layers]
    values = [model.ffn[layer].values.detach() for layer in layers]
    written = torch.stack([m[i] @ values[i] for i in range(len(layers))])
    more = (shares - 1).reshape(1, -1, 1) * written.unsqueeze(1)
    rows = rearrange(more, "layer share d_model -> (layer share) 1 d_model").requires_grad_()
    with torch.enable_grad():
        starts = [layer for layer in layers for _ in shares]
        outputs = replay.outputs(starts, -1, rows)
        probability = question.scores(replay.finish(starts, outputs)[:, -1])[1].exp()
        (gradient,) = torch.autograd.grad(probability.sum(), rows)
    slopes = rearrange(at_least_float32(gradient), "(layer share) 1 d_model -> layer share d_model", layer=len(layers))
    mean = slopes[:, :-1].mean(1)
    attributions = [at_least_float32(m[i]) * (at_least_float32(values[i]) @ mean[i]) for i in range(len(layers))]
    found = rearrange(probability.detach(), "(layer share) -> layer share", layer=len(layers))
    return model.stack_layers(attributions), found[:, -1]


def read_texts(prompts: Fact | Iterable[str]) -> list[str]:
    """The texts of a fact or of a list, each once."""
    if isinstance(prompts, str):
        raise InputError("prompts is a list of texts or a fact, not one text")
    texts = [prompts.text, *map(prompts.ask, prompts.paraphrases)] if isinstance(prompts, Fact) else list(prompts)
    if not texts:
        raise InputError("prompts is empty: give at least one text")
    return list(dict.fromkeys(texts))
