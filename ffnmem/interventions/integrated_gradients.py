"""``knowledge_neurons``: integrated gradients of an answer's probability along each layer's coefficients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import SupportsIndex

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.types import Count, checked
from ..facts.answers import Answer
from ..models.norms import at_least_float32
from ..prompts.attribution import rank_cells
from ..prompts.captures import Capture, Target
from .restarting import RestartedQuestion

STEPS, THRESHOLD = 20, 0.2  # Dai et al. 2022, §3.1 and §4.3
BATCH = 64  # steps at once, at least one layer's


@checked
def knowledge_neurons(
    captures: Capture | Iterable[Capture],
    target: Target = None,
    position: SupportsIndex = -1,
    *,
    steps: Count = STEPS,
    threshold: float = THRESHOLD,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
) -> pd.DataFrame:
    """What each neuron's coefficient adds to an answer's probability as its layer fades in.

    For each layer by itself, all its coefficients at the position are scaled from 0 to what they are, and
    mᵢ·∂P/∂mᵢ is averaged on the way (integrated gradients). The midpoints of ``steps`` equal parts are taken, where
    the paper takes their right ends: the error falls with the square of the steps. Of several prompts that ask the same
    in other words, attributions are averaged; the paper keeps neurons whose ``prompts`` is at least .7.

    Args:
        captures: of all layers, without an intervention: one, or one of each prompt.
        target: as :func:`ffnmem.attribute` takes it, of all prompts; default: the first one's top token. Of several
            tokens, P is the probability of all of them.
        position: where the coefficients are scaled and the answer begins to be read.
        steps: of the integral.
        threshold: the share of the prompt's largest attribution from which on a neuron is a knowledge neuron.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target alone.

    Returns:
        One row a neuron, largest \\|attribution\\| first: layer, neuron, coefficient and attribution (means over
        prompts), share (of the largest attribution; NaN where none is positive), and prompts (the share of those in
        which it passes the threshold). ``attrs`` has the target, the first prompt's probability, and error, the most
        that a layer's sum misses of P(coefficients) − P(all its coefficients 0).

    Raises:
        InputError: no prompts, or of several models, a partial or outdated capture, a threshold
            outside 0 to 1.
        OutOfRangeError: no such position or prompt. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Dai et al. 2022 (2104.08696), eq. 2, §3.1 and 3.2; their program's scaling of the layer's whole vector.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"threshold must lie above 0 and at most at 1, not {quoted(threshold)}")
    every = [captures] if isinstance(captures, Capture) else list(captures)
    if not every:
        raise InputError("captures is empty: give at least one")
    if others := [one.model.name for one in every if one.provenance.fingerprint != every[0].provenance.fingerprint]:
        raise InputError(f"captures are of one model; {others[0]} has other weights than {every[0].model.name}")
    own: list[tuple[Tensor, Tensor, Tensor]] = []
    errors, probabilities = [], []
    for capture in every:
        if isinstance(target, Answer):  # the same tokens after every prompt
            ids = capture.tokens[capture.row(prompt), : capture.position(position, prompt) + 1]
            target = replace(target, prompt=tuple(ids.tolist()))
        question = RestartedQuestion.of(capture, target, None, position, prompt, first_token)
        target, layers = question.answer, question.model.n_layers
        at_once = max(1, BATCH // (steps + 1))
        parts = [
            integrate_gradients(question, range(begin, min(begin + at_once, layers)), steps)
            for begin in range(0, layers, at_once)
        ]
        attributions, without = (torch.cat(some) for some in zip(*parts, strict=True))
        probabilities.append(float(question.scores(question.clean)[1].exp()))
        errors.append(float((attributions.double().sum(-1) - (probabilities[-1] - without.double())).abs().max()))
        passes = (attributions >= threshold * attributions.max()) & (attributions > 0)
        own.append((attributions, at_least_float32(question.coefficients[:, target.positions.start]), passes.double()))
    names = ("attribution", "coefficient", "prompts")
    arrays = {name: torch.stack(some).mean(0) for name, some in zip(names, zip(*own, strict=True), strict=True)}
    frame = rank_cells(["layer", "neuron"], question.model.widths, None, **arrays)
    best = float(arrays["attribution"].max())
    frame = frame.assign(share=frame["attribution"] / (best if best > 0 else np.nan))
    settings = {"steps": steps, "rule": "midpoint", "threshold": threshold, "prompts": len(every)}
    frame.attrs = {
        "target": question.answer.target_text,
        "probability": probabilities[0],
        "error": max(errors),
        "provenance": every[0].provenance.with_settings(**settings).to_dict(),
    }
    return frame[["layer", "neuron", "coefficient", "attribution", "share", "prompts"]]


def integrate_gradients(
    question: RestartedQuestion, layers: range, steps: int
) -> tuple[Float[Tensor, "layer d_mlp"], Float[Tensor, " layer"]]:
    """Attributions of some layers' neurons, and the probability without each layer's coefficients."""
    replay, model, first = question.replay, question.model, question.answer.positions.start
    shares = (torch.arange(steps, dtype=model.dtype, device=model.device) + 0.5) / steps
    shares = torch.cat([shares, shares.new_zeros(1)])  # and once without the layer, to check the sum
    m = [replay.coefficients[layer][0, first] for layer in layers]
    values = [model.ffn[layer].values.detach() for layer in layers]
    written = torch.stack([m[i] @ values[i] for i in range(len(layers))])
    more = (shares - 1).reshape(1, -1, 1) * written.unsqueeze(1)
    rows = rearrange(more, "layer share d_model -> (layer share) 1 d_model").requires_grad_()
    with torch.enable_grad():
        starts = [layer for layer in layers for _ in shares]
        after = rows.new_zeros(len(rows), question.position - first, model.d_model)
        outputs = replay.outputs(starts, first, torch.cat([rows, after], 1))
        probability = question.scores(replay.finish(starts, outputs, last=1 + after.shape[1]))[1].exp()
        (gradient,) = torch.autograd.grad(probability.sum(), rows)
    slopes = rearrange(at_least_float32(gradient), "(layer share) 1 d_model -> layer share d_model", layer=len(layers))
    mean = slopes[:, :-1].mean(1)
    attributions = [at_least_float32(m[i]) * (at_least_float32(values[i]) @ mean[i]) for i in range(len(layers))]
    found = rearrange(probability.detach(), "(layer share) -> layer share", layer=len(layers))
    return model.stack_layers(attributions), found[:, -1]
