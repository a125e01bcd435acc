"""Maps of one fact, by three ways to make them: what can be asked, what a map says, where its places are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, UnsupportedModelError
from ffnmem.tracing.places import CHOSEN, GROUPS, PLACES, VIEWS, group_places, token_places
from ffnmem.tracing.settings import WIDEST, WIDEST_KNOCKOUT, check_window

from ..helpers import BOS, PROMPT, allclose, printed, refuses

SUBJECT = "Eiffel Tower"
# The random model answers " France" to everything, so that this is a fact it knows.
FACT = fm.Fact(SUBJECT, "country", "The {} is in the city of", "France", id="eiffel")
TRACE: Callable[..., Any] = partial(fm.trace_fact, samples=2, noise=1.0)


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "length", "expected"),
    [
        (range(1, 5), 9, ([1], [2, 3], [4], [5], [6, 7], [8])),
        (range(0, 1), 4, ([], [], [0], [1], [2], [3])),
        (range(1, 3), 4, ([1], [], [2], [], [], [3])),
        (range(1, 4), 4, ([1], [2], [], [], [], [3])),
        (range(2, 3), 3, ([], [], [], [], [], [2])),
    ],
)
def test_each_position_is_in_one_group(subject: range, length: int, expected: tuple[list[int], ...]) -> None:
    """A last token counted as one after the subject would lend it the effect that every last token has."""
    found = {place.name: list(place.positions) for place in group_places(GROUPS, subject, length, True)}
    assert found == {name: at for name, at in zip(GROUPS, expected, strict=True) if at}


def test_places() -> None:
    """What is silenced or blocked together; groups that a prompt does not have are left out."""
    text = {
        "BOS": "0",
        "before subject": "1",
        "first subject": "2",
        "last subject": "3",
        "first subsequent": "4",
        "further": "5",
        "last token": "6",
        "whole subject": "23",
        "whole prompt": "123456",
        "non-subject": "145",
    }

    def named(places: Any) -> list[tuple[str, str]]:
        return [(place.name, "".join(map(str, place.positions))) for place in places]

    for groups in (PLACES, VIEWS):
        expected = [(name, text[name]) for name in groups if name in text]
        assert named(group_places(groups, range(2, 4), 7, True)) == expected
    short = [("last subject", "0"), ("whole subject", "0"), ("last token", "1")]
    assert named(group_places(VIEWS, range(1), 2, False)) == short
    tokens = token_places(["a", "b"], ("whole subject",), range(1), False, [0])
    assert named(tokens) == [("a", "0"), ("b", "1"), ("whole subject", "0"), (CHOSEN, "0")]


@pytest.mark.parametrize(
    ("widest", "windows"),
    [
        (WIDEST, {96: 10, 48: 10, 36: 8, 24: 5, 12: 3, 6: 3, 4: 2, 2: 1, 1: 1}),
        (WIDEST_KNOCKOUT, {48: 9, 28: 5, 30: 6, 12: 3, 2: 1}),
    ],
)
def test_the_default_window(widest: int, windows: dict[int, int]) -> None:
    """10 of 48 layers as in the paper, of knockout 9 of GPT-2 XL's and 5 of GPT-J's; never over half of a shallow
    model, where every cell would be the same."""
    assert {n: check_window(None, n, widest) for n in windows} == windows


# -- what a map says ---------------------------------------------------------------------------------------------------

ONE = {
    "trace": (
        TRACE,
        ("kind", "layer", "position", "token", "score", "indirect"),
        (
            "state",
            "FFN of one layer",
            "attention of one layer",
            "With noise on the subject the probability of",
            "samples 2",
        ),
    ),
    "silence": (
        partial(fm.trace_fact, way="silence", kinds=("ffn", "attention"), window=1),
        ("kind", "layer", "place", "positions", "score", "loss", "share"),
        (
            "writes nothing at the subject",
            "without FFN of one layer",
            "without attention of one layer",
            "whole subject",
        ),
    ),
    "knockout": (
        partial(fm.knockout, window=1, positions=[0, 1]),
        ("kind", "layer", "place", "positions", "score", "loss", "share"),
        ("cannot look at the subject", "in 1 layer at once", "whole subject", "non-subject", CHOSEN),
    ),
}


@pytest.mark.parametrize("way", ONE)
def test_one_fact(way: str, tiny: fm.Model) -> None:
    """One row a cell with its effects, which are those of the maps."""
    ask, columns, _ = ONE[way]
    told: list[tuple[int, int]] = []
    found = ask(tiny, PROMPT, SUBJECT, progress=lambda _, done, of: told.append((done, of)))
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)]
    frame, width = found.to_frame(), next(iter(found.scores.values())).shape[1]
    assert tuple(frame.columns) == columns
    assert len(frame) == len(found.kinds) * found.n_layers * width
    effects = {"loss": found.clean - frame["score"], "share": 1 - frame["score"] / found.clean}
    if way == "trace":
        effects = {"indirect": frame["score"] - found.samples.mean()}
        assert found.total == pytest.approx(found.clean - found.samples.mean())
    for name, expected in effects.items():
        assert allclose(frame[name], expected, 1e-12)
    for kind, rows in frame.groupby("kind"):
        assert allclose(rows["score"], found.scores[kind].ravel(), 0)
    maps = json.loads(json.dumps(found.to_dict(), allow_nan=False))["maps"]
    for kind in found.kinds:
        assert allclose(maps[kind]["values"], getattr(found, found.EFFECT)(kind).T, 0)
    assert found.provenance.to_dict()["window"] == 1
    with refuses(InputError, ValueError, "mlp"):
        getattr(found, found.EFFECT)("mlp")


@pytest.mark.parametrize("way", ONE)
def test_the_sheet_of_one_fact(way: str, tiny: fm.Model) -> None:
    ask, _, parts = ONE[way]
    found = ask(tiny, PROMPT, SUBJECT)
    shown = " ".join(" ".join(printed(found.sheet())).split())
    assert [part for part in ("·Tower*", BOS, f"{found.clean:.1%}", *parts) if part not in shown] == []
    names = found.map(found.kinds[0]).rows[: len(found.tokens)]
    assert [name.text.endswith("*") for name in names] == [i in found.subject for i in range(len(names))]


def test_the_eiffel_tower_in_atlas(atlas: fm.Model) -> None:
    """Known answer: FFNs of the lower layers at the subject's last token recall it, attention at the last token
    copies it late; the first tokens of the prompt have no part in it."""
    fact = next(fact for fact in fm.load_facts("atlas") if fact.id == "landmark.city.000")
    trace = fm.trace_fact(atlas, replace(fact, target_true=""), samples=5, noise=0.22)
    assert trace.answer == " Paris"
    assert trace.total > 0.4
    last_subject, last = trace.subject[-1], len(trace.tokens) - 1
    state, ffn, attention = (trace.indirect(kind) for kind in trace.kinds)
    assert np.unravel_index(state[:4].argmax(), state[:4].shape)[1] == last_subject
    assert np.unravel_index(ffn.argmax(), ffn.shape)[1] == last_subject
    assert np.unravel_index(attention[3:].argmax(), attention[3:].shape)[1] == last
    assert (state[:, : trace.subject.start] == 0).all()
    assert (state[-1, :-1] == 0).all()


# -- what can be asked -------------------------------------------------------------------------------------------------


def test_a_prompt_a_template_and_a_fact_are_the_same_question(tiny: fm.Model) -> None:
    state = partial(TRACE, tiny, kinds=("state",))
    one = state(PROMPT, SUBJECT)
    prompt = one.to_dict()
    assert state(FACT.prompt, SUBJECT).to_dict() == state(PROMPT, SUBJECT, target=" France").to_dict() == prompt
    for name in ("", "eiffel"):  # a fact's id is what it is called in a file, no part of the question
        fact = replace(FACT, id=name)
        (alone,) = fm.tracing.trace_facts(tiny, fact, kinds=("state",), samples=2, noise=1.0).traces
        assert state(fact).to_dict() == alone.to_dict() == prompt
        assert state(fact).fact == (name or PROMPT)
    assert state(PROMPT, SUBJECT, samples=4).samples[:2] == pytest.approx(one.samples, abs=1e-6)
    assert (state(PROMPT, SUBJECT, seed=1).samples != one.samples).all()


@pytest.mark.parametrize("bos", [True, False])
def test_beginning_of_sequence(tiny: fm.Model, bos: bool) -> None:
    """The subject may be the very first token then; positions count from whatever comes first."""
    trace = TRACE(tiny, "Eiffel Tower is in", "Eiffel", kinds=("state",), prepend_bos=bos)
    assert trace.subject.start == int(bos)
    assert trace.provenance.prepend_bos is bos
    assert (trace.tokens[0] == BOS) is bos


TRACED, HERE = ONE["trace"][0], (PROMPT, SUBJECT)
SILENCED: Any = partial(fm.trace_fact, way="silence")
BLOCKED = fm.knockout
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = [
    (TRACED, (PROMPT,), {}, ("subject",)),
    (TRACED, (PROMPT, "Colosseum"), {}, ("Colosseum",)),
    (TRACED, HERE, {"target": " Rome"}, ("' France'", "' Rome'", PROMPT)),
    (TRACED, (replace(FACT, target_true="Rome"),), {}, ("' Rome'",)),
    (TRACED, HERE, {"kinds": "state"}, ("kinds",)),
    (TRACED, HERE, {"kinds": ()}, ("state",)),
    (SILENCED, HERE, {"samples": 3}, ("samples",)),
    (SILENCED, HERE, {"noise": 0.5}, ("noise",)),
    (SILENCED, HERE, {"kinds": ("state",)}, ("kind", "'state'", "'attention'")),
    (SILENCED, HERE, {"kinds": ()}, ("no kinds",)),
    (SILENCED, HERE, {"target": "zzz"}, ("does not know",)),
    (BLOCKED, ("The", "The"), {"prepend_bos": False}, ("one token",)),
    (BLOCKED, ("Paris", "Paris"), {"prepend_bos": False}, ("positions 0, 1, 2, 3, 4", "nothing left to look at")),
]


def test_refusals(tiny: fm.Model) -> None:
    for ask, arguments, options, says in REFUSED:
        with refuses(InputError, ValueError, *says):
            ask(tiny, *arguments, **options)
    with refuses(OutOfRangeError, IndexError, "position", "99"):
        BLOCKED(tiny, *HERE, positions=[99])
    with fm.intervene(tiny, {(0, 1): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        TRACED(tiny, *HERE)  # hooks would not be seen, and the trace be that of another model
