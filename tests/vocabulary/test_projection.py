"""Keys and values in token space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError
from ffnmem.models.layout import inner
from ffnmem.vocabulary import projections
from ffnmem.vocabulary.projections import GROUP, promoted_tokens
from ffnmem.vocabulary.scoring import BLOCK, Scorer
from ffnmem.vocabulary.vectors import sides_of

from ..helpers import Pair, allclose, build_gpt2, refuses

COLUMNS = ["layer", "neuron", "side", "sign", "rank", "token", "token_id", "score", "basis", "lens"]


def naive(model: fm.Model, layer: int, neuron: int, side: str, basis: str) -> torch.Tensor:
    """One neuron's score of every token, written out."""
    block, final = model.layout.blocks[layer], model.layout.final_norm

    def gain(norm: Any) -> torch.Tensor:
        return inner(norm).weight.detach() + (1.0 if "Gemma" in model.architecture else 0.0)

    def centre(vector: torch.Tensor) -> torch.Tensor:
        return vector - vector.mean() if isinstance(inner(final), torch.nn.LayerNorm) else vector

    if side == "value":
        vector, tokens = model.ffn[layer].values[neuron].detach(), model.unembedding.detach()
        behind = vector if block.post is None else vector * gain(block.post)
        return tokens @ (centre(behind) * gain(final) if basis == "folded" else vector)
    matrix = model.ffn[layer].gates if side == "gate" else model.ffn[layer].keys
    assert matrix is not None
    vector, tokens = matrix[neuron].detach(), model.embedding.detach()
    return tokens @ (centre(vector * gain(block.norm)) if basis == "folded" else vector)


@pytest.mark.parametrize("basis", ["folded", "raw"])
@pytest.mark.parametrize("side", ["value", "key", "gate"])
def test_equals_the_naive_way(pair64: Pair, side: str, basis: str) -> None:
    """A neuron would be said to write what it does not: wrong gain, wrong matrix, wrong end of the ranking."""
    model = pair64.model
    if side not in sides_of(model):
        with refuses(InputError, ValueError, "no gates"):
            fm.project(model, 1, 3, side=side)
        return
    table = fm.project(model, 1, [3, 17], k=5, basis=basis, side=side)
    assert list(table.columns) == COLUMNS
    assert set(table["basis"]) == {basis}
    for (neuron, sign), rows in table.groupby(["neuron", "sign"]):
        scores = naive(model, 1, neuron, side, basis)
        top = (scores if sign == "promoted" else -scores).topk(5).indices
        assert rows["rank"].tolist() == [1, 2, 3, 4, 5]
        assert rows["token_id"].tolist() == top.tolist()
        assert rows["token"].tolist() == model.token_strings(top)
        assert allclose(rows["score"], scores[top], 1e-12)
    record = table.attrs["provenance"]
    assert (record["basis"], record["fingerprint"]) == (basis, model.fingerprint)


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_scores_are_exact_in_float32(pair: Pair, basis: str) -> None:
    """A shortcut in half precision would mix up neighbours in the ranking."""
    for side in sides_of(pair.model):
        for row in fm.project(pair.model, 0, 5, k=3, basis=basis, side=side).itertuples():
            assert allclose(row.score, naive(pair.model, 0, 5, side, basis)[row.token_id], 1e-6)


def test_half_precision_models_are_scored_in_float32(tiny_hf: Any, tokenizer: Any) -> None:
    """bfloat16 has eight bits: half the vocabulary would tie."""
    model = fm.load(tiny_hf, tokenizer=tokenizer, dtype="bfloat16")
    exact = fm.load(tiny_hf, tokenizer=tokenizer)
    with torch.no_grad():  # the same rounded weights in float32
        for a, b in zip(exact.hf_model.parameters(), model.hf_model.parameters(), strict=True):
            a.copy_(b)
    found, expected = (fm.project(m, 0, [1, 2], k=20) for m in (model, exact))
    assert found["token_id"].tolist() == expected["token_id"].tolist()
    assert allclose(found["score"], expected["score"], 1e-6)


