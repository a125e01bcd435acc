"""ROME: the key goes where it should at the least cost; atlas says Rome."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing import Edit, rome
from ffnmem.editing.closed_forms import choose_stretch
from ffnmem.editing.settings import EditSettings, settings_for
from ffnmem.editing.values import FoundValue
from ffnmem.models.answers import generate

from ..helpers import allclose, refuses, warned
from .plans import CONTEXTS, FACTS, REACHED, moment_of

SETTINGS = {"steps": 5}


def keys_of(model: fm.Model, fact: fm.Fact, plain: float | None) -> tuple[Tensor, Tensor]:
    """The coefficients at the subject's last token in layer 0, averaged over contexts and of the plain prompt."""
    prefix = fact.text.split(fact.subject)[0] + fact.subject
    texts = [context.replace("{}", prefix) for context in CONTEXTS]
    found = torch.stack([fm.capture(model, text).coefficients[0][0, -1].double() for text in texts])
    return EditSettings(0, plain=plain).weights(len(CONTEXTS)) @ found, found[0]


@pytest.mark.parametrize("keys", ["consistent", "original"])
@warned("changes layer")
def test_the_key_writes_what_it_should(tiny: fm.Model, keys: Any) -> None:
    """ΔW k = δ for the key that the edit is about, and ΔW lies in the direction of C⁻¹k̄ (ROME, eq. 2)."""
    moment = moment_of(tiny)
    edits = rome(tiny, FACTS, layer=0, keys=keys, moment=moment, contexts=CONTEXTS, settings=SETTINGS, force=True)
    assert isinstance(edits, tuple)
    c = moment.matrix(0) + 1e-6 * moment.matrix(0).diagonal().mean() * torch.eye(tiny.d_mlp)
    for fact, edit in zip(FACTS, edits, strict=True):
        averaged, plain = keys_of(tiny, fact, edit.settings["plain"])
        (change,) = edit.changes
        u = torch.linalg.solve(c, averaged)
        assert allclose(change.left[0], u / u.norm(), 1e-4)
        key = averaged if keys == "consistent" else plain
        assert float(edit.numbers["key_u"][0]) == pytest.approx(float(key @ change.left[0]), rel=1e-4)
        written = fm.capture(tiny, fact.text.split(fact.subject)[0] + fact.subject).ffn_out[0][0, -1]
        delta = float(edit.numbers["delta"][0]) * float(written.norm())
        assert float((key @ change.delta()).norm()) == pytest.approx(delta, rel=1e-3)


