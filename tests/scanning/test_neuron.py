"""A neuron's card: what the store says of it, alone and in blocks; its sides, examples, numbers and histogram."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.sheets import Facts, Histogram, Table
from ffnmem.core.types import CASES
from ffnmem.scanning import Store
from ffnmem.scanning.blocks import blocks
from ffnmem.scanning.contexts import clipped, merged
from ffnmem.scanning.neuron import KEYS, Neuron, band_label, kinds_shown
from ffnmem.scanning.state import COLUMNS, edges
from ffnmem.scanning.statistics import histogram_columns
from ffnmem.show.notebook import draw_histogram

from ..helpers import printed
from ..neurons import gated as gated_models

TABLES = ("examples", "histogram", "by_token", "by_position", "values")
UNSHOWN = {"context", "case", "layer", "neuron", "basis", "token_id"}
"""Columns of tables that no card shows."""


@pytest.fixture(scope="module")
def stores(tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    return {
        "classic": tiny_store,
        "gated": gated_models.scanned(gated_models.made("llama"), tmp_path_factory.mktemp("gated") / "store"),
    }


@pytest.fixture(scope="module")
def classic(tiny_store: Store) -> Neuron:
    return tiny_store.neuron(1, 5)


@pytest.fixture(scope="module")
def gated(stores: dict[str, Store]) -> Neuron:
    """One that reaches further below 0 than above, and a good way on both sides."""
    stats = stores["gated"].stats()
    low, high = -stats["min"], stats["max"]
    found = stats[(low > high) & (high > low / 2)].iloc[0]
    return stores["gated"].neuron(int(found["layer"]), int(found["neuron"]))


def with_stats(neuron: Neuron, **changes: Any) -> Neuron:
    return replace(neuron, stats={**neuron.stats, **changes})


def texts(fitting: Any) -> list[str]:
    return [piece[0].text for piece in fitting.pieces]


# -- what it holds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 256])
@pytest.mark.parametrize("which", ["classic", "gated"])
def test_a_neuron_is_what_the_store_says_alone_and_in_a_block(stores: dict[str, Store], which: str, size: int) -> None:
    """A card with another neuron's numbers."""
    store = stores[which]
    shown = kinds_shown(store)
    assert shown == ((*CASES, "quantile") if which == "gated" else ("top", "quantile"))
    found = list(blocks(store, 1, dict.fromkeys(shown), context=5, size=size))
    assert [one.neuron for one in found] == list(range(store.d_mlp(1)))
    for number in (0, 6, 7, store.d_mlp(1) - 1):
        one, block = store.neuron(1, number, kind=shown, context=5), found[number]
        pd.testing.assert_frame_equal(one.examples, store.examples(1, number, kind=shown, context=5))
        for name in TABLES[1:]:
            pd.testing.assert_frame_equal(getattr(one, name), getattr(store, name)(1, number))
        assert repr(one.stats) == repr(store.stats(1, number).iloc[0].to_dict())
        assert [window.text for window in one.windows] == one.examples["context"].tolist()
        for sign in ("promoted", "suppressed"):
            rows = one.values[(one.values["sign"] == sign) & (one.values["side"] == "value")]
            assert one.tokens(sign) == rows.sort_values("score", ascending=sign == "suppressed")["token"].tolist()
        plain_values = json.loads(json.dumps(one.to_dict()))  # NumPy's numbers would make every writer of JSON fail
        written = [
            row["token"] for row in plain_values["values"] if (row["side"], row["sign"]) == ("value", "promoted")
        ]
        assert written == one.tokens("promoted")
        assert plain_values["provenance"]["fingerprint"] == store.fingerprint
        for name in TABLES:
            plain, frame = getattr(block, name), getattr(one, name)
            assert set(frame.columns) - set(plain) <= UNSHOWN
            for column, values in plain.items():
                assert repr(list(values)) == repr(frame[column].tolist()), (name, column)
        assert block.windows == one.windows
        assert repr(block.stats) == repr(one.stats), "in text, in which NaN is like NaN"
        assert repr(block.sheet()) == repr(one.sheet()), "the same card"


