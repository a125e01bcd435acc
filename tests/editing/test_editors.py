"""Editors: their equations, their own numbers, their limits, what all of them promise, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, unwarned
from ffnmem.editing import (
    Edit,
    SecondMoment,
    alphaedit,
    closed_forms,
    ft_l,
    memit,
    rome,
    second_moment,
)
from ffnmem.editing.closed_forms import choose_stretch
from ffnmem.editing.settings import EditSettings, settings_for
from ffnmem.editing.values import FoundValue
from ffnmem.facts.answers import word_ids
from ffnmem.models.answers import generate

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts
from . import published_programs as programs
from .edits import logits
from .plans import CONTEXTS, FACTS, REACHED


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A random model is moved by large edits alone, of which we warn."""
    with unwarned():
        yield


@pytest.fixture(scope="module")
def model(tiny64: fm.Model) -> fm.Model:
    return tiny64


@pytest.fixture(scope="module")
def moment(model: fm.Model) -> SecondMoment:
    return second_moment(model, tiny_texts())


def options(moment: SecondMoment, **more: Any) -> dict[str, Any]:
    """Of the editors that look for a v*."""
    return {"moment": moment, "contexts": CONTEXTS, "settings": {"steps": 4}, "force": True, "layer": 0, **more}


# -- rome --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["consistent", "original"])
def test_the_key_writes_what_it_should(model: fm.Model, moment: SecondMoment, keys: Any) -> None:
    """ΔW k = δ for the key that the edit is about, and ΔW lies in the direction of C⁻¹k̄ (ROME, eq. 2)."""
    edits = rome(model, FACTS, keys=keys, **options(moment))
    assert isinstance(edits, tuple)
    c = moment.matrix(0) + 1e-6 * moment.matrix(0).diagonal().mean() * torch.eye(model.d_mlp)
    for fact, edit in zip(FACTS, edits, strict=True):
        averaged, plain = (keys_in(model, [fact], 0, share)[0] for share in (edit.settings["plain"], 1 - 1e-15))
        (change,) = edit.changes
        u = torch.linalg.solve(c, averaged)
        assert allclose(change.left[0], u / u.norm(), 1e-8)
        key = averaged if keys == "consistent" else plain
        row = edit.numbers.iloc[0]
        assert allclose(row["key_u"], key @ change.left[0], 1e-8)
        written = fm.capture(model, fact.text.split(fact.subject)[0] + fact.subject).ffn_out[0][0, -1]
        assert allclose((key @ change.delta()).norm(), row["delta"] * written.norm(), 1e-8)
        assert allclose(row["rarity"], moment.rarity(0, averaged.unsqueeze(0))[0], 1e-6)
    alone = rome(model, FACTS[1], keys=keys, **options(moment))  # facts in a batch do not see each other
    assert allclose(alone.changes[0].delta(), edits[1].changes[0].delta(), 1e-8)  # type: ignore[union-attr]


@pytest.mark.parametrize(("clamp", "times"), [(4.0, 1.5), (1.2, 1.2), (0.5, 1.0)])
def test_a_change_is_stretched_within_the_clamp(clamp: float, times: float) -> None:
    """δ of length ‖v₀‖, half as long again, and never made shorter; as it was found unless it is asked for."""
    found = FoundValue(
        keys=torch.ones(2, 3), written=torch.tensor([[3.0, 4.0], [0.0, 1.0]]),
        weights=torch.tensor([0.5, 0.5], dtype=torch.float64), delta=torch.tensor([0.0, 5.0]),
        longest=5 * clamp, steps=1, passes=2.0, loss=0.1, nll=0.1, after=0.9,
    )  # fmt: skip
    for more, rarity, expected in (
        ({"stretch": 1.5}, 0.1, times),
        ({"stretch": 1.5, "rare": 2.0}, 2.0, times),
        ({"stretch": 1.5, "rare": 2.0}, 1.9, 1.0),
        ({"stretch": 1.5, "rare": 2.0}, math.nan, 1.0),  # too little text to tell
        ({"stretch": 1.5, "rare": 2.0, "stop": 0.05}, 2.0, 1.0),  # not reached
        ({}, 9.0, 1.0),
    ):
        settings = replace(EditSettings(0, optimiser="projections", clamp=clamp, stop=0.12), **more)  # type: ignore[arg-type]
        assert choose_stretch(settings, found, rarity) == pytest.approx(expected)


