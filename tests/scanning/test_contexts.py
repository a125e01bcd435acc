"""The text around a position."""

from __future__ import annotations

from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.core.sheets import Context, Table
from ffnmem.scanning import Store
from ffnmem.scanning.contexts import Contexts

from ..helpers import refuses
from ..tokenizers import model_with


@pytest.mark.parametrize("width", [0, 1, 5, 100])
def test_windows(tiny_store: Store, tiny: fm.Model, width: int) -> None:
    """The mark would be on another token, or BOS shown as text, or text cut off without a sign."""
    sequences = tiny_store.sequences
    for sequence in range(0, len(sequences), 3):
        ids = sequences.sequence_tokens(sequence).tolist()
        strings = tiny.token_strings(ids)
        if "�" in "".join(strings):  # see below
            continue
        for position in {1, len(ids) // 2, len(ids) - 1}:
            window = tiny_store.contexts.window(sequence, position, width)
            assert window.tokens[window.at] == strings[position]
            before, after = window.tokens[: window.at], window.tokens[window.at + 1 :]
            around = ids[max(1, position - width) : position], ids[position + 1 : position + 1 + width]
            for texts, there in zip((before, after), around, strict=True):
                assert len(texts) == len(there)
                assert "".join(texts) == tiny.tokenizer.decode(there)
            assert window.cut_before == (position - width > 1)
            assert window.cut_after == (position + width < len(ids) - 1)
            assert window.text == "".join(window.tokens)


@pytest.mark.parametrize("kind", ["", "Llama 2"])
def test_characters_of_several_tokens_are_whole(kind: str, tiny: fm.Model, tmp_path: Path) -> None:
    """Cards would show "caf��" and "����" for an accent and an emoji; nothing of a character is shown twice."""
    model = model_with(kind) if kind else tiny
    text = "café 🙂 naïve 北京"
    store = fm.scan(model, [text] * 3, tmp_path / "store", k=2)
    ids = store.sequences.sequence_tokens(0).tolist()
    lead = store.sequences.lead
    assert len(ids) > lead + len(text.split())
    for position in range(lead, len(ids)):
        whole = store.contexts.window(0, position, len(ids))
        assert whole.text.strip() == text
        assert whole.tokens[whole.at]
        near = store.contexts.window(0, position, 2)
        assert near.text in whole.text
        assert near.tokens[near.at] == whole.tokens[whole.at]
    neuron = store.neuron(0, int(store.stats(0)["max"].idxmax()), kind="top", k=1)
    (shaded,) = store.shaded([neuron], 1)
    tables = [block for block in shaded.sheet(1).blocks if isinstance(block, Table)]
    shown = [cell for table in tables for row in table.rows for cell in row if isinstance(cell, Context)]
    for one in shown:
        assert one.shades is not None
        around = ["".join(shade.text for shade in some) for some in (one.shades.before, one.shades.after)]
        assert (around[0] + one.token + around[1]).strip() in text
    assert shown


def test_a_word_begins_with_its_space(tmp_path: Path) -> None:
    """On a card of a model with Llama 2's tokenizer, "in" would be any "in", within words too."""
    store = fm.scan(model_with("Llama 2"), ["The capital of France is in Paris"] * 3, tmp_path / "store", k=2)
    assert store.contexts.window(0, 3, 2).tokens == (" The", " capital", " of", " France", " is")
    assert set(store.search(" Paris")["token"]) == {" Paris"}


@pytest.mark.parametrize("name", ["byte-level", "Llama 2", "Unigram with bytes (Gemma)"])
def test_characters_of_several_tokens(name: str, tmp_path: Path) -> None:
    """Around a firing token, an emoji would be a row of question marks or of byte names."""
    model, text = model_with(name), "The 🗼 of 中国的 é\u0301! is"
    store = fm.scan(model, [text], tmp_path / "store", k=2)
    ids = store.sequences.sequence_tokens(0).tolist()
    window = store.contexts.window(0, 1, 99)
    assert window.text.strip() == text
    assert len(window.tokens) == len(ids) - 1
    assert "" in window.tokens
    middle = next(at for at, token in enumerate(model.token_strings(ids)) if token in ("�", "<0x9F>"))
    window = store.contexts.window(0, middle, 99)
    assert window.tokens[window.at] == "🗼"
    assert window.text.strip() == text
    assert "中国的" in "".join(store.neuron(0, 0).examples["context"])


def test_refuses_a_damaged_tokenizer(tiny_store: Store, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with refuses(FileError, OSError, str(path)):
        Contexts.read(path, tiny_store.sequences)
    path.write_text('{"model": 3}')
    with refuses(FileError, OSError, str(path)):
        Contexts.read(path, tiny_store.sequences)
