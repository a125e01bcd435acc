"""Words for neurons: the rules on planted memories, other explainers and judges, what is held back, what is kept."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import ffnmem as fm
from ffnmem.core.errors import EndpointError, FileError, InputError
from ffnmem.describing import Descriptions, Endpoint, endpoint
from ffnmem.describing.extracts import BANDS, FIRES, QUIET, ContextSettings, draw
from ffnmem.scanning import Store, open_store

from ..helpers import refuses
from ..planted_models import Planted
from .endpoints import said, serving

ALL = ("detection", "fuzzing", "intruder")
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


def plain_score(trials: pd.DataFrame) -> list[float]:
    """A score and its interval of the trials: shares with Wilson's intervals, those of both sides joined."""
    judged = trials.dropna(subset="right")
    if set(trials["score"]) == {"detection"}:
        sides = [judged.loc[judged["truth"] == truth, "right"] for truth in (1, 0)]
    elif set(trials["score"]) == {"fuzzing"}:
        sides = [judged.groupby(["sequence", "position"])["right"].mean()]
    else:
        sides = [judged["right"]]
    shares, counts = np.array([side.mean() for side in sides]), np.array([len(side) for side in sides])
    if not counts.all():
        return [np.nan] * 3
    z2 = norm.ppf(0.975) ** 2 / counts
    middles, halves = (shares + z2 / 2) / (1 + z2), np.sqrt(z2 * shares * (1 - shares) + z2**2 / 4) / (1 + z2)
    below, above = (np.linalg.norm(shares - middles + sign * halves) / len(sides) for sign in (1, -1))
    return [shares.mean(), shares.mean() - below, shares.mean() + above]


def test_planted_concepts_are_found_and_fit(store: Store, single: list[tuple[int, int]], meanings: Planted) -> None:
    """A concept is a stem with endings: the rules name it, and contexts that were held back tell it from others."""
    found = fm.describe(store, single, scores=ALL)
    features = meanings.truth.set_index(["layer", "neuron"])["features"]
    for row in found.table.itertuples():
        assert f'"{features[row.layer, row.neuron]}' in row.description
    assert (found.table["detection"] > 0.9).all()
    assert (found.table["fuzzing"] > 0.9).all()
    assert found.table[list(ALL)].mean().min() > 0.95
    assert (found.table["unanswered"] == 0).all()
    some = found.extracts.groupby(["layer", "neuron"])["part"].value_counts().unstack()
    assert (found.table["n"].to_numpy() == (some["tested"] + some["quiet"]).to_numpy()).all()
    assert (found.table["shown"].to_numpy() == some["shown"].to_numpy()).all()


def test_scores_are_shares_of_the_trials(store: Store, meanings: Planted) -> None:
    """Of neurons of many meanings, where they are near chance; each context is marked rightly and wrongly."""
    truth = meanings.truth
    many = [(int(row.layer), int(row.neuron)) for row in truth[truth["meanings"] == 8].itertuples()]
    found = fm.describe(store, many, scores=ALL)
    for (layer, neuron, score), trials in found.trials.groupby(["layer", "neuron", "score"]):
        row = found.row(layer, neuron)
        mine = [row[f"{score}{end}"] for end in ("", "_low", "_high")]
        np.testing.assert_allclose(mine, plain_score(trials), atol=1e-12)
        if score == "fuzzing":
            assert (trials.groupby(["sequence", "position"])["truth"].agg(["sum", "size"]) == [1, 2]).all(axis=None)
    assert found.table["detection"].mean() == pytest.approx(0.5, abs=0.07)
    assert found.table["fuzzing"].mean() == pytest.approx(0.5, abs=0.07)


