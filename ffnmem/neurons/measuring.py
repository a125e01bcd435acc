"""``polysemanticity``: is a neuron one concept or many, by measures each with an interval and a null, and a verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from ..core.checked_files import parsed, reading, with_columns
from ..core.errors import FileError, InputError, warn
from ..core.files import replacing
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import COEFFICIENT_SIGNS
from ..models.model import Model
from ..scanning.store import Store
from ..scanning.tables import GROUP, STATS, NeuronTable
from .clustering import compare
from .counting import within_budget
from .inputs import CUT, FLOOR, RIDGE, SAMPLED, TOP, Background, Firing, Inputs, firing, read_background
from .measures import MEASURES
from .sample_measures import Sample, sample_measures, token_sample
from .verdicts import Estimate, Rule, verdicts


@dataclass(frozen=True, eq=False)
class Shared:
    """What the measures of all layers share."""

    store: Store
    model: Model
    seed: int
    draws: int
    rule: Rule
    backgrounds: Mapping[int, Background]
    sample: Sample


def measure_neurons(
    store: Store,
    model: Model | None,
    layers: LayerName | Iterable[LayerName] | None,
    *,
    sign: str,
    seed: int,
    draws: int,
    budget: int | None,
    rule: Rule,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The table of :func:`ffnmem.polysemanticity`, whose ``attrs`` have its provenance; kept if it is of all layers."""
    signs = COEFFICIENT_SIGNS if sign == "both" else (sign,)
    chosen = chosen_layers(store, layers)
    if model is not None:
        store.check_model(model)  # what is kept would be read back without it
    settings: dict[str, Any] = {"seed": seed, "draws": draws, "budget": budget, "rule": rule}
    keys = {one: settings_key(store, sign=one, **settings) for one in signs}
    tables = {one: kept for one, key in keys.items() if (kept := read_saved(store, one, key)) is not None}
    if missing := [one for one in signs if one not in tables]:
        tables |= measured(store, model, chosen, missing, keys, rule, progress)
    parts = [tables[one][tables[one]["layer"].isin(chosen)] for one in signs]
    table = pd.concat(parts).sort_values(["layer", "neuron"], kind="stable", ignore_index=True)
    provenance = tables[signs[0]].attrs["provenance"]
    table.attrs = {"provenance": {**provenance, "polysemanticity": {**provenance["polysemanticity"], "sign": sign}}}
    return table


def measured(
    store: Store,
    model: Model | None,
    layers: list[int],
    signs: Sequence[str],
    keys: Mapping[str, dict[str, Any]],
    rule: Rule,
    progress: Progress | None,
) -> dict[str, pd.DataFrame]:
    """The table of each sign, kept if it is of all layers; the text is read once for all of them."""
    budget, draws = keys[signs[0]]["budget"], keys[signs[0]]["draws"]
    shared = begin(store, model, layers, keys[signs[0]]["seed"], draws, rule)
    found = {sign: within_budget([firing(store, layer, sign=sign) for layer in layers], budget) for sign in signs}
    rows: dict[str, list[pd.DataFrame]] = {sign: [] for sign in signs}
    labels: dict[str, list[Int64[np.ndarray, "n most"]]] = {sign: [] for sign in signs}
    total, done = sum(len(one.neurons) for several in found.values() for one in several), 0
    with Inputs(store, shared.model, wanted(found.values(), shared.sample), progress) as inputs:
        for of_layer in zip(*found.values(), strict=True):
            for sign, one in zip(signs, of_layer, strict=True):
                frame, own = layer_rows(shared, one, inputs, sign)
                rows[sign].append(frame)
                labels[sign].append(own)
                done += len(one.neurons)
                if progress is not None:
                    progress("meanings", done, total)
    tables = {}
    for sign in signs:
        tables[sign] = pd.concat(rows[sign], ignore_index=True)
        tables[sign].attrs = {"provenance": {**store.provenance, "polysemanticity": keys[sign]}}
        if len(layers) == store.n_layers:
            write_saved(store, sign, keys[sign], tables[sign], found[sign], labels[sign])
    return tables


