"""Tracing a fact, and many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.tracing import Traces, noise_scale, trace_fact, trace_facts

from ..helpers import PROMPT, refuses

# The random model answers " France" to everything, so that this is a fact it knows.
FACT = fm.Fact("Eiffel Tower", "country", "The {} is in the city of", "France", id="eiffel")
WRONG = replace(FACT, target_true="Rome", id="wrong")
KNOWN = [replace(FACT, subject=subject, id=subject.lower()) for subject in ("Eiffel Tower", "Rome", "Tower")]


def test_the_eiffel_tower_in_atlas(atlas: fm.Model) -> None:
    """Known answer: FFNs of the lower layers at the subject's last token recall it, attention at the last token
    copies it late; the first tokens of the prompt have no part in it."""
    fact = next(fact for fact in fm.load_facts("atlas") if fact.id == "landmark.city.000")
    trace = trace_fact(atlas, fact, samples=5, noise=0.22)
    assert trace.answer == " Paris"
    assert trace.total > 0.4
    last_subject, last = trace.subject[-1], len(trace.tokens) - 1
    state, ffn, attention = (trace.indirect(kind) for kind in trace.kinds)
    assert np.unravel_index(state[:4].argmax(), state[:4].shape)[1] == last_subject
    assert np.unravel_index(ffn.argmax(), ffn.shape)[1] == last_subject
    assert np.unravel_index(attention[3:].argmax(), attention[3:].shape)[1] == last
    assert (state[:, : trace.subject.start] == 0).all()


def test_a_prompt_a_template_and_a_fact_are_the_same_question(tiny: fm.Model) -> None:
    options: dict[str, Any] = {"kinds": ("state",), "samples": 2, "noise": 1.0}
    prompt = trace_fact(tiny, PROMPT, "Eiffel Tower", **options)
    template = trace_fact(tiny, FACT.prompt, "Eiffel Tower", **options)
    assert template.to_dict() == prompt.to_dict()
    for name in ("", "eiffel", "another"):  # a fact's id is what it is called in a file, no part of the question
        fact = trace_fact(tiny, replace(FACT, id=name), **options)
        (alone,) = trace_facts(tiny, [replace(FACT, id=name)], **options).traces
        assert fact.to_dict() == alone.to_dict() == {**prompt.to_dict(), "fact": name or PROMPT}
    assert trace_fact(tiny, PROMPT, "Eiffel Tower", target=" France", **options).to_dict() == prompt.to_dict()


def test_noise_follows_seed_and_fact(tiny: fm.Model) -> None:
    def samples(**options: Any) -> list[float]:
        return list(trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("state",), noise=1.0, **options).samples)

    assert samples(samples=2) == samples(samples=2)
    assert samples(samples=4)[:2] == pytest.approx(samples(samples=2), abs=1e-6)
    assert samples(samples=2, seed=1) != samples(samples=2)


def test_no_noise_changes_nothing(tiny: fm.Model) -> None:
    """Then everything is the clean run, whatever is restored."""
    trace = trace_fact(tiny, PROMPT, "Eiffel Tower", noise=0, samples=2, severed=("ffn", "attention"))
    for kind in trace.kinds:
        assert abs(trace.scores[kind] - trace.clean).max() < 1e-6


def test_default_noise_and_window(tiny: fm.Model) -> None:
    trace = trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("ffn",), samples=1)
    assert trace.noise == pytest.approx(noise_scale(tiny, [FACT]))
    assert trace.provenance.to_dict()["noise_from"] == "3 sd of this subject's embeddings"
    (alone,) = trace_facts(tiny, [FACT], kinds=("state",), samples=2).traces
    assert (
        alone.samples.tolist() == trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("state",), samples=2).samples.tolist()
    )
    assert trace.window == 1
    assert trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("ffn",), samples=1, window=7).window == 7


@pytest.mark.parametrize("bos", [True, False])
def test_beginning_of_sequence(tiny: fm.Model, bos: bool) -> None:
    """The subject may be the very first token then; positions count from whatever comes first."""
    trace = trace_fact(tiny, "Eiffel Tower is in", "Eiffel", kinds=("state",), samples=2, noise=1.0, prepend_bos=bos)
    assert trace.subject.start == int(bos)
    assert trace.provenance.prepend_bos is bos
    assert (trace.tokens[0] == tiny.tokenizer.bos_token) is bos


def test_what_the_model_does_not_know_is_refused(tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, "' France'", "' Rome'", PROMPT):
        trace_fact(tiny, PROMPT, "Eiffel Tower", target=" Rome")
    with refuses(InputError, ValueError, "' Rome'"):
        trace_fact(tiny, WRONG)


def test_bad_questions_and_options(tiny: fm.Model) -> None:
    for arguments, options, named in (
        ((PROMPT,), {}, "subject"),
        ((PROMPT, "Colosseum"), {}, "Colosseum"),
        ((FACT, "Tower"), {}, "Tower"),
        ((PROMPT, "Tower"), {"samples": 0}, "samples"),
        ((PROMPT, "Tower"), {"window": 0}, "window"),
        ((PROMPT, "Tower"), {"noise": -0.1}, "noise"),
        ((PROMPT, "Tower"), {"seed": -1}, "seed"),
        ((PROMPT, "Tower"), {"kinds": ("mlp",)}, "mlp"),
        ((PROMPT, "Tower"), {"batch_tokens": 0}, "batch_tokens"),
    ):
        with refuses(InputError, ValueError, named):
            trace_fact(tiny, *arguments, **options)


def test_progress(tiny: fm.Model) -> None:
    told: list[tuple[int, int]] = []
    trace = trace_fact(tiny, PROMPT, "Tower", samples=1, progress=lambda _, done, total: told.append((done, total)))
    total = 3 * (len(trace.tokens) - trace.subject.start)
    assert told == [(done, total) for done in range(1, total + 1)]


def test_a_model_under_an_intervention_is_refused(tiny: fm.Model) -> None:
    """Its hooks would not be seen, and the trace be that of another model."""
    with fm.intervene(tiny, {(0, 1): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        trace_fact(tiny, PROMPT, "Tower")


# -- many facts ------------------------------------------------------------------------------------------------------


def many(model: fm.Model, facts: list[fm.Fact], **options: Any) -> Traces:
    return trace_facts(model, facts, **{"kinds": ("state",), "samples": 2, "noise": 1.0, **options})


def test_many_are_each_by_itself(tiny: fm.Model) -> None:
    """A fact's noise that depended on its place among the others would change with the selection."""
    told: list[tuple[int, int]] = []
    traces = many(tiny, KNOWN, progress=lambda _, done, total: told.append((done, total)))
    assert len(traces) == len(KNOWN) == len(told)
    for trace in traces.traces:
        fact = next(fact for fact in KNOWN if fact.id == trace.fact)
        assert trace_fact(tiny, fact, kinds=("state",), samples=2, noise=1.0).to_dict() == trace.to_dict()


