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
from scipy.stats import binomtest

import ffnmem as fm
from ffnmem.core.errors import EndpointError, FileError, InputError, OutOfRangeError
from ffnmem.describing import Descriptions, Endpoint, endpoint
from ffnmem.describing.extracts import BANDS, FIRES, QUIET, ContextSettings, NeuronContexts, draw
from ffnmem.describing.rules import Vocabulary, learn_rule
from ffnmem.describing.scoring import balanced_accuracy, compute_score, judge_by_rule, make_trial_groups
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store

from ..helpers import refuses
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


@pytest.fixture(scope="module")
def contexts(store: Store, single: list[tuple[int, int]], meanings: Planted) -> list[NeuronContexts]:
    return draw(store, single, meanings.model, ContextSettings("positive", 20, 20, 16, 0))


def test_planted_concepts_are_found_and_fit(store: Store, single: list[tuple[int, int]], meanings: Planted) -> None:
    """A concept is a stem with endings: the rules name it, and contexts that were held back tell it from others."""
    found = fm.describe(store, single, scores=ALL)
    features = meanings.truth.set_index(["layer", "neuron"])["features"]
    for row in found.table.itertuples():
        assert f'"{features[row.layer, row.neuron]}' in row.description
    assert (found.table["detection"] > 0.9).all()
    assert (found.table["fuzzing"] > 0.9).all()
    assert found.table[list(ALL)].mean().min() > 0.95
    assert (found.table["detection_low"] < found.table["detection"]).all()
    assert (found.table["unanswered"] == 0).all()


def test_rules_of_other_neurons_are_chance(contexts: list[NeuronContexts], store: Store, meanings: Planted) -> None:
    """Each neuron's contexts judged by the rule of another concept's."""
    features = meanings.truth.set_index(["layer", "neuron"])["features"]
    vocabulary = Vocabulary.of(store)
    scores: dict[str, list[float]] = {"detection": [], "fuzzing": []}
    for one, other in zip(contexts, contexts[1:] + contexts[:1], strict=True):
        if features[one.layer, one.neuron] == features[other.layer, other.neuron]:
            continue
        for score, found in scores.items():
            groups = make_trial_groups(one, score, 0)
            judge_by_rule(groups, learn_rule(other, vocabulary))
            found.append(compute_score([trial for group in groups for trial in group], score)[0])
    assert np.mean(scores["detection"]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(scores["fuzzing"]) == pytest.approx(0.5, abs=0.05)


def test_neurons_of_many_meanings_are_near_chance(store: Store, meanings: Planted) -> None:
    truth = meanings.truth
    many = [(int(row.layer), int(row.neuron)) for row in truth[truth["meanings"] == 8].itertuples()]
    table = fm.describe(store, many, scores=ALL[:2]).table
    assert table["detection"].mean() == pytest.approx(0.5, abs=0.07)
    assert table["fuzzing"].mean() == pytest.approx(0.5, abs=0.07)


def test_what_describes_never_scores(store: Store, single: list[tuple[int, int]]) -> None:
    """No document, and no text, is in two parts; and what is called firing or quiet is so."""
    found = fm.describe(store, single, scores="detection")
    for _, some in found.extracts.groupby(["layer", "neuron"]):
        parts = dict(list(some.groupby("part")))
        assert set(parts) == {"shown", "tested", "quiet"}
        for column in ("document", "sequence", "context"):
            values = [value for part in parts.values() for value in part[column].unique()]
            assert len(values) == len(set(values)), column
        assert set(parts["shown"]["band"]) == set(parts["tested"]["band"]) == set(range(BANDS))
    judged = set(zip(found.trials["sequence"], found.trials["layer"], found.trials["neuron"], strict=True))
    shown = found.extracts[found.extracts["part"] == "shown"]
    assert not judged & set(zip(shown["sequence"], shown["layer"], shown["neuron"], strict=True))


def test_strengths_are_the_models(contexts: list[NeuronContexts], store: Store) -> None:
    for one in contexts[:4]:
        assert one.largest == pytest.approx(float(store.stats(one.layer, one.neuron)["max"].iloc[0]))
        for extract in (*one.shown, *one.tested):
            assert extract.strengths is not None
            assert extract.strengths[extract.at] == pytest.approx(extract.coefficient / one.largest, abs=1e-3)
            assert extract.strengths[extract.at] >= FIRES - 1e-3
        assert all(max(extract.strengths or (1,)) < QUIET for extract in one.quiet)


def test_fuzzing_marks_each_context_twice(contexts: list[NeuronContexts]) -> None:
    """Rightly and wrongly, as many tokens, in different questions; the wrong ones are quiet."""
    groups = make_trial_groups(contexts[0], "fuzzing", 0)
    trials = [trial for group in groups for trial in group]
    assert len(trials) == 2 * len({trial.extract.sequence for trial in trials})
    for group in groups:
        assert len({trial.extract.sequence for trial in group}) == len(group)
    for trial in trials:
        assert len(trial.marked) == len(trial.extract.marked) or len(trial.extract.silent) < len(trial.extract.marked)
        assert (trial.marked == trial.extract.marked) == bool(trial.truth)


def test_balanced_accuracy_and_its_interval() -> None:
    """Not plain accuracy: of nine firing contexts and one quiet, always yes is right half the time."""
    assert balanced_accuracy([1.0] * 9, [0.0])[0] == 0.5
    for firing, quiet in ((20, 20), (13, 17), (0, 6)):
        found = balanced_accuracy([1.0] * firing + [0.0] * (20 - firing), [1.0] * quiet + [0.0] * (20 - quiet))
        ends = [binomtest(k, 20).proportion_ci(method="wilson") for k in (firing, quiet)]
        middle = (firing + quiet) / 40
        low = np.hypot(firing / 20 - ends[0].low, quiet / 20 - ends[1].low) / 2
        high = np.hypot(firing / 20 - ends[0].high, quiet / 20 - ends[1].high) / 2
        assert found == pytest.approx((middle, middle - low, middle + high), rel=1e-12)
    assert np.isnan(balanced_accuracy([1.0], [])).all()


# Functions and endpoints.


def describing(messages: list[dict[str, str]]) -> str:
    """A model that knows: it says what the marked words share, and judges by what is quoted as the description."""
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
    stem = re.findall(r"Description: <text-\w+>(\w+)<", user)[0]
    wanted = rf"⟦ ?{stem}" if "⟦" in system else stem
    return f"[{', '.join(str(int(bool(re.search(wanted, text)))) for text in texts)}]"


def test_a_function_explains_and_judges(store: Store, single: list[tuple[int, int]], tmp_path: Path) -> None:
    found = fm.describe(store, single[:3], describing, scores=ALL, **FEW)
    assert found.table[list(ALL)].min().min() > 0.85
    assert set(found.answers["asked"]) == {"description", *ALL}
    assert found.provenance["describe"]["explainer"] == "function describing"
    asked = json.loads(found.answers["messages"].iloc[0])
    assert [one["role"] for one in asked] == ["system", "user"]
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
    whole = fm.describe(store, single[:2], counting, scores="detection", out=file, **FEW)
    assert len(asked) == 5 + len(whole.answers) - 3
    before = len(asked)
    same = fm.describe(store, single[:2], counting, scores="detection", out=file, **FEW)
    assert len(asked) == before
    pd.testing.assert_frame_equal(same.table, whole.table)
    pd.testing.assert_frame_equal(same.answers, whole.answers)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.endswith("}")]
    assert {"key", "asked", "asker", "messages", "answer"} <= set(lines[-1])


