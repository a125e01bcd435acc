"""``intervene`` against plain hooks on the untouched model; and that nothing of it stays."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, HookError, InputError, OutOfRangeError, UnsupportedModelError
from ffnmem.interventions.intervening import compare_predictions
from ffnmem.models.answers import generate
from ffnmem.models.layer_pass import LayerPass

from ..helpers import PROMPT, Pair, allclose, hook_count, refuses
from .naive import IDS, OTHER_IDS, exact, logits

EVERY = {
    (0, 3): 2.0,
    (0, 60): fm.interventions.Scale(-1.5),
    (1, 5): fm.interventions.Add(0.7),
    (1, 63): fm.interventions.Set(0.0),
}
SHORT = [5, 6, 7]
LOGITS = 1e-6  # what generation returns is in float32


def every(positions: Any = slice(None)) -> dict[int, Callable[[torch.Tensor], None]]:
    """``EVERY`` by hand."""

    def first(m: torch.Tensor) -> None:
        m[:, positions, 3] = 2.0
        m[:, positions, 60] *= -1.5

    def second(m: torch.Tensor) -> None:
        m[:, positions, 5] += 0.7
        m[:, positions, 63] = 0.0

    return {0: first, 1: second}


def seen(model: fm.Model, prompt: Any, row: int = 0) -> torch.Tensor:
    """Logits of one row, its pads left out."""
    capture = fm.capture(model, prompt, logits=True)
    assert capture.logits is not None
    return capture.logits[row, : capture.length(row)]


@pytest.mark.parametrize(
    ("positions", "cells"), [(None, slice(None)), (2, 2), (-1, [-1]), ((0, -3, 4), [0, -3, 4]), (range(5), slice(5))]
)
def test_equals_plain_hooks(pair64: Pair, positions: Any, cells: Any) -> None:
    """Another neuron, layer or position, or one change undone by the next."""
    with fm.intervene(pair64.model, EVERY, positions=positions):
        found = seen(pair64.model, IDS)
    assert allclose(found, logits(pair64, IDS, every(cells))[0], exact(pair64))


def test_what_a_capture_shows(tiny: fm.Model) -> None:
    """The changed coefficients, whose sums hold, and in the provenance why."""
    before = fm.capture(tiny, PROMPT)
    with fm.intervene(tiny, EVERY, positions=-1):
        during = fm.capture(tiny, PROMPT)
        assert tiny.interventions == ("0.3 = 2, 0.60 × -1.5, 1.5 + 0.7, 1.63 = 0 at position -1",)
    assert tiny.interventions == ()
    expected = before.coefficients[0].clone()
    expected[0, -1, 3], expected[0, -1, 60] = 2.0, expected[0, -1, 60] * -1.5
    assert torch.equal(during.coefficients[0], expected)
    assert fm.decompose(during, 0).attrs["error"] < 1e-5
    assert fm.attribute(during).error < 1e-4
    assert dict(during.provenance.settings)["interventions"].startswith("0.3 = 2")
    assert "interventions" not in dict(before.provenance.settings)


def test_rows_of_different_lengths(pair64: Pair) -> None:
    """Positions count each row's own text, and what is done at pads reaches nothing."""
    model = pair64.model
    texts = ["The city of", PROMPT]
    lengths = [len(model.tokenize(text)) for text in texts]
    for positions, cells in (
        (-1, [[n - 1] for n in lengths]),
        (2, [[2], [2]]),
        (None, [list(range(n)) for n in lengths]),
    ):
        with fm.intervene(model, EVERY, positions=positions):
            rows = [seen(model, texts, row) for row in (0, 1)]
        for text, row, where in zip(texts, rows, cells, strict=True):
            alone = logits(pair64, model.tokenize(text), every(where))[0]
            assert allclose(row, alone, max(exact(pair64), 1e-9))


