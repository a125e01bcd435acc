"""A neuron's two sides: each with its own examples, tokens and words, the stronger first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ffnmem.core.sheets import Facts, Table
from ffnmem.scanning import Store
from ffnmem.scanning.neuron import Neuron

from ..helpers import printed
from .gated import gated_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gated_store("llama", tmp_path_factory.mktemp("sides") / "store")


@pytest.fixture(scope="module")
def neuron(store: Store) -> Neuron:
    """One that reaches further below 0 than above, and a good way on both sides."""
    stats = store.stats()
    low, high = -stats["min"], stats["max"]
    found = stats[(low > high) & (high > low / 2)].iloc[0]
    return store.neuron(int(found["layer"]), int(found["neuron"]))


def with_range(neuron: Neuron, least: float, largest: float) -> Neuron:
    return replace(neuron, stats={**neuron.stats, "min": least, "max": largest})


@pytest.mark.parametrize(
    ("least", "largest", "signs"),
    [
        (-19.9, 6.4, ["negative", "positive"]),
        (-6.4, 19.9, ["positive", "negative"]),
        (-4.0, 19.9, ["positive"]),
        (-19.9, 4.0, ["negative"]),
        (-3.0, -1.0, ["negative"]),
        (0.0, 0.0, ["positive"]),
    ],
)
def test_the_sides_of_a_gated_neuron(neuron: Neuron, least: float, largest: float, signs: list[str]) -> None:
    one = with_range(neuron, least, largest)
    assert [side.sign for side in one.sides] == signs
    assert one.to_dict()["sides"][0]["sign"] == signs[0]
    folded = {group.name for group in one.groups() if group.folded}
    weak = {"positive", "negative"} - set(signs)
    assert folded == {{"positive": "max", "negative": "min"}[sign] for sign in weak}


def test_a_classic_neuron_fires_with_positive_coefficients(tiny_store: Store) -> None:
    """GELU's dip below 0 is the same for all neurons, and no side even of one that hardly fires."""
    one = with_range(tiny_store.neuron(1, 5), -0.17, 0.01)
    assert [side.sign for side in one.sides] == list(tiny_store.signs(1, 5)) == ["positive"]
    assert not any(block.title for block in one.sheet().blocks if isinstance(block, Facts))


def test_each_side_has_its_own_examples_and_writes_with_its_sign(neuron: Neuron, store: Store) -> None:
    """A card said that a neuron suppresses what it promotes where it fires most."""
    assert list(store.signs(neuron.layer, neuron.neuron)) == ["negative", "positive"]
    below, above = neuron.sides
    assert (below.extreme, above.extreme) == (neuron.stats["min"], neuron.stats["max"])
    assert [text for text, _ in below.promotes] == neuron.tokens("suppressed") == [text for text, _ in above.suppresses]
    assert [score for _, score in below.promotes] == [-score for _, score in neuron.scores("suppressed")]
    for side, factor in ((below, -1), (above, 1)):
        rows = neuron.examples[~neuron.examples["kind"].isin(["quantile", "random"])]
        rows = rows.drop_duplicates(["sequence", "position"])
        strong = rows[factor * rows["coefficient"] >= abs(side.extreme) / 2]
        assert side.examples == len(strong) > 0
        assert dict(side.fires_at) == strong["token"].value_counts().to_dict()
        after = [neuron.windows[i].tokens[neuron.windows[i].at + 1 :] for i in strong.index]
        assert dict(side.followed_by) == pd.Series([some[0] for some in after if some]).value_counts().to_dict()
        assert next(mean for _, mean, _ in side.excited_by) == factor * (factor * neuron.by_token["mean"]).max()
    blocks = neuron.sheet().blocks
    titles = [block.title for block in blocks if isinstance(block, Facts | Table) and block.title]
    first, second = (titles.index(title) for title in titles if " side, to " in title)
    signs = {group.title: group.sign for group in neuron.groups()}
    assert {signs[title] for title in titles[first + 1 : second]} == {"negative"}
    assert [signs[title] for title in titles[second + 1 :]] == ["positive"] * (len(titles) - second - 2) + [""]
    words = " ".join(printed(neuron.sheet(), 200)[:4])
    assert words.index("Negative side, to -") < words.index("; positive side, to ")


def test_no_text_stands_twice(neuron: Neuron) -> None:
    windows = (neuron.windows[0],) * len(neuron.windows)
    shown = [example for group in replace(neuron, windows=windows).groups(99) for example in group.examples()]
    assert len(shown) == 1
    texts = [example.text for group in neuron.groups(99) for example in group.examples()]
    assert len(texts) == len(set(texts))


def test_hints_ask_for_what_is_missing(neuron: Neuron, tiny_store: Store) -> None:
    (hint,) = neuron.hints(folded=False)
    assert f"polysemanticity neurons {neuron.name} --store" in hint
    assert "--sign both keeps" in hint
    classic, near = (with_range(tiny_store.neuron(1, 5), -0.17, 4.0).hints(folded) for folded in (False, True))
    assert "its smallest coefficients stay near 0 (they end at -0.170); --kind bottom lists them" in near
    assert "--sign" not in " ".join(classic)


def test_a_search_says_what_a_neuron_does_on_its_stronger_side(neuron: Neuron, store: Store, tmp_path: Path) -> None:
    from ffnmem.scanning.searching import Found

    token = neuron.tokens("suppressed")[0]
    hits = store.search(token, limit=10_000)
    table = Found(token, "weights", hits, store.provenance).sheet().blocks[0]
    assert isinstance(table, Table)
    shown = {row[1:3] for row in table.rows if row[0] == (neuron.layer, neuron.neuron)}
    assert ("value suppresses", "promotes, negative") in shown
    fired = store.search(neuron.sides[0].fires_at[0][0], where="examples", limit=10_000)
    table = Found(token, "examples", fired, store.provenance).sheet().blocks[0]
    assert isinstance(table, Table)
    assert [row[2] for row in table.rows] == ["negative" if c < 0 else "positive" for c in fired["coefficient"]]
