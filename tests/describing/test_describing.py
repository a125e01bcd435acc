"""Descriptions of planted neurons: known answers score 1 and their null .5, what is held back is not shown, what cannot
be read is counted, and long work goes on."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, InputTypeError
from ffnmem.describing import Descriptions, ask_model
from ffnmem.describing.contexts import FIRES
from ffnmem.scanning import Store, open_store

from ..helpers import refuses
from ..planted_models import Planted
from .known import answer_knowing

FEW = {"shown": 8, "tested": 8, "seed": 1}


@pytest.fixture(scope="module")
def store(meanings: Planted, meanings_store: Store) -> Store:
    return open_store(meanings_store.folder, meanings.model)


@pytest.fixture(scope="module")
def single(meanings: Planted) -> list[tuple[int, int]]:
    """Neurons of one meaning in the layer where that is a word's own."""
    truth = meanings.truth
    some = truth[(truth["meanings"] == 1) & (truth["layer"] == 0)]
    return [(int(row.layer), int(row.neuron)) for row in some.itertuples()]


@pytest.fixture(scope="module")
def found(store: Store, single: list[tuple[int, int]]) -> Descriptions:
    return fm.describe(store, single, answer_knowing)


def test_known_answers_score_one_and_their_null_a_half(found: Descriptions, meanings: Planted) -> None:
    """A concept is a stem with endings; that of another neuron says nothing of where this one fires."""
    features = meanings.truth.set_index(["layer", "neuron"])["features"]
    for row in found.table.itertuples():
        assert features[row.layer, row.neuron].endswith(row.description)
    assert found.table["score"].min() > 0.85
    assert found.table["score"].mean() > 0.97
    assert found.table["null"].mean() == pytest.approx(0.5, abs=0.05)
    assert (found.table["unread"] == 0).all()
    names = [f"{row.layer}.{row.neuron}" for row in found.table.itertuples()]
    assert sorted(found.table["null_of"]) == sorted(names), "each description is the null of one other"
    assert not any(found.table["null_of"] == names)


def test_scores_are_shares_of_the_contexts(found: Descriptions) -> None:
    """Balanced accuracy of what was said of each context, with Wilson's intervals of both kinds joined."""
    z = norm.ppf(0.975)
    for (layer, neuron), some in found.contexts.groupby(["layer", "neuron"]):
        row = found.row(layer, neuron)
        counts = some["part"].value_counts()
        assert counts["firing"] == counts["quiet"]
        assert (row["n"], row["shown"]) == (2 * counts["firing"], counts["shown"])
        for name, column in (("score", "applies"), ("null", "null_applies")):
            parts = [some.loc[some["part"] == part, column] for part in ("firing", "quiet")]
            shares = np.array([parts[0].mean(), 1 - parts[1].mean()])
            z2 = z**2 / counts["firing"]
            middles = (shares + z2 / 2) / (1 + z2)
            halves = np.sqrt(z2 * shares * (1 - shares) + z2**2 / 4) / (1 + z2)
            below, above = (np.linalg.norm(shares - middles + sign * halves) / 2 for sign in (1, -1))
            expected = [shares.mean(), shares.mean() - below, shares.mean() + above]
            np.testing.assert_allclose([row[f"{name}{end}"] for end in ("", "_low", "_high")], expected, atol=1e-12)


def test_what_is_held_back_is_never_shown(found: Descriptions) -> None:
    """No document and no text is in two parts; no question for a description has a context that is scored."""
    for place, some in found.contexts.groupby(["layer", "neuron"]):
        parts = dict(list(some.groupby("part")))
        assert set(parts) == {"shown", "firing", "quiet"}
        for column in ("document", "sequence", "context"):
            values = [value for part in parts.values() for value in part[column].unique()]
            assert len(values) == len(set(values)), column
        asked = found.answers.set_index(["layer", "neuron"]).loc[[place]].set_index("asked")["question"]
        clean = re.sub("[⟦⟧]", "", asked["description"])
        for part, there in (("shown", True), ("firing", False), ("quiet", False)):
            assert all((f">{text}<" in clean) == there for text in parts[part]["context"])
        for kind in ("score", "null"):
            assert all(any(f">{text}<" in one for one in asked[kind]) for text in parts["firing"]["context"])
            assert "⟦" not in "".join(asked[kind]), "marks would tell where the neuron fires"


