"""Published editors equal their programs, given the same contexts and second moment; and their hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, unwarned
from ffnmem.editing import Edit, SecondMoment, alphaedit, emmet, encore, ft_l, memit, rome
from ffnmem.editing.preparing import find_values, plan_edits
from ffnmem.editing.published import EDITORS, FT_L
from ffnmem.editing.settings import default_settings, published_settings
from ffnmem.facts.answers import word_ids
from ffnmem.models.norms import widen

from ..helpers import allclose, build, build_gpt2, build_gpt_neox, refuses
from .plans import CONTEXTS, FACTS, REACHED, moment_of
from .published_programs import Descent, Program

EXACT = 1e-6
STREAM = Descent(clamp=0.75)
SOME = FACTS[1:]  # a target of several tokens, and one
# GPT-J reads its FFN beside attention, as gpt-neox does; llama's are gated.
BUILT: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt2": (lambda: build_gpt2(n_layer=4), "c_proj"),
    "gpt-neox parallel": (lambda: build_gpt_neox(num_hidden_layers=4), "dense_4h_to_h"),
    "llama": (lambda: build("Llama", num_hidden_layers=4), "down_proj"),
}


@dataclass(frozen=True)
class Both:
    """Our model, a program around the same weights, and a second moment of both."""

    name: str
    model: fm.Model
    program: Program
    moment: SecondMoment

    @property
    def c(self) -> dict[int, torch.Tensor]:
        return {layer: self.moment.matrix(layer) for layer in range(4)}

    @property
    def options(self) -> dict[str, Any]:
        return {"moment": self.moment, "contexts": CONTEXTS, "settings": "published", "force": True}


@pytest.fixture(scope="module", params=BUILT)
def both(request: pytest.FixtureRequest, tokenizer: Any) -> Both:
    make, out = BUILT[request.param]
    model = fm.load(make(), tokenizer=tokenizer, dtype="float64")
    hf = make().double()
    widen(hf)  # as load does, so that norms count in float64
    hf.set_attn_implementation("sdpa")  # as layers are run again; eager attention takes its softmax in float32
    blocks = hf.transformer.h if "gpt2" in request.param else hf.gpt_neox.layers if "neox" in request.param else None
    program = Program(
        hf,
        hf.model.layers if blocks is None else blocks,
        out,
        lambda text: list(model.tokenize(text)),
        lambda word: word_ids(model, FACTS[0].text, word),
        CONTEXTS,
    )
    return Both(request.param, model, program, moment_of(model))


def same(edit: Any, changes: list[torch.Tensor], layers: tuple[int, ...]) -> None:
    assert isinstance(edit, Edit)
    assert edit.layers == layers
    for ours, theirs in zip(edit.changes, changes, strict=True):
        assert float(theirs.norm()) > 0
        assert float((ours.delta() - theirs).abs().max()) <= EXACT * float(theirs.abs().max())


# -- the programs ------------------------------------------------------------------------------------------------------


HOWS = {
    "published": Descent(),
    "stopping": Descent(steps=6, stop=3.0, clamp=0.5),
}
LIKELIEST = Descent(steps=15, rate=2.0, stop=0.0, clamp=50.0, likeliest=3)


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
def test_v_is_romes(both: Both, how: Descent) -> None:
    """The KL read at another token, a step more or less, a mean over tokens and contexts together, another clamp."""
    changes = {"base": "published", "steps": how.steps, "stop": how.stop, "clamp": how.clamp}
    plan = plan_edits(both.model, SOME, layer=0, contexts=CONTEXTS, settings=changes)
    for fact, found in zip(SOME, find_values(plan), strict=True):
        target, before, steps = both.program.find(fact, both.program.blocks[0].mlp, how)
        assert found.steps == steps
        assert allclose(found.written[0], before, EXACT)
        assert float((found.delta - (target - before)).norm()) <= EXACT * float(before.norm())


def settings_like(how: Descent) -> dict[str, Any]:
    return {"base": "published", **asdict(how)}


def test_the_descent_ends_where_the_target_was_the_likeliest(both: Both) -> None:
    """A look more or less, looks that count for another request, a context that is left out."""
    plan = plan_edits(both.model, REACHED, layer=0, contexts=CONTEXTS, settings=settings_like(LIKELIEST))
    found = find_values(plan)
    for fact, one in zip(REACHED, found, strict=True):
        target, before, steps = both.program.find(fact, both.program.blocks[0].mlp, LIKELIEST)
        assert one.steps == steps
        assert float((one.delta - (target - before)).norm()) <= EXACT * float(before.norm())
    assert 2 < found[1].steps < 14  # neither at once nor because the steps were over


def test_the_essence_is_held_where_the_subject_ends(both: Both) -> None:
    """At the prompt's last token it is another procedure; were it the same, the test above would see nothing."""
    options: dict[str, Any] = {"layer": 0, "contexts": CONTEXTS}
    theirs, ours = (
        find_values(plan_edits(both.model, FACTS[0], settings={"base": "published", "kl_at": at}, **options))[0].delta
        for at in ("subject", "last")
    )
    assert float((theirs - ours).norm()) > 1e-3 * float(theirs.norm())


