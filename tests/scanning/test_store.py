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
from ffnmem.core.checked_files import digest_of, file_hash, write_tensors
from ffnmem.core.errors import FfnmemError, FileError, InputError, ModelNotFoundError
from ffnmem.core.files import replacing
from ffnmem.core.types import CASES
from ffnmem.scanning import Store, open_store
from ffnmem.scanning import manifest as manifest_module
from ffnmem.scanning.manifest import FOLDER, SCHEMA
from ffnmem.scanning.state import BINS, edges
from ffnmem.scanning.state import COLUMNS as CASE_COLUMNS
from ffnmem.scanning.statistics import GATE_STATS, STATS, bucket_name
from ffnmem.scanning.store import QUANTILES, RATES

from ..helpers import allclose, refuses
from ..neurons.gated import made, scanned
from .states import bin_of

NEURONS = [(0, 0), (0, 33), (1, 17), (1, 63)]


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


@pytest.fixture(scope="module", params=["classic", "gemma2", pytest.param("llama", marks=pytest.mark.exhaustive)])
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


def every(looked: list[Looked], name: str, layer: int) -> np.ndarray:
    """``[tokens, d_mlp]``, of all sequences."""
    return np.concatenate([getattr(one, name)[layer] for one in looked]).astype(np.float64)