def test_rare_keys_are_lengthened_by_every_editor_that_shares_v(model: fm.Model, moment: SecondMoment) -> None:
    """Text that hardly has the key gets a δ a quarter longer."""
    longer, own = settings_for(model, 0).stretch, {"steps": 60, "kl": 0.0, "stop": 5.0}
    common, rare = (SecondMoment.of(model, {0: c * moment.matrix(0)}, count=10**6) for c in (1.0, 1e-3))
    for editor in (rome, memit):
        edits = [editor(model, REACHED[0], ridge=1e-3, **options(c, settings=own)) for c in (common, rare)]  # type: ignore[operator]
        numbers = [edit.numbers.iloc[0] for edit in edits]
        assert numbers[0]["rarity"] < 2 < numbers[1]["rarity"]
        assert [row["stretch"] for row in numbers] == [1.0, longer]
        assert numbers[1]["delta"] == pytest.approx(longer * numbers[0]["delta"], rel=1e-4) != 0
        if editor is rome:  # of which C's scale changes nothing
            assert allclose(edits[1].changes[0].delta(), longer * edits[0].changes[0].delta(), 1e-4)


def test_atlas_moves_the_tower(atlas: fm.Model) -> None:
    """The manual's first edit: the tower is in Rome, asked in other words too, and the Louvre stays where it is."""
    fact = next(f for f in fm.load_facts("atlas") if f.text == "The Eiffel Tower is located in the city of")
    edit = rome(atlas, fact, " Rome")
    assert isinstance(edit, Edit)
    asked = (fact.text, fact.ask(fact.paraphrases[0]), fact.ask(fact.prompt, "Louvre"))

    def says() -> list[str]:
        return [atlas.token_strings(generate(atlas, atlas.tokenize(text), 1))[0] for text in asked]

    assert says() == [" Paris"] * 3
    assert 0 <= edit.numbers["unseen"][0] <= 1
    with edit.applied(atlas):
        assert says() == [" Rome", " Rome", " Paris"]
    text = rome(atlas, fact.text, subject="Eiffel Tower", target=" Rome")  # what the model says stands for what is true
    assert isinstance(text, Edit)
    assert text.facts[0].target_true == "Paris"


# -- closed forms ------------------------------------------------------------------------------------------------------


def memit_left(numbers: dict[str, Any]) -> programs.Left:
    return programs.memit(numbers["weight"], numbers["norm"])


def alphaedit_left(numbers: dict[str, Any]) -> programs.Left:
    return programs.alphaedit(numbers["thresholds"][0], numbers["penalty"])


HELD = replace(FACTS[1], target_new=None)  # only its key counts, which depends on no target
FORMS: dict[str, tuple[Callable[..., Edit], dict[str, Any], Callable[[dict[str, Any]], programs.Left]]] = {
    "memit": (memit, {"layers": 2}, memit_left),
    "memit, all": (memit, {"layers": 2, "weight": 5.0, "norm": 0.3, "ridge": 1e-3, "previous": HELD}, memit_left),
    "alphaedit": (alphaedit, {"penalty": 0.7, "previous": HELD}, alphaedit_left),
}


def keys_in(model: fm.Model, facts: Any, layer: int, plain: float | None) -> Tensor:
    """The average over contexts of the coefficients at each subject's last token."""
    found = [torch.zeros(0, model.d_mlp, dtype=torch.float64)]
    for fact in facts:
        texts = [context.replace("{}", fact.text.split(fact.subject)[0] + fact.subject) for context in CONTEXTS]
        keys = torch.stack([fm.capture(model, text).coefficients[layer][0, -1].double() for text in texts])
        found.append((EditSettings(0, plain=plain).weights(len(CONTEXTS)) @ keys).unsqueeze(0))
    return torch.cat(found)


def written_above(model: fm.Model, facts: Any) -> Tensor:
    """What the last layer leaves at the end of each prompt."""
    found = [fm.capture(model, fact.text).residual for fact in facts]
    return torch.stack([residual.final_in[0, -1] for residual in found if residual is not None])


@pytest.mark.parametrize("name", FORMS)
def test_each_layer_gets_its_closed_form_of_what_is_missing(name: str, model: fm.Model, moment: SecondMoment) -> None:
    """Keys of another layer, read without the changes below, or of other contexts; a share that does not add up to δ;
    a formula other than the one that is published."""
    editor, given, formula = FORMS[name]
    edit = editor(model, REACHED, **options(moment, layer=1, **given))
    settings = dict(edit.settings)
    assert edit.layers == tuple(settings["layers"]) == ((0, 1) if "layers" in given else (1,))
    assert edit.rank == len(REACHED)
    assert edit.facts == REACHED
    clean = written_above(model, REACHED)
    below: list[Any] = []
    for change in edit.changes:
        c = moment.matrix(change.layer)
        c += settings.get("ridge", 0.0) * c.diagonal().mean() * torch.eye(len(c))
        held = keys_in(model, [HELD] if settings.get("previous") else [], change.layer, settings["plain"])
        with Edit.of(model, below, method="below").applied(model) if below else nullcontext():
            keys = keys_in(model, REACHED, change.layer, settings["plain"])
            now = written_above(model, REACHED)
        assert allclose(change.left.T, formula(settings)(c, keys.T, held.T), 1e-6)
        missing = clean + len(edit.layers) * edit.changes[0].right - now
        assert allclose(change.right, missing / (len(edit.layers) - len(below)), 1e-6)
        below.append(change)


