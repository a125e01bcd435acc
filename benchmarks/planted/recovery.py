"""How well each measure recovers what was planted, and how often it finds what is not there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from mixtures import constant_level
from planting import plant
from scipy.stats import binomtest, rankdata
from skeleton import Planted, blocks, load
from torch import Tensor

import ffnmem as fm
from ffnmem.core.types import VERDICTS
from ffnmem.interventions import knowledge_neurons
from ffnmem.neurons.clustering import compare
from ffnmem.neurons.inputs import Firing, Inputs, firing, sampled_sequences
from ffnmem.neurons.measures import MEASURES, measures_of
from ffnmem.neurons.measuring import Shared
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.scanning import reduction
from ffnmem.scanning.state import sequence_of

# How well a number recovers a truth: AUROC, rank correlation, precision at k, each with an interval over models.

DRAWS = 400
K = 20
ALPHA = 0.05
Score = Callable[[np.ndarray, np.ndarray], float]


def auroc(score: np.ndarray, truth: np.ndarray) -> float:
    """The chance that a neuron with truth above 1 has the larger score than one with 1, ties half; NaN of one class."""
    positive = truth > 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((rankdata(score)[positive].sum() - n * (n + 1) / 2) / (n * m))


def spearman(score: np.ndarray, truth: np.ndarray) -> float:
    """The rank correlation, ties sharing their mean rank; NaN where either is constant."""
    ranks = [rankdata(score), rankdata(truth)]
    if any(len(r) < 2 or np.ptp(r) == 0 for r in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def precision_at_k(score: np.ndarray, truth: np.ndarray) -> float:
    """The share with truth above 1 among the K of the largest scores, ties in order; NaN of fewer than K."""
    if len(score) < K:
        return float("nan")
    return float((truth[np.argsort(-score, kind="stable")[:K]] > 1).mean())


def over_models(models: Sequence[tuple[np.ndarray, np.ndarray]], score: Score) -> tuple[float, float, float]:
    """The mean over models, and its 95% interval by a bootstrap that draws models, and neurons within each, again.

    ``models``: score and truth of each model's neurons; NaN scores are left out.
    """
    known = [(s[np.isfinite(s)], t[np.isfinite(s)]) for s, t in models]
    value, rng, drawn = mean([score(s, t) for s, t in known]), np.random.default_rng([0, 8]), np.empty(DRAWS)
    for d in range(DRAWS):
        again = []
        for i in rng.integers(len(known), size=len(known)):
            s, t = known[i]
            pick = rng.integers(len(s), size=len(s)) if len(s) else np.empty(0, np.int64)
            again.append(score(s[pick], t[pick]))
        drawn[d] = mean(again)
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
    return value, float(low), float(high)


def exact_interval(hits: int, cases: int) -> tuple[float, float]:
    """The ends of a share's 95% Clopper–Pearson interval."""
    found = binomtest(hits, cases).proportion_ci(method="exact")
    return found.low, found.high


def mean(values: Sequence[float]) -> float:
    """Of those that are numbers."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else float("nan")


# Meanings: how well the measures of ``fm.polysemanticity`` recover them.


def with_truth(planted: Planted, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the planted number of meanings as ``true_meanings``."""
    truth = planted.truth[["layer", "neuron", "meanings"]].rename(columns={"meanings": "true_meanings"})
    return table.merge(truth, on=["layer", "neuron"], validate="many_to_one")


