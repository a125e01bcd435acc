"""How an edit's direction settles with more text."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import SecondMoment, convergence, second_moment

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


@pytest.fixture(scope="module")
def keys(tiny: fm.Model) -> torch.Tensor:
    capture = fm.capture(tiny, "The Eiffel Tower is in the city of Paris")
    return capture.coefficients[1][0, 1:6]


def test_the_curve(tiny: fm.Model, keys: torch.Tensor) -> None:
    """Users would be told that little text is enough, or that none is."""
    table = convergence(tiny, tiny_texts(), keys, 1, [20, 200, 900], ridge=1e-3)
    assert list(table.columns) == ["tokens", "distance_mean", "distance_max", "cosine_mean", "condition"]
    assert table["tokens"].is_monotonic_increasing
    assert all(
        count <= found < count + tiny.n_ctx for count, found in zip([20, 200, 900], table["tokens"], strict=True)
    )
    assert table["distance_mean"].iloc[-1] == table["distance_max"].iloc[-1] == 0
    assert table["cosine_mean"].iloc[-1] == pytest.approx(1)
    assert table["distance_mean"].iloc[0] > table["distance_mean"].iloc[1] > 0
    assert (table["distance_max"] >= table["distance_mean"]).all()
    assert table.attrs["provenance"]["seed"] == 0


def test_the_last_row_is_all_of_the_text(tiny: fm.Model, keys: torch.Tensor) -> None:
    """The curve would end at another matrix than the one that edits use."""
    seen: list[SecondMoment] = []

    def quality(moment: SecondMoment) -> float:
        seen.append(moment)
        return float(moment.count)

    table = convergence(tiny, tiny_texts(), keys, 1, quality=quality)
    whole = second_moment(tiny, tiny_texts(), layers=[1])
    assert table["quality"].tolist() == table["tokens"].tolist()
    assert seen[-1].count == whole.count
    assert seen[-1].parts == whole.parts
    assert allclose(seen[-1].matrix(1), whole.matrix(1), 1e-5)
    for less, more in pairwise(seen):
        assert less.parts[0].overlaps(more.parts[0])
        assert sequences_of(less) < sequences_of(more)
        assert float((more.matrix(1) * more.count - less.matrix(1) * less.count).diagonal().min()) > -1e-3


def sequences_of(moment: SecondMoment) -> set[int]:
    return {number for first, end in moment.parts[0].ranges for number in range(first, end)}


def test_the_seed_decides(tiny: fm.Model, keys: torch.Tensor) -> None:
    """A curve could not be made again; or the order would be the text's whatever the seed."""
    a, b, c = (convergence(tiny, tiny_texts(), keys, 1, [100, 500], seed=seed) for seed in (1, 1, 2))
    assert a.equals(b)
    assert not a.equals(c)


def test_default_counts(tiny: fm.Model, keys: torch.Tensor) -> None:
    """They would leave out the end, or ask for more than there is."""
    texts = tiny_texts()[:20]
    whole = second_moment(tiny, texts, layers=[1]).count
    wanted = [*(n for n in (16, 32, 64, 128, 320, 640, 1280) if n < whole), whole]
    found = convergence(tiny, texts, keys, 1)["tokens"].tolist()
    assert len(found) == len(wanted)
    assert all(count <= tokens < count + tiny.n_ctx for count, tokens in zip(wanted, found, strict=True))


def test_refused(tiny: fm.Model, keys: torch.Tensor) -> None:
    """Zero keys have no direction: the table would be NaN."""
    for wrong, counts, named in (
        (keys[:0], None, "keys"),
        (torch.zeros(2, 64), None, "keys"),
        (torch.ones(2, 5), None, "64"),
        (keys, [], "counts"),
        (keys, [10, 10**6], "1000000"),
    ):
        with refuses(InputError, ValueError, named):
            convergence(tiny, tiny_texts(), wrong, 1, counts)
