"""Answers of many prompts at once, against whole forward passes of each by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.models import answers as scoring
from ffnmem.models.answers import Question, answer, readings
from ffnmem.models.replaying import Change, PlainLayers, Replay

from ..helpers import Pair, allclose, refuses

QUESTIONS = [
    Question((3, 50, 120, 7, 8, 200, 33, 9), ((61,), (90, 4, 5), (90, 4, 6), (12,))),
    Question((3, 11, 60), ((41, 7),)),
    Question((3, 77, 12, 150, 99), ((8,), (8, 9, 10, 11))),
    Question((5,), ((6,),)),
]
LAYER, NEURON = 1, 5


@pytest.fixture(scope="module")
def tiny64(tiny_hf: Any, tokenizer: Any) -> fm.Model:
    return fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")


def by_itself(model: fm.Model, tokens: tuple[int, ...]) -> Tensor:
    """The log-probabilities after each token, of one whole pass."""
    capture = fm.capture(model, torch.tensor([tokens]), logits=True)
    assert capture.logits is not None
    return capture.logits[0].double().log_softmax(-1)


Expected = list[list[Tensor]]
"""For each question and answer, the log-probabilities after the prompt and after the answer's tokens but the last."""


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


def test_answers_are_those_of_whole_passes(pair64: Pair) -> None:
    """A pad that is seen, or an answer that is read one position off, would change every score."""
    found, again = answer(PlainLayers(pair64.model), QUESTIONS, next_token=True)
    assert found is again
    assert same(found, whole_passes(pair64.model), pair64.exact())
    assert found[1].mean_log(0) == pytest.approx(float(found[1].log_probabilities[0].mean()))


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


def test_a_change_is_that_of_an_intervention(pair64: Pair) -> None:
    """What is below the change is computed once: from too low nothing changes, from too high it is missed."""
    model = pair64.model
    before = whole_passes(model)
    with fm.intervene(model, {(LAYER, NEURON): 0.0}):
        after = whole_passes(model)
    layers = PlainLayers(pair64.model)
    for start in (0, LAYER, -1):
        clean, changed = answer(layers, QUESTIONS, without_neuron(model), start=start, next_token=True, batch_tokens=20)
        assert same(clean, before, pair64.exact())
        assert same(changed, after, pair64.exact())
    assert not torch.allclose(clean[0].log_probabilities[0], changed[0].log_probabilities[0])


def test_each_question_has_its_own_change(tiny: fm.Model) -> None:
    """Edits of one row would be measured on another, whatever the order in which rows are packed."""

    direction = torch.linspace(-1, 1, tiny.d_model)  # a constant would be taken off by the next norm

    def changing(questions: Tensor, replay: Replay) -> Change:
        assert len(questions) == replay.rows

        def change(layer: int, part: str, _first: int, written: Tensor, _m: Tensor | None) -> Tensor:
            if (layer, part) != (0, "attention"):
                return written
            return written + direction * questions.reshape(-1, 1, 1)

        return change

    layers = PlainLayers(tiny)
    clean, changed = answer(layers, QUESTIONS, changing)
    one_by_one = [answer(layers, [question], adding(i * direction))[1][0] for i, question in enumerate(QUESTIONS)]
    for i, (one, alone) in enumerate(zip(changed, one_by_one, strict=True)):
        for j, found in enumerate(one.log_probabilities):
            assert allclose(found, alone.log_probabilities[j], 1e-5)
            assert (i == 0) == torch.allclose(found, clean[i].log_probabilities[j], atol=1e-5)


def adding(value: Tensor) -> scoring.Changing:
    def change(layer: int, part: str, _first: int, written: Tensor, _m: Tensor | None) -> Tensor:
        return written + value if (layer, part) == (0, "attention") else written

    return lambda _questions, _replay: change


@pytest.mark.parametrize("batch_tokens", [1, 9, 30])
def test_batches_do_not_matter(tiny64: fm.Model, batch_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results would depend on the memory of a machine."""
    layers = PlainLayers(tiny64)
    whole, _ = answer(layers, QUESTIONS, next_token=True)
    monkeypatch.setattr(scoring, "LOGITS", 3 * tiny64.d_vocab)
    parts, _ = answer(layers, QUESTIONS, next_token=True, batch_tokens=batch_tokens)
    for a, b in zip(whole, parts, strict=True):
        for i, logs in enumerate(a.log_probabilities):
            assert allclose(b.log_probabilities[i], logs, 1e-11)
        assert a.exact == b.exact
        assert a.next_log is not None
        assert allclose(b.next_log, a.next_log, 1e-11)


def test_exact_is_greedy(tiny: fm.Model) -> None:
    """A fact would count as known although the model goes on otherwise, or the other way round."""
    tokens: tuple[int, ...] = (3, 50, 7)
    greedy: list[int] = []
    for _ in range(3):
        greedy.append(int(by_itself(tiny, (*tokens, *greedy))[-1].argmax()))
    wrong = (*greedy[:2], (greedy[2] + 1) % tiny.d_vocab)
    late = ((greedy[0] + 1) % tiny.d_vocab, *greedy[1:])
    found, _ = answer(PlainLayers(tiny), [Question(tokens, (tuple(greedy), tuple(greedy[:1]), wrong, late))])
    assert found[0].exact == (True, True, False, False)
    assert found[0].next_log is None


def test_answers_share_rows() -> None:
    """Two targets of one token would cost two passes."""
    rows = readings(QUESTIONS, 32, "tiny")
    assert [(row.question, row.answers, row.width) for row in rows] == [
        (0, (0, 3), 1),
        (0, (1, 2), 3),
        (1, (0,), 2),
        (2, (0,), 1),
        (2, (1,), 4),
        (3, (0,), 1),
    ]
    assert rows[1].tokens == (*QUESTIONS[0].tokens, 90, 4)


def test_questions_that_cannot_be_asked(tiny: fm.Model) -> None:
    layers = PlainLayers(tiny)
    broken: list[tuple[Any, ...]] = [((), ((1,),)), ((1,), ()), ((1,), ((1,), ()))]
    for tokens, answers in broken:
        with refuses(InputError, ValueError, "question 1"):
            answer(layers, [QUESTIONS[0], Question(tokens, answers)])
    long = Question((1,) * tiny.n_ctx, ((1, 2),))
    with refuses(InputError, ValueError, str(tiny.n_ctx + 1), str(tiny.n_ctx)):
        answer(layers, [long])
    assert len(answer(layers, [Question(long.tokens, ((1,),))])[0]) == 1
    with refuses(InputError, ValueError, "batch_tokens"):
        answer(layers, QUESTIONS, batch_tokens=0)
    with refuses(OutOfRangeError, IndexError, "layer 2"):
        answer(layers, QUESTIONS, without_neuron(tiny), start=2)
