"""A store at a glance: each layer's dead neurons and how often its neurons fire."""

from __future__ import annotations

import pandas as pd

from ..scanning.store import Store

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def rate_column(quantile: float) -> str:
    return f"firing_rate_{100 * quantile:.0f}"


RATES = tuple(rate_column(quantile) for quantile in QUANTILES)


def layer_summary(store: Store) -> pd.DataFrame:
    """One row a layer: layer, neurons, dead (how many never fired), and the 5%, 25%, 50%, 75% and 95% quantiles of its
    neurons' firing rates (shares of tokens) as firing_rate_5 to firing_rate_95."""
    by_layer = store.stats().groupby("layer")
    rates = by_layer["firing_rate"].quantile(list(QUANTILES)).unstack()
    rates.columns = list(RATES)
    counts = pd.DataFrame({"neurons": by_layer.size(), "dead": by_layer["dead"].sum()})
    return counts.join(rates).reset_index()


def facts(store: Store) -> dict[str, str]:
    """What was scanned, and how, in words: model, corpus, tokens, dead neurons and settings."""
    manifest, settings, corpus = store.manifest, store.settings, store.manifest["corpus"]
    units = manifest["units"]
    part = "" if store.complete else f", a part: {units['done']:,} of {units['total']:,} units"
    rescored = f", examples in {manifest['rescored_in']}" if manifest["rescored_in"] else ""
    return {
        "model": f"{store.model} {store.fingerprint}, {store.n_layers} layers, {sum(manifest['d_mlp']):,} neurons",
        "corpus": f"{corpus['source']}, {corpus['documents']:,} documents, hash {corpus['hash']}",
        "scanned": f"{store.n_tokens:,} tokens in {manifest['sequences']:,} sequences"
        f" of at most {settings.context}{part}",
        "settings": f"{settings.dtype}{rescored}, {'with BOS' if settings.prepend_bos else 'no BOS'},"
        f" seed {settings.seed}",
        "kept": f"{settings.k} top and bottom sequences a neuron, {settings.sample} random sequences,"
        f" {settings.draws} random positions, {len(settings.frequent)} frequent tokens",
    }
