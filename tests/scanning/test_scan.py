"""``scan`` as its users call it: equal to looking everywhere, resumable, deterministic, flat."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.scanning import passes

from ..helpers import allclose, refuses
from .corpora import SMALL, digests, texts


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return texts(60)


@pytest.fixture(scope="module")
def store(tiny: fm.Model, corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(tiny, corpus, tmp_path_factory.mktemp("stores") / "plain", **SMALL)


def test_that_other_batch_sizes_change_rounding_only(
    tiny: fm.Model, corpus: list[str], store: fm.scanning.Store, tmp_path: Path
) -> None:
    other = fm.scan(tiny, corpus, tmp_path / "small batches", batch_tokens=48, **SMALL)
    numbers = store.stats().columns.drop(["layer", "neuron", "dead"])
    assert allclose(other.stats()[numbers], store.stats()[numbers], 1e-4)
    for kind in ("top", "bottom", "quantile", "random"):
        a, b = other.examples(1, 3, kind=kind), store.examples(1, 3, kind=kind)
        assert allclose(a["coefficient"], b["coefficient"], 1e-5)
        assert a["sequence"].tolist() == b["sequence"].tolist()


def test_that_examples_after_a_bfloat16_pass_are_exact_in_float32(
    tiny: fm.Model, corpus: list[str], store: fm.scanning.Store, tmp_path: Path
) -> None:
    half = fm.scan(tiny, corpus, tmp_path / "half", dtype="bfloat16", **SMALL)
    assert half.manifest["rescored_in"] == "float32"
    assert half.settings.candidates == 2 * SMALL["k"]
    agree = total = 0
    for layer, neuron in [(0, 0), (0, 40), (1, 3), (1, 63)]:
        frame = half.examples(layer, neuron)
        for row in frame.itertuples():
            exact = fm.capture(tiny, corpus[row.sequence]).coefficients[layer][0, row.position, neuron]
            assert allclose(row.coefficient, exact, 1e-6)
        for kind in ("top", "bottom"):
            a, b = frame[frame["kind"] == kind], store.examples(layer, neuron, kind=kind)
            assert (a["coefficient"].diff().dropna() * (1 if kind == "bottom" else -1) >= 0).all()
            agree, total = agree + len(set(a["sequence"]) & set(b["sequence"])), total + len(a)
    assert agree >= 0.9 * total  # twice as many candidates as kept: the true winners are among them
    assert allclose(half.stats()["mean"], store.stats()["mean"], 1e-2)


def test_that_a_finished_store_is_opened_and_not_scanned_again(
    tiny: fm.Model, corpus: list[str], store: fm.scanning.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes.Scanner, "scan", lambda *_: pytest.fail("scanned again"))
    before = digests(store.folder)
    again = fm.scan(tiny, corpus, store.folder, **SMALL)
    assert again.n_tokens == store.n_tokens
    assert digests(store.folder) == before


def test_that_a_store_of_which_something_is_gone_is_mended(tiny: fm.Model, tmp_path: Path) -> None:
    """What is said of a damaged store, "scan again", would not help: the same scan would open it as it is."""
    whole = fm.scan(tiny, ["The city of Paris"], tmp_path / "out", **SMALL)
    before = digests(whole.folder)
    (whole.folder / "stats.parquet").unlink()
    (whole.folder / "values.parquet").write_bytes(b"PAR1")
    fm.scan(tiny, ["The city of Paris"], whole.folder, **SMALL).verify()
    assert digests(whole.folder) == before
    manifest = (whole.folder / "manifest.json").read_text("utf-8")
    (whole.folder / "manifest.json").write_text(manifest.replace('"tokens"', '"tokems"'), "utf-8")
    fm.scan(tiny, ["The city of Paris"], whole.folder, **SMALL).verify()
    assert digests(whole.folder) == before


def test_that_the_seed_changes_the_sample_and_nothing_else(
    tiny: fm.Model, corpus: list[str], store: fm.scanning.Store, tmp_path: Path
) -> None:
    other = fm.scan(tiny, corpus, tmp_path / "seeded", seed=1, **SMALL)
    assert digests(other.folder)["stats.parquet"] == digests(store.folder)["stats.parquet"]
    assert other.examples(1, 3, kind="top").equals(store.examples(1, 3, kind="top"))
    drawn = [s.examples(0, 0, kind="random")["sequence"].tolist() for s in (store, other)]
    assert drawn[0] != drawn[1]


def test_that_a_folder_keeps_what_it_holds(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], corpus: list[str], store: fm.scanning.Store, tmp_path: Path
) -> None:
    before = digests(store.folder)
    with refuses(FileError, OSError, "another scan", "k 5 and 4"):
        fm.scan(tiny, corpus, store.folder, **{**SMALL, "k": 5})
    changed = make_tiny()
    changed.ffn[0].values.data[0, 0] += 1
    with refuses(FileError, OSError, "another scan", "model"):
        fm.scan(changed, corpus, store.folder, **SMALL)
    assert digests(store.folder) == before
    (tmp_path / "notes.txt").write_text("mine")
    with refuses(FileError, OSError, str(tmp_path), "other things"):
        fm.scan(tiny, corpus, tmp_path, **SMALL)
    with refuses(FileError, OSError, "is a file"):
        fm.scan(tiny, corpus, tmp_path / "notes.txt", **SMALL)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k": 10_001}, ["k must be at most 10,000", "10001"]),
        ({"k": 0}, ["k must be at least 1"]),
        ({"context": 33}, ["context 33", "at most 32"]),
        ({"context": 1}, ["context", "at least 2", "1"]),
        ({"dtype": "float16"}, ["dtype 'float16'", "'float32' or 'bfloat16'"]),
        ({"sample": 0}, ["sample must be at least 1"]),
        ({"draws": -1}, ["draws must be at least 1"]),
        ({"batch_tokens": 0}, ["batch_tokens must be at least 1"]),
        ({"seed": -1}, ["seed must be at least 0"]),
        ({"seed": 1 << 62}, ["seed must be at most 4,611,686,018,427,387,903"]),
        ({"shard": (2, 2)}, ["shard 2 of 2"]),
        ({"workers": 0}, ["workers"]),
        ({"engine": "spark"}, ["spark", "ray"]),
    ],
)
def test_that_settings_that_cannot_be_are_refused(
    tiny: fm.Model, tmp_path: Path, change: dict[str, Any], named: list[str]
) -> None:
    with refuses(InputError, ValueError, *named):
        fm.scan(tiny, ["The city of Paris"], tmp_path / "out", **{**SMALL, **change})


def test_that_special_tokens_and_bos_are_in_no_statistic(tiny: fm.Model, tmp_path: Path) -> None:
    store = fm.scan(tiny, ["The city", " of Paris"], tmp_path / "out", **SMALL)
    assert store.n_tokens == 4  # of six: each sequence begins with BOS
    examples = store.examples(0, 5)
    assert (examples["position"] > 0).all()
    assert 0 not in store.by_token(0, 5)["token_id"].tolist()
    assert store.by_position(0, 5)["positions"].tolist() == ["1", "2–3"][: len(store.by_position(0, 5))]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("neuron", [0, 3])
def test_that_a_model_with_nan_is_named(
    make_tiny: Callable[..., fm.Model], tmp_path: Path, value: float, neuron: int
) -> None:
    broken = make_tiny()
    broken.ffn[1].key_bias.data[neuron] = value
    with refuses(InputError, ValueError, "layer 1", "sequences 0 to"):
        fm.scan(broken, ["The city of Paris"], tmp_path / "out", **SMALL)


def test_that_memory_does_not_grow_with_the_corpus(tiny: fm.Model, tmp_path: Path) -> None:
    def documents(count: int) -> Iterator[str]:
        return (text for seed in range(count) for text in texts(1, seed, longest=25))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is read from /proc, which this system has not")
    fm.scan(tiny, documents(500), tmp_path / "small", **SMALL)
    before = resident()
    large = fm.scan(tiny, documents(5_000), tmp_path / "large", **SMALL)
    kept = large.n_tokens * 64 * 4 * 4  # what it would take if coefficients were kept: two layers, pre and post
    assert resident() - before <= 0.5 * kept


def test_that_a_mistyped_folder_does_not_cost_the_store_its_text(
    tiny: fm.Model, corpus: list[str], store: fm.scanning.Store, tmp_path: Path
) -> None:
    before = digests(store.folder)
    packed = fm.corpus.pack(corpus[:5], tiny, tmp_path / "packed")
    for source in (corpus[:5], packed, iter(corpus[:5])):
        with refuses(FileError, OSError, "another scan", "corpus"):
            fm.scan(tiny, source, store.folder, **SMALL)
    assert fm.scan(tiny, iter(corpus), store.folder, **SMALL).complete  # the same text, from a source of one use
    assert digests(store.folder) == before


def test_that_another_shard_after_half_a_rescore_starts_it_anew(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffnmem.corpus.batches.UNIT", 20)
    options = {"dtype": "bfloat16", **SMALL}
    whole = fm.scan(tiny, texts(60), tmp_path / "whole", **options)
    keep, ran = passes.Wanted.add, []

    def stop(self: passes.Wanted, *arguments: Any) -> None:
        ran.append(1)
        if len(ran) == 20:
            raise KeyboardInterrupt
        keep(self, *arguments)

    monkeypatch.setattr(passes.Wanted, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(tiny, texts(60), tmp_path / "again", shard=(0, 2), checkpoint_seconds=0.0, **options)
    again = fm.scan(tiny, texts(60), tmp_path / "again", **options)
    assert digests(again.folder) == digests(whole.folder)


def test_that_special_tokens_are_part_of_a_scan(
    tiny_hf: Any, tokenizer: Any, corpus: list[str], store: fm.scanning.Store
) -> None:
    import copy

    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"additional_special_tokens": ["ĠParis"]})
    model = fm.load(tiny_hf, tokenizer=other)
    with refuses(FileError, OSError, "another"):
        fm.scan(model, corpus, store.folder, **SMALL)