def test_rome(both: Both) -> None:
    with unwarned():
        edits = rome(both.model, SOME, layer=1, **both.options)
    assert isinstance(edits, tuple)
    for fact, edit in zip(SOME, edits, strict=True):
        same(edit, [both.program.rome(fact, 1, both.c[1], Descent())], (1,))
        assert (edit.settings["keys"], edit.settings["ridge"], edit.settings["kl_at"]) == ("original", 0.0, "subject")


def test_memit(both: Both) -> None:
    """What the lower layer's change does at tokens before the subject is attended to in the higher one."""
    with unwarned():
        edit = memit(both.model, SOME, layer=2, layers=2, weight=5.0, **both.options)
    same(edit, both.program.memit(SOME, (1, 2), both.c, 5.0, STREAM), (1, 2))


@pytest.mark.parametrize("some", [SOME, SOME[:1]], ids=["two", "one"])
def test_emmet(both: Both, some: tuple[Any, ...]) -> None:
    """ε is absolute, of C counted so many times, and one fact has none."""
    with unwarned():
        edit = emmet(both.model, some, layer=1, epsilon=3.0 * 0.1, **both.options)
    same(edit, both.program.emmet(some, 1, both.c, 3.0, 0.1, STREAM), (1,))


def test_alphaedit(both: Both) -> None:
    threshold = float(both.moment.eigenvalues(1)[40:42].mean())  # none that rounding would move across it
    with unwarned():
        edit = alphaedit(both.model, SOME, layer=2, layers=2, threshold=threshold, previous=FACTS[:1], **both.options)
    changes = both.program.alphaedit(SOME, (1, 2), both.c, threshold, 10.0, FACTS[:1], STREAM)
    same(edit, changes, (1, 2))
    assert edit.settings["penalty"] == 10.0


def test_encore(both: Both) -> None:
    """λₙ in other units, previous keys of another layer, no early stop."""
    how = replace(LIKELIEST, likeliest=4)  # encore's own
    changes = {name: value for name, value in settings_like(how).items() if name != "likeliest"}
    options = {**both.options, "settings": changes, "layer": 2, "layers": 2}
    with unwarned():
        edit = encore(both.model, REACHED, weight=5.0, norm=0.02, previous=FACTS[1], **options)
    same(edit, both.program.encore(REACHED, (1, 2), both.c, 5.0, 0.02, FACTS[1:2], how), (1, 2))
    assert (edit.settings["likeliest"], edit.settings["previous"]) == (4, ["rome"])
    assert int(edit.numbers["steps"][1]) < how.steps - 1


def test_ft_l_of_one_token_without_a_bias(tokenizer: Any) -> None:
    """There it is torch's Adam on the weight, clamped after each step, until the loss is below .01."""
    make, _ = BUILT["llama"]
    model, hf = fm.load(make(), tokenizer=tokenizer, dtype="float64"), make().double()
    widen(hf)
    hf.set_attn_implementation("sdpa")
    fact, ids = FACTS[0], word_ids(model, FACTS[0].text, str(FACTS[0].target_new))
    assert len(ids) == 1
    weight = hf.requires_grad_(False).model.layers[0].mlp.down_proj.weight.requires_grad_(True)
    before = weight.detach().clone()
    adam = torch.optim.Adam([weight], lr=5e-3)
    for _ in range(25):
        adam.zero_grad()
        with torch.enable_grad():
            loss = -hf(input_ids=torch.tensor([model.tokenize(fact.text)])).logits[0, -1].log_softmax(-1)[ids[0]]
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