# -- sides -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "largest", "signs"),
    [
        (-19.9, 6.4, ["negative", "positive"]),
        (-6.4, 19.9, ["positive", "negative"]),
        (-4.0, 19.9, ["positive"]),
        (-19.9, 4.0, ["negative"]),
        (-3.0, -1.0, ["negative"]),
        (0.0, 0.0, ["positive"]),
    ],
)
def test_the_sides_of_a_gated_neuron(gated: Neuron, least: float, largest: float, signs: list[str]) -> None:
    one = with_stats(gated, min=least, max=largest)
    assert [side.sign for side in one.sides] == signs
    assert one.to_dict()["sides"][0]["sign"] == signs[0]
    folded = {group.name for group in one.groups() if group.folded}
    assert folded == {{"positive": "max", "negative": "min"}[sign] for sign in {"positive", "negative"} - set(signs)}


def test_a_classic_neuron_has_one_side(classic: Neuron, tiny_store: Store) -> None:
    """GELU's dip below 0 is the same for all neurons, and no side even of one that hardly fires; it is folded."""
    one = with_stats(classic, min=-0.17, max=0.01)
    assert [side.sign for side in one.sides] == list(tiny_store.signs(1, 5)) == ["positive"]
    assert not any(block.title for block in one.sheet().blocks if isinstance(block, Facts))
    assert next(iter(one.about.rows)) == "fires at", "what it fires at is said first"
    for least, folded in ((-0.17, True), (-3.0, False)):
        one = with_stats(classic, min=least, max=4.0)
        shown = {block.title: block for block in one.sheet().blocks if isinstance(block, Table)}
        assert shown["Random sequences by their smallest coefficient"].folded == folded
        assert sum(table.folded for table in shown.values()) == folded
        out = "\n".join(printed(one.sheet()))
        assert ("by their smallest coefficient" in out) != folded
        assert ("(they end at -0.170); --kind bottom lists them" in out) == folded


def test_each_side_has_its_own_examples_and_writes_with_its_sign(gated: Neuron) -> None:
    """A card said that a neuron suppresses what it promotes where it fires most."""
    assert list(gated.store.signs(gated.layer, gated.neuron)) == ["negative", "positive"]  # type: ignore[attr-defined]
    below, above = gated.sides
    assert (below.extreme, above.extreme) == (gated.stats["min"], gated.stats["max"])
    assert [text for text, _ in below.promotes] == gated.tokens("suppressed") == [text for text, _ in above.suppresses]
    assert [score for _, score in below.promotes] == [-score for _, score in gated.scores("suppressed")]
    for side, factor in ((below, -1), (above, 1)):
        rows = gated.examples[~gated.examples["kind"].isin(["quantile", "random"])]
        rows = rows.drop_duplicates(["sequence", "position"])
        strong = rows[factor * rows["coefficient"] >= abs(side.extreme) / 2]
        assert side.examples == len(strong) > 0
        assert dict(side.fires_at) == strong["token"].value_counts().to_dict()
        windows = [gated.windows[i] for i in strong.index]
        for step, found in ((-1, side.preceded_by), (1, side.followed_by)):
            beside = [w.tokens[w.at + step] for w in windows if 0 <= w.at + step < len(w.tokens)]
            assert dict(found) == pd.Series(beside).value_counts().to_dict()
        assert next(mean for _, mean, _ in side.excited_by) == factor * (factor * gated.by_token["mean"]).max()
    titles = [block.title for block in gated.sheet().blocks if isinstance(block, Facts | Table) and block.title]
    first, second = (titles.index(title) for title in titles if " side, to " in title)
    signs = {group.title: group.sign for group in gated.groups()}
    assert {signs[title] for title in titles[first + 1 : second]} == {"negative"}
    assert [signs[title] for title in titles[second + 1 :]] == ["positive"] * (len(titles) - second - 2) + [""]
    words = " ".join(printed(gated.sheet(), 200)[:4])
    assert words.index("Negative side, to -") < words.index("Positive side, to ")
    (hint,) = gated.hints(folded=False)
    assert f"meanings {gated.name} --store" in hint
    assert "--sign both keeps" in hint


