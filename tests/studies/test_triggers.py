"""What removing a token does to a coefficient, against whole forward passes of single prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning import Store
from ffnmem.studies.triggers import REMOVED, Trial, change_table, changes, prefix_table, removal_trials

from ..helpers import allclose


@pytest.fixture(scope="module")
def trials(tiny: fm.Model, tiny_store: Store) -> list[Trial]:
    return removal_trials(tiny, tiny_store, keys=12, prefixes=2, seed=5)


def test_changes_are_those_of_single_prompts(tiny: fm.Model, tiny_store: Store, trials: list[Trial]) -> None:
    """First: after BOS. Last: the prefix without it. Random: one of those between, for each row."""
    check_changes(tiny, tiny_store, trials)
    for trial in trials:
        assert trial.drawn == 12
        assert (trial.frame["position"] >= 3).all()  # a prefix of two tokens has none between its first and its last
        assert trial.frame["neuron"].nunique() <= 12
        assert trial.frame["rank"].max() <= 2


def test_changes_of_gated_coefficients(gated: fm.Model, gated_store: Store) -> None:
    """Of the product of gate and key; progress is told within a layer too, which may take minutes."""
    told: list[tuple[str, int, int]] = []
    trials = removal_trials(gated, gated_store, keys=12, prefixes=2, seed=5, progress=lambda *call: told.append(call))
    assert told == sorted(told)
    assert told[-1] == ("prefixes", 24, 24)
    assert len(set(told)) > 4
    assert all((trial.frame["coefficient"] > 0).all() for trial in trials)
    check_changes(gated, gated_store, trials)


def check_changes(model: fm.Model, store: Store, trials: list[Trial]) -> None:
    def coefficient(row: Any, ids: np.ndarray) -> float:
        return float(fm.capture(model, ids.tolist()).coefficients[row.layer][0, -1, row.neuron])

    rows = [row for layer, trial in enumerate(trials) for row in trial.frame.assign(layer=layer)[::8].itertuples()]
    assert len(rows) >= 4
    for row in rows:
        ids = store.sequences.sequence_tokens(row.sequence)[: row.position + 1]
        whole = coefficient(row, ids)
        assert whole == pytest.approx(row.coefficient, abs=1e-5)
        change = [coefficient(row, np.delete(ids, at)) / whole - 1 for at in range(1, len(ids) - 1)]
        assert allclose([row.first, row.last], [change[0], coefficient(row, ids[:-1]) / whole - 1], 1e-4)
        assert min(abs(row.random - one) for one in change[1:]) < 1e-4


def test_a_key_that_sees_one_token_only(tiny_store: Store, make_tiny: Callable[..., fm.Model]) -> None:
    """Layer 0 of a model without attention: what stands before changes the coefficient by positions only."""
    model = make_tiny()
    with torch.no_grad():
        for name, parameter in model.hf_model.named_parameters():
            if "attn" in name or ".wpe" in name or "pos_embed" in name:
                parameter.zero_()
    rows = pd.DataFrame({"neuron": [3, 9], "sequence": [5, 7], "position": [6, 4]})
    found = changes(LayerPass(model), tiny_store, 0, rows, np.random.default_rng(0), lambda _: None)
    assert allclose(found[["first", "random"]].to_numpy(), np.zeros((2, 2)), 1e-5)
    assert (found["last"].abs() > 1e-3).any()


def test_a_coefficient_of_zero_has_no_relative_change(tiny_store: Store, make_tiny: Callable[..., fm.Model]) -> None:
    """A key that the store saw fire and that now stays silent is left out of the means, not infinite."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].keys[3] = 0
        model.ffn[0].key_bias[3] = 0
    rows = pd.DataFrame({"neuron": [3, 9], "sequence": [5, 7], "position": [6, 4]})
    found = changes(LayerPass(model), tiny_store, 0, rows, np.random.default_rng(0), lambda _: None)
    assert found.loc[0, list(REMOVED)].isna().all()
    assert np.isfinite(found.loc[1, list(REMOVED)].to_numpy(float)).all()


def test_change_table(trials: list[Trial]) -> None:
    """Means over keys of the keys' means, so that a key with many prefixes counts once."""
    table = change_table(trials, 0)
    assert table["removed"].tolist() == list(REMOVED) * 2
    for row in table.itertuples():
        frame = trials[row.layer].frame
        keys = [frame.loc[frame["neuron"] == n, row.removed].mean() for n in frame["neuron"].unique()]
        assert row.change == pytest.approx(np.mean(keys))
        assert row.median == pytest.approx(np.median(keys))
        assert row.low <= row.change <= row.high
        assert (row.drawn, row.keys, row.prefixes) == (12, len(keys), len(frame))


def test_prefix_table(tiny_store: Store, trials: list[Trial]) -> None:
    table = prefix_table(tiny_store, trials, 1)
    assert set(table["rank"]) == {1}
    for row in table.iloc[::4].itertuples():
        ids = tiny_store.sequences.sequence_tokens(row.sequence)[1 : row.position + 1]
        text = "".join(tiny_store.contexts.strings(ids))
        assert text.endswith(row.prefix)
        assert row.prefix.endswith(row.token)
