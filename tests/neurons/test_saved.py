"""What is kept of a survey: read back as it was, never for other settings, never when damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.neurons import Rule, measures, measuring
from ffnmem.neurons.inputs import firing
from ffnmem.neurons.measuring import file_of, is_kept, opened, read_one, settings_key
from ffnmem.neurons.verdicts import RULE
from ffnmem.scanning import Store, open_store

from ..helpers import refuses

SETTINGS: dict[str, Any] = {"seed": 0, "draws": 20, "budget": None, "rule": RULE, "sign": "positive"}
NAME = "polysemanticity-positive.parquet"


def key(store: Store, **changes: Any) -> dict[str, Any]:
    return settings_key(store, **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def folder(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose neurons were measured, in several groups of rows."""
    found = shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("kept") / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "GROUP", 16)
        fm.polysemanticity(open_store(found), tiny, draws=20, budget=None)
    return found


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> Store:
    return open_store(shutil.copytree(folder, tmp_path / "own"))


def read(store: Store, **settings: Any) -> pd.DataFrame:
    """Without a model: what is not kept cannot be measured."""
    return fm.polysemanticity(store, draws=20, budget=None, **settings)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"draws": 21}, {"budget": 5000}, {"sign": "negative"}])
def test_not_for_other_settings(store: Store, changes: dict[str, Any]) -> None:
    sign = changes.get("sign", "positive")
    assert is_kept(store, "positive", key(store))
    assert not is_kept(store, sign, key(store, **changes))
    given = {name: value for name, value in changes.items() if name != "sign"}
    assert (read_one(store, 0, 0, sign, given) is None) == bool(changes)
    assert read_one(store, 0, 0, "positive", {"seed": 0, "draws": 20}) is not None


def other_version(store: Store, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(measuring, "VERSION", 99)


def other_measures(store: Store, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(measures.MEASURES, "mine", measures.MEASURES["ms"])


def other_text(store: Store, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(store.__dict__, "corpus", type("Other", (), {"hash": "another"})())


def other_field(name: str, value: Any) -> Callable[[Store, pytest.MonkeyPatch], None]:
    return lambda store, patch: patch.setitem(store.manifest, name, value)


@pytest.mark.parametrize(
    "change",
    [other_version, other_measures, other_text, *(other_field(n, 7) for n in ("fingerprint", "settings", "tokens"))],
)
def test_not_for_another_store_or_version(store: Store, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that came into another store's folder: its places would be read in another text. Columns of other measures
    would be missing."""
    assert is_kept(store, "positive", {})
    change(store, monkeypatch)
    assert not is_kept(store, "positive", {})


def test_another_rule_judges_what_is_kept(store: Store) -> None:
    """Nothing is measured again; the inactive stay so, and a neuron by itself is judged as in the table."""
    rule = Rule(above=np.float64(1.1), examples=2, enough=2)
    before, table = read(store), read(store, rule=rule)
    assert table.drop(columns=["verdict", "why"]).equals(before.drop(columns=["verdict", "why"]))
    assert not table["verdict"].equals(before["verdict"])
    assert ((table["verdict"] == "inactive") == (before["verdict"] == "inactive")).all()
    settings = table.attrs["provenance"]["polysemanticity"]
    assert settings["rule"] == {"above": 1.1, "examples": 2, "enough": 2, "alpha": RULE.alpha}
    json.dumps(settings)
    for row in table.sample(5, random_state=0).itertuples():
        one = fm.meanings(store, row.layer, row.neuron, rule=rule)
        assert (one.verdict, one.why) == (row.verdict, row.why)
        assert one.provenance["polysemanticity"]["rule"] == settings["rule"]


def test_one_neuron_with_its_examples(store: Store) -> None:
    """Of whichever group of rows: its numbers as the table has them, NaN as null, and the examples that it fires at."""
    table = read(store).set_index(["layer", "neuron"])
    assert pq.ParquetFile(file_of(store, "positive")).metadata.num_row_groups == len(table) // 16
    for layer, neuron in ((0, 0), (1, 5), (1, store.d_mlp(1) - 1)):
        row, found = read_one(store, layer, neuron, "positive", {}), firing(store, layer, np.array([neuron]))
        n, expected = int(found.counts[0]), table.loc[(layer, neuron)]
        assert row is not None
        assert (row["layer"], row["neuron"], row["examples"]) == (layer, neuron, n)
        assert row["places"] == found.places[0, :n].tolist()
        np.testing.assert_allclose(row["strengths"], found.strengths[0, :n], rtol=1e-6)
        assert len(row["meaning"]) == n
        for name, number in expected.items():
            assert row[name] == number or (row[name] is None and number != number)
    assert read_one(store, 0, 10**6, "positive", {}) is None


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "inside", "another"])
def test_a_damaged_file_is_told(tiny: fm.Model, store: Store, damage: str) -> None:
    """Whatever another program did to it: a card would have no verdict, and nobody would know why."""
    path, before = store.folder / NAME, read(store)
    content = path.read_bytes()
    damaged = {
        "cut": content[:-200],
        "noise": np.random.default_rng(0).bytes(500),
        "empty": b"",
        "inside": content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :],
    }
    if damage == "another":
        before.to_parquet(path)
    else:
        path.write_bytes(damaged[damage])
    with refuses(FileError, OSError, NAME, "measure again"):
        read_one(store, 0, 0, "positive", {})
    assert not is_kept(store, "positive", {}) or damage == "inside"
    with pytest.warns(fm.FfnmemWarning, match=f"measured again.*{NAME}"):
        again = fm.polysemanticity(store, tiny, draws=20, budget=None)
    assert_frame_equal(again, before)
    store.verify()


def test_any_flipped_byte_is_told(store: Store) -> None:
    """Of 97 places: what is read is what was written, or refused. Some of the footer's bytes change nothing."""
    path = store.folder / NAME
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
    assert told > 50


def test_nothing_yet(tiny_store: Store) -> None:
    assert opened(tiny_store, "negative", {}) is None
    assert read_one(tiny_store, 0, 0, "negative", {}) is None
