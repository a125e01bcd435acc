"""The neurons worth opening: clear, wide enough, and promoting what comes next."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import ffnmem as fm
from ffnmem.neurons import ReadableNeurons, find_readable, readable
from ffnmem.scanning import Store, open_store

from .gated import made, scanned


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scanned(made("llama"), tmp_path_factory.mktemp("readable") / "store")


@pytest.fixture(scope="module")
def found(store: Store) -> ReadableNeurons:
    """Every side of a layer that has an example."""
    return find_all(store)


def find_all(store: Store) -> ReadableNeurons:
    """With intervals so narrow that some sides exceed chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readable, "LEVEL", 2.0)
        patch.setattr(readable, "WIDE", 1)
        patch.setattr(readable, "share_interval", lambda count, total: ((count + 1) / (total + 2), 1.0))
        return find_readable(store, k=None, layers=1)


def word(store: Store, token: int) -> str:
    text = store.contexts.strings([token])[0]
    return text.strip().casefold() or text


def by_hand(store: Store, layer: int, neuron: int, sign: str) -> tuple[int, int, float]:
    """Examples, those followed by what is promoted, and the share of that in the corpus, one by one."""
    factor = 1 if sign == "positive" else -1
    rows = store.examples(layer, neuron, kind="top" if sign == "positive" else "bottom")
    strong = rows[factor * rows["coefficient"] >= factor * rows["coefficient"].iloc[0] / 2]
    values = store.values(layer, neuron)
    ours = (values["side"] == "value") & (values["sign"] == ("promoted" if sign == "positive" else "suppressed"))
    promoted = {word(store, token) for token in values[ours]["token_id"]}
    seen, followed = set(), 0
    for row in strong.itertuples():
        tokens = dict(enumerate(store.sequences.sequence_tokens(row.sequence).tolist()))
        if store.sequences.lead:
            del tokens[0]
        text = tuple(tokens.get(row.position + step) for step in range(-4, 2))
        after = text[-1]
        followed += text not in seen and after is not None and word(store, after) in promoted
        seen.add(text)
    counts = Counter(
        token for n in range(len(store.sequences)) for token in store.sequences.sequence_tokens(n).tolist()
    )
    kept = {token: count for token, count in counts.items() if token not in store.settings.special}
    share = sum(count for token, count in kept.items() if word(store, token) in promoted) / sum(kept.values())
    return len(seen), followed, share


def test_the_numbers_are_those_of_the_text(store: Store, found: ReadableNeurons) -> None:
    rows = found.neurons.set_index(["layer", "neuron"])
    often = found.neurons.nlargest(3, "followed")
    assert often["followed"].min() > 0
    for place in ((1, 5), *zip(often["layer"], often["neuron"], strict=True)):
        sides = rows.loc[[place]]
        assert set(sides["sign"]) == set(store.signs(*place))
        card = store.neuron(*place, kind=("top", "bottom"))
        for row in sides.itertuples():
            examples, followed, chance = by_hand(store, *place, row.sign)
            assert (row.examples, row.followed) == (examples, followed)
            assert row.chance == pytest.approx(chance)
            assert row.largest == pytest.approx(card.extreme(row.sign))
    assert found.compared == len(rows)
    p = stats.binom.sf(rows["followed"] - 1, rows["examples"], rows["chance"])
    assert rows["q"].tolist() == pytest.approx(stats.false_discovery_control(p).tolist())
    for row in rows.itertuples():
        assert (row.followed_low, row.followed_high) == pytest.approx(((row.followed + 1) / (row.examples + 2), 1))
        bits = stats.entropy([row.followed_low, 1 - row.followed_low], [row.chance, 1 - row.chance], base=2)
        assert row.lift == pytest.approx(bits if row.followed_low > row.chance else 0)
    assert rows["lift"].is_monotonic_decreasing
    assert rows["lift"].nunique() > 9


def test_verdicts_decide_which_are_clear(store: Store, found: ReadableNeurons, tmp_path: Path) -> None:
    """Polysemantic sides are left out, monosemantic ones come first."""
    assert found.unmeasured == ("positive", "negative")
    assert "one meaning or several is not measured yet" in found.verdict
    own = open_store(shutil.copytree(store.folder, tmp_path / "store"))
    rule = fm.neurons.Rule(above=2.5, examples=2, enough=2, alpha=0.5)
    table = fm.polysemanticity(own, made("llama"), sign="both", draws=20, budget=None, rule=rule).neurons
    judged = find_all(own)
    assert judged.unmeasured == ()
    assert "several meanings are left out" in judged.verdict
    sides = found.neurons.drop(columns=["verdict", "meanings"]).merge(
        table[["layer", "neuron", "sign", "verdict", "meanings"]]
    )
    assert set(sides["verdict"]) >= {"monosemantic", "polysemantic", "unclear"}
    sides = sides[sides["verdict"] != "polysemantic"]
    last = (sides["verdict"] != "monosemantic", -sides["lift"], sides["layer"], sides["neuron"])
    expected = sides.iloc[np.lexsort(last[::-1])]
    names = ["layer", "neuron", "sign", "verdict", "meanings", "lift", "promotes"]
    pd.testing.assert_frame_equal(judged.neurons[names], expected[names].reset_index(drop=True))


def test_chance_is_not_listed(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values without training promote what comes next no more often than chance has it."""
    monkeypatch.setattr(readable, "WIDE", 3)
    found = find_readable(tiny_store, k=None)
    assert found.compared > 0
    assert len(found.neurons) <= 0.05 * found.compared
    assert len(find_readable(tiny_store, k=1, layers=-1).neurons) <= 1
