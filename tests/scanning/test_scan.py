"""``scan`` as its users call it: deterministic, resumable, flat; what it reads, keeps, refuses and leaves behind."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.corpus import batches, pack
from ffnmem.corpus.excerpts import TextSettings
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning import passes
from ffnmem.scanning.jobs import most_frequent, prepared
from ffnmem.scanning.manifest import FOLDER, MANIFEST
from ffnmem.scanning.state import NOWHERE, sequence_of
from ffnmem.scanning.state_file import ScanProgress, StateFile, save_state
from ffnmem.scanning.tables import STATE, TOKENIZER

from ..helpers import allclose, refuses
from ..neurons.gated import made
from .corpora import SMALL, digests, texts

CORPUS = texts(60)


@pytest.fixture(scope="module")
def store(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(tiny, CORPUS, tmp_path_factory.mktemp("stores") / "plain", **SMALL)


@pytest.fixture(scope="module")
def half(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(tiny, CORPUS, tmp_path_factory.mktemp("stores") / "half", dtype="bfloat16", **SMALL)


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_the_manifest_has_all_that_the_numbers_depend_on(tiny: fm.Model, store: fm.scanning.Store) -> None:
    manifest = json.loads((store.folder / MANIFEST).read_text("utf-8"))
    assert manifest["fingerprint"] == tiny.fingerprint
    assert manifest["corpus"]["hash"] == store.corpus.hash
    assert (manifest["basis"], manifest["rescored_in"]) == ("folded", None)
    names = ("seed", "prepend_bos", "scan_dtype")
    assert [manifest["provenance"][name] for name in names] == [0, True, "float32"]
    there = {path.name for path in store.folder.iterdir() if path.is_file()}
    assert set(manifest["files"]) == there - {MANIFEST, ".lock"}
    assert str(store.folder.parent) not in json.dumps(manifest)  # where it was made is nobody's business
    ids = tiny.tokenize("The Eiffel Tower, Zürich", prepend_bos=False)
    assert store.contexts.strings(ids) == tiny.token_strings(ids)
    content = json.loads((store.folder / TOKENIZER).read_text("utf-8"))
    assert content["truncation"] is content["padding"] is None


def test_special_tokens_and_bos_are_in_no_statistic(tiny: fm.Model, tmp_path: Path) -> None:
    store = fm.scan(tiny, ["The city", " of Paris"], tmp_path / "out", **SMALL)
    assert store.n_tokens == 4  # of six: each sequence begins with BOS
    assert (store.examples(0, 5)["position"] > 0).all()
    assert 0 not in store.by_token(0, 5)["token_id"].tolist()
    assert store.by_position(0, 5)["positions"].tolist() == ["1", "2–3"][: len(store.by_position(0, 5))]
    packed = pack(["The the the city city"], tiny, tmp_path / "packed")
    assert tiny.token_strings(list(most_frequent(packed, tiny, 2))) == [" the", " city"]
    assert most_frequent(packed, tiny, 0) == ()
    everything = most_frequent(packed, tiny, 10_000)
    assert not set(everything) & tiny.special_token_ids
    assert sum(np.array(packed.token_counts)[list(everything)]) == packed.n_tokens


def test_batches_change_rounding_only_and_the_seed_the_sample_only(
    tiny: fm.Model, store: fm.scanning.Store, tmp_path: Path
) -> None:
    other = fm.scan(tiny, CORPUS, tmp_path / "small batches", batch_tokens=48, **SMALL)
    numbers = store.stats().columns.drop(["layer", "neuron", "dead"])
    assert allclose(other.stats()[numbers], store.stats()[numbers], 1e-4)
    for kind in ("top", "bottom", "quantile", "random"):
        a, b = other.examples(1, 3, kind=kind), store.examples(1, 3, kind=kind)
        assert allclose(a["coefficient"], b["coefficient"], 1e-5)
        assert a["sequence"].tolist() == b["sequence"].tolist()
    other = fm.scan(tiny, CORPUS, tmp_path / "seeded", seed=1, **SMALL)
    assert digests(other.folder)["stats.parquet"] == digests(store.folder)["stats.parquet"]
    assert other.examples(1, 3, kind="top").equals(store.examples(1, 3, kind="top"))
    drawn = [s.examples(0, 0, kind="random")["sequence"].tolist() for s in (store, other)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("kind", ["classic", "gated"])
def test_examples_after_a_bfloat16_pass_are_exact_in_float32(
    kind: str, tiny: fm.Model, store: fm.scanning.Store, half: fm.scanning.Store, tmp_path: Path
) -> None:
    """Numbers of the half-precision pass would be shown as exact, or an example in another case than its numbers'."""
    model = tiny
    if kind == "gated":
        model = made("gemma2")
        store, half = (
            fm.scan(model, CORPUS, tmp_path / dtype, dtype=dtype, **SMALL) for dtype in ("float32", "bfloat16")
        )
    assert half.manifest["rescored_in"] == "float32"
    agree = total = 0
    for layer, neuron in [(0, 0), (1, 3), (1, 63)]:
        frame, whole = half.examples(layer, neuron), store.examples(layer, neuron)
        for row in frame.itertuples():
            capture = fm.capture(model, CORPUS[row.sequence])
            at = (layer, (0, row.position, neuron))
            assert allclose(row.coefficient, capture.coefficients[at[0]][at[1]], 1e-6)
            if kind == "gated":
                assert allclose([row.gate, row.linear], [p[at[0]][at[1]] for p in (capture.pre, capture.linear)], 1e-5)
                assert row.kind not in half.kinds[4:] or row.case == row.kind
        for name in half.kinds:
            a, b = (rows[rows["kind"] == name] for rows in (frame, whole))
            if name in ("quantile", "random"):
                assert allclose(a["coefficient"], b["coefficient"], 1e-5)
                continue
            strength = (
                a["coefficient"] * (-1 if name == "bottom" else 1)
                if name in ("top", "bottom")
                else abs(a["coefficient"])
            )
            assert (strength.diff().dropna() <= 0).all()
            agree, total = agree + len(set(a["sequence"]) & set(b["sequence"])), total + len(b)
    assert agree >= 0.9 * total  # twice as many candidates as kept: the true winners are among them
    assert allclose(half.stats()["mean"], store.stats()["mean"], 1e-2)
    for index in range(2):
        layer = half.state.layer(index)
        assert layer.kept.shape[2] == half.settings.candidates == 2 * SMALL["k"]
        real = layer.kept_at != NOWHERE
        assert np.isfinite(layer.exact[real]).all()
        assert (sequence_of(layer.kept_at[real]) == sequence_of(layer.exact_at[real])).all()


