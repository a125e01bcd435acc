"""``intervene`` against plain hooks; what may become of a coefficient; and that nothing of it stays."""

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
from ffnmem.interventions import Add, Mean, Scale, Set
from ffnmem.models.answers import generate
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning import Store

from ..editing.edits import made as random_edit
from ..helpers import PROMPT, Pair, allclose, hook_count, refuses
from .naive import IDS, Edit, exact, logits

EVERY = {(0, 3): 2.0, (0, 60): Scale(-1.5), (1, 5): Add(0.7), (1, 63): Set(0.0)}
SHORT = [5, 6, 7]
LOGITS = 1e-6  # what generation returns is in float32


def by_hand(positions: Any = slice(None)) -> dict[int, Edit]:
    """``EVERY``."""

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


def changed(model: fm.Model, asked: Any, tokens: Any = IDS, layer: int = 0) -> torch.Tensor:
    """A layer's coefficients ``[batch, pos, d_mlp]`` under an intervention."""
    with fm.intervene(model, asked):
        return fm.capture(model, tokens).coefficients[layer]


def test_equals_plain_hooks(pair64: Pair) -> None:
    """Another neuron, layer or position, or one change undone by the next."""
    model = pair64.model
    for positions, cells in ((None, slice(None)), (2, 2), (-1, [-1]), ((0, -3, 4), [0, -3, 4]), (range(5), slice(5))):
        with fm.intervene(model, EVERY, positions=positions):
            found = seen(model, IDS)
        assert allclose(found, logits(model, IDS, by_hand(cells))[0], exact(pair64))


def test_each_row_as_if_it_ran_alone(pair64: Pair) -> None:
    """Positions count a row's own text, pads left out; each has changes of its own, an empty dict none."""
    model = pair64.model
    texts = ["The city of", PROMPT, "The Eiffel Tower"]
    half: dict[int, Edit] = {0: lambda m: m.index_put_((torch.tensor(0), torch.tensor([1, -1])), m[0, [1, -1]] * 0.5)}
    with fm.intervene(model, [EVERY, {}, {(0, None): Scale(0.5)}], positions=(1, -1)):
        rows = [seen(model, texts, row) for row in range(3)]
    for text, row, edits in zip(texts, rows, (by_hand([1, -1]), {}, half), strict=True):
        assert allclose(row, logits(model, model.tokenize(text), edits)[0], max(exact(pair64), 1e-9))


def test_what_a_capture_shows(tiny: fm.Model) -> None:
    """The changed coefficients, whose sums hold, and why; inner blocks act on what outer ones left."""
    m = fm.capture(tiny, PROMPT).coefficients[0]
    with fm.intervene(tiny, EVERY, positions=-1):
        during = fm.capture(tiny, PROMPT)
        words = "0.3 = 2, 0.60 × -1.5, 1.5 + 0.7, 1.63 = 0 at position -1"
        assert list(tiny.interventions) == [words]
        with fm.intervene(tiny, {(0, 3): Scale(2.0)}, positions=4):
            both = fm.capture(tiny, PROMPT)
        assert torch.equal(fm.capture(tiny, PROMPT).coefficients[0], during.coefficients[0])
    assert not tiny.interventions
    expected = m.clone()
    expected[0, -1, 3], expected[0, -1, 60] = 2.0, expected[0, -1, 60] * -1.5
    assert torch.equal(during.coefficients[0], expected)
    assert max(fm.decompose(during, 0).error, fm.attribute(during).error) < 1e-4
    expected[0, 4, 3] *= 2
    assert torch.equal(both.coefficients[0], expected)
    assert dict(both.provenance.settings)["interventions"] == f"{words}; 0.3 × 2 at position 4"


# -- changes -----------------------------------------------------------------------------------------------------------


def test_numbers_and_layers(tiny: fm.Model) -> None:
    """Values from a table are NumPy's. A neuron keeps its own beside its layer, in whichever order they are named."""
    numbers: tuple[Any, ...] = (2, np.float32(2), np.int64(2), torch.tensor(2.0))
    for number in numbers:
        assert (changed(tiny, {(0, 3): number})[..., 3] == 2).all()
    capture = fm.capture(tiny, IDS)
    m = capture.coefficients[0]
    for whole, own in ((Set(0.0), Set(4.0)), (Mean(capture), Set(4.0)), (Add(1.0), Scale(1.0))):
        expected = {Set: torch.zeros_like(m), Add: m + 1}.get(type(whole), changed(tiny, {(0, None): whole}))
        expected[..., 6] = 4.0 if isinstance(own, Set) else m[..., 6]
        items = [((0, None), whole), ((0, 6), own)]
        for some in (items, items[::-1]):
            assert torch.equal(changed(tiny, dict(some)), expected)


