"""One neuron's meanings: the same from a table and from the model, and the planted ones where they are known."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError
from ffnmem.core.token_text import visible
from ffnmem.neurons import Meanings, meanings
from ffnmem.neurons.concepts import MEASURES, by_activation, saved_meanings, settled
from ffnmem.neurons.measuring import file_of
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.contexts import Window

from ..helpers import allclose, printed, refuses
from ..pages.hostile import HOSTILE, UNSEEN
from ..pages.page import Page


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """``tiny_store`` with a table for each sign beside it."""
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("meanings") / "tiny"))
    fm.polysemanticity(store, tiny, sign="both", draws=20, budget=None)
    return store


@pytest.fixture(scope="module")
def planted_store(meanings_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy, so that backgrounds can be written beside it."""
    return open_store(shutil.copytree(meanings_store.folder, tmp_path_factory.mktemp("meanings") / "planted"))


def same(a: Meanings, b: Meanings) -> None:
    assert_frame_equal(a.table, b.table)
    assert_frame_equal(a.examples, b.examples)
    assert_frame_equal(a.estimates, b.estimates, rtol=1e-5, atol=1e-6)  # a cosine near 0 has few digits
    assert (a.verdict, a.why, a.triggers, a.windows, a.name) == (b.verdict, b.why, b.triggers, b.windows, b.name)
    assert a.provenance == b.provenance


@pytest.mark.parametrize("sign", ["positive", "negative"])
@pytest.mark.parametrize("place", [(0, 3), (1, 5), (1, 63)])
def test_the_two_ways_agree(
    place: tuple[int, int], sign: str, surveyed: Store, tiny_store: Store, tiny: fm.Model, tmp_path: Path
) -> None:
    """A card and a notebook would tell different things of one neuron."""
    bare = open_store(shutil.copytree(tiny_store.folder, tmp_path / "bare"))
    assert not file_of(bare, sign).exists()
    anew = meanings(bare, *place, tiny, sign=sign, draws=20)
    kept = meanings(surveyed, *place, sign=sign)
    same(kept, anew)
    assert kept.similarity is None
    both = meanings(surveyed, *place, tiny, sign=sign)
    same(both, kept)
    assert anew.similarity is not None
    assert allclose(both.similarity, anew.similarity, 1e-4)
    assert not file_of(bare, sign).exists()


def test_planted_meanings_are_found(meanings: Planted, planted_store: Store) -> None:
    """One concept makes one meaning of its own words; two make two, in the order of their strength or nearly."""
    truth = meanings.truth[(meanings.truth.layer == 1) & ~meanings.truth.features.str.contains("after")]
    for n, never in ((1, "polysemantic"), (2, "monosemantic")):
        for row in truth[truth.meanings == n].head(2).itertuples():
            found = fm.meanings(planted_store, 1, row.neuron, meanings.model)
            assert found.verdict != never
            stems = {trigger.strip()[:-2] for own in found.triggers[:n] for trigger in own[:3]}
            assert stems == set(row.features.split(", "))
            assert found.table["share"].head(n).sum() > 0.8


def test_dead_is_empty_and_needs_no_model(meanings: Planted, planted_store: Store) -> None:
    row = meanings.truth[meanings.truth.verdict == "inactive"].iloc[0]
    found = fm.meanings(planted_store, row.layer, row.neuron)
    assert (found.verdict, found.why) == ("inactive", "")
    assert not len(found.table)
    assert not len(found.examples)
    assert found.similarity is None
    assert all(np.isnan(value) for value in found.number)
    assert list(found.table.columns) == ["meaning", "share", "examples", "strongest", "tokens"]
    assert found.table["meaning"].dtype == found.examples["meaning"].dtype == np.int64
    assert "inactive" in repr(found)
    assert json.loads(json.dumps(found.to_dict()))["meanings"] == []


def test_rows_are_examples_of_the_store(surveyed: Store) -> None:
    """Each is a place where the coefficient is what it says; shares and counts are theirs."""
    found = meanings(surveyed, 1, 5)
    known = pd.concat([surveyed.examples(1, 5, context=8, k=99)])
    values = {(row.sequence, row.position): row.coefficient for row in known.itertuples()}
    for row in found.examples.itertuples():
        assert row.token in row.context
        if (row.sequence, row.position) in values:
            assert row.coefficient == pytest.approx(values[row.sequence, row.position], rel=1e-6)
    assert len({*zip(found.examples["sequence"], found.examples["position"], strict=True)} & {*values}) >= 1
    assert found.examples["coefficient"].max() == pytest.approx(surveyed.stats(1, 5)["max"].item(), rel=1e-6)
    by_meaning = found.examples.groupby("meaning")["coefficient"]
    shares = by_meaning.sum() / found.examples["coefficient"].sum()
    assert found.table["share"].tolist() == pytest.approx(shares.tolist())
    assert found.table["share"].sum() == pytest.approx(1)
    assert found.table["share"].is_monotonic_decreasing
    assert found.table["examples"].tolist() == by_meaning.size().tolist()
    assert found.table["strongest"].tolist() == by_meaning.max().tolist()
    for meaning, group in found.examples.groupby("meaning"):
        assert group["rank"].tolist() == list(range(1, len(group) + 1))
        assert group["coefficient"].is_monotonic_decreasing
        assert set(group["token"]) == set(found.triggers[int(meaning)])
        assert found.of(int(meaning)) == group.index.tolist()
    first = found.triggers[0][0]
    assert found.table["tokens"][0].startswith(visible(first, 24))


