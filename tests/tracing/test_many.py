"""Traces, silencings and knockouts of many facts: means, what is skipped, and folders in which a run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.core.provenance import Provenance
from ffnmem.tracing import Trace, Traces, knockout_facts, mapping, noise_scale, trace_facts

from ..evaluation.made import FACTS
from ..helpers import allclose, printed, refuses

HOW = Provenance("m", "f", "float32", "cpu")
KNOWN = [replace(fact, target_true="") for fact in FACTS]
ASKED = [KNOWN[0], FACTS[1], *KNOWN[1:]]  # the model does not know the second
TRACE: Callable[..., Any] = partial(trace_facts, samples=2, noise=0.5)
SILENCE: Callable[..., Any] = partial(trace_facts, way="silence")


def made(subject: range, length: int, effect: float = 0.0) -> Trace:
    """A trace whose indirect effect at layer l and position p is p + 10·l + ``effect``."""
    scores = np.arange(length) + 10.0 * np.arange(2)[:, None] + effect + 0.25
    tokens = tuple(f"t{i}" for i in range(length))
    about: dict[str, Any] = {"answer": "a", "answer_ids": (1,), "text": "text", "tokens": tokens, "fact": "f"}
    how: dict[str, Any] = {"window": 1, "noise": 0.1, "seed": 0, "provenance": HOW}
    return Trace(scores={"state": scores}, clean=0.9, samples=np.array([0.2, 0.3]), subject=subject, **about, **how)


def gathered(*traces: Trace, skipped: list[Any] | None = None) -> Traces:
    return Traces(traces, pd.DataFrame(skipped or [], columns=["fact", "subject", "reason"]), HOW)


def test_groups_average_facts_alike() -> None:
    """A fact with many further tokens counts once; the interval is over facts."""
    traces = gathered(made(range(1, 3), 9), made(range(1, 3), 6, effect=1.0), made(range(2, 3), 4))
    rows = traces.groups.set_index(["group", "layer"])
    further = rows.loc[("further", 1)]  # positions 4 to 7 of the first, 4 of the second, none of the third
    error = 1.96 * np.std([15.5, 15.0], ddof=1) / np.sqrt(2)
    assert tuple(further[["mean", "low", "high", "n"]]) == pytest.approx((15.25, 15.25 - error, 15.25 + error, 2))
    assert tuple(rows.loc[("last token", 0), ["mean", "n"]]) == pytest.approx(((8 + 6 + 3) / 3, 3))
    assert "middle subject" not in set(traces.groups["group"])
    largest = {row["group"]: (row["layer"], row["mean"]) for row in traces.to_dict()["largest"]}
    assert largest["further"] == (1, pytest.approx(15.25))
    single = gathered(made(range(1, 3), 5))
    assert single.groups[["low", "high"]].isna().all(axis=None), "a single fact has no interval"
    assert allclose(single.groups.query("group == 'last token'")["mean"], [4.0, 14.0], 1e-12)
    record = json.loads(json.dumps(single.to_dict(), allow_nan=False))
    assert record["groups"][0]["low"] is None
    assert record["facts"][0]["total"] == pytest.approx(0.65)


def test_no_facts() -> None:
    """All skipped is a result too."""
    traces = gathered(skipped=[("a", "b", "it does not know [this]")])
    assert traces.groups.empty
    assert list(traces.groups.columns) == Traces.COLUMNS.split()
    shown = " ".join(printed(traces.sheet()))
    assert "m knows none of 1 fact." in shown
    assert "it does not know [this]" in shown


@pytest.mark.parametrize(
    ("ask", "means"),
    [(TRACE, ("indirect",)), (SILENCE, ("loss", "share")), (knockout_facts, ("share", "loss"))],
    ids=["trace", "silence", "knockout"],
)
def test_means_of_many_facts(ask: Any, means: tuple[str, ...], tiny: fm.Model) -> None:
    """Of the effects of each fact by itself, with the interval of the first; unknown facts are skipped with why."""
    told: list[tuple[int, int]] = []
    every = ask(tiny, ASKED, window=1, progress=lambda _, done, of: told.append((done, of)))
    assert told == [(done, len(ASKED)) for done in range(1, len(ASKED) + 1)]
    assert every.skipped["fact"].tolist() == [FACTS[1].id]
    assert every.skipped["reason"].str.contains("does not know").all()
    assert len(every) == len(KNOWN)
    row = every.groups.set_index(["kind", "group", "layer"]).loc[(every.of_facts[0].kinds[0], "last subject", 0)]

    def at(one: Any) -> list[int]:  # where its subject ends, in a trace's positions or among its places
        names = ["last subject" if p == one.subject[-1] else "" for p in range(len(one.tokens))]
        named = names if name == "indirect" else [place.name for place in one.places]
        return [named.index("last subject")]

    for name in means:
        values = [getattr(one, name)(one.kinds[0])[0, at(one)].mean() for one in every.of_facts]
        assert row["mean" if name == "indirect" else name] == pytest.approx(np.mean(values))
        if name == means[0]:
            error = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
            assert (row["low"], row["high"]) == pytest.approx((np.mean(values) - error, np.mean(values) + error))
    assert row["n"] == len(KNOWN)
    alone = ask(tiny, KNOWN[2], window=1)
    assert alone.of_facts[0].to_dict() == every.of_facts[2].to_dict()


def test_default_noise_is_of_all_facts(tiny: fm.Model) -> None:
    long = replace(KNOWN[0], prompt="The {} is" + " the" * 40, id="long")
    traces = trace_facts(tiny, [*KNOWN, long], kinds=("state",), samples=2)
    assert {trace.noise for trace in traces.traces} == {noise_scale(tiny, KNOWN)}
    assert "reads at most" in traces.skipped["reason"][0]
    assert traces.provenance.to_dict()["noise_from"] == "3 sd of the embeddings of 4 facts' subjects"
    one = fm.trace_fact(tiny, KNOWN[0], kinds=("state",), samples=2)
    assert one.noise == pytest.approx(noise_scale(tiny, KNOWN[:1]))
    assert one.provenance.to_dict()["noise_from"] == "3 sd of this subject's embeddings"
    with refuses(InputError, ValueError, "no facts"):
        trace_facts(tiny, [])


# -- folders -----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_goes_on_where_it_stopped(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it failed, a kill would cost hours again, or what was kept would say something else."""
    ask = partial(TRACE, tiny, ASKED, window=1)
    whole = json.dumps(ask().to_dict())
    ran: list[str] = []
    real = mapping.find_question

    def counted(model: fm.Model, fact: fm.Fact, *rest: Any) -> Any:
        ran.append(fact.id)
        if len(ran) == 3:
            raise Killed
        return real(model, fact, *rest)

    monkeypatch.setattr(mapping, "find_question", counted)
    with pytest.raises(Killed):
        ask(out=tmp_path / "run")
    ran[:] = [""] * 3  # it is not killed again
    for _ in range(2):
        assert json.dumps(ask(out=tmp_path / "run").to_dict()) == whole
        assert ran[3:] == [fact.id for fact in ASKED[2:]]