def test_means_of_sources(tiny: fm.Model, tiny_store: Store) -> None:
    """Of a store, and of a capture's content: neither pads nor the beginning-of-sequence token."""
    capture = fm.capture(tiny, ["The city of", PROMPT])
    content = torch.cat([capture.coefficients[1][row, 1 : capture.length(row)] for row in (0, 1)])
    stored = tiny_store.stats(1).set_index("neuron")["mean"]
    for source, mean in ((capture, content.double().mean(0)), (tiny_store, [stored[n] for n in range(tiny.d_mlp)])):
        assert allclose(changed(tiny, {(1, None): Mean(source)}, layer=1)[0, 0], mean, 1e-6)


def test_gradients_pass(make_tiny: Callable[..., fm.Model]) -> None:
    """Whoever trains or attributes inside a block would get slopes of the unchanged model. An FFN that runs alone has
    no positions; what is the same everywhere can still be done."""
    model = make_tiny()
    ffn, m = model.ffn[0], torch.randn(2, model.d_mlp, requires_grad=True)
    with fm.intervene(model, {(0, 3): 1.0, (0, 4): Scale(3.0)}):
        out = ffn.project_out(m)
    (found,) = torch.autograd.grad(out.sum(), m)
    slopes = ffn.values.detach().sum(-1)
    assert allclose(found[0, 2:6], slopes[2:6] * torch.tensor([1.0, 0.0, 3.0, 1.0]), 1e-5)
    expected = m.detach().clone()
    expected[:, 3], expected[:, 4] = 1.0, expected[:, 4] * 3
    assert allclose(out, ffn.project_out(expected), 1e-6)
    for asked, positions in (({(0, 3): 1.0}, 0), ([{(0, 3): 1.0}, {}], None)):
        with fm.intervene(model, asked, positions=positions), refuses(HookError, RuntimeError, "outside a pass"):
            ffn.project_out(m)


# -- generation --------------------------------------------------------------------------------------------------------


