"""What editors share: contexts, requests, settings, and what is doubtful about an edit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, OutOfRangeError
from ffnmem.editing import Edit, ft_l, memit, preparing, sample_contexts
from ffnmem.editing.preparing import CHANGE_LIMIT, plan_edits
from ffnmem.editing.requests import TOP, allowed, check_contexts, cleaned, make_requests
from ffnmem.editing.settings import EditSettings, default_settings, settings_for

from ..helpers import allclose, refuses
from .plans import CONTEXTS, FACTS, moment_of

# -- contexts ----------------------------------------------------------------------------------------------------------


def plain_contexts(model: fm.Model, lengths: list[int], seed: int) -> tuple[str, ...]:
    """A whole pass for each token, the best of exponential times whose rates are the five likeliest's probabilities."""
    generator, noise = torch.Generator().manual_seed(seed), {}
    for length in dict.fromkeys(lengths):
        drawn = [torch.empty(lengths.count(length), TOP).exponential_(generator=generator) for _ in range(length - 1)]
        noise[length] = torch.stack(drawn, 1).tolist()
    found = ["{}"]
    for length in lengths:
        tokens = [model.bos_token_id]
        for times in noise[length].pop(0):
            with torch.no_grad():
                best = allowed(model, model.hf_model(torch.tensor([tokens])).logits[:, -1])[0].topk(TOP)
            tokens.append(int(best.indices[(torch.tensor(times) / best.values.softmax(0)).argmin()]))
        found.append(f"{cleaned(model, tokens[1:])}. {{}}")
    return tuple(found)


def test_contexts_are_sampled_from_the_model(tiny: fm.Model) -> None:
    """Keys would be averaged over other contexts than the published program's, an edit could not be made again, or
    sampling would disturb the caller's own random numbers."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = sample_contexts(tiny, n=7, lengths=(3, 6))
    assert torch.equal(torch.rand(3), expected)
    assert found == plain_contexts(tiny, [3] * 4 + [6] * 3, 0)
    longest = [4, tiny.n_ctx]
    assert sample_contexts(tiny, n=2, lengths=longest, seed=2) == plain_contexts(tiny, longest, 2)
    plan = plan_edits(tiny, FACTS[2], seed=3)
    assert (*plan.contexts, *plan.unseen) == plain_contexts(tiny, [5] * 10 + [10] * 10 + [11] * 4, 3)
    assert len(plan.unseen) == 4


def test_what_is_drawn_is_fit_for_a_template(tiny: fm.Model) -> None:
    """Special tokens and rows for no token are never drawn; a brace would be taken for the prompt's place."""
    logits = torch.zeros(1, tiny.d_vocab + 3)
    assert allowed(tiny, logits).isneginf().nonzero()[:, 1].tolist() == [0, *range(tiny.d_vocab, tiny.d_vocab + 3)]
    assert not logits.any()
    encode = tiny.tokenizer
    assert cleaned(tiny, encode("a{}b{c}\n\nd\ne", add_special_tokens=False)["input_ids"]) == "abc d e"
    assert cleaned(tiny, encode("é", add_special_tokens=False)["input_ids"][:1]) == ""


def test_a_text_begins_with_bos_or_else_the_end_of_text(make_tiny: Callable[..., fm.Model]) -> None:
    model = make_tiny()
    expected = sample_contexts(model, seed=3)
    model.tokenizer.bos_token = None
    assert sample_contexts(model, seed=3) == expected
    model.tokenizer.eos_token = None
    with refuses(InputError, ValueError, model.name, "contexts"):
        sample_contexts(model)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_rows_hold_prompt_and_target_and_look_at_the_subject(tiny: fm.Model) -> None:
    """A lookup one token off edits another memory; a target's last token in the row would be read, not predicted."""
    for fact, request in zip(FACTS, make_requests(tiny, FACTS, None, CONTEXTS), strict=True):
        target = tiny.tokenize(f" {request.target}", prepend_bos=False)
        assert list(request.ids) == target
        assert len(request.rows) == len(CONTEXTS)
        for row, context in zip(request.rows, CONTEXTS, strict=True):
            assert list(row.tokens) == tiny.tokenize(context.replace("{}", fact.text)) + target[:-1]
            before = tiny.tokenize(context.replace("{}", fact.text.split(fact.subject)[0] + fact.subject))
            assert row.lookup == len(before) - 1
            assert row.after == len(row.tokens) - row.lookup
        assert list(request.essence.tokens) == tiny.tokenize(f"{fact.subject} is a")
        assert request.prompt == tuple(tiny.tokenize(fact.text))
    quoted = replace(FACTS[0], prompt='The {} is in "')  # after which a target stands without a space
    for fact, ids in ((FACTS[0], tiny.ids_of(" Rome")), (quoted, tiny.ids_of("Rome"))):
        for wanted in ("Rome", " Rome ", None):
            (request,) = make_requests(tiny, [replace(fact, target_new="Rome")], wanted, ("{}",))
            assert (request.ids, request.target) == (tuple(ids), "Rome")