# -- answers against looking everywhere ------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_examples(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    """The strongest sequences at both ends, and of a gated neuron in each sign case; and of whatever kind of example,
    no other position's numbers."""
    found = store.examples(layer, neuron)
    assert set(found["kind"]) <= set(store.kinds)
    for kind in store.kinds:
        if kind in ("quantile", "random"):
            continue
        strengths = np.array([one.strength(kind, layer, neuron).max() for one in looked])
        expected = np.sort(strengths)[::-1][:3]
        rows = found[found["kind"] == kind]
        assert rows["rank"].tolist() == [1, 2, 3][: int((expected > 0).sum()) if kind in CASES else 3]
        size = rows["coefficient"].abs() if kind in CASES else rows["coefficient"] * (-1 if kind == "bottom" else 1)
        assert allclose(size, expected[: len(rows)], 1e-5)
        # At GELU's minimum, where sequences differ by rounding alone, the processor decides which comes first.
        assert rows["sequence"].nunique() == len(rows)
        assert allclose(size, strengths[rows["sequence"]], 1e-5)
    for row in found.itertuples():
        one = looked[row.sequence]
        (at,) = np.flatnonzero(one.at == row.position)
        assert allclose(row.coefficient, one.m[layer][at, neuron], 1e-5)
        if store.gated:
            assert allclose(row.gate, one.pre[layer][at, neuron], 1e-5)
            assert allclose(row.linear, one.linear[layer][at, neuron], 1e-5)
            assert row.case == CASES[2 * (not row.gate > 0) + (not row.linear > 0)]


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_quantiles_and_random_positions(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    """All of the sample in its bands, the strongest band first; of each, evenly spread."""
    whole = store.examples(layer, neuron, kind="quantile", k=8, bands=(0, 0.5, 1))
    few = store.examples(layer, neuron, kind="quantile", k=2, bands=(0, 0.5, 1))
    for extreme, kind, sign in (("max", "top", 1), ("min", "bottom", -1)):
        rows = whole[whole["extreme"] == extreme]
        assert sorted(rows["sequence"]) == store.state.array("sequences").tolist()
        strengths = [looked[number].strength(kind, layer, neuron).max() for number in rows["sequence"]]
        assert allclose(sign * rows["coefficient"], strengths, 1e-5)
        assert (sign * rows["coefficient"].diff().dropna() <= 0).all()
        assert rows["band_low"].tolist() == [0.5] * 4 + [0.0] * 4
        assert rows["band_high"].tolist() == [1.0] * 4 + [0.5] * 4
        assert rows["rank"].tolist() == [1, 2, 3, 4] * 2
        ends = few[few["extreme"] == extreme]
        assert ends["coefficient"].tolist() == rows["coefficient"].iloc[[0, 3, 4, 7]].tolist()
    assert len(store.examples(layer, neuron, kind="random")) == 4


def test_statistics(store: Store, looked: list[Looked]) -> None:
    """Neighbours mixed up somewhere between a kernel and a row group, or another definition of a moment."""
    for layer in range(2):
        stats = store.stats(layer)
        pre, m, linear = (every(looked, name, layer) for name in ("pre", "m", "linear"))
        assert (stats["count"] == len(m)).all()
        for prefix, values in (("", m), ("pre_", pre), *([("linear_", linear)] if store.gated else [])):
            centred, std = values - values.mean(0), values.std(0)
            shape = [(centred**3).mean(0) / std**3, (centred**4).mean(0) / std**4 - 3]
            expected = [values.mean(0), std, *shape, values.min(0), values.max(0)]
            for name, its in zip(("mean", "std", "skewness", "kurtosis", "min", "max"), expected, strict=True):
                assert allclose(stats[f"{prefix}{name}"], its, 1e-4)
        assert (stats["firing_rate"] == (pre > 0).mean(0)).all()
        assert (stats["zero_share"] == (m == 0).mean(0)).all()
        assert (stats["dead"] == (pre <= 0).all(0)).all()
        for case, column in enumerate(CASE_COLUMNS if store.gated else ()):
            inside = np.concatenate([in_case(one, case, layer) for one in looked])
            assert allclose(stats[f"share_{column}"], inside.mean(0), 1e-9)
            with np.errstate(invalid="ignore"):
                mean = np.where(inside, m, 0).sum(0) / inside.sum(0)
            assert (stats[f"mean_{column}"].isna() == np.isnan(mean)).all()
            assert allclose(stats[f"mean_{column}"].fillna(0), np.nan_to_num(mean), 1e-6)


@pytest.mark.parametrize(("layer", "neuron"), NEURONS)
def test_histogram_means_by_token_and_by_position(store: Store, looked: list[Looked], layer: int, neuron: int) -> None:
    m = every(looked, "m", layer)[:, neuron]
    frame = store.histogram(layer, neuron)
    counts = np.bincount(bin_of(m.astype(np.float32)), minlength=BINS)
    assert frame["count"].sum() == store.n_tokens == counts.sum()
    first = int(np.flatnonzero(edges() == frame["low"].iloc[0])[0])
    shifted = np.abs(counts[first : first + len(frame)] - frame["count"]).sum()
    assert shifted <= 0.01 * counts.sum()  # at an edge, rounding may choose the neighbour
    ids, at = (np.concatenate([getattr(one, name) for one in looked]) for name in ("ids", "at"))
    frame = store.by_token(layer, neuron)
    assert len(frame) == 8
    assert frame["mean"].is_monotonic_decreasing
    assert sorted(frame["count"], reverse=True) == np.sort(np.bincount(ids))[::-1][:8].tolist()
    for row in frame.itertuples():
        assert row.count == (ids == row.token_id).sum()
        assert allclose(row.mean, m[ids == row.token_id].mean(), 1e-5)
    frame = store.by_position(layer, neuron)
    buckets = np.array([int(p).bit_length() for p in at])
    names = [bucket_name(int(bucket), store.settings.context) for bucket in np.unique(buckets)]
    assert frame["positions"].tolist() == names
    for row, bucket in zip(frame.itertuples(), np.unique(buckets), strict=True):
        assert row.count == (buckets == bucket).sum()
        assert allclose(row.mean, m[buckets == bucket].mean(), 1e-5)


# -- columns, order, indices, what it says of itself -----------------------------------------------------------------


def test_columns(store: Store) -> None:
    """A contract: names do not drift."""
    assert list(store.stats().columns) == ["layer", "neuron", *STATS, *(GATE_STATS if store.gated else ())]
    first = ["layer", "neuron", "kind", "rank", "coefficient", "sequence", "position", "token", "context"]
    more = ["extreme", "band_low", "band_high", *(("gate", "linear", "case") if store.gated else ())]
    assert list(store.examples(0, 0).columns) == [*first, *more]
    assert list(store.histogram(0, 0).columns) == ["low", "high", "count"]
    assert list(store.by_token(0, 0).columns) == ["token", "token_id", "count", "mean"]
    assert list(store.by_position(0, 0).columns) == ["positions", "count", "mean"]
    assert set(store.values(0, 0)["side"]) == ({"value", "key", "gate"} if store.gated else {"value"})


def test_all_of_a_layer_and_one(tiny_store: Store, tiny: fm.Model) -> None:
    whole = tiny_store.stats()
    assert whole[["layer", "neuron"]].to_numpy().tolist() == [[i, j] for i in range(2) for j in range(64)]
    pd.testing.assert_frame_equal(tiny_store.stats(1), whole[whole["layer"] == 1].reset_index(drop=True))
    for place in ((-1, -2), ("1.62",)):
        pd.testing.assert_frame_equal(tiny_store.stats(*place), whole.iloc[[126]].reset_index(drop=True))
    frame = tiny_store.examples(1, 17, context=2)
    for row in frame.itertuples():
        strings = tiny.token_strings([int(i) for i in tiny_store.sequences.sequence_tokens(row.sequence)])
        assert row.token == strings[row.position]
        assert row.context == "".join(strings[max(1, row.position - 2) : row.position + 3])
    assert frame.attrs["provenance"]["fingerprint"] == tiny.fingerprint


def test_what_it_says_of_itself(store: Store) -> None:
    rows, stats = store.to_frame(), store.stats()
    assert list(rows.columns) == ["layer", "neurons", "never_fired", *RATES]
    for row in rows.to_dict("records"):
        its = stats[stats["layer"] == row["layer"]]
        assert (row["neurons"], row["never_fired"]) == (len(its), its["dead"].sum())
        assert allclose([row[name] for name in RATES], np.quantile(its["firing_rate"], QUANTILES), 1e-12)
    found = store.to_dict()
    assert found["layers"] == rows.to_dict("records")
    if store.gated:
        shares = [case["share"] for case in found["cases"]]
        assert allclose(shares, [stats[f"share_{c}"].mean() for c in CASE_COLUMNS], 1e-12)
    shard = Store(store.folder, {**store.manifest, "units": {"done": 1, "total": 3}})
    for one, part in ((store, False), (shard, True)):
        assert ("This is 1 of 3 parts" in one.verdict) == part
    assert f"{store.n_tokens:,} tokens" in store.verdict
    best = stats.loc[stats["kurtosis"].idxmax()]
    assert f"{int(best['layer'])}.{int(best['neuron'])}." in store.verdict
    assert str(store.folder) in repr(store)


@pytest.mark.parametrize(
    ("ask", "builtin", "named"),
    [
        (lambda s: s.stats(2), IndexError, ["layer 2", "0 to 1"]),
        (lambda s: s.stats(0, 64), IndexError, ["neuron 64", "layer 0", "0 to 63"]),
        (lambda s: s.examples(-3, 0), IndexError, ["layer -3", "0 to 1"]),
        (lambda s: s.by_position(0, 99), IndexError, ["neuron 99"]),
        (lambda s: s.stats(neuron=3), ValueError, ["a neuron needs its layer"]),
        (lambda s: s.examples(0, 0, kind="best"), ValueError, ["kind 'best'", "'top'", "'random'"]),
        (lambda s: s.examples(0, 0, kind=CASES[0]), ValueError, [CASES[0], "gated"]),
        (lambda s: s.examples(0, 0, k=0), ValueError, ["k must be at least 1"]),
        (lambda s: s.examples(0, 0, context=-1), ValueError, ["context must be at least 0"]),
        (lambda s: s.examples(0, 0, bands=(0.5, 1)), ValueError, ["bands must ascend"]),
        (lambda s: s.places([]), ValueError, ["name a neuron"]),
    ],
)
def test_mistakes(
    tiny_store: Store, ask: Callable[[Store], object], builtin: type[Exception], named: list[str]
) -> None:
    with refuses(FfnmemError, builtin, *named):
        ask(tiny_store)


# -- opening ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tiny_store: Store, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_store.folder, tmp_path / "store"))


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "state.safetensors", "stats.parquet", "values.parquet", "tokenizer.json"),
        *(f"corpus/{name}" for name in ("corpus.json", "tokens.bin", "documents.bin", "counts.bin")),
    ],
)
def test_a_missing_or_truncated_file(copied: Path, name: str) -> None:
    write_tensors(copied / "lens.safetensors", {"kind": "of another part", "schema": 7}, {"a": np.ones(3)})
    open_store(str(copied)).verify()  # with what was measured since
    data = (copied / name).read_bytes()
    for left in (None, data[:0], data[: int(len(data) * 0.6)]):
        (copied / name).unlink(missing_ok=True)
        if left is not None:
            (copied / name).write_bytes(left)
        with refuses(FileError, OSError, str(copied)):
            open_store(copied)