def test_memory_does_not_grow_with_the_corpus(tiny: fm.Model, tmp_path: Path) -> None:
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


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("classic", "float32"), ("gated", "bfloat16")])
def test_an_interrupted_scan_goes_on_to_the_same_bytes(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, kind: str
) -> None:
    """Nothing that was checkpointed runs twice; progress is told in tokens up to the end."""
    model = tiny if kind == "classic" else made("llama")
    options: dict[str, Any] = {"dtype": dtype, "batch_tokens": 64, **SMALL}
    ran: list[int] = []
    run = LayerPass.run
    monkeypatch.setattr("ffnmem.corpus.passes.check_same", lambda *_: None)  # runs, but scans nothing
    stopping = False

    def counting(self: LayerPass, *rest: Any, **more: Any) -> None:
        ran.append(1)
        if stopping and len(ran) % 7 == 0:
            raise KeyboardInterrupt
        run(self, *rest, **more)

    monkeypatch.setattr(LayerPass, "run", counting)
    told: list[tuple[str, int, int]] = []
    whole = fm.scan(model, CORPUS, tmp_path / "whole", progress=lambda *news: told.append(news), **options)
    for phase in ("scan", "project", *(["rescore"] if dtype == "bfloat16" else [])):
        mine = [(done, total) for name, done, total in told if name == phase]
        assert mine == sorted(mine)
        assert mine[-1][0] == mine[-1][1]
    assert next(total for name, _, total in told if name == "scan") == whole.corpus.n_tokens
    needed, stopping = len(ran), True
    ran.clear()
    for _ in range(60):
        try:
            again = fm.scan(model, CORPUS, tmp_path / "again", checkpoint_seconds=0.0, **options)
            break
        except KeyboardInterrupt:
            continue
    assert len(ran) > 7
    assert needed == len(ran) - len(ran) // 7
    assert digests(again.folder) == digests(whole.folder)


