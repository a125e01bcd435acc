"""Dead, token-detecting and positional neurons: every number of the tables against a plain count."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.number_text import format_share
from ffnmem.neurons.counting import FiringCounts, count_firings
from ffnmem.neurons.unembedding import read_unembedding, read_values
from ffnmem.scanning import Store
from ffnmem.studies import Study, voita2023
from ffnmem.studies.gurnee2024 import spelled
from ffnmem.studies.voita2023 import BEYOND, ENOUGH, MORE, firing_rates, pattern

from .made import SMALL

LOOSE = SMALL["voita2023"]


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> Study:
    return voita2023.study(tiny, tiny_store, **LOOSE)


@pytest.fixture(scope="module")
def firing(tiny: fm.Model, tiny_store: Store) -> FiringCounts:
    return count_firings(tiny, tiny_store, n_sequences=None)


def test_summary_is_of_the_scan_and_of_the_tables(found: Study, tiny_store: Store) -> None:
    detectors, positional = found.table("detectors"), found.table("positional")
    for row in found.table("summary").to_dict("records"):
        stats = tiny_store.stats(row["layer"])
        assert row["dead"] == stats["dead"].sum() > 0
        assert row["dead_share"] == pytest.approx(stats["dead"].mean())
        assert row["firing_rate"] == pytest.approx(stats["firing_rate"][~stats["dead"]].mean())
        mine = detectors[detectors["layer"] == row["layer"]]
        assert row["detectors"] == len(mine) > 0
        assert row["detector_low"] < row["detector_share"] == len(mine) / 64 < row["detector_high"]
        assert row["suppressing"] == pytest.approx(mine["suppresses"].mean())
        assert row["tokens"] == len({token for cell in mine["triggers"] for token in cell.split("  ")})
        assert row["positional"] == (positional["layer"] == row["layer"]).sum() > 0
    lower = format_share((detectors["layer"] == 0).mean())
    suppressing = format_share(detectors["suppresses"].mean())
    assert found.found["detectors"].startswith(f"{len(detectors)}, {lower} in the first half; {suppressing} suppress")


def test_tokens_are_new_against_the_layers_below(found: Study) -> None:
    """The second layer's tokens, less those of the first."""
    one, two = (
        {token for cell in part["triggers"] for token in cell.split("  ")}
        for _, part in found.table("detectors").groupby("layer")
    )
    first, second = found.table("summary").to_dict("records")
    assert first["new_tokens"] == first["new_to_previous"] == first["tokens"]
    assert second["new_tokens"] == second["new_to_previous"] == len(two - one)
    assert second["tokens_so_far"] == len(one | two)


def test_detectors_fire_for_their_tokens(found: Study, firing: FiringCounts, tiny: fm.Model) -> None:
    names = {token: spelled(tiny.token_strings([token])) for token in firing.types.tolist()}
    for row in found.table("detectors").to_dict("records"):
        active = firing.at_type[row["layer"]][:, row["neuron"]]
        rates = dict(zip(names.values(), active / firing.type_counts, strict=True))
        own = row["triggers"].split("  ")
        assert all(rates[name] >= 0.5 for name in own)
        share = sum(active[list(rates).index(name)] for name in own) / firing.fired(row["layer"])[row["neuron"]]
        assert row["trigger_share"] == pytest.approx(share)


def test_covering_counts_every_neuron_that_fired(found: Study, firing: FiringCounts) -> None:
    covering = found.table("covering")
    for layer, part in covering.groupby("layer"):
        assert part["tokens"].tolist() == ["1 to 5", "6 to 20", "21 to 100", "101 to 500", MORE, BEYOND]
        assert part["neurons"].sum() == (firing.fired(int(layer)) > 0).sum()
        assert part["share"].sum() == pytest.approx(1)


def test_positional_neurons_are_in_order_with_their_rates(found: Study, firing: FiringCounts) -> None:
    positional = found.table("positional")
    assert (np.diff(positional["information"]) <= 0).all()
    assert (positional["information"] > LOOSE["position"]).all()
    row = positional.iloc[0]
    used = firing.positions >= ENOUGH
    rate = firing.at_position[row["layer"]][used, row["neuron"]] / firing.positions[used]
    assert (row["lowest_rate"], row["highest_rate"]) == (rate.min(), rate.max())
    assert np.array_equal(firing_rates(firing, int(row["layer"]))[1][:, row["neuron"]], rate)


@pytest.mark.parametrize(
    ("rate", "name", "crossings"),
    [
        (np.linspace(0, 1, 40), "both extremes", 1),
        ((np.arange(60) // 15 % 2).astype(float), "oscillatory", 3),
        (np.linspace(0.02, 0.6, 40), "one extreme", 1),
        (np.linspace(0.3, 0.7, 40), "other", 1),
        (np.full(3, 0.5), "other", 0),
        (np.zeros(0), "other", 0),
    ],
)
def test_patterns(rate: np.ndarray, name: str, crossings: int) -> None:
    found = pattern(rate)
    assert found[2:] == (crossings, name)


# -- gated models ------------------------------------------------------------------------------------------------------


def test_gates_decide_who_is_dead_and_who_detects(
    gated: fm.Model, gated_store: Store, turned: fm.Model, turned_store: Store
) -> None:
    """Whichever way key and value are written: all tables are the same."""
    one, other = (voita2023.study(*pair, **LOOSE) for pair in ((gated, gated_store), (turned, turned_store)))
    for table in one.tables:
        pd.testing.assert_frame_equal(table.frame, other.table(table.name), check_exact=False, rtol=1e-3, atol=1e-5)
    assert len(one.table("detectors"))
    stats = {layer: gated_store.stats(layer) for layer in range(2)}
    for row in one.table("summary").to_dict("records"):
        assert row["dead"] == stats[row["layer"]]["dead"].sum()


SHUT = ("gate_neg_linear_pos", "gate_neg_linear_neg")


def test_a_detectors_sign_is_that_of_its_coefficients_where_it_fires(gated: fm.Model, gated_store: Store) -> None:
    """A value towards its triggers, with coefficients below 0, takes them away; shut gates turn the sign."""
    unembedding = read_unembedding(gated).tokens.double()
    ids = {spelled(gated.token_strings([token])): token for token in range(gated.d_vocab)}
    signs = set()
    for row in voita2023.study(gated, gated_store, **LOOSE).table("detectors").to_dict("records"):
        value = read_values(gated, row["layer"], "folded")[row["neuron"]].double()
        cosines = unembedding @ value / unembedding.norm(dim=1) / value.norm()
        own = float(cosines[[ids[name] for name in row["triggers"].split("  ")]].mean() - cosines.mean())
        stats = gated_store.stats(row["layer"]).loc[row["neuron"]]
        shut = [stats[f"share_{case}"] * stats[f"mean_{case}"] for case in SHUT if stats[f"share_{case}"]]
        sign = np.sign(stats["mean"] - sum(shut))  # what is left fell where the gate was open
        assert row["trigger_cosine"] == pytest.approx(sign * own, abs=1e-6)
        assert row["suppresses"] == (sign * own < 0)
        ends = fm.project(gated, row["layer"], row["neuron"], k=1, side="value").set_index("sign")["token"]
        assert row["promoted"].split("  ")[0] == spelled([ends["promoted" if sign > 0 else "suppressed"]])
        signs.add(sign)
    assert signs == {-1.0, 1.0}
