"""Published editors equal their programs, given the same contexts and second moment; and their hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, unwarned
from ffnmem.editing import Edit, SecondMoment, alphaedit, ft_l, memit, rome
from ffnmem.editing.preparing import find_values, plan_edits
from ffnmem.editing.published import EDITORS, FT_L
from ffnmem.editing.settings import default_settings, published_settings
from ffnmem.facts.answers import word_ids
from ffnmem.models.norms import widen

from ..helpers import allclose, build, build_gpt2, build_gpt_neox, refuses
from . import published_programs as programs
from .plans import CONTEXTS, FACTS, REACHED, moment_of
from .published_programs import Descent, Program

EXACT = 1e-6
STREAM = Descent(clamp=0.75)
SOME = FACTS[1:]  # a target of several tokens, and one
# GPT-J reads its FFN beside attention, as gpt-neox does; llama's are gated.
BUILT: dict[str, tuple[Callable[[], Any], str, Callable[[Any], Any]]] = {
    "gpt2": (lambda: build_gpt2(n_layer=4), "c_proj", lambda hf: hf.transformer.h),
    "gpt-neox parallel": (lambda: build_gpt_neox(num_hidden_layers=4), "dense_4h_to_h", lambda hf: hf.gpt_neox.layers),
    "llama": (lambda: build("Llama", num_hidden_layers=4), "down_proj", lambda hf: hf.model.layers),
}


@dataclass(frozen=True)
class Both:
    """Our model, a program around the same weights, and a second moment of both."""

    model: fm.Model
    program: Program
    moment: SecondMoment

    def check(self, editor: Callable[..., Any], facts: Any, expected: Any, **options: Any) -> Edit:
        """An editor's published form must give the changes by layer that are expected."""
        given = {"moment": self.moment, "contexts": CONTEXTS, "settings": "published", "force": True, **options}
        with unwarned():
            edit = editor(self.model, facts, **given)
        assert isinstance(edit, Edit)
        layers = tuple(range(edit.layers[-1] - options.get("layers", 1) + 1, edit.layers[-1] + 1))
        assert edit.layers == layers
        for ours, theirs in zip(edit.changes, expected, strict=True):
            assert float((ours.delta() - theirs).abs().max()) <= EXACT * float(theirs.abs().max())
        return edit


EVERY = [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.exhaustive) for name in BUILT]


@pytest.fixture(scope="module", params=EVERY)
def both(request: pytest.FixtureRequest, tokenizer: Any) -> Both:
    make, out, blocks = BUILT[request.param]
    model, hf = fm.load(make(), tokenizer=tokenizer, dtype="float64"), make().double().requires_grad_(False)
    widen(hf)  # as load does, so that norms count in float64
    hf.set_attn_implementation("sdpa")  # as layers are run again; eager attention takes its softmax in float32
    moment = moment_of(model)

    def target_ids(word: str) -> tuple[int, ...]:
        return word_ids(model, FACTS[0].text, word)

    c = {layer: moment.matrix(layer) for layer in range(4)}
    program = Program(hf, blocks(hf), out, lambda text: list(model.tokenize(text)), target_ids, CONTEXTS, c)
    return Both(model, program, moment)


# -- the programs ------------------------------------------------------------------------------------------------------


def settings_like(how: Descent) -> dict[str, Any]:
    return {"base": "published", **asdict(how)}


@pytest.mark.parametrize("both", BUILT, indirect=True)
@pytest.mark.parametrize(
    "how", [pytest.param(Descent(), marks=pytest.mark.exhaustive), Descent(steps=6, stop=3.0, clamp=0.5)]
)
def test_v_is_romes(both: Both, how: Descent) -> None:
    """The KL read at another token, a step or a look more or less, a mean over tokens and contexts together."""
    plan = plan_edits(both.model, SOME, layer=0, contexts=CONTEXTS, settings=settings_like(how))
    found = find_values(plan)
    for fact, one in zip(SOME, found, strict=True):
        target, before, steps = both.program.find(fact, both.program.blocks[0].mlp, how)
        assert one.steps == steps
        assert allclose(one.written[0], before, EXACT)
        assert float((one.delta - (target - before)).norm()) <= EXACT * float(before.norm())


def test_rome(both: Both) -> None:
    for fact in SOME:
        edit = both.check(rome, fact, [both.program.rome(fact, 1, Descent())], layer=1)
        assert (edit.settings["keys"], edit.settings["ridge"], edit.settings["kl_at"]) == ("original", 0.0, "subject")


def test_memit(both: Both) -> None:
    """What the lower layer's change does at tokens before the subject is attended to in the higher one."""
    expected = both.program.spread(SOME, (1, 2), STREAM, programs.memit(5.0))
    both.check(memit, SOME, expected, layer=2, layers=2, weight=5.0)
    expected = both.program.spread(REACHED, (1, 2), STREAM, programs.memit(5.0, 0.02), FACTS[1:2])
    more = {"weight": 5.0, "norm": 0.02, "previous": FACTS[1]}  # λₙ in other units, keys of another layer
    edit = both.check(memit, REACHED, expected, layer=2, layers=2, **more)
    assert edit.settings["previous"] == ["rome"]


def test_alphaedit(both: Both) -> None:
    threshold = float(both.moment.eigenvalues(1)[40:42].mean())  # none that rounding would move across it
    expected = both.program.spread(SOME, (1, 2), STREAM, programs.alphaedit(threshold, 10.0), FACTS[:1])
    edit = both.check(alphaedit, SOME, expected, layer=2, layers=2, threshold=threshold, previous=FACTS[:1])
    assert edit.settings["penalty"] == 10.0


