"""What an edit left behind in a checkpoint, found again from both checkpoints: known changes, rounding, and nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError, unwarned
from ffnmem.editing import Audit, audit
from ffnmem.facts.answers import word_ids
from ffnmem.models.layout import oriented

from ..architectures import DECODERS
from ..helpers import allclose, build_gpt2, printed, randomise, refuses

SOME = list({fact.subject: fact for fact in random.Random(0).sample(fm.load_facts("atlas"), 120)}.values())
SOME = SOME[:20]
FEW, MORE = ("GPT-2", "GPT-2 untied", "Llama", "OLMo 2"), ("Phi 3", "Gemma 2", "Falcon 40B", "OPT")
KINDS = [*FEW, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)]


def stored(model: fm.Model, kind: torch.dtype) -> fm.Model:
    """The checkpoint after it was stored in a numeric type."""
    return fm.load(copy.deepcopy(model.hf_model).to(kind).float(), tokenizer=model.tokenizer)


def ranks(found: Audit) -> dict[tuple[int, str], int]:
    return {(row.layer, row.matrix): row.rank for row in found.matrices.itertuples() if not row.more}


def add(model: fm.Model, change: Callable[[fm.Model], None]) -> fm.Model:
    """A copy of a model with a change of its weights."""
    with torch.no_grad():
        changed = fm.load(copy.deepcopy(model.hf_model), tokenizer=model.tokenizer)
        change(changed)
        return changed


EDITORS: dict[str, tuple[int, Callable[[fm.Model, list[fm.Fact]], Any], torch.dtype]] = {
    "rome": (1, lambda model, facts: fm.rome(model, facts[0], contexts=["{}"]), torch.float32),
    "memit": (3, fm.editing.memit, torch.float16),
    "two layers": (2, partial(fm.editing.memit, layer=3, layers=2, contexts=["{}"]), torch.bfloat16),
}


@pytest.mark.parametrize("name", ["rome", pytest.param("memit", marks=pytest.mark.exhaustive), "two layers"])
def test_facts_of_editors_are_named(atlas: fm.Model, name: str) -> None:
    """A checkpoint would be edited and nobody could say where, or which facts, once it is stored in half precision."""
    count, make, kind = EDITORS[name]
    with unwarned():
        edit = make(atlas, SOME[:count])
    with edit.applied(atlas):
        after = stored(atlas, kind)
        now = fm.capture(atlas, SOME[0].text, logits=True)
    told: list[tuple[str, int, int]] = []
    found = audit(atlas, after, SOME, progress=lambda *step: told.append(step))
    assert ranks(found) == {(layer, "FFN down"): count for layer in edit.layers}
    assert (found.rounded > 0) == (kind == torch.bfloat16)  # atlas is stored in float16
    assert found.facts is not None
    assert found.changed is not None
    assert len(found.facts) == len(SOME)
    assert found.facts["distance"].is_monotonic_decreasing
    assert set(found.changed["subject"]) >= {fact.subject for fact in SOME[:count]}
    first = {fact.text: word_ids(atlas, fact.text, str(fact.target_new))[0] for fact in SOME[:count]}
    rows = found.facts[found.facts["prompt"].isin(list(first))]
    for row in rows.itertuples():
        assert row.raised == row.says_after == atlas.token_strings([first[row.prompt]])[0]
    if name != "rome":
        return
    assert "FFN down of layer 0 (rank 1" in found.verdict
    assert found.verdict.endswith(f" The likeliest answer changed for {len(found.changed)} of {len(SOME)} facts.")
    assert set(rows["moved"]) == {found.facts["moved"].max()}  # at no other subject does the layer write so much else
    # How far the fact moves: at the subject's last token, and in the prediction.
    assert list(dict.fromkeys(phase for phase, *_ in told)) == ["audit", "answers"]
    assert all(done <= of for _, done, of in told)
    row, taken = rows.iloc[0], fm.capture(atlas, SOME[0].text, logits=True)
    key = taken.coefficients[0][0].double()
    moved = (key @ edit.changes[0].delta()).norm(dim=1) / (key @ atlas.ffn[0].values.double()).norm(dim=1)
    assert min(abs(moved.detach() - row["moved"])) < 1e-5
    one, two = (c.logits_at(0, -1).detach().double().softmax(0) for c in (taken, now))
    assert allclose([row["distance"], row["rise"]], [(two - one).abs().sum() / 2, (two - one).max()], 1e-5)
    assert found.parts["share"][0] == pytest.approx(1)
    assert audit(atlas, after).facts is None


@pytest.mark.parametrize("kind", ["atlas", "Llama"])
def test_an_adapter_of_two_matrices(atlas: fm.Model, tokenizer: Any, kind: str) -> None:
    """A matrix, its rank or its size would be another's."""
    model = atlas if kind == "atlas" else fm.load(DECODERS["Llama"](), tokenizer=tokenizer)
    generator = torch.Generator().manual_seed(0)

    def adapt(changed: fm.Model) -> None:
        for layer, module in ((0, changed.ffn[0].project_in), (1, changed.ffn[1].project_out)):
            weight = oriented(module)
            a, b = (torch.randn(2, size, generator=generator) for size in weight.shape)
            weight += 0.1 * weight.norm() * (a.T @ b) / (a.T @ b).norm() * (1 + layer)

    changed = add(model, adapt)
    found = audit(model, changed, SOME[:2] if kind == "atlas" else None)
    assert list(ranks(found).items()) == [((1, "FFN down"), 2), ((0, "FFN up" if model.gated else "FFN in"), 2)]
    allclose(found.matrices["of_norm"], [0.2, 0.1], 1e-5)
    if kind == "Llama":
        rows = [line.split() for line in printed(found.sheet())]
        assert [row for row in rows if row[1:3] in (["FFN", "down"], ["FFN", "up"])][:2] == [
            ["1", "FFN", "down", "20.0%", "2"], ["0", "FFN", "up", "10.0%", "2"]
        ]  # fmt: skip
        assert found.changed is None


