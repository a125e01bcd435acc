"""``ablate`` and ``knowledge_neurons`` against whole forward passes, and against what they must sum to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.core.sheets import Table
from ffnmem.interventions import Add, Mean, Scale, integrated_gradients, knowledge_neurons

from ..helpers import PROMPT, Pair, allclose, build_gpt2, build_twins, refuses
from ..planted_models import plant_facts
from .naive import IDS, exact, logits, run

NEURONS = [(1, 41), (0, 3), (0, 60), (1, 3)]
TARGET, FOIL = 17, 99


def check_effects(pair: Pair, how: Any, new: Callable[[torch.Tensor], Any], position: int, positions: Any) -> None:
    """Every number of a table by a pass of its own for each neuron. ``new``: what its coefficients become."""
    model = pair.model
    capture = fm.capture(model, IDS)
    cells = range(len(IDS) + position + 1 if position < 0 else position + 1) if positions is None else positions
    clean = logits(model, IDS)[0, position].double()
    for foil in (None, FOIL):
        found = fm.ablate(capture, TARGET, foil, position, neurons=NEURONS, how=how, positions=positions)
        assert sorted(zip(found.neurons["layer"], found.neurons["neuron"], strict=True)) == sorted(NEURONS)
        direct = fm.attribute(capture, TARGET, foil, position).neurons.set_index(["layer", "neuron"])["logit"]
        for row in found.neurons.itertuples():
            m = capture.coefficients[row.layer][0, :, row.neuron]
            value = (new(m) + 0 * m)[list(cells)]

            def edit(every: torch.Tensor, row: Any = row, value: Any = value) -> None:
                every[0, list(cells), row.neuron] = value

            without = logits(model, IDS, {row.layer: edit})[0, position].double()
            change = pair.before_cap(clean) - pair.before_cap(without)
            log, less = (x.log_softmax(-1)[TARGET] for x in (clean, without))
            logit = change[TARGET] - (0 if foil is None else change[foil])
            numbers = [logit, log.exp() - less.exp(), log - less]
            assert allclose([row.logit, row.probability, row.loss], numbers, exact(pair))
            reached = [p % len(IDS) for p in cells]
            after = m.clone()
            after[list(cells)] = value
            at = position % len(IDS)
            assert row.coefficient == pytest.approx(float(m[at]))
            if m[at] != 0:  # what attribution says that it adds, for the part of it that goes
                expected = direct[row.layer, row.neuron] * float((m - after)[at] / m[at])
                assert allclose(row.direct, expected, exact(pair))
            text = [p for p in reached if p] or reached  # not the beginning-of-sequence token's, if there are others
            assert abs(row.peak) == pytest.approx(float(m[text].abs().max()))
            assert row.peak == pytest.approx(float(m[row.peak_position]))


def test_equals_whole_passes(pair64: Pair) -> None:
    """A neuron left in place, a position too many, a layer skipped, or another token's logit would show here."""
    mean = fm.capture(pair64.model, IDS)

    def average(m: torch.Tensor) -> Any:
        return m[1:].mean()

    for how, new, position, positions in (
        ("zero", lambda m: 0.0, -1, None),
        (2.5, lambda m: 2.5, 4, None),
        (Scale(-1.5), lambda m: -1.5 * m, -3, [-3, 2]),
        (Add(3), lambda m: m + 3, -1, (2,)),
        ("mean", average, -1, (0,)),
        (Mean(mean), average, -1, (-4, 0)),
    ):
        check_effects(pair64, how, new, position, positions)