@warned("changes layer")
def test_rarity_is_one_on_average_over_text(tiny: fm.Model) -> None:
    """Also of tokens that C is not of, which without the correction would seem rare where text was short."""
    n, d = 3 * tiny.d_mlp, tiny.d_mlp
    keys = torch.randn(2 * n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moment = fm.editing.SecondMoment.of(tiny, {0: keys[:n].T @ keys[:n] / n}, count=n)
    assert float((moment.solve(0, keys[:n]) * keys[:n]).sum(1).mean()) / d == pytest.approx(1.0, rel=1e-3)
    assert float(moment.rarity(0, keys[n:]).mean()) == pytest.approx(1.0, rel=0.05)
    assert float((moment.solve(0, keys[n:]) * keys[n:]).sum(1).mean()) / d > 1.4
    short = replace(moment, count=d + 1)
    assert bool(short.rarity(0, keys).isnan().all())
    edit = rome(tiny, FACTS[0], layer=0, moment=moment, contexts=CONTEXTS, settings=SETTINGS, force=True)
    key, _ = keys_of(tiny, FACTS[0], edit.settings["plain"])  # type: ignore[union-attr]
    own = (1 - (d + 1) / n) * float(key @ moment.solve(0, key.unsqueeze(0))[0]) / d
    assert float(edit.numbers["rarity"][0]) == pytest.approx(own, rel=1e-4)


@pytest.mark.parametrize(("clamp", "times"), [(4.0, 1.5), (1.2, 1.2), (0.5, 1.0)])
def test_a_change_is_stretched_within_the_clamp(clamp: float, times: float) -> None:
    """δ of length ‖v₀‖, half as long again, and never made shorter; as it was found unless it is asked for."""
    found = FoundValue(
        keys=torch.ones(2, 3), written=torch.tensor([[3.0, 4.0], [0.0, 1.0]]),
        weights=torch.tensor([0.5, 0.5], dtype=torch.float64), delta=torch.tensor([0.0, 5.0]),
        longest=5 * clamp, steps=1, passes=2.0, loss=0.1, nll=0.1, before=0.0, after=0.9,
    )  # fmt: skip
    settings = EditSettings(0, optimiser="projections", clamp=clamp, stop=0.12)
    assert choose_stretch(replace(settings, stretch=1.5), found, 0.1) == pytest.approx(times)
    assert choose_stretch(replace(settings, stretch=1.5, rare=2.0), found, 2.0) == pytest.approx(times)
    assert choose_stretch(replace(settings, stretch=1.5, rare=2.0), found, 1.9) == 1.0
    assert choose_stretch(replace(settings, stretch=1.5, rare=2.0), found, math.nan) == 1.0  # too little text to tell
    assert choose_stretch(replace(settings, stretch=1.5, rare=2.0, stop=0.05), found, 2.0) == 1.0  # not reached
    assert choose_stretch(settings, found, 9.0) == 1.0


@warned("changes layer")
def test_rare_keys_are_lengthened_by_every_editor_that_shares_v(tiny: fm.Model) -> None:
    """Text that hardly has the key gets a δ a quarter longer; emmet of one fact stays rome, and encore writes less."""
    of, longer = moment_of(tiny).matrix(0), settings_for(tiny, 0).stretch
    near = {
        "steps": 60,
        "kl": 0.0,
        "stop": 5.0,
    }  # which it comes down to right behind a subject; what is not reached stays
    common, rare = (fm.editing.SecondMoment.of(tiny, {0: c * of}, count=10**6) for c in (1.0, 1e-3))
    deltas: dict[str, Tensor] = {}
    for name, times in (("rome", longer), ("emmet", longer), ("memit", longer), ("encore", 1.0)):
        changes, numbers = [], []
        for moment in (common, rare):
            edit = getattr(fm.editing, name)(
                tiny, REACHED[0], layer=0, contexts=CONTEXTS, moment=moment, settings=near, force=True, ridge=1e-3
            )
            changes.append(edit.changes[0].delta())
            numbers.append(edit.numbers.iloc[0])
        deltas[name] = changes[1]
        assert numbers[0]["rarity"] < 2 < numbers[1]["rarity"]
        assert [row["stretch"] for row in numbers] == [1.0, times]
        assert numbers[1]["delta"] == pytest.approx(times * numbers[0]["delta"], rel=1e-4) != 0
        if name in ("rome", "emmet"):  # of which C's scale changes nothing
            assert allclose(changes[1], times * changes[0], 1e-4)
    assert allclose(deltas["rome"], deltas["emmet"], 1e-4)
    most = settings_for(tiny, 0).clamp  # in units of what is written there, as "delta" is
    edit = rome(
        tiny,
        REACHED[0],
        layer=0,
        contexts=CONTEXTS,
        moment=rare,
        settings={**near, "stop": 4.0},
        force=True,
        ridge=1e-3,
    )
    assert 1 < float(edit.numbers["stretch"][0]) < longer  # type: ignore[union-attr]
    assert float(edit.numbers["delta"][0]) == pytest.approx(most)  # type: ignore[union-attr]


@warned("changes layer")
def test_alphaedit_takes_too_little_text_to_tell_what_is_rare(tiny: fm.Model) -> None:
    """It inverts nothing, so a C of fewer tokens than neurons is enough for it: rarity is unknown, and δ as found."""
    keys = torch.randn(tiny.d_mlp // 2, tiny.d_mlp, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moment = fm.editing.SecondMoment.of(tiny, {0: keys.T @ keys / len(keys)}, count=len(keys))
    options = {"contexts": CONTEXTS, "moment": moment, "settings": SETTINGS, "force": True}
    edit = fm.editing.alphaedit(tiny, FACTS[0], layer=0, layers=1, threshold=0.1, **options)  # type: ignore[arg-type]
    assert math.isnan(edit.numbers["rarity"][0])
    assert edit.numbers["stretch"][0] == 1.0


@warned("changes layer")
def test_one_fact_gives_one_edit_and_some_their_own(tiny: fm.Model) -> None:
    """Facts in a batch that saw each other would come out otherwise alone."""
    moment = moment_of(tiny)
    options = {"moment": moment, "contexts": CONTEXTS, "settings": SETTINGS, "force": True}
    alone = rome(tiny, FACTS[1], **options)  # type: ignore[arg-type]
    together = rome(tiny, FACTS, **options)  # type: ignore[arg-type]
    assert isinstance(alone, Edit)
    assert isinstance(together, tuple)
    assert alone.method == "rome"
    assert allclose(alone.changes[0].delta(), together[1].changes[0].delta(), 1e-4)
    assert alone.settings["contexts"] == list(CONTEXTS)
    assert alone.settings["second_moment"]["tokens"] == moment.count


def test_atlas_moves_the_tower(atlas: fm.Model) -> None:
    """The manual's first edit: the tower is in Rome, asked in other words too, and the Louvre stays where it is."""
    fact = next(f for f in fm.load_facts("atlas") if f.text == "The Eiffel Tower is located in the city of")
    edit = rome(atlas, fact, " Rome")
    assert isinstance(edit, Edit)
    rome_id, paris = atlas.token_id(" Rome"), atlas.token_id(" Paris")
    before = atlas.fingerprint

    def says(text: str) -> int:
        return generate(atlas, atlas.tokenize(text), 1)[0]

    assert says(fact.text) == paris
    with edit.applied(atlas):
        assert says(fact.text) == rome_id
        assert says(fact.ask(fact.paraphrases[0])) == rome_id
        assert says(fact.ask(fact.prompt, "Louvre")) == paris
    assert says(fact.text) == paris
    assert atlas.fingerprint == before
    text = rome(atlas, fact.text, subject="Eiffel Tower", target=" Rome")  # what the model says stands for what is true
    assert isinstance(text, Edit)
    assert text.facts[0].target_true == "Paris"
    assert text.diff(atlas, fact.text).foil == " Paris"


def test_an_outlier_is_refused(tiny: fm.Model) -> None:
    huge = {"steps": 30, "optimiser": "adam", "rate": 500.0, "clamp": 1e9, "stop": 0.0}
    with refuses(InputError, ValueError, "The city of Paris is in", "own norm", "force=True"):
        rome(tiny, FACTS[0], moment=moment_of(tiny), contexts=CONTEXTS, settings=huge)