def wanted(found: Iterable[Sequence[Firing]], sample: Sample) -> dict[int, Int64[np.ndarray, " n"]]:
    """By layer, the places that have to be read."""
    several = [one for firings in found for one in firings]
    return {
        layer: np.concatenate([sample.places, *(f.places[f.places >= 0] for f in several if f.layer == layer)])
        for layer in {f.layer for f in several}
    }


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
    store: Store,
    model: Model | None,
    layers: Sequence[int],
    seed: int,
    draws: int,
    rule: Rule,
) -> Shared:
    """Load what is missing, with the backgrounds of some layers."""
    model = store.read_model() if model is None else model
    backgrounds = {layer: read_background(store, layer) for layer in layers}
    return Shared(store, model, seed, draws, rule, backgrounds, token_sample(store, seed=seed))


def layer_rows(
    shared: Shared, found: Firing, inputs: Inputs, sign: str
) -> tuple[pd.DataFrame, Int64[np.ndarray, "n most"]]:
    """All measures of one layer's neurons, for one sign."""
    layer, store, model = found.layer, shared.store, shared.model
    examples = compare(found, inputs, shared.backgrounds[layer], shared.seed, shared.draws)
    sampled = sample_measures(
        model, layer, shared.sample, inputs.at(layer, shared.sample.places), sign=sign, seed=shared.seed,
        draws=shared.draws,
    )  # fmt: skip
    estimates: dict[str, Estimate] = {**examples.estimates, **sampled}
    told, why = verdicts(fires(store, found, sign, model.gated), found.counts, estimates["meanings"], shared.rule)
    columns = {"layer": layer, "neuron": found.neurons, "sign": sign, "examples": found.counts}
    for name, estimate in estimates.items():
        columns |= estimate.columns(name)
    return pd.DataFrame({**columns, "verdict": told, "why": why}), examples.labels


def fires(store: Store, found: Firing, sign: str, gated: bool = False) -> np.ndarray:
    """Whether each neuron's coefficient was ever of the sign: for positive ones, the store's ``dead`` says so.

    Of gated neurons it says that the gate never opened, so there only the largest coefficients can tell.
    """
    if sign == "negative" or gated:
        return np.asarray(found.extreme > 0)
    dead = store.table(STATS, found.layer)["dead"].to_numpy()
    return np.asarray(~dead[found.neurons].astype(bool))


# What was found of a whole store, kept beside it: a table, and each neuron's examples.

VERSION = 3
LISTS = ("places", "strengths", "meaning")
MEANINGS = ("meanings", "meanings_low", "meanings_high", "meanings_null", "meanings_p")
KEY = b"ffnmem"


def settings_key(store: Store, *, seed: int, draws: int, budget: int | None, rule: Rule, sign: str) -> dict[str, Any]:
    """What a result depends on; one of another key is not read back."""
    return {
        **table_key(store),
        "sign": sign,
        "seed": seed,
        "draws": draws,
        "budget": budget,
        "rule": rule_key(rule),
    }


def rule_key(rule: Rule) -> dict[str, Any]:
    """A rule as JSON can hold it."""
    return {
        "above": float(rule.above),
        "examples": int(rule.examples),
        "enough": int(rule.enough),
        "alpha": float(rule.alpha),
    }


def store_key(store: Store) -> dict[str, Any]:
    """The part of it that is the store's: what sequence and position numbers mean, too."""
    return {
        "version": VERSION,
        "constants": [CUT, RIDGE, FLOOR, TOP, SAMPLED],
        "fingerprint": store.fingerprint,
        "corpus": store.corpus.hash,
        "scan": store.manifest["settings"],
        "tokens": store.n_tokens,
    }


def table_key(store: Store) -> dict[str, Any]:
    """With it, what the table's columns are."""
    return {**store_key(store), "measures": sorted(MEASURES)}


def file_of(store: Store, sign: str) -> Path:
    return store.folder / f"polysemanticity-{sign}.parquet"