def test_another_run_or_a_damaged_file_is_named(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Results of two models or settings must not be averaged. Facts may be added, with the noise of the rest."""
    traced = partial(trace_facts, kinds=("state",), samples=2, window=1)
    silenced = partial(SILENCE, window=1)
    for ask, changes in (
        (traced, {"window": {"window": 2}, "noise": {"noise": 9.0}, "kinds": {"kinds": ("ffn",)}}),
        (silenced, {"window": {"window": 2}, "kinds": {"kinds": ("attention",)}}),
    ):
        out = tmp_path / ("traced" if ask is traced else "silenced")
        first = ask(tiny, KNOWN[:1], out=out).of_facts[0]
        assert ask(tiny, KNOWN[:2], out=out).of_facts[0].to_dict() == first.to_dict()
        for name, changed in changes.items():
            with refuses(FileError, OSError, name, str(out)):
                ask(tiny, KNOWN, out=out, **changed)
        with refuses(FileError, OSError, "other things"):
            knockout_facts(tiny, KNOWN, window=1, out=out)
        one, two = sorted((out / "facts").iterdir())
        one.write_bytes(two.read_bytes())  # whole, but another fact's
        with refuses(FileError, OSError, one.name, "another run", "remove it"):
            ask(tiny, KNOWN[:2], out=out)
    with refuses(FileError, OSError, "other things"):
        SILENCE(tiny, KNOWN, window=1, out=tmp_path / "traced")
    with refuses(FileError, OSError, "fingerprint"):
        traced(make_tiny(dtype="float64"), KNOWN, out=tmp_path / "traced")


def test_facts_are_told_by_all_that_they_say(tiny: fm.Model, tmp_path: Path) -> None:
    """A skipped fact whose answer was corrected is asked again."""
    wrong = replace(KNOWN[0], target_true="zzz")
    assert list(SILENCE(tiny, [wrong], window=1, out=tmp_path).skipped["fact"]) == [wrong.id]
    assert len(SILENCE(tiny, [KNOWN[0]], window=1, out=tmp_path)) == 1