def test_firing_and_quiet_are_so(found: Descriptions, store: Store, meanings: Planted) -> None:
    """By the model's own run over the contexts' sequences."""
    table = found.contexts[found.contexts["neuron"] == found.contexts["neuron"].iloc[0]]
    layer, neuron = int(table["layer"].iloc[0]), int(table["neuron"].iloc[0])
    largest = float(store.stats(layer, neuron)["max"].iloc[0])
    for row in table.itertuples():
        ids = store.sequences.sequence_tokens(row.sequence)
        values = fm.capture(meanings.model, [int(i) for i in ids]).coefficients[layer][0, :, neuron]
        if row.part == "quiet":
            assert float(values[store.sequences.lead :].max()) < FIRES * largest
            assert np.isnan(row.coefficient)
        else:
            assert float(values[row.position]) == pytest.approx(row.coefficient, abs=1e-3)
            assert row.coefficient >= (FIRES - 1e-3) * largest


def test_seeds_decide_every_choice(store: Store, single: list[tuple[int, int]]) -> None:
    first, again, other = (fm.describe(store, single[:3], answer_knowing, **{**FEW, "seed": n}) for n in (1, 1, 2))
    for name in ("table", "contexts", "answers"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(again, name))
    assert first.answers["question"].tolist() != other.answers["question"].tolist()
    assert first.provenance["seed"] == 1