def mended(folder: Path, **changes: Any) -> None:
    """A manifest changed by somebody who also mends its checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.update(changes)
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
    (lambda f: mended(f, schema=SCHEMA + 1), [f"schema {SCHEMA + 1}", f"reads {SCHEMA}", "newer"]),
    (lambda f: mended(f, schema=SCHEMA - 1), [f"reads {SCHEMA}", "scan again, into a new folder"]),
    (lambda f: replace_by_folder(f / "stats.parquet"), ["stats.parquet"]),
    (lambda f: (f / "manifest.json").write_text("[]"), ["manifest.json"]),
    (lambda f: (f / "manifest.json").write_bytes(b"\xff"), ["manifest.json"]),
]


@pytest.mark.parametrize(("breaks", "named"), BROKEN)
def test_what_is_no_store(copied: Path, breaks: Callable[[Path], object], named: list[str]) -> None:
    breaks(copied)
    with refuses(FileError, OSError, str(copied), *named):
        open_store(copied)


def test_another_model_or_corpus(
    copied: Path, tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Numbers of one model would be shown for another, or contexts cut from another text."""
    (tmp_path / "config.json").write_text("{}")
    with refuses(FileError, OSError, "is a model", "fm.load"):
        open_store(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "config.json", "fm.open_store"):
        fm.load(copied)
    model, store = make_tiny(), open_store(copied)
    model.ffn[0].values.data.mul_(2)
    model._fingerprint = None
    with refuses(
        InputError, ValueError, "is a store of", model.fingerprint, store.fingerprint, f"--model {store.model}"
    ):
        open_store(copied, model=model)
    shutil.rmtree(copied / "corpus")
    fm.corpus.pack(["The city of Rome"] * 40, tiny, copied / "corpus")
    with refuses(FileError, OSError, str(copied / "corpus"), "another corpus"):
        open_store(copied)


@pytest.mark.parametrize("name", ["stats.parquet", "values.parquet", "tokenizer.json"])
def test_another_scan_s_table_of_the_same_size(copied: Path, name: str) -> None:
    """Opening reads no table; the first question to it does, and refuses one that is not the scan's."""
    path = copied / name
    path.write_bytes(path.read_bytes()[::-1])
    store = open_store(copied)
    asked = {
        "stats.parquet": lambda: store.stats(1, 17),
        "values.parquet": lambda: fm.neurons.search(store, "e"),
        "tokenizer.json": lambda: store.by_token(1, 17),
    }
    with refuses(FileError, OSError, str(path), "checksum"):
        asked[name]()


def test_opening_reads_no_table_and_asking_checks_it_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of gigabytes would take seconds to open, or every card would; a table written anew is read anew."""
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
    table = pd.read_parquet(store.folder / "stats.parquet")
    table.to_parquet(store.folder / "kept.parquet")
    before = store.opened("kept.parquet")
    assert store.opened("kept.parquet") is before
    with replacing(store.folder / "kept.parquet") as temporary:
        table.assign(mean=7.0).to_parquet(temporary)
    assert set(store.table("kept.parquet")["mean"]) == {7.0}
