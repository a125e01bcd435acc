"""What is doubtful about an edit is said: by the library, in its file, as JSON."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning
from ffnmem.editing import Edit, preparing
from ffnmem.editing.preparing import (
    CHANCE,
    CHANGE,
    announce,
    change_doubt,
    other_spellings,
    target_doubt,
    target_doubts,
)
from ffnmem.editing.requests import make_requests
from ffnmem.models.answers import Answered
from ffnmem.models.replaying import PlainLayers

from .plans import FACTS, moment_of

EIFFEL = fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", "Rome")


def request(model: fm.Model, target: str) -> Any:
    return make_requests(model, [EIFFEL], target, ("{}",))[0]


def said(*probabilities: tuple[float, ...]) -> Answered:
    logs = tuple(torch.tensor(one, dtype=torch.float64).log() for one in probabilities)
    return Answered(logs, tuple(False for _ in logs))


def test_a_likelier_spelling_in_one_token(tiny: fm.Model) -> None:
    """ " paris" in pieces moved a layer by 40% without a word."""
    one = request(tiny, " paris")
    assert [word for word, _ in other_spellings(tiny, one)] == ["Paris"]
    assert other_spellings(tiny, request(tiny, "Rome")) == []
    text = target_doubt(tiny, one, ["Paris"], said((0.1,) * len(one.ids), (0.5,)))
    assert "' paris' is" in text
    assert "' Paris' is one token with 0.5" in text
    assert target_doubt(tiny, one, ["Paris"], said((0.9,) * len(one.ids), (1e-9,))) == ""


def test_a_target_far_below_a_blind_guess(tiny: fm.Model) -> None:
    """An edit towards what the model finds absurd costs much and breaks more: its user must know."""
    one, guess = request(tiny, "Rome"), 1 / tiny.d_vocab
    assert target_doubt(tiny, one, [], said((2 * CHANCE * guess,))) == ""
    text = target_doubt(tiny, one, [], said((CHANCE * guess / 2,)))
    assert "' Rome' is absurd" in text
    assert "\n" not in text


def test_doubts_are_those_of_the_models_own_probabilities(tiny: fm.Model) -> None:
    """The prompt that is asked would hold tokens of the target, or its answers be those of another request."""
    requests = make_requests(tiny, [EIFFEL], " paris", ("{}",))
    assert list(requests[0].prompt) == tiny.tokenize(EIFFEL.text)
    found = target_doubts(PlainLayers(tiny), requests)
    assert "' Paris' is one token" in found[0]  # of a random model, a token is likelier than five


def test_a_large_change(tiny: fm.Model) -> None:
    """A layer that moves by more than any plausible edit moves it."""
    assert change_doubt(3, CHANGE) == ""
    assert "layer 3 by 40%" in change_doubt(3, 0.4)
    assert change_doubt(0, float("nan")) == ""


def test_doubts_are_kept_and_said_once(tiny: fm.Model, tmp_path: Path) -> None:
    """They would be lost with the file, doubled in a sum, or said for each of a thousand edits."""
    edit = fm.editing.ft_l(tiny, EIFFEL, " Rome", layer=0, steps=1)
    assert isinstance(edit, Edit)
    assert edit.warnings == ()
    doubtful = replace(edit, warnings=("it is odd",))
    assert Edit.load(doubtful.save(tmp_path / "edit.zip")).warnings == ("it is odd",)
    assert doubtful.to_dict()["warnings"] == ["it is odd"]
    assert "it is odd" in doubtful._repr_html_()
    with pytest.warns(FfnmemWarning, match="it is odd; 2 more of 4 edits are doubtful") as found:
        announce([edit, doubtful, doubtful, doubtful])
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce([edit])


@pytest.mark.parametrize("editor", ["memit", "ft_l"])
def test_a_doubtful_target_is_said_before_the_work(
    editor: str, tiny: fm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After minutes of steps it is too late to stop them; asked twice, it would cost twice and be said twice."""
    asked: list[int] = []

    def counted(layers: PlainLayers, requests: Any) -> tuple[str, ...]:
        asked.append(len(requests))
        return ("that is odd", "") * (len(requests) // 2)

    monkeypatch.setattr(preparing, "target_doubts", counted)
    monkeypatch.setattr(preparing, "CHANGE", float("inf"))
    said: list[int] = []
    options = {"moment": moment_of(tiny), "contexts": ("{}",), "settings": {"steps": 2}} if editor == "memit" else {}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = getattr(fm.editing, editor)(
            tiny, FACTS[:2], force=True, progress=lambda *_: said.append(len(found)), layer=0, **options
        )
    assert [str(one.message) for one in found] == ["that is odd"]
    assert said
    assert set(said) == {1}
    assert asked == [2]
    assert (made[0] if isinstance(made, tuple) else made).warnings == ("that is odd",)


def test_editors_read_targets_as_they_stand_in_the_prompt(tiny: fm.Model) -> None:
    """After an opening mark " Rome" with a space would be written where the text goes on without one."""
    quoted = replace(EIFFEL, prompt='The {} is in "')
    for fact, ids in ((EIFFEL, tiny.ids_of(" Rome")), (quoted, tiny.ids_of("Rome"))):
        for target in ("Rome", " Rome", None):
            (request,) = make_requests(tiny, [replace(fact, target_new="Rome")], target, ("{}",))
            assert request.ids == tuple(ids)
            assert request.target == "Rome"