@pytest.mark.exhaustive  # the interrupted scan in bfloat16 stands for it in make test
def test_another_shard_after_half_a_rescore_starts_it_anew(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "UNIT", 20)
    options = {"dtype": "bfloat16", **SMALL}
    whole = fm.scan(tiny, CORPUS, tmp_path / "whole", **options)
    keep, ran = passes.Wanted.add, []

    def stop(self: passes.Wanted, *arguments: Any) -> None:
        ran.append(1)
        if len(ran) == 20:
            raise KeyboardInterrupt
        keep(self, *arguments)

    monkeypatch.setattr(passes.Wanted, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        fm.scan(tiny, CORPUS, tmp_path / "again", shard=(0, 2), checkpoint_seconds=0.0, **options)
    again = fm.scan(tiny, CORPUS, tmp_path / "again", **options)
    assert digests(again.folder) == digests(whole.folder)


def test_a_shard_in_the_middle_is_finished_as_that_shard(tiny: fm.Model, tmp_path: Path) -> None:
    store = fm.scan(tiny, texts(30), tmp_path / "out", **SMALL)
    file = StateFile(store.folder / STATE)
    state = file.state()
    state.arrays["done"] = np.empty(0, np.int64)
    FOLDER.mark(store.folder)
    save_state(store.folder / STATE, state, file.identity, ScanProgress(shard=(0, 2), batch=1))
    with refuses(FileError, OSError, "shard 0/2 in the middle", "same command"):
        fm.scan(tiny, texts(30), store.folder, **SMALL)


# -- a folder keeps what it holds ------------------------------------------------------------------------------------


def test_a_finished_store_is_opened_or_mended_and_not_scanned_again(
    tiny: fm.Model, store: fm.scanning.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is said of a damaged store, "scan again", would not help: the same scan would open it as it is."""
    before = digests(store.folder)
    with monkeypatch.context() as patch:
        patch.setattr(passes.Scanner, "scan", lambda *_: pytest.fail("scanned again"))
        assert fm.scan(tiny, CORPUS, store.folder, **SMALL).n_tokens == store.n_tokens
        assert fm.scan(tiny, iter(CORPUS), store.folder, **SMALL).complete  # the same text, from a source of one use
    assert digests(store.folder) == before
    own = fm.scan(tiny, CORPUS[:3], tmp_path / "out", **SMALL)
    before = digests(own.folder)
    (own.folder / "stats.parquet").unlink()
    (own.folder / "values.parquet").write_bytes(b"PAR1")
    fm.scan(tiny, CORPUS[:3], own.folder, **SMALL).verify()
    assert digests(own.folder) == before
    manifest = (own.folder / "manifest.json").read_text("utf-8")
    (own.folder / "manifest.json").write_text(manifest.replace('"tokens"', '"tokems"'), "utf-8")
    fm.scan(tiny, CORPUS[:3], own.folder, **SMALL).verify()
    assert digests(own.folder) == before


def test_a_folder_keeps_what_it_holds(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tokenizer: Any, tiny_hf: Any, store: fm.scanning.Store,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A mistyped folder would cost a store; special tokens are part of a scan as weights and text are."""
    before = digests(store.folder)
    changed = make_tiny()
    changed.ffn[0].values.data[0, 0] += 1
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"additional_special_tokens": ["ĠParis"]})
    (tmp_path / "notes.txt").write_text("mine")
    packed = pack(CORPUS[:5], tiny, tmp_path / "packed")
    refused: list[tuple[fm.Model, Any, Path, dict[str, Any], list[str]]] = [
        (tiny, CORPUS, store.folder, {"k": 5}, ["another scan", "k 5 and 4"]),
        (changed, CORPUS, store.folder, {}, ["another scan", "model"]),
        (fm.load(tiny_hf, tokenizer=other), CORPUS, store.folder, {}, ["another"]),
        *(
            (tiny, source, store.folder, {}, ["another scan", "corpus"])
            for source in (CORPUS[:5], packed, iter(CORPUS[:5]))
        ),
        (tiny, CORPUS, tmp_path, {}, [str(tmp_path), "other things"]),
        (tiny, CORPUS, tmp_path / "notes.txt", {}, ["is a file"]),
    ]
    for model, source, folder, changes, named in refused:
        with refuses(FileError, OSError, *named):
            fm.scan(model, source, folder, **{**SMALL, **changes})
    assert digests(store.folder) == before


