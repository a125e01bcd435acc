"""What is asked of an editor: contexts, rows of tokens, and what is refused before any work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import requests, sample_contexts
from ffnmem.editing.requests import TOP, allowed, check_contexts, cleaned, draw_likely, make_requests, sample
from ffnmem.facts.fact import as_facts

from ..helpers import refuses
from .plans import CONTEXTS, FACTS


def test_sampled_contexts(tiny: fm.Model) -> None:
    """Keys would be averaged over other contexts than the published program's, an edit could not be made again, or
    sampling would disturb the caller's own random numbers."""
    torch.manual_seed(5)
    found = sample_contexts(tiny, n=7, lengths=(3, 6))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))
    assert found[0] == "{}"
    assert len(found) == 8
    assert all(context.endswith(". {}") for context in found[1:])
    assert check_contexts(found) == found
    assert sample_contexts(tiny, n=0) == ("{}",)
    assert sample_contexts(tiny, n=7, lengths=(3, 6)) == found
    assert sample_contexts(tiny, n=7, lengths=(3, 6), seed=2) != found
    assert sample_contexts(tiny, n=4, lengths=(3,)) == found[:5]  # a text does not depend on other lengths beside it
    lengths = [len(ids) for ids in sample(tiny, 0, [6, 3, 6], torch.Generator().manual_seed(0))]
    assert lengths == [5, 2, 5]  # the first token counts, as in the published program


def test_tokens_come_from_the_likeliest_by_their_probabilities() -> None:
    """Text would be uniform over the best five, or take unlikely tokens."""
    logits = torch.arange(12.0).log().expand(20_000, 12)  # probabilities as 0 to 11
    found = draw_likely(logits, torch.empty(20_000, TOP).exponential_(generator=torch.Generator().manual_seed(0)))
    shares = torch.bincount(found, minlength=12) / len(found)
    expected = torch.zeros(12)
    expected[-TOP:] = torch.arange(12.0)[-TOP:] / torch.arange(12.0)[-TOP:].sum()
    assert float((shares - expected).abs().max()) < 0.015


def test_every_step_reads_the_model(make_tiny: Callable[..., fm.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens would not follow from those before: a greedy sample must be the model's own greedy text."""
    tiny = make_tiny()  # its own: a bridge, once made, stays
    monkeypatch.setattr(requests, "TOP", 1)
    (ids,) = sample(tiny, 0, [8], torch.Generator())
    tokens = [0]
    for token in ids:
        logits = tiny.to_bridge()(torch.tensor([tokens]), return_type="logits", prepend_bos=False)[0, -1]
        assert token == int(allowed(tiny, logits[None])[0].argmax())
        tokens.append(token)


def test_special_tokens_are_never_drawn(tiny: fm.Model) -> None:
    """A context would hold the name of a special token, which would be read as letters."""
    logits = torch.zeros(1, tiny.d_vocab + 3)  # some models have rows for no token
    logits[0, 0] = logits[0, -1] = 100.0
    kept = allowed(tiny, logits)
    assert kept.isneginf().nonzero()[:, 1].tolist() == [0, *range(tiny.d_vocab, tiny.d_vocab + 3)]
    assert logits[0, 0] == 100.0


def test_text_is_made_fit_for_a_template(tiny: fm.Model) -> None:
    """A brace in sampled text would be taken for the prompt's place."""
    ids = tiny.tokenizer("a{}b{c}\n\nd\ne", add_special_tokens=False)["input_ids"]
    assert cleaned(tiny, ids) == "abc d e"
    broken = tiny.tokenizer("é", add_special_tokens=False)["input_ids"][:1]
    assert cleaned(tiny, broken) == ""


class Bare:
    """A tokenizer that has no token to begin with, or an end-of-text token alone."""

    def __init__(self, tokenizer: Any, end: int | None) -> None:
        self._tokenizer, self.bos_token_id, self.eos_token_id = tokenizer, None, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


def test_without_a_first_token(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without BOS would begin its text after nothing, or after a token of somebody's choice."""
    expected = sample_contexts(tiny, seed=3)
    monkeypatch.setattr(tiny, "tokenizer", Bare(tiny.tokenizer, end=0))
    assert sample_contexts(tiny, seed=3) == expected
    monkeypatch.setattr(tiny, "tokenizer", Bare(tiny.tokenizer, end=None))
    with refuses(InputError, ValueError, tiny.name, "contexts"):
        sample_contexts(tiny)


REFUSED: tuple[tuple[Callable[[fm.Model], object], str], ...] = (
    (lambda model: sample_contexts(model, n=-1), "n must"),
    (lambda model: sample_contexts(model, lengths=()), "lengths"),
    (lambda model: sample_contexts(model, lengths=(1,)), "length"),
    (lambda model: sample_contexts(model, lengths=(5, 99)), "99"),
    (lambda model: sample_contexts(model, seed=-1), "seed"),
    (lambda _: check_contexts(["no place"]), "context"),
    (lambda _: check_contexts(["{} and {}"]), "context"),
    (lambda _: check_contexts(["{0} {}"]), "context"),
    (lambda _: check_contexts([]), "context"),
    (lambda _: check_contexts("{}"), "list"),
    (lambda model: make_requests(model, FACTS, None, CONTEXTS[1:]), "first context"),
    (lambda model: make_requests(model, FACTS, None, ("{}", "The" * 40 + " {}")), "32"),
    (lambda _: as_facts([]), "fact"),
)


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_refused(tiny: fm.Model, call: Callable[[fm.Model], object], named: str) -> None:
    """A context without a place for the prompt would leave the fact out of its own key."""
    with refuses(InputError, ValueError, named):
        call(tiny)


def test_rows_hold_prompt_and_target_and_look_at_the_subject(tiny: fm.Model) -> None:
    """A lookup one token off edits another memory; a target's last token in the row would be read, not predicted."""
    for fact, request in zip(FACTS, make_requests(tiny, FACTS, None, CONTEXTS), strict=True):
        target = tiny.tokenize(f" {request.target}", prepend_bos=False)
        assert list(request.ids) == target
        assert len(request.rows) == len(CONTEXTS)
        for row, context in zip(request.rows, CONTEXTS, strict=True):
            assert list(row.tokens) == tiny.tokenize(context.replace("{}", fact.text)) + target[:-1]
            before = tiny.tokenize(context.replace("{}", fact.text.split(fact.subject)[0] + fact.subject))
            assert row.lookup == len(before) - 1
            assert row.after == len(row.tokens) - row.lookup
        assert list(request.essence.tokens) == tiny.tokenize(f"{fact.subject} is a")


def test_one_target_for_all(tiny: fm.Model) -> None:
    found = make_requests(tiny, FACTS[:1], " London ", CONTEXTS)
    assert found[0].target == "London"


def test_editors_read_targets_as_they_stand_in_the_prompt(tiny: fm.Model) -> None:
    """After an opening mark " Rome" with a space would be written where the text goes on without one."""
    quoted = replace(FACTS[0], prompt='The {} is in "')
    for fact, ids in ((FACTS[0], tiny.ids_of(" Rome")), (quoted, tiny.ids_of("Rome"))):
        for target in ("Rome", " Rome", None):
            (request,) = make_requests(tiny, [replace(fact, target_new="Rome")], target, ("{}",))
            assert request.ids == tuple(ids)
            assert request.target == "Rome"