def test_an_endpoint(store: Store, single: list[tuple[int, int]], tmp_path: Path, monkeypatch: Any) -> None:
    """Busy now and then, several questions at once, the same result; the key is nowhere."""
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)
    monkeypatch.setenv("A_KEY", "sk-secret")
    file = tmp_path / "answers.jsonl"

    def reply(number: int, body: dict[str, Any]) -> Any:
        return (503, {}, b"") if number % 7 == 3 else said(describing(body["messages"]))

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


def test_an_endpoint_that_fails_keeps_what_was_answered(
    store: Store, single: list[tuple[int, int]], tmp_path: Path
) -> None:
    file = tmp_path / "answers.jsonl"

    def reply(number: int, body: dict[str, Any]) -> Any:
        return said(describing(body["messages"])) if number < 4 else (400, {}, b'{"error": "too long"}')

    with serving(reply) as server, refuses(EndpointError, ConnectionError, "400", "too long"):
        fm.describe(store, single[:2], Endpoint(server.url, "m", together=1), scores="detection", out=file, **FEW)
    assert len(file.read_text("utf-8").splitlines()) == 5


def test_refusals_and_nonsense_are_counted(store: Store, single: list[tuple[int, int]]) -> None:
    """A judge that does not say is neither right nor wrong, and an explainer that does not is told so."""
    silent = fm.describe(store, single[:1], describing, judge=lambda messages: "I cannot say.", scores=ALL[:2], **FEW)
    row = silent.table.iloc[0]
    assert np.isnan(row["detection"])
    assert row["unanswered"] == len(silent.trials) > 0
    none = fm.describe(store, single[:1], lambda messages: "", scores=ALL[:2], **FEW)
    assert none.table["description"].tolist() == [""]
    assert none.table["why"].tolist() == ["no usable answer"]
    assert none.trials.empty
    always = fm.describe(
        store, single[:1], describing, judge=lambda m: f"[{', '.join('1' * len(texts_in(m)))}]", scores=ALL[:2], **FEW
    )
    assert always.table[["detection", "fuzzing"]].to_numpy().tolist() == [[0.5, 0.5]]