def test_a_values_folded_score_is_its_effect(pair64: Pair) -> None:
    """The two tools would disagree: a neuron's logit is its coefficient times its folded score over the scale.

    The scale is the final norm's, and with a norm behind the FFN (Gemma 2) each layer's own besides.
    """
    model = pair64.model
    attribution = fm.attribute(fm.capture(model, "The Eiffel Tower is in"), " Paris", " Rome")
    paris, rome = model.token_id(" Paris"), model.token_id(" Rome")
    scores = torch.stack([naive(model, layer, n, "value", "folded") for layer in range(2) for n in range(64)])
    effect = attribution.coefficients[0].flatten() * (scores[:, paris] - scores[:, rome])
    logits = attribution.neuron_logits[0].flatten()
    ratio = (logits / effect).reshape(2, 64)
    usable = (effect.abs() > 1e-6).reshape(2, 64)
    scales = [ratio[layer][usable[layer]] for layer in range(2)]
    if model.norm_after(0) is None:
        scales = [torch.cat(scales)]
    for scale in scales:
        assert allclose(scale, torch.full_like(scale, float(scale[0])), 1e-8)


def test_ties_go_by_token_id(make_tiny: Callable[..., fm.Model]) -> None:
    """Two runs, or two machines, would show different tokens."""
    model = make_tiny(dtype="float64")
    with torch.no_grad():
        model.unembedding[200:290] = model.unembedding[200]
    for neuron in range(64):
        table = fm.project(model, 0, neuron, k=model.d_vocab, side="value")
        for _, rows in table.groupby("sign"):
            tied = [i for i in rows["token_id"] if 200 <= i < 290]
            assert tied == list(range(200, 290))
        few = fm.project(model, 0, neuron, k=30, side="value")
        assert few["token_id"].tolist() == table[table["rank"] <= 30]["token_id"].tolist()


def test_k_beyond_the_vocabulary(tiny: fm.Model) -> None:
    """An error, or rows of nothing."""
    table = fm.project(tiny, 0, 3, k=10**6, side="value")
    assert len(table) == 2 * tiny.d_vocab
    promoted = table[table["sign"] == "promoted"]
    suppressed = table[table["sign"] == "suppressed"]
    assert sorted(promoted["token_id"]) == list(range(tiny.d_vocab))
    assert promoted["score"].is_monotonic_decreasing
    assert suppressed["score"].is_monotonic_increasing


def test_blocks_equal_one_by_one(tokenizer: Any) -> None:
    """Neurons beyond the first block would get another one's tokens."""
    n = BLOCK + 44
    model = fm.load(build_gpt2(n_inner=n, n_layer=1), tokenizer=tokenizer, dtype="float64")
    whole = fm.project(model, 0, k=2)
    assert whole["neuron"].drop_duplicates().tolist() == list(range(n))
    chosen = [0, 1, BLOCK - 1, BLOCK, n - 1]
    single = pd.concat([fm.project(model, 0, neuron, k=2) for neuron in chosen], ignore_index=True)
    part = whole[whole["neuron"].isin(chosen)].reset_index(drop=True)
    assert part.drop(columns="score").equals(single.drop(columns="score"))
    assert allclose(part["score"], single["score"], 1e-12)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series])
def test_neurons_come_in_the_order_given(tiny: fm.Model, kind: type) -> None:
    """A caller that zips the table with its own list would mislabel every row."""
    table = fm.project(tiny, 0, kind([9, 2, -1]), k=1)
    assert table["neuron"].drop_duplicates().tolist() == [9, 2, 63]
    one = table[table["neuron"] == 9]
    order = [("value", "promoted"), ("value", "suppressed"), ("key", "promoted"), ("key", "suppressed")]
    assert list(zip(one["side"], one["sign"], strict=True)) == order