def test_which_neurons_and_how_many_at_once(tiny64: fm.Model) -> None:
    """The top ones by their direct effects; batches share rows that start in different layers."""
    capture = fm.capture(tiny64, PROMPT)
    expected = fm.attribute(capture, TARGET).top(7)
    whole = fm.ablate(capture, TARGET, most=7).neurons
    pairs = [(int(row.layer), int(row.neuron)) for row in expected.itertuples()]
    assert set(pairs) == set(zip(whole["layer"], whole["neuron"], strict=True))
    assert whole["logit"].abs().is_monotonic_decreasing
    calls: list[tuple[int, int]] = []
    for batch in (1, 3):
        report: Any = lambda *done: calls.append(done[1:])  # noqa: E731
        found = fm.ablate(capture, TARGET, neurons=pairs[::-1] + pairs[:1], batch=batch, progress=report).neurons
        assert allclose(found, whole, 1e-10)
    assert calls == [*((i, 7) for i in range(1, 8)), (3, 7), (6, 7), (7, 7)]
    assert len(fm.ablate(capture, TARGET, most=None).neurons) == tiny64.n_layers * tiny64.d_mlp
    assert fm.ablate(capture, most=1).target_id == int(capture.logits_at(0, -1).argmax())
    assert fm.ablate(capture, fm.prompts.NEXT, position=2, most=1).target_id == int(capture.tokens[0, 3])


def test_rows_of_a_batch(tiny64: fm.Model) -> None:
    """Pads of a shorter prompt are no text."""
    capture, single = fm.capture(tiny64, [PROMPT, "The city of"]), fm.capture(tiny64, "The city of")
    alone, found = fm.ablate(single, TARGET), fm.ablate(capture, TARGET, prompt=1)
    assert (found.tokens, found.position) == (alone.tokens, alone.position)
    assert allclose(found.neurons, alone.neurons, 1e-6)
    assert allclose(knowledge_neurons(capture, TARGET, prompt=1), knowledge_neurons(single, TARGET), 1e-6)