def test_a_single_neuron_has_a_null_too(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    found = fm.describe(store, single[0], answer_knowing, **FEW)
    (row,) = found.table.to_dict("records")
    assert row["score"] > 0.8
    assert row["null_of"].startswith("0.")
    assert row["null_of"] != f"{row['layer']}.{row['neuron']}"
    assert row["null"] < row["score"]
    again = Descriptions.load(found.save(tmp_path / "words.zip"))
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.of(*single[0]) == row["description"]
    one = found.on(store.neuron(single[0]))
    assert one.to_dict()["description"] == row["description"]
    with refuses(InputError, ValueError, "0.99", "was not described"):
        found.of("0.99")


def test_nonsense_is_counted_and_shown(store: Store, single: list[tuple[int, int]]) -> None:
    """An answer that cannot be read is neither right nor wrong."""

    def mumbling(question: str) -> str:
        return answer_knowing(question) if "DESCRIPTION:" in question else "I cannot \x1b[31msay."

    found = fm.describe(store, single[:2], mumbling, **FEW)
    assert found.table[["score", "null"]].isna().all(axis=None)
    assert found.table["unread"].sum() == (~found.answers["read"]).sum() == len(found.answers) - 2
    shown = str(found.sheet().blocks)
    assert f"{len(found.answers) - 2} of {len(found.answers)} answers could not be read" in shown
    assert "I cannot" in shown
    assert "\x1b" not in shown
    silent = fm.describe(store, single[:2], lambda question: "", **FEW)
    assert silent.table["why"].tolist() == ["no description could be read"] * 2
    assert set(silent.answers["asked"]) == {"description"}
    always = fm.describe(
        store, single[:2], lambda q: answer_knowing(q) if "DESCR" in q else "[1, 1]", together=2, **FEW
    )
    assert always.table[["score", "null"]].to_numpy().tolist() == [[0.5, 0.5]] * 2


def test_one_readable_description_is_scored_alone(store: Store, single: list[tuple[int, int]]) -> None:
    """Its score was thrown away with the null that it could not have."""
    first: list[str] = []

    def once(question: str) -> str:
        if "DESCRIPTION:" in question:
            first.append(question)
            return answer_knowing(question) if len(first) == 1 else ""
        return answer_knowing(question)

    found = fm.describe(store, single[:2], once, **FEW)
    scores = found.table.set_index("description")["score"]
    assert scores.dropna().min() > 0.8
    assert scores.isna().tolist() == [False, True]
    assert found.table["null"].isna().all()


def test_who_has_no_name_keeps_no_answers(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    """Two partials of one client would answer for each other."""
    for ask in (partial(answer_knowing), lambda question: answer_knowing(question)):
        with refuses(InputError, ValueError, "out= out", "def"):
            fm.describe(store, single[:2], ask, out=tmp_path / "answers.jsonl", **FEW)
    assert not list(tmp_path.iterdir())


def test_dead_neurons_and_the_other_side(store: Store, meanings: Planted, gated_store: Store) -> None:
    truth = meanings.truth
    dead = truth[truth["meanings"] == 0].iloc[0]
    found = fm.describe(store, [(dead["layer"], dead["neuron"])], answer_knowing)
    assert found.table["why"].tolist() == ["never fires"]
    assert found.descriptions["description"].tolist() == ["– (never fires)"]
    assert found.answers.empty
    for sign, factor in (("positive", 1), ("negative", -1)):
        both: Any = fm.describe(gated_store, ["0.1", "1.2"], str, sign=sign, shown=4, tested=4)
        assert (np.sign(both.contexts.query("part != 'quiet'")["coefficient"]) == factor).all()
        assert set(both.table["sign"]) == {sign}
        assert ("sign" in both.descriptions) == (sign == "negative")


def test_nothing_is_asked_twice(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    """A call that was stopped goes on: what its file has is not asked again, a line that was cut short is."""
    file, asked = tmp_path / "answers.jsonl", []

    def counting(question: str) -> str:
        asked.append(question)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return answer_knowing(question)

    with pytest.raises(KeyboardInterrupt):
        fm.describe(store, single[:2], counting, out=file, **FEW)
    assert len(file.read_text("utf-8").splitlines()) == 5  # what it is, and four answers
    file.write_bytes(file.read_bytes()[:-20])
    told: list[tuple[str, int, int]] = []
    report: Any = lambda *step: told.append(step)  # noqa: E731
    whole = fm.describe(store, single[:2], counting, out=file, progress=report, **FEW)
    assert [step for step in told if step[1] == step[2]] == [("explain", 2, 2), told[-1]]
    assert len(asked) == 5 + len(whole.answers) - 3
    before = len(asked)
    same = fm.describe(store, single[:2], counting, out=file, **FEW)
    assert len(asked) == before
    pd.testing.assert_frame_equal(same.table, whole.table)
    fm.describe(store, single[:2], answer_knowing, out=file, **FEW)  # somebody else is asked all
    names = [json.loads(line)["asked"] for line in file.read_text("utf-8").splitlines()[1:] if line.endswith("}")]
    assert names.count("answer_knowing") == len(whole.answers)


def test_a_model_is_asked(tiny: fm.Model, make_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its chat template where it has one; a text that spells a special token does not become one."""
    asked: list[list[int]] = []

    def generated(model: fm.Model, tokens: list[int], new: int) -> list[int]:
        asked.append(tokens)
        return tiny.ids_of(" Paris")[:new]

    monkeypatch.setattr("ffnmem.describing.answers.generate", generated)
    ask = ask_model(tiny)
    assert ask("The city of") == " Paris"
    assert asked.pop() == tiny.tokenize("The city of")
    assert ask.__qualname__ == f"{tiny.name} {tiny.fingerprint}, 60 tokens"
    model = make_tiny()
    later = ask_model(model)
    with torch.no_grad():
        model.ffn[0].values[0] += 1
    with refuses(InputError, ValueError, "changed since"):
        later("The city of")
    end = tiny.tokenizer.eos_token
    ask(f"The{end} city")
    assert tiny.tokenizer.eos_token_id not in asked.pop()[tiny.prepend_bos :]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"shown": 3}, InputError, "shown 3"),
    ({"together": 0}, InputError, "together 0"),
    ({"neurons": []}, InputError, "3.17"),
    ({"ask": "smollm2"}, InputTypeError, "ask smollm2"),
    ({"ask": lambda question: 3}, InputTypeError, "ask text 3"),
    ({"out": "my own text\n"}, InputError, "mine.txt answers"),
    ({"out": '{"kind": "ffnmem answers", "schema": 9}'}, InputError, "mine.txt answers"),
    ({"out": "no/such/folder"}, FileError, "no/such"),
]


@pytest.mark.parametrize(("wrong", "kind", "named"), REFUSED, ids=[row[2] for row in REFUSED])
def test_mistakes(store: Store, wrong: dict[str, Any], kind: type[Exception], named: str, tmp_path: Path) -> None:
    """A file that is no file of answers is left as it is."""
    file, text = tmp_path / "mine.txt", wrong.get("out", "")
    if text and "/" not in text:
        file.write_text(text)
        wrong = {**wrong, "out": file}
    with refuses(kind, fm.FfnmemError, *named.split(), typed=kind is InputTypeError):
        fm.describe(store, **{"neurons": "0.0", "ask": answer_knowing, **wrong})
    assert not file.exists() or file.read_text() == text
