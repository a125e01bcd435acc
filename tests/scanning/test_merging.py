"""``merge``: shards in any order and grouping give the bytes of one scan; what does not belong together is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.corpus import batches

from ..helpers import refuses
from .corpora import SMALL, digests, texts

CORPUS = texts(150)


@pytest.fixture(scope="module", autouse=True)
def small_units() -> Iterator[None]:
    """Several units of work in a small corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "UNIT", 50)
        yield


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def scans(
    request: pytest.FixtureRequest, tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory
) -> tuple[fm.scanning.Store, list[fm.scanning.Store]]:
    """One scan of a corpus, and its three shards."""
    folder = tmp_path_factory.mktemp("merging")
    whole = fm.scan(tiny, CORPUS, folder / "whole", dtype=request.param, **SMALL)
    assert whole.manifest["units"]["total"] == 3
    shards = [fm.scan(tiny, CORPUS, folder / f"shard{i}", dtype=request.param, shard=(i, 3), **SMALL) for i in range(3)]
    return whole, shards


def test_that_shards_in_any_order_give_the_bytes_of_one_scan(
    scans: tuple[fm.scanning.Store, list[fm.scanning.Store]], tmp_path: Path
) -> None:
    whole, shards = scans
    assert not any(shard.complete for shard in shards)
    for number, order in enumerate(itertools.permutations(shards)):
        joined = fm.merge(order, tmp_path / str(number))
        assert joined.complete
        assert digests(joined.folder) == digests(whole.folder)


def test_that_merges_may_be_nested(scans: tuple[fm.scanning.Store, list[fm.scanning.Store]], tmp_path: Path) -> None:
    whole, (a, b, c) = scans
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


def test_that_a_partial_store_can_be_finished_where_it_lies(
    tiny: fm.Model, scans: tuple[fm.scanning.Store, list[fm.scanning.Store]], tmp_path: Path
) -> None:
    whole, (a, _, c) = scans
    part = fm.merge([c, a], tmp_path / "part")
    assert not part.complete
    finished = fm.scan(tiny, CORPUS, part.folder, dtype=whole.settings.dtype, **SMALL)
    assert digests(finished.folder) == digests(whole.folder)


def test_that_what_does_not_belong_together_is_refused(
    tiny: fm.Model,
    make_tiny: Callable[..., fm.Model],
    scans: tuple[fm.scanning.Store, list[fm.scanning.Store]],
    tmp_path: Path,
) -> None:
    whole, shards = scans
    dtype = whole.settings.dtype
    other_k = fm.scan(tiny, CORPUS, tmp_path / "k", dtype=dtype, shard=(1, 3), **{**SMALL, "k": 5})
    other_text = fm.scan(tiny, texts(40), tmp_path / "text", dtype=dtype, **{**SMALL, "frequent": 0})
    changed = make_tiny()
    changed.ffn[0].values.data[0, 0] += 1
    other_model = fm.scan(changed, CORPUS, tmp_path / "model", dtype=dtype, shard=(1, 3), **SMALL)
    for other, named in ((other_k, "k 4 and 5"), (other_text, "corpus"), (other_model, "model")):
        with refuses(InputError, ValueError, "different scans", named):
            fm.merge([shards[0], other], tmp_path / "never")
    with refuses(InputError, ValueError, "count twice"):
        fm.merge([whole, shards[1]], tmp_path / "never")
    with refuses(InputError, ValueError, "given twice"):
        fm.merge([shards[0], shards[0].folder], tmp_path / "never")
    with refuses(InputError, ValueError, "no stores"):
        fm.merge([], tmp_path / "never")
    with refuses(FileError, OSError, "one of the stores"):
        fm.merge(shards, shards[0].folder)
    assert not (tmp_path / "never").exists()


def test_that_a_merge_replaces_nothing(
    scans: tuple[fm.scanning.Store, list[fm.scanning.Store]], tmp_path: Path
) -> None:
    whole, shards = scans
    before = digests(whole.folder)
    with refuses(FileError, OSError, "exists already"):
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
