"""The next tokens before and after."""

from __future__ import annotations

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.interventions.intervening import compare_predictions, rank_of

from ..helpers import PROMPT, refuses


def test_probabilities_and_ranks(tiny: fm.Model) -> None:
    before = fm.capture(tiny, PROMPT)
    with fm.intervene(tiny, {(0, None): 0.0}):
        after = fm.capture(tiny, PROMPT)
    found = compare_predictions(before, after, 3, k=6)
    first, second = (c.predictions(3, k=tiny.d_vocab).set_index("token_id") for c in (before, after))
    assert found["before"].clip(lower=found["after"]).is_monotonic_decreasing
    assert len(found) == 6
    for row in found.itertuples():
        for name, table in (("before", first), ("after", second)):
            assert getattr(row, name) == pytest.approx(table["probability"][row.token_id])
            assert getattr(row, f"rank_{name}") == table["rank"][row.token_id]
            assert getattr(row, f"logit_{name}") == pytest.approx(table["logit"][row.token_id])
        assert row.change == pytest.approx(row.after - row.before)
        assert row.token == tiny.token_strings([row.token_id])[0]
    left_out = set(range(tiny.d_vocab)) - set(found["token_id"])
    least = found[["before", "after"]].max(axis=1).min()
    assert all(max(first["probability"][i], second["probability"][i]) <= least for i in left_out)


def test_ties_go_by_id() -> None:
    assert rank_of(torch.tensor([1.0, 3.0, 1.0, 3.0])).tolist() == [3, 1, 4, 2]


def test_what_is_refused(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    with refuses(InputError, ValueError, "different prompts"):
        compare_predictions(capture, fm.capture(tiny, "The city"))
    with refuses(OutOfRangeError, IndexError, "position 99"):
        compare_predictions(capture, capture, 99)
    with refuses(InputError, ValueError, "k", "0"):
        compare_predictions(capture, capture, k=0)