def test_what_describes_never_scores(store: Store, single: list[tuple[int, int]]) -> None:
    """No document, and no text, is in two parts; every band of strength is in both that fire."""
    found = fm.describe(store, single, scores="detection")
    for _, some in found.extracts.groupby(["layer", "neuron"]):
        parts = dict(list(some.groupby("part")))
        assert set(parts) == {"shown", "tested", "quiet"}
        for column in ("document", "sequence", "context"):
            values = [value for part in parts.values() for value in part[column].unique()]
            assert len(values) == len(set(values)), column
        assert set(parts["quiet"]["band"]) == {-1}
        assert set(parts["shown"]["band"]) == set(parts["tested"]["band"]) == set(range(BANDS))
    judged = set(zip(found.trials["sequence"], found.trials["layer"], found.trials["neuron"], strict=True))
    shown = found.extracts[found.extracts["part"] == "shown"]
    assert not judged & set(zip(shown["sequence"], shown["layer"], shown["neuron"], strict=True))


def test_strengths_are_the_models(store: Store, single: list[tuple[int, int]], meanings: Planted) -> None:
    """What is called firing or quiet is so."""
    for one in draw(store, single[:4], meanings.model, ContextSettings("positive", 20, 20, 16, 0)):
        assert one.largest == pytest.approx(float(store.stats(one.layer, one.neuron)["max"].iloc[0]))
        assert max(len(one.shown), len(one.tested)) <= len(one.quiet) == 20
        for extract in (*one.shown, *one.tested, *one.quiet):  # as many tokens on each side as the text has, up to 16
            text = store.sequences.sequence_tokens(extract.sequence)[store.sequences.lead :]
            sides = extract.position - store.sequences.lead, len(text) - 1 - extract.position + store.sequences.lead
            assert len(extract.tokens) == 1 + sum(min(side, 16) for side in sides)
        for extract in (*one.shown, *one.tested):
            assert extract.strengths is not None
            assert extract.strengths[extract.at] == pytest.approx(extract.coefficient / one.largest, abs=1e-3)
            assert extract.strengths[extract.at] >= FIRES - 1e-3
        assert all(max(extract.strengths or (1,)) < QUIET for extract in one.quiet)


# Functions and endpoints.


def describing(messages: list[dict[str, str]]) -> str:
    """A model that knows: it says what the marked words share, and judges by the description, its own or a rule's."""
    system, user = messages[0]["content"], messages[1]["content"]
    texts = re.findall(r"^\d+\. <text-\w+>(.*)</text-", user, re.M)
    if "DESCRIPTION:" in system:
        texts = re.findall(r"^\d+\. <text-\w+>(.*)$", user, re.M)
        marked = [word for text in texts for word in re.findall(r"⟦ ?(\w{4})", text)]
        return f"Let me see.\nDESCRIPTION: {max(set(marked), key=marked.count)}"
    if "does not belong" in system:
        stems = [re.findall(r"⟦ ?(\w{4})", text) for text in texts]
        every = [stem for some in stems for stem in set(some)]
        return str(1 + min(range(len(texts)), key=lambda i: max((every.count(stem) for stem in stems[i]), default=0)))
    stem = re.findall(r'Description: <text-\w+>(?:.*?begin with ")?(\w{4})', user)[0]
    wanted = rf"⟦ ?{stem}" if "⟦" in system else stem
    return f"[{', '.join(str(int(bool(re.search(wanted, text)))) for text in texts)}]"


