"""Neurons that mean nothing, to count how often each measure's null is rejected: 5% of them, or fewer, should be."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from scipy.stats import binomtest

from ..planted import Planted
from ..planted.planted import behind_bridge
from ..scanning.state import sequence_of
from ..semantics.alike import compare
from ..semantics.background import random_places
from ..semantics.firing import Firing, firing
from ..semantics.inputs import Inputs
from ..semantics.polysemanticity import Survey, triggers

ALPHA = 0.05
FROM_EXAMPLES = ("meanings", "clusters", "ms", "trigger_tokens")
FROM_WEIGHTS = ("firing_rate", "kurtosis", "unigram", "previous", "coherence", "capacity", "interference")


def at_random(found: Firing, places: Int64[np.ndarray, " places"], seed: int) -> Firing:
    """The same neurons with the same strengths at random places, each of a sequence of its own: they fire by chance.

    Args:
        places: random ones, several of each sequence.
    """
    rng = np.random.default_rng([seed, 9, found.layer])  # else two layers' neurons would share their examples
    moved, strengths = np.full_like(found.places, -1), np.zeros_like(found.strengths)
    for i, count in enumerate(found.counts.tolist()):
        drawn = rng.permutation(places)
        _, first = np.unique(sequence_of(drawn), return_index=True)
        apart = drawn[np.sort(first)][:count]  # a long sequence comes early more often than a short one
        moved[i, : len(apart)] = apart
        strengths[i, : len(apart)] = found.strengths[i, : len(apart)]
    return replace(found, places=moved, strengths=strengths)


def example_nulls(survey: Survey) -> pd.DataFrame:
    """The p-values of measures of examples for neurons whose examples are random places."""
    frames = []
    store = survey.store
    for layer in range(store.n_layers):
        found = at_random(firing(store, layer), random_places(store, survey.seed + 1), survey.seed)
        with Inputs(store, survey.model, {layer: found.places[found.places >= 0]}) as inputs:
            compared = compare(survey.model, found, inputs, survey.backgrounds[layer], survey.seed, survey.draws)
        estimates = {**compared.estimates, "trigger_tokens": triggers(survey, found)}
        frames.append(pd.DataFrame({f"{name}_p": estimates[name].p for name in FROM_EXAMPLES}))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def scrambled(planted: Planted, seed: int = 0) -> Planted:
    """The planted model with keys and values of random directions, each as long as before: what they mean is chance.

    Biases are minus a key's length, by which its product with a LayerNorm's outputs varies: so its truth is not this
    model's.
    """
    hf = copy.deepcopy(planted.pristine)
    generator = torch.Generator().manual_seed(seed)
    for block in hf.transformer.h:
        for weight, side in ((block.mlp.c_fc.weight, 0), (block.mlp.c_proj.weight, 1)):
            rows = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            rows -= rows.mean(side, keepdim=True)  # (1, …, 1) is what LayerNorms remove
            weight.copy_(rows * (weight.norm(dim=side, keepdim=True) / rows.norm(dim=side, keepdim=True)))
        size = block.mlp.c_fc.weight.norm(dim=0)
        block.mlp.c_fc.bias.copy_(-size)  # about one standard deviation: some fire often, none always
    name = f"{planted.model.name}-scrambled"
    return replace(planted, model=behind_bridge(hf, planted.model.tokenizer, name), pristine=hf)


def null_rates(examples: Sequence[pd.DataFrame], weights: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a measure: the rate of p < .05 where nothing is to be found, with its exact 95% interval, and neurons.

    Args:
        examples: of :func:`example_nulls`, one a model. weights: tables of :func:`ffnmem.polysemanticity` of models
            from :func:`scrambled`.
    """
    rows = []
    for names, frames in ((FROM_EXAMPLES, examples), (FROM_WEIGHTS, weights)):
        both = pd.concat(frames) if frames else pd.DataFrame()
        for name in names if len(both) else ():
            p = both[f"{name}_p"].dropna()
            test = binomtest(int((p < ALPHA).sum()), max(len(p), 1))
            interval = test.proportion_ci(method="exact")
            rate = float((p < ALPHA).mean()) if len(p) else float("nan")
            rows.append({"measure": name, "rate": rate, "low": interval.low, "high": interval.high, "neurons": len(p)})
    return pd.DataFrame(rows)
