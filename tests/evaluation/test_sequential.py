"""Edits one after another."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, unwarned
from ffnmem.editing import Edit, SecondMoment, alphaedit, memit, preparing
from ffnmem.evaluation import Decay, evaluate, sequential
from ffnmem.evaluation.metrics import NO_TEXT
from ffnmem.evaluation.series import checkpoints
from ffnmem.facts import Fact

from ..editing.edits import change, made, same_bits, weights
from ..helpers import allclose, refuses, rewritten
from .made import EIFFEL, FACTS, LONDON, NO_TARGET, TEXTS, TOWER, drift_by_hand, interrupt_at, plain_metrics, tell
from .test_evaluating import QUICK, TOLD


def plain_editor(model: fm.Model, facts: list[Fact]) -> list[Edit]:
    """A random edit for the model as it is."""
    return [made(model, (0, 1), rank=1, seed=len(fact.subject), fact=fact) for fact in facts]


def test_equals_edits_in_the_weights(tiny64: fm.Model) -> None:
    """An edit made for the wrong model, one that was lost, a fact measured before its turn."""

    def telling(model: fm.Model, facts: list[Fact]) -> list[Edit]:
        return [tell(model, fact) if fact is TOLD else plain_editor(model, [fact])[0] for fact in facts]

    before, facts, unrelated = weights(tiny64), (EIFFEL, TOLD), TEXTS[1:]
    decay = sequential(tiny64, facts, telling, at=(1, 2), drift=(*unrelated, "The Eiffel Tower is in"), draws=20)
    assert same_bits(tiny64, before)
    assert not tiny64.edits
    assert list(decay.cases["edits"]) == [1, 2, 2]
    (first,) = telling(tiny64, [EIFFEL])
    with first.applied(tiny64):
        both = first + telling(tiny64, [TOLD])[0]
    seen = Counter[str]()
    for edits, total in ((1, first), (2, both)):
        rows = decay.cases[decay.cases["edits"] == edits]
        for (_, row), fact in zip(rows.iterrows(), facts[:edits], strict=True):
            for name, value in plain_metrics(tiny64, fact, str(fact.target_new), total).items():
                seen[name] += value > 0
                assert math.isnan(row[name]) if math.isnan(value) else allclose(row[name], value, 1e-8), name
        found = decay.frame[(decay.frame["edits"] == edits)].set_index("metric")
        kl, ratio = drift_by_hand(tiny64, unrelated, total)
        assert allclose(found.loc[["drift_kl", "drift_perplexity"], "mean"], [kl, ratio], 1e-8)
        assert found.loc["drift_kl", "n"] == len(unrelated)
        assert found.loc["ES", "n"] == edits
    assert all(count for name, count in seen.items() if not name.endswith("_before"))  # or nothing would be compared


def test_one_edit_is_an_evaluation(tiny64: fm.Model, moment: SecondMoment) -> None:
    """The first of a sequence is edited as any fact by itself."""
    options = {**QUICK, "moment": moment, "protocol": "generated", "others": [TOWER]}
    decay = sequential(tiny64, [EIFFEL], **options)  # the same questions, by the weights themselves
    expected = evaluate(tiny64, [EIFFEL], **options)
    assert decay.transcripts.drop(columns="edits").equals(expected.transcripts)
    found = decay.cases.drop(columns="edits")
    pd.testing.assert_frame_equal(found, expected.cases, rtol=1e-7)


def test_restored_whatever_happens(tiny64: fm.Model) -> None:
    """An interrupt must not leave a model with half of the edits; those that it had before stay."""
    own = made(tiny64, (2,), seed=9)
    with own.applied(tiny64):
        inside = weights(tiny64)
        with pytest.raises(KeyboardInterrupt):
            sequential(tiny64, FACTS, plain_editor, progress=interrupt_at(2), draws=20, metrics=["ES"])
        assert same_bits(tiny64, inside)
        assert list(tiny64.edits) == [own]


def test_keys_are_protected(tiny64: fm.Model, moment: SecondMoment, tmp_path: Path) -> None:
    """The second edit holds the first one's key where it is: it is not the one that knows of no other."""
    run, own = tmp_path / "run", {"threshold": 0.5, "penalty": 1e-6}
    sequential(tiny64, [EIFFEL, TOWER], "alphaedit", at=(2,), moment=moment, out=run, **own, **QUICK)
    first, second = (Edit.load(path) for path in sorted((run / "edits").glob("*.zip")))
    shared = {name: value for name, value in QUICK.items() if name not in ("draws", "drift", "metrics")}
    with first.applied(tiny64), unwarned():  # of a random model's large edits
        held = alphaedit(tiny64, TOWER, previous=[EIFFEL], moment=moment, **own, **shared)
        free = alphaedit(tiny64, TOWER, moment=moment, **own, **shared)
    found, expected, other = (edit.changes[0].delta() for edit in (second, held, free))
    assert allclose(found, expected, 1e-8)
    assert float((found - other).norm()) > 1e-3 * float(other.norm())