def test_similarity_is_ordered_by_meaning(meanings: Planted, planted_store: Store) -> None:
    """Naively: whitened inputs of each example, in the order of the examples."""
    from ffnmem.neurons.inputs import Inputs, read_backgrounds
    from ffnmem.scanning.state import place_of

    row = meanings.truth[(meanings.truth.layer == 0) & (meanings.truth.meanings == 2)].iloc[0]
    found = fm.meanings(planted_store, 0, row.neuron, meanings.model, k=2)
    full = fm.meanings(planted_store, 0, row.neuron, meanings.model)
    places = place_of(full.examples["sequence"].to_numpy(), full.examples["position"].to_numpy())
    background = read_backgrounds(planted_store, meanings.model, [0])[0]
    with Inputs(planted_store, meanings.model, {0: places}) as inputs:
        units = [background.unit(inputs.at(0, places[i : i + 1]))[0] for i in range(len(places))]
    expected = [[float(a @ b) for b in units] for a in units]
    assert found.similarity is not None
    assert allclose(found.similarity, expected, 1e-4)
    n = int(full.table["examples"][0])
    assert found.similarity[:n, :n].mean() > found.similarity[:n, n:].mean() + 0.1


def test_k_and_context_only_cut_what_is_shown(surveyed: Store) -> None:
    whole, cut = meanings(surveyed, 1, 5), meanings(surveyed, 1, 5, k=1, context=0)
    assert_frame_equal(whole.table, cut.table)
    assert whole.triggers == cut.triggers
    assert cut.examples["rank"].tolist() == [1] * len(cut.table)
    assert cut.examples["context"].tolist() == cut.examples["token"].tolist()


def test_negative_coefficients(surveyed: Store) -> None:
    found = meanings(surveyed, 0, 3, sign="negative")
    assert (found.examples["coefficient"] < 0).all()
    assert found.examples["coefficient"].min() == pytest.approx(surveyed.stats(0, 3)["min"].item(), rel=1e-6)


def test_other_settings_are_measured_anew(surveyed: Store, tiny: fm.Model) -> None:
    """A seed or a rule that was asked for, and silently not used, would be believed."""
    rule = fm.neurons.Rule(above=1.5, examples=2)
    anew = meanings(surveyed, 1, 5, tiny, seed=5, rule=rule, draws=25)
    settings = anew.provenance["polysemanticity"]
    assert (settings["seed"], settings["draws"], settings["rule"]["above"]) == (5, 25, 1.5)
    assert meanings(surveyed, 1, 5, seed=0, draws=20).provenance["polysemanticity"]["budget"] is None
    with refuses(ModelError, ValueError, surveyed.model):
        meanings(surveyed, 1, 5, seed=5)


def test_saved_meanings_by_sign(surveyed: Store, tiny_store: Store) -> None:
    found = saved_meanings(surveyed, 1, 5, k=2, context=3)
    assert [one.sign for one in found] == ["positive", "negative"]
    same(found[0], meanings(surveyed, 1, 5, k=2, context=3))
    assert saved_meanings(tiny_store, 1, 5, k=2, context=3) == ()


def test_as_dict_and_repr(surveyed: Store) -> None:
    found = meanings(surveyed, 1, 5, k=2)
    plain = json.loads(json.dumps(found.to_dict()))
    assert [row["measure"] for row in plain["estimates"]] == list(MEASURES)
    assert [one["share"] for one in plain["meanings"]] == found.table["share"].tolist()
    assert [tuple(one["tokens"]) for one in plain["meanings"]] == list(found.triggers)
    assert sum(len(one["contexts"]) for one in plain["meanings"]) == len(found.examples)
    assert plain["provenance"]["fingerprint"] == surveyed.fingerprint
    assert repr(found).startswith(f"Meanings(1.5 of {surveyed.model}: {found.verdict}")


def test_activation_orders_triggers() -> None:
    assert by_activation([" a", "b", " a", "c", "d"], np.array([1.0, 1.5, 1.0, 0.0, 1.5])) == (" a", "b", "d")
    assert by_activation([HOSTILE], np.array([1.0])) == (HOSTILE,)
    assert not set(UNSEEN) & set(visible(HOSTILE))