def test_the_prompt_itself_is_the_first_context_and_counts_once(tiny: fm.Model) -> None:
    """v₀ and the plain prompt's key would be another text's, or get more than its share of the averages."""
    for given in (CONTEXTS, CONTEXTS[1:], (*CONTEXTS[1:], "{}"), ("{}", *CONTEXTS)):
        assert plan_edits(tiny, FACTS[0], contexts=given).contexts == CONTEXTS


REFUSED: tuple[tuple[Callable[[fm.Model], object], str], ...] = (
    (lambda model: sample_contexts(model, n=-1), "n must"),
    (lambda model: sample_contexts(model, lengths=()), "lengths"),
    (lambda model: sample_contexts(model, lengths=(1,)), "length"),
    (lambda model: sample_contexts(model, lengths=(5, model.n_ctx + 1)), "at most 32"),
    (lambda _: check_contexts(["no place"]), "context"),
    (lambda _: check_contexts(["{} and {}"]), "context"),
    (lambda _: check_contexts(["{0} {}"]), "context"),
    (lambda _: check_contexts([]), "context"),
    (lambda _: check_contexts("{}"), "list"),
    (lambda model: make_requests(model, FACTS, None, CONTEXTS[1:]), "first context"),
    (lambda model: make_requests(model, FACTS, None, ("{}", "The" * 40 + " {}")), "32"),
    (lambda model: plan_edits(model, []), "fact"),
)


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_requests_refused(tiny: fm.Model, call: Callable[[fm.Model], object], named: str) -> None:
    """A context without a place for the prompt would leave the fact out of its own key."""
    with refuses(InputError, ValueError, named):
        call(tiny)


# -- settings; published ones: test_published.py -----------------------------------------------------------------------


def test_derived_settings_follow_the_models_size() -> None:
    shallow, deep = default_settings("mine", 6), default_settings("mine", 24)
    assert (shallow.source, shallow.layer, deep.source, deep.layer) == ("derived", 0, "derived", 6)
    scales = torch.tensor([10.0, 1.0])
    assert allclose(EditSettings(0, rate=0.03, relative=True).step_size(scales, 64), 0.03 * scales / 8, 1e-7)
    assert EditSettings(0).step_size(scales, 64).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("settings", "losses", "keys"),
    [
        ({}, [0.25] * 4, [0.25] * 4),
        ({"plain": 0.4}, [0.4, 0.2, 0.2, 0.2], [0.4, 0.2, 0.2, 0.2]),
        ({"key_plain": 0.4}, [0.25] * 4, [0.4, 0.2, 0.2, 0.2]),  # MEMIT's: keys by kinds of contexts
        ({"plain": 0.4}, [1.0], [1.0]),
    ],
)
def test_the_plain_prompt_has_its_share(settings: dict[str, float], losses: list[float], keys: list[float]) -> None:
    """A context counted twice, or the plain prompt lost among twenty."""
    found = EditSettings(0, **settings)
    assert allclose(found.weights(len(losses)), losses, 1e-12)
    assert allclose(found.key_weights(len(keys)), keys, 1e-12)


ADAM = {"steps": 120, "first": None, "rate": 0.03, "relative": True, "decay": 0.5, "stretch": 1.0, "rare": 0.0}
PROJECTIONS = {"steps": 30, "first": 6, "rate": 1.0, "relative": False, "decay": 0.0, "stretch": 1.25, "rare": 2.0}
ASKED: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    # changes, options, what comes out
    ({}, {}, {**PROJECTIONS, "source": "derived"}),
    ({"stop": 0.2}, {}, {**PROJECTIONS, "stop": 0.2, "source": "given"}),
    ({"optimiser": "projections", "stop": 0.2}, {}, {**PROJECTIONS, "stop": 0.2, "source": "given"}),
    ({"optimiser": "adam", "steps": 9}, {}, {**ADAM, "steps": 9}),  # projections' numbers would not do
    # A length that is asked for holds for every key.
    ({"stretch": 1.5}, {}, {"stretch": 1.5, "rare": 0.0}),
    ({"stretch": 1.5, "rare": 3.0}, {}, {"stretch": 1.5, "rare": 3.0}),
    ({"optimiser": "projections"}, {"editor": "memit", "as_published": True}, {"scale_of": "stream", "rare": 2.0}),
)


