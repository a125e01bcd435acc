"""``contrast``: the firings that decide between two prompts' answers, and that what is said of them is so."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, unwarned
from ffnmem.interventions import contrast_over
from ffnmem.interventions.contrasts import align
from ffnmem.interventions.contrasts_over import find_at_places, find_recurring, name_places
from ffnmem.models import Model

from ..helpers import PROMPT, Pair, changed_answer
from ..planted_models import Planted, plant_facts

TEXTS = (PROMPT, "The Eiffel Tower is in Paris and in the city")
TOWER, KREMLIN = "The Eiffel Tower is located in the city of", "The Kremlin is located in the city of"


@pytest.fixture(scope="module")
def found(atlas: Model) -> fm.interventions.Contrast:
    return fm.contrast(atlas, TOWER, KREMLIN)


def likelier_first(model: Model, target: str, foil: str) -> list[str]:
    """The texts, that first after which the target is the likelier of the two."""
    return sorted(TEXTS, key=lambda text: -fm.attribute(fm.capture(model, text), target, foil).logit)


def check_proof(model: Model, found: fm.interventions.Contrast, one: str, other: str, close: float) -> None:
    """Its three shares and its single exchanges, each by a pass of the model of its own."""
    here, there = fm.capture(model, one), fm.capture(model, other)
    target, foil = found.answer.read[0], found.answer.foil_id
    assert foil is not None
    places = found.alignment
    own = [here.coefficients[layer][0] for layer in range(model.n_layers)]
    theirs = [there.coefficients[layer][0] for layer in range(model.n_layers)]
    chosen = torch.zeros(found.scores.shape, dtype=torch.bool)
    for row in found.firings.itertuples():
        chosen[row.layer, row.position, row.neuron] = True
    bos = [0] * found.starts_with_bos

    def others_at(kept: torch.Tensor) -> Any:
        kept = kept.clone()
        kept[:, [*bos, *found.kept]] = True
        at = torch.tensor(places).clamp(min=0)
        return lambda layer, m: torch.where(kept[layer], m, theirs[layer][at])

    def brought(layer: int, m: torch.Tensor) -> torch.Tensor:
        m = m.clone()
        for row in found.firings[found.firings["layer"] == layer].itertuples():
            m[places[row.position], row.neuron] = own[layer][row.position, row.neuron]
        return m

    def all_brought(layer: int, m: torch.Tensor) -> torch.Tensor:
        m = m.clone()
        for place, partner in enumerate(places):
            if partner >= 0 and place not in bos:
                m[partner] = own[layer][place]
        return m

    everything, nothing, kept, lacking = (
        changed_answer(model, here.tokens, target, foil, others_at(mask))
        for mask in (torch.ones_like(chosen), torch.zeros_like(chosen), chosen, ~chosen)
    )
    assert found.logit == pytest.approx(everything, abs=close)
    assert found.without == pytest.approx(nothing, abs=close)
    assert found.share("sufficiency") == pytest.approx((kept - nothing) / (everything - nothing), abs=10 * close)
    assert found.share("necessity") == pytest.approx((everything - lacking) / (everything - nothing), abs=10 * close)
    plain = changed_answer(model, there.tokens, target, foil, lambda _layer, m: m)
    full, some = (changed_answer(model, there.tokens, target, foil, change) for change in (all_brought, brought))
    assert found.counterfactual_logit == pytest.approx(plain, abs=close)
    assert found.share("transfer") == pytest.approx((some - plain) / (full - plain), abs=10 * close)
    assert found.carried == pytest.approx((everything - nothing) / (everything - plain), abs=10 * close)
    assert found.carried_over == pytest.approx((full - plain) / (everything - plain), abs=10 * close)
    first = found.firings.iloc[0]
    only = torch.ones_like(chosen)
    only[first["layer"], first["position"], first["neuron"]] = False
    alone = changed_answer(model, here.tokens, target, foil, others_at(only))
    assert first["exact"] == pytest.approx(everything - alone, abs=10 * close)
    slopes, (layer, neuron, place) = [], (int(first[name]) for name in ("layer", "neuron", "position"))
    for run, at, whole in ((here, place, everything), (there, places[place], plain)):
        step = torch.zeros_like(run.coefficients[layer][0])
        step[at, neuron] = 1e-4
        bent = changed_answer(model, run.tokens, target, foil, lambda now, m, step=step: m + step * (now == layer))
        slopes.append((bent - whole) / 1e-4)
    away = float(own[layer][place, neuron] - theirs[layer][places[place], neuron])
    assert first["score"] == pytest.approx(away * sum(slopes) / 2, rel=0.01, abs=1e3 * close)


@pytest.mark.parametrize("recorded", [False, True])
def test_scores_are_the_mean_of_two_gradients_of_one_kind(tiny64: Model, recorded: bool) -> None:
    """FFNs react in both runs, or stay as they were in both."""
    one, other = likelier_first(tiny64, " Paris", " Rome")
    with unwarned():
        found = fm.patch(tiny64, one, other, [(0, 0, 1)], " Paris", " Rome", recorded=recorded, random=1)
    foil = found.answer.foil_id
    runs, slopes = [fm.capture(tiny64, text) for text in (one, other)], []
    for run in runs:
        m = [some.clone().requires_grad_() for some in run.coefficients.values()]

        def hook(layer: int, _module: Any, args: tuple[Any, ...], m: list[torch.Tensor] = m) -> torch.Tensor:
            computed = args[0] + (m[layer] - m[layer].detach()).reshape(args[0].shape)
            return m[layer].reshape(args[0].shape) if recorded else computed

        with ExitStack() as hooks, torch.enable_grad():
            for layer, ffn in enumerate(tiny64.ffn):
                hooks.callback(ffn.project_out.register_forward_pre_hook(partial(hook, layer)).remove)
            logits = tiny64.hf_model(run.tokens).logits[0, -1]
            slopes.append(torch.autograd.grad(logits[found.target_id] - logits[foil], m))
    for layer, (here, there) in enumerate(zip(*slopes, strict=True)):
        for place, partner in enumerate(found.alignment):
            away = runs[0].coefficients[layer][0, place] - runs[1].coefficients[layer][0, partner]
            mean = (here[0, place] + there[0, partner]) / 2
            free = partner >= 0 and (place or not found.starts_with_bos)
            expected = away * mean if free else torch.zeros_like(away)
            assert (found.scores[layer, place] - expected).abs().max() < 1e-10


def test_what_is_said_is_what_passes_of_the_model_give(pair64: Pair) -> None:
    """Other firings would be kept or exchanged than is said; edges sum to the difference of what nodes read."""
    model = pair64.model
    if model.layout.soft_cap is not None:
        pytest.skip("its logits are capped, and what is compared is the logit before")
    with unwarned():  # a random model says the same after both
        one, other = likelier_first(model, " Paris", " Rome")
        found = fm.contrast(model, one, other, " Paris", " Rome", random=2)
    assert min(found.share("sufficiency"), found.share("necessity")) >= 0.9
    check_proof(model, found, one, other, 1e-5 if pair64.rounds_attention else 1e-8)
    graph = found.graph(12)
    close = 1e-5 if pair64.rounds_attention else 1e-9
    assert graph.error < close
    assert graph.edges.groupby(["target", "input"])["share"].sum().tolist() == pytest.approx([1.0] * len(graph.nodes))
    sums = graph.edges.groupby("target")["weight"].sum()
    assert sums["answer"] == pytest.approx(found.logit - found.counterfactual_logit, abs=close)
    here, there = fm.capture(model, one), fm.capture(model, other)
    for row in graph.nodes[graph.nodes["kind"] == "firing"].itertuples():
        read = here.pre[row.layer][0, row.position, row.neuron]
        less = there.pre[row.layer][0, found.alignment[row.position], row.neuron]
        assert row.reads == pytest.approx(float(read - less), abs=close)
    assert set(graph.edges["source"]) <= {*graph.nodes["id"], "rest"}


def test_a_tower_and_a_palace_in_atlas(found: fm.interventions.Contrast) -> None:
    assert (found.target, found.foil) == (" Paris", " Moscow")
    assert found.share("sufficiency") >= 0.9
    assert found.share("necessity") >= 0.9
    assert 0 < len(found.firings) < found.total / 50
    assert found.firings["score"].abs().is_monotonic_decreasing
    row = found.proof.set_index("measure").loc["sufficiency"]
    assert row["random_high"] < 0.1
    assert name_places(found) == [*["before"] * 2, *["differing"] * 2, *["after"] * 5, "last"]


def test_alignment() -> None:
    assert align([1, 2, 3, 4], [1, 7, 3, 4]) == (0, 1, 2, 3)
    assert align([1, 5, 6, 3], [1, 7, 3]) == (0, -1, 1, 2)
    assert align([1, 7, 3], [1, 5, 6, 3]) == (0, 2, 3)
    assert align([1, 2], [1, 2, 2]) == (0, 2)  # an end that is aligned already is not counted twice
    assert align([4, 5], [6, 7, 8]) == (1, 2)


def test_an_alignment_of_ones_own(tiny64: Model) -> None:
    """Firings without a partner are left out; the one that is found by itself, given, is the same."""
    one, other = likelier_first(tiny64, " Paris", " Rome")
    ask = partial(fm.contrast, tiny64, one, other, " Paris", " Rome", random=1)
    with unwarned():  # a random model says the same after both
        found = ask()
        again = ask(alignment=[None if p < 0 else p for p in found.alignment], batch_tokens=64)
        ends = [None] * (len(found.tokens) - 1) + [len(found.counterfactual_tokens) - 1]
        only = ask(alignment=ends, recorded=True)
    assert again.firings.equals(found.firings)
    met = sum(partner >= 0 for partner in found.alignment[found.starts_with_bos :])
    assert found.total == found.scores.shape[0] * found.scores.shape[2] * met
    assert only.values != found.values
    assert set(only.firings["position"]) == {len(found.tokens) - 1}
    assert only.total == found.scores.shape[0] * found.scores.shape[2]


def test_answers_that_begin_alike(tiny64: Model) -> None:
    """What they share belongs to both prompts, and has a partner whatever alignment is given."""
    answers = " Paris Rome", " Paris London"
    with unwarned():
        one, other = likelier_first(tiny64, *answers)
        ask = partial(fm.contrast, tiny64, one, other, *answers, random=1)
        found = ask()
        again = ask(alignment=[None if place < 0 else place for place in found.alignment[:-1]])
    assert found.alignment[-1] == len(found.counterfactual_tokens) - 1 == fm.capture(tiny64, other).tokens.shape[1]
    assert again.firings.equals(found.firings)
    graph, first = found.graph(6), found.firings["score"].head(6).abs()
    assert repr(graph).startswith("Circuit(target")  # without a verdict
    assert graph.nodes["influence"][1:].tolist() == pytest.approx((first / first.sum()).tolist())
    assert graph.error < 1e-9
    sums = graph.edges.groupby("target")["weight"].sum()
    assert sums["answer"] == pytest.approx(found.logit - found.counterfactual_logit, abs=1e-9)
    kept = [place for place, partner in enumerate(found.alignment) if partner < 0 and place]
    assert bool(found.not_aligned) == bool(kept)


def test_what_people_read(found: fm.interventions.Contrast) -> None:
    text = found.to_markdown()
    for words in ("decide between", "Kremlin", "random", "alike", "through FFNs", "transfer"):
        assert words in text
    assert len(found.top(3)["promotes"].iloc[0]) == 5
    assert found.to_dict()["proof"][0]["measure"] == "sufficiency"
    turned = found.firings["coefficient"] * found.firings["difference"] < 0
    assert turned.any()  # of these a negative coefficient's tokens are not those that its value suppresses
    assert "a negative coefficient" not in text
    assert "and what coefficient − counterfactual promotes" in text


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"counterfactual": TOWER}, "the same tokens"),
    ({"counterfactual": "The Louvre is located in the city of"}, "after both prompts"),
    ({"target": " Moscow", "foil": " Paris"}, "no likelier"),
    ({"goal": 2.0}, "goal"),
    ({"alignment": [0, 1]}, "alignment has for each"),
    ({"target": " Paris", "foil": " Paris"}, "the same"),
    ({"prompt": ""}, "empty"),
]


def test_refused(atlas: Model) -> None:
    for given, says in REFUSED:
        with pytest.raises(FfnmemError, match=says):
            fm.contrast(atlas, **{"prompt": TOWER, "counterfactual": KREMLIN, **given})


def test_given_firings_are_exchanged_alike(atlas: Model, found: fm.interventions.Contrast) -> None:
    again = fm.patch(atlas, TOWER, KREMLIN, found, random=10)
    assert again.firings.equals(found.firings)
    assert again.proof.equals(found.proof)
    one = fm.patch(atlas, TOWER, KREMLIN, found.firings.head(1), random=2)
    assert one.share("necessity") * (one.logit - one.without) == pytest.approx(found.firings["exact"][0], abs=1e-4)
    assert "1 given of" in one.verdict
    with pytest.raises(fm.InputError, match="no partner"):
        fm.patch(atlas, TOWER, KREMLIN, [(0, 0, 0)])


def test_what_the_verdict_is_of_is_said(atlas: Model, found: fm.interventions.Contrast) -> None:
    """Shares are of what FFNs carry; and what is found need not decide, where the answer is the same in both runs."""
    assert "passes through FFNs (91% of all)" in found.verdict
    assert found.says == (" Paris", " Moscow")
    with pytest.warns(fm.FfnmemWarning, match="prefers ' Paris' to ' banana' after both prompts"):
        fm.patch(atlas, TOWER, KREMLIN, found.firings.head(2), " Paris", " banana", random=1)


@pytest.fixture(scope="module", params=["early", pytest.param("late", marks=pytest.mark.exhaustive)])
def planted(request: pytest.FixtureRequest) -> Planted:
    return plant_facts(3, request.param, n_subjects=16, n_relations=1, n_objects=4)


def neurons_of(planted: Planted, *facts: fm.Fact) -> set[tuple[int, int]]:
    truth = planted.truth[planted.truth["subject"].isin([fact.subject for fact in facts])]
    return set(zip(truth["layer"], truth["neuron"], strict=True))


def test_what_was_planted_is_found(planted: Planted) -> None:
    """The neurons of both subjects and of both facts, at their places, and no others."""
    hits = found = wanted = 0
    for one, other in zip(planted.facts[::2], planted.facts[1::2], strict=True):
        if one.target_true == other.target_true:
            continue
        expected = neurons_of(planted, one, other)
        answers = f" {one.target_true}", f" {other.target_true}"
        firings = fm.contrast(planted.model, one.text, other.text, *answers, random=1).firings
        seen = set(zip(firings["layer"], firings["neuron"], strict=True))
        hits, found, wanted = hits + len(seen & expected), found + len(firings), wanted + len(expected)
    assert wanted >= 20
    assert hits / found >= 0.95
    assert hits / wanted >= 0.95


def test_what_recurs_is_tried_on_other_pairs(planted: Planted, tmp_path: Path) -> None:
    """Of pairs with the same counterfactual its own neurons recur, and decide where they were not looked for."""
    last, steps = planted.facts[-1], list[tuple[str, int, int]]()
    others = [fact for fact in planted.facts if fact.target_true != last.target_true][:4]
    pairs = [(one.text, last.text, f" {one.target_true}", f" {last.target_true}") for one in others]
    asked: dict[str, Any] = {"goal": 0.95, "random": 1, "out": tmp_path / "task"}
    task = contrast_over(planted.model, pairs, **asked, progress=lambda *step: steps.append(step))
    assert task.n == len(task.held_out) == 4
    assert steps == [("contrasts", done, 8) for done in range(1, 9)]
    assert len(list((tmp_path / "task" / "pairs").iterdir())) == 4
    alone = [fm.contrast(planted.model, *pair, goal=0.95, random=1) for pair in pairs]
    assert task.pairs["firings"].tolist() == [len(one.firings) for one in alone]
    assert task.pairs["sufficiency"].min() >= 0.95
    half = np.random.default_rng(0).permutation(4) % 2
    for number, one in enumerate(alone):
        others = [each for each, side in zip(alone, half, strict=True) if side != half[number]]
        assert task.held_out["size"][number] == len(find_at_places(one, find_recurring(others)))
    places: dict[tuple[int, int, str], set[int]] = {}
    for number, one in enumerate(alone):
        same = [one.tokens[p] == one.counterfactual_tokens[other] for p, other in enumerate(one.alignment)]
        for row in one.firings.itertuples():
            away = "after" if same[row.position] and not all(same[: row.position]) else "differing"
            at = "last" if row.position == len(same) - 1 else "before" if all(same[: row.position + 1]) else away
            places.setdefault((row.layer, row.neuron, at), set()).add(number)
    listed = task.recurring.set_index(["layer", "neuron", "place"])["pairs"].to_dict()
    assert listed == {place: len(there) / 4 for place, there in places.items() if len(there) > 1}
    every = task.recurring[task.recurring["pairs"] == 1.0]
    assert set(zip(every["layer"], every["neuron"], strict=True)) <= neurons_of(planted, last)
    assert set(every["place"]) <= {"last", "differing", "after"}
    assert (task.held_out["size"] > 0).all()
    kept, low, high = task.summary_of_held_out["sufficiency"]
    assert low <= kept <= high
    assert kept > task.summary_of_held_out["random"][0] + 0.1
    assert contrast_over(planted.model, pairs, **asked).recurring.equals(task.recurring)
    assert "other half" in task.to_markdown()
    for wrong, says in (
        ([pairs[0]], "two or more"),
        ([("a",), ("b",)], "a pair is"),
        ([pairs[0], (1, 2)], "a pair is"),
        ([pairs[0], (pairs[1][1], pairs[1][0], *pairs[1][2:])], "pair 2, .* is no likelier"),
    ):
        with pytest.raises(fm.InputError, match=says):
            contrast_over(planted.model, wrong)  # type: ignore[arg-type]