# -- examples --------------------------------------------------------------------------------------------------------


def test_groups_hold_every_example_in_order_and_in_its_band(classic: Neuron, gated: Neuron) -> None:
    """A row in the wrong band, or with another row's context, would be believed."""
    rows, groups = classic.examples, classic.groups(99)
    shown = [(group, band, e) for group in groups for band in group.bands for e in band.examples]
    largest = max(abs(classic.stats["min"]), abs(classic.stats["max"]))
    for (group, band, e), row in zip(shown, rows.itertuples(), strict=True):
        assert group.name == (row.extreme or row.kind)
        assert band.label == (band_label(row.band_low, row.band_high) if row.extreme else "")
        assert (e.coefficient, e.sequence, e.position, e.token) == (
            row.coefficient,
            row.sequence,
            row.position,
            row.token,
        )
        assert e.before + e.token + e.after == row.context
        assert e.strength == pytest.approx(abs(e.coefficient) / largest, abs=6e-4)
    labels = [row[0] for row in next(group for group in groups if group.name == "max").table().rows]
    shares = [label for label in labels if label is not None]  # of eight sequences, none is of the top 10%
    assert shares == ["75–90%", "50–75%", "25–50%", "lowest 25%"]
    assert band_label(0.9, 1.0) == "top 10%"
    found = [example.text for group in gated.groups(99) for example in group.examples()]
    assert len(found) == len(set(found))  # no text stands twice
    few = {group.name: group for group in classic.groups(2)}
    assert len(few["top"].bands[0].examples) == 2
    assert few["max"].bands == {group.name: group for group in groups}["max"].bands


# -- numbers and tokens ----------------------------------------------------------------------------------------------


def test_the_heading_is_the_neurons(classic: Neuron) -> None:
    found = classic.about.rows
    assert texts(found["promotes"]) == classic.tokens("promoted")
    assert texts(found["suppresses"]) == classic.tokens("suppressed")
    assert texts(found["excited by"]) == classic.by_token["token"].head(8).tolist()
    assert texts(found["at position"]) == classic.by_position["positions"].tolist()
    assert not set(found) & set(KEYS.values())
    table = classic.by_token.copy()
    table.loc[0, ["count", "mean"]] = [0, float("nan")]  # a shard may lack a token that is frequent in the corpus
    assert table.loc[0, "token"] not in texts(replace(classic, by_token=table).about.rows["excited by"])
    assert replace(classic, by_token=table.iloc[:0]).about.rows.get("excited by") is None


def test_a_gated_card_has_cases_keys_and_parts(gated: Neuron) -> None:
    """The gate's tokens under the key's name, or another example's gate beside a context."""
    cases = gated.case_table
    assert cases is not None
    assert [tuple(row[:3]) for row in cases.rows] == [
        (case, gated.stats[f"share_{column}"], gated.stats[f"mean_{column}"])
        for case, column in zip(CASES, COLUMNS, strict=True)
    ]
    never = with_stats(gated, **{f"share_{COLUMNS[2]}": 0.0, f"mean_{COLUMNS[2]}": float("nan")})
    assert [*CASES[2].split(), "0.0%", "–"] in [line.split() for line in printed(never.case_table)]
    found = gated.about.rows
    for (side, sign), words in KEYS.items():
        assert texts(found[words]) == gated.tokens(sign, side)
    shown = {e.place: e.parts for group in gated.groups(99) for band in group.bands for e in band.examples}
    for row in gated.examples.itertuples():
        assert shown.get((row.sequence, row.position), (row.gate, row.linear)) == (row.gate, row.linear)
    few = {group.name: group for group in gated.groups()}
    assert max(len(few[case].bands[0].examples) for case in CASES if case in few) <= 5
    case = next(group for group in few.values() if group.name in CASES)
    assert [tuple(row[1:3]) for row in case.table().rows[1:]] == [e.parts for e in case.bands[0].examples]


