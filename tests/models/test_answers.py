"""Answers of many prompts at once, and continuations, against whole forward passes of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, OutOfRangeError
from ffnmem.models import answers as scoring
from ffnmem.models.answers import Question, answer, generate, written_on
from ffnmem.models.replaying import Change, PlainLayers, Replay

from ..helpers import Pair, allclose, refuses

QUESTIONS = [
    Question((3, 50, 120, 7, 8, 200, 33, 9), ((61,), (90, 4, 5), (90, 4, 6), (12,))),
    Question((3, 11, 60), ((41, 7),)),
    Question((3, 77, 12, 150, 99), ((8,), (8, 9, 10, 11))),
    Question((5,), ((6,),)),
]
LAYER, NEURON = 1, 5
Expected = list[list[Tensor]]
"""For each question and answer, the log-probabilities after the prompt and after the answer's tokens but the last."""


def by_itself(model: fm.Model, tokens: tuple[int, ...]) -> Tensor:
    """The log-probabilities after each token, of one whole pass."""
    capture = fm.capture(model, torch.tensor([tokens]), logits=True)
    assert capture.logits is not None
    return capture.logits[0].double().log_softmax(-1)


def whole_passes(model: fm.Model) -> Expected:
    return [[by_itself(model, q.tokens + ids[:-1])[len(q.tokens) - 1 :] for ids in q.answers] for q in QUESTIONS]


def same(found: list[scoring.Answered], expected: Expected, tolerance: float) -> bool:
    for question, one, passes in zip(QUESTIONS, found, expected, strict=True):
        for i, (ids, logs) in enumerate(zip(question.answers, passes, strict=True)):
            assert allclose(one.log_probabilities[i], logs[range(len(ids)), list(ids)], tolerance)
            assert one.exact[i] == (logs.argmax(-1).tolist() == list(ids))
        assert one.next_log is not None
        assert allclose(one.next_log, passes[0][0], tolerance)
    return len(found) == len(QUESTIONS)


def without_neuron(model: fm.Model) -> scoring.Changing:
    """Takes what one neuron writes off its layer's FFN, as a coefficient of zero does."""

    def changing(_questions: Tensor, _replay: Replay) -> Change:
        def change(layer: int, part: str, _first: int, written: Tensor, m: Tensor | None) -> Tensor:
            if (layer, part) != (LAYER, "ffn"):
                return written
            assert m is not None
            return written - m[..., NEURON : NEURON + 1] * model.ffn[layer].values[NEURON].detach()

        return change

    return changing


