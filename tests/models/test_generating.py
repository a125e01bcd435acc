"""Continuations of a prompt."""

from __future__ import annotations

import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.models.answers import generate

from ..helpers import refuses


def test_greedy_is_the_argmax_of_whole_passes(architecture: fm.Model) -> None:
    """A cache that shifts positions would say something else."""
    tokens = architecture.tokenize("The city of")
    found = generate(architecture, tokens, 5)
    for token in found:
        capture = fm.capture(architecture, tokens)
        assert token == int(capture.logits_at(0, len(tokens) - 1).argmax())
        tokens = [*tokens, token]
    assert 1 <= len(found) <= 5


def test_sampling_is_seeded_and_leaves_the_random_state(tiny: fm.Model) -> None:
    tokens = tiny.tokenize("The city")
    torch.manual_seed(11)
    state = torch.random.get_rng_state()
    runs = [generate(tiny, tokens, 12, temperature=2.0, seed=seed) for seed in (1, 1, 2, 3)]
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) > 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_sampling_is_that_of_hugging_face(tiny: fm.Model) -> None:
    """Seeds of before would write other texts."""
    tokens = tiny.tokenize("The city")
    ids = torch.tensor([tokens])
    torch.manual_seed(7)
    theirs = tiny.hf_model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=True,
        temperature=1.5,
        top_k=0,
        pad_token_id=tiny.tokenizer.eos_token_id,
    )
    assert generate(tiny, tokens, 12, temperature=1.5, seed=7) == theirs[0, len(tokens) :].tolist()


def test_what_is_refused(tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, "33", str(tiny.n_ctx), "at most 29"):
        generate(tiny, [1, 2, 3], 33)
    with refuses(InputError, ValueError, "temperature", "0"):
        generate(tiny, [1], 3, temperature=0.0)
    with refuses(InputError, ValueError, "new", "0"):
        generate(tiny, [1], 0)
    with refuses(InputError, ValueError, "empty"):
        generate(tiny, [], 3)
