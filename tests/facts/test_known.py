"""Which facts a model knows."""

from __future__ import annotations

import json

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.facts import Fact, filter_known, load_facts
from ffnmem.facts import known as module
from ffnmem.facts.answers import word_ids
from ffnmem.facts.known import COLUMNS

from ..helpers import WHOLE_WORDS, allclose, refuses


def plain_row(model: fm.Model, fact: Fact) -> tuple[float, int, str, bool]:
    """Probability, rank, answer and known of one fact, token by token with whole passes."""
    tokens, product, ranks, top = list(model.tokenize(fact.text)), 1.0, [], ""
    for target in word_ids(model, fact.text, fact.target_true):
        capture = fm.capture(model, torch.tensor([tokens]), logits=True)
        assert capture.logits is not None
        p = capture.logits[0, -1].double().softmax(-1)
        top = top or model.token_strings([int(p.argmax())])[0]
        product *= float(p[target])
        ranks.append(1 + int((p > p[target]).sum()))
        tokens.append(target)
    return product, ranks[0], top, set(ranks) == {1}


def test_the_table_is_that_of_plain_passes(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact would be edited that the model never knew, or left out although it does."""
    some = load_facts("atlas")[::200]
    found = filter_known(atlas, some)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["provenance"]["known_by"] == "target"
    assert tuple(found.answers.columns) == COLUMNS
    for fact, row in zip(some, found.answers.to_dict("records"), strict=True):
        probability, rank, text, known = plain_row(atlas, fact)
        assert (row["id"], row["subject"], row["target"]) == (fact.id, fact.subject, fact.target_true)
        assert allclose(row["probability"], probability, 1e-4)
        assert (row["rank"], row["answer"], row["known"]) == (rank, text, known)
        assert (row["reason"] == "") == known
    assert list(found.facts) == [fact for fact, known in zip(some, found.answers["known"], strict=True) if known]
    assert len(found) > len(some) / 2
    assert found.verdict == f"atlas knows {len(found)} of {len(some)} facts."
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "AT_ONCE", 7)
    parts = filter_known(atlas, iter(some), progress=lambda _, done, of: told.append((done, of)))
    assert parts.facts == found.facts
    assert allclose(parts.answers["probability"], found.answers["probability"], 1e-5)
    assert (told[0], told[-1]) == ((7, len(some)), (len(some), len(some)))


def test_known_by_the_first_token(tiny: fm.Model) -> None:
    """A target of several tokens is known as a whole, unless only its beginning is asked for."""
    likeliest, template = "", "The {} of"
    for subject in ("city", "Tower", "Eiffel", "Paris", "Rome"):
        logits = fm.capture(tiny, template.replace("{}", subject), logits=True).logits
        assert logits is not None
        likeliest = tiny.token_strings([int(logits[0, -1].argmax())])[0]
        if likeliest in WHOLE_WORDS and likeliest.startswith(" "):
            break
    whole = Fact(subject, "r", template, likeliest)
    longer = [Fact(subject, "r", template, likeliest + more) for more in (" Paris", " Rome")]
    assert filter_known(tiny, [whole]).answers["known"].tolist() == [True]
    assert filter_known(tiny, longer, known_by="first").answers["known"].tolist() == [True, True]
    by_target = filter_known(tiny, longer).answers
    assert not by_target["known"].all()
    assert "another token follows the target's first one" in by_target["reason"].tolist()
    assert by_target["rank"].tolist() == [1, 1]
    with refuses(InputError, ValueError, "known_by", "'guess'", "'target'"):
        filter_known(tiny, [whole], known_by="guess")


def test_facts_that_cannot_be_asked(tiny: fm.Model) -> None:
    """One long prompt among thousands would end everything."""
    long = Fact("Tower", "r", "{} " + "the " * 40 + "city", "Paris", id="long")
    filled = Fact("Tower", "r", "{}" + " the" * (tiny.n_ctx - 8), "Panthéon", id="filled")
    fact = Fact("Tower", "r", "The {} is in", "Paris", id="short")
    found = filter_known(tiny, [long, fact, filled])
    assert [bool(reason) for reason in found.answers["reason"]][::2] == [True, True]
    assert str(tiny.n_ctx) in found.answers["reason"][0]
    assert "target" in found.answers["reason"][2]
    assert found.answers["rank"].isna().tolist() == [True, False, True]
    assert found.answers["probability"].isna().tolist() == [True, False, True]
    rows = json.loads(json.dumps(found.to_dict(), allow_nan=False))["answers"]
    assert (rows[0]["answer"], rows[0]["probability"], rows[0]["rank"]) == (None, None, None)
    with refuses(InputError, ValueError, "'Paris' is no fact"):
        filter_known(tiny, iter([fact, "Paris"]))  # type: ignore[list-item]
    none = filter_known(tiny, [])
    assert (len(none), len(none.answers), tuple(none.answers.columns)) == (0, 0, COLUMNS)
