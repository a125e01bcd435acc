"""``merge``: shards in any order and grouping give the bytes of one scan; what does not belong together is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.corpus import batches

from ..helpers import refuses
from .corpora import SMALL, digests, texts
from .gated import load_gated

CORPUS = texts(150)
Scans = tuple[fm.Model, fm.scanning.Store, list[fm.scanning.Store]]


@pytest.fixture(scope="module", autouse=True)
def small_units() -> Iterator[None]:
    """Several units of work in a small corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "UNIT", 50)
        yield


@pytest.fixture(scope="module", params=["classic float32", "classic bfloat16", "gated float32", "gated bfloat16"])
def scans(request: pytest.FixtureRequest, tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Scans:
    """A model, one scan of a corpus, and its three shards."""
    folder = tmp_path_factory.mktemp("merging")
    kind, dtype = request.param.split()
    model = tiny if kind == "classic" else load_gated("llama")
    whole = fm.scan(model, CORPUS, folder / "whole", dtype=dtype, **SMALL)
    assert whole.manifest["units"]["total"] == 3
    shards = [fm.scan(model, CORPUS, folder / f"shard{i}", dtype=dtype, shard=(i, 3), **SMALL) for i in range(3)]
    return model, whole, shards


def test_that_shards_in_any_order_give_the_bytes_of_one_scan(scans: Scans, tmp_path: Path) -> None:
    _, whole, shards = scans
    assert not any(shard.complete for shard in shards)
    for number, order in enumerate(itertools.permutations(shards)):
        joined = fm.merge(order, tmp_path / str(number))
        assert joined.complete
        assert digests(joined.folder) == digests(whole.folder)


def test_that_merges_may_be_nested(scans: Scans, tmp_path: Path) -> None:
    _, whole, (a, b, c) = scans
    left = fm.merge([fm.merge([a, b], tmp_path / "ab"), c], tmp_path / "ab c")
    right = fm.merge([a, fm.merge([c, b], tmp_path / "cb")], tmp_path / "a cb")
    assert digests(left.folder) == digests(right.folder) == digests(whole.folder)


def test_that_one_store_and_an_empty_shard_merge_too(tiny: fm.Model, tmp_path: Path) -> None:
    whole = fm.scan(tiny, texts(30), tmp_path / "whole", **SMALL)
    shards = [fm.scan(tiny, texts(30), tmp_path / f"shard{i}", shard=(i, 2), **SMALL) for i in range(2)]
    assert shards[1].n_tokens == 0
    assert shards[1].stats()["mean"].isna().all()
    assert digests(fm.merge(shards, tmp_path / "joined").folder) == digests(whole.folder)
    assert digests(fm.merge([whole], tmp_path / "copy").folder) == digests(whole.folder)


def test_that_a_partial_store_can_be_finished_where_it_lies(scans: Scans, tmp_path: Path) -> None:
    model, whole, (a, _, c) = scans
    part = fm.merge([c, a], tmp_path / "part")
    assert not part.complete
    finished = fm.scan(model, CORPUS, part.folder, dtype=whole.settings.dtype, **SMALL)
    assert digests(finished.folder) == digests(whole.folder)


def test_that_what_does_not_belong_together_is_refused(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    changed = make_tiny()
    changed.ffn[0].values.data[0, 0] += 1

    def scanned(name: str, model: fm.Model = tiny, corpus: list[str] = CORPUS, **more: Any) -> fm.scanning.Store:
        return fm.scan(model, corpus, tmp_path / name, **{"shard": (1, 3), **SMALL, **more})

    one, whole = scanned("one", shard=(0, 3)), scanned("whole", shard=(0, 1))
    refused: list[tuple[list[Any], Any, tuple[str, ...]]] = [
        ([one, scanned("k", k=5)], InputError, ("different scans", "k 4 and 5")),
        ([one, scanned("text", corpus=texts(40), shard=(0, 1))], InputError, ("different scans", "corpus")),
        ([one, scanned("model", model=changed)], InputError, ("different scans", "model")),
        ([whole, one], InputError, ("count twice",)),
        ([one, one.folder], InputError, ("count twice",)),
        ([], InputError, ("no stores",)),
    ]
    for stores, error, named in refused:
        with refuses(error, ValueError, *named):
            fm.merge(stores, tmp_path / "never")
    with refuses(FileError, OSError, "not empty"):
        fm.merge([one], one.folder)
    assert not (tmp_path / "never").exists()


def test_that_a_merge_replaces_nothing(scans: Scans, tmp_path: Path) -> None:
    _, whole, shards = scans
    before = digests(whole.folder)
    with refuses(FileError, OSError, "not empty"):
        fm.merge(shards, whole.folder)
    assert digests(whole.folder) == before
    (tmp_path / "empty").mkdir()
    left = tmp_path / ".ffnmem-empty-0123abcd.tmp"  # of a merge that was killed
    (left / "whole").mkdir(parents=True)
    (left / "whole" / "state.safetensors").write_text("half")
    (tmp_path / ".empty.merging").mkdir()
    (tmp_path / ".empty.merging" / "notes").write_text("mine")
    assert digests(fm.merge(shards, tmp_path / "empty").folder) == before
    assert not left.exists()
    assert (tmp_path / ".empty.merging" / "notes").read_text() == "mine"


def test_that_an_empty_shard_answers_with_nothing(tiny: fm.Model, tmp_path: Path) -> None:
    empty = fm.scan(tiny, texts(30), tmp_path / "empty", shard=(1, 2), **SMALL)
    assert empty.examples(0, 0).empty
    assert empty.neuron(0, 0).stats["count"] == 0
    assert not empty.stats()["dead"].any()


def test_that_names_of_the_model_do_not_decide_by_order(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    named = fm.load(str(tiny_folder))
    a = fm.scan(tiny, CORPUS, tmp_path / "a", shard=(0, 2), **SMALL)
    b = fm.scan(named, CORPUS, tmp_path / "b", shard=(1, 2), **SMALL)
    one, other = fm.merge([a, b], tmp_path / "ab"), fm.merge([b, a], tmp_path / "ba")
    assert digests(one.folder) == digests(other.folder)
