"""One neuron's meanings: the same from a table and from the model, and the planted ones where they are known."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError
from ffnmem.core.token_text import visible
from ffnmem.core.types import VERDICTS
from ffnmem.neurons import Meanings, meanings
from ffnmem.neurons.concepts import saved_meanings
from ffnmem.neurons.inputs import Inputs, read_background
from ffnmem.neurons.measuring import file_of
from ffnmem.neurons.survey import clearest, verdict_counts
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.state import place_of

from ..helpers import allclose, printed, refuses
from ..planted_models import Planted


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """``tiny_store`` with a table for each sign beside it."""
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("meanings") / "tiny"))
    fm.polysemanticity(store, tiny, sign="both", draws=20, budget=None)
    return store


def same(a: Meanings, b: Meanings) -> None:
    assert_frame_equal(a.table, b.table)
    assert_frame_equal(a.examples, b.examples)
    assert_frame_equal(a.estimates, b.estimates, rtol=1e-5, atol=1e-6)  # a cosine near 0 has few digits
    assert (a.label, a.why, a.triggers, a.windows, a.name) == (b.label, b.why, b.triggers, b.windows, b.name)
    assert a.provenance == b.provenance


@pytest.mark.parametrize(("place", "sign"), [((0, 3), "positive"), ((1, 5), "negative"), ((1, 63), "positive")])
def test_the_two_ways_agree(
    place: tuple[int, int], sign: Any, surveyed: Store, tiny_store: Store, tiny: fm.Model, tmp_path: Path
) -> None:
    """A card and a notebook would tell different things of one neuron."""
    bare = open_store(shutil.copytree(tiny_store.folder, tmp_path / "bare"))
    anew = meanings(bare, *place, tiny, sign=sign, draws=20)
    kept, both = (meanings(surveyed, *place, model, sign=sign) for model in (None, tiny))
    same(kept, anew)
    same(both, kept)
    assert allclose(both.similarity, anew.similarity, 1e-4)
    assert not file_of(bare, sign).exists()


def test_planted_meanings_are_found(meanings: Planted, meanings_store: Store) -> None:
    """One concept makes one meaning of its own words; two make two, in the order of their strength or nearly."""
    truth = meanings.truth[(meanings.truth.layer == 1) & ~meanings.truth.features.str.contains("after")]
    for n, never in ((1, "polysemantic"), (2, "monosemantic")):
        for row in truth[truth.meanings == n].head(2).itertuples():
            found = fm.meanings(meanings_store, 1, row.neuron, meanings.model)
            assert found.label != never
            stems = {trigger.strip()[:-2] for own in found.triggers[:n] for trigger in own[:3]}
            assert stems == set(row.features.split(", "))
            assert found.table["share"].head(n).sum() > 0.8


def test_dead_is_empty_and_needs_no_model(meanings: Planted, meanings_store: Store) -> None:
    row = meanings.truth[meanings.truth.verdict == "inactive"].iloc[0]
    found = fm.meanings(meanings_store, row.layer, row.neuron)
    assert (found.label, found.why, len(found.examples), len(found.places)) == ("inactive", "", 0, 0)
    assert found.verdict.endswith("never fires.")
    assert np.isnan(found.number).all()
    assert list(found.table.columns) == ["meaning", "share", "examples", "strongest", "tokens"]
    assert found.table["meaning"].dtype == found.examples["meaning"].dtype == np.int64
    assert json.loads(json.dumps(found.to_dict()))["meanings"] == []
    assert (found.listing().title, found.listing().note) == ("Inactive", "no examples")


@pytest.mark.parametrize(("place", "sign", "end"), [((1, 5), "positive", "max"), ((0, 3), "negative", "min")])
def test_rows_are_examples_of_the_store(place: tuple[int, int], sign: Any, end: str, surveyed: Store) -> None:
    """Each is a place where the coefficient is what it says; shares, counts and the order of triggers are theirs."""
    found, factor = meanings(surveyed, *place, sign=sign), 1 if sign == "positive" else -1
    known = surveyed.examples(*place, context=8, k=99).set_index(["sequence", "position"])["coefficient"].to_dict()
    sizes = {(row.sequence, row.position): row.coefficient for row in found.examples.itertuples()}
    assert sizes.keys() & known.keys()
    assert all(sizes[at] == pytest.approx(known[at], rel=1e-6) for at in sizes.keys() & known.keys())
    assert all(row.token in row.context for row in found.examples.itertuples())
    sizes = factor * found.examples["coefficient"]
    assert sizes.max() == pytest.approx(factor * surveyed.stats(*place)[end].item(), rel=1e-6)
    by_meaning = sizes.groupby(found.examples["meaning"])
    assert found.table["share"].tolist() == pytest.approx((by_meaning.sum() / sizes.sum()).tolist())
    assert found.table["share"].is_monotonic_decreasing
    assert found.table["examples"].tolist() == by_meaning.size().tolist()
    assert found.table["strongest"].tolist() == (factor * by_meaning.max()).tolist()
    for meaning, group in found.examples.groupby("meaning"):
        assert group["rank"].tolist() == list(range(1, len(group) + 1))
        assert sizes[group.index].is_monotonic_decreasing
        weight = sizes[group.index].groupby(group["token"], sort=False).sum()
        triggers = found.triggers[int(meaning)]
        assert set(triggers) == set(weight.index)
        assert weight[[*triggers]].round(9).is_monotonic_decreasing
        assert found.of(int(meaning)) == group.index.tolist()
    assert found.table["tokens"][0].startswith(visible(found.triggers[0][0], 24))


def test_similarity_is_ordered_by_meaning(meanings: Planted, meanings_store: Store) -> None:
    """Naively: whitened inputs of each example, in the order of the examples."""
    row = meanings.truth[(meanings.truth.layer == 0) & (meanings.truth.meanings == 2)].iloc[0]
    found = fm.meanings(meanings_store, 0, row.neuron, meanings.model, k=2)
    full = fm.meanings(meanings_store, 0, row.neuron, meanings.model)
    places = place_of(full.examples["sequence"].to_numpy(), full.examples["position"].to_numpy())
    background = read_background(meanings_store, 0)
    with Inputs(meanings_store, meanings.model, {0: places}) as inputs:
        units = [background.unit(inputs.at(0, places[i : i + 1]))[0] for i in range(len(places))]
    expected = [[float(a @ b) for b in units] for a in units]
    assert allclose(found.similarity, expected, 1e-4)
    n = int(full.table["examples"][0])
    assert found.similarity[:n, :n].mean() > found.similarity[:n, n:].mean() + 0.1


def test_k_and_context_only_cut_what_is_shown(surveyed: Store, tiny_store: Store) -> None:
    """And what is saved is read by sign."""
    found = saved_meanings(surveyed, 1, 5, k=2, context=3)
    assert [one.sign for one in found] == ["positive", "negative"]
    same(found[0], meanings(surveyed, 1, 5, k=2, context=3))
    assert saved_meanings(tiny_store, 1, 5, k=2, context=3) == ()
    whole, cut = meanings(surveyed, 1, 5), meanings(surveyed, 1, 5, k=1, context=0)
    assert_frame_equal(whole.table, cut.table)
    assert whole.triggers == cut.triggers
    assert_frame_equal(whole.to_frame(3), whole.to_frame().head(3))
    assert cut.examples["rank"].tolist() == [1] * len(cut.table)
    assert cut.examples["context"].tolist() == cut.examples["token"].tolist()


def test_other_settings_are_measured_anew(surveyed: Store, tiny: fm.Model) -> None:
    """A seed or a rule that was asked for, and silently not used, would be believed."""
    rule = fm.neurons.Rule(above=1.5, examples=2)
    anew = meanings(surveyed, 1, 5, tiny, seed=5, rule=rule, draws=25)
    settings = anew.settings
    assert (settings["seed"], settings["draws"], settings["rule"]["above"]) == (5, 25, 1.5)
    assert meanings(surveyed, 1, 5, seed=0, draws=20).settings["budget"] is None
    with refuses(ModelError, ValueError, surveyed.model):
        meanings(open_store(surveyed.folder), 1, 5, seed=5)


# -- what they say of themselves -------------------------------------------------------------------------------------


def many(found: Meanings, n: int) -> Meanings:
    """As many meanings of one example each, 5 in words."""
    rows = pd.concat([found.examples.head(1)] * n, ignore_index=True).assign(meaning=np.arange(n), rank=1)
    columns = {"meaning": np.arange(n), "share": 1 / n, "examples": 1, "strongest": 1.0, "tokens": "x"}
    triggers, estimates = tuple((f" t{i}",) for i in range(n)), found.estimates.copy()
    estimates.loc[0, ["value", "low", "high"]] = [5.0, 4.0, 6.0]
    return replace(
        found, table=pd.DataFrame(columns), examples=rows, windows=found.windows[:1] * n, triggers=triggers,
        estimates=estimates,
    )  # fmt: skip


def test_listing_holds_each_meaning(surveyed: Store) -> None:
    found = meanings(surveyed, 1, 5)
    table = found.listing()
    heads = [row for row in table.rows if row[0] is not None]
    assert [row[0].text for row in heads] == [f"{share:.0%}" for share in found.table["share"]]
    assert [tuple(piece[0].text for piece in row[2].pieces) for row in heads] == [own[:8] for own in found.triggers]
    assert [row[1] for row in table.rows if row[0] is None] == found.examples["coefficient"].tolist()
    assert table.title.startswith(found.label.capitalize())
    assert found.why in table.note
    assert found.lacks_examples == (found.label == "unclear" and len(found.examples) < 20)
    assert replace(found, label="unclear").lacks_examples != replace(found, label="polysemantic").lacks_examples
    assert found.to_frame()[["layer", "neuron", "sign"]].drop_duplicates().to_numpy().tolist() == [[1, 5, "positive"]]
    records = json.loads(json.dumps(found.to_dict()))["meanings"]
    assert [tuple(one["tokens"]) for one in records] == list(found.triggers)
    assert [len(one["contexts"]) for one in records] == found.table["examples"].tolist()
    shown = found.provenance
    assert all(isinstance(value, str | int | float | bool) for value in shown.values())
    assert (shown["seed"], shown["draws"], shown["budget"], shown["sign"]) == (0, 20, "no limit", "positive")


def test_headline_and_what_is_not_listed(surveyed: Store) -> None:
    found = many(meanings(surveyed, 1, 5), 8)
    assert any("and 3 more with 38% of the activation" in line for line in printed(found.listing(5), 60))
    assert "more with" not in " ".join(printed(found.sheet(None)))
    assert sum(row[0] is None and row[1] is not None for row in found.sheet(10).blocks[2].rows) <= 10
    rows, grouped = found.estimates.copy(), "grouped by what the FFN read at the token that it fires at"
    said = replace(found, label="polysemantic", why="", sign="negative").listing()
    assert said.title == "Polysemantic where its coefficient is negative: 5.00 meanings, 95% 4.00 to 6.00"
    assert said.note.startswith(f"8 examples, {grouped}")
    one = found.table.iloc[:1].assign(examples=21)
    rows.loc[0, ["value", "low", "high"]] = [1.0, 1.0, 1.48]
    few = replace(found, table=one, estimates=rows, label="monosemantic", why="").listing()
    assert few.title == "Monosemantic: 1.00 meanings, 95% 1.00 to 1.48"  # above 1.35, and the card says why
    assert few.note.endswith("so few of one meaning leave 1.48 possible, which the verdict allows")


# -- all neurons of a store --------------------------------------------------------------------------------------------

ROWS = [
    (0, 0, "positive", 30, "monosemantic", 1.0, 1.0, 0.3),
    (0, 1, "positive", 30, "monosemantic", 1.0, 1.2, 0.9),
    (0, 2, "positive", 30, "monosemantic", 1.0, 1.0, 0.6),
    (1, 0, "positive", 30, "polysemantic", 2.0, 4.0, 0.1),
    (1, 1, "positive", 30, "polysemantic", 5.0, 9.0, 0.1),
    (1, 2, "positive", 9, "unclear", 1.0, 2.0, 0.1),
    (1, 2, "negative", 39, "unclear", 1.0, 2.0, 0.1),
]


COLUMNS = ["layer", "neuron", "sign", "examples", "verdict", "meanings_low", "meanings_high", "ms_low"]


def test_counts_and_the_clearest_first() -> None:
    """The clearest by the end of the interval that is nearer to the other verdict."""
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    counts = verdict_counts(table)
    assert counts.columns.tolist() == ["layer", "sign", "neurons", *VERDICTS]
    assert counts.to_numpy().tolist() == [
        [0, "positive", 3, 3, 0, 0, 0],
        [1, "positive", 3, 0, 2, 1, 0],
        [1, "negative", 1, 0, 0, 1, 0],
    ]
    assert clearest(table, "monosemantic")["neuron"].tolist() == [2, 0, 1]
    assert clearest(table, "polysemantic")["neuron"].tolist() == [1, 0]
    assert clearest(table, "unclear")["sign"].tolist() == ["negative", "positive"]
    assert clearest(table, "monosemantic", 1)["neuron"].tolist() == [2]
    assert not len(clearest(table, "inactive"))
    with refuses(InputError, ValueError, "verdict", "'odd'", "'unclear'"):
        clearest(table, "odd")
    with refuses(InputError, ValueError, "meanings_low", "polysemanticity"):
        verdict_counts(table.drop(columns="meanings_low"))


def test_a_survey_lists_by_verdict(surveyed: Store) -> None:
    """Counts by layer with why some are unclear, and the neurons listed with what their meanings fire at."""
    whole = fm.polysemanticity(surveyed, sign="both", draws=20, budget=None)
    found = fm.polysemanticity(surveyed, sign="both", draws=20, budget=None, verdict="unclear")
    assert found.counts.equals(whole.counts)
    dead = [int(surveyed.stats(layer)["dead"].sum()) for layer in (0, 1)]
    assert whole.counts.query("sign == 'positive'")["inactive"].tolist() == dead
    assert f"Of {len(whole.neurons)} neurons" in whole.verdict
    assert "fewer than 8 examples" in found.unclear["why"].tolist()
    assert found.unclear["neurons"].sum() == len(found.to_frame()) == whole.counts["unclear"].sum()
    assert found.to_frame(2)["verdict"].tolist() == ["unclear"] * 2
    ((title, rows),) = found.shown_clearest(2).items()
    assert title == "Unclear neurons"
    one = meanings(surveyed, *rows.iloc[0][["layer", "neuron"]], sign=rows["sign"].iloc[0])
    groups = [(own[0], f"{share:.0%}") for own, share in zip(one.triggers, one.table["share"], strict=True)]
    assert rows["groups"].iloc[0] == groups
