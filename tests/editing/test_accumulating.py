"""``second_moment`` against a plain computation, in shards, and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, UnsupportedModelError
from ffnmem.corpus import batches
from ffnmem.editing import SecondMoment, second_moment

from ..helpers import Pair, allclose, refuses
from ..scanning.texts import tiny_texts

SHORT = ["The Eiffel Tower is in the city of Paris", " Rome is", "The Colosseum"]  # each fits the tiny context


def naive(model: fm.Model, texts: list[str]) -> tuple[list[torch.Tensor], int]:
    """Every text by itself, its coefficients from the model's own hooks."""
    found = []
    for text in texts:
        capture = fm.capture(model, text, prepend_bos=True)
        found.append([capture.coefficients[layer][0, 1:].double() for layer in range(model.n_layers)])
    rows = [torch.cat(parts) for parts in zip(*found, strict=True)]
    return [m.T @ m / len(m) for m in rows], len(rows[0])


def test_equals_a_plain_computation(pair64: Pair) -> None:
    """C would be of other layers, positions or texts, or of something else than the down projection's input."""
    expected, count = naive(pair64.model, SHORT)
    found = second_moment(pair64.model, SHORT, prepend_bos=True)
    assert found.count == count
    for layer, matrix in enumerate(expected):
        # OPT takes its softmax in float32, and fused attention rounds elsewhere.
        assert allclose(found.matrix(layer), matrix, 1e-6 if pair64.rounds_attention else 1e-12)
    assert found.provenance["products"] == "float64"
    found.check(pair64.model)


def test_the_same_whatever_the_way(tiny: fm.Model) -> None:
    """Float32, how much memory a machine has, or layers that were left out would change the statistics."""
    expected, _ = naive(tiny, SHORT)
    assert allclose(second_moment(tiny, SHORT).matrix(1), expected[1], 1e-5)
    whole = second_moment(tiny, tiny_texts(), context=16)
    some, small = (second_moment(tiny, tiny_texts(), context=16, **o) for o in ({"layers": [0]}, {"batch_tokens": 40}))
    assert some.layers == (0,)
    assert torch.equal(some.matrix(0), whole.matrix(0))
    assert small.count == whole.count
    assert allclose(small.matrix(1), whole.matrix(1), 1e-5)
    assert (whole.provenance["tokens"], whole.provenance["context"]) == (whole.count, 16)
    assert whole.provenance["corpus_hash"] == whole.corpus_hash
    assert whole.prepend_bos is tiny.prepend_bos
    assert whole.provenance["products"] == "float32"
    ((first, end),) = whole.parts[0].ranges
    assert first == 0
    assert end > len(tiny_texts())


@pytest.mark.parametrize("tokens", [1, 50, 333])
def test_so_many_tokens(tiny: fm.Model, tokens: int) -> None:
    """A limit would be missed by more than the last sequence, or take other text than the first."""
    found, whole = second_moment(tiny, tiny_texts(), tokens=tokens, batch_tokens=100), second_moment(tiny, tiny_texts())
    assert tokens <= found.count < tokens + tiny.n_ctx
    ((first, end),) = found.parts[0].ranges
    assert first == 0
    assert end < whole.parts[0].ranges[0][1]
    texts = [" Rome", " Paris is in the city of Paris is in the city", " London"]  # long ones come first in a batch
    found, alone = second_moment(tiny, texts, tokens=1), second_moment(tiny, texts[:1])
    assert found.count == alone.count == 1
    assert allclose(found.matrix(1), alone.matrix(1), 1e-6)


def test_a_finished_file_is_opened_or_kept(tiny: fm.Model, tmp_path: Path) -> None:
    """The same call would read all of the text again; another one would replace it, or return it."""
    out = tmp_path / "c"
    first, heard = second_moment(tiny, tiny_texts(), out), []
    again = second_moment(tiny, tiny_texts(), out, progress=lambda phase, done, total: heard.append(done))
    assert not heard
    assert torch.equal(first.matrix(0), again.matrix(0))
    before = out.read_bytes()
    for texts, more, named in (
        (SHORT, {}, "corpus"),
        (tiny_texts(), {"layers": [1]}, "layers"),
        (tiny_texts(), {"tokens": 20}, "other parts of the text"),
    ):
        with refuses(FileError, OSError, str(out), named):
            second_moment(tiny, texts, out, **more)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_shards_merge_to_the_whole(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text would be lost or doubled when several machines share a pass."""
    monkeypatch.setattr(batches, "UNIT", 8)
    whole = second_moment(tiny, tiny_texts())
    shards = [second_moment(tiny, tiny_texts(), shard=(i, 3)) for i in range(3)]
    merged = SecondMoment.merge(shards)
    assert merged.count == whole.count == sum(shard.count for shard in shards)
    assert merged.parts == whole.parts
    assert allclose(merged.matrix(0), whole.matrix(0), 1e-6)
    limited = second_moment(tiny, tiny_texts(), shard=(1, 3), tokens=150)
    assert 150 <= limited.count < 150 + tiny.n_ctx
    with refuses(InputError, ValueError, "twice"):
        SecondMoment.merge([whole, shards[1]])


def test_a_packed_corpus_is_read_where_it_lies(tiny: fm.Model, tmp_path: Path) -> None:
    """It would be packed anew, or a pack of another tokenizer be believed."""
    packed = fm.corpus.pack(tiny_texts(), tiny, tmp_path / "pack")
    found = second_moment(tiny, packed)
    assert found.corpus_hash == packed.hash
    assert torch.equal(found.matrix(0), second_moment(tiny, tmp_path / "pack").matrix(0))


def test_refused(tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path) -> None:
    """One NaN would make the whole matrix NaN after hours; a mistake would leave a folder behind."""
    broken = make_tiny()
    with torch.no_grad():
        broken.ffn[1].keys[3] = torch.nan
    for model, texts, more, named in (
        (broken, SHORT, {}, ("layer 1", "not finite", "somewhere in sequences")),
        (tiny, SHORT, {"layers": []}, ("layers is empty",)),
        (tiny, SHORT, {"checkpoint_seconds": -1.0}, ("checkpoint_seconds",)),
        (tiny, SHORT, {"shard": (99, 100)}, ("no text", "shard 99 of 100")),
    ):
        with refuses(InputError, ValueError, *named):
            second_moment(model, texts, **more)
    with fm.intervene(tiny, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        second_moment(tiny, SHORT, tmp_path / "c")
    with refuses(FileError, OSError, "nowhere.txt"):
        second_moment(tiny, "nowhere.txt", tmp_path / "c")
    assert not list(tmp_path.iterdir())
