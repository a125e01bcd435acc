"""An edit is asked at its own prompt with the change of the weights itself; one that is not reached says so."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.editing import Edit, EditedLayer, second_moment, settings
from ffnmem.editing.preparing import plan_edits
from ffnmem.editing.rank_one import list_tries
from ffnmem.editing.verifying import gain_of, verify
from ffnmem.editing.wording import missed_words

from ..helpers import Pair, build_gpt2, warned
from ..scanning.texts import tiny_texts
from .edits import made
from .plans import CONTEXTS, FACTS, REACHED, moment_of, plan_of


def test_it_is_what_the_edited_model_says(pair64: Pair) -> None:
    """δ at one position promised .94 where the edited model said .02; a pad, or another row's edit, too."""
    if pair64.name not in ("gpt2", "gpt-neox parallel"):
        pytest.skip("one architecture of each kind is enough")
    model = pair64.model
    facts = (*FACTS, replace(REACHED[0], target_new="Paris city", id="end"))
    plan = plan_of(model, facts)
    longest = max(len(request.ids) for request in plan.requests)
    loose = 1e-4 if pair64.rounds_attention else 1e-9
    for layers in ((0, 1), (1,)):
        edit = made(model, layers=layers)
        edit = replace(edit, facts=facts, targets=("Rome",) * len(facts), numbers=edit.numbers[:0])
        found = verify(plan.layers, plan.requests, edit)
        for request, one in zip(plan.requests, found, strict=True):
            tokens = torch.tensor([[*request.prompt, *request.ids[:-1]]])
            with edit.hooks(model), torch.no_grad():
                logits = model.hf_model(input_ids=tokens).logits[0, len(request.prompt) - 1 :]
                capture = fm.capture(model, tokens)
            ids = torch.tensor(request.ids).unsqueeze(1)
            expected = logits.log_softmax(-1).gather(1, ids).mean().exp()
            assert one.after == pytest.approx(float(expected), rel=loose)
            assert one.reached == bool((logits.argmax(-1) == ids.squeeze(1)).all())
            assert one.says == model.token_strings([int(logits[0].argmax())])[0]
            gains = [math.nan]
            for change in edit.changes:
                more = (capture.coefficients[change.layer][0].double() @ change.left.T) @ change.right
                # Of the last layer, only what is read runs.
                read = max(tokens.shape[1] - longest, 0) if change.layer == model.n_layers - 1 else 0
                gains.append(gain_of(more[read:], request.rows[0].lookup - read))
            gain = max((gain for gain in gains if not math.isnan(gain)), key=abs, default=math.nan)
            assert one.gain == pytest.approx(gain, rel=10 * loose, nan_ok=True)
        assert not math.isnan(found[-1].gain), "what an answer is read behind runs in every layer"


def test_gain_of_a_rank_one_change_is_that_of_its_keys() -> None:
    keys, u, r = torch.randn(4, 6).double(), torch.randn(6).double(), torch.randn(3).double()
    gains = keys @ u / (keys[2] @ u)
    other = max((float(g) for i, g in enumerate(gains) if i != 2), key=abs)
    assert gain_of((keys @ u).unsqueeze(1) * r, 2) == pytest.approx(other)
    assert math.isnan(gain_of(torch.zeros(4, 3).double(), 2))


def test_an_edit_that_is_not_reached_says_so(tiny: fm.Model, tmp_path: Path) -> None:
    """A file would be written, and a number far down in a table be all that tells; of several the first is named."""
    options: dict[str, Any] = {"moment": moment_of(tiny), "contexts": CONTEXTS, "settings": {"clamp": 1e-3}}
    edit = fm.rome(tiny, FACTS[0], **options)
    assert isinstance(edit, Edit)
    words = edit.unreached_words
    assert "is not reached: with it ' Rome' has a probability of 0." in words
    assert edit.numbers["says"][0] in words
    for other in (edit, Edit.load(edit.save(tmp_path / "e.zip")), edit + made(tiny)):  # whose editor did not look
        assert other.unreached == (0,)
    several = fm.editing.memit(tiny, FACTS, **{**options, "layer": 0})
    count = len(several.unreached)
    assert several.unreached == tuple(i for i, reached in enumerate(several.numbers["reached"]) if not reached)
    assert several.unreached_words.endswith(f"; {count - 1} more of 3 facts are not")
    nothing = Edit.of(tiny, [EditedLayer(0, torch.zeros(1, tiny.d_mlp), torch.ones(1, tiny.d_model))], method="mine")
    assert nothing.unreached_words == ""
    assert all(math.isnan(one.gain) for one in verify(plan_of(tiny).layers, plan_of(tiny).requests, nothing))


