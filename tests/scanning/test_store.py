"""What a finished scan answers, and what it says when it is no longer what was written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.checked_files import digest_of, file_hash
from ffnmem.core.errors import FileError, InputError, ModelNotFoundError, OutOfRangeError
from ffnmem.core.files import replacing
from ffnmem.core.types import CASES
from ffnmem.scanning import Store, open_store
from ffnmem.scanning import manifest as manifest_module
from ffnmem.scanning.manifest import FOLDER
from ffnmem.scanning.state import BINS, edges
from ffnmem.scanning.state import COLUMNS as CASE_COLUMNS
from ffnmem.scanning.statistics import GATE_STATS, STATS, bucket_name

from ..helpers import allclose, refuses
from ..neurons.gated import GATED, made, scanned
from .binning import bin_of

NEURONS = [(0, 0), (0, 33), (1, 17), (1, 63)]
FILES = [
    "manifest.json",
    "state.safetensors",
    "stats.parquet",
    "values.parquet",
    "tokenizer.json",
    "corpus/corpus.json",
    "corpus/tokens.bin",
    "corpus/documents.bin",
    "corpus/counts.bin",
]


@dataclass(frozen=True)
class Looked:
    """One sequence looked at with ``fm.capture``: content positions, their ids, and per layer [content, d_mlp]."""

    at: np.ndarray
    ids: np.ndarray
    pre: list[np.ndarray]
    m: list[np.ndarray]
    linear: list[np.ndarray]

    def strength(self, kind: str, layer: int, neuron: int) -> np.ndarray:
        """By which a kind orders positions."""
        m = self.m[layer][:, neuron]
        if kind in ("top", "bottom"):
            return m if kind == "top" else -m
        return np.where(in_case(self, CASES.index(kind), layer)[:, neuron], np.abs(m), 0.0)


def in_case(one: Looked, case: int, layer: int) -> np.ndarray:
    return ((one.pre[layer] > 0) == (case < 2)) & ((one.linear[layer] > 0) == (case % 2 == 0))


@pytest.fixture(scope="module", params=["classic", *GATED])
def model(request: pytest.FixtureRequest, tiny: fm.Model, tokenizer: Any) -> fm.Model:
    return tiny if request.param == "classic" else made(request.param, tokenizer)


@pytest.fixture(scope="module")
def store(model: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scanned(model, tmp_path_factory.mktemp("looked") / "store") if model.gated else tiny_store


@pytest.fixture(scope="module")
def looked(store: Store, model: fm.Model) -> list[Looked]:
    found = []
    for number in range(len(store.sequences)):
        ids = store.sequences.sequence_tokens(number)
        capture = fm.capture(model, [int(i) for i in ids])
        inside = capture.content[0].numpy()
        pre, m, linear = (
            [part[layer][0].numpy()[inside] for layer in range(2)]
            for part in (capture.pre, capture.coefficients, capture.linear or capture.pre)
        )
        found.append(Looked(np.flatnonzero(inside), ids[inside], pre, m, linear))
    return found


def every(looked: list[Looked], layer: int, neuron: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(
        np.concatenate([getattr(one, name)[layer][:, neuron] for one in looked]).astype(np.float64)
        for name in ("pre", "m", "linear")
    )  # type: ignore[return-value]


# -- a neuron's answers against looking everywhere -----------------------------------------------------------------


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_the_strongest_sequences(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    """At both ends, and of a gated neuron in each sign case."""
    kinds = [kind for kind in store.kinds if kind not in ("quantile", "random")]
    found = store.examples(layer, neuron, kind=kinds)
    for kind in kinds:
        strengths = np.array([one.strength(kind, layer, neuron).max() for one in looked])
        expected = np.sort(strengths)[::-1][:3]
        rows = found[found["kind"] == kind]
        assert rows["rank"].tolist() == [1, 2, 3][: int((expected > 0).sum()) if kind in CASES else 3]
        size = rows["coefficient"].abs() if kind in CASES else rows["coefficient"] * (-1 if kind == "bottom" else 1)
        assert allclose(size, expected[: len(rows)], 1e-5)
        # At GELU's minimum, where sequences differ by rounding alone, the processor decides which comes first.
        assert rows["sequence"].nunique() == len(rows)
        assert allclose(size, strengths[rows["sequence"]], 1e-5)


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_every_example_is_what_stands_there(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    """Another position's numbers beside a context, of whatever kind of example."""
    found = store.examples(layer, neuron)
    assert set(found["kind"]) <= set(store.kinds)
    for row in found.itertuples():
        one = looked[row.sequence]
        (at,) = np.flatnonzero(one.at == row.position)
        assert allclose(row.coefficient, one.m[layer][at, neuron], 1e-5)
        if store.gated:
            assert allclose(row.gate, one.pre[layer][at, neuron], 1e-5)
            assert allclose(row.linear, one.linear[layer][at, neuron], 1e-5)
            assert row.case == CASES[2 * (not row.gate > 0) + (not row.linear > 0)]


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_stats(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    row = store.stats(layer, neuron).iloc[0]
    pre, m, linear = every(looked, layer, neuron)
    assert row["count"] == len(m)
    for prefix, values in (("", m), ("pre_", pre), *([("linear_", linear)] if store.gated else [])):
        centred = values - values.mean()
        std = values.std()
        shape = [(centred**3).mean() / std**3, (centred**4).mean() / std**4 - 3]
        expected = [values.mean(), std, *shape, values.min(), values.max()]
        names = [f"{prefix}{name}" for name in ("mean", "std", "skewness", "kurtosis", "min", "max")]
        assert allclose(row[names].astype(float), expected, 1e-4)
    assert row["firing_rate"] == (pre > 0).mean()
    assert row["zero_share"] == (m == 0).mean()
    assert row["dead"] == (pre <= 0).all()
    for case, column in enumerate(CASE_COLUMNS if store.gated else ()):
        inside = np.concatenate([in_case(one, case, layer)[:, neuron] for one in looked])
        assert row[f"share_{column}"] == pytest.approx(inside.mean(), abs=1e-9)
        assert row[f"mean_{column}"] == pytest.approx(
            m[inside].mean() if inside.any() else np.nan, abs=1e-6, nan_ok=True
        )


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_histogram(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    frame = store.histogram(layer, neuron)
    values = np.concatenate([one.m[layer][:, neuron] for one in looked])
    counts = np.bincount(bin_of(values), minlength=BINS)
    assert frame["count"].sum() == store.n_tokens == counts.sum()
    first = int(np.flatnonzero(edges() == frame["low"].iloc[0])[0])
    shifted = np.abs(counts[first : first + len(frame)] - frame["count"]).sum()
    assert shifted <= 0.01 * counts.sum()  # at an edge, rounding may choose the neighbour


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_by_token_and_by_position(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    _, m, _ = every(looked, layer, neuron)
    ids, at = (np.concatenate([getattr(one, name) for one in looked]) for name in ("ids", "at"))
    frame = store.by_token(layer, neuron)
    assert len(frame) == 8
    assert frame["mean"].is_monotonic_decreasing
    commonest = np.sort(np.bincount(ids))[::-1][:8]
    assert sorted(frame["count"], reverse=True) == commonest.tolist()
    for row in frame.itertuples():
        assert row.count == (ids == row.token_id).sum()
        assert allclose(row.mean, m[ids == row.token_id].mean(), 1e-5)
    frame = store.by_position(layer, neuron)
    buckets = np.array([int(p).bit_length() for p in at])
    names = [bucket_name(int(bucket), store.settings.context) for bucket in np.unique(buckets)]
    assert frame["positions"].tolist() == names
    assert frame["count"].sum() == len(m)
    for row, bucket in zip(frame.itertuples(), np.unique(buckets), strict=True):
        assert allclose(row.mean, m[buckets == bucket].mean(), 1e-5)


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_quantiles_and_random_positions(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    found = store.examples(layer, neuron, kind="quantile", k=8, bands=(0, 0.5, 1))
    for extreme, kind, sign in (("max", "top", 1), ("min", "bottom", -1)):
        rows = found[found["extreme"] == extreme]
        assert sorted(rows["sequence"]) == store.state.array("sequences").tolist()
        strengths = [looked[number].strength(kind, layer, neuron).max() for number in rows["sequence"]]
        assert allclose(sign * rows["coefficient"], strengths, 1e-5)
        split = rows.groupby("band_low")["coefficient"]
        assert (sign * split.get_group(0.5)).min() >= (sign * split.get_group(0.0)).max()
    assert len(store.examples(layer, neuron, kind="random")) == 4


# -- columns, order, indices ---------------------------------------------------------------------------------------


def test_columns(store: Store) -> None:
    """A contract: names do not drift."""
    assert list(store.stats().columns) == ["layer", "neuron", *STATS, *(GATE_STATS if store.gated else ())]
    assert list(store.examples(0, 0).columns) == [
        "layer",
        "neuron",
        "kind",
        "rank",
        "coefficient",
        "sequence",
        "position",
        "token",
        "context",
        "extreme",
        "band_low",
        "band_high",
        *(("gate", "linear", "case") if store.gated else ()),
    ]
    assert list(store.histogram(0, 0).columns) == ["low", "high", "count"]
    assert list(store.by_token(0, 0).columns) == ["token", "token_id", "count", "mean"]
    assert list(store.by_position(0, 0).columns) == ["positions", "count", "mean"]
    assert set(store.values(0, 0)["side"]) == ({"value", "key", "gate"} if store.gated else {"value"})


def test_stats_of_all_of_a_layer_and_of_one(tiny_store: Store) -> None:
    whole = tiny_store.stats()
    assert whole[["layer", "neuron"]].to_numpy().tolist() == [[i, j] for i in range(2) for j in range(64)]
    pd.testing.assert_frame_equal(tiny_store.stats(1), whole[whole["layer"] == 1].reset_index(drop=True))
    pd.testing.assert_frame_equal(tiny_store.stats(-1, -2), whole.iloc[[126]].reset_index(drop=True))


def test_every_neuron_has_its_own_numbers(store: Store, looked: list[Looked]) -> None:
    """Neighbours mixed up somewhere between a kernel and a row group."""
    for layer in range(2):
        highest = np.max([one.m[layer].max(0) for one in looked], axis=0)
        assert allclose(store.stats(layer)["max"], highest, 1e-5)
    for layer, neuron in [(0, 5), (1, 40)]:
        first = store.examples(layer, neuron, kind="top", k=1)
        assert first["coefficient"].item() == store.stats(layer, neuron)["max"].item()


def test_examples_say_where(tiny_store: Store, tiny: fm.Model) -> None:
    frame = tiny_store.examples(1, 17, context=2)
    for row in frame.itertuples():
        strings = tiny.token_strings([int(i) for i in tiny_store.sequences.sequence_tokens(row.sequence)])
        assert row.token == strings[row.position]
        assert row.context == "".join(strings[max(1, row.position - 2) : row.position + 3])
    assert frame.attrs["provenance"]["fingerprint"] == tiny.fingerprint


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda s: s.stats(2), ["layer 2", "0 to 1"]),
        (lambda s: s.stats(0, 64), ["neuron 64", "layer 0", "0 to 63"]),
        (lambda s: s.examples(-3, 0), ["layer -3", "0 to 1"]),
        (lambda s: s.histogram(1, -65), ["neuron -65", "0 to 63"]),
        (lambda s: s.by_token(5, 0), ["layer 5"]),
        (lambda s: s.by_position(0, 99), ["neuron 99"]),
        (lambda s: s.values(0, 64), ["neuron 64"]),
    ],
)
def test_out_of_range(tiny_store: Store, ask: Callable[[Store], object], named: list[str]) -> None:
    with refuses(OutOfRangeError, IndexError, *named, tiny_store.model):
        ask(tiny_store)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda s: s.stats(neuron=3), ["a neuron needs its layer"]),
        (lambda s: s.examples(0, 0, kind="best"), ["kind 'best'", "'top'", "'random'"]),
        (lambda s: s.examples(0, 0, kind=CASES[0]), [CASES[0], "gated"]),
        (lambda s: s.examples(0, 0, k=0), ["k must be at least 1"]),
        (lambda s: s.examples(0, 0, context=-1), ["context must be at least 0"]),
        (lambda s: s.examples(0, 0, bands=(0.5, 1)), ["bands must ascend"]),
    ],
)
def test_bad_questions(tiny_store: Store, ask: Callable[[Store], object], named: list[str]) -> None:
    with refuses(InputError, ValueError, *named):
        ask(tiny_store)


