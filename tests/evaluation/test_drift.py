"""The texts that drift is measured on; what it comes to is compared in the tests of evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.evaluation.texts import DOCUMENTS, Texts, drift_texts, sample_documents
from ffnmem.models.replaying import PlainLayers

from ..helpers import refuses


def test_cut(tiny64: fm.Model) -> None:
    """A long document must not cost more than a short one, nor exceed what the model reads."""
    reader = Texts(PlainLayers(tiny64), ["The city of " * 40, "Paris is"], length=9)
    assert reader.tokens.shape == (2, 9)


def test_sample(tmp_path: Path) -> None:
    """The first documents of a corpus are not a sample of it; another seed draws others."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(300)))
    found = sample_documents(corpus, 0)
    assert len(found) == len(set(found)) == DOCUMENTS
    numbers = [int(text.split()[1]) for text in found]
    assert numbers == sorted(numbers)
    assert 80 < sum(numbers) / DOCUMENTS < 220
    assert sample_documents(corpus, 0) == found != sample_documents(corpus, 1)


def test_source(tiny: fm.Model, atlas: fm.Model) -> None:
    """Text that nobody asked for, or none where a corpus ships with the model."""
    assert drift_texts(tiny, None, 0) == ()
    assert drift_texts(atlas, False, 0) == ()
    assert len(drift_texts(atlas, None, 0)) == DOCUMENTS
    assert drift_texts(tiny, ["a b", "c d"], 0) == ("a b", "c d")


def test_no_such_corpus(tiny: fm.Model) -> None:
    with refuses(FileError, OSError, "nowhere.txt"):
        drift_texts(tiny, "nowhere.txt", 0)