def test_nothing_of_the_model_changes(pair: Pair) -> None:
    """Folding the gain into the weights would change every later result."""
    before = {name: tensor.clone() for name, tensor in pair.model.hf_model.state_dict().items()}
    fingerprint = pair.model.fingerprint
    for basis in ("folded", "raw"):
        fm.project(pair.model, 0, [0, 1], basis=basis)
    after = pair.model.hf_model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert pair.model.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("given", "options", "named"),
    [
        ((0, 0), {"basis": "fold"}, ["basis", "'fold'", "'folded'"]),
        ((0, 0), {"side": "values"}, ["side", "'values'", "'value'"]),
        ((0, 0), {"side": []}, ["no side"]),
        ((0, 64), {}, ["neuron 64", "layer 0", "0 to 63"]),
        ((2, 0), {}, ["layer 2", "0 to 1"]),
        ((0, []), {}, ["no neuron"]),
        ((0, 0), {"k": 0}, ["k", "at least 1"]),
        ((None, 5), {}, ["neuron 5", "layer"]),
        ((), {"candidates": "int8"}, ["candidates", "'int8'", "'float32'"]),
    ],
)
def test_what_cannot_be_projected(
    tiny: fm.Model, given: tuple[Any, ...], options: dict[str, Any], named: list[str]
) -> None:
    """A misspelt option would fall back to the default; a neuron too far would wrap into the next layer."""
    with refuses(FfnmemError, IndexError if "0 to" in named[-1] else ValueError, *named):
        fm.project(tiny, *given, **options)


def test_the_whole_model_is_its_layers(pair: Pair) -> None:
    """Bit for bit, whether one neuron is asked, a layer, or all."""
    whole = fm.project(pair.model, k=3)
    layers = pd.concat([fm.project(pair.model, layer, k=3) for layer in range(pair.model.n_layers)], ignore_index=True)
    one = fm.project(pair.model, 1, 17, k=3)
    for column in COLUMNS:
        assert whole[column].tolist() == layers[column].tolist()
        rows = whole[(whole["layer"] == 1) & (whole["neuron"] == 17)]
        assert rows[column].tolist() == one[column].tolist()
    assert whole.attrs == one.attrs


def test_a_whole_models_table_is_small(tiny: fm.Model) -> None:
    """Text as objects would take ten times as much: 1.5 million rows for GPT-2 small's values."""
    table = fm.project(tiny, k=10)
    assert table.memory_usage(index=False, deep=True).sum() < 40 * len(table)


def test_one_block_at_a_time(tokenizer: Any, tmp_path: Path) -> None:
    """With a file, rows are written as they come, a row group for so many neurons."""
    import pyarrow.parquet as pq

    model = fm.load(build_gpt2(n_inner=BLOCK + 44, n_layer=2), tokenizer=tokenizer)
    seen: list[tuple[int, int]] = []
    out = fm.project(model, k=1, side="value", out=tmp_path / "v.parquet", progress=lambda *done: seen.append(done[1:]))
    total = 2 * (BLOCK + 44)
    assert seen == [(BLOCK, total), (BLOCK + 44, total), (2 * BLOCK + 44, total), (total, total)]
    groups = pq.read_metadata(out)
    rows = [groups.row_group(index).num_rows for index in range(groups.num_row_groups)]
    assert rows == [2 * GROUP] * (BLOCK // GROUP) + [88] + [2 * GROUP] * (BLOCK // GROUP) + [88]


def test_tied_embeddings_are_prepared_once(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice would take twice the time and memory for the same numbers."""
    made: list[int] = []

    class Counting(Scorer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(projections, "Scorer", Counting)
    assert tiny.embedding.data_ptr() == tiny.unembedding.data_ptr()
    fm.project(tiny, k=1)
    assert len(made) == 1


def test_promoted_tokens_are_the_projection(tiny: fm.Model) -> None:
    """Neurons of one layer are projected together; each must get its own tokens back."""
    neurons = pd.DataFrame({"layer": [1, 0, 1, 1], "neuron": [5, 7, 63, 0]})
    found = promoted_tokens(tiny, neurons, 3)
    assert set(found) == {(1, 5), (0, 7), (1, 63), (1, 0)}
    for (layer, neuron), tokens in found.items():
        frame = fm.project(tiny, layer, neuron, k=3, side="value")
        assert tokens == frame.loc[frame["sign"] == "promoted", "token"].tolist()
