"""What is kept of a survey: read back as it was, never for other settings, never when damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.neurons import Rule, measuring
from ffnmem.neurons.inputs import Firing, firing
from ffnmem.neurons.measuring import file_of, opened, read_one, read_saved, settings_key, store_key, write_saved
from ffnmem.neurons.verdicts import RULE, Estimate, verdicts
from ffnmem.scanning import Store, open_store

from ..helpers import refuses

SETTINGS: dict[str, Any] = {"seed": 0, "draws": 20, "budget": None, "rule": RULE, "sign": "positive"}


def keyed(store: Store, **changes: Any) -> dict[str, Any]:
    return settings_key(store, **{**SETTINGS, **changes})


@pytest.fixture
def own(tiny_store: Store, tmp_path: Path) -> Store:
    return open_store(shutil.copytree(tiny_store.folder, tmp_path / "own"))


def contents(store: Store) -> tuple[pd.DataFrame, list[Firing], list[np.ndarray]]:
    """A table such as polysemanticity makes, NaN and empty texts included."""
    found = [firing(store, layer) for layer in range(store.n_layers)]
    random = np.random.default_rng(0)
    frames = []
    for f in found:
        n = len(f.neurons)
        value = random.random(n)
        value[3] = np.nan
        columns = {"layer": f.layer, "neuron": f.neurons, "sign": "positive", "examples": f.counts}
        columns |= Estimate(value, 0.9 * value, value + 0.3, value, np.full(n, 0.01)).columns("meanings")
        texts = {"verdict": np.array(["inactive"] * n, object), "why": np.array(["", "few"] * (n // 2), object)}
        frames.append(pd.DataFrame({**columns, **texts}))
    table = pd.concat(frames, ignore_index=True)
    table.attrs = {"provenance": {**store.provenance, "polysemanticity": keyed(store)}}
    labels = [np.where(f.places >= 0, random.integers(0, 3, f.places.shape), -1) for f in found]
    return table, found, labels


@pytest.fixture
def written(own: Store) -> tuple[Store, pd.DataFrame, list[Firing], list[np.ndarray]]:
    table, found, labels = contents(own)
    write_saved(own, "positive", keyed(own), table, found, labels)
    return own, table, found, labels


Written = tuple[Store, pd.DataFrame, list[Firing], list[np.ndarray]]


def test_reads_back_as_it_was(written: Written) -> None:
    store, table, _, _ = written
    back = read_saved(store, "positive", keyed(store))
    assert back is not None
    assert_frame_equal(back, table)
    assert back.attrs == json.loads(json.dumps(table.attrs))
    assert not list(store.folder.glob(".*.tmp"))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"draws": 21}, {"budget": 5000}])
def test_not_for_other_settings(written: Written, changes: dict[str, Any]) -> None:
    store = written[0]
    assert read_saved(store, "positive", keyed(store, **changes)) is None
    assert read_one(store, 0, 0, "positive", {}) is not None


def test_another_rule_judges_what_is_kept(written: Written) -> None:
    """Nothing is measured again; the dead stay dead, and a neuron by itself is judged as in the table."""
    store, table, found, labels = written
    table = table.assign(verdict=["inactive", *["unclear"] * (len(table) - 1)])
    table.attrs = written[1].attrs
    write_saved(store, "positive", keyed(store), table, found, labels)
    rule = Rule(above=1.1, examples=2, enough=2)
    back = read_saved(store, "positive", keyed(store, rule=rule))
    assert back is not None
    fired = (table["verdict"] != "inactive").to_numpy()
    parts = (table[name].to_numpy() for name in measuring.MEANINGS)
    told, why = verdicts(fired, table["examples"].to_numpy(), Estimate(*parts), rule)
    assert back["verdict"].tolist() == told.tolist()
    assert back["why"].tolist() == why.tolist()
    assert {"inactive", "unclear"} < set(told)
    assert back.attrs["provenance"]["polysemanticity"]["rule"] == measuring.rule_key(rule)
    for at in np.random.default_rng(0).integers(len(table), size=5).tolist():
        row = read_one(store, *table.loc[at, ["layer", "neuron"]], "positive", {"rule": measuring.rule_key(rule)})
        assert row is not None
        assert (row["verdict"], row["why"]) == (told[at], why[at])
        assert row["provenance"]["polysemanticity"]["rule"] == measuring.rule_key(rule)


def test_not_for_the_other_sign(written: Written) -> None:
    store = written[0]
    assert read_saved(store, "negative", keyed(store, sign="negative")) is None
    assert read_one(store, 0, 0, "negative", {}) is None


@pytest.mark.parametrize("field", ["fingerprint", "corpus", "settings", "tokens"])
def test_not_for_another_store(written: Written, field: str) -> None:
    """A file that came into another store's folder: its places would be read in another text."""
    store = written[0]
    other = Store(store.folder, {**store.manifest, field: different(store.manifest[field])})
    if field == "corpus":
        other.__dict__["corpus"] = type("Other", (), {"hash": "another"})()
    assert read_saved(other, "positive", keyed(other)) is None
    assert read_one(other, 0, 0, "positive", {}) is None