def test_a_dict_for_each_row(pair64: Pair) -> None:
    """Each row as if it ran alone; an empty dict leaves its row as it was."""
    model = pair64.model
    batch = torch.tensor([IDS, IDS, IDS[::-1]])
    whole = {(0, None): fm.interventions.Scale(0.5), (0, 7): 3.0}
    with fm.intervene(model, [EVERY, {}, whole], positions=(1, -1)):
        found = fm.capture(model, batch, logits=True).logits
    assert found is not None
    for row, asked in enumerate((EVERY, None, whole)):
        if asked is None:
            alone = seen(model, batch[row])
        else:
            with fm.intervene(model, asked, positions=(1, -1)):
                alone = seen(model, batch[row])
        assert allclose(found[row], alone, exact(pair64))


def test_resampling(model64: fm.Model) -> None:
    """One place for each cell, from the seed, the row and the position alone; a place of the source, never a pad."""
    source = fm.capture(model64, [PROMPT, "The Tower"])
    pool = source.coefficients[0][source.content]
    with fm.intervene(model64, {(0, None): fm.interventions.Resample(source, seed=5)}):
        found = fm.capture(model64, torch.tensor([IDS, IDS])).coefficients[0]
        alone = fm.capture(model64, IDS[:4]).coefficients[0]
    for row in range(2):
        draws = np.random.default_rng([5, row]).random(model64.n_ctx)
        for position in range(len(IDS)):
            assert torch.equal(found[row, position], pool[int(draws[position] * len(pool))])
    assert torch.equal(alone[0], found[0, :4])
    assert not torch.equal(found[0], found[1])


# -- generation -------------------------------------------------------------------------------------------------------