def test_skipped_with_their_reason(tiny: fm.Model) -> None:
    long = replace(FACT, prompt="The {} is" + " the" * 40, id="long")
    traces = many(tiny, [WRONG, long])
    assert not len(traces)
    assert list(traces.skipped["fact"]) == ["wrong", "long"]
    assert "answers" in traces.skipped["reason"][0]
    assert "reads at most" in traces.skipped["reason"][1]
    with refuses(InputError, ValueError, "no facts"):
        many(tiny, [])


def test_default_noise_is_of_all_facts(tiny: fm.Model) -> None:
    traces = many(tiny, KNOWN, noise=None)
    assert {trace.noise for trace in traces.traces} == {noise_scale(tiny, KNOWN)}
    assert traces.provenance.to_dict()["noise"] == noise_scale(tiny, KNOWN)
    assert traces.provenance.to_dict()["noise_from"] == "3 sd of the embeddings of 3 facts' subjects"


def test_one_fact_will_do_and_a_text_will_not(tiny: fm.Model) -> None:
    assert len(trace_facts(tiny, KNOWN[0], kinds=("state",), samples=2)) == 1


def test_a_text_is_traced_to_what_the_model_says(atlas: fm.Model) -> None:
    text = "The Eiffel Tower is located in the city of"
    assert trace_fact(atlas, text, subject="Eiffel Tower", samples=1, kinds=["ffn"]).answer == " Paris"
    bare = fm.Fact(subject="Eiffel Tower", prompt="The {} is located in the city of", target_new="Rome")
    assert trace_fact(atlas, bare, samples=1, kinds=["ffn"]).answer == " Paris"