# -- the histogram ---------------------------------------------------------------------------------------------------

NATIVE = edges()
Make = Callable[[dict[float, int], float, float], Neuron]


@pytest.fixture(scope="module")
def made(classic: Neuron) -> Make:
    """A neuron by how many tokens it has in the bin that begins at each edge, and its least and largest value."""

    def make(counts: dict[float, int], least: float, largest: float) -> Neuron:
        whole = np.array([counts.get(float(edge), 0) for edge in NATIVE[:-1]], np.int64)
        assert whole.sum() == sum(counts.values())
        histogram = pd.DataFrame(histogram_columns(whole[None])[0])
        return replace(with_stats(classic, min=least, max=largest), histogram=histogram)

    return make


@given(st.lists(st.integers(0, 10**6), min_size=len(NATIVE) - 1, max_size=len(NATIVE) - 1), st.integers(2, 60))
def test_merging_loses_no_token_and_moves_no_edge(counts: list[int], most: int) -> None:
    """Bars that overlap, leave gaps or span both signs would tell another distribution."""
    found, counted = NATIVE[1:-1].tolist(), counts[1:-1]
    result = merged((found, counted), most)
    assert len(result) <= most
    assert sum(b.count for b in result) == sum(counted)
    assert [b.low for b in result[1:]] == [b.high for b in result[:-1]]
    assert {b.low for b in result} <= set(found)
    assert (result[0].low, result[-1].high) == (found[0], found[-1])
    assert any(b.low == 0 for b in result)  # so that no bar stands for both signs
    assert merged(([result[0].low, *(b.high for b in result)], [b.count for b in result]), most) == result


def test_ends_are_the_extremes(tiny_store: Store, made: Make) -> None:
    """An outer bin as wide as its rule would put tokens where none was, and one that is infinite cannot be drawn."""
    for column in range(20):
        one = tiny_store.neuron(1, column, kind="top", k=1)
        found = one.bins(40)
        assert found[0].low == pytest.approx(one.stats["min"])
        assert found[-1].high == pytest.approx(one.stats["max"])
        assert sum(b.count for b in found) == one.stats["count"]
        (drawn,) = [block for block in one.sheet().blocks if isinstance(block, Histogram)]
        assert sum(drawn.counts) == one.stats["count"]
        assert list(zip(drawn.edges, drawn.edges[1:], strict=False)) == [(b.low, b.high) for b in found]
    found = made({256.0 * 0.4375: 3, float(NATIVE[-2]): 2, float(NATIVE[0]): 1}, -1000.0, 5000.0).bins(200)
    assert (found[0].low, found[-1].high) == (-1000.0, 5000.0)
    assert sum(b.count for b in found) == 6
    for one, count in ((made({0.0: 7}, 0.0, 0.0), 7), (made({1.0: 4}, 1.1, 1.1), 4)):
        (only,) = one.bins()  # a constant: a bin of no width would have no height
        assert only.count == count
        assert only.density > 0
    nothing = made({}, 0.0, 0.0)
    assert clipped(nothing.histogram, 0.0, 0.0) == ([], [])
    assert nothing.distribution is None


def test_drawing_fills_its_frame(made: Make) -> None:
    block = made({-0.125: 10, 0.0: 1, 1.0: 100, 2.0: 1}, -0.12, 2.25).distribution
    assert block is not None
    shape = draw_histogram(block)
    found = re.findall(r'class="fm-(plus|minus)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', shape.bars)
    x, y, width, height = (np.array([float(one[i]) for one in found]) for i in range(1, 5))
    assert height.max() == pytest.approx(100)
    assert height.min() > 0, "the emptiest still shows"
    assert y + height == pytest.approx(100, abs=0.1)
    assert (x[0], x[-1] + width[-1]) == (0, pytest.approx(1000, abs=1))
    assert [one[0] for one in found] == ["minus", "plus", "plus", "plus"]
    assert shape.zero == pytest.approx(1000 * 0.12 / 2.37, abs=0.01)
