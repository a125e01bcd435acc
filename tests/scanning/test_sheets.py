"""What a neuron and a store say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from ffnmem.core.sheets import Facts, Histogram, Table, Words
from ffnmem.core.types import CASES
from ffnmem.scanning import Store
from ffnmem.scanning.contexts import Window, example_list
from ffnmem.scanning.neuron import Neuron, band_label, kinds_shown
from ffnmem.scanning.searching import Found
from ffnmem.scanning.state import COLUMNS
from ffnmem.scanning.store import QUANTILES, RATES

from ..helpers import printed
from ..pages.hostile import HOSTILE, UNSEEN, poisoned
from ..pages.page import Page
from .gated import gated_store


@pytest.fixture(scope="module")
def neuron(tiny_store: Store) -> Neuron:
    return tiny_store.neuron(1, 5)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Neuron:
    return gated_store("llama", tmp_path_factory.mktemp("gated") / "store").neuron(0, 3)


def tables(one: Neuron, **settings: Any) -> dict[str, Table]:
    return {block.title: block for block in one.sheet(**settings).blocks if isinstance(block, Table)}


def texts(fitting: Any) -> list[str]:
    return [piece[0].text for piece in fitting.pieces]


# -- examples --------------------------------------------------------------------------------------------------------


def test_each_row_with_its_window() -> None:
    rows = pd.DataFrame({"coefficient": [2.0, -4.0], "sequence": [7, 8], "position": [1, 2]})
    windows = [Window(("a", " b", " c"), 1, False, True), Window(("d", " e"), 0, True, False)]
    first, second = example_list(rows, windows, 4.0)
    assert (first.before, first.token, first.after, first.cut_before, first.cut_after) == ("a", " b", " c", False, True)
    assert (first.strength, first.negative, second.strength, second.negative) == (0.5, False, 1.0, True)
    assert first.note == "coefficient 2; sequence 7, position 1"
    assert [e.strength for e in example_list(rows, windows, 0.0)] == [1.0, 1.0]  # it becomes an opacity
    assert [e.strength for e in example_list(rows, windows, 3.0)] == [0.667, 1.0]


def test_groups_hold_every_example_in_order(neuron: Neuron) -> None:
    """A row in the wrong band, or with another row's context, would be believed."""
    shown = [e for group in neuron.groups(99) for band in group.bands for e in band.examples]
    rows = neuron.examples
    assert [e.coefficient for e in shown] == rows["coefficient"].tolist()
    assert [(e.sequence, e.position) for e in shown] == list(zip(rows["sequence"], rows["position"], strict=True))
    assert [e.token for e in shown] == rows["token"].tolist()
    assert [e.before + e.token + e.after for e in shown] == rows["context"].tolist()
    largest = max(abs(neuron.stats["min"]), abs(neuron.stats["max"]))
    assert [e.strength for e in shown] == pytest.approx([abs(e.coefficient) / largest for e in shown], abs=6e-4)


def test_bands_are_the_stores(neuron: Neuron) -> None:
    rows = neuron.examples
    (largest,) = [group for group in neuron.groups() if group.name == "max"]
    of_max = rows[rows["extreme"] == "max"]
    limits = list(dict.fromkeys(zip(of_max["band_low"], of_max["band_high"], strict=True)))
    assert len(limits) > 2
    for band, (low, high) in zip(largest.bands, limits, strict=True):
        of = of_max[of_max["band_low"] == low]
        assert band.label == band_label(low, high)
        assert [e.coefficient for e in band.examples] == of["coefficient"].tolist()
    labels = [row[0] for row in largest.table().rows]
    assert [label for label in labels if label is not None] == [band.label for band in largest.bands]


@pytest.mark.parametrize(
    ("low", "high", "label"),
    [(0.9, 1.0, "top 10%"), (0.75, 0.9, "75–90%"), (0.0, 0.25, "lowest 25%"), (0.0, 1.0, "top 100%")],
)
def test_band_labels(low: float, high: float, label: str) -> None:
    assert band_label(low, high) == label


def test_listed_limits_all_but_bands(neuron: Neuron) -> None:
    by_name = {group.name: group for group in neuron.groups(2)}
    assert len(by_name["top"].bands[0].examples) == 2
    assert by_name["max"].bands == {group.name: group for group in neuron.groups(99)}["max"].bands
    short = neuron.brief(2)["examples"]
    assert len([row for row in short if row["kind"] == "top"]) == 2
    bands = [row for row in short if row["kind"] == "quantile"]
    assert len(bands) == sum(len(band.examples) for name in ("max", "min") for band in by_name[name].bands)