XL, J, LLAMA = tuple(range(13, 18)), tuple(range(3, 9)), tuple(range(4, 9))
PUBLISHED = {
    # layers, clamp, steps, weight, epsilon, threshold, penalty, norm, likeliest
    ("rome", "gpt2"): ((5,), 4, 20, 0, 0, 0, 0, 0, 0),
    ("rome", "gpt2-medium"): ((8,), 3, 20, 0, 0, 0, 0, 0, 0),
    ("rome", "gpt2-large"): ((12,), 4, 20, 0, 0, 0, 0, 0, 0),
    ("rome", "gpt2-xl"): ((17,), 4, 20, 0, 0, 0, 0, 0, 0),
    ("rome", "gpt-j-6b"): ((5,), 4, 20, 0, 0, 0, 0, 0, 0),
    ("memit", "gpt2-xl"): (XL, 0.75, 20, 20_000, 0, 0, 0, 0, 0),
    ("memit", "gpt-j-6b"): (J, 0.75, 25, 15_000, 0, 0, 0, 0, 0),
    ("emmet", "gpt2-xl"): ((17,), 0.75, 20, 1_000, 0.1, 0, 0, 0, 0),
    ("emmet", "gpt-j-6b"): ((5,), 0.75, 25, 10_000, 0.1, 0, 0, 0, 0),
    ("alphaedit", "gpt2-xl"): (XL, 0.75, 20, 0, 0, 0.02, 10, 0, 0),
    ("alphaedit", "gpt-j-6b"): (J, 0.75, 25, 0, 0, 0.02, 10, 0, 0),
    ("encore", "gpt2-xl"): (XL, 0.75, 20, 20_000, 0, 0, 0, 10, 4),
    ("encore", "llama-2-7b-hf"): (LLAMA, 0.75, 25, 15_000, 0, 0, 0, 10, 3),
    ("encore", "meta-llama-3-8b"): (LLAMA, 0.75, 25, 15_000, 0, 0, 0, 20, 2),
}
BOUNDS = {"gpt2": (5e-4, 5e-4), "gpt2-medium": (2e-3, 5e-4), "gpt2-large": (1e-3, 5e-4), "gpt2-xl": (5e-4, 5e-4),
          "gpt-j-6b": (5e-5, 5e-4)}  # fmt: skip
OWNED = ("openai-community/gpt2-xl", "EleutherAI/gpt-j-6B", "meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B")


def test_hyperparameters_are_the_files() -> None:
    """Another number would make another experiment than the one that is compared with."""
    names = ["layers", "clamp", "steps", "weight", "epsilon", "threshold", "penalty", "norm", "likeliest"]
    found = {
        (e, m): tuple(getattr(one, n) for n in names) for e, models in EDITORS.items() for m, one in models.items()
    }
    assert found == PUBLISHED
    assert {name: (one.bound, one.rate) for name, one in FT_L.items()} == BOUNDS
    for (editor, name), (layers, clamp, steps, *_, likeliest) in PUBLISHED.items():
        for full in (name, *(owned for owned in OWNED if owned.lower().endswith(f"/{name}"))):
            used = published_settings(editor, full, 99)
            assert (used.layer, used.clamp, used.steps, used.likeliest) == (layers[-1], clamp, steps, likeliest)
            assert (used.source, used.plain, used.rate, used.relative, used.stop) == (
                "published",
                None,
                0.5,
                False,
                0.05,
            )
            assert (used.kl, used.kl_at, used.decay) == (0.0625, "subject", 0.5)
            assert (used.scale_of, used.key_plain) == (("ffn", None) if editor == "rome" else ("stream", 0.5))
            if editor in ("rome", "encore"):
                assert default_settings(full, 99, editor).likeliest == likeliest
            if editor == "rome":
                assert default_settings(full, 99) == used


def test_only_gpt2_small_has_no_file() -> None:
    """Which numbers are ours is said beside them."""
    without = {name for by_name in (*EDITORS.values(), FT_L) for name, one in by_name.items() if not one.file}
    assert without == {"gpt2"}


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