def meaning_scores(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a measure: auroc of polysemantic against monosemantic neurons, spearman with the planted number,
    precision_at_k, each with ``_low`` and ``_high``, and neurons. ``models``: tables from :func:`with_truth`."""
    alive = [table[table["true_meanings"] > 0] for table in models]
    rows = []
    for name, one in MEASURES.items():
        pairs = [(one.many * t[name].to_numpy(float), t["true_meanings"].to_numpy()) for t in alive]
        row: dict[str, Any] = {"measure": name}
        for score in (auroc, spearman, precision_at_k):
            ends = (score.__name__, f"{score.__name__}_low", f"{score.__name__}_high")
            row |= dict(zip(ends, over_models(pairs, score), strict=True))
        rows.append({**row, "neurons": int(sum(t[name].notna().sum() for t in alive))})
    return pd.DataFrame(rows)


def verdict_counts(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How many neurons of each planted number of meanings (0: dead) got each verdict: true_meanings, then verdicts."""
    counts = pd.concat(models).groupby("true_meanings")["verdict"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=list(VERDICTS), fill_value=0)
    counts.columns = pd.Index(list(VERDICTS))
    return counts.reset_index()


# Neurons that mean nothing, to count how often each measure's null is rejected: 5% of them, or fewer, should be.


def random_places(store: fm.scanning.Store, seed: int) -> np.ndarray:
    """Random positions of the store's random sequences, without BOS and special tokens, in random order."""
    return reduction.random_places(store.sequences, store.settings.special, sampled_sequences(store), seed)


def at_random(found: Firing, places: np.ndarray, seed: int) -> Firing:
    """The same neurons with the same strengths at random places, each of a sequence of its own: they fire by chance."""
    rng = np.random.default_rng([seed, 9, found.layer])  # else two layers' neurons would share their examples
    moved, strengths = np.full_like(found.places, -1), np.zeros_like(found.strengths)
    for i, count in enumerate(found.counts.tolist()):
        drawn = rng.permutation(places)
        _, first = np.unique(sequence_of(drawn), return_index=True)
        apart = drawn[np.sort(first)][:count]  # a long sequence comes early more often than a short one
        moved[i, : len(apart)] = apart
        strengths[i, : len(apart)] = found.strengths[i, : len(apart)]
    return replace(found, places=moved, strengths=strengths)


def example_nulls(shared: Shared) -> pd.DataFrame:
    """The p-values of measures of examples for neurons whose examples are random places."""
    frames = []
    store = shared.store
    for layer in range(store.n_layers):
        found = at_random(firing(store, layer), random_places(store, shared.seed + 1), shared.seed)
        with Inputs(store, shared.model, {layer: found.places[found.places >= 0]}) as inputs:
            background = shared.backgrounds[layer]
            examples = compare(found, inputs, background, shared.seed, shared.draws)
        frames.append(pd.DataFrame({f"{name}_p": one.p for name, one in examples.estimates.items()}))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def scrambled(planted: Planted, seed: int = 0) -> Planted:
    """The planted model with keys, gates and values of random directions, each as long as before: what they mean is
    chance. Routers stay. Biases are minus a key's (or gate's) length, by which its product with a norm's outputs
    varies; the truth is not this model's."""
    hf = copy.deepcopy(planted.hf)
    generator = torch.Generator().manual_seed(seed)

    def turn(weight: Tensor, side: int, lengths: Tensor) -> None:
        rows = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        rows -= rows.mean(side, keepdim=True)  # (1, …, 1) is what LayerNorms remove
        weight.copy_(rows * (lengths.norm(dim=side, keepdim=True) / rows.norm(dim=side, keepdim=True)))

    for block in blocks(hf):
        if hf.config.model_type == "gpt2":
            for weight, side in ((block.mlp.c_fc.weight, 0), (block.mlp.c_proj.weight, 1)):
                turn(weight, side, weight)
            block.mlp.c_fc.bias.copy_(-block.mlp.c_fc.weight.norm(dim=0))  # some fire often, none always
            continue
        experts = block.mlp.experts
        for weight, side in ((experts.gate_up_proj, 2), (experts.down_proj, 1)):
            before = weight.contiguous()  # so that its lengths are rounded alike however it lies in memory
            turn(weight, side, before - before.mean(side, keepdim=True))
        gates = experts.gate_up_proj.chunk(2, dim=1)[0]
        gates -= gates.norm(dim=2, keepdim=True) / constant_level(hf) / gates.shape[2] ** 0.5
    model = load(hf, planted.model.tokenizer, f"{planted.model.name}-scrambled")
    return replace(planted, model=model, hf=hf)


def null_rates(examples: Sequence[pd.DataFrame], weights: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a measure: the rate of p < .05 where nothing is to be found, with its exact 95% interval, and neurons.

    ``examples``: of :func:`example_nulls`, one a model; ``weights``: tables of models from :func:`scrambled`.
    """
    rows = []
    for names, frames in ((measures_of("examples"), examples), (measures_of("sample"), weights)):
        for name in names:
            p = pd.concat(frames)[f"{name}_p"].dropna()
            low, high = exact_interval(int((p < ALPHA).sum()), max(len(p), 1))
            rate = float((p < ALPHA).mean()) if len(p) else float("nan")
            rows.append({"measure": name, "rate": rate, "low": low, "high": high, "neurons": len(p)})
    return pd.DataFrame(rows)


# Roles: precision and recall of ``fm.roles``.

PLANTED_AS = {"token-detector": "detector"}  # where the truth's name is another


def role_scores(models: Sequence[tuple[Planted, pd.DataFrame]]) -> pd.DataFrame:
    """One row a role, over the neurons of all models: role, precision (hits / found), recall (hits / planted), and the
    numbers of neurons planted, found, and hits (both). A neuron counts as found for every role that applies to it."""
    rows = []
    for role in ROLES:
        name = PLANTED_AS.get(role.name, role.name)
        true = pd.concat([planted.truth["role"] == name for planted, _ in models])
        found = pd.concat([table[role.column].astype(bool) for _, table in models])
        hits, n_true, n_found = int((true & found).sum()), int(true.sum()), int(found.sum())
        precision, recall = (hits / n if n else float("nan") for n in (n_found, n_true))
        row = {"role": role.name, "precision": precision, "recall": recall, "planted": n_true, "found": n_found}
        rows.append({**row, "hits": hits})
    return pd.DataFrame(rows)


# Facts: whether attribution and ablation find the neuron that a fact was planted in.

SITES = ("early", "late")
FACTS = 10  # asked of each model
WITHIN = 2  # a fact's subject has a neuron of its own, without which nothing is recalled either


def fact_scores(seeds: Sequence[int]) -> pd.DataFrame:
    """One row a measure and site: first, the share of facts whose planted neuron it ranks first of all layers' neurons,
    its exact 95% interval low and high; second, the share ranked first or second; facts, how many were asked.

    attribute: the direct effect on the target's logit. attribute_paths: the same with what attention carries from all
    positions. ablate: the total effect of removing the neuron everywhere. knowledge_neurons: integrated gradients of
    the target's probability. The first and the last look at the last token only, where a fact recalled early is not.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for seed in seeds:
        for site in SITES:
            planted = plant("facts", seed=seed, site=site)
            for fact in planted.facts[:: max(1, len(planted.facts) // FACTS)][:FACTS]:
                for measure, rank in planted_ranks(planted, fact).items():
                    ranks.setdefault((measure, site), []).append(rank)
    rows = []
    for (measure, site), found in sorted(ranks.items()):
        counts = np.array(found)
        low, high = exact_interval(int((counts == 0).sum()), len(counts))
        row = {"measure": measure, "site": site, "first": float((counts == 0).mean()), "low": low, "high": high}
        rows.append({**row, "second": float((counts < WITHIN).mean()), "facts": len(counts)})
    return pd.DataFrame(rows)


def planted_ranks(planted: Planted, fact: fm.Fact) -> dict[str, int]:
    """How many neurons each measure puts before the fact's own: those whose effect is not smaller."""
    truth = planted.truth.query("role == 'fact' and subject == @fact.subject and relation == @fact.relation")
    cap, target = fm.capture(planted.model, fact.text), f" {fact.target_true}"
    paths = fm.attribute_paths(cap, target).neurons.groupby(["layer", "neuron"], as_index=False)["logit"].sum()
    effects = {
        "attribute": (fm.attribute(cap, target).neurons, "logit"),
        "attribute_paths": (paths, "logit"),
        "ablate": (fm.ablate(cap, target, most=None, batch=512).neurons, "logit"),
        "knowledge_neurons": (knowledge_neurons(cap, target), "attribution"),
    }
    ranks = {}
    for name, (table, effect) in effects.items():
        mine = (table["layer"] == truth["layer"].iloc[0]) & (table["neuron"] == truth["neuron"].iloc[0])
        others = table.loc[~mine, effect]
        ranks[name] = int((~(others < table.loc[mine, effect].iloc[0])).sum()) if mine.any() else len(table)
    return ranks