@pytest.mark.parametrize(("changes", "options", "expected"), ASKED)
def test_what_becomes_of_settings(
    tiny: fm.Model, changes: dict[str, Any], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = settings_for(tiny, -1, changes, **options)
    assert {name: found.to_dict()[name] for name in expected} == expected
    assert (found.layer, found.layer_by) == (1, "given")
    assert EditSettings(1, source=found.source, **found.changed()) == found


def test_where_the_layer_comes_from(tiny: fm.Model, atlas: fm.Model) -> None:
    """By fingerprint: a copy of a model whose layer ships has it under another name."""
    own = plan_edits(tiny, FACTS[0], contexts=CONTEXTS, settings=EditSettings(1, steps=2), layer=0).settings
    assert (own.layer, own.steps) == (0, 2)
    assert plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=EditSettings(-1)).settings.layer == tiny.n_layers - 1
    for model, layer, changes, by in (
        (atlas, None, {}, "shipped"),
        (atlas, 2, {}, "given"),
        (atlas, None, {"layer": 2}, "given"),
        (tiny, None, {}, "depth"),
    ):
        assert settings_for(model, layer, changes).layer_by == by
    for wrong in ({"layer": 2}, {"settings": {"layer": 2}}, {"settings": EditSettings(2)}):
        with refuses(OutOfRangeError, IndexError, "layer 2"):
            plan_edits(tiny, FACTS, contexts=CONTEXTS, **wrong)
    with refuses(InputError, ValueError, "layer is 1", "layer 0"):
        plan_edits(tiny, FACTS, contexts=CONTEXTS, layer=1, settings={"layer": 0})


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"step": 3}, "'step'"), ({"source": "mine"}, "'source'"), ({"steps": 0}, "steps"),
    ({"optimiser": "projections", "decay": 0.5}, "decay is Adam's"), ({"optimiser": "sgd"}, "sgd"),
    ({"optimiser": "projections", "relative": True}, "relative is Adam's"),
    ({"optimiser": "adam", "first": 3}, "first is of projections"), ({"kl_at": "first"}, "kl_at"),
    ({"plain": 1.0}, "plain"), ({"stretch": math.inf}, "stretch"),
    ({"rare": 3.0, "optimiser": "adam"}, "rare is of"), ({"stretch": 0.9}, "stretch"),
)  # fmt: skip


def test_settings_refused(tiny: fm.Model) -> None:
    """Steps of none, a rate that goes uphill: each would give an edit that is none."""
    for changes, named in WRONG:
        with refuses(InputError, ValueError, named):
            settings_for(tiny, None, changes)
    with refuses(InputError, ValueError, "EditSettings: rate"):
        EditSettings(0, rate=-1.0)


def test_an_edit_records_all_that_it_was_made_with(tiny: fm.Model) -> None:
    """It could not be made again."""
    given: dict[str, Any] = {"contexts": CONTEXTS, "settings": {"steps": 2}, "layer": 0}
    moment, plan = moment_of(tiny), plan_edits(tiny, FACTS, **given)
    with pytest.warns(FfnmemWarning, match="changes layer 0"):
        edit = memit(tiny, FACTS, moment=moment, force=True, **given)
    assert edit.settings == {
        **plan.settings.to_dict(),
        "contexts": list(CONTEXTS),
        "context_seed": 0,
        "layers": [0],
        "weight": 0.1 * tiny.d_mlp,
        "norm": 0.0,
        "previous": [],
        "second_moment": {"tokens": moment.count, "corpus": moment.corpus_hash},
        "ridge": 1e-6,
    }
    assert edit.numbers["id"].tolist() == ["paris", "rome", "london"]
    size = float(tiny.ffn[0].values.detach().double().norm())
    assert edit.numbers["change"].tolist() == pytest.approx([edit.changes[0].norm / size] * 3)


# -- doubts ------------------------------------------------------------------------------------------------------------


def tuned(model: fm.Model, target: str | None = None, bound: float = 1e-3, **more: Any) -> Edit:
    found = ft_l(model, FACTS[0], target, layer=0, steps=1, bound=bound, **more)
    assert isinstance(found, Edit)
    return found


def test_a_large_change_is_said(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """ " paris" in pieces moved a layer by 40% without a word."""
    assert tuned(tiny).warnings == ()
    monkeypatch.setattr(preparing, "CHANGE", 0.0)
    with pytest.warns(FfnmemWarning, match="changes layer 0 by"):
        assert len(tuned(tiny).warnings) == 1


def test_an_outlier_is_refused_unless_forced(tiny: fm.Model) -> None:
    size = float(tiny.ffn[0].values.detach().double().norm())
    limit = CHANGE_LIMIT * size / tiny.ffn[0].values.numel() ** 0.5  # of steps that move every weight by their bound
    with refuses(InputError, ValueError, repr(FACTS[0].text), "times its own norm", "force=True"):
        tuned(tiny, bound=1.2 * limit)
    for times, force in ((0.9, False), (1.2, True)):
        with pytest.warns(FfnmemWarning, match="changes layer"):
            found = tuned(tiny, bound=times * limit, force=force).numbers["change"][0]
        assert found == pytest.approx(times * CHANGE_LIMIT, rel=0.05)


def test_doubts_are_kept_and_said_once(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be lost with the file, or said for each of a thousand edits."""
    monkeypatch.setattr(preparing, "CHANGE", 0.0)
    with pytest.warns(FfnmemWarning, match="; 2 more of 3 edits are doubtful") as found:
        edits = ft_l(tiny, FACTS, layer=0, steps=1)
    assert len(found) == 1
    assert isinstance(edits, tuple)
    (words,) = edits[0].warnings
    assert Edit.load(edits[0].save(tmp_path / "edit.zip")).warnings == (words,)
    assert edits[0].to_dict()["doubts"][0] == {"warning": words}
    assert (edits[0] + edits[1]).warnings == edits[0].warnings + edits[1].warnings
