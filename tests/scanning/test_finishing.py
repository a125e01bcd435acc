"""The last steps: what the values write, the tokenizer, and a manifest that says all that the numbers depend on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.scanning.manifest import MANIFEST
from ffnmem.scanning.tables import TOKENIZER

from ..helpers import refuses
from .corpora import SMALL, texts


@pytest.fixture(scope="module")
def store(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(tiny, texts(20), tmp_path_factory.mktemp("finishing") / "out", **SMALL)


def test_that_the_manifest_carries_all_that_the_numbers_depend_on(tiny: fm.Model, store: fm.scanning.Store) -> None:
    manifest = json.loads((store.folder / MANIFEST).read_text("utf-8"))
    assert manifest["fingerprint"] == tiny.fingerprint
    assert manifest["corpus"]["hash"] == store.corpus.hash
    assert manifest["basis"] == "folded"
    provenance = manifest["provenance"]
    assert provenance["seed"] == 0
    assert provenance["prepend_bos"] is True
    assert provenance["scan_dtype"] == "float32"
    assert manifest["rescored_in"] is None
    assert set(manifest["files"]) == {path.name for path in store.folder.iterdir() if path.is_file()} - {
        MANIFEST,
        ".lock",
    }
    assert str(store.folder.parent) not in json.dumps(manifest)  # where it was made is nobody's business


def test_that_the_kept_tokenizer_reads_as_the_models(tiny: fm.Model, store: fm.scanning.Store) -> None:
    ids = tiny.tokenize("The Eiffel Tower, Zürich", prepend_bos=False)
    assert store.contexts.strings(ids) == tiny.token_strings(ids)
    content = json.loads((store.folder / TOKENIZER).read_text("utf-8"))
    assert content["truncation"] is None
    assert content["padding"] is None


def test_that_a_tokenizer_that_cannot_be_kept_is_refused(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny.tokenizer

    class Slow:
        """A tokenizer in Python only: no backend that could be written down."""

        def __getattr__(self, name: str) -> object:
            if name == "backend_tokenizer":
                raise AttributeError(name)
            return getattr(tokenizer, name)

    from ffnmem.corpus import pack

    packed = pack(texts(5), tiny, tmp_path / "packed")
    monkeypatch.setattr(tiny, "tokenizer", Slow())
    monkeypatch.setattr("ffnmem.scanning.jobs.tokenizer_hash", lambda _: packed.tokenizer_hash)
    with refuses(InputError, ValueError, "fast one"):
        fm.scan(tiny, packed, tmp_path / "out", **SMALL)
