"""One forward pass, and what its FFNs read, computed and wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, HookError, InputError, OutOfRangeError
from ffnmem.core.sheets import Facts
from ffnmem.prompts import Capture
from ffnmem.prompts.captures import answer_after, answer_probability, warn_of_trailing_space, with_answer

from ..helpers import BOS, OTHER_PROMPT, PROMPT, Pair, allclose, hook_count, printed, refuses

PER_LAYER = ("pre", "coefficients", "ffn_in", "ffn_out")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a capture holds, its model left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


# -- the values -------------------------------------------------------------------------------------------------------


def test_a_padded_batch_equals_its_prompts_alone(pair: Pair) -> None:
    """Pads would change what is measured, or be measured; the model predict something else than Hugging Face's."""
    prompts = [OTHER_PROMPT, PROMPT, "The"]
    batch = fm.capture(pair.model, prompts, logits=True)
    assert batch.logits is not None
    for row, prompt in enumerate(prompts):
        alone = fm.capture(pair.model, prompt)
        n = alone.tokens.shape[1]
        assert batch.length(row) == n == int(batch.mask[row].sum())
        assert torch.equal(batch.tokens[row, :n], alone.tokens[0])
        assert batch.token_strings(row) == alone.token_strings()
        expected = pair.logits(alone.tokens)[0]
        assert allclose(batch.logits[row, :n], expected, 1e-5)
        assert allclose(alone.logits_at(0, n - 1), expected[n - 1], 1e-5)
        for layer in range(2):
            for name in PER_LAYER:
                found, own = getattr(batch, name)[layer][row], getattr(alone, name)[layer][0]
                assert allclose(found[:n], own, 1e-5)
                assert not found[n:].any()
        for part in tensors(batch.residual):
            assert not part[row, n:].any()
    assert not any(tensor.requires_grad for tensor in tensors(batch))
    assert alone.residual is not None
    if alone.residual.position is not None:
        assert torch.equal(alone["hook_pos_embed"], alone.residual.position)
    assert torch.equal(alone["blocks.0.hook_resid_post"], alone["blocks.1.hook_resid_pre"])
    assert torch.equal(alone["blocks.1.hook_resid_post"], alone["ln_final.hook_in"])


def test_token_ids_are_taken_as_they_are(tiny: fm.Model) -> None:
    """A second beginning-of-sequence token would be put in front of ids that have one."""
    ids = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 10]])
    capture = fm.capture(tiny, ids)
    assert torch.equal(capture.tokens, ids)
    assert "prepend_bos" not in capture.provenance.to_dict()
    for same in (ids[0], ids[0].int(), ids[0].tolist(), tuple(ids[0].tolist()), list(ids[0].numpy())):
        again = fm.capture(tiny, same)
        assert torch.equal(again.tokens, ids[:1])
        assert allclose(again.coefficients[1], capture.coefficients[1][:1], 1e-6)


def test_what_is_text_and_what_is_not(tiny: fm.Model) -> None:
    """The first token's attention sink would come and go unseen; statistics be about it and the padding, which have
    the largest values of all."""
    with_bos, without = fm.capture(tiny, PROMPT), fm.capture(tiny, PROMPT, prepend_bos=False)
    assert with_bos.token_strings() == [BOS, *without.token_strings()]
    assert (with_bos.provenance.prepend_bos, without.provenance.prepend_bos) == (True, False)
    assert (with_bos.starts_with_bos, without.starts_with_bos) == (True, False)
    content = fm.capture(tiny, [PROMPT, "The city"]).content
    assert content.tolist() == [[False] + [True] * 8, [False, True, True] + [False] * 6]
    # A special token in the middle of given ids is none of the text either.
    assert fm.capture(tiny, [5, 0, 6]).content.tolist() == [[True, False, True]]
    with pytest.warns(FfnmemWarning, match=r"The city' \(and 2 more prompts\);") as said:
        fm.capture(tiny, [PROMPT, "The city ", "city ", "The "])
    assert len(said) == 1  # of a thousand prompts, too
    assert said[0].filename == __file__ or "typ" in said[0].filename  # where types are checked, by what checks them
    for prompt in (PROMPT, PROMPT + "\n", " ", "\n ", ""):  # texts do have these endings
        warn_of_trailing_space(tiny, prompt)


