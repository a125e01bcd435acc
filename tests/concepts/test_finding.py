"""Which neurons tell two sets of texts apart: planted ones, none by chance, and areas as a naive count has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.concepts.finding import rank_neurons
from ffnmem.concepts.reading import read_units
from ffnmem.concepts.telling import Words, areas, interval
from ffnmem.concepts.texts import tokenise
from ffnmem.core.errors import InputError

from ..architectures import DECODERS
from ..helpers import allclose
from ..planted_models import SYLLABLES, Room, empty_gpt2, load, stems, word_tokenizer, write_embeddings, write_ffn

PLACES = ("Rome", "Paris", "London", "the Tower", "the city", "the Eiffel Tower", "France", "It", "the country")
MINE = [f"{one} is in the {two} of Paris" for one in PLACES for two in ("city", "Tower")]
OTHERS = [f"{one} of the city is {two}" for one in PLACES for two in ("Rome", "London", "in France")]


TOPICS, WORDS, EACH = 12, 4, 3


@pytest.fixture(scope="module")
def planted() -> fm.Model:
    """A layer with three neurons for each of twelve topics, whose words share a direction, and twelve that each fire at
    one word of the last topic."""
    rng = np.random.default_rng(0)
    words = [stem + ending for stem in stems(TOPICS, rng) for ending in SYLLABLES[:WORDS]]
    hf = empty_gpt2(len(words) + 2, n_layers=2, d_model=70, d_mlp=TOPICS * (EACH + 1), n_ctx=64)
    room = Room(70, rng)
    topics, own, special = room.take(TOPICS), room.take(len(words)), room.take(2)
    embeddings = torch.cat([special, (topics.repeat_interleave(WORDS, 0) + own) / 2**0.5])
    write_embeddings(hf, embeddings, torch.zeros(64, 70))
    keys = torch.cat([topics.repeat_interleave(EACH, 0), own[-WORDS:].repeat(TOPICS // WORDS, 1)])
    values = torch.randn(len(keys), 70, generator=torch.Generator().manual_seed(0)) / 100
    write_ffn(hf, 0, keys, torch.full((len(keys),), -2.0), values)
    return load(hf, word_tokenizer(words), "planted")


def naive(mine: Any, others: Any) -> float:
    """Pairs counted one by one."""
    return float(np.mean([[(a > b) + 0.5 * (a == b) for b in others] for a in mine]))


def topic(model: fm.Model, one: int, without: tuple[int, ...], rng: np.random.Generator, n: int = 60) -> list[str]:
    """Texts of any words but those of some topics, a third of them of one."""
    words = model.token_strings(range(2, model.d_vocab))
    rest = [word for at, word in enumerate(words) if at // WORDS not in without]
    own = words[one * WORDS : (one + 1) * WORDS]
    return ["".join(rng.choice(own if rng.random() < 1 / 3 else rest) for _ in range(40)).strip() for _ in range(n)]


def test_planted_neurons_are_found(planted: fm.Model) -> None:
    """Those of a topic, with larger coefficients, and of the one that the others are of, with smaller ones."""
    rng, counts = np.random.default_rng(0), np.zeros(3)
    for pair in ((at, at + 1) for at in range(10)):
        found = fm.concept(planted, *(topic(planted, one, pair, rng) for one in pair), draws=200)
        named, known = found.neurons.query("p < 0.05"), [n for one in pair for n in range(one * EACH, (one + 1) * EACH)]
        hits = named[(named["layer"] == 0) & named["neuron"].isin(known)]
        counts += len(hits), len(named), len(known)
        assert ((hits["neuron"] // EACH == pair[0]) == (hits["held_out"] > 0.9)).all()
    assert min(counts[0] / counts[1:]) >= 0.95, counts


def test_no_neuron_is_found_where_labels_are_random(planted: fm.Model) -> None:
    """Of 200 tasks 5% or fewer at p < .05, to within what 200 draws of a fair p allow."""
    rng = np.random.default_rng(0)
    rows = [tokenise(planted, text, "mean", 64) for text in topic(planted, 0, (), rng)]
    labels = np.arange(len(rows)) < 25
    units, found = read_units(planted, rows, labels, "mean"), 0
    for _ in range(200):
        chosen = rng.permutation(len(rows)) < 40
        table, _ = rank_neurons(units, rng.permutation(labels), chosen, 99, rng)
        found += table["p"].min() < 0.05
    assert found <= 16


@pytest.mark.parametrize("unit", ["mean", "max", "last"])
def test_areas_are_those_of_a_naive_count_over_captures(unit: Any, tiny: fm.Model) -> None:
    """Chosen by one half of either set, tried on the other."""
    found = fm.concept(tiny, MINE, OTHERS, unit=unit, draws=20)
    assert [found.chosen[found.labels == side].sum() for side in (True, False)] == [9, 14]
    assert found.layers["found"].sum() == found.found
    for place, row in enumerate(found.neurons.head(5).itertuples()):
        values = []
        for text in (*found.texts, *found.against):
            run = fm.capture(tiny, text)
            m = run.coefficients[row.layer][0, run.content[0], row.neuron]
            values.append(float(m.mean() if unit == "mean" else m[m.abs().argmax()] if unit == "max" else m[-1]))
        assert allclose(found.values[place], values, 1e-3)
        for half, name in ((found.chosen, "auroc"), (~found.chosen, "held_out")):
            kept = found.values[place]
            assert getattr(row, name) == pytest.approx(
                naive(kept[half & found.labels], kept[half & ~found.labels]), abs=1e-6
            )
    assert (found.neurons["auroc"] - 0.5).abs().round(5).is_monotonic_decreasing
    assert found.neurons["mean_with"].sub(found.neurons["mean_without"]).equals(found.neurons["difference"])


def test_a_marked_span_is_all_that_is_looked_at(tiny: fm.Model) -> None:
    row = tokenise(tiny, "The [[Eiffel Tower]] is in the city", "span", 8)
    assert [tiny.token_strings(row.ids)[at] for at in row.unit] == [" Eiffel", " Tower"]
    assert tiny.tokenizer.decode(row.ids[1:]) == "The Eiffel Tower is in the city"


def test_over_experts_a_mean_is_over_the_tokens_that_are_routed_there(tokenizer: Any) -> None:
    model = fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer)
    rows = [tokenise(model, text, "mean", 64) for text in MINE[:3]]
    units = read_units(model, rows, np.array([True, True, False]), "mean")
    run = fm.capture(model, MINE[0])
    m = run.coefficients[0][0, run.content[0]]
    routed = (m != 0).sum(0).clamp(min=1)
    assert allclose(units.neurons[0][:, 0], m.sum(0) / routed, 1e-3)
    assert allclose(units.means[0][1], fm.capture(model, MINE[2]).coefficients[0][0, 1:].mean(0), 1e-5)


def test_areas_with_ties_and_their_interval() -> None:
    rng = np.random.default_rng(0)
    values, labels = rng.integers(5, size=(7, 30)), rng.permutation(30) < 12
    assert allclose(areas(values, labels), [naive(row[labels], row[~labels]) for row in values])
    both = areas(values, np.column_stack([labels, ~labels]))
    assert allclose(both.sum(1), np.ones(7))
    low, high = interval(np.array([0.0, 0.5, 1.0]), 20, 30)
    assert np.all((low >= 0) & (high <= 1) & (low < high))
    assert low[2] > 0.85
    inside = 0
    for _ in range(300):  # of normals one standard deviation apart, the area is Φ(1/√2)
        drawn = rng.standard_normal(50) + (np.arange(50) < 20)
        ends = interval(areas(drawn, np.arange(50) < 20), 20, 30)
        inside += ends[0] < 0.7602 < ends[1]
    assert inside >= 0.92 * 300


def test_a_neuron_of_one_word_is_called_its_detector(planted: fm.Model) -> None:
    """In texts that have one word of its topic alone; in those that have four it says more than any of them."""
    rng = np.random.default_rng(1)
    mine, others = (topic(planted, one, (0, 1), rng) for one in (0, 1))
    assert not any(fm.concept(planted, mine, others, draws=50).neurons["word"])
    own = [word.strip() for word in planted.token_strings(range(2, 2 + WORDS))]
    one_word = [" ".join(own[0] if word in own else word for word in text.split()) for text in mine]
    found = fm.concept(planted, one_word, others, draws=50)
    assert {*found.neurons.query("layer == 0 and neuron < 3")["word"]} == {own[0]}
    first = found.contexts.query("layer == 0 and neuron == 0").iloc[0]
    assert f"« {own[0]}»" in first["context"]
    assert first["coefficient"] > 0


def test_log_odds_of_words() -> None:
    texts = [["a", "b"], ["a"], ["b", "c"], ["c"], ["a", "d"]]
    labels, chosen = np.array([1, 1, 0, 0, 1], bool), np.array([1, 1, 1, 1, 0], bool)
    words = Words.of(texts, labels, chosen)
    expected = np.log((2.5 / 4.5) / (0.5 / 4.5))  # 3 tokens of each set and half a one of each of 3 words
    assert words.log_odds["a"] == pytest.approx(expected)
    assert words.log_odds["c"] == pytest.approx(-expected)
    assert words.log_odds["b"] == pytest.approx(0)
    assert words.score(["a", "d"]) == pytest.approx(expected / 2)
    turned = Words.of(texts, ~labels, chosen)
    assert all(turned.log_odds[word] == pytest.approx(-value) for word, value in words.log_odds.items())
    assert words.best() == "a"


def test_texts_are_read_from_files_and_by_a_column(tiny: fm.Model, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for number, text in enumerate(MINE):
        (tmp_path / "mine" / f"{number:02}.txt").write_text(text, "utf-8")
    (tmp_path / "others.txt").write_text("\n\n".join(OTHERS), "utf-8")
    table = pd.DataFrame({"text": [*MINE, *OTHERS], "kind": ["x"] * len(MINE) + ["y"] * len(OTHERS)})
    table.to_json(tmp_path / "both.jsonl", orient="records", lines=True)
    expected = fm.concept(tiny, MINE, OTHERS, draws=20).to_dict(3)
    assert fm.concept(tiny, tmp_path / "mine", tmp_path / "others.txt", draws=20).to_dict(3) == expected
    for label in ("kind", "kind=x"):
        assert fm.concept(tiny, tmp_path / "both.jsonl", label=label, draws=20).to_dict(3) == expected


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (MINE, None, {}, "--against"),
    (MINE, OTHERS, {"label": "kind"}, "one of both"),
    ([], OTHERS, {}, "no texts"),
    (MINE, [], {}, "no texts to compare with"),
    (MINE[:7], OTHERS, {}, "there are 7 texts"),
    (MINE[:7] * 2, OTHERS, {}, "there are 7 texts"),
    (MINE, [*OTHERS, MINE[3] + " "], {}, "1 text stand in both sets"),
    (MINE, OTHERS, {"unit": "span"}, "[["),
    (MINE, OTHERS, {"unit": "median"}, "unit"),
    ("/nowhere.txt", OTHERS, {}, "nowhere"),
]


@pytest.mark.parametrize(("texts", "against", "options", "named"), REFUSED)
def test_refused_before_the_model_runs(
    texts: Any, against: Any, options: dict[str, Any], named: str, tiny: fm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffnmem.concepts.finding.read_units", None)
    with pytest.raises((InputError, fm.FfnmemError), match=r"(?s).*" + named.replace("[", r"\[")) as refused:
        fm.concept(tiny, texts, against, **options)
    assert "\n" not in str(refused.value)