def uncached(
    model: fm.Model, prompt: list[int], new: int, asked: Any, positions: Any
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and their logits, each from a whole pass over the text so far; positions as absolute ones."""
    tokens, found = list(prompt), []
    for _ in range(new):
        reached = None if positions is None else [p for p in positions if p < len(tokens)]
        if reached == []:
            found.append(fm.capture(model, tokens).logits_at(0, len(tokens) - 1))
        else:
            with fm.intervene(model, asked, positions=reached):
                found.append(fm.capture(model, tokens).logits_at(0, len(tokens) - 1))
        tokens.append(int(found[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(found)


def cached(model: fm.Model, ids: torch.Tensor, new: int, mask: torch.Tensor | None = None) -> tuple[Any, torch.Tensor]:
    out = model.hf_model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[:, ids.shape[1] :].tolist(), torch.stack(out.logits, 1)


@pytest.mark.parametrize(
    ("positions", "absolute"), [(None, None), (3, [3]), (-1, [len(SHORT) - 1]), ((1, 4, 6), [1, 4, 6]), (5, [5])]
)
def test_generation_with_a_cache(pair64: Pair, positions: Any, absolute: Any) -> None:
    """With a cache the text's positions go on; each step equals a whole pass over the text so far."""
    model = pair64.model
    asked = {**EVERY, (1, 20): fm.interventions.Add(4.0)}
    with fm.intervene(model, asked, positions=positions):
        (tokens,), found = cached(model, torch.tensor([SHORT]), 5)
    greedy, expected = uncached(model, SHORT, 5, asked, absolute)
    if 0 in greedy:  # its end: Hugging Face was told to go on
        greedy, tokens, expected = greedy[: greedy.index(0)], tokens[: greedy.index(0)], expected[: greedy.index(0)]
    assert tokens == greedy
    assert allclose(found[0, : len(expected)], expected, LOGITS)


# TransformerLens 4.3 hands transformers 5.24 its cache under the name that it had until then.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_resampling_under_a_cache(model64: fm.Model) -> None:
    asked = {(0, None): fm.interventions.Resample(fm.capture(model64, PROMPT), seed=2)}
    with fm.intervene(model64, asked):
        (tokens,), found = cached(model64, torch.tensor([SHORT]), 4)
        assert generate(model64, SHORT, 4) == tokens
        theirs = model64.to_bridge().generate(torch.tensor([SHORT]), max_new_tokens=4, do_sample=False, verbose=False)
    assert theirs[0, len(SHORT) :].tolist() == tokens
    greedy, expected = uncached(model64, SHORT, 4, asked, None)
    assert tokens == greedy
    assert allclose(found[0], expected, LOGITS)


def test_rows_under_generation(pair64: Pair) -> None:
    """A left-padded batch, each row with changes of its own, at its own positions."""
    model = pair64.model
    ids = torch.tensor([IDS[:6], [0, 0, 0, *SHORT]])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with fm.intervene(model, [EVERY, {(0, None): fm.interventions.Scale(0.3)}], positions=(-1, 7)):
        tokens, found = cached(model, ids, 3, mask)
    with fm.intervene(model, EVERY, positions=(-1, 7)):
        (alone,), expected = cached(model, ids[:1], 3)
    assert tokens[0] == alone
    assert allclose(found[0], expected[0], LOGITS)
    with (
        refuses(OutOfRangeError, IndexError, "position 7", "never reached"),
        fm.intervene(model, {(0, None): fm.interventions.Scale(0.3)}, positions=(-1, 7)),
    ):
        (alone,), expected = cached(model, torch.tensor([SHORT]), 3)
    assert tokens[1] == alone
    assert allclose(found[1], expected[0], LOGITS)


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_blocks_nest(model64: fm.Model) -> None:
    """An inner one acts on what the outer one left, and only the inner one goes at its end."""
    m = fm.capture(model64, IDS).coefficients[0][0, :, 3]
    with fm.intervene(model64, {(0, 3): fm.interventions.Add(1.0)}):
        with fm.intervene(model64, {(0, 3): fm.interventions.Scale(2.0)}, positions=4):
            both = fm.capture(model64, IDS)
        outer = fm.capture(model64, IDS)
    assert allclose(outer.coefficients[0][0, :, 3], m + 1, 1e-12)
    expected = m + 1
    expected[4] *= 2
    assert allclose(both.coefficients[0][0, :, 3], expected, 1e-12)
    assert dict(both.provenance.settings)["interventions"] == "0.3 + 1; 0.3 × 2 at position 4"


def test_nothing_stays(make_tiny: Callable[..., fm.Model]) -> None:
    """After the block, after an exception inside, after one of its own, after a pass that failed half-way."""
    model = make_tiny()
    clean = seen(model, IDS)
    before = hook_count(model.hf_model), model.fingerprint
    with fm.intervene(model, EVERY):
        assert not torch.equal(seen(model, IDS), clean)
    with pytest.raises(ZeroDivisionError), fm.intervene(model, EVERY, positions=99 % model.n_ctx):
        raise ZeroDivisionError
    with pytest.raises(InputError), fm.intervene(model, [EVERY, {}]):
        fm.capture(model, IDS)
    with pytest.raises(OutOfRangeError), fm.intervene(model, EVERY, positions=20):
        fm.capture(model, IDS)
    assert (hook_count(model.hf_model), model.fingerprint) == before
    assert model.interventions == ()
    assert torch.equal(seen(model, IDS), clean)


def test_what_runs_layers_by_themselves_refuses(tiny: fm.Model) -> None:
    """Its numbers would be those of another model."""
    with fm.intervene(tiny, {(0, 3): 1.0}), refuses(UnsupportedModelError, ValueError, "0.3 = 1", "leave the block"):
        LayerPass(tiny)
    assert LayerPass(tiny).n_layers == 2


def test_an_ffn_that_runs_alone(tiny: fm.Model) -> None:
    """Without a pass there are no positions; what is the same everywhere can still be done."""
    ffn = tiny.ffn[0]
    m = torch.randn(4, tiny.d_mlp)
    with torch.no_grad():
        expected = m.clone()
        expected[:, 3] = 1.0
        expected = ffn.project_out(expected)
        with fm.intervene(tiny, {(0, 3): 1.0}):
            assert torch.equal(ffn.project_out(m), expected)
        for options in ({"positions": 0}, {}):
            asked: Any = {(0, 3): 1.0} if options else [{(0, 3): 1.0}, {}]
            with fm.intervene(tiny, asked, **options), refuses(HookError, RuntimeError, "outside a pass"):
                ffn.project_out(m)


def test_positions_are_checked_before_the_block(tiny: fm.Model) -> None:
    for positions, kind, named in (
        ([], InputError, "positions is empty"),
        (32, OutOfRangeError, "position 32"),
        ([0, -33], OutOfRangeError, "position -33"),
    ):
        with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, named):
            fm.intervene(tiny, EVERY, positions=positions)  # type: ignore[arg-type]