def test_only_the_kinds_that_were_read(tiny_store: Store) -> None:
    assert [g.name for g in tiny_store.neuron(0, 3, kind=("random", "top")).groups()] == ["random", "top"]


def test_the_small_end_is_folded_where_it_says_nothing(neuron: Neuron) -> None:
    """GELU's least value is -0.17 for every neuron; a gated coefficient is as large below zero as above."""
    for least, folded in ((-0.17, True), (-3.0, False)):
        one = replace(neuron, stats={**neuron.stats, "min": least, "max": 4.0})
        shown = tables(one)
        assert shown["Random sequences by their smallest coefficient"].folded == folded
        assert sum(table.folded for table in shown.values()) == folded
        out = "\n".join(printed(one.sheet()))
        assert ("by their smallest coefficient" in out) != folded
        assert ("--kind bottom" in out) == folded
        assert any(row["extreme"] == "min" for row in one.brief()["examples"]) != folded


# -- numbers and tokens ----------------------------------------------------------------------------------------------


def test_the_heading_is_the_neurons(neuron: Neuron) -> None:
    found = neuron.heading()
    assert texts(found["promotes"]) == neuron.tokens("promoted")
    assert texts(found["suppresses"]) == neuron.tokens("suppressed")
    assert texts(found["excited by"]) == neuron.by_token["token"].head(8).tolist()
    assert texts(found["at position"]) == neuron.by_position["positions"].tolist()
    (drawn,) = [block for block in neuron.sheet().blocks if isinstance(block, Histogram)]
    assert sum(drawn.counts) == neuron.stats["count"]
    assert list(zip(drawn.edges, drawn.edges[1:], strict=False)) == [(b.low, b.high) for b in neuron.bins(40)]
    assert len(drawn.table().rows) == 16
    assert not set(neuron.heading()) & {"gate +", "key −"}
    assert kinds_shown(neuron.store) == ("top", "quantile")


def test_tokens_that_did_not_occur_excite_nothing(neuron: Neuron) -> None:
    """A shard may lack a token that is frequent in the corpus; its mean is no number."""
    table = neuron.by_token.copy()
    table.loc[0, ["count", "mean"]] = [0, float("nan")]
    assert table.loc[0, "token"] not in texts(replace(neuron, by_token=table).heading()["excited by"])
    assert replace(neuron, by_token=table.iloc[:0]).heading().get("excited by") is None


def test_how_often_it_fires(neuron: Neuron) -> None:
    said = {
        name: replace(neuron, stats={**neuron.stats, "count": 1000, **changes}).fires()
        for name, changes in {
            "dead": {"dead": True, "firing_rate": 0.0},
            "rare": {"dead": False, "firing_rate": 2e-5, "zero_share": 0.0},
            "half": {"dead": False, "firing_rate": 0.5, "zero_share": 0.25},
        }.items()
    }
    assert said == {
        "dead": "never in 1,000 tokens: dead",
        "rare": "at 0.002% of 1,000 tokens",
        "half": "at 50.0% of 1,000 tokens, exactly 0 at 25.0%",
    }


def test_a_gated_card_has_cases_keys_and_parts(gated: Neuron) -> None:
    """The gate's tokens under the key's name, or another example's gate beside a context."""
    cases = gated.case_table()
    assert [row[0] for row in cases.rows] == list(CASES)
    assert [row[1] for row in cases.rows] == [gated.stats[f"share_{column}"] for column in COLUMNS]
    found = gated.heading()
    for side, name in (("gate", "gate"), ("key", "key")):
        assert texts(found[f"{name} +"]) == gated.tokens("promoted", side)
        assert texts(found[f"{name} −"]) == gated.tokens("suppressed", side)
    shown = [e for group in gated.groups(99) for band in group.bands for e in band.examples]
    once = gated.examples.drop_duplicates(["sequence", "position"])
    assert sorted(e.parts for e in shown) == sorted(zip(once["gate"], once["linear"], strict=True))
    few = {group.name: group for group in gated.groups()}
    assert max(len(few[case].bands[0].examples) for case in CASES if case in few) <= 5
    case = next(group for group in few.values() if group.name in CASES)
    assert [tuple(row[1:3]) for row in case.table().rows[1:]] == [e.parts for e in case.bands[0].examples]
    assert kinds_shown(gated.store) == (*CASES, "quantile")


