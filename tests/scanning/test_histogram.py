import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.pages.neuron_cards import HEIGHT, card, histogram_drawing
from ffnmem.pages.rendering import ROOM
from ffnmem.scanning import Store
from ffnmem.scanning.contexts import Bin, clipped, merged
from ffnmem.scanning.neuron import Neuron
from ffnmem.scanning.state import edges
from ffnmem.scanning.statistics import histogram_frame
from ffnmem.show.notebook import environment

NATIVE = edges()
COUNTS = st.lists(st.integers(0, 10**6), min_size=len(NATIVE) - 1, max_size=len(NATIVE) - 1)


Make = Callable[..., Neuron]


@pytest.fixture(scope="module")
def made(tiny_store: Store) -> Make:
    """A neuron by how many tokens it has in the bin that begins at each edge, and its least and largest value."""
    one = tiny_store.neuron(0, 0, kind="top", k=1)

    def make(counts: dict[float, int], least: float, largest: float) -> Neuron:
        whole = np.array([counts.get(float(edge), 0) for edge in NATIVE[:-1]], np.int64)
        assert whole.sum() == sum(counts.values())
        return replace(one, histogram=histogram_frame(whole), stats={**one.stats, "min": least, "max": largest})

    return make


@given(COUNTS, st.integers(2, 60))
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


def test_merged_bins_come_near_one_width() -> None:
    """The narrowest neighbours are joined first, so the wide bins of the tail stay as they are."""
    assert merged(([0, 1, 2, 4, 8], [1, 2, 4, 8]), 3) == (
        Bin(0, 2, 3),
        Bin(2, 4, 4),
        Bin(4, 8, 8),
    )


def test_ends_are_the_extremes(tiny_store: Store) -> None:
    """An outer bin as wide as its rule would put tokens where none was, and one that is infinite cannot be drawn."""
    for column in range(20):
        one = tiny_store.neuron(1, column, kind="top", k=1)
        found = one.bins(40)
        assert found[0].low == pytest.approx(one.stats["min"])
        assert found[-1].high == pytest.approx(one.stats["max"])
        assert sum(b.count for b in found) == one.stats["count"]


def test_infinite_bins_end_where_the_values_do(made: Make) -> None:
    one = made({256.0 * 0.4375: 3, float(NATIVE[-2]): 2, float(NATIVE[0]): 1}, -1000.0, 5000.0)
    found = one.bins(200)
    assert (found[0].low, found[-1].high) == (-1000.0, 5000.0)
    assert sum(b.count for b in found) == 6


def test_a_constant_keeps_its_bin(made: Make) -> None:
    """A dead ReLU is 0 everywhere; a bin of no width would have no height."""
    (only,) = made({0.0: 7}, 0.0, 0.0).bins()
    assert only.count == 7
    assert only.density > 0
    (inside,) = made({1.0: 4}, 1.1, 1.1).bins()
    assert inside.density > 0
    shape = histogram_drawing(made({0.0: 7}, 0.0, 0.0))
    assert shape is not None
    assert len(shape.columns) == 1


def test_nothing_counted(made: Make) -> None:
    one = made({}, 0.0, 0.0)
    assert clipped(one.histogram, 0.0, 0.0) == ([], [])
    assert histogram_drawing(one) is None


def test_density_is_fair_to_widths() -> None:
    """A wide bin with as many tokens as a narrow one is emptier."""
    assert Bin(0, 2, 10).density == 5
    assert Bin(0, 1, 10).density == 10


def test_drawing_fills_its_frame(made: Make) -> None:
    shape = histogram_drawing(made({-0.125: 10, 0.0: 1, 1.0: 100, 2.0: 1}, -0.12, 2.25))
    assert shape is not None
    bars: Any = [c for c in shape.columns if c.height]
    assert max(c.height for c in bars) == pytest.approx(HEIGHT)
    assert min(c.height for c in bars) > 0  # the emptiest still shows
    assert all(c.y + c.height == pytest.approx(HEIGHT) for c in bars)
    assert shape.columns[0].x == 0
    assert shape.columns[-1].x + shape.columns[-1].width == pytest.approx(1000)
    assert [c.fires for c in bars] == [False, True, True, True]
    assert shape.zero == pytest.approx(1000 * 0.12 / 2.37, abs=0.01)
    assert "-0.12 to 2.25" in shape.text
    assert sum(int(c.title.split(": ")[1].split(" ")[0].replace(",", "")) for c in shape.columns) == 112


def test_a_tall_histogram_names_every_other_line(made: Make) -> None:
    """From seven powers of ten on, as long scans have them, the numbers of all lines would run into one another."""
    one = made({0.0: 10**7, 1.0: 100, 2.0: 1}, 0.0, 2.25)
    shape = histogram_drawing(one)
    assert shape is not None
    assert len(shape.lines) >= 7
    drawn = str(environment(ROOM).get_template("card.html").make_module().histogram(card(one)))  # type: ignore[attr-defined]
    axis = drawn.split('class="fm-tens"')[1].split("</div>")[0]
    assert re.findall(r">([^<>]+)</span>", axis) == [line.label for line in shape.lines[::2]]