@warned("changes layer")
def test_what_is_not_reached_is_tried_again(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer, then in other layers unless one was given; the best is returned, and says what each came to. A layer
    that the second moment does not have costs no edit."""
    model = fm.load(build_gpt2(n_layer=6), tokenizer=tokenizer)
    options: dict[str, Any] = {"contexts": ["{}"], "ridge": 1e-3, "force": True}
    options["moment"] = second_moment(model, tiny_texts(), layers=[0, 1])
    assert "tried" not in fm.rome(model, REACHED[1], **options).numbers  # type: ignore[union-attr]
    plan = plan_edits(model, [REACHED[1]], layer=0, **{name: options[name] for name in ("contexts", "moment")})
    ((longer, _),) = list_tries(plan)
    first = plan.settings
    assert (longer.steps, longer.stop, longer.layer) == (2 * first.steps, first.stop / 2, first.layer)
    assert longer.clamp > first.clamp
    monkeypatch.setitem(settings.DERIVED["projections"], "steps", 3)  # type: ignore[index]
    monkeypatch.setattr(settings, "DERIVED_CLAMP", 0.5)
    for more, others in (({}, ["layer 1", "layer 2 refused"]), ({"layer": 0}, [])):
        edit = fm.rome(model, REACHED[1], **options, **more)
        assert isinstance(edit, Edit)
        (tried,) = edit.numbers["tried"]
        parts = [re.fullmatch(r"(.*?)(?: ([\d.e-]+))?", part).groups() for part in tried.split("; ")]  # type: ignore[union-attr]
        assert [words for words, _ in parts] == ["layer 0", "layer 0, longer", *others]
        best = max(float(told) for _, told in parts if told)
        assert edit.numbers["after"][0] == pytest.approx(best, rel=0.06)  # two digits are told
        assert edit.unreached == (0,)
        assert f"tried, with its probability: {tried}" in edit.unreached_words
        assert edit.layers[0] == edit.settings["layer"]


def test_contexts_that_no_search_had(atlas: fm.Model) -> None:
    """The share behind which the target is said, by hooks; contexts that change what the unedited model says do not
    count, and none are asked where contexts were given."""

    def said(text: str) -> str:
        return str(fm.capture(atlas, text).predictions(-1, 1)["token"].iloc[0])

    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new and fact.neighbours][1:6:4]
    plan, counted = plan_edits(atlas, facts, seed=2026), []
    assert len(set(plan.unseen) - set(plan.contexts)) == 4
    for i, fact in enumerate(facts):
        edit = fm.rome(atlas, fact, contexts=["{}"])
        assert isinstance(edit, Edit)
        assert "unseen" not in edit.numbers
        behind = [context.replace("{}", fact.text) for context in plan.unseen]
        behind = [text for text in behind if said(text) == said(fact.text)]
        with edit.hooks(atlas):
            right = [f" {fact.target_new}".startswith(said(text)) for text in behind]
        (one,) = verify(plan.layers, plan.of([i]), edit, plan.unseen)
        assert one.unseen == one.numbers()["unseen"] == sum(right) / len(right)
        counted.append((sum(right), len(right)))
    assert len({right / asked for right, asked in counted}) == 2  # or nothing would have been told apart


def test_a_target_that_is_begun_and_left() -> None:
    """The probability of several tokens is that of one of them in the middle, and the likeliest token is its own."""
    fact = FACTS[0]
    assert "10.5% a token, which it begins with ' x' and then leaves" in missed_words(fact, "xqzzyt", 0.105, " x")
    assert "of 10.5%, and the likeliest next token is ' Paris'" in missed_words(fact, "Rome", 0.105, " Paris")