def test_numbers_that_nobody_gave(model: fm.Model, moment: SecondMoment) -> None:
    """Edits of models without published numbers would have another strength."""
    facts, given = REACHED, options(moment, layer=1)
    weight, eigenvalues = 0.1 * model.d_mlp, [moment.eigenvalues(layer) for layer in (0, 1)]
    found = memit(model, facts, **given).settings
    assert (found["layers"], found["weight"], found["norm"], found["previous"]) == ([1], weight, 0.0, [])
    found = alphaedit(model, facts, layers=2, **given).settings
    assert found["thresholds"] == pytest.approx([float(values[31:33].mean()) for values in eigenvalues], rel=1e-12)
    assert found["penalty"] == pytest.approx(float(eigenvalues[1].mean()) / 2)
    traces = [moment.null_projection(layer, found["thresholds"][layer]).trace() for layer in (0, 1)]
    assert found["null_rank"] == [32, 32] == [round(float(trace)) for trace in traces]
    found = alphaedit(model, facts, threshold=float(eigenvalues[1][45]), **given).settings
    assert found["null_rank"] == [round(float(moment.null_projection(1, found["thresholds"][0]).trace()))]  # 45 or 46
    keys = torch.randn(model.d_mlp // 2, model.d_mlp, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    short = SecondMoment.of(model, {1: keys.T @ keys / len(keys)}, count=len(keys))
    row = alphaedit(model, facts, threshold=0.1, **{**given, "moment": short}).numbers.iloc[0]  # which inverts nothing
    assert (math.isnan(row["rarity"]), row["stretch"]) == (True, 1.0)
    tuned = ft_l(model, FACTS[0], layer=0, steps=1).settings  # type: ignore[union-attr]
    size = float(model.ffn[0].values.detach().double().square().mean().sqrt())
    assert tuned["bound"] == tuned["rate"] == pytest.approx(size / 30)


def test_many_requests_are_replayed_some_at_a_time(
    model: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand facts in one edit held every layer's coefficients of all of them at once: 23 GB on atlas."""
    turned = [FACTS[i:] + FACTS[:i] for i in range(3)]  # in one of these orders, batches by length are a cycle of three
    cases = [(REACHED, options(moment, layer=1, layers=2)), *((facts, options(moment)) for facts in turned)]
    together = [memit(model, facts, **given) for facts, given in cases]
    monkeypatch.setattr(closed_forms, "BATCH_TOKENS", 1)
    for (facts, given), edit in zip(cases, together, strict=True):
        for one, other in zip(edit.changes, memit(model, facts, **given).changes, strict=True):
            assert allclose(one.left, other.left, 1e-9)
            assert allclose(one.right, other.right, 1e-9)


# -- baselines -----------------------------------------------------------------------------------------------------


def test_ft_l_stays_within_its_bound(model: fm.Model) -> None:
    """And its numbers are what the edited model says."""
    edits = ft_l(model, FACTS, layer=0, bound=0.02)
    assert isinstance(edits, tuple)
    for fact, edit in zip(FACTS, edits, strict=True):
        assert float(edit.changes[0].delta().abs().max()) <= 0.02 + 1e-7
        ids = word_ids(model, fact.text, str(fact.target_new))
        tokens, losses = torch.tensor([[*model.tokenize(fact.text), *ids[:-1]]]), []
        for block in (nullcontext(), edit.applied(model)):
            with block:
                logs = logits(model, tokens)[0].log_softmax(-1)[-len(ids) :]
                losses.append(-float(logs[range(len(ids)), ids].mean()))
        assert losses[1] < losses[0]
        assert float(edit.numbers["loss"][0]) == pytest.approx(losses[1], rel=1e-4)
        assert edit.settings == {"layer": 0, "bound": 0.02, "rate": 0.02, "steps": 25, "stop": 0.01}


# -- all editors ---------------------------------------------------------------------------------------------------

EDITORS: tuple[Callable[..., Any], ...] = (rome, memit, alphaedit, ft_l)
EACH = (rome, ft_l)  # whose facts get an edit each


@pytest.mark.parametrize("editor", EDITORS, ids=lambda one: one.__name__)
def test_what_an_editor_takes_and_gives(editor: Callable[..., Any], model: fm.Model, moment: SecondMoment) -> None:
    """A text is the edit of its fact; some facts are one edit, or one each; progress comes to its end."""
    given, fact = {"force": True} if editor is ft_l else options(moment), FACTS[0]
    target, done = f" {fact.target_new}", []
    made = editor(model, fact.text, target, subject=fact.subject, **given)
    assert isinstance(made, Edit)
    assert made.method == editor.__name__
    (token,) = word_ids(model, fact.text, fact.target_new or "")
    before = fm.capture(model, fact.text).logits_at(0, -1).double().softmax(-1)[token]
    assert made.numbers["before"].tolist() == pytest.approx([float(before)], rel=1e-5)
    with made.applied(model):
        after = fm.capture(model, fact.text).logits_at(0, -1).double().softmax(-1)[token]
    assert made.numbers["after"].tolist() == pytest.approx([float(after)], rel=1e-4)
    (own,) = made.facts
    assert (own.subject, own.prompt, made.targets) == (fact.subject, fact.prompt, (fact.target_new,))
    assert made.digest == editor(model, own, target, **given).digest
    some = editor(model, FACTS[::2], progress=lambda _, at, of: done.append((at, of)), **given)
    assert isinstance(some, tuple) == (editor in EACH)
    ids = [[one.id for one in edit.facts] for edit in (some if editor in EACH else [some])]
    assert ids == ([["paris"], ["london"]] if editor in EACH else [["paris", "london"]])
    assert done[-1] == (2, 2)


HUGE = {"steps": 30, "optimiser": "adam", "rate": 500.0, "clamp": 1e9, "stop": 0.0}
REFUSED: tuple[tuple[Callable[..., Any], Any, dict[str, Any], tuple[str, ...]], ...] = (
    (rome, FACTS[0], {"keys": "plain"}, ("keys", "'consistent' or 'original'", "plain")),
    (rome, FACTS[0], {"settings": HUGE, "force": False}, ("The city of Paris is in", "own norm", "force=True")),
    (memit, FACTS, {"layer": 1, "layers": 3}, ("layers 3", "layer 1")),
    (rome, FACTS[0], {"layer": -1, "keys": "original"}, ("layer 1", "'Paris'", "earlier layer")),
    (alphaedit, FACTS, {"threshold": -1.0}, ("no eigenvalue", "threshold", "layer 0")),
    (alphaedit, FACTS, {"threshold": 1e9}, ("every eigenvalue", "layer 0")),
    (ft_l, FACTS[0], {"bound": 1e3}, ("'The city of Paris is in'", "times its own norm")),
    (ft_l, FACTS[0].text, {"target": " Rome"}, ("a subject is needed",)),
    (ft_l, FACTS[0].text, {"subject": "Paris"}, ("a new target is needed",)),
    (ft_l, FACTS[0].text, {"subject": "Colosseum", "target": " Rome"}, ("'Colosseum' is not in",)),
    (ft_l, FACTS[0], {"subject": "Paris", "target": " Rome"}, ("facts have subjects of their own",)),
    (ft_l, FACTS[0], {"target": FACTS[0].target_true}, ("its true one already",)),
    (ft_l, replace(FACTS[0], target_new=None), {}, ("no new target",)),
)


@pytest.mark.parametrize(("editor", "facts", "wrong", "named"), REFUSED)
def test_refused(
    editor: Callable[..., Any],
    facts: Any,
    wrong: dict[str, Any],
    named: tuple[str, ...],
    model: fm.Model,
    moment: SecondMoment,
) -> None:
    given = {} if editor is ft_l else options(moment)
    with refuses(InputError, ValueError, *named):
        editor(model, facts, **{**given, **wrong})


@pytest.mark.parametrize("editor", EDITORS[:3], ids=lambda one: one.__name__)
def test_no_second_moment_is_refused_before_anything_is_sampled(
    editor: Callable[..., Any], model: fm.Model, moment: SecondMoment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An identity in its place would make edits that look right; and minutes would pass before a mistake is told."""

    def sampled(*_: object, **__: object) -> tuple[str, ...]:
        raise AssertionError("contexts were sampled")

    monkeypatch.setattr("ffnmem.editing.preparing.write_contexts", sampled)
    for given, named in (({}, "comes without a second moment"), ({"settings": {"stepz": 3}}, "'stepz'")):
        with refuses(InputError, ValueError, named):
            editor(model, FACTS[0], **given)
    with refuses(OutOfRangeError, IndexError, "layer 1"):
        editor(model, FACTS[0], layer=1, moment=second_moment(model, tiny_texts(), layers=[0]))
