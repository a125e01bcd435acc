"""Drift on unrelated text, against whole forward passes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.editing import Edit
from ffnmem.evaluation import texts as module
from ffnmem.evaluation.texts import DOCUMENTS, Texts, drift_texts, sample_documents
from ffnmem.models.replaying import PlainLayers

from ..helpers import allclose, refuses
from .made import TEXTS, logs, random_edits

NOBODY = "nobody"


def by_hand(model: fm.Model, texts: tuple[str, ...], edit: Edit) -> tuple[float, float]:
    """All tokens of all texts but what BOS alone predicts, one whole pass a prefix."""
    kl, old, new = [], [], []
    for text in texts:
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        clean, changed = whole(model, ids, None)[1:], whole(model, ids, edit)[1:]
        kl += (clean.exp() * (clean - changed)).sum(-1).tolist()
        at = torch.tensor(ids[1:]).unsqueeze(1)
        old += clean.gather(1, at).squeeze(1).tolist()
        new += changed.gather(1, at).squeeze(1).tolist()
    mean_old, mean_new = sum(old) / len(old), sum(new) / len(new)
    return sum(kl) / len(kl), math.exp(mean_old - mean_new)


def whole(model: fm.Model, ids: list[int], edit: Edit | None) -> torch.Tensor:
    text = model.tokenizer.decode(ids)
    rows = [logs(model, model.tokenizer.decode(ids[:i]), edit=edit)[-1] for i in range(1, len(ids))]
    begin = torch.tensor([[model.bos_token_id]])
    if edit is None:
        first = model.hf_model(input_ids=begin).logits
    else:
        with edit.applied(model):
            first = model.hf_model(input_ids=begin).logits
    assert model.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    return torch.stack([first[0, -1].detach().double().log_softmax(-1), *rows])


@pytest.mark.parametrize("small", [False, True])
def test_equals_whole_passes(tiny64: fm.Model, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pads counted as text, a token predicted from itself, another edit's rows, slices that overlap."""
    if small:
        monkeypatch.setattr(module, "GATHERED", 0)
        monkeypatch.setattr(module, "LOGITS", 0)
    edits = random_edits(tiny64)
    reader = Texts(PlainLayers(tiny64), TEXTS)
    found = reader.drift([edits[0], None, *edits[1:]], [NOBODY] * 4)
    assert (found[1]["drift_kl"], found[1]["drift_perplexity"]) == (0.0, 1.0)
    clean = found[1]["drift_loss"]
    for edit, one in zip(edits, [found[0], *found[2:]], strict=True):
        kl, ratio = by_hand(tiny64, TEXTS, edit)
        figures = [kl, ratio, clean + math.log(ratio)]
        assert allclose(list(one.values()), figures, 1e-9)
        with edit.applied(tiny64):
            assert allclose(list(reader.now().values()), figures, 1e-9)


def test_own_subject_is_not_unrelated(tiny64: fm.Model) -> None:
    """A text about the edited subject is meant to change."""
    edit = random_edits(tiny64)[0]
    reader = Texts(PlainLayers(tiny64), TEXTS)
    (found,) = reader.drift([edit], ["Tower"])
    kl, ratio = by_hand(tiny64, TEXTS[:2], edit)
    assert allclose([found["drift_kl"], found["drift_perplexity"]], [kl, ratio], 1e-9)
    (nothing,) = Texts(PlainLayers(tiny64), TEXTS[2:]).drift([edit], ["Tower"])
    assert all(map(math.isnan, nothing.values()))


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