@pytest.mark.parametrize(
    ("at", "facts", "together", "points"),
    [
        (None, 6, 1, [1, 6]),
        (None, 250, 1, [1, 10, 100, 250]),
        ((5, 2, 5), 6, 1, [2, 5]),
        ((1, 4, 5, 10), 10, 4, [4, 8, 10]),
        (None, 12, 5, [5, 10, 12]),
    ],
)
def test_checkpoints(at: Any, facts: int, together: int, points: list[int]) -> None:
    """The end is always measured, and nothing within an edit."""
    assert checkpoints(at, facts, together) == points


def test_refuses(tiny64: fm.Model) -> None:
    for options, named in (
        ({"at": (7,)}, ("at 7", "3 facts")),
        ({"at": ()}, ("at is empty",)),
        ({"at": (0,)}, ("at[0] must be at least 1",)),
        ({"collapse": 0.0}, ("collapse",)),
        ({"together": 0}, ("together",)),
        ({"together": 2}, ("memit",)),
        ({"others": FACTS}, ("others",)),
    ):
        with refuses(InputError, ValueError, *named):
            sequential(tiny64, FACTS, plain_editor, **options)  # type: ignore[arg-type]


def breaking_editor(model: fm.Model, facts: list[Fact]) -> list[Edit]:
    """Small changes, but for the third, which is noise far larger than the weights."""
    seed, size = (1, -30.0) if len(model.edits) == 2 else (len(model.edits), 1e-4)
    return [Edit.of(model, [change(model, 0, seed=seed, size=size)], method="breaking")] * len(facts)


def loss_by_hand(model: fm.Model, texts: Sequence[str]) -> float:
    """The cross entropy of all tokens that text stands before, of a whole forward pass."""
    sums, count = 0.0, 0
    for text in texts:
        tokens = torch.tensor(model.tokenize(text))
        first = int(model.prepend_bos)  # what it alone predicts does not count
        with torch.no_grad():
            logits = model.hf_model(input_ids=tokens[None]).logits[0, first:-1]
        sums += float(cross_entropy(logits, tokens[first + 1 :], reduction="sum"))
        count += len(tokens) - first - 1
    return sums / count


def test_loss_and_norm_after_every_edit(tiny64: fm.Model) -> None:
    """Of each edit, between checkpoints too, against plain passes and plain norms; a collapse at its very edit."""
    before, texts = weights(tiny64), ["Paris is in the city", "The city of Rome is in the"]
    facts = [*FACTS[:2], NO_TARGET, LONDON, EIFFEL]
    options: dict[str, Any] = {"drift": [*texts, "London is in"], "metrics": ["ES"], "draws": 20}
    decay = sequential(tiny64, facts, breaking_editor, at=(5,), collapse=0.2, **options)
    assert same_bits(tiny64, before)
    assert decay.steps["edits"].tolist() == [0, 1, 2, 3, 4, 5]
    assert decay.steps["made"].tolist() == [False, True, True, False, True, True]
    assert decay.collapsed == 4  # the third edit, of the fourth fact
    pristine = tiny64.ffn[0].values.detach().clone()
    for number, made_now in enumerate(decay.steps["made"]):
        if made_now:
            breaking_editor(tiny64, [EIFFEL])[0].apply(tiny64)
        ratio = tiny64.ffn[0].values.detach().norm() / pristine.norm()
        assert allclose(decay.steps["norm"][number], float(ratio), 1e-12)
        assert allclose(decay.steps["loss"][number], loss_by_hand(tiny64, texts), 1e-9)
    for edit in list(tiny64.edits):
        edit.revert(tiny64)
    last = decay.frame.set_index("metric")["mean"]
    assert last[["drift_loss", "norm"]].tolist() == decay.steps[["loss", "norm"]].iloc[-1].tolist()
    assert decay.verdict.startswith("The model collapses at edit 4: its loss on ordinary text goes from")
    assert json.loads(json.dumps(decay.to_dict(), allow_nan=False))["collapsed"] == 4
    assert replace(decay, collapse=1e9).collapsed is None
    assert replace(decay, collapse=1e9).verdict.startswith("The model does not collapse within 5 edits")


def test_no_text_no_collapse(tiny64: fm.Model) -> None:
    """Texts that mention a subject are no ordinary ones, and nobody knows of a collapse without any."""
    for drift, missing in ((None, {}), (["The Tower of London"], {"drift_loss": NO_TEXT})):
        decay = sequential(tiny64, FACTS, breaking_editor, drift=drift, metrics=["ES"], draws=20)
        assert decay.steps["loss"].isna().all()
        assert (decay.collapsed, decay.missing) == (None, missing)
        assert "is not known: there is no ordinary text" in decay.verdict


