"""What neurons write, of the scan's table, of the model or of a table made later: the same; and neurons by text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError
from ffnmem.scanning import Store, open_store, projected, scan

from ..helpers import refuses
from ..neurons.gated import made
from .corpora import SMALL
from .texts import tiny_texts

VALUES = "values.parquet"
PLACES = [(0, 0), (1, 17), (1, 63)]


@pytest.fixture(scope="module", params=["classic", "gated"])
def model(request: pytest.FixtureRequest, tiny: fm.Model) -> fm.Model:
    return tiny if request.param == "classic" else made("llama")


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
    model = fm.load(str(shutil.copytree(tiny_folder, tmp_path / "tiny")))
    return scan(model, tiny_texts(), tmp_path / "named", project=False, **SMALL).folder


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal to the last bit, whatever words the categories of a text column are taken from."""
    assert found.dtypes.astype(str).tolist() == expected.dtypes.astype(str).tolist()
    assert all(found[name].tolist() == expected[name].tolist() for name in expected.columns)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_store_without_the_table_answers_as_one_with_it(both: tuple[Store, Store]) -> None:
    """Cards would show other tokens, or scores that differ in a last digit; asking makes no table."""
    whole, bare = both
    files, fewer = contents(whole.folder), contents(bare.folder)
    assert set(files) - set(fewer) == {VALUES}
    assert [name for name in fewer if fewer[name] != files[name]] == ["manifest.json"]
    for place in PLACES:
        same(bare.values(*place), whole.values(*place))
        one, other = bare.neuron(*place), whole.neuron(*place)
        assert repr(one.to_dict()) == repr(other.to_dict())  # with missing numbers, which equal nothing
        assert one.about == other.about
    assert not bare.projected
    assert not (bare.folder / VALUES).exists()


def test_a_search_makes_the_table_and_keeps_it(both: tuple[Store, Store], model: fm.Model, bare: Path) -> None:
    """A search would find other neurons, or project all of them anew each time; the manifest stays as it was."""
    before, told = contents(bare), []
    store = open_store(bare, model=model)
    found = fm.neurons.search(store, "e", progress=lambda *now: told.append(now)).neurons
    pd.testing.assert_frame_equal(found, fm.neurons.search(both[0], "e").neurons)
    assert told[-1] == ("project", 128, 128)
    assert (bare / VALUES).read_bytes() == (both[0].folder / VALUES).read_bytes()
    assert {name: data for name, data in contents(bare).items() if name != VALUES} == before
    again = open_store(bare)  # without a model
    again._source.failed = ModelError("not to be asked")
    pd.testing.assert_frame_equal(fm.neurons.search(again, "e").neurons, found)
    same(again.values(1, 17), both[0].values(1, 17))
    packed = open_store(bare).corpus
    (bare / VALUES).unlink()
    assert not scan(model, packed, bare, **SMALL).projected
    assert scan(model, packed, bare, project=True, **SMALL).projected


@pytest.mark.parametrize("text", ["tHE", " the", "a", "É", "(", "no such token"])
def test_a_search_finds_what_a_plain_filter_finds(both: tuple[Store, Store], model: fm.Model, text: str) -> None:
    """Best rank first; the text is a text, not a pattern."""
    sides = projected.sides_kept(model.gated)
    rows = fm.project(model, k=projected.PROMOTED, side=sides).to_frame().itertuples(index=False)
    kept = [row for row in rows if text.lower() in row.token.lower()]
    kept.sort(key=lambda row: (row.rank, -abs(row.score), row.layer, row.neuron, row.side, row.sign))
    path = both[0].folder / VALUES
    found = projected.search_values(path, text, 10**6)
    assert list(found.itertuples(index=False, name=None)) == [tuple(row) for row in kept]
    assert found.attrs["provenance"]["fingerprint"] == model.fingerprint
    assert projected.search_values(path, text, 7).equals(found.head(7))