def test_a_function_explains_and_judges(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    found = fm.describe(store, single[:3], describing, scores=ALL, **FEW)
    assert found.table[list(ALL)].min().min() > 0.85
    assert set(found.answers["asked"]) == {"description", *ALL}
    assert found.provenance["describe"]["explainer"] == "function describing"
    asked = json.loads(found.answers["messages"].iloc[0])
    assert [one["role"] for one in asked] == ["system", "user"]
    by_rules = fm.describe(store, single[:2], judge=describing, scores=ALL[:2], **FEW)
    assert (by_rules.table["detection"] > 0.85).all()
    own = by_rules.provenance["describe"]
    assert (own["explainer"], own["judge"]) == ("rules", "function describing")
    again = Descriptions.load(found.save(tmp_path / "words.safetensors"))
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.of(*single[0]) == found.of(f"{single[0][0]}.{single[0][1]}") == found.table["description"].iloc[0]


def test_nothing_is_asked_twice(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    """A call that was stopped goes on: what its file has is not asked again, a line cut short is."""
    file, asked = tmp_path / "answers.jsonl", []

    def counting(messages: list[dict[str, str]]) -> str:
        asked.append(messages)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return describing(messages)

    with pytest.raises(KeyboardInterrupt):
        fm.describe(store, single[:2], counting, scores="detection", out=file, **FEW)
    assert len(file.read_text("utf-8").splitlines()) == 5  # what it is, and four answers
    file.write_bytes(file.read_bytes()[:-20])
    told: list[tuple[Any, ...]] = []
    report: Any = lambda *step: told.append(step)  # noqa: E731
    whole = fm.describe(store, single[:2], counting, scores="detection", out=file, progress=report, **FEW)
    assert told[-1][1] == told[-1][2]  # what was answered before is done
    assert all(done <= total for _, done, total in told)
    assert len(asked) == 5 + len(whole.answers) - 3
    before = len(asked)
    same = fm.describe(store, single[:2], counting, scores="detection", out=file, **FEW)
    assert len(asked) == before
    pd.testing.assert_frame_equal(same.table, whole.table)
    pd.testing.assert_frame_equal(same.answers, whole.answers)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.endswith("}")]
    assert {"key", "asked", "asker", "messages", "answer"} <= set(lines[-1])


def test_an_endpoint(store: Store, single: list[tuple[int, int]], tmp_path: Path, monkeypatch: Any) -> None:
    """Busy now and then, several questions at once, the same result; the key is nowhere; earlier answers are kept."""
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)
    monkeypatch.setenv("A_KEY", "sk-secret")
    file = tmp_path / "answers.jsonl"

    def reply(number: int, body: dict[str, Any]) -> Any:
        return (503, {}, b"") if number % 7 == 3 else said(describing(body["messages"]))

    def failing(number: int, body: dict[str, Any]) -> Any:
        return said(describing(body["messages"])) if number < 4 else (400, {}, b'{"error": "too long"}')

    with serving(failing) as server, refuses(EndpointError, ConnectionError, "400", "too long"):
        few = {"scores": "detection", "out": tmp_path / "few.jsonl", **FEW}
        fm.describe(store, single[:2], Endpoint(server.url, "m", together=1), **few)
    assert len((tmp_path / "few.jsonl").read_text("utf-8").splitlines()) == 5
    with serving(reply) as server:
        asked = Endpoint(server.url, "m", key_variable="A_KEY", together=3)
        found = fm.describe(store, single[:2], asked, scores=ALL, out=file, **FEW)
    expected = fm.describe(store, single[:2], describing, scores=ALL, **FEW)
    pd.testing.assert_frame_equal(found.table, expected.table)
    kept = found.save(tmp_path / "words.safetensors").read_bytes() + file.read_bytes()
    assert b"sk-secret" not in kept
    assert found.provenance["describe"]["judge"] == f"m at {server.url}"
    offline = fm.describe(store, single[:2], asked, scores=ALL, out=file, **FEW)  # the server is gone
    pd.testing.assert_frame_equal(offline.table, found.table)


def test_refusals_and_nonsense_are_counted(store: Store, single: list[tuple[int, int]]) -> None:
    """A judge that does not say is neither right nor wrong, and an explainer that does not is told so."""
    silent = fm.describe(store, single[:1], describing, judge=lambda messages: "I cannot say.", scores=ALL[:2], **FEW)
    row = silent.table.iloc[0]
    assert np.isnan(row["detection"])
    assert row["unanswered"] == len(silent.trials) > 0

    def yes(messages: list[dict[str, str]]) -> str:
        return f"[{', '.join('1' * len(re.findall(r'^[0-9]+[.] <', messages[1]['content'], re.M)))}]"

    none = fm.describe(store, single[:1], lambda messages: "", scores=ALL[:2], **FEW)
    assert none.table["description"].tolist() == [""]
    assert none.table["why"].tolist() == ["no usable answer"]
    assert none.trials.empty
    always = fm.describe(store, single[:1], describing, judge=yes, scores=ALL[:2], **FEW)
    assert always.table[["detection", "fuzzing"]].to_numpy().tolist() == [[0.5, 0.5]]


