import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning import Store
from ffnmem.scanning.contexts import clipped, merged
from ffnmem.scanning.neuron import Neuron
from ffnmem.scanning.state import edges
from ffnmem.scanning.statistics import histogram_columns
from ffnmem.show.notebook import HistogramDrawing, draw_histogram

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
        return replace(
            one,
            histogram=pd.DataFrame(histogram_columns(whole[None])[0]),
            stats={**one.stats, "min": least, "max": largest},
        )

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
    assert drawn(made({0.0: 7}, 0.0, 0.0)).bars.count("<rect") == 1


def test_nothing_counted(made: Make) -> None:
    one = made({}, 0.0, 0.0)
    assert clipped(one.histogram, 0.0, 0.0) == ([], [])
    assert one.drawn_histogram is None


def drawn(one: Neuron) -> HistogramDrawing:
    block = one.drawn_histogram
    assert block is not None
    return draw_histogram(block)


def test_drawing_fills_its_frame(made: Make) -> None:
    shape = drawn(made({-0.125: 10, 0.0: 1, 1.0: 100, 2.0: 1}, -0.12, 2.25))
    found = re.findall(
        r'class="fm-(plus|minus)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"><title>.*?: ([\d,]+)', shape.bars
    )
    x, y, width, height = (np.array([float(one[i]) for one in found]) for i in range(1, 5))
    assert height.max() == pytest.approx(100)
    assert height.min() > 0, "the emptiest still shows"
    assert y + height == pytest.approx(100, abs=0.1)
    assert (x[0], x[-1] + width[-1]) == (0, pytest.approx(1000, abs=1))
    assert [one[0] for one in found] == ["minus", "plus", "plus", "plus"]
    assert shape.zero == pytest.approx(1000 * 0.12 / 2.37, abs=0.01)
    assert sum(int(one[5].replace(",", "")) for one in found) == 112


def test_a_tall_histogram_names_every_other_line(made: Make) -> None:
    """From seven powers of ten on, as long scans have them, the numbers of all lines would run into one another."""
    few, many = (drawn(made({0.0: 10**n, 1.0: 100, 2.0: 1}, 0.0, 2.25)).tens for n in (3, 7))
    places = [[at for at, _ in tens] for tens in (few, many)]
    assert len(few) > 2
    assert [float(text.replace(",", "")) for _, text in many] == pytest.approx(
        [100.0**i * float(many[0][1].replace(",", "")) for i in range(len(many))]
    )
    assert all(np.diff(some).max() < 0 for some in places)