def texts_in(messages: list[dict[str, str]]) -> list[str]:
    return re.findall(r"^\d+\. <", messages[1]["content"], re.M)


def test_a_model_judges_what_rules_say(store: Store, single: list[tuple[int, int]]) -> None:
    def judge(messages: list[dict[str, str]]) -> str:
        stem = re.findall(r'begin with "(\w{4})', messages[1]["content"])[0]
        user = messages[1]["content"].partition("\n")[2]
        texts = re.findall(r"^\d+\. <text-\w+>(.*)</text-", user, re.M)
        wanted = rf"⟦ ?{stem}" if "⟦" in messages[0]["content"] else stem
        return f"[{', '.join(str(int(bool(re.search(wanted, text)))) for text in texts)}]"

    found = fm.describe(store, single[:2], judge=judge, scores=ALL[:2], **FEW)
    assert (found.table["detection"] > 0.85).all()
    assert (found.provenance["describe"]["explainer"], found.provenance["describe"]["judge"]) == (
        "rules",
        f"function {judge.__qualname__}",
    )


def test_dead_neurons_and_the_other_sign(store: Store, meanings: Planted) -> None:
    truth = meanings.truth
    dead = truth[truth["meanings"] == 0].iloc[0]
    found = fm.describe(store, [(dead["layer"], dead["neuron"])], scores=ALL)
    assert found.table["why"].tolist() == ["never fires"]
    assert np.isnan(found.table["detection"]).all()
    assert "never fires" in found.summary()
    negative = fm.describe(store, [(0, 0)], sign="negative")
    assert (negative.extracts["coefficient"] < 0).all()


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_gated_neurons(gated: fm.Model, gated_store: Store, sign: str) -> None:
    """Both signs mean something there: contexts of each are of coefficients of that sign."""
    found = fm.describe(gated_store, ["0.1", "1.2"], model=gated, sign=sign, scores=ALL, shown=4, tested=4)
    firing = found.extracts[found.extracts["part"] != "quiet"]
    assert (np.sign(firing["coefficient"]) == (1 if sign == "positive" else -1)).all()
    assert set(firing["part"]) == {"shown", "tested"}


def test_rules_need_no_model(meanings_store: Store, single: list[tuple[int, int]], store: Store) -> None:
    """The store alone knows where a neuron fires most, and the same contexts are shown either way."""
    alone = open_store(meanings_store.folder)
    found = fm.describe(alone, single[:3])
    assert alone._source.held is None
    assert (
        found.table["description"].tolist() == fm.describe(store, single[:3], scores=ALL).table["description"].tolist()
    )


def test_a_card_has_the_words(store: Store, single: list[tuple[int, int]]) -> None:
    found = fm.describe(store, single[0])
    one = found.on(store.neuron(single[0]))
    assert found.of(*single[0]) in one._repr_html_().replace("&#34;", '"')
    assert one.to_dict()["description"] == found.of(*single[0])
    assert not store.neuron(single[0]).heading()["described as"]


def test_rules_ask_nobody(store: Store, single: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives no address must be sure that no text of theirs goes anywhere."""

    def connected(*_of: Any) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket.socket, "connect", connected)
    assert fm.describe(store, single[:2], scores=ALL).answers.empty
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    asked = Endpoint("http://127.0.0.1:9/v1", "m", key_variable="NO_SUCH_KEY")
    with refuses(InputError, ValueError, "NO_SUCH_KEY"):
        fm.describe(store, single[:2], asked)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"explainer": "gpt"}, ("explainer", "gpt", "Endpoint")),
        ({"judge": "gpt"}, ("judge", "gpt")),
        ({"explainer": describing, "judge": "rules", "scores": "detection"}, ("rules",)),
        ({"scores": "simulation"}, ("score", "simulation", "detection")),
        ({"shown": 3}, ("shown", "3")),
        ({"sign": "both"}, ("sign", "both")),
        ({"neurons": []}, ("3.17",)),
    ],
)
def test_mistakes(store: Store, wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        fm.describe(store, **{"neurons": "0.0", **wrong})


def test_what_is_not_there(store: Store, tmp_path: Path) -> None:
    with refuses(OutOfRangeError, IndexError, "48"):
        fm.describe(store, "0.48")
    other = tmp_path / "mine.txt"
    other.write_text("my own text\n")
    with refuses(InputError, ValueError, "mine.txt", "holds no answers"):
        fm.describe(store, "0.0", describing, out=other)
    assert other.read_text() == "my own text\n"
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"kind": "ffnmem answers", "schema": 9}\n')
    with refuses(FileError, OSError, "newer"):
        fm.describe(store, "0.0", describing, out=newer)
    with refuses(InputError, ValueError, "must answer with a text", "3"):
        fm.describe(store, "0.0", lambda messages: 3)  # type: ignore[arg-type, return-value]
    with refuses(InputError, ValueError, "0.5", "was not described"):
        fm.describe(store, "0.0").of("0.5")
