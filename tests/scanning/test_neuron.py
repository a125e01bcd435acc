"""All that a store knows of one neuron."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from ffnmem.scanning import Store
from ffnmem.scanning.neuron import Neuron


@pytest.fixture(scope="module")
def neuron(tiny_store: Store) -> Neuron:
    return tiny_store.neuron(1, 17)


def test_says_what_the_store_says(neuron: Neuron, tiny_store: Store) -> None:
    """A card with another neuron's numbers."""
    pd.testing.assert_frame_equal(neuron.examples, tiny_store.examples(1, 17))
    pd.testing.assert_frame_equal(neuron.histogram, tiny_store.histogram(1, 17))
    pd.testing.assert_frame_equal(neuron.by_token, tiny_store.by_token(1, 17))
    pd.testing.assert_frame_equal(neuron.by_position, tiny_store.by_position(1, 17))
    pd.testing.assert_frame_equal(neuron.values, tiny_store.values(1, 17))
    assert neuron.stats == tiny_store.stats(1, 17).iloc[0].to_dict()
    assert neuron.name == "1.17"
    assert len(neuron.windows) == len(neuron.examples)
    assert [window.text for window in neuron.windows] == neuron.examples["context"].tolist()


def test_tokens_are_ranked(neuron: Neuron) -> None:
    for sign in ("promoted", "suppressed"):
        rows = neuron.values[neuron.values["sign"] == sign].sort_values("score", ascending=sign == "suppressed")
        assert neuron.tokens(sign) == rows["token"].tolist()
        assert len(neuron.tokens(sign)) == 10


def test_plain_values_are_json(neuron: Neuron) -> None:
    """NumPy's numbers in it would make every writer of JSON fail."""
    found = neuron.to_dict()
    assert json.loads(json.dumps(found))["neuron"] == 17
    assert found["stats"]["count"] == neuron.store.n_tokens
    assert len(found["examples"]) == len(neuron.examples)
    assert found["promoted"] == neuron.tokens("promoted")
    assert found["provenance"]["fingerprint"] == neuron.store.fingerprint
