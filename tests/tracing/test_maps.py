"""Maps of one fact and means over many: places, effects, tables, JSON and sheets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.provenance import Provenance
from ffnmem.tracing import Trace, Traces, knockout_facts, silence_fact, silence_facts
from ffnmem.tracing.places import CHOSEN, GROUPS, PLACES, VIEWS, Place, group_places, positions_by_group, token_places

from ..evaluation.made import FACTS
from ..helpers import BOS, PROMPT, allclose, printed, refuses

HOW = Provenance("m", "f", "float32", "cpu")
SUBJECT = "Eiffel Tower"
KNOWN = [replace(fact, target_true="") for fact in FACTS]


def made(subject: range, length: int, effect: float = 0.0) -> Trace:
    """A trace whose indirect effect at layer l and position p is p + 10·l + ``effect``."""
    scores = np.arange(length) + 10.0 * np.arange(2)[:, None] + effect + 0.25
    tokens = tuple(f"t{i}" for i in range(length))
    about: dict[str, Any] = {"answer": "a", "answer_ids": (1,), "text": "text", "tokens": tokens, "fact": "f"}
    how: dict[str, Any] = {"window": 1, "noise": 0.1, "seed": 0, "provenance": HOW}
    return Trace(scores={"state": scores}, clean=0.9, samples=np.array([0.2, 0.3]), subject=subject, **about, **how)


def gathered(*traces: Trace) -> Traces:
    return Traces(traces, pd.DataFrame(columns=["fact", "subject", "reason"]), HOW)


def words(result: Any) -> str:
    return " ".join(" ".join(printed(result.sheet())).split())


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
    assert positions_by_group(subject, length) == dict(zip(GROUPS, expected, strict=True))


def test_places() -> None:
    """What is silenced or blocked together; groups that a prompt does not have are left out."""
    positions = {
        "BOS": (0,),
        "before subject": (1,),
        "first subject": (2,),
        "last subject": (3,),
        "first subsequent": (4,),
        "further": (5,),
        "last token": (6,),
        "whole subject": (2, 3),
        "whole prompt": (1, 2, 3, 4, 5, 6),
        "non-subject": (1, 4, 5),
    }
    for groups in (PLACES, VIEWS):
        expected = tuple(Place(name, positions[name]) for name in groups if name != "middle subject")
        assert group_places(groups, range(2, 4), 7, True) == expected
    names = [place.name for place in group_places(VIEWS, range(0, 1), 2, False)]
    assert names == ["last subject", "whole subject", "last token"]
    expected = (Place("a", (0,)), Place("b", (1,)), Place("whole subject", (0,)), Place(CHOSEN, (0,)))
    assert token_places(["a", "b"], ("whole subject",), range(0, 1), False, [0]) == expected


def test_groups_average_facts_alike() -> None:
    """A fact with many further tokens counts once; the interval is over facts."""
    traces = gathered(made(range(1, 3), 9), made(range(1, 3), 6, effect=1.0), made(range(2, 3), 4))
    rows = traces.groups.set_index(["group", "layer"])
    further = rows.loc[("further", 1)]  # positions 4 to 7 of the first, 4 of the second, none of the third
    error = 1.96 * np.std([15.5, 15.0], ddof=1) / np.sqrt(2)
    assert tuple(further[["mean", "low", "high", "n"]]) == pytest.approx((15.25, 15.25 - error, 15.25 + error, 2))
    assert tuple(rows.loc[("last token", 0), ["mean", "n"]]) == pytest.approx(((8 + 6 + 3) / 3, 3))
    assert "middle subject" not in set(traces.groups["group"])
    single = gathered(made(range(1, 3), 5)).groups
    assert single[["low", "high"]].isna().all(axis=None), "a single fact has no interval"
    assert allclose(single[single["group"] == "last token"]["mean"], [4.0, 14.0], 1e-12)


@pytest.mark.parametrize(
    ("ask", "effects"), [(silence_facts, ("loss", "share")), (knockout_facts, ("share", "loss"))], ids=["ffn", "edges"]
)
def test_means_of_many_facts(ask: Any, effects: tuple[str, str], tiny: fm.Model) -> None:
    """Of the effects of each fact, with the interval of the first; unknown facts are skipped with the reason."""
    every = ask(tiny, KNOWN, window=1)
    row = every.groups.set_index(["group", "layer"]).loc[("whole subject", 0)]
    for name in effects:
        places = ([place.name for place in one.places].index("whole subject") for one in every.of_facts)
        values = [getattr(one, name)()[0, at] for one, at in zip(every.of_facts, places, strict=True)]
        assert row[name] == pytest.approx(np.mean(values))
        if name == effects[0]:
            error = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
            assert (row["low"], row["high"]) == pytest.approx((np.mean(values) - error, np.mean(values) + error))
    assert row["n"] == len(every) == len(FACTS)
    unknown = ask(tiny, FACTS)
    assert len(unknown) + len(unknown.skipped) == len(FACTS)
    assert unknown.skipped["reason"].str.contains("does not know").all()


def test_tables_json_and_line() -> None:
    traces = gathered(made(range(1, 3), 5))
    record = json.loads(json.dumps(traces.to_dict(), allow_nan=False))
    assert record["groups"][0]["low"] is None
    assert record["facts"][0]["total"] == pytest.approx(0.65)
    assert "1 fact," in repr(traces)
    assert "1 fact" in traces.plot().get_title(loc="left")
    copy = traces.to_frame()
    copy["mean"] = 0.0
    assert traces.groups["mean"].any(), "to_frame gave the table itself"


def test_no_facts() -> None:
    """All skipped is a result too."""
    skipped = pd.DataFrame([("a", "b", "it does not know [this]")], columns=["fact", "subject", "reason"])
    traces = replace(gathered(), skipped=skipped)
    assert traces.groups.empty
    assert list(traces.groups.columns) == Traces.COLUMNS.split()
    assert traces.facts.empty
    assert "0 facts, 1 skipped" in words(traces)
    assert "it does not know [this]" in words(traces)


ONE = [
    (
        lambda model: fm.trace_fact(model, PROMPT, SUBJECT, samples=3, noise=1.0, severed=("attention",)),
        ("kind", "layer", "position", "token", "score", "indirect"),
        ("state", "FFN of one layer", "state, attention severed", "standard deviation 1 (given), 3 samples, seed 0"),
    ),
    (
        lambda model: silence_fact(model, PROMPT, SUBJECT, kinds=("ffn", "attention"), window=1),
        ("kind", "layer", "place", "positions", "score", "loss", "share"),
        ("without FFN of one layer", "without attention of one layer", "whole subject"),
    ),
    (
        lambda model: fm.knockout(model, PROMPT, SUBJECT, window=1, positions=[0, 1]),
        ("kind", "layer", "place", "positions", "score", "loss", "share"),
        ("looking at", "in 1 layer at once", "whole subject", "non-subject", CHOSEN),
    ),
]


@pytest.mark.parametrize(("ask", "columns", "parts"), ONE, ids=["trace", "silence", "knockout"])
def test_one_fact(ask: Any, columns: tuple[str, ...], parts: tuple[str, ...], tiny: fm.Model) -> None:
    """One row a cell, the largest effect of each place in JSON, a map of each kind on the sheet, escaped tokens."""
    found = ask(tiny)
    frame, width = found.to_frame(), next(iter(found.scores.values())).shape[1]
    assert tuple(frame.columns) == columns
    assert len(frame) == len(found.kinds) * found.n_layers * width
    for kind, rows in frame.groupby("kind"):
        assert allclose(rows["score"], found.scores[kind].ravel(), 0)
        assert allclose(rows[found.EFFECT], getattr(found, found.EFFECT)(kind).ravel(), 0)
    assert len(found.brief()["largest"]) == len(found.kinds) * width
    json.dumps(found.to_dict(), allow_nan=False)
    shown = words(found)
    assert [part for part in ("·Tower*", BOS, f"{found.clean:.1%} clean", *parts) if part not in shown] == []
    assert PROMPT in repr(found)
    assert "\n" not in repr(found)
    assert found.provenance.to_dict()["window"] == 1
    nasty = replace(found, text="<script>", answer="<script>", tokens=("<script>",) * len(found.tokens))
    assert "<script>" not in nasty._repr_html_()
    with refuses(InputError, ValueError, "mlp"):
        getattr(found, found.EFFECT)("mlp")


def test_effects_of_a_trace(tiny: fm.Model) -> None:
    """Indirect: score minus corrupted; total: clean minus corrupted."""
    found = fm.trace_fact(tiny, PROMPT, SUBJECT, samples=3, noise=1.0)
    assert found.total == pytest.approx(found.clean - found.samples.mean())
    assert allclose(found.indirect("ffn"), found.scores["ffn"] - found.samples.mean(), 1e-12)
    recorded = found.provenance.to_dict()
    assert (recorded["noise"], recorded["samples"], recorded["kinds"]) == (1.0, 3, "state, ffn, attention")
    lines = printed(found.map("state"))[2:-1]
    assert ["* " in one for one in lines] == [i in found.subject for i in range(len(lines))]
    last = found.subject[-1]
    assert lines[last].split()[-2] == str(int(found.indirect("state")[:, last].argmax()))
    assert not lines[0].endswith("%")  # nothing is corrupted there, so nothing can come back