def test_mistakes(surveyed: Store, tiny_store: Store, atlas: fm.Model) -> None:
    with refuses(OutOfRangeError, IndexError, "neuron 64", "0 to 63"):
        meanings(surveyed, 1, 64)
    with refuses(OutOfRangeError, IndexError, "layer 2", "0 to 1"):
        meanings(surveyed, 2, 0)
    with refuses(InputError, ValueError, "sign", "'both'", "'positive'"):
        meanings(surveyed, 1, 0, sign="both")
    with refuses(InputError, ValueError, "k", "0"):
        meanings(surveyed, 1, 0, k=0)
    with refuses(InputError, ValueError, "draws", "20", "3"):
        meanings(surveyed, 1, 0, draws=3)
    with refuses(InputError, ValueError, "atlas", surveyed.model):
        meanings(surveyed, 1, 0, atlas)


# -- what they say of themselves -------------------------------------------------------------------------------------


def many(found: Meanings, n: int) -> Meanings:
    """As many meanings of one example each."""
    rows = pd.concat([found.examples.head(1)] * n, ignore_index=True).assign(meaning=np.arange(n), rank=1)
    columns = {"meaning": np.arange(n), "share": 1 / n, "examples": 1, "strongest": 1.0, "tokens": "x"}
    triggers = tuple((f"t{i}",) for i in range(n))
    return replace(found, table=pd.DataFrame(columns), examples=rows, windows=found.windows[:1] * n, triggers=triggers)


def test_listing_holds_each_meaning(surveyed: Store) -> None:
    found = meanings(surveyed, 1, 5)
    table = found.listing()
    heads = [row for row in table.rows if row[0] is not None]
    assert [row[0].text for row in heads] == [f"{share:.0%}" for share in found.table["share"]]
    assert [tuple(piece[0].text for piece in row[2].pieces) for row in heads] == [own[:8] for own in found.triggers]
    assert [row[1] for row in table.rows if row[0] is None] == found.examples["coefficient"].tolist()
    assert table.title.startswith(found.verdict.capitalize())
    assert found.why in table.note
    measures = found.measure_table()
    assert [row[0] for row in measures.rows] == ["meanings", "clusters", "ms", "trigger tokens"]
    assert [row[1] for row in measures.rows] == pytest.approx(found.estimates["value"].tolist(), nan_ok=True)
    page = Page(found._repr_html_())
    assert found.provenance["fingerprint"] in page.words
    assert "draws 20" in page.words
    assert found.to_frame()[["layer", "neuron", "sign"]].drop_duplicates().to_numpy().tolist() == [[1, 5, "positive"]]


def test_what_is_not_listed_is_said(surveyed: Store) -> None:
    found = many(meanings(surveyed, 1, 5), 8)
    assert len(found.first(5)) == 5
    assert any("and 3 more with 38% of the activation" in line for line in printed(found.listing(5), 60))
    assert "more with" not in " ".join(printed(found.sheet()))


GROUPED = "grouped by what the FFN read at the token that it fires at, not by what follows"


def test_headline(surveyed: Store) -> None:
    found = many(meanings(surveyed, 1, 5), 2)
    rows = found.estimates.copy()
    rows.loc[0, ["value", "low", "high"]] = [2.0, 1.5, 3.0]
    said = replace(found, estimates=rows, verdict="polysemantic", why="").listing()
    assert said.title == "Polysemantic: 2.00 meanings, 95% 1.50 to 3.00"
    assert said.note == f"2 examples, {GROUPED}"
    rows.loc[0, "value"] = np.nan
    none = replace(found, table=found.table.iloc[:0], estimates=rows, verdict="inactive", why="", sign="negative")
    assert (none.listing().title, none.listing().note) == ("Inactive where its coefficient is negative", "no examples")
    one = found.table.iloc[:1].assign(examples=21)
    rows.loc[0, ["value", "low", "high"]] = [1.0, 1.0, 1.48]
    few = replace(found, table=one, estimates=rows, verdict="monosemantic", why="").listing()
    assert few.title == "Monosemantic: 1.00 meanings, 95% 1.00 to 1.48"  # above 1.35, and the card says why
    leave = "so few of one meaning leave 1.48 possible, which the verdict allows"
    assert few.note == f"21 examples, {GROUPED}; {leave}"
    assert "Inactive" in Page(none._repr_html_()).words


def test_hostile_text_is_only_text(surveyed: Store) -> None:
    found = many(meanings(surveyed, 1, 5), 2)
    window = Window((HOSTILE, HOSTILE, HOSTILE), 1, True, True)
    bad = replace(found, windows=(window,) * 2, triggers=((HOSTILE,),) * 2)
    plain, hostile = printed(found.sheet()), printed(bad.sheet())
    assert not set(UNSEEN) & set("".join(hostile))
    assert len(hostile) == len(plain)
    html = replace(bad, why=HOSTILE, provenance={**bad.provenance, "model": HOSTILE})._repr_html_()
    assert not {"script", "img"} & {tag for tag, _ in Page(html).tags}
    assert "<script" not in html


def test_provenance_on_one_level(surveyed: Store) -> None:
    flat = settled(meanings(surveyed, 1, 5).provenance)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert (flat["seed"], flat["draws"], flat["budget"], flat["sign"]) == (0, 20, "no limit", "positive")
