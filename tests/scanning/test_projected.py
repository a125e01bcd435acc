"""A store without the table of what values write answers as one with it: of the model, or of a table made later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError
from ffnmem.scanning import Store, open_store, projected, scan
from ffnmem.scanning.projected import AT_ONCE, is_quick

from ..helpers import refuses
from ..neurons.gated import made
from .texts import tiny_texts

VALUES = "values.parquet"
SMALL: dict[str, Any] = {"k": 3, "sample": 8, "draws": 4, "frequent": 8}
PLACES = [(0, 0), (1, 17), (1, 63)]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tokenizer: Any, tiny: fm.Model) -> fm.Model:
    return tiny if request.param == "gpt2" else made(request.param, tokenizer)


@pytest.fixture(scope="module")
def both(model: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """With the table, and without."""
    root = tmp_path_factory.mktemp("projected")
    return tuple(scan(model, tiny_texts(), root / str(project), project=project, **SMALL) for project in (True, False))  # type: ignore[return-value]


@pytest.fixture
def bare(both: tuple[Store, Store], tmp_path: Path) -> Path:
    """A copy of the one without."""
    return Path(shutil.copytree(both[1].folder, tmp_path / "bare"))


@pytest.fixture
def named(tiny_folder: Path, tmp_path: Path) -> Path:
    """A store without the table, of a model that can be loaded by its name."""
    return scan(
        fm.load(str(shutil.copytree(tiny_folder, tmp_path / "tiny"))), tiny_texts(), tmp_path / "named", project=False,
        **SMALL,
    ).folder  # fmt: skip


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal to the last bit, whatever words the categories of a text column are taken from."""
    assert found.dtypes.astype(str).tolist() == expected.dtypes.astype(str).tolist()
    for name in expected.columns:
        assert found[name].tolist() == expected[name].tolist()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_else_differs(both: tuple[Store, Store]) -> None:
    """All other files of a scan would depend on whether its values are projected."""
    whole, bare = (contents(store.folder) for store in both)
    assert set(whole) - set(bare) == {VALUES}
    assert [name for name in bare if bare[name] != whole[name]] == ["manifest.json"]


def test_single_neurons_are_the_table_s(both: tuple[Store, Store]) -> None:
    """Cards would show other tokens, or scores that differ in a last digit; asking makes no table."""
    whole, bare = both
    for place in PLACES:
        same(bare.values(*place), whole.values(*place))
        one, other = bare.neuron(*place), whole.neuron(*place)
        assert repr(one.to_dict()) == repr(other.to_dict())  # with missing numbers, which equal nothing
        assert one.heading() == other.heading()
    assert not bare.projected
    assert not (bare.folder / VALUES).exists()


def test_a_search_makes_the_table_and_keeps_it(both: tuple[Store, Store], model: fm.Model, bare: Path) -> None:
    """A search would find other neurons, or project all of them anew each time; the manifest stays as it was."""
    before, told = contents(bare), []
    store = open_store(bare, model=model)
    found = store.search("e", progress=lambda *now: told.append(now))
    pd.testing.assert_frame_equal(found, both[0].search("e"))
    assert told[-1] == ("project", 128, 128)
    assert (bare / VALUES).read_bytes() == (both[0].folder / VALUES).read_bytes()
    assert {name: data for name, data in contents(bare).items() if name != VALUES} == before
    again = open_store(bare)  # without a model
    again._source.failed = ModelError("not to be asked")
    pd.testing.assert_frame_equal(again.search("e"), found)
    same(again.values(1, 17), both[0].values(1, 17))


def test_the_model_is_loaded_by_its_name(named: Path, tiny: fm.Model) -> None:
    """Whoever opens a store on another day would have to name the model."""
    store = open_store(named)
    assert store.neuron(1, 17).tokens("promoted") == open_store(named, model=tiny).neuron(1, 17).tokens("promoted")
    assert len(store.search("e"))
    assert store.projected


def test_a_card_without_the_model(named: Path) -> None:
    """Everything else would be lost with the model."""
    shutil.rmtree(named.parent / "tiny")
    store = open_store(named)
    card = store.neuron(1, 17)
    assert len(card.examples)
    assert card.tokens("promoted") == []
    assert card.to_dict()["promoted"] is None
    shown = card.to_markdown()
    assert "need the model" in shown
    assert "suppresses" not in shown
    assert "promotes" not in card.summary()
    page = fm.pages.neurons(store, [(1, 17)], named.parent / "page.html", shade=False).read_text()
    assert "need the model" in page
    for ask in (lambda: store.values(1, 17), lambda: store.search("e"), store.keep_values):
        with refuses(ModelError, ValueError, str(named.parent / "tiny"), "model=", "--model"):
            ask()