def write_saved(
    store: Store,
    sign: str,
    key: Mapping[str, Any],
    table: pd.DataFrame,
    found: Sequence[Firing],
    labels: Sequence[Int64[np.ndarray, "_n most"]],
) -> None:
    """Write the table and every neuron's examples, where the store's folder can be written to; else do nothing."""
    if not os.access(store.folder, os.W_OK):
        return
    rows = pa.Table.from_pandas(table, preserve_index=False)
    lists: dict[str, list[np.ndarray]] = {name: [] for name in LISTS}
    for one, own in zip(found, labels, strict=True):
        for places, strengths, meaning in zip(one.places, one.strengths, own, strict=True):
            there = places >= 0
            lists["places"].append(places[there])
            lists["strengths"].append(strengths[there].astype(np.float32))
            lists["meaning"].append(meaning[there].astype(np.int16))
    for name, values in lists.items():
        rows = rows.append_column(name, pa.array(values))
    text = json.dumps({**key, "provenance": table.attrs["provenance"]}, sort_keys=True)
    rows = rows.replace_schema_metadata(with_columns(rows.column_names, {KEY: text.encode()}))
    with replacing(file_of(store, sign)) as temporary:
        pq.write_table(rows, temporary, row_group_size=GROUP, write_page_checksum=True)


def opened(store: Store, sign: str, settings: Mapping[str, Any]) -> tuple[NeuronTable, dict[str, Any]] | None:
    """The file of an earlier call for this store with these settings (some or all of :func:`settings_key`), and its
    header. The rule may be another one: it changes nothing that was measured. Raises FileError for a damaged one."""
    path = file_of(store, sign)
    if not path.exists():
        return None
    table = store.opened(path.name)
    header = parsed(path, (table.rows.schema.metadata or {}).get(KEY, b"{}"))
    if not isinstance(header, dict) or not {"provenance", "rule"} <= header.keys():
        raise FileError(f"{path} is no table that ffnmem polysemanticity wrote: {table.again}")
    measured = {name: value for name, value in settings.items() if name != "rule"}
    wanted = json.loads(json.dumps({**table_key(store), **measured}))
    return (table, header) if all(header.get(name) == value for name, value in wanted.items()) else None


def is_kept(store: Store, sign: str, settings: Mapping[str, Any]) -> bool:
    """Whether a table with these settings (some or all of :func:`settings_key`) is there."""
    try:
        return opened(store, sign, settings) is not None
    except FileError:  # who reads it says so
        return False


def read_saved(store: Store, sign: str, key: Mapping[str, Any]) -> pd.DataFrame | None:
    """The table of an earlier call of the same key, if there is one; verdicts are by the key's rule. A damaged one is
    warned of."""
    try:
        found = opened(store, sign, key)
        if found is None:
            return None
        table, header = found
        names = [name for name in table.rows.schema.names if name not in LISTS]
        with reading(table.path, table.again):
            frame = table.rows.to_table(columns=names).to_pandas()
    except FileError as error:
        warn(f"all is measured again: {error}")
        return None
    if header["rule"] != key["rule"]:
        frame = judged(frame, Rule(**key["rule"]))
    frame.attrs = {"provenance": {**header["provenance"], "polysemanticity": dict(key)}}
    return frame


def judged(frame: pd.DataFrame, rule: Rule) -> pd.DataFrame:
    """The table with the verdicts of another rule."""
    parts = (frame[name].to_numpy(np.float64) for name in MEANINGS)
    fired = (frame["verdict"] != "inactive").to_numpy()
    told, why = verdicts(fired, frame["examples"].to_numpy(), Estimate(*parts), rule)
    return frame.assign(verdict=told, why=why)


def read_one(store: Store, layer: int, neuron: int, sign: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """One neuron's row with its lists, and the table's provenance; None if none is kept. Raises FileError: damaged.

    Args:
        settings: names and values of :func:`settings_key` that the table must have; {} for whatever is kept.
    """
    found = opened(store, sign, settings)
    if found is None:
        return None
    table, header = found
    row = table.table(layer, neuron)
    if not len(row):
        return None
    provenance, rule = header["provenance"], settings.get("rule", header["rule"])
    one = row.to_pylist()[0]
    if rule != header["rule"]:
        again = judged(row.select([*MEANINGS, "examples", "verdict"]).to_pandas(), Rule(**rule)).iloc[0]
        one |= {"verdict": str(again["verdict"]), "why": str(again["why"])}
        provenance = {**provenance, "polysemanticity": {**provenance["polysemanticity"], "rule": rule}}
    return {**one, "provenance": provenance}
