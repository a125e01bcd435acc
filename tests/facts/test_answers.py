"""Which tokens answer a prompt, with tokenizers of every kind."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError
from ffnmem.facts import Answer, read_answer
from ffnmem.facts.answers import log_probability

from ..helpers import PROMPT, printed, refuses
from ..tokenizers import TOKENIZERS, model_with

PROMPTS = (
    "The capital of France is",
    'The city is called "',
    "The city (",
    "The city-",
    "中国的首都是",
    "The city is ",
)
TARGETS = ("Paris", " Paris", " North America", "北京", "Beyoncé", "2024")
KINDS = ("byte-level", "byte-level with a prefix space", "Llama 2", "GemmaTokenizer", "WordPiece", "Unigram (T5)")


def read(model: fm.Model, prompt: str, target: str | None, **options: Any) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FfnmemWarning)
        return read_answer(model, prompt, target, **options)


@pytest.mark.parametrize(
    "name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.exhaustive) for name in TOKENIZERS]
)
def test_the_answer_is_what_follows_in_the_whole_text(name: str) -> None:
    """A target tokenised by itself gets a token that the text never has, as `▁`, `▁Paris` of Llama 2."""
    model = model_with(name)
    tried = 0
    for prompt, target, word in itertools.product(PROMPTS, TARGETS, (False, True)):
        if model.tokenizer.unk_token_id in model.ids_of(prompt + target):
            continue
        answer = read(model, prompt, target, word=word)
        assert answer.target_text.strip() == target.strip()
        whole = tuple(model.tokenize(prompt + answer.target_text))
        assert answer.prompt == tuple(model.tokenize(prompt))
        # Where the text's own end would be another token, that is said, and the answer stands for itself.
        assert (answer.prompt + answer.target == whole) != answer.joins
        assert not {model.bos_token_id, model.tokenizer.eos_token_id} & set(answer.target)
        again = read(model, answer.prompt, answer.target_text)
        assert (again.prompt, again.target) == (answer.prompt, answer.target)
        tried += 1
    assert tried >= (20 if name == "WordPiece" else 50)
    strings = [text.strip() for text in model.token_strings(read(model, PROMPTS[0], "Paris", word=True).target)]
    assert strings == ["Paris"]


@pytest.mark.parametrize(
    ("prompt", "target", "word", "reads", "why"),
    [
        ("The city of", " Paris", False, " Paris", "with its space"),
        ("The city of ", "Paris", False, "Paris", "after a space"),
        ("The city is\n", "Paris", True, "Paris", "a line's end"),
        ('The city is called "', "Paris", True, "Paris", "opening mark"),
        ("The city is called '\"", "Paris", True, "Paris", "opening mark"),
        ("The city (", "Paris", True, "Paris", "opening mark"),
        ("The city «", "Paris", False, "Paris", "opening mark"),
        ("The city of", "Paris", True, " Paris", "a word after a space"),
        ('The "city"', "Paris", True, " Paris", "a word after a space"),
        ("The city:", "Paris ", True, " Paris", "a word after a space"),
        ("中国的首都是", "北京", False, "北京", "without spaces"),
    ],
)
def test_readings_that_need_no_model(prompt: str, target: str, word: bool, reads: str, why: str) -> None:
    """After an opening bracket a space was explained that nobody writes there; Chinese got one before every word."""
    model = model_with("byte-level")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = read_answer(model, prompt, target, word=word)
    assert answer.target_text == reads
    assert why in answer.reading


@pytest.mark.parametrize("prompt", ["The city of", "The city-", ""])
def test_the_likelier_reading_by_the_whole_answer(prompt: str) -> None:
    """By first tokens alone, "P" of "Paris" was weighed against all of " Paris"."""
    model = model_with("byte-level")
    ids = {text: tuple(model.ids_of(prompt + text)[len(model.ids_of(prompt)) :]) for text in ("Tower", " Tower")}
    tokens = model.tokenize(prompt) if prompt else [model.bos_token_id]
    logs = {text: log_probability(model, tokens, own) for text, own in ids.items()}
    likelier = max(logs, key=logs.__getitem__)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answer = read_answer(model, tokens, "Tower")
    assert (answer.target_text, answer.target) == (likelier, ids[likelier])
    assert [str(one.message) for one in said if "is read with a space before it" in str(one.message)] == (
        [str(one.message) for one in said] if likelier == " Tower" else []
    )
    assert len(said) == (likelier == " Tower")


def test_what_cannot_be_read(tiny: fm.Model) -> None:
    """Each would be measured as something else, or as nothing."""
    unknown = model_with("WordPiece")
    for model, arguments, named in (
        (tiny, {"target": ""}, "the target is empty"),
        (tiny, {"target": " ", "word": True}, "the target is empty"),
        (tiny, {"target": " Paris", "foil": " Paris"}, "the same token"),
        (tiny, {"target": " Parisian", "foil": " Paris", "first_token": True}, "the same token"),
        (tiny, {"target": None, "foil": int(fm.capture(tiny, PROMPT).logits_at(0, -1).argmax())}, "the same token"),
        (tiny, {"target": " Paris Rome", "foil": " Paris"}, "no token tells target from foil"),
        (tiny, {"target": " Paris" * 40}, "reads at most 32"),
        (unknown, {"target": "🎉"}, "'🎉' is not in the vocabulary"),
    ):
        with refuses(InputError, ValueError, named):
            read(model, PROMPT, **arguments)
    level = torch.zeros(tiny.d_vocab)
    text, plain, spaced = both(tiny)
    for logits in (level, level / 0):
        with refuses(InputError, ValueError, repr(text), repr(f" {text}"), str(plain), "equally likely"):
            read(tiny, PROMPT, text, logits=lambda: logits)  # noqa: B023
    level[plain] = 1
    assert read(tiny, PROMPT, text, logits=lambda: level).target == (plain,)
    level[spaced] = 2
    with pytest.warns(FfnmemWarning, match=f"likelier here .the one without is token {plain}"):
        assert read_answer(tiny, PROMPT, text, logits=lambda: level).target == (spaced,)


def both(model: fm.Model) -> tuple[str, int, int]:
    """A text that is a single token with a space before it and without, and both ids."""
    strings = model.token_strings(range(model.d_vocab))
    ids = {string: i for i, string in enumerate(strings) if model.ids_of(string) == [i] and string.strip()}
    text = next(s for s in ids if f" {s}" in ids)
    return text, ids[text], ids[f" {text}"]


def test_foils_are_compared_where_they_part() -> None:
    """ " North America" against " North Pole" was a difference of 0, or of two other tokens."""
    model = model_with("byte-level")
    answer = read(model, PROMPTS[0], " North America", foil=" North France")
    assert answer.parting == 1
    assert model.token_strings([*answer.read, answer.foil_id or 0]) == [" America", " France"]
    assert answer.tokens == (*answer.prompt, *answer.target[:1])
    assert list(answer.positions) == [len(answer.prompt)]
    assert read(model, PROMPTS[0], " North America", first_token=True).target == answer.target[:1]


@pytest.mark.parametrize("name", ["byte-level", "Llama 2"])
def test_each_token_of_an_answer_has_its_exact_sum(name: str) -> None:
    """Of "North America" only " North" was explained, and the continent was anybody's."""
    model = model_with(name)
    capture, tokens = fm.capture(model, PROMPTS[0]), model.tokenize(f"{PROMPTS[0]} North America")
    found, paths = fm.attribute(capture, " North America"), fm.attribute_paths(capture, " North America")
    ends = slice(capture.tokens.shape[1] - 1, len(tokens) - 1)
    logits = fm.capture(model, torch.tensor(tokens), logits=True).logits
    assert logits is not None
    own = logits[0, ends].gather(1, torch.tensor(tokens[1:])[ends, None])
    assert len(own) > 1
    assert found.target == " North America"
    for each, error in ((found.logits.tolist(), found.error), (paths.by_token["logit"].tolist(), paths.error)):
        assert each == pytest.approx(own[:, 0].tolist(), abs=1e-4)
        assert error < 1e-4
    total = found.total
    assert total.error < 1e-4
    assert found.logit == pytest.approx(float(own.sum()), abs=1e-3)
    assert float(total.neurons["logit"].sum()) == pytest.approx(float(found.neurons["logit"].sum()), abs=1e-3)
    assert float(paths.components["logit"].sum()) == pytest.approx(paths.logit, abs=1e-3)
    for result in (found, paths):
        shown = "\n".join(printed(result.sheet(3)))
        assert [part for part in ("·North·America", "the sum over its") if part not in shown] == []
    # Causal scores are of the whole answer's log-probability: each is its slope.
    causal = fm.causal_scores(capture, " North America")

    def logs() -> float:
        return log_probability(model, tokens[: ends.start + 1], tokens[ends.start + 1 :])

    assert causal.logit == pytest.approx(logs(), abs=1e-4)
    (row,) = causal.top(1).itertuples()
    with fm.intervene(model, {(row.layer, row.neuron): fm.interventions.Scale(1 - 1e-3)}, positions=[row.position]):
        moved = logs()
    assert (causal.logit - moved) / 1e-3 == pytest.approx(row.score, rel=0.05, abs=2e-3)
    kept = fm.faithfulness(capture, " North America", sizes=[causal.scores[:, 1:].numel()])
    assert kept.logit == pytest.approx(causal.logit, abs=1e-4)


@pytest.mark.parametrize("word", ["foil", "target"])
def test_all_functions_read_targets_alike(tiny: fm.Model, word: str) -> None:
    """`attribute` refused what `edit` completed."""
    capture = fm.capture(tiny, PROMPT)
    calls: dict[str, Any] = {
        "attribute": lambda **answer: fm.attribute(capture, **answer),
        "paths": lambda **answer: fm.attribute_paths(capture, **answer),
        "causal": lambda **answer: fm.causal_scores(capture, **answer),
        "circuit": lambda **answer: fm.circuit(capture, [(0, 1, 2)], **answer),
        "ablate": lambda **answer: fm.ablate(capture, **answer, neurons=[(0, 0)]),
    }
    text, plain, spaced = both(tiny)
    logits = capture.logits_at(0, -1)
    likelier = f" {text}" if float(logits[spaced]) > float(logits[plain]) else text
    for name, call in calls.items():
        answer: dict[str, Any] = {"target": " London", "foil": " Rome", word: text}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = call(**answer)
        assert len(said) == (likelier != text), name
        assert all(one.filename == __file__ or "typ" in one.filename for one in said), name
        assert getattr(found, word) == likelier
        answer[word] = spaced
        assert getattr(call(**answer), word) == f" {text}"
