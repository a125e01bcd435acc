"""Noise on subjects."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts.questions import ask_about
from ffnmem.tracing import noise_scale
from ffnmem.tracing.restoring import corrupted, embed, scale_of, standard_noise

from ..helpers import Pair, allclose, refuses

EIFFEL = fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", id="eiffel")
ROME = fm.Fact("Rome", "country", "The city of {} is in", "France", id="rome")


def test_noise_scale_is_three_deviations_of_all_numbers(tiny: fm.Model) -> None:
    """Of the subjects' tokens as they stand in the prompts, not of whole prompts or the vocabulary."""
    ids = [tiny.token_id(token) for token in (" Eiffel", " Tower", " Rome")]
    numbers = tiny.embedding.detach()[ids].double().flatten()
    assert noise_scale(tiny, [EIFFEL, ROME]) == pytest.approx(3 * float(numbers.std()))
    assert noise_scale(tiny, [EIFFEL, ROME], factor=1) == pytest.approx(float(numbers.std()))
    asked = ask_about(tiny, ROME.prompt, ROME.subject)
    assert scale_of(tiny, [asked]) == noise_scale(tiny, [ROME])


def test_facts_that_cannot_be_asked_are_left_out(tiny: fm.Model) -> None:
    too_long = replace(ROME, prompt="The city of {} is in" + " the" * 40)
    assert noise_scale(tiny, [EIFFEL, too_long]) == noise_scale(tiny, [EIFFEL])
    with refuses(InputError, ValueError, tiny.name, "noise"):
        noise_scale(tiny, [too_long])


def test_noise_depends_on_seed_and_prompt_alone() -> None:
    """Noise that changed with the number of samples, or was shared by facts, would make runs incomparable."""
    one = standard_noise(0, "a", 4, 2, 8)
    assert torch.equal(one, standard_noise(0, "a", 4, 2, 8))
    assert torch.equal(one, standard_noise(0, "a", 9, 2, 8)[:4])
    assert not torch.allclose(one, standard_noise(1, "a", 4, 2, 8))
    assert not torch.allclose(one, standard_noise(0, "b", 4, 2, 8))
    before = torch.get_rng_state()
    many = standard_noise(0, "a", 200, 3, 50)
    assert abs(float(many.mean())) < 0.02
    assert abs(float(many.std()) - 1) < 0.02
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_subject_is_corrupted(pair: Pair) -> None:
    """Row 0 is clean, and so are all other tokens of the other rows; each sample has noise of its own."""
    asked = ask_about(pair.model, EIFFEL.prompt, EIFFEL.subject)
    rows = corrupted(pair.model, asked, 0.5, 3, 0)
    own = pair.hf.get_input_embeddings()(torch.tensor([asked.tokens])).detach()
    assert allclose(embed(pair.model, torch.tensor([asked.tokens])), own)
    assert torch.equal(rows[:1], own)
    outside = [i for i in range(len(asked.tokens)) if i not in asked.subject]
    assert torch.equal(rows[:, outside], own[:, outside].expand(4, -1, -1))
    expected = own[:, list(asked.subject)] + 0.5 * standard_noise(0, asked.text, 3, len(asked.subject), own.shape[-1])
    assert allclose(rows[1:, list(asked.subject)], expected, 1e-6)