def test_a_kept_table_that_is_not_the_store_s_or_not_whole(
    both: tuple[Store, Store], bare: Path, model: fm.Model
) -> None:
    """A table that somebody put there would answer for the store; half of one is made again, as it is a copy."""
    open_store(bare, model=model).keep_values()
    table = pq.read_table(bare / VALUES)
    about = json.loads(table.schema.metadata[projected.METADATA])
    provenance = about["provenance"]
    for change, rows, its in (
        ({"k": 3}, pc.less(table["rank"], 4), True),
        ({}, pc.equal(table["layer"], 0), False),
        ({"sides": ["key"]}, None, False),
        ({"provenance": {**provenance, "basis": "raw"}}, None, False),
        ({"provenance": {**provenance, "fingerprint": "f" * 12}}, None, False),
        ({"schema": 99}, None, False),
        (None, None, False),
    ):
        kept = table if rows is None else table.filter(rows)
        own = {} if change is None else {projected.METADATA: json.dumps({**about, **change}).encode()}
        pq.write_table(kept.replace_schema_metadata(own), bare / VALUES)
        assert open_store(bare).projected == its
    open_store(bare, model=model).keep_values()
    data = (bare / VALUES).read_bytes()
    for share in (0.0, 0.99):
        (bare / VALUES).write_bytes(data[: int(len(data) * share)])
        assert not open_store(bare).projected
        pd.testing.assert_frame_equal(
            fm.neurons.search(open_store(bare, model=model), "e").neurons, fm.neurons.search(both[0], "e").neurons
        )
    at = len(data) // 3
    (bare / VALUES).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with refuses(FileError, OSError, str(bare / VALUES)):
        fm.neurons.search(open_store(bare, model=model), "e")


def test_a_model_of_that_name_and_none(named: Path, make_tiny: Callable[..., fm.Model], tiny: fm.Model) -> None:
    """Another model's values, or those of a model that was edited since, would be shown for those that were scanned;
    without the model, everything else would be lost."""
    expected = open_store(named, model=tiny).values(1, 17)
    store = open_store(named)  # the model is loaded by its name
    same(store.values(1, 17), expected)
    other = make_tiny()
    held = open_store(named, model=other)
    other.ffn[1].values.data.mul_(-1)
    other._fingerprint = None
    same(held.values(1, 17), expected)
    with refuses(InputError, ValueError, other.fingerprint):
        open_store(named, model=other)
    other.hf_model.save_pretrained(named.parent / "tiny")
    store = open_store(named)
    with refuses(ModelError, ValueError, store.fingerprint, other.fingerprint):
        store.values(1, 17)
    assert other.fingerprint in store.neuron(1, 17).lack
    shutil.rmtree(named.parent / "tiny")
    store = open_store(named)
    card = store.neuron(1, 17)
    assert len(card.examples)
    assert card.tokens("promoted") == []
    assert card.to_dict()["values"] == []
    assert "need the model" in card.to_markdown()
    for ask in (lambda: store.values(1, 17), lambda: fm.neurons.search(store, "e"), store.keep_values):
        with refuses(ModelError, ValueError, str(named.parent / "tiny"), "model=", "--model"):
            ask()


def test_merging_needs_no_model(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores with and without the table are of one scan; the result has it where one has. A large model is
    not projected with the scan."""
    cost = 2 * 64 * tiny.d_vocab * tiny.d_model
    for limit in (cost, cost - 1):
        monkeypatch.setattr(projected, "AT_ONCE", limit)
        for index in range(2):
            part = scan(tiny, tiny_texts(), tmp_path / f"{limit == cost}{index}", shard=(index, 2), **SMALL)
            assert part.projected == (limit == cost)

    def merged(name: str, *parts: str) -> Store:
        return fm.merge([tmp_path / part for part in parts], tmp_path / name)

    whole, bare = merged("whole", "True0", "True1"), merged("bare", "False1", "False0")
    mixed = merged("mixed", "False0", "True1")
    assert (whole.projected, bare.projected, mixed.projected) == (True, False, True)
    assert contents(mixed.folder) == contents(whole.folder)
    open_store(tmp_path / "False1", model=tiny).keep_values()
    kept = merged("kept", "False0", "False1")
    assert kept.projected
    assert VALUES not in kept.manifest["files"]