def different(value: Any) -> Any:
    return {**value, "context": 3} if isinstance(value, dict) else (value + 1 if isinstance(value, int) else "x")


def test_not_of_another_version(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    store = written[0]
    monkeypatch.setattr(measuring, "VERSION", measuring.VERSION + 1)
    assert read_saved(store, "positive", keyed(store)) is None


def test_one_neuron_with_its_examples(written: Written) -> None:
    store, table, found, labels = written
    for layer, neuron in ((0, 0), (1, 5), (1, store.d_mlp(1) - 1)):
        row = read_one(store, layer, neuron, "positive", {})
        assert row is not None
        n = int(found[layer].counts[neuron])
        assert (row["layer"], row["neuron"], row["examples"]) == (layer, neuron, n)
        assert row["places"] == found[layer].places[neuron, :n].tolist()
        np.testing.assert_allclose(row["strengths"], found[layer].strengths[neuron, :n], rtol=1e-6)
        assert row["meaning"] == labels[layer][neuron, :n].tolist()
        there = table[(table.layer == layer) & (table.neuron == neuron)]
        assert row["why"] == there["why"].item()
    assert read_one(store, 0, 3, "positive", {})["meanings"] is None  # type: ignore[index]  # NaN is null there
    assert read_one(store, 0, 10**6, "positive", {}) is None


def test_reads_one_group_for_one_neuron(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card waits for it."""
    store = written[0]
    monkeypatch.setattr(measuring, "GROUP", 16)
    table, found, labels = contents(store)
    write_saved(store, "positive", keyed(store), table, found, labels)
    metadata = pq.ParquetFile(file_of(store, "positive")).metadata
    assert metadata.num_row_groups == len(table) // 16
    row = read_one(store, 1, 7, "positive", {})
    assert row is not None
    assert (row["layer"], row["neuron"]) == (1, 7)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "inside"])
def test_a_damaged_file_is_told(written: Written, damage: str) -> None:
    """Whatever another program did to it: a card would have no verdict, and nobody would know why."""
    store = written[0]
    path = file_of(store, "positive")
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-200],
            "noise": np.random.default_rng(0).bytes(500),
            "empty": b"",
            "inside": content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :],
        }[damage]
    )
    with pytest.warns(fm.FfnmemWarning, match="measured again.*polysemanticity-positive"):
        assert read_saved(store, "positive", keyed(store)) is None
    for read in (lambda: read_one(store, 0, 0, "positive", {}), store.verify):
        with refuses(FileError, OSError, "polysemanticity-positive.parquet", "measure again"):
            read()
    table, found, labels = contents(store)
    write_saved(store, "positive", keyed(store), table, found, labels)
    assert read_saved(store, "positive", keyed(store)) is not None


def test_any_flipped_byte_is_told(written: Written) -> None:
    """Of 97 places: what is read is what was written, or refused. Some of the footer's bytes change nothing."""
    store = written[0]
    path = file_of(store, "positive")
    content, whole = path.read_bytes(), store.opened(path.name).table()
    store.verify()
    told = 0
    for place in range(0, len(content), len(content) // 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            store.verify()
        except FileError:
            told += 1
        else:
            assert store.opened(path.name).table().equals(whole)
    assert told > 70


def test_another_table_is_told(written: Written) -> None:
    """A Parquet file of that name that is not ours."""
    store, table, _, _ = written
    table.to_parquet(file_of(store, "positive"))
    with refuses(FileError, OSError, "polysemanticity-positive.parquet", "no table"):
        opened(store, "positive", {})


def test_nothing_yet(own: Store) -> None:
    assert read_saved(own, "positive", keyed(own)) is None
    assert read_one(own, 0, 0, "positive", {}) is None


def test_an_unwritable_folder(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(own.folder.iterdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    write_saved(own, "positive", keyed(own), *contents(own))
    assert sorted(own.folder.iterdir()) == before


def test_key_is_plain_json(own: Store) -> None:
    rule = Rule(above=np.float64(1.5), examples=9, alpha=np.float64(0.01))
    key = keyed(own, rule=rule)
    assert json.loads(json.dumps(key))["rule"] == {"above": 1.5, "examples": 9, "enough": RULE.enough, "alpha": 0.01}
    assert store_key(own).items() <= key.items()


def test_kept_with_some_settings(written: Written) -> None:
    """A neuron of another seed than asked for would be believed."""
    store = written[0]
    assert measuring.is_kept(store, "positive", {})
    assert measuring.is_kept(store, "positive", {"seed": 0, "draws": 20})
    assert not measuring.is_kept(store, "positive", {"seed": 1})
    assert not measuring.is_kept(store, "negative", {})
    assert read_one(store, 0, 0, "positive", {"seed": 1}) is None
    row = read_one(store, 0, 0, "positive", {"seed": 0})
    assert row is not None
    assert row["provenance"]["polysemanticity"]["seed"] == 0
