"""``polysemanticity``: is a neuron one concept or many, by measures each with an interval and a null, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int64

from ..core.arguments import public
from ..core.choices import COEFFICIENT_SIGNS, MEANING_BUDGET, MEANING_DRAWS
from ..core.errors import InputError, check_choice, check_count, check_seed
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..models.loading import load
from ..models.model import Model
from ..models.turns import in_turn
from ..scanning.state import position_of, sequence_of
from ..scanning.store import Store
from ..scanning.tables import STATS
from .clustering import compare
from .coherence import value_coherence
from .counting import content_counts, within_budget
from .inputs import Background, Firing, Inputs, firing, read_backgrounds
from .overlap import key_estimates
from .sample_measures import Sample, sample_measures, token_sample
from .saved_meanings import read_saved, settings_key, write_saved
from .triggers import trigger_tokens
from .verdicts import RULE, Estimate, Rule, verdicts


@dataclass(frozen=True, eq=False)
class Survey:
    """What the measures of all layers share."""

    store: Store
    model: Model
    sign: str
    seed: int
    draws: int
    rule: Rule
    backgrounds: tuple[Background, ...]
    sample: Sample
    counts: Int64[np.ndarray, " vocab"]


@public
@in_turn
def polysemanticity(
    store: Store,
    model: Model | None = None,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    sign: str = "positive",
    seed: int = 0,
    draws: int = MEANING_DRAWS,
    budget: int | None = MEANING_BUDGET,
    rule: Rule = RULE,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Measure, for every neuron, whether its examples are of one meaning or of several.

    The examples are the sequences with its largest coefficients and random ones in which the coefficient reaches half
    of its largest. The model reads them again for what the FFN was given there; whitened inputs whose cosine is above
    that of unrelated ones (1.7 standard deviations) are grouped by average linkage. What was
    found of all layers is kept in the store's folder, where the next call of the same settings, cards and reports find
    it.

    A gated neuron's coefficient takes both signs as its key does, and which is the positive one is a convention: each
    sign is a side of its own, worth ``sign="both"``. On either side a neuron may have two kinds of examples, an open
    gate with a key of that sign and a closed one with a key of the other; they read other inputs, and count as other
    meanings where they are strong enough.

    Args:
        store: from :func:`ffnmem.scan`. model: the one scanned; default: load it by its name.
        layers: one or several; default all.
        sign: "positive" or "negative" coefficients, or "both": then a neuron has a row for each.
        seed: of every random step. draws: of bootstrap and null each.
        budget: tokens to read again at most for examples, None for no limit; the store's random sequences, which all
            neurons share, come on top. Where it does not reach, sequences are preferred that give the neurons with
            fewest examples another; ``examples`` says how many each has. Fewer layers leave more for each.
        rule: of the verdict.
        progress: called as (phase, done, total) with the phases "read" (tokens) and "meanings" (neurons).

    Returns:
        One row a neuron: layer, neuron, sign, examples, and for each measure its value and ``_low``, ``_high`` (95%, by
        a bootstrap over sequences), ``_null`` (its mean by chance) and ``_p`` (of something as notable by chance):

        - ``meanings``: the effective number (exp of the entropy of activation shares) of groups of alike examples.
        - ``clusters``: the same of Foote's: key ⊙ input, examples above .75 of the largest, connected components; of
          gated neurons the mean of the cosines of gate ⊙ input and of key ⊙ input.
        - ``ms``: mean cosine of whitened inputs weighted by activations; one meaning is near 1, unrelated inputs 0.
        - ``trigger_tokens``: the effective number of token types.
        - ``firing_rate`` (of a coefficient of the sign), ``kurtosis``; ``unigram``, ``previous``: the share of variance
          that the best token explains.
        - ``coherence``: of the tokens that the value promotes (suppresses, for negative coefficients).
        - ``capacity``, ``interference``: of the key (of a gated neuron the linear one; :func:`ffnmem.neurons.geometry`
          has its gate's too).

        Then verdict (monosemantic, polysemantic, unclear, dead) and why it is unclear.

    Raises:
        OutOfRangeError: no such layer. InputError: another model's store, or settings out of range. ModelError: the
            model cannot be loaded by its name.

    Source: Pach et al. 2025 for MS, Foote et al. 2024 for clusters, Gurnee et al. 2024 (2401.12181) for unigrams,
        Scherlis et al. 2022 for capacity; meanings and the verdict are ours, calibrated by ``ffnmem calibrate``.
    """
    check_choice("sign", sign, (*COEFFICIENT_SIGNS, "both"))
    chosen = chosen_layers(store, layers)
    if sign == "both":
        both = [
            polysemanticity(
                store, model, layers=chosen, sign=one, seed=seed, draws=draws, budget=budget, rule=rule,
                progress=progress,
            )
            for one in COEFFICIENT_SIGNS
        ]  # fmt: skip
        joined = pd.concat(both).sort_values(["layer", "neuron"], kind="stable", ignore_index=True)
        provenance = both[0].attrs["provenance"]
        settings = {**provenance["polysemanticity"], "sign": sign}
        joined.attrs = {"provenance": {**provenance, "polysemanticity": settings}}
        return joined
    draws, seed = check_count("draws", draws, least=20), check_seed(seed)
    budget = None if budget is None else check_count("budget", budget, least=1000)
    if model is not None:
        store.check_model(model)  # what is kept would be read back without it
    key = settings_key(store, seed=seed, draws=draws, budget=budget, rule=rule, sign=sign)
    whole = chosen == list(range(store.n_layers))
    kept = read_saved(store, sign, key)
    if kept is not None:
        return kept if whole else kept[kept["layer"].isin(chosen)].reset_index(drop=True)
    survey = begin(store, model, sign, seed, draws, rule, progress)
    found = within_budget([firing(store, layer, sign=sign) for layer in chosen], budget)
    frames, labels = measured(survey, found, progress)
    table = pd.concat(frames, ignore_index=True)
    table.attrs = {"provenance": {**store.provenance, "polysemanticity": key}}
    if whole:
        write_saved(store, sign, key, table, found, labels)
    return table