@pytest.mark.parametrize("fact", FACTS[:2], ids=["of one token", "of several"])
def test_ft_l_without_a_bias(fact: fm.Fact, tokenizer: Any) -> None:
    """There it is torch's Adam on the weight, clamped after each step, until the loss is below .01."""
    make, *_ = BUILT["llama"]
    model, hf = fm.load(make(), tokenizer=tokenizer, dtype="float64"), make().double().requires_grad_(False)
    widen(hf)
    hf.set_attn_implementation("sdpa")
    ids = word_ids(model, fact.text, str(fact.target_new))
    tokens = torch.tensor([[*model.tokenize(fact.text), *ids[:-1]]])
    weight = hf.model.layers[0].mlp.down_proj.weight.requires_grad_(True)
    before = weight.detach().clone()
    adam = torch.optim.Adam([weight], lr=5e-3)
    for _ in range(25):
        adam.zero_grad()
        with torch.enable_grad():
            loss = -hf(input_ids=tokens).logits[0, -len(ids) :].log_softmax(-1)[range(len(ids)), ids].mean()
        if float(loss.detach()) < 1e-2:
            break
        loss.backward()
        adam.step()
        with torch.no_grad():
            weight.copy_(weight.clamp(before - 0.02, before + 0.02))
    edit = ft_l(model, fact, layer=0, bound=0.02, rate=5e-3)
    assert isinstance(edit, Edit)
    assert float((edit.changes[0].delta() - (weight.detach() - before).T).abs().max()) <= EXACT * 0.02


# -- the hyperparameters -----------------------------------------------------------------------------------------------

XL, J = tuple(range(13, 18)), tuple(range(3, 9))
PUBLISHED = {
    # layers, clamp, steps, weight, threshold, penalty
    ("rome", "gpt2"): ((5,), 4, 20, 0, 0, 0),
    ("rome", "gpt2-medium"): ((8,), 3, 20, 0, 0, 0),
    ("rome", "gpt2-large"): ((12,), 4, 20, 0, 0, 0),
    ("rome", "gpt2-xl"): ((17,), 4, 20, 0, 0, 0),
    ("rome", "gpt-j-6b"): ((5,), 4, 20, 0, 0, 0),
    ("memit", "gpt2-xl"): (XL, 0.75, 20, 20_000, 0, 0),
    ("memit", "gpt-j-6b"): (J, 0.75, 25, 15_000, 0, 0),
    ("alphaedit", "gpt2-xl"): (XL, 0.75, 20, 0, 0.02, 10),
    ("alphaedit", "gpt-j-6b"): (J, 0.75, 25, 0, 0.02, 10),
}
BOUNDS = {"gpt2": (5e-4, 5e-4), "gpt2-medium": (2e-3, 5e-4), "gpt2-large": (1e-3, 5e-4), "gpt2-xl": (5e-4, 5e-4),
          "gpt-j-6b": (5e-5, 5e-4)}  # fmt: skip
OWNED = {"gpt2-xl": "openai-community/gpt2-xl", "gpt-j-6b": "EleutherAI/gpt-j-6B"}
SHARED = {"source": "published", "plain": None, "rate": 0.5, "relative": False, "stop": 0.05, "kl": 0.0625,
          "kl_at": "subject", "decay": 0.5}  # fmt: skip


def test_hyperparameters_are_the_files() -> None:
    """Another number would make another experiment than the one that is compared with."""
    names = ["layers", "clamp", "steps", "weight", "threshold", "penalty"]
    every = {(editor, name): one for editor, models in EDITORS.items() for name, one in models.items()}
    assert {key: tuple(getattr(one, name) for name in names) for key, one in every.items()} == PUBLISHED
    assert {name: (one.bound, one.rate) for name, one in FT_L.items()} == BOUNDS
    for (editor, name), (layers, clamp, steps, *_) in PUBLISHED.items():
        of_editor = (
            {"scale_of": "ffn", "key_plain": None} if editor == "rome" else {"scale_of": "stream", "key_plain": 0.5}
        )
        own = {"layer": layers[-1], "clamp": clamp, "steps": steps, **SHARED, **of_editor}
        for full in {name, OWNED.get(name, name)}:
            used = published_settings(editor, full, 99)
            assert {key: getattr(used, key) for key in own} == own
            if editor == "rome":
                assert default_settings(full, 99) == used
    without = {name for by_name in (*EDITORS.values(), FT_L) for name, one in by_name.items() if not one.file}
    assert without == {"gpt2"}  # whose numbers are ours, as is said beside them


def test_other_models_follow_the_procedure(tiny: fm.Model) -> None:
    found = published_settings("memit", "mine", 24)
    assert (found.source, found.steps, found.rate, found.relative, found.clamp) == ("procedure", 20, 0.5, False, 0.75)
    plan = plan_edits(tiny, FACTS, contexts=CONTEXTS, settings={"base": "published", "steps": 3})
    assert plan.published
    assert (plan.settings.steps, plan.settings.kl_at, plan.settings.source) == (3, "subject", "given")
    assert not plan_edits(tiny, FACTS, contexts=CONTEXTS, settings={"steps": 3}).published
    for strange in ("theirs", {"base": "mine"}):
        with refuses(InputError, ValueError, "settings", "published"):
            plan_edits(tiny, FACTS, contexts=CONTEXTS, settings=strange)
