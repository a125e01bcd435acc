"""Keys and values in token space, and the neurons behind a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.models.layout import inner
from ffnmem.vocabulary.projections import (
    COLUMNS,
    promoted_tokens,
)
from ffnmem.vocabulary.scoring import BLOCK
from ffnmem.vocabulary.vectors import sides_of

from ..helpers import Pair, allclose, build_gpt2, printed, refuses

SIGNS = ("promoted", "suppressed")


def naive(model: Any, layer: int, side: str, basis: str) -> torch.Tensor:
    """``[d_mlp, vocab]``: every neuron's score of every token, written out."""
    block, final = model.layout.blocks[layer], model.layout.final_norm

    def gain(norm: Any) -> torch.Tensor:
        return inner(norm).weight.detach() + (1.0 if "Gemma" in model.architecture else 0.0)

    def centre(rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(1, keepdim=True) if isinstance(inner(final), torch.nn.LayerNorm) else rows

    if side == "value":
        rows, tokens = model.ffn[layer].values.detach(), model.unembedding.detach()
        behind = rows if block.post is None else rows * gain(block.post)
        return (centre(behind) * gain(final) if basis == "folded" else rows) @ tokens.T
    matrix = model.ffn[layer].gates if side == "gate" else model.ffn[layer].keys
    assert matrix is not None
    rows = matrix.detach()
    return (centre(rows * gain(block.norm)) if basis == "folded" else rows) @ model.embedding.detach().T


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_scores_are_those_written_out(pair64: Pair, basis: Any) -> None:
    """A neuron would be said to write what it does not: wrong gain, matrix, layer or end of the ranking."""
    model = pair64.model
    before = {name: tensor.clone() for name, tensor in model.hf_model.state_dict().items()}
    table = fm.project(model, 1, [3, 17], k=5, basis=basis).to_frame()
    assert list(dict.fromkeys(table["side"])) == list(sides_of(model))
    for (neuron, side, sign), rows in table.groupby(["neuron", "side", "sign"]):
        scores = naive(model, 1, side, basis)[neuron]
        top = (scores if sign == "promoted" else -scores).topk(5).indices
        assert rows["rank"].tolist() == [1, 2, 3, 4, 5]
        assert rows["token_id"].tolist() == top.tolist()
        assert rows["token"].tolist() == model.token_strings(top)
        assert allclose(rows["score"], scores[top], 1e-12)
    tokens: list[str | int] = [" Paris", " Rome", 7]
    ids = [model.token_id(token) for token in tokens]
    for side in sides_of(model):
        mean = torch.cat([naive(model, layer, side, basis)[:, ids].mean(1) for layer in range(model.n_layers)])
        found = fm.vocabulary.promoters(model, tokens, k=4, side=side, basis=basis).to_frame()
        for sign, order in (("promoted", (-mean).argsort()), ("suppressed", mean.argsort())):
            rows = found[found["sign"] == sign]
            assert rows["rank"].tolist() == [1, 2, 3, 4]
            assert (rows["layer"] * model.d_mlp + rows["neuron"]).tolist() == order[:4].tolist()
            assert allclose(rows["score"], mean[order[:4]], 1e-12)
    for record in (table.attrs["provenance"], found.attrs["provenance"]):
        assert (record["basis"], record["lens"], record["fingerprint"]) == (basis, "logit", model.fingerprint)
    assert all(torch.equal(model.hf_model.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_values_folded_score_is_its_effect(pair64: Pair) -> None:
    """The two tools would disagree: a neuron's logit is its coefficient times its folded score over the scale: the
    final norm's, and with a norm behind the FFN (Gemma 2) each layer's own besides."""
    model = pair64.model
    attribution = fm.attribute(fm.capture(model, "The Eiffel Tower is in"), " Paris", " Rome")
    scores = torch.stack([naive(model, layer, "value", "folded") for layer in range(2)])
    effect = attribution.coefficients[0] * (
        scores[..., model.token_id(" Paris")] - scores[..., model.token_id(" Rome")]
    )
    usable = effect.abs() > 1e-6
    scales = [(attribution.neuron_logits[0] / effect)[layer][usable[layer]] for layer in range(2)]
    for scale in [torch.cat(scales)] if model.norm_after(0) is None else scales:
        assert allclose(scale, torch.full_like(scale, float(scale[0])), 1e-8)


def test_half_precision_models_are_scored_in_float32(tiny_hf: Any, tokenizer: Any) -> None:
    """bfloat16 has eight bits: half the vocabulary would tie."""
    half, exact = (fm.load(tiny_hf, tokenizer=tokenizer, dtype=dtype) for dtype in ("bfloat16", "float32"))
    with torch.no_grad():  # the same rounded weights in float32
        for a, b in zip(exact.hf_model.parameters(), half.hf_model.parameters(), strict=True):
            a.copy_(b)
    found, expected = (fm.project(model, 0, [1, 2], k=20).to_frame() for model in (half, exact))
    assert found["token_id"].tolist() == expected["token_id"].tolist()
    assert allclose(found["score"], expected["score"], 1e-6)


def test_ties_go_by_token_id_and_k_ends_with_the_vocabulary(make_tiny: Callable[..., fm.Model]) -> None:
    """Two runs, or two machines, would show different tokens."""
    model = make_tiny()
    with torch.no_grad():
        model.unembedding[200:290] = model.unembedding[200]
    whole, few = (fm.project(model, 0, k=k, side="value").to_frame() for k in (10**6, 30))
    assert whole[whole["rank"] <= 30].reset_index(drop=True).equals(few)
    for (_, sign), rows in whole.groupby(["neuron", "sign"]):
        assert sorted(rows["token_id"]) == list(range(model.d_vocab))
        assert [i for i in rows["token_id"] if 200 <= i < 290] == list(range(200, 290))
        score = rows["score"]
        assert score.is_monotonic_decreasing if sign == "promoted" else score.is_monotonic_increasing


def test_the_whole_model_is_its_layers(tokenizer: Any, tmp_path: Path) -> None:
    """Bit for bit, in blocks of neurons and alone; a file of the table has its rows."""
    n = BLOCK + 44
    model = fm.load(build_gpt2(n_inner=n), tokenizer=tokenizer)
    seen: list[tuple[int, int]] = []
    whole = fm.project(model, k=2, progress=lambda *done: seen.append(done[1:])).to_frame()
    assert seen == [(BLOCK, 2 * n), (n, 2 * n), (BLOCK + n, 2 * n), (2 * n, 2 * n)]
    layers = pd.concat([fm.project(model, layer, k=2).to_frame() for layer in range(2)], ignore_index=True)
    whole.to_parquet(tmp_path / "whole.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "whole.parquet"), whole)
    assert list(whole.columns) == list(COLUMNS)
    assert all(whole[name].tolist() == layers[name].tolist() for name in COLUMNS)
    assert whole.memory_usage(index=False, deep=True).sum() < 40 * len(whole)  # text as objects takes ten times as much
    for neuron in (0, BLOCK - 1, BLOCK, n - 1):
        one = fm.project(model, 1, neuron, k=2).to_frame()
        assert layers.query("layer == 1 and neuron == @neuron").reset_index(drop=True).equals(one)
    assert whole.attrs == layers.attrs == one.attrs


# -- the neurons behind a token, and what neurons wrote --------------------------------------------------------------


def test_promoters_have_the_scores_of_project(tiny: fm.Model) -> None:
    """Bit for bit, found from the other end; of one layer, no more neurons than there are."""
    one = fm.vocabulary.promoters(tiny, " Paris", k=2, side=("value", "key")).to_frame()
    columns = ["layer", "neuron", "side", "sign", "basis", "lens", "rank", "score"]
    assert list(one.columns) == [*columns, "token", "token_id"]
    assert list(zip(one["side"], one["sign"], one["token"], strict=True))[::2] == [
        (side, sign, " Paris") for side in ("value", "key") for sign in SIGNS
    ]
    row = one.iloc[0]
    table = fm.project(tiny, int(row["layer"]), int(row["neuron"]), k=tiny.d_vocab, side="value").to_frame()
    assert table[table["token"] == " Paris"]["score"].iloc[0] == row["score"]
    for kind in (list, np.array, pd.Series):  # rows come in the order given
        listed = fm.project(tiny, 0, kind([9, 2, -1]), k=1, side="key").to_frame()
        assert listed["neuron"].tolist() == [9, 9, 2, 2, 63, 63]
    several = fm.vocabulary.promoters(tiny, [" Paris", " Rome", " Paris"], k=2).to_frame()
    assert several["tokens"].tolist() == [[" Paris", " Rome"]] * 4
    last = fm.vocabulary.promoters(tiny, 5, layer=-1, k=1000).to_frame()
    assert set(last["layer"]) == {1}
    assert sorted(last["neuron"]) == sorted([*range(64)] * 2)
    first = fm.vocabulary.promoters(tiny, " Colosseum", first_token=True).to_frame()["token_id"].iloc[0]
    assert first == tiny.token_id(" C", first=True)


def test_what_neurons_wrote(make_tiny: Callable[..., fm.Model]) -> None:
    """The two ends would be mixed up where a coefficient is negative, or another neuron's tokens be shown."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].values[7].copy_(-10 * model.unembedding[40])  # far against one of the two
    neurons = pd.DataFrame({"layer": [1, 0, 1, 0], "neuron": [5, 7, 63, 7], "coefficient": [2.0, 1.0, -1.0, 1.0]})
    ends = {}
    for layer, neuron in ((1, 5), (0, 7), (1, 63)):
        frame = fm.project(model, layer, neuron, k=3, side="value").to_frame()
        ends[layer, neuron] = [frame.loc[frame["sign"] == sign, "token"].tolist() for sign in SIGNS]
    assert promoted_tokens(model, neurons, 3) == {place: both[0] for place, both in ends.items()}
    fired = promoted_tokens(model, neurons, 3, fired="coefficient")
    assert fired == {place: both[place == (1, 63)] for place, both in ends.items()}


def test_sheets_show_the_tables(tiny: fm.Model) -> None:
    """Ends in the wrong column, or a score beside another token."""
    projected = fm.project(tiny, ["1.5", "0.3"], k=2)
    table, lines = projected.to_frame(), printed(projected.sheet())
    (at,) = (i for i, line in enumerate(lines) if line.strip().startswith("0.3 key: "))
    for rank in (1, 2):
        ends = table.query("layer == 0 and side == 'key' and rank == @rank")["score"]
        (shown,) = [line for line in lines[at : at + 6] if line.split()[:1] == [str(rank)]]
        scores = [float(word) for word in shown.split() if word[0] in "+-" and word[1:2].isdigit()]
        assert allclose(scores, ends, 1e-3)
    found = fm.vocabulary.promoters(tiny, [" Paris", " Rome"], k=2, side=("value", "key"))
    shown = "\n".join(printed(found.sheet()))
    assert "' Paris', ' Rome'" in shown
    assert all(f" {row.layer}.{row.neuron} " in shown for row in found.neurons.itertuples())
    zeros = printed(replace(projected, tokens=table.assign(score=0.0)).sheet())
    assert any("1.5 value: all zeros" in line for line in zeros)


FOLD: Any = "fold"
REFUSED: list[tuple[Callable[[Any], Any], type[Exception], list[str]]] = [
    (lambda m: fm.project(m, 0, 0, basis=FOLD), ValueError, ["basis", "'fold'", "'folded'"]),
    (lambda m: fm.project(m, 0, 0, side="values"), ValueError, ["side", "'values'", "'value'"]),
    (lambda m: fm.project(m, 0, 0, side=[]), ValueError, ["no side"]),
    (lambda m: fm.project(m, 0, 0, side="gate"), ValueError, ["no gates"]),
    (lambda m: fm.project(m, 2, 0), IndexError, ["layer 2", "0 to 1"]),
    (lambda m: fm.project(m, None, 5), ValueError, ["neuron 5", "layer"]),
    (lambda m: fm.project(m, "1.5", 5), ValueError, ["'1.5'", "leave out neuron 5"]),
    (lambda m: fm.project(m, 0, 0, k=0), ValueError, ["k", "at least 1"]),
    (lambda m: fm.project(m, candidates="int8"), ValueError, ["candidates", "'int8'", "'float32'"]),
    (lambda m: fm.vocabulary.promoters(m, " Colosseum"), ValueError, ["' Colosseum'", "tokens", "--first-token"]),
    (lambda m: fm.vocabulary.promoters(m, []), ValueError, ["no token"]),
    (lambda m: fm.vocabulary.promoters(m, 5, layer=2), IndexError, ["layer 2"]),
]


@pytest.mark.parametrize(("call", "builtin", "named"), REFUSED)
def test_mistakes(tiny: fm.Model, call: Callable[[fm.Model], Any], builtin: type[Exception], named: list[str]) -> None:
    """A misspelt option would fall back to the default; a neuron too far would wrap into the next layer."""
    with refuses(FfnmemError, builtin, *named):
        call(tiny)