def test_two_scans_do_not_write_to_one_folder(tiny: fm.Model, tmp_path: Path) -> None:
    """Nor does a failed one leave a folder that it made, or take one away."""
    folder = tmp_path / "deep" / "out"
    with prepared(folder), refuses(FileError, OSError, str(folder), "another process is writing"):
        fm.scan(tiny, ["The city of Paris"], folder, **SMALL)
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "new" / "out", tmp_path / "empty"):
        with refuses(FileError, OSError, "holds no text"):
            fm.scan(tiny, [" "], target, **SMALL)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_packed_corpus_is_linked_and_not_tokenised_again(tiny: fm.Model, atlas: fm.Model, tmp_path: Path) -> None:
    packed = pack(texts(20), tiny, tmp_path / "packed")
    for number, source in enumerate([packed, str(packed.folder)]):
        store = fm.scan(tiny, source, tmp_path / f"store{number}", **SMALL)
        assert digests(store.folder / "corpus") == digests(packed.folder)
        assert (store.folder / "corpus" / "tokens.bin").stat().st_ino == (packed.folder / "tokens.bin").stat().st_ino
    with refuses(FileError, OSError, "another tokenizer"):
        fm.scan(atlas, packed.folder, tmp_path / "out", **SMALL)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k": 10_001}, ["k must be at most 10,000", "10001"]),
        ({"context": 33}, ["context 33", "at most 32"]),
        ({"context": 1}, ["context", "at least 2", "1"]),
        ({"dtype": "float16"}, ["dtype 'float16'", "'float32' or 'bfloat16'"]),
        *(({name: -1}, [f"{name} must be at least 1"]) for name in ("k", "sample", "draws", "batch_tokens")),
        ({"seed": -1}, ["seed must be at least 0"]),
        ({"shard": (2, 2)}, ["shard 2 of 2"]),
        ({"engine": "spark"}, ["spark", "ray"]),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tiny: fm.Model, tmp_path: Path, change: dict[str, Any], named: list[str]
) -> None:
    with refuses(InputError, ValueError, *named):
        fm.scan(tiny, ["The city of Paris"], tmp_path / "out", **{**SMALL, **change})


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_model_with_nan_is_named(make_tiny: Callable[..., fm.Model], tmp_path: Path, value: float) -> None:
    for neuron in (0, 3):
        broken = make_tiny()
        broken.ffn[1].key_bias.data[neuron] = value
        with refuses(InputError, ValueError, "layer 1", "sequences 0 to"):
            fm.scan(broken, ["The city of Paris"], tmp_path / "out", **SMALL)


def test_a_tokenizer_without_bos(make_tiny: Callable[..., fm.Model], tmp_path: Path) -> None:
    """Another token would stand in its place, or none where one is asked for."""
    model = make_tiny(prepend_bos=False)
    model.tokenizer.bos_token = None
    assert not TextSettings.checked(model, None, None, 64).prepend_bos
    with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
        fm.scan(model, CORPUS, tmp_path / "out", prepend_bos=True, **SMALL)