IN, OUT = (InputError, ValueError), (OutOfRangeError, IndexError)
REFUSED: list[tuple[tuple[type[Exception], type[Exception]], dict[str, Any], tuple[str, ...]]] = [
    (IN, {"prompt": ["The", ""]}, ("empty",)),
    (IN, {"prompt": torch.tensor([], dtype=torch.long)}, ("[pos]",)),
    (IN, {"prompt": torch.tensor([0.5])}, ("float",)),
    (IN, {"prompt": torch.zeros(1, 2, 3, dtype=torch.long)}, ("[1, 2, 3]",)),
    (IN, {"prompt": [-1]}, ("302",)),
    (IN, {"prompt": torch.zeros(33, dtype=torch.long)}, ("33 tokens",)),
    (IN, {"prompt": ["The", 5]}, ("a list of texts, a list of whole numbers", "['The', 5]")),
    (OUT, {"prompt": PROMPT, "layers": [0, 2]}, ("layer 2", "0 to 1")),
    (IN, {"prompt": PROMPT, "layers": []}, ("layers", "empty")),
    (IN, {"prompt": ["The"] * 7}, ("at most 6", "not 7")),
]


def test_what_cannot_be_captured_or_read(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail inside an embedding, or be made into something else; -1 in a padded prompt would be a pad."""
    monkeypatch.setattr("ffnmem.prompts.captures.MOST", 6)
    assert len(fm.capture(tiny, ["The"] * 6).tokens) == 6
    for kinds, options, named in REFUSED:
        with refuses(*kinds, *named):
            fm.capture(tiny, **options)
    with refuses(*IN, "token ids must lie between"):
        fm.capture(tiny, [tiny.d_vocab])
    capture = fm.capture(tiny, ["The", PROMPT])
    assert (capture.position(-1, 0), capture.position(-1, prompt=1), capture.row(-1)) == (1, 8, 1)
    with refuses(*OUT, "position 2", "0 to 1"):
        capture.position(2, prompt=0)
    with refuses(*OUT, "prompt 2", "0 to 1"):
        capture.row(2)
    with refuses(*IN, "k", "at least 1"):
        capture.predictions(k=0, prompt=0)
    with refuses(*IN, "every layer", "logits=True"):
        fm.capture(tiny, PROMPT, layers=0).predictions()
    for layers, named in ((None, "has no experts, and so no router"), (1, "no experts in layer 1,")):
        with refuses(*IN, named):
            fm.capture(tiny, PROMPT, layers=layers).routing()


# -- layers and memory ------------------------------------------------------------------------------------------------


def test_chosen_layers(tiny: fm.Model) -> None:
    """Asking for a layer would give another one, or all; or keep what it is a slice of."""
    whole = fm.capture(tiny, PROMPT)
    for layers in (1, -1, [1], (1, -1), np.int64(1), np.array([1])):
        capture = fm.capture(tiny, PROMPT, layers=layers)
        assert capture.layers == (1,)
        for name in PER_LAYER:
            assert list(getattr(capture, name)) == [1]
            assert torch.equal(getattr(capture, name)[1], getattr(whole, name)[1])
        assert capture.residual is None
    held = list(tensors(capture))
    assert sum(tensor.numel() for tensor in held) == 2 * 9 * (tiny.d_model + tiny.d_mlp) + 2 * 9  # … tokens and mask
    assert all(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in held)


# -- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_do_not_leak(make_tiny: Callable[..., fm.Model]) -> None:
    """Each call would make the next one slower, and keep its tensors alive; so would one that was interrupted."""
    tiny = fm.load(make_tiny().to_bridge())
    before = hook_count(tiny.to_bridge()) + hook_count(tiny.hf_model)
    for options in ({}, {"layers": 0}, {"logits": True}, {"layers": [1], "logits": True}):
        fm.capture(tiny, PROMPT, **options)  # type: ignore[arg-type]
        assert hook_count(tiny.to_bridge()) + hook_count(tiny.hf_model) == before

    def stop(value: torch.Tensor, hook: Any) -> None:
        raise KeyboardInterrupt

    with tiny.to_bridge().hooks(fwd_hooks=[("blocks.1.mlp.hook_post", stop)]), pytest.raises(KeyboardInterrupt):
        fm.capture(tiny, PROMPT)
    assert hook_count(tiny.to_bridge()) + hook_count(tiny.hf_model) == before


def test_a_silent_hook_is_an_error(make_tiny: Callable[..., fm.Model]) -> None:
    """A module that the forward pass does not call would be shown as one that is zero, or be missing without a word."""
    model = make_tiny()
    first, second = model.layout.blocks
    stranger = dataclasses.replace(second, project_in=nn.Linear(16, 64))
    model.layout = dataclasses.replace(model.layout, blocks=(first, stranger))
    with refuses(HookError, RuntimeError, "ffn_in of layer 1", "pre of layer 1"):
        fm.capture(model, PROMPT)
    assert hook_count(stranger.project_in) == 0
    assert fm.capture(model, PROMPT, layers=0).layers == (0,)


def test_the_users_own_hooks_are_seen(pair: Pair, tokenizer: Any) -> None:
    """A capture under an intervention would show the coefficients from before it, beside the output from after it."""
    bridge = fm.load(pair.hf, tokenizer=tokenizer).to_bridge()
    model = fm.load(bridge)
    before = fm.capture(model, PROMPT)
    for point in ("mlp.hook_post", "mlp.hook_pre", "hook_attn_out"):
        with bridge.hooks(fwd_hooks=[(f"blocks.0.{point}", lambda value, hook: value * 0.5 - 0.3)]):
            during = fm.capture(model, PROMPT)
        assert not torch.allclose(before.logits_at(0, -1), during.logits_at(0, -1), atol=1e-4)
        if point.startswith("mlp"):
            assert not torch.allclose(before.coefficients[0], during.coefficients[0], atol=1e-4)
        assert fm.decompose(during, 0).error < 1e-5
        assert fm.attribute(during).error < 1e-4
    assert torch.equal(fm.capture(model, PROMPT).coefficients[1], before.coefficients[1])


# -- reading it -------------------------------------------------------------------------------------------------------


def test_predictions(pair: Pair) -> None:
    """The table would rank another position's tokens, or not be probabilities."""
    capture = fm.capture(pair.model, [OTHER_PROMPT, PROMPT])
    logits = pair.logits(capture.tokens)
    table = capture.predictions(position=-2, k=5, prompt=1)
    assert list(table.columns) == ["rank", "token", "token_id", "logit", "probability"]
    expected = logits[1, capture.length(1) - 2]
    top = expected.topk(5)
    assert table["rank"].tolist() == [1, 2, 3, 4, 5]
    assert table["token_id"].tolist() == top.indices.tolist()
    assert table["token"].tolist() == pair.model.token_strings(top.indices)
    assert allclose(table["logit"], top.values, 1e-5)
    assert allclose(table["probability"], expected.softmax(-1)[top.indices], 1e-5)
    everything = capture.predictions(k=10**6, prompt=0)
    assert len(everything) == pair.model.d_vocab
    assert allclose(everything["probability"].sum(), 1.0)
    answer = answer_after(capture, " Paris Rome", None, 1, capture.length(1) - 1)
    longer, row = with_answer(capture, answer, 1)
    found = pair.logits(longer.tokens)[row].softmax(-1)[capture.length(1) - 1 :]
    one, two = answer.read
    assert answer_probability(longer, answer, row) == pytest.approx(float(found[0, one] * found[1, two]), rel=1e-4)


def test_what_it_shows(tiny: fm.Model) -> None:
    """Another prompt's tokens, a pad among them, or a special token as if it were text."""
    several = fm.capture(tiny, [PROMPT, "The"] * 6, layers=[1])
    facts = several.sheet().blocks[0]
    assert isinstance(facts, Facts)
    shown: Any = facts.rows["prompts"]
    assert len(shown) == 11
    assert [(span.text, span.style) for span in shown[1] if span.token] == [(BOS, "special"), ("The", "")]
    text = "\n".join(printed(several.sheet(), 200))
    assert "and 2 more prompts" in text
    assert "Capture of 12 prompts, layers 1 of" in text
    frame, found = several.to_frame(), several.to_dict()
    assert frame["token"].tolist() == [text for i in range(12) for text in several.token_strings(i)]
    assert frame["token_id"].tolist() == several.tokens[several.mask].tolist()
    assert found["prompts"] == [several.token_strings(i) for i in range(12)]
    assert found["layers"] == [1]


def test_several_prompts_are_told_apart(tiny: fm.Model) -> None:
    """What is said of the first of four prompts would be taken for what holds of all."""
    several = fm.capture(tiny, [PROMPT, OTHER_PROMPT, "The", PROMPT])
    explain = (
        fm.attribute,
        fm.attribute_paths,
        fm.causal_scores,
        fm.faithfulness,
        fm.minimal_circuit,
    )
    other = (
        partial(fm.circuit, firings=[(0, 1, 2)]),
        fm.ablate,
        fm.interventions.knowledge_neurons,
        partial(fm.decompose, layer=0),
        Capture.token_strings,
    )
    for ask in (Capture.predictions, *explain, *other):
        with refuses(InputError, ValueError, "4 prompts", "prompt=0 to 3"):
            ask(several)  # type: ignore[operator]


def test_what_runs_the_prompt_again_wants_the_same_intervention(tiny: fm.Model) -> None:
    """Paths would take their attention patterns from a pass of another model."""
    clean = fm.capture(tiny, PROMPT)
    with fm.intervene(tiny, {(0, 3): 5.0}):
        under = fm.capture(tiny, PROMPT)
        under.check_repeatable()
        assert fm.attribute_paths(under).error < 1e-4
        with refuses(InputError, ValueError, "no intervention", "0.3 = 5"):
            fm.attribute_paths(clean)
    clean.check_repeatable()
    with refuses(InputError, ValueError, "an intervention (0.3 = 5)", "now there is none"):
        fm.attribute_paths(under)
    assert fm.attribute(under).error < 1e-4