def test_several_facts_in_one_edit(
    tiny64: fm.Model, moment: SecondMoment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """memit of two facts, without the one that cannot be asked; each has its own row. One fails with all others."""
    options = {**QUICK, "moment": moment, "together": 3}
    facts = [EIFFEL, NO_TARGET, TOWER, LONDON]
    decay = sequential(tiny64, facts, "memit", at=(1, 4), out=tmp_path / "out", **options)
    more = {name: value for name, value in QUICK.items() if name not in ("draws", "metrics")}
    with unwarned():
        both = memit(tiny64, [EIFFEL, TOWER], moment=moment, **more)
    kept = Edit.load(tmp_path / "out" / "edits" / "00001.zip")
    assert kept.digest == both.digest
    assert kept.facts == (EIFFEL, TOWER)
    with both.applied(tiny64):
        plain = evaluate(tiny64, [EIFFEL, TOWER], "none", **{n: QUICK[n] for n in ("draws", "metrics")}).cases
    first = decay.cases[decay.cases["edits"] == 3].set_index("id")
    assert list(first.index) == ["eiffel", "none", "tower"]
    assert allclose(first.loc[["eiffel", "tower"], "ES"], plain["ES"], 1e-12)
    assert allclose(first.loc[["eiffel", "tower"], "loss"], both.numbers["loss"], 1e-12)
    for name, place in (("eiffel", 0), ("tower", 1)):
        assert bool(first.loc[name, "failure"]) == (place in both.unreached)
    assert "no new target" in first.loc["none", "failure"]
    assert decay.cases["change"].notna().tolist() == [True, False, True, True, False, True, True]
    alike = [EIFFEL, replace(EIFFEL, id="again")]
    monkeypatch.setattr(preparing, "CHANGE_LIMIT", 0.0)
    failed = sequential(tiny64, alike, "memit", **{**options, "together": 2, "force": False})
    assert failed.failures["id"].tolist() == ["eiffel", "again"]
    assert failed.failures["failure"].str.contains("times its own norm").all()
    assert not failed.steps["made"].any()


@pytest.mark.parametrize("editor", ["alphaedit", plain_editor])
def test_goes_on_to_the_bit(
    tiny64: fm.Model, moment: SecondMoment, editor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits lost, made twice or on other weights; keys that alphaedit no longer protects; another run's results."""
    options: dict[str, Any] = {"drift": ["Paris is in the"], "at": (1, 2, 4), **QUICK, "draws": 5}
    if editor == "alphaedit":
        options |= {"moment": moment, "threshold": 0.5, "penalty": 1e-6}
    else:
        own = ("drift", "at", "draws")
        options = {name: options[name] for name in own} | {"protocol": "generated", "metrics": ["ES"]}
    short = replace(EIFFEL, paraphrases=(), neighbours=(), neighbour_prompts=(), probes=())  # less to write about
    for name in ("NEW", "BEYOND"):  # tokens of an answer
        monkeypatch.setattr(f"ffnmem.evaluation.written.{name}", 1)
    before, facts, out = weights(tiny64), [short, NO_TARGET, TOWER, LONDON], tmp_path / "out"
    whole = sequential(tiny64, facts, editor, **options)

    def same(found: Decay) -> None:
        assert same_bits(tiny64, before)
        for name in ("frame", "cases", "steps"):
            pd.testing.assert_frame_equal(getattr(found, name), getattr(whole, name), check_exact=True)
        assert found.to_dict() == whole.to_dict()

    for at in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            sequential(tiny64, facts, editor, out=out, progress=interrupt_at(at), **options)
        assert same_bits(tiny64, before)
    first = (out / "edits" / "00001.zip").stat().st_mtime_ns
    same(sequential(tiny64, facts, editor, out=out, **options))
    assert (out / "edits" / "00001.zip").stat().st_mtime_ns == first
    (out / "checkpoints" / "00002.zip").unlink()  # with edits that are kept on both sides of it
    same(sequential(tiny64, facts, editor, out=out, **options))
    for changed in ({"at": (4,)}, {"seed": 5}, {"drift": TEXTS}):
        with refuses(FileError, OSError, next(iter(changed)), "another folder"):
            sequential(tiny64, facts, editor, out=out, **{**options, **changed})
    with pytest.raises(FileError, match=r"drift\.\w+ \S+, not"):  # what differs, and no more
        sequential(tiny64, facts, editor, out=out, **{**options, "drift": TEXTS})
    monkeypatch.setattr("ffnmem.evaluation.series.ask_cases", None)  # nothing is left to be asked
    same(sequential(tiny64, facts, editor, out=out, **options))
    same(Decay.load(out / "decay.zip"))
    (out / "edits" / "00003.zip").write_bytes((out / "edits" / "00001.zip").read_bytes())
    with refuses(FileError, OSError, "00003.zip", "remove"):
        sequential(tiny64, facts, editor, out=out, **options)


def test_edits_of_other_weights_are_refused(tiny64: fm.Model, tmp_path: Path) -> None:
    """Kept edits that add up to other weights than those that the next one was made on."""
    with pytest.raises(KeyboardInterrupt):
        sequential(tiny64, FACTS, breaking_editor, at=(3,), out=tmp_path, progress=interrupt_at(2), metrics=["ES"])
    # As if the first had not been made:
    rewritten(tmp_path / "steps" / "00001.zip", lambda content: content["result"]["$Step"].update(digest=""))
    with refuses(FileError, OSError, "other weights"):
        sequential(tiny64, FACTS, breaking_editor, at=(3,), out=tmp_path, metrics=["ES"])
