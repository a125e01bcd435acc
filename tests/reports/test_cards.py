from dataclasses import replace

import pandas as pd
import pytest
from ffnmem.reports.markdown import escaped, neurons_markdown

from ffnmem.reports.cards import band_label, card, groups, kinds_shown, two_sided
from ffnmem.reports.neurons import page_html
from ffnmem.scanning import Store
from ffnmem.scanning.cases import CASES, COLUMNS
from ffnmem.scanning.neuron import Neuron
from tests.reports.page import Page
from tests.scanning.gated import gated_store


@pytest.fixture(scope="module")
def neuron(tiny_store: Store) -> Neuron:
    return tiny_store.neuron(1, 5)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Neuron:
    return gated_store("llama", tmp_path_factory.mktemp("gated") / "store").neuron(0, 3)


def test_a_gated_card_has_cases_keys_and_parts(gated: Neuron) -> None:
    """The gate's tokens under the key's name, or another example's gate beside a context."""
    found = card(gated, 99)
    assert [case.name for case in found.cases] == list(CASES)
    assert [case.share for case in found.cases] == [gated.stats[f"share_{column}"] for column in COLUMNS]
    keys = {name: [chip.token for chip in chips] for name, chips in found.keys}
    assert keys == {
        "gate +": gated.tokens("promoted", "gate"),
        "gate −": gated.tokens("suppressed", "gate"),
        "key +": gated.tokens("promoted", "key"),
        "key −": gated.tokens("suppressed", "key"),
    }
    shown = [e for group in found.groups for band in group.bands for e in band.examples]
    assert [e.parts for e in shown] == list(zip(gated.examples["gate"], gated.examples["linear"], strict=True))
    assert all(group.gated for group in found.groups)
    few = {group.name: group for group in groups(gated)}
    assert max(len(few[case].bands[0].examples) for case in CASES if case in few) <= 5
    assert kinds_shown(gated.store) == (*CASES, "quantile")


def test_a_case_that_never_occurs_has_no_mean(gated: Neuron) -> None:
    stats = {**gated.stats, f"share_{COLUMNS[2]}": 0.0, f"mean_{COLUMNS[2]}": float("nan")}
    one = replace(gated, stats=stats)
    assert [case.bar is None for case in card(one).cases] == [False, False, True, False]
    row = Page(page_html(one.store, [card(one)])).tables["fm-table fm-cases"][3]
    assert [cell.text for cell in row[:3]] == [CASES[2], "0.0%", "–"]
    assert f"| {escaped(CASES[2])} | 0.0% | – |" in neurons_markdown(one.store, [card(one)])


def test_a_classic_card_has_none_of_it(neuron: Neuron) -> None:
    found = card(neuron)
    assert (found.cases, found.keys) == ((), ())
    assert not any(group.gated for group in found.groups)
    assert kinds_shown(neuron.store) == ("top", "quantile")


def test_groups_hold_every_example_in_order(neuron: Neuron) -> None:
    """A row in the wrong band, or with another row's context, would be believed."""
    shown = [e for group in groups(neuron, 99) for band in group.bands for e in band.examples]
    rows = neuron.examples
    assert [e.activation for e in shown] == rows["activation"].tolist()
    assert [(e.sequence, e.position) for e in shown] == list(zip(rows["sequence"], rows["position"], strict=True))
    assert [e.token for e in shown] == rows["token"].tolist()
    assert [e.before + e.token + e.after for e in shown] == rows["context"].tolist()


def test_bands_are_the_stores(neuron: Neuron) -> None:
    rows = neuron.examples
    (largest,) = [group for group in groups(neuron) if group.name == "max"]
    of_max = rows[rows["extreme"] == "max"]
    limits = list(dict.fromkeys(zip(of_max["band_low"], of_max["band_high"], strict=True)))
    assert len(limits) > 2
    for band, (low, high) in zip(largest.bands, limits, strict=True):
        of = of_max[of_max["band_low"] == low]
        assert band.label == band_label(low, high)
        assert [e.activation for e in band.examples] == of["activation"].tolist()


@pytest.mark.parametrize(
    ("low", "high", "label"),
    [(0.9, 1.0, "top 10%"), (0.75, 0.9, "75–90%"), (0.0, 0.25, "lowest 25%"), (0.0, 1.0, "top 100%")],
)
def test_band_labels(low: float, high: float, label: str) -> None:
    assert band_label(low, high) == label


def test_listed_limits_all_but_bands(neuron: Neuron) -> None:
    by_name = {group.name: group for group in groups(neuron, 2)}
    assert len(by_name["top"].bands[0].examples) == 2
    assert by_name["max"].bands == {group.name: group for group in groups(neuron, 99)}["max"].bands


def test_only_the_kinds_that_were_read(tiny_store: Store) -> None:
    assert [g.name for g in groups(tiny_store.neuron(0, 3, kind=("random", "top")))] == ["random", "top"]


def test_the_small_end_is_folded_where_it_says_nothing(neuron: Neuron) -> None:
    """GELU's least value is -0.17 for every neuron; a gated coefficient is as large below zero as above."""
    for least, folded in ((-0.17, True), (-3.0, False)):
        one = replace(neuron, stats={**neuron.stats, "min": least, "max": 4.0})
        assert two_sided(one) != folded
        assert {g.name: g.folded for g in groups(one)}["min"] == folded
        assert not any(g.folded for g in groups(one) if g.name != "min")


def test_strength_is_relative_to_the_largest_magnitude(neuron: Neuron) -> None:
    largest = max(abs(neuron.stats["min"]), abs(neuron.stats["max"]))
    shown = [e for group in groups(neuron, 99) for band in group.bands for e in band.examples]
    assert [e.strength for e in shown] == pytest.approx([abs(e.activation) / largest for e in shown], abs=6e-4)
    assert max(e.strength for e in shown) == 1


def test_tokens_and_means(neuron: Neuron) -> None:
    found = card(neuron)
    assert [chip.token for chip in found.promoted] == neuron.tokens("promoted")
    assert [chip.token for chip in found.suppressed] == neuron.tokens("suppressed")
    assert [m.mean for m in found.frequent] == neuron.by_token["mean"].head(8).tolist()
    assert [m.chip.token for m in found.positions] == neuron.by_position["positions"].tolist()
    assert sum(b.count for b in found.bins) == neuron.stats["count"]


def test_tokens_that_did_not_occur_excite_nothing(neuron: Neuron) -> None:
    """A shard may lack a token that is frequent in the corpus; its mean is no number."""
    table = neuron.by_token.copy()
    table.loc[0, ["count", "mean"]] = [0, float("nan")]
    assert table.loc[0, "token"] not in [m.chip.token for m in card(replace(neuron, by_token=table)).frequent]
    assert card(replace(neuron, by_token=pd.DataFrame(columns=table.columns))).frequent == ()
