"""Contexts for keys: sampled from the model, or given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import requests, sample_contexts
from ffnmem.editing.requests import TOP, allowed, check_contexts, cleaned, draw_likely, sample

from ..helpers import refuses


def test_plain_first_then_as_many_of_each_length(tiny: fm.Model) -> None:
    """Keys would be averaged over other contexts than the published program's."""
    found = sample_contexts(tiny, n=7, lengths=(3, 6))
    assert found[0] == "{}"
    assert len(found) == 8
    assert all(context.endswith(". {}") for context in found[1:])
    assert check_contexts(found) == found
    assert sample_contexts(tiny, n=0) == ("{}",)


def test_lengths_count_the_first_token(tiny: fm.Model) -> None:
    """ "Ten tokens" would be one more than in the published program."""
    generator = torch.Generator().manual_seed(0)
    assert [len(ids) for ids in sample(tiny, 0, [6, 3, 6], generator)] == [5, 2, 5]
    assert sample(tiny, 0, [], generator) == []


def test_a_text_does_not_hang_on_other_lengths(tiny: fm.Model) -> None:
    """The first contexts of a seed would be others where longer ones are asked for beside them."""
    assert sample_contexts(tiny, n=3, lengths=(4,)) == sample_contexts(tiny, n=6, lengths=(4, 9))[:4]


def test_the_seed_decides_and_the_global_one_does_not(tiny: fm.Model) -> None:
    """An edit could not be made again, or sampling would disturb the caller's own random numbers."""
    torch.manual_seed(5)
    a = sample_contexts(tiny, seed=1)
    drawn_after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn_after, torch.rand(3))
    assert a == sample_contexts(tiny, seed=1)
    assert a != sample_contexts(tiny, seed=2)


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": -1}, "n must"),
        ({"lengths": ()}, "lengths"),
        ({"lengths": (1,)}, "length"),
        ({"lengths": (5, 99)}, "99"),
        ({"seed": -1}, "seed"),
    ],
)
def test_refused(tiny: fm.Model, options: dict[str, Any], named: str) -> None:
    """Options that cannot be would give no contexts, or a traceback."""
    with refuses(InputError, ValueError, named):
        sample_contexts(tiny, **options)


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


def test_given_contexts() -> None:
    """A context without a place for the prompt would leave the fact out of its own key."""
    assert check_contexts(["{}", "He said: {}"]) == ("{}", "He said: {}")
    for bad in (["no place"], ["{} and {}"], ["{0} {}"], []):
        with refuses(InputError, ValueError, "context"):
            check_contexts(bad)
    with refuses(InputError, ValueError, "list"):
        check_contexts("{}")