EXPERTS = [("Mixtral", 1), pytest.param("DeepSeek V3 with a dense layer", 1, marks=pytest.mark.exhaustive),
           pytest.param("Llama 4", 1, marks=pytest.mark.exhaustive), ("GPT-OSS", 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expert"),
    [*((name, None) for name in FEW), *(pytest.param(n, None, marks=pytest.mark.exhaustive) for n in MORE), *EXPERTS],
)
def test_parts_read_as_projections(name: str, expert: int | None, tokenizer: Any) -> None:
    """A neuron's value or key that was scaled would read otherwise than ``project`` reads it."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)
    own = model.ffn[1] if expert is None else model.ffn[1].experts[expert]
    neuron = 7 if expert is None else own.neurons[7]
    sides = {"value": "FFN down of experts" if expert is not None else "FFN down"}
    if expert is None and name != "Phi 3":  # whose gates and keys are in one
        sides["key"] = "FFN up" if model.gated else "FFN in"
    for side, matrix in sides.items():

        def scale(changed: fm.Model, side: str = side) -> None:
            ffn: Any = changed.ffn[1] if expert is None else changed.ffn[1].experts[expert]
            (ffn.values if side == "value" else ffn.keys)[7].mul_(2)

        found = audit(model, add(model, scale), k=4)
        assert found.matrices[["layer", "matrix", "rank"]].to_numpy().tolist() == [[1, matrix, 1]]
        tokens, part = fm.project(model, 1, neuron, k=4, side=side).to_frame(), found.parts.iloc[0]
        ends = tuple(list(tokens[tokens["sign"] == sign]["token"]) for sign in ("promoted", "suppressed"))
        assert (part.matrix, part.part, part.uses[0]) == (matrix, 1, f"1.{neuron}")
        assert allclose([part["size"], part.share], [found.matrices["norm"][0], 1.0], 1e-4)
        assert (part.promotes, part.suppresses) == ends  # the neuron that the change names counts as positive


ATTENTION = {
    "GPT-2": ("transformer.h.1", "attn.c_attn", "attn.c_proj", "ln_1", None, "transformer.ln_f"),
    "Llama": ("model.layers.1", "self_attn.q_proj", "self_attn.o_proj", "input_layernorm", None, "model.norm"),
    "OLMo 2": (
        "model.layers.1", "self_attn.q_proj", "self_attn.o_proj", None, "post_attention_layernorm", "model.norm"
    ),
}  # fmt: skip
"""A layer; where its attention reads and writes; the norms before and behind it; the last norm."""


@pytest.mark.parametrize("name", ATTENTION)
def test_parts_of_attention_are_read_through_its_norms(name: str, tokenizer: Any) -> None:
    """What attention reads would be shown behind its norm, and what it writes in front of it."""
    model = fm.load(randomise(DECODERS[name]()), tokenizer=tokenizer)
    layer, reads, writes, before, behind, last = ATTENTION[name]
    along = torch.randn(model.d_model, generator=torch.Generator().manual_seed(3))

    def linear(norm: str | None) -> torch.Tensor:
        """What a norm does but for its scale, as a matrix: x to its product with it."""
        if norm is None:
            return torch.eye(model.d_model)
        module: Any = model.hf_model.get_submodule(norm)
        centring = torch.eye(model.d_model) - isinstance(module, torch.nn.LayerNorm) / model.d_model
        return centring * module.weight

    seen = {
        reads: model.embedding @ linear(before and f"{layer}.{before}") @ along,
        writes: model.unembedding @ linear(last).T @ linear(behind and f"{layer}.{behind}").T @ along,
    }
    for matrix, scores in seen.items():

        def add_outer(changed: fm.Model, matrix: str = matrix) -> None:
            weight: Any = changed.hf_model.get_submodule(f"{layer}.{matrix}").weight
            stored_by_input = name == "GPT-2"
            by_rows = stored_by_input == (matrix == reads)
            other = torch.linspace(1, 2, weight.shape[1 if by_rows else 0])
            weight += torch.outer(along, other) if by_rows else torch.outer(other, along)

        part = audit(model, add(model, add_outer), k=4).parts.iloc[0]
        ends = [model.token_strings((sign * scores).topk(4).indices.tolist()) for sign in (1, -1)]
        assert sorted([part.promotes, part.suppresses]) == sorted(ends)
        named = "attention out" if matrix == writes else matrix
        assert (part.layer, part.matrix, part.uses) == (1, named, [])


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_is_named_once(name: str, tokenizer: Any) -> None:
    """A change would be overlooked, or told twice where embeddings are tied; or its rank would be another."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)

    def change(changed: fm.Model) -> None:
        for one in changed.hf_model.parameters():
            ends = [torch.linspace(1, 2, size) for size in one.shape]
            one += ends[0] if one.ndim == 1 else ends[0][:, None] * ends[1]

    found = audit(model, add(model, change))
    parameters = dict(model.hf_model.named_parameters())
    assert set(found.matrices["parameter"]) == set(parameters)
    assert found.compared == len(found.matrices) == len(parameters)
    assert all(row.rank == (parameters[row.parameter].ndim > 1) for row in found.matrices.itertuples())
    blocks = found.matrices.groupby("matrix")["layer"].agg(list)
    assert sorted(blocks["FFN down"]) == sorted(blocks["attention out"]) == [0, 1]
    assert ("unembedding" in blocks) == (model.unembedding is not model.embedding)


def test_rows_of_embeddings_are_tokens(tiny: fm.Model) -> None:
    """Whose embedding was changed could not be read."""

    def change(changed: fm.Model) -> None:
        changed.embedding[[11, 300 % len(changed.tokenizer)]] += torch.eye(changed.d_model)[:2]

    found = audit(tiny, add(tiny, change))
    named = tiny.token_strings([11, 300 % len(tiny.tokenizer)])
    assert ranks(found) == {(-1, "embedding"): 2}
    assert {uses[0] for uses in found.parts["uses"]} <= set(named)


def test_ranks_of_a_large_matrix(atlas: fm.Model) -> None:
    """Random directions would miss singular values that torch finds; of a full rank more would be claimed."""
    a, b = (torch.randn(5, size, generator=torch.Generator().manual_seed(1)) for size in (1024, 256))

    def low(changed: fm.Model) -> None:
        changed.ffn[2].values.add_(a.T @ b, alpha=0.1)

    found = audit(atlas, add(atlas, low), parts=9)
    expected = torch.linalg.svdvals(0.1 * a.double().T @ b.double())[:5]
    allclose(found.parts["size"], expected, 1e-5)
    full = audit(atlas, add(atlas, lambda changed: changed.ffn[2].values.mul_(1.01)), SOME[:2], ranks=10)
    assert full.matrices[["rank", "more"]].iloc[0].tolist() == [10, True]
    assert "rank over 10" in full.verdict
    assert full.facts is not None
    assert full.facts["moved"].isna().all()  # whose row space says nothing


def test_nothing_but_rounding(atlas: fm.Model, tiny: fm.Model, tiny_folder: Path) -> None:
    """What was only stored in another type would be told as an edit."""
    assert audit(tiny, tiny_folder).verdict == f"No weight of {audit(tiny, tiny).compared} tensors differs."
    for pair in ((atlas, stored(atlas, torch.bfloat16)), (stored(atlas, torch.bfloat16), atlas)):
        found = audit(*pair)
        assert not len(found.matrices)
        assert found.rounded > 70


def test_mistakes(tiny: fm.Model, tokenizer: Any) -> None:
    """What cannot be compared would fail inside torch, or be compared."""
    larger = fm.load(build_gpt2(n_inner=32), tokenizer=tokenizer)
    with refuses(InputError, ValueError, "mlp.c_fc.weight", "[16, 64]", "[16, 32]"):
        audit(tiny, larger)
    with refuses(InputError, ValueError, "'Louvre'"):
        audit(tiny, tiny, "The Eiffel Tower is in", subject="Louvre")
    with refuses(InputError, ValueError, "give the text"):
        audit(tiny, tiny, subject="Louvre")
    with refuses(InputTypeError, TypeError, "before"):
        audit(3, tiny)  # type: ignore[arg-type]