def test_answers_are_those_of_whole_passes(pair64: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the padding, the batches, and the layer that a change starts from."""
    model, layers = pair64.model, PlainLayers(pair64.model)
    before = whole_passes(model)
    with fm.intervene(model, {(LAYER, NEURON): 0.0}):
        after = whole_passes(model)
    found, again = answer(layers, QUESTIONS, next_token=True)
    assert found is again
    assert same(found, before, pair64.exact())
    assert found[1].mean_log(0) == pytest.approx(float(found[1].log_probabilities[0].mean()))
    monkeypatch.setattr(scoring, "LOGITS", 3 * model.d_vocab)
    for start, batch_tokens in ((0, 1), (LAYER, 9), (-1, 20)):
        options: dict[str, Any] = {"start": start, "batch_tokens": batch_tokens, "next_token": True}
        clean, changed = answer(layers, QUESTIONS, without_neuron(model), **options)
        assert same(clean, before, pair64.exact())
        assert same(changed, after, pair64.exact())
    assert not torch.allclose(clean[0].log_probabilities[0], changed[0].log_probabilities[0])


def test_each_question_has_its_own_change(tiny: fm.Model) -> None:
    """Edits of one row would be measured on another, whatever the order in which rows are packed."""
    direction = torch.linspace(-1, 1, tiny.d_model)  # a constant would be taken off by the next norm

    def adding(strength: Callable[[Tensor], Any]) -> scoring.Changing:
        def changing(questions: Tensor, replay: Replay) -> Change:
            assert len(questions) == replay.rows

            def change(layer: int, part: str, _first: int, written: Tensor, _m: Tensor | None) -> Tensor:
                return written + direction * strength(questions) if (layer, part) == (0, "attention") else written

            return change

        return changing

    layers = PlainLayers(tiny)
    clean, changed = answer(layers, QUESTIONS, adding(lambda questions: questions.reshape(-1, 1, 1)))
    for i, (question, one) in enumerate(zip(QUESTIONS, changed, strict=True)):
        (alone,) = answer(layers, [question], adding(lambda _, i=i: i))[1]
        for j, found in enumerate(one.log_probabilities):
            assert allclose(found, alone.log_probabilities[j], 1e-5)
            assert (i == 0) == torch.allclose(found, clean[i].log_probabilities[j], atol=1e-5)


def test_exact_is_greedy(tiny: fm.Model) -> None:
    """A fact would count as known although the model goes on otherwise, or the other way round."""
    tokens: tuple[int, ...] = (3, 50, 7)
    greedy: list[int] = []
    for _ in range(3):
        greedy.append(int(by_itself(tiny, (*tokens, *greedy))[-1].argmax()))
    wrong = (*greedy[:2], (greedy[2] + 1) % tiny.d_vocab)
    late = ((greedy[0] + 1) % tiny.d_vocab, *greedy[1:])
    (found,), _ = answer(PlainLayers(tiny), [Question(tokens, (tuple(greedy), tuple(greedy[:1]), wrong, late))])
    assert (found.exact, found.next_log) == ((True, True, False, False), None)


def test_greedy_is_the_argmax_of_whole_passes(architecture: fm.Model) -> None:
    """A cache that shifts positions would say something else; of several prompts, a pad that is seen."""
    prompts = [architecture.tokenize(text) for text in ("The city of", "The Eiffel Tower is in", "The")]
    expected = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(5):
            if tokens[-1] != architecture.tokenizer.eos_token_id or tokens == prompt:
                tokens.append(int(fm.capture(architecture, tokens).logits_at(0, len(tokens) - 1).argmax()))
        expected.append(tokens[len(prompt) :])
    assert [generate(architecture, prompt, 5) for prompt in prompts] == expected
    texts = [[token for token in one if token != architecture.tokenizer.eos_token_id] for one in expected]
    layers = PlainLayers(architecture)
    assert written_on(layers, prompts, [5, 5, 5]) == texts
    kept: list[int] = []
    found = written_on(
        layers, prompts, [5, 2, 0], lambda _, x: x.argmax(-1), lambda row, one: row == 0 and len(one) == 3
    )
    assert found == [texts[0][:3], texts[1][:2], []]
    assert written_on(layers, prompts, [5, 2, 1], keep=lambda places: kept.append(len(places))) == [
        one[:room] for one, room in zip(texts, (5, 2, 1), strict=True)
    ]
    assert kept == sorted(kept, reverse=True)


def test_sampling_is_that_of_hugging_face_and_leaves_the_random_state(tiny: fm.Model) -> None:
    """Seeds of before would write other texts."""
    tokens = tiny.tokenize("The city")
    ids = torch.tensor([tokens])
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 0, "max_new_tokens": 12}
    torch.manual_seed(7)
    theirs = tiny.hf_model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    state = torch.random.get_rng_state()
    assert generate(tiny, tokens, 12, temperature=1.5, seed=7) == theirs[0, len(tokens) :].tolist()
    assert generate(tiny, tokens, 12, temperature=1.5, seed=8) != theirs[0, len(tokens) :].tolist()
    assert torch.equal(torch.random.get_rng_state(), state)


LONG = Question((1,) * 32, ((1, 2),))


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        *(
            (lambda model, q=broken: answer(PlainLayers(model), [QUESTIONS[0], Question(*q)]), InputError, "question 1")
            for broken in (((), ((1,),)), ((1,), ()), ((1,), ((1,), ())))
        ),
        (lambda model: answer(PlainLayers(model), [LONG]), InputError, "33"),
        (
            lambda model: answer(PlainLayers(model), QUESTIONS, without_neuron(model), start=2),
            OutOfRangeError,
            "layer 2",
        ),
        (lambda model: generate(model, [1, 2, 3], 33), InputError, "at most 29"),
        (lambda model: generate(model, [1], 3, temperature=0.0), InputError, "temperature"),
        (lambda model: generate(model, [], 3), InputError, "empty"),
    ],
)
def test_what_cannot_be_asked(
    call: Callable[[fm.Model], Any], kind: type[FfnmemError], says: str, tiny: fm.Model
) -> None:
    with refuses(kind, Exception, says):
        call(tiny)
    assert len(answer(PlainLayers(tiny), [Question(LONG.tokens, ((1,),))])[0]) == 1