def test_what_an_ablation_says(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    logit = capture.logits_at(0, 3).double()
    found = fm.ablate(capture, " Paris", " Rome", 3, most=23, positions=[3, -7, 3])
    assert (found.target, found.foil, found.position) == (" Paris", " Rome", 3)
    assert found.positions == tuple(sorted({3, len(capture.token_strings()) - 7}))
    assert found.logit == pytest.approx(float(logit[found.target_id] - logit[found.foil_id]), abs=1e-5)
    assert found.probability == pytest.approx(float(logit.softmax(-1)[found.target_id]), abs=1e-6)
    assert found.loss == pytest.approx(-np.log(found.probability))
    record = found.neurons.attrs["provenance"]
    assert record == found.provenance.to_dict()
    assert (record["ablated"], record["positions"]) == ("set to zero", list(found.positions or ()))
    assert found.removed == "set to zero at positions 2, 3"
    assert fm.ablate(capture, " Paris", most=1).removed.endswith("at every position")
    (table,) = (block for block in found.sheet(20).blocks if isinstance(block, Table))
    assert len(table.rows) == 20
    for row, expected in zip(table.rows, found.neurons.itertuples(), strict=False):
        assert row[0] == (expected.layer, expected.neuron)
        assert row[3:5] == (expected.direct, expected.logit)
    assert "3 more" in table.caption


def test_agreement_of_direct_and_total_effects(tiny: fm.Model) -> None:
    """By ranks, and by signs; an effect of zero has none."""
    found = fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", most=9)

    def with_effects(direct: list[float], total: list[float]) -> fm.interventions.Ablation:
        return replace(found, neurons=found.neurons.head(len(direct)).assign(direct=direct, logit=total))

    some = with_effects([1.0, 2.0, -3.0, 0.0], [0.1, 40.0, 5.0, -1.0])
    assert some.spearman == pytest.approx(np.corrcoef([2, 3, 0, 1], [1, 3, 2, 0])[0, 1])
    assert some.opposite == 1
    assert some.verdict.startswith("4 neurons removed one at a time: for 1 of them")
    one = with_effects([1.0], [-0.1]).verdict
    assert f" gains 0.100 logits of {found.logit:.3f}; the neuron itself wrote +1.000." in one
    assert some.verdict.endswith("a rank correlation of 0.40.")
    assert "correlation" not in with_effects([1.0, 1.0], [2.0, 3.0]).verdict
    assert with_effects([1.0, 1.0], [2.0, 3.0]).to_dict()["spearman"] is None
    assert with_effects([1.0, 2.0], [2.0, 3.0]).spearman == pytest.approx(1)
    twins = fm.capture(fm.load(build_twins(tiny.tokenizer), tokenizer=tiny.tokenizer), PROMPT)
    nothing = fm.ablate(twins, " Paris", " Rome", neurons=NEURONS)
    assert (nothing.logit, nothing.opposite, nothing.neurons["logit"].abs().max()) == (0, 0, 0)


def test_paths_choose_what_is_recalled_early() -> None:
    """The neuron of an early fact has no direct effect at the answer, and the largest along paths."""
    planted = plant_facts(1, n_subjects=8, n_relations=1, n_objects=3)
    fact = planted.facts[0]
    truth = planted.truth[(planted.truth["role"] == "fact") & (planted.truth["subject"] == fact.subject)]
    own = (int(truth["layer"].iloc[0]), int(truth["neuron"].iloc[0]))
    capture = fm.capture(planted.model, fact.text)
    found = fm.ablate(capture, f" {fact.target_true}", most=1, by="paths").neurons
    assert list(zip(found["layer"], found["neuron"], strict=True)) == [own]
    assert found["probability"].iloc[0] > 0.5
    direct = fm.ablate(capture, f" {fact.target_true}", most=5).neurons
    assert own not in set(zip(direct["layer"], direct["neuron"], strict=True))


# -- knowledge neurons -------------------------------------------------------------------------------------------------


def integrated(model: fm.Model, layer: int, position: int, steps: int) -> tuple[torch.Tensor, float]:
    """mᵢ times the mean of ∂P/∂mᵢ at the midpoints, by whole passes; P with the layer's coefficients 0."""
    m = fm.capture(model, IDS).coefficients[layer][0, position]

    def chance(leaf: torch.Tensor) -> torch.Tensor:
        edits = {layer: lambda every: every.__setitem__((0, position), leaf)}
        return run(model, IDS, edits)[0, position].softmax(-1)[TARGET]

    leaves = [(m * (step + 0.5) / steps).requires_grad_() for step in range(steps)]
    slopes = [torch.autograd.grad(chance(leaf), leaf)[0] for leaf in leaves]
    return m * torch.stack(slopes).mean(0), float(chance(torch.zeros_like(m)).detach())


def test_knowledge_neurons_equal_whole_passes(pair64: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair64.model
    for position, batch in ((-1, 64), (4, 1)):
        monkeypatch.setattr(integrated_gradients, "BATCH", batch)
        capture = fm.capture(model, IDS)
        found = knowledge_neurons(capture, TARGET, position, steps=3)
        probability, missed = float(logits(model, IDS)[0, position].softmax(-1)[TARGET].detach()), []
        for layer in range(2):
            attributions, without = integrated(model, layer, position, 3)
            rows = found[found["layer"] == layer].sort_values("neuron")
            assert allclose(rows["attribution"], attributions, exact(pair64))
            assert allclose(rows["coefficient"], capture.coefficients[layer][0, position], exact(pair64))
            missed.append(abs(float(attributions.sum()) - (probability - without)))
        assert allclose(found.attrs["probability"], probability, exact(pair64))
        assert found.attrs["error"] == pytest.approx(max(missed), rel=1e-3, abs=exact(pair64))


def test_completeness(tiny64: fm.Model) -> None:
    """A layer's attributions sum to what its coefficients add to the probability, as the steps grow."""
    capture = fm.capture(tiny64, PROMPT)
    coarse, fine = (knowledge_neurons(capture, steps=steps).attrs["error"] for steps in (200, 400))
    assert fine < 1e-4
    assert fine < coarse / 3  # with the square of the steps


def test_knowledge_neurons_of_several_prompts(tiny: fm.Model) -> None:
    """Means over the prompts, and the share of them in which a neuron passes the threshold of the prompt's own."""
    captures = [fm.capture(tiny, text) for text in (PROMPT, "The city of", "The Tower is in")]
    alone = [knowledge_neurons(capture, " Paris", threshold=0.5) for capture in captures]
    found = knowledge_neurons(captures, " Paris", threshold=0.5)
    for frame in (*alone, found):
        assert frame["attribution"].abs().is_monotonic_decreasing
        assert allclose(frame["share"], frame["attribution"] / frame["attribution"].max())
    ordered = [frame.set_index(["layer", "neuron"]).sort_index() for frame in (*alone, found)]
    for name in ("attribution", "coefficient", "prompts"):
        assert allclose(ordered[-1][name], np.mean([one[name] for one in ordered[:-1]], axis=0), 1e-6)
    other = fm.capture(fm.load(build_gpt2(), tokenizer=tiny.tokenizer, dtype="float64"), PROMPT)
    with refuses(InputError, ValueError, "one model"):
        knowledge_neurons([captures[0], other], " Paris")
    for one in alone:
        assert one["prompts"].tolist() == [float(share >= 0.5) for share in one["share"]]
    assert found.attrs["target"] == " Paris"
    assert found.attrs["provenance"]["prompts"] == 3
    own = knowledge_neurons(captures[:2]).attrs["target"]  # the first prompt's own answer, of both
    assert own == knowledge_neurons(captures[0]).attrs["target"]


# -- refused -----------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, dict[str, Any], Any, tuple[str, ...]]] = [
    (fm.ablate, {"neurons": [(2, 0)]}, OutOfRangeError, ("layer 2", "0 to 1")),
    (fm.ablate, {"neurons": []}, InputError, ("neurons is empty",)),
    (fm.ablate, {"neurons": [(3, 17, 1)]}, InputError, ("(layer, neuron)",)),
    (fm.ablate, {"positions": []}, InputError, ("positions is empty",)),
    (fm.ablate, {"position": 2, "positions": [1, 3]}, InputError, ("position 3", "right of the answer's, 2")),
    (fm.ablate, {"target": fm.prompts.NEXT}, InputError, ("NEXT",)),
    (fm.ablate, {"how": "gone"}, InputError, ("'gone'", "'zero'", "'mean'")),
    (knowledge_neurons, {"threshold": 0.0}, InputError, ("threshold",)),
]


def test_what_is_refused(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    for call, options, kind, named in REFUSED:
        with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, *named):
            call(capture, **options)
    with refuses(InputError, ValueError, "captures is empty"):
        knowledge_neurons([])
    assert knowledge_neurons(capture, " Paris Rome", first_token=True).attrs["target"] == " Paris"


@pytest.mark.parametrize("call", [fm.ablate, knowledge_neurons])
def test_a_capture_that_does_not_fit(call: Any, make_tiny: Callable[..., fm.Model], tiny_hf: Any) -> None:
    """Of some layers, of an intervention, of a model that is another one by now, or with hooks of the user's."""
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "every layer"):
        call(fm.capture(model, PROMPT, layers=1))
    with fm.intervene(model, {(0, 3): 1.0}):
        with refuses(InputError, ValueError, "0.3 = 1"):
            call(capture)
        under = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "under an intervention", "0.3 = 1"):
        call(under)
    bridged = fm.load(model.to_bridge())
    with bridged.to_bridge().hooks(fwd_hooks=[("blocks.0.mlp.hook_post", lambda value, hook: value * 0.5)]):
        halved = fm.capture(bridged, PROMPT)
    with refuses(InputError, ValueError, "by themselves", "hooks", "compatibility mode"):
        call(halved)
    with torch.no_grad():
        model.ffn[0].values[3] += 1
    with refuses(InputError, ValueError, "changed"):
        call(capture)