def chosen_layers(store: Store, layers: LayerName | Iterable[LayerName] | None) -> list[int]:
    """Layers as ascending indices; raises OutOfRangeError, or InputError for none."""
    if layers is None:
        return list(range(store.n_layers))
    several = layers if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    found = sorted({store.layer(layer) for layer in several})
    if not found:
        raise InputError("layers names no layer: leave it out for all")
    return found


def begin(
    store: Store, model: Model | None, sign: str, seed: int, draws: int, rule: Rule, progress: Progress | None
) -> Survey:
    """Load what is missing and read the backgrounds."""
    model = load(store.model) if model is None else model
    backgrounds = read_backgrounds(store, model, seed, progress)
    sample, counts = token_sample(store, seed=seed), content_counts(store)
    counts = np.pad(counts, (0, max(model.d_vocab - len(counts), 0)))  # a vocabulary may be padded, as Pythia's is
    return Survey(store, model, sign, seed, draws, rule, backgrounds, sample, counts)


def measured(
    survey: Survey, found: Sequence[Firing], progress: Progress | None
) -> tuple[list[pd.DataFrame], list[Int64[np.ndarray, "n most"]]]:
    """The rows of each layer, and the meaning of each example."""
    places = {f.layer: np.concatenate([f.places[f.places >= 0], survey.sample.places]) for f in found}
    total, done = sum(len(f.neurons) for f in found), 0
    frames, labels = [], []
    with Inputs(survey.store, survey.model, places, progress) as inputs:
        for one in found:
            frame, own = layer_rows(survey, one, inputs)
            frames.append(frame)
            labels.append(own)
            done += len(one.neurons)
            if progress is not None:
                progress("meanings", done, total)
    return frames, labels


def layer_rows(survey: Survey, found: Firing, inputs: Inputs) -> tuple[pd.DataFrame, Int64[np.ndarray, "n most"]]:
    """All measures of one layer's neurons."""
    layer, store, model = found.layer, survey.store, survey.model
    compared = compare(model, found, inputs, survey.backgrounds[layer], survey.seed, survey.draws)
    sampled = sample_measures(
        model, layer, survey.sample, inputs.at(layer, survey.sample.places), sign=survey.sign, seed=survey.seed,
        draws=survey.draws,
    )  # fmt: skip
    coherence = value_coherence(model, layer, survey.counts, seed=survey.seed, draws=survey.draws)[survey.sign]
    estimates: dict[str, Estimate] = {
        **compared.estimates,
        "trigger_tokens": triggers(survey, found),
        **sampled.estimates,
        "coherence": coherence,
        **key_estimates(model, layer, survey.seed),
    }
    told, why = verdicts(
        fires(store, found, survey.sign, model.gated), found.counts, estimates["meanings"], survey.rule
    )
    columns = {"layer": layer, "neuron": found.neurons, "sign": survey.sign, "examples": found.counts}
    for name, estimate in estimates.items():
        columns |= estimate.columns(name)
    return pd.DataFrame({**columns, "verdict": told, "why": why}), compared.labels


def triggers(survey: Survey, found: Firing) -> Estimate:
    """The effective number of tokens at the examples."""
    there = found.places >= 0
    tokens = np.zeros(found.places.shape, np.int64)
    places = found.places[there]
    tokens[there] = survey.store.sequences.tokens_at(sequence_of(places), position_of(places))
    weights = np.where(there, found.strengths, np.nan)
    return trigger_tokens(tokens, weights, survey.counts, seed=survey.seed, draws=survey.draws)


def fires(store: Store, found: Firing, sign: str, gated: bool = False) -> np.ndarray:
    """Whether each neuron's coefficient was ever of the sign: for positive ones, the store's ``dead`` says so.

    Of gated neurons it says that the gate never opened, so there only the largest coefficients can tell.
    """
    if sign == "negative" or gated:
        return np.asarray(found.extreme > 0)
    dead = store.table(STATS, found.layer)["dead"].to_numpy()
    return np.asarray(~dead[found.neurons].astype(bool))
