"""Folders of traces, silencings and knockouts: a run over many facts goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.tracing import knockout_facts, mapping, silence_facts, trace_facts

from ..evaluation.made import FACTS
from ..helpers import refuses

KNOWN = [replace(fact, target_true="") for fact in FACTS]
ASKED = [KNOWN[0], FACTS[1], *KNOWN[1:]]  # the model does not know the second
TRACE = partial(trace_facts, samples=2, noise=0.5)
WAYS = pytest.mark.parametrize("ask", [TRACE, silence_facts, knockout_facts], ids=["trace", "silence", "knockout"])


class Killed(BaseException):
    pass


@WAYS
def test_goes_on_where_it_stopped(
    ask: Callable[..., Any], tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it failed, a kill would cost hours again, or what was kept would say something else."""
    whole = ask(tiny, ASKED, window=1)
    ran: list[str] = []
    real = mapping.find_question

    def counted(model: fm.Model, fact: fm.Fact, *rest: Any) -> Any:
        ran.append(fact.id)
        if len(ran) == 3:
            raise Killed
        return real(model, fact, *rest)

    monkeypatch.setattr(mapping, "find_question", counted)
    with pytest.raises(Killed):
        ask(tiny, ASKED, window=1, out=tmp_path / "run")
    ran[:] = [""] * 3  # it is not killed again
    told: list[tuple[str, int, int]] = []
    again = ask(tiny, ASKED, window=1, out=tmp_path / "run", progress=lambda *said: told.append(said))
    assert ran[3:] == [fact.id for fact in ASKED[2:]]
    assert [done for _, done, _ in told] == [1, 2, 3, *range(4, len(ASKED) + 1)]
    assert json.dumps(again.to_dict()) == json.dumps(whole.to_dict())
    assert json.dumps(ask(tiny, ASKED, window=1, out=tmp_path / "run").to_dict()) == json.dumps(whole.to_dict())
    assert len(ran) == 1 + len(ASKED)


@WAYS
def test_another_run_or_a_damaged_file_is_named(
    ask: Callable[..., Any], tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Results of two models or windows must not be averaged."""
    ask(tiny, KNOWN[:2], window=1, out=tmp_path)
    with refuses(FileError, OSError, "window", "1", "2"):
        ask(tiny, KNOWN, window=2, out=tmp_path)
    with refuses(FileError, OSError, "prepend_bos"):
        ask(tiny, KNOWN, window=1, prepend_bos=False, out=tmp_path)
    with refuses(FileError, OSError, "fingerprint"):
        ask(make_tiny(dtype="float64"), KNOWN, window=1, out=tmp_path)
    with refuses(FileError, OSError, "other things"):
        (knockout_facts if ask is silence_facts else silence_facts)(tiny, KNOWN, window=1, out=tmp_path)
    first, second = sorted((tmp_path / "facts").iterdir())
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())  # whole, but another fact's
    with refuses(FileError, OSError, first.name, "another run", "remove it"):
        ask(tiny, KNOWN[:2], window=1, out=tmp_path)
    first.write_bytes(kept[:-200])
    with refuses(FileError, OSError, first.name):
        ask(tiny, KNOWN[:2], window=1, out=tmp_path)


def test_another_mean_is_another_run(tiny: fm.Model, tmp_path: Path) -> None:
    """Two captures have one name: if it failed, silencings by two means would be averaged."""
    paris, rome = (fm.capture(tiny, text) for text in ("The Eiffel Tower is in Paris", "Rome is in Italy"))
    silence_facts(tiny, KNOWN[:1], window=1, mean=paris, out=tmp_path)
    silence_facts(tiny, KNOWN[:2], window=1, mean=paris, out=tmp_path)
    with refuses(FileError, OSError, "means"):
        silence_facts(tiny, KNOWN[:1], window=1, mean=rome, out=tmp_path)
    with refuses(FileError, OSError, "replaced_by"):
        silence_facts(tiny, KNOWN[:1], window=1, out=tmp_path)


def test_facts_are_told_by_all_that_they_say(tiny: fm.Model, tmp_path: Path) -> None:
    """A skipped fact whose answer was corrected is asked again."""
    wrong = replace(KNOWN[0], target_true="zzz")
    found = silence_facts(tiny, [wrong], window=1, out=tmp_path)
    assert list(found.skipped["fact"]) == [wrong.id]
    assert len(silence_facts(tiny, [KNOWN[0]], window=1, out=tmp_path)) == 1
    assert len(list((tmp_path / "facts").iterdir())) == 2


def test_traces_are_of_one_noise(tiny: fm.Model, tmp_path: Path) -> None:
    """Facts that are added are traced with the noise of those that are there; another one is refused."""
    options: dict[str, Any] = {"kinds": ("state",), "samples": 2, "window": 1, "out": tmp_path}
    first = trace_facts(tiny, KNOWN[:1], **options).traces[0]
    assert {trace.noise for trace in trace_facts(tiny, KNOWN, **options).traces} == {first.noise}
    for changed in ({"noise": 9.0}, {"kinds": ("ffn",)}, {"samples": 3}, {"seed": 1}):
        with refuses(FileError, OSError, next(iter(changed)), str(tmp_path)):
            trace_facts(tiny, KNOWN, **{**options, **changed})