def test_dead_neurons_and_the_other_sign(store: Store, meanings: Planted) -> None:
    truth = meanings.truth
    dead = truth[truth["meanings"] == 0].iloc[0]
    found = fm.describe(store, [(dead["layer"], dead["neuron"])], scores=ALL)
    assert found.table["why"].tolist() == ["never fires"]
    assert np.isnan(found.table["detection"]).all()
    assert "never fires" in found.summary()
    negative = fm.describe(store, [(0, 0)], sign="negative")
    assert (negative.extracts["coefficient"] < 0).all()


def test_gated_neurons(gated: fm.Model, gated_store: Store) -> None:
    """Both signs mean something there: contexts of each are of coefficients of that sign."""
    for sign, factor in (("positive", 1), ("negative", -1)):
        found = fm.describe(gated_store, ["0.1", "1.2"], model=gated, sign=sign, scores=ALL, shown=4, tested=4)
        firing = found.extracts[found.extracts["part"] != "quiet"]
        assert (np.sign(firing["coefficient"]) == factor).all()
        assert set(firing["part"]) == {"shown", "tested"}
        assert ("side" in [column.name for column in found.listing().columns]) == (sign == "negative")


def test_a_card_has_the_words(store: Store, single: list[tuple[int, int]]) -> None:
    found = fm.describe(store, single[0])
    one = found.on(store.neuron(single[0]))
    with refuses(InputError, ValueError, "0.5", "was not described"):
        fm.describe(store, "0.0").of("0.5")
    assert found.of(*single[0]) in one._repr_html_().replace("&#34;", '"')
    assert one.to_dict()["description"] == found.of(*single[0])
    assert not store.neuron(single[0]).heading()["described as"]


def test_rules_ask_nobody(
    meanings_store: Store, store: Store, single: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gives no address must be sure that no text of theirs goes anywhere; without scores no model is needed."""

    def connected(*_of: Any) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket.socket, "connect", connected)
    scored = fm.describe(store, single[:2], scores=ALL)
    assert scored.answers.empty
    alone = open_store(meanings_store.folder)
    assert fm.describe(alone, single[:2]).table["description"].tolist() == scored.table["description"].tolist()
    assert alone._source.held is None


FOREIGN = '{"kind": "ffnmem answers", "schema": 9}'
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"explainer": "gpt"}, InputError, "explainer gpt Endpoint"),
    ({"explainer": describing, "judge": "rules", "scores": "detection"}, InputError, "rules"),
    ({"scores": "simulation"}, InputError, "score simulation detection"),
    ({"shown": 3}, InputError, "shown 3"),
    ({"neurons": []}, InputError, "3.17"),
    ({"explainer": lambda messages: 3}, InputError, "text 3"),
    ({"explainer": describing, "out": "my own text\n"}, InputError, "mine.txt answers"),
    ({"explainer": describing, "out": FOREIGN}, FileError, "mine.txt another version"),
    ({"explainer": Endpoint("http://127.0.0.1:9/v1", "m", key_variable="NO_SUCH_KEY")}, InputError, "NO_SUCH_KEY"),
]


@pytest.mark.parametrize(("wrong", "kind", "named"), REFUSED, ids=[row[2] for row in REFUSED])
def test_mistakes(store: Store, wrong: dict[str, Any], kind: type[Exception], named: str, tmp_path: Path) -> None:
    """A file that is no file of answers is left as it is."""
    file = tmp_path / "mine.txt"
    if "out" in wrong:
        file.write_text(wrong["out"])
        wrong = {**wrong, "out": file}
    with refuses(kind, fm.FfnmemError, *named.split()):
        fm.describe(store, **{"neurons": "0.0", **wrong})
    assert "out" not in wrong or file.read_text() in ("my own text\n", FOREIGN)