def test_another_model_of_that_name(named: Path, make_tiny: Callable[..., fm.Model]) -> None:
    """Its values would be shown for those that were scanned."""
    other = make_tiny()
    other.ffn[0].values.data.mul_(2)
    other._fingerprint = None
    with refuses(InputError, ValueError, other.fingerprint):
        open_store(named, model=other)
    other.hf_model.save_pretrained(named.parent / "tiny")
    store = open_store(named)
    with refuses(ModelError, ValueError, store.fingerprint, other.fingerprint):
        store.values(1, 17)
    assert other.fingerprint in store.neuron(1, 17).lack


def test_a_model_that_was_edited_since(named: Path, make_tiny: Callable[..., fm.Model]) -> None:
    """A store holds the model that it was opened with: its values of now would be shown."""
    model = make_tiny()
    store = open_store(named, model=model)
    expected = store.values(1, 17)
    model.ffn[1].values.data.mul_(-1)
    model._fingerprint = None
    same(store.values(1, 17), expected)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_half_a_kept_table_is_made_again(both: tuple[Store, Store], bare: Path, model: fm.Model, share: float) -> None:
    """It is a copy of what the model says, so nobody has to remove it by hand."""
    open_store(bare, model=model).keep_values()
    data = (bare / VALUES).read_bytes()
    (bare / VALUES).write_bytes(data[: int(len(data) * share)])
    assert not open_store(bare).projected
    pd.testing.assert_frame_equal(open_store(bare, model=model).search("e"), both[0].search("e"))


def test_a_damaged_kept_table_is_named(bare: Path, model: fm.Model) -> None:
    store = open_store(bare, model=model)
    store.keep_values()
    data = bytearray((bare / VALUES).read_bytes())
    data[len(data) // 3] ^= 1
    (bare / VALUES).write_bytes(data)
    with refuses(FileError, OSError, str(bare / VALUES)):
        store.search("e")


@pytest.mark.parametrize("changed", [{"k": 3}, {"basis": "raw"}, {"side": "key"}, {"layer": 0}])
def test_another_projection_is_not_the_table(bare: Path, model: fm.Model, changed: dict[str, Any]) -> None:
    """A projection that somebody put there would answer for the store."""
    settings = {"k": 10, "side": ["value", "key", "gate"] if model.gated else ["value"], **changed}
    settings = {**settings, "k": min(settings["k"], 3)} if "k" in changed else settings
    fm.project(model, out=bare / VALUES, **settings)
    found = open_store(bare)
    assert found.projected == ("k" in changed)


def test_another_model_s_table_is_not_the_store_s(bare: Path, atlas: fm.Model) -> None:
    fm.project(atlas, 0, k=10, side="value", out=bare / VALUES)
    assert not open_store(bare).projected


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(both: tuple[Store, Store], bare: Path, model: fm.Model) -> None:
    """A search in somebody else's store would fail."""
    bare.chmod(0o555)
    try:
        found = open_store(bare, model=model).search("e")
    finally:
        bare.chmod(0o755)
    pd.testing.assert_frame_equal(found, both[0].search("e"))
    assert not (bare / VALUES).exists()


def test_a_finished_scan_gets_its_table(bare: Path, model: fm.Model) -> None:
    """``project=True`` of a store that is there would do nothing."""
    packed = open_store(bare).corpus
    assert not scan(model, packed, bare, **SMALL).projected
    assert scan(model, packed, bare, project=True, **SMALL).projected


def test_merging_needs_no_model(model: fm.Model, tmp_path: Path) -> None:
    """Stores with and without the table are of one scan; the result has it where one has."""
    for project in (True, False):
        for index in range(2):
            scan(model, tiny_texts(), tmp_path / f"{project}{index}", shard=(index, 2), project=project, **SMALL)
    parts = {name: tmp_path / name for name in ("True0", "True1", "False0", "False1")}
    whole = fm.merge([parts["True0"], parts["True1"]], tmp_path / "whole")
    bare = fm.merge([parts["False1"], parts["False0"]], tmp_path / "bare")
    mixed = fm.merge([parts["False0"], parts["True1"]], tmp_path / "mixed")
    assert (whole.projected, bare.projected, mixed.projected) == (True, False, True)
    assert contents(mixed.folder) == contents(whole.folder)
    open_store(parts["False1"], model=model).keep_values()
    kept = fm.merge([parts["False0"], parts["False1"]], tmp_path / "kept")
    assert kept.projected
    assert VALUES not in kept.manifest["files"]


def test_small_models_are_projected_with_the_scan(atlas: fm.Model, tiny: fm.Model, tiny_store: Store) -> None:
    """Their stores are self-contained at next to no cost."""
    assert is_quick(atlas)
    assert is_quick(tiny)
    assert AT_ONCE < 3 * 46_080 * 49_152 * 576  # SmolLM2-135M
    assert AT_ONCE < 36_864 * 50_257 * 768  # GPT-2 small
    assert VALUES in tiny_store.manifest["files"]


def test_a_large_model_is_not(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projected, "AT_ONCE", 1000)
    assert not scan(tiny, tiny_texts(), tmp_path / "out", **SMALL).projected