def test_a_case_that_never_occurs_has_no_mean(gated: Neuron) -> None:
    stats = {**gated.stats, f"share_{COLUMNS[2]}": 0.0, f"mean_{COLUMNS[2]}": float("nan")}
    out = printed(replace(gated, stats=stats).case_table())
    assert [*CASES[2].split(), "0.0%", "–"] in [line.split() for line in out]


def test_hostile_text_cannot_move_the_cursor(neuron: Neuron) -> None:
    """Nor recolour the terminal, nor break a line in two; and in HTML it is text."""
    plain, hostile = (printed(poisoned(neuron, text).sheet(), 80) for text in ("y" * len(HOSTILE), HOSTILE))
    assert not set(UNSEEN) & set("".join(hostile))
    assert max(map(cell_len, hostile)) <= 80
    assert len(hostile) == len(plain)
    html = poisoned(replace(neuron, passages=neuron.store.shaded([neuron])[0].passages))._repr_html_()
    assert not {"script", "img"} & {tag for tag, _ in Page(html).tags}
    assert not set(UNSEEN) & set(html)


def test_notebooks_show_the_sheet(neuron: Neuron) -> None:
    page = Page(neuron._repr_html_())
    assert f"Neuron 1.5 of {neuron.store.model}" in page.words
    assert neuron.store.fingerprint in page.words
    assert all(group.title in page.words for group in neuron.groups())


# -- a store ---------------------------------------------------------------------------------------------------------


def test_layers_are_the_stats(tiny_store: Store) -> None:
    rows = tiny_store.to_frame()
    assert list(rows.columns) == ["layer", "neurons", "dead", *RATES]
    assert rows["layer"].tolist() == list(range(tiny_store.n_layers))
    for row in rows.to_dict("records"):
        stats = tiny_store.stats(row["layer"])
        assert row["neurons"] == len(stats)
        assert row["dead"] == stats["dead"].sum()
        for quantile, name in zip(QUANTILES, RATES, strict=True):
            assert row[name] == pytest.approx(np.quantile(stats["firing_rate"], quantile))
    (shown,) = [block for block in tiny_store.sheet().blocks if isinstance(block, Table)]
    assert list(shown.rows) == list(rows.itertuples(index=False, name=None))
    page = Page(tiny_store._repr_html_())
    assert str(tiny_store.folder) in page.words
    assert "none in the corpus" in page.words


def test_facts_name_what_was_scanned(tiny_store: Store) -> None:
    said = " ".join(tiny_store.facts().values())
    for value in (tiny_store.fingerprint, f"{tiny_store.n_tokens:,} tokens", tiny_store.manifest["corpus"]["hash"]):
        assert value in said
    assert "a part" not in said  # which a shard is
    shard = Store(tiny_store.folder, {**tiny_store.manifest, "units": {"done": 1, "total": 3}})
    assert "a part: 1 of 3 units" in shard.facts()["scanned"]
    (facts,) = [block for block in shard.outcome().blocks if isinstance(block, Facts)]
    assert facts.rows["part"] == "1 of 3 units; ffnmem merge joins the shards"


@pytest.mark.parametrize("where", ["weights", "examples"])
def test_what_a_search_found(where: str, tiny_store: Store) -> None:
    text = "rome"
    rows = tiny_store.search(text, where=where)
    (table, _) = Found(text, where, rows, tiny_store.provenance).sheet().blocks
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == list(zip(rows["layer"], rows["neuron"], strict=True))
    assert table.rows[0][-1] == rows["score" if where == "weights" else "coefficient"].iloc[0]
    (none, _) = Found(text, where, rows.iloc[:0], tiny_store.provenance).sheet().blocks
    assert isinstance(none, Words)
    said, other = {
        "weights": ("is among the first that are written or read by", "examples"),
        "examples": ("fires", "weights"),
    }[where]
    assert none.line[0].text.startswith(f"no token with 'rome' {said} any neuron")
    assert none.line[0].text.endswith(f"(looked in {where}; try --where {other})")