def uncached(
    model: fm.Model, prompt: list[int], new: int, asked: Any, positions: Any
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and their logits, each from a whole pass over the text so far; positions as absolute ones."""
    tokens, found = list(prompt), []
    for _ in range(new):
        reached = None if positions is None else [p for p in positions if p < len(tokens)]
        with fm.intervene(model, {(0, 0): Scale(1.0)} if reached == [] else asked, positions=reached or None):
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


def test_generation_with_a_cache(pair64: Pair) -> None:
    """With a cache the text's positions go on; each step equals a whole pass over the text so far."""
    model = pair64.model
    averaged = {(0, None): Mean(fm.capture(model, PROMPT))}
    for asked, positions, absolute in (
        ({**EVERY, (1, 20): Add(4.0)}, None, None),
        (EVERY, (1, 4, 6), [1, 4, 6]),
        (EVERY, -1, [len(SHORT) - 1]),
        (averaged, None, None),
    ):
        with fm.intervene(model, asked, positions=positions):
            (tokens,), found = cached(model, torch.tensor([SHORT]), 5)
        greedy, expected = uncached(model, SHORT, 5, asked, absolute)
        end = greedy.index(0) if 0 in greedy else 5  # its end: Hugging Face was told to go on
        assert tokens[:end] == greedy[:end]
        assert allclose(found[0, :end], expected[:end], LOGITS)


# TransformerLens 4.3 hands transformers 5.24 its cache under the name that it had until then.


def test_a_prompt_read_before_the_block(tiny: fm.Model) -> None:
    """Where its end was is not known inside; positions from 0 are, by the cache."""
    hf = tiny.hf_model
    name = "cache" if "cache" in inspect.signature(hf.forward).parameters else "past_key_values"
    with torch.no_grad():
        caches = [{name: hf(torch.tensor([SHORT]), use_cache=True)[name]} for _ in range(2)]
        with refuses(HookError, RuntimeError, "position -1"), fm.intervene(tiny, EVERY, positions=-1):
            hf(torch.tensor([[9]]), **caches[0], use_cache=True)
        with fm.intervene(tiny, EVERY, positions=3):
            found = hf(torch.tensor([[9]]), **caches[1], use_cache=True).logits[0, -1]
            assert allclose(found, seen(tiny, [*SHORT, 9])[-1], 1e-5)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_every_way_to_generate(tiny64: fm.Model) -> None:
    asked = {(0, None): Mean(fm.capture(tiny64, PROMPT))}
    with fm.intervene(tiny64, asked):
        (tokens,), _ = cached(tiny64, torch.tensor([SHORT]), 4)
        assert generate(tiny64, SHORT, 4) == tokens
        theirs = tiny64.to_bridge().generate(torch.tensor([SHORT]), max_new_tokens=4, do_sample=False, verbose=False)
    assert theirs[0, len(SHORT) :].tolist() == tokens


def test_rows_under_generation(pair64: Pair) -> None:
    """A left-padded batch, each row with changes of its own, at its own positions."""
    model = pair64.model
    ids = torch.tensor([IDS[:6], [0, 0, 0, *SHORT]])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    halved = {(0, None): Scale(0.3)}
    with fm.intervene(model, [EVERY, halved], positions=(-1, 7)):
        tokens, found = cached(model, ids, 3, mask)
    with fm.intervene(model, EVERY, positions=(-1, 7)):
        (first,), expected = cached(model, ids[:1], 3)
    with (
        refuses(OutOfRangeError, IndexError, "position 7", "never reached"),
        fm.intervene(model, halved, positions=(-1, 7)),
    ):
        (second,), other = cached(model, torch.tensor([SHORT]), 3)
    assert tokens == [first, second]
    assert allclose(found, torch.cat([expected, other]), LOGITS)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_nothing_stays(make_tiny: Callable[..., fm.Model]) -> None:
    """After the block, after an exception inside, after one of its own, after a pass that failed half-way."""
    model = make_tiny()
    clean = seen(model, IDS)
    before = hook_count(model.hf_model), model.fingerprint
    with fm.intervene(model, EVERY):
        assert not torch.equal(seen(model, IDS), clean)
        with refuses(UnsupportedModelError, ValueError, "0.3 = 2", "leave the block"):
            LayerPass(model)  # its numbers would be those of another model
    with pytest.raises(ZeroDivisionError), fm.intervene(model, EVERY, positions=3):
        raise ZeroDivisionError
    with refuses(InputError, ValueError, "1 row,", "given for 2"), fm.intervene(model, [EVERY, {}]):
        fm.capture(model, IDS)
    with (
        refuses(OutOfRangeError, IndexError, "position -9", "a prompt here has 3 tokens"),
        fm.intervene(model, EVERY, positions=-9),
    ):
        fm.capture(model, SHORT)
    with refuses(OutOfRangeError, IndexError, "10, 12", "10 tokens"), fm.intervene(model, EVERY, positions=[1, 10, 12]):
        fm.capture(model, SHORT)
        fm.capture(model, IDS)
    with fm.intervene(model, EVERY, positions=20):
        pass  # nothing ran
    assert (hook_count(model.hf_model), model.fingerprint) == before
    assert model.interventions == ()
    assert torch.equal(seen(model, IDS), clean)


def test_an_ffn_whose_forward_was_replaced(make_tiny: Callable[..., fm.Model]) -> None:
    """A fused FFN calls no down projection: nothing would be changed, in silence."""
    model = make_tiny()
    mlp = model.hf_model.transformer.h[1].mlp
    mlp.forward = lambda x: mlp.act(x @ mlp.c_fc.weight + mlp.c_fc.bias) @ mlp.c_proj.weight + mlp.c_proj.bias
    tokens = torch.tensor([[1, 2, 3]])
    for block in (fm.intervene(model, {(1, 5): 0.0}), random_edit(model, (1,)).hooks(model)):
        with block, refuses(HookError, RuntimeError, "layer 1", "forward was replaced"):
            model.hf_model(tokens)
        model.hf_model(tokens)
    with fm.intervene(model, {(0, 5): 0.0}):
        model.hf_model(tokens)


def test_a_block_that_is_never_entered_is_told(tiny: fm.Model) -> None:
    """``fm.intervene(model, …)`` on a line of its own changes nothing, and all that follows is the model as it was."""
    with pytest.warns(FfnmemWarning, match=r"0\.3 = 0.*never entered.*with fm\.intervene"):
        fm.intervene(tiny, {(0, 3): 0.0})
    block = fm.intervene(tiny, {(0, 3): 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with block:
                pass
        del block


REFUSED: list[tuple[Any, Any, tuple[str, ...]]] = [
    ({}, InputError, ("nothing is intervened",)),
    ({(0, 64): 0.0}, OutOfRangeError, ("neuron 64", "0 to 63")),
    ({3: 0.0}, InputError, ("3 names no neuron", "(layer, None)")),
    ({(0, 63): 0.0, (0, -1): 1.0}, InputError, ("0.63 is named twice",)),
    ({(1, None): 0.0, (-1, None): 1.0}, InputError, ("every neuron of layer 1 is named twice",)),
    ({(0, 1): "zero"}, InputError, ("'zero'", "Set, Scale, Add or Mean")),
    ([{(0, 1): 0.0}, (0, 2)], InputError, ("interventions[1]", "a dict")),
    *(({(0, 1): what}, InputError, ()) for what in (True, None, float("nan"), torch.zeros(2))),
]


def test_what_is_refused(tiny: fm.Model, make_tiny: Callable[..., fm.Model]) -> None:
    """When it is asked for, not in the midst of a pass: an infinity would run through every later layer."""
    for asked, kind, named in REFUSED:
        with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, *named):
            fm.intervene(tiny, asked)
    for positions in (32, [0, -33]):
        with refuses(OutOfRangeError, IndexError, "position"):
            fm.intervene(tiny, EVERY, positions=positions)
    with refuses(InputError, ValueError, "positions is empty"):
        fm.intervene(tiny, EVERY, positions=[])
    for make in (Set, Scale, Add):
        with refuses(InputError, ValueError, make.__name__, "inf"):
            make(float("inf"))
    with refuses(InputError, ValueError, "Mean", "str", "Store or a Capture"):
        Mean("atlas")
    half = make_tiny(dtype="float16")
    with fm.intervene(half, {(0, 3): 6e4}):
        assert half.interventions == ("0.3 = 60000",)
    for change in (1e6, Scale(1e6), Add(-1e6)):
        with refuses(InputError, ValueError, "layer 0", "float16"):
            fm.intervene(half, {(0, 3): change})


def test_sources_that_cannot_be_read(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean of nothing is no number, and another model's is none of this one."""
    other = make_tiny()
    with torch.no_grad():
        other.ffn[0].keys[0] += 1
    for source in (fm.capture(tiny, PROMPT), tiny_store):
        with refuses(InputError, ValueError, other.name):
            fm.intervene(other, {(0, 3): Mean(source)})
    stats = tiny_store.stats(0).assign(mean=np.nan)
    monkeypatch.setattr(Store, "stats", lambda store, layer: stats)
    for change, named in (
        (Mean(fm.capture(tiny, torch.tensor([0]))), ["no content positions"]),
        (Mean(fm.capture(tiny, PROMPT, layers=1)), ["layer 0", "[1]"]),
        (Mean(tiny_store), ["layer 0", "no tokens"]),
    ):
        with refuses(InputError, ValueError, *named):
            fm.intervene(tiny, {(0, 3): change})


def test_predictions_before_and_after(tiny: fm.Model) -> None:
    """The table would have another position's tokens, or leave out one that is likely in either pass."""
    before = fm.capture(tiny, PROMPT)
    result = fm.interventions.changed_predictions(before, {(0, None): 0.0}, position=3)
    with fm.intervene(tiny, {(0, None): 0.0}):
        after = fm.capture(tiny, PROMPT)
    found = result.to_frame(6)
    first, second = (c.predictions(3, k=tiny.d_vocab).set_index("token_id").sort_index() for c in (before, after))
    most = np.maximum(first["probability"], second["probability"])
    assert found["token_id"].tolist() == most.sort_values(ascending=False, kind="stable").index[:6].tolist()
    for name, table in (("before", first.loc[found["token_id"]]), ("after", second.loc[found["token_id"]])):
        assert allclose(found[f"probability_{name}"], table["probability"])
        assert found[f"rank_{name}"].tolist() == table["rank"].tolist()
        assert allclose(found[f"logit_{name}"], table["logit"])
    assert allclose(found["change"], found["probability_after"] - found["probability_before"])
    assert found["token"].tolist() == tiny.token_strings(found["token_id"].tolist())
    assert result.changed == "every neuron of layer 0 = 0"
    with refuses(OutOfRangeError, IndexError, "position 99"):
        fm.interventions.changed_predictions(before, {(0, None): 0.0}, position=99)