def test_mistakes_that_only_a_pass_shows(tiny: fm.Model) -> None:
    with (
        refuses(InputError, ValueError, "1 row,", "given for 2"),
        fm.intervene(tiny, [EVERY, EVERY]),
    ):
        fm.capture(tiny, IDS)
    with refuses(OutOfRangeError, IndexError, "position -9", "3 tokens"), fm.intervene(tiny, EVERY, positions=-9):
        fm.capture(tiny, SHORT)
    with refuses(OutOfRangeError, IndexError, "10, 12", "10 tokens"), fm.intervene(tiny, EVERY, positions=[1, 10, 12]):
        fm.capture(tiny, IDS)
        fm.capture(tiny, OTHER_IDS)
    with fm.intervene(tiny, EVERY, positions=20):
        pass  # nothing ran


def test_a_prompt_read_before_the_block(tiny: fm.Model) -> None:
    """Where its end was is not known inside; positions from 0 are, by the cache."""
    hf = tiny.hf_model
    name = "cache" if "cache" in inspect.signature(hf.forward).parameters else "past_key_values"
    with torch.no_grad():
        cache = {name: hf(torch.tensor([SHORT]), use_cache=True)[name]}
        with refuses(HookError, RuntimeError, "position -1"), fm.intervene(tiny, EVERY, positions=-1):
            hf(torch.tensor([[9]]), **cache, use_cache=True)
        cache = {name: hf(torch.tensor([SHORT]), use_cache=True)[name]}
        with fm.intervene(tiny, EVERY, positions=3):
            found = hf(torch.tensor([[9]]), **cache, use_cache=True).logits[0, -1]
    with fm.intervene(tiny, EVERY, positions=3):
        assert allclose(found, seen(tiny, [*SHORT, 9])[-1], 1e-5)


def test_a_block_that_is_never_entered_is_told(tiny: fm.Model) -> None:
    """``fm.intervene(model, …)`` on a line of its own changes nothing, and all that follows is the model as it was."""
    with pytest.warns(FfnmemWarning, match=r"0\.3 = 0.*never entered.*with fm\.intervene"):
        fm.intervene(tiny, {(0, 3): 0.0})
    block = fm.intervene(tiny, {(0, 3): 0.0})
    assert "0.3 = 0" in repr(block)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with block:
            pass
        with block:  # again
            pass
        del block


def test_predictions_before_and_after(tiny: fm.Model) -> None:
    """The table would have another position's tokens, or leave out one that is likely in either pass."""
    before = fm.capture(tiny, PROMPT)
    with fm.intervene(tiny, {(0, None): 0.0}):
        after = fm.capture(tiny, PROMPT)
    found = compare_predictions(before, after, 3, k=6)
    first, second = (c.predictions(3, k=tiny.d_vocab).set_index("token_id") for c in (before, after))
    assert found["before"].clip(lower=found["after"]).is_monotonic_decreasing
    assert len(found) == 6
    for row in found.itertuples():
        for name, table in (("before", first), ("after", second)):
            assert getattr(row, name) == pytest.approx(table["probability"][row.token_id])
            assert getattr(row, f"rank_{name}") == table["rank"][row.token_id]
            assert getattr(row, f"logit_{name}") == pytest.approx(table["logit"][row.token_id])
        assert row.change == pytest.approx(row.after - row.before)
        assert row.token == tiny.token_strings([row.token_id])[0]
    left_out = set(range(tiny.d_vocab)) - set(found["token_id"])
    least = found[["before", "after"]].max(axis=1).min()
    assert all(max(first["probability"][i], second["probability"][i]) <= least for i in left_out)
    with refuses(InputError, ValueError, "different prompts"):
        compare_predictions(before, fm.capture(tiny, "The city"))
    with refuses(OutOfRangeError, IndexError, "position 99"):
        compare_predictions(before, after, 99)
    with refuses(InputError, ValueError, "k", "0"):
        compare_predictions(before, after, k=0)