# -- opening -------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tiny_store: Store, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_store.folder, tmp_path / "store"))


def use(folder: Path) -> None:
    """Open a store and ask it everything."""
    store = open_store(folder)
    store.neuron(1, 17)
    store.verify()


def test_an_intact_store(copied: Path, tiny: fm.Model) -> None:
    use(copied)
    assert open_store(str(copied), model=tiny).n_tokens > 0


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_truncated_file(copied: Path, name: str) -> None:
    data = (copied / name).read_bytes()
    for left in (None, data[:0], data[: int(len(data) * 0.6)]):
        (copied / name).unlink(missing_ok=True)
        if left is not None:
            (copied / name).write_bytes(left)
        with refuses(FileError, OSError, str(copied)):
            open_store(copied)


def mended(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A manifest changed by somebody who also mends its checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    manifest["checksum"] = digest_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: list[tuple[Callable[[Path], object], list[str]]] = [
    (shutil.rmtree, ["there is no store"]),
    (lambda f: (f / "manifest.json").unlink(), ["no store", "ffnmem scan"]),
    (lambda f: (f / "manifest.json").write_text('{"kind": "recipe"}'), ["is no store", "recipe"]),
    (lambda f: (shutil.rmtree(f), f.write_text("")), ["store"]),
    (FOLDER.mark, ["unfinished scan", "run the same scan again"]),
    (lambda f: mended(f, lambda m: m.update(schema=3)), ["schema 3", "up to 2", "newer"]),
    (lambda f: mended(f, lambda m: m.update(schema=1)), ["earlier version", "scan again, into a new folder"]),
    (lambda f: replace_by_folder(f / "stats.parquet"), ["stats.parquet"]),
    *(
        (lambda f, text=text: (f / "manifest.json").write_text(text, "latin-1"), ["manifest.json"])  # type: ignore
        for text in ("[]", "3", "null", '{"kind": "ffnmem store"}', '{"kind": "ffnmem store", "schema": "x"}', "\xff")
    ),
]


@pytest.mark.parametrize(("breaks", "named"), BROKEN)
def test_what_is_no_store(copied: Path, breaks: Callable[[Path], object], named: list[str]) -> None:
    breaks(copied)
    with refuses(FileError, OSError, str(copied), *named):
        open_store(copied)


def test_store_and_model_name_each_other(tiny_store: Store, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with refuses(FileError, OSError, "is a model", "fm.load"):
        open_store(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "config.json", "fm.open_store"):
        fm.load(tiny_store.folder)


def test_another_model(copied: Path, make_tiny: Callable[..., fm.Model]) -> None:
    """Numbers of one model would be shown for another."""
    model = make_tiny()
    model.ffn[0].values.data.mul_(2)
    model._fingerprint = None
    store = open_store(copied)
    with refuses(
        InputError, ValueError, "is a store of", model.fingerprint, store.fingerprint, f"--model {store.model}"
    ):
        open_store(copied, model=model)


def test_another_corpus(copied: Path, tiny: fm.Model, tmp_path: Path) -> None:
    """Contexts would be cut from another text."""
    shutil.rmtree(copied / "corpus")
    fm.corpus.packing.pack(["The city of Rome"] * 40, tiny, copied / "corpus")  # type: ignore[attr-defined]
    with refuses(FileError, OSError, str(copied / "corpus"), "another corpus"):
        open_store(copied)


def test_opened_again_where_replaced(tiny_store: Store, tmp_path: Path) -> None:
    """A table written anew in the same session must not be read as it was."""
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path / "own"))
    table = pd.read_parquet(store.folder / "stats.parquet")
    table.to_parquet(store.folder / "kept.parquet")
    before = store.opened("kept.parquet")
    assert store.opened("kept.parquet") is before
    with replacing(store.folder / "kept.parquet") as temporary:
        table.assign(mean=7.0).to_parquet(temporary)
    assert store.opened("kept.parquet") is not before
    assert set(store.table("kept.parquet")["mean"]) == {7.0}


# -- believed only whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stats.parquet", "values.parquet", "tokenizer.json"])
def test_another_scan_s_table_of_the_same_size(copied: Path, name: str) -> None:
    """Opening reads no table; the first question to it does, and refuses one that is not the scan's."""
    path = copied / name
    path.write_bytes(path.read_bytes()[::-1])
    store = open_store(copied)
    asked = {
        "stats.parquet": lambda: store.stats(1, 17),
        "values.parquet": lambda: store.search("e"),
        "tokenizer.json": lambda: store.by_token(1, 17),
    }
    with refuses(FileError, OSError, str(path), "checksum"):
        asked[name]()


def test_opening_reads_no_table_and_asking_checks_it_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of gigabytes would take seconds to open, or every card would."""
    read: list[str] = []

    def counted(path: Path) -> str:
        read.append(path.name)
        return file_hash(path)

    monkeypatch.setattr(manifest_module, "file_hash", counted)
    store = open_store(copied)
    assert read == []
    for neuron in (3, 4):
        store.neuron(1, neuron)
    assert sorted(read) == ["stats.parquet", "tokenizer.json", "values.parquet"]
