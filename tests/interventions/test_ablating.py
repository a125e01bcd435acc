"""``ablate`` against one whole forward pass for each neuron."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.core.sheets import Table

from ..helpers import PROMPT, Pair, allclose, build_twins, hook_count, refuses
from .naive import IDS, exact, logits, setting

NEURONS = [(1, 41), (0, 3), (0, 60), (1, 3)]
TARGET, FOIL = 17, 99
Positions = SupportsIndex | Iterable[SupportsIndex] | None


def naive_effects(
    pair: Pair, neurons: list[tuple[int, int]], value: float, position: int, cells: Any
) -> dict[tuple[int, int], list[float]]:
    """What each neuron adds to the logit, its difference to the foil's, the probability, and the loss it saves."""
    found = {}
    clean = logits(pair, IDS)[0, position].double()
    for layer, neuron in neurons:
        without = logits(pair, IDS, {layer: setting(neuron, value, cells)})[0, position].double()
        log, log_without = (x.log_softmax(-1)[TARGET] for x in (clean, without))
        change = pair.before_cap(clean) - pair.before_cap(without)
        numbers = [change[TARGET], change[TARGET] - change[FOIL], log.exp() - log_without.exp(), log - log_without]
        found[layer, neuron] = [float(number) for number in numbers]
    return found


@pytest.mark.parametrize(
    ("position", "positions"), [(-1, None), (4, None), (-1, 2), (-1, (-4, 0)), (-1, [9]), (-3, [-3, 2])]
)
def test_equals_whole_passes(pair64: Pair, position: int, positions: Positions) -> None:
    """A neuron left in place, a position too many, a layer skipped, or another token's logit would show here."""
    cells = slice(None) if positions is None else positions
    expected = naive_effects(pair64, NEURONS, 0.0, position, cells)
    capture = fm.capture(pair64.model, IDS)
    for foil, column in ((None, 0), (FOIL, 1)):
        found = fm.ablate(capture, TARGET, foil, position, neurons=NEURONS, positions=positions).neurons
        assert sorted(zip(found["layer"], found["neuron"], strict=True)) == sorted(NEURONS)
        for row in found.itertuples():
            numbers = [expected[row.layer, row.neuron][i] for i in (column, 2, 3)]
            assert allclose([row.logit, row.probability, row.loss], numbers, exact(pair64))


def test_the_peak_is_where_the_neuron_fires(tiny: fm.Model) -> None:
    """The coefficient at the answer, where a neuron that writes at the subject does not fire; or that of BOS."""
    capture = fm.capture(tiny, PROMPT)
    for positions in (None, (2, 3), (0,)):
        frame = fm.ablate(capture, TARGET, by="paths", top=9, positions=positions).neurons
        at = range(1, capture.length()) if positions is None else positions
        for row in frame.itertuples():
            m = capture.coefficients[row.layer][0, :, row.neuron]
            assert row.peak_position == max(at, key=lambda p: abs(float(m[p])))
            assert row.peak == pytest.approx(float(m[row.peak_position]), abs=1e-6)
            assert row.coefficient == pytest.approx(float(m[-1]), abs=1e-6)


def test_equals_whole_passes_in_float32(pair: Pair) -> None:
    expected = naive_effects(pair, NEURONS, 2.5, -1, slice(None))
    found = fm.ablate(fm.capture(pair.model, IDS), TARGET, neurons=NEURONS, how=2.5).neurons
    for row in found.itertuples():
        assert allclose(
            [row.logit, row.probability, row.loss], np.array(expected[row.layer, row.neuron])[[0, 2, 3]], 1e-5
        )


@pytest.mark.parametrize(
    "how",
    ["mean", fm.interventions.Scale(-1.5), fm.interventions.Add(3), "resample", fm.interventions.Set(4.0)],
    ids=str,
)
@pytest.mark.parametrize("positions", [None, (3, 5)])
def test_equals_intervene(model64: fm.Model, how: Any, positions: Positions) -> None:
    """The same words would mean another thing in the two functions."""
    model = model64
    capture = fm.capture(model, IDS)
    source = fm.capture(model, [PROMPT, "The Tower"])
    change = {"mean": fm.interventions.Mean(capture), "resample": fm.interventions.Resample(source, seed=3)}.get(
        how, how
    )
    found = fm.ablate(
        capture, TARGET, neurons=NEURONS, how=change if how == "resample" else how, positions=positions
    ).neurons
    clean = capture.logits_at(0, -1)[TARGET]
    for row in found.itertuples():
        with fm.intervene(model, {(row.layer, row.neuron): change}, positions=positions):
            after = fm.capture(model, IDS)
        assert allclose(row.logit, clean - after.logits_at(0, -1)[TARGET], 1e-10)


def test_atlas_to_the_bar(atlas: fm.Model) -> None:
    """Equal to 1e-5 in float32, on a model that was trained."""
    capture = fm.capture(atlas, "The Eiffel Tower is located in the city of")
    found = fm.ablate(capture, " Paris", top=12)
    paris = atlas.token_id(" Paris")
    assert found.logit == pytest.approx(float(capture.logits_at(0, -1)[paris]), abs=1e-4)
    assert len(found.neurons) == 12
    for row in found.neurons.itertuples():
        with fm.intervene(atlas, {(row.layer, row.neuron): 0.0}):
            after = fm.capture(atlas, capture.tokens).logits_at(0, -1)
        assert allclose(found.logit - row.logit, after[paris], 1e-5)
        assert allclose(found.probability - row.probability, after.softmax(-1)[paris], 1e-5)


def test_direct_effects_are_attributes(tiny: fm.Model) -> None:
    """Every neuron; the last layer's total effect is then known in closed form, since only the norm stands above."""
    capture = fm.capture(tiny, PROMPT)
    attribution = fm.attribute(capture, TARGET, FOIL)
    found = fm.ablate(capture, TARGET, FOIL, top=None)
    assert len(found.neurons) == tiny.n_layers * tiny.d_mlp
    both = found.neurons.merge(attribution.neurons, on=["layer", "neuron"], suffixes=("", "_direct"))
    assert allclose(both["direct"], both["logit_direct"], 1e-5)
    assert allclose(both["coefficient"], both["coefficient_direct"], 1e-5)
    assert capture.residual is not None
    for row in both[both["layer"] == tiny.n_layers - 1].itertuples():
        left = capture.residual.final_in[0, -1] - row.coefficient * tiny.ffn[row.layer].values[row.neuron]
        after = tiny.logits_of(tiny.layout.final_norm(left.detach()))
        assert allclose(found.logit - row.logit, after[TARGET] - after[FOIL], 1e-5)


def test_the_top_ones_are_attributions(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    expected = fm.attribute(capture, TARGET).top(7)
    found = fm.ablate(capture, TARGET, top=7).neurons
    assert set(zip(found["layer"], found["neuron"], strict=True)) == set(
        zip(expected["layer"], expected["neuron"], strict=True)
    )
    assert found["logit"].abs().is_monotonic_decreasing
    best = int(capture.logits_at(0, -1).argmax())
    assert fm.ablate(capture, top=1).target_id == best


def test_batches_and_their_order_change_nothing(model64: fm.Model) -> None:
    """Rows that start in different layers share a batch."""
    capture = fm.capture(model64, IDS)
    calls: list[tuple[int, int]] = []
    whole = fm.ablate(capture, TARGET, neurons=NEURONS)
    for batch, among in ((1, NEURONS), (3, NEURONS[::-1] + NEURONS[:1]), (64, [list(pair) for pair in NEURONS])):
        found = fm.ablate(capture, TARGET, neurons=among, batch=batch, progress=lambda *done: calls.append(done[1:]))  # type: ignore[arg-type]
        assert found.neurons[["layer", "neuron"]].equals(whole.neurons[["layer", "neuron"]])
        assert allclose(found.neurons, whole.neurons, 1e-10)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4), (3, 4), (4, 4), (4, 4)]


def test_what_changes_nothing_has_no_effect(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    for how in (fm.interventions.Scale(1.0), fm.interventions.Add(0.0)):
        found = fm.ablate(capture, TARGET, neurons=NEURONS, how=how)
        assert allclose(found.neurons[["direct", "logit", "probability", "loss"]], np.zeros((4, 4)), 1e-5)
    twins = fm.capture(fm.load(build_twins(tiny.tokenizer), tokenizer=tiny.tokenizer), PROMPT)
    nothing = fm.ablate(twins, " Paris", " Rome", neurons=NEURONS)
    assert nothing.logit == 0.0
    assert (nothing.neurons["logit"] == 0).all()
    earlier = fm.ablate(capture, TARGET, neurons=[(tiny.n_layers - 1, 3)], positions=2).neurons
    assert allclose(earlier[["direct", "logit"]], np.zeros((1, 2)), 1e-5)  # the last layer's reach nothing else


def test_rows_of_a_batch(model64: fm.Model) -> None:
    """Pads of a shorter prompt are no text; means are over the whole capture's content."""
    capture = fm.capture(model64, ["The city of", PROMPT])
    alone = fm.ablate(fm.capture(model64, "The city of"), TARGET, neurons=NEURONS)
    found = fm.ablate(capture, TARGET, neurons=NEURONS, prompt=0)
    assert found.tokens == alone.tokens
    assert found.position == alone.position
    assert allclose(found.neurons, alone.neurons, 1e-6)


def test_what_an_ablation_records(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    logit = capture.logits_at(0, 3).double()
    found = fm.ablate(capture, " Paris", " Rome", 3, neurons=[(-1, -1)], positions=[3, -7, 3])
    assert (found.target, found.foil, found.position) == (" Paris", " Rome", 3)
    assert found.positions == (len(capture.token_strings()) - 7, 3) or found.positions == (3,)
    assert found.neurons[["layer", "neuron"]].to_numpy().tolist() == [[tiny.n_layers - 1, tiny.d_mlp - 1]]
    assert found.logit == pytest.approx(float(logit[found.target_id] - logit[found.foil_id]), abs=1e-5)
    assert found.probability == pytest.approx(float(logit.softmax(-1)[found.target_id]), abs=1e-6)
    assert found.loss == pytest.approx(-np.log(found.probability))
    record = found.neurons.attrs["provenance"]
    assert record == found.provenance.to_dict()
    assert record["fingerprint"] == tiny.fingerprint
    assert (record["ablated"], record["positions"]) == ("set to zero", list(found.positions or ()))
    drawn = fm.ablate(capture, 5, neurons=NEURONS, how=fm.interventions.Resample(capture, seed=7))
    assert drawn.provenance.to_dict()["seed"] == 7
    assert drawn.how == "resampled from a capture (seed 7)"
    assert fm.ablate(capture, 5, neurons=NEURONS, how="mean").how == "set to their mean"


def test_leaves_no_trace(make_tiny: Callable[..., fm.Model]) -> None:
    model = make_tiny()
    capture = fm.capture(model, PROMPT, logits=True)  # the bridge adds hooks of its own in its first pass
    before = hook_count(model.hf_model), model.fingerprint
    fm.ablate(capture, TARGET)
    with pytest.raises(ZeroDivisionError):
        fm.ablate(capture, TARGET, progress=lambda _, done, whole: 1 // 0)  # type: ignore[arg-type, return-value]
    assert (hook_count(model.hf_model), model.fingerprint) == before
    assert torch.equal(fm.capture(model, PROMPT, logits=True).logits, capture.logits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "named"),
    [
        ({"neurons": [(2, 0)]}, OutOfRangeError, ("layer 2", "0 to 1")),
        ({"neurons": [(0, 64)]}, OutOfRangeError, ("neuron 64", "0 to 63")),
        ({"neurons": []}, InputError, ("neurons is empty",)),
        ({"neurons": [(3, 17, 1)]}, InputError, ("(layer, neuron)",)),
        ({"positions": []}, InputError, ("positions is empty",)),
        ({"positions": 99}, OutOfRangeError, ("position 99",)),
        ({"position": 2, "positions": [1, 3]}, InputError, ("position 3", "right of the answer's, 2")),
        ({"position": 99}, OutOfRangeError, ("position 99",)),
        ({"prompt": 1}, OutOfRangeError, ("prompt 1",)),
        ({"target": " Parisian"}, InputError, ("' Parisian'", "tokens")),
        ({"target": [1, 2]}, InputError, ("target",)),
        ({"target": fm.prompts.NEXT}, InputError, ("NEXT",)),
        ({"how": "gone"}, InputError, ("'gone'", "'zero'", "'mean'")),
        ({"how": float("nan")}, InputError, ("nan",)),
        ({"batch": 0}, InputError, ("batch", "0")),
        ({"top": 0}, InputError, ("top", "0")),
    ],
)
def test_what_is_refused(tiny: fm.Model, options: Any, kind: Any, named: tuple[str, ...]) -> None:
    with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, *named):
        fm.ablate(fm.capture(tiny, PROMPT), **options)


def test_a_following_token_as_target(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    assert fm.ablate(capture, fm.prompts.NEXT, position=2, top=1).target_id == int(capture.tokens[0, 3])
    assert fm.ablate(capture, " Parisian", first_token=True, top=1).target == " Paris"


def test_a_capture_that_no_longer_fits(make_tiny: Callable[..., fm.Model]) -> None:
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "every layer"):
        fm.ablate(fm.capture(model, PROMPT, layers=1))
    with fm.intervene(model, {(0, 3): 1.0}):
        with refuses(InputError, ValueError, "0.3 = 1"):
            fm.ablate(capture)
        under = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "under an intervention", "0.3 = 1"):
        fm.ablate(under)
    with torch.no_grad():
        model.ffn[0].values[3] += 1
    with refuses(InputError, ValueError, "changed"):
        fm.ablate(capture)


def test_what_the_layers_alone_do_not_show(tiny_hf: Any, tokenizer: Any) -> None:
    """A hook of the user's would be left out of every ablation."""
    model = fm.load(tiny_hf, tokenizer=tokenizer)
    model = fm.load(model.to_bridge())
    with model.to_bridge().hooks(fwd_hooks=[("blocks.0.mlp.hook_post", lambda value, hook: value * 0.5)]):
        halved = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "by themselves", "hooks", "compatibility mode"):
        fm.ablate(halved)


def test_paths_choose_what_is_recalled_early() -> None:
    """The neuron of an early fact has no direct effect at the answer, and the largest along paths."""
    planted = fm.planted.plant("facts", seed=1, site="early", n_subjects=8, n_relations=1, n_objects=3)
    fact = planted.facts[0]
    truth = planted.truth[(planted.truth["role"] == "fact") & (planted.truth["subject"] == fact.subject)]
    own = (int(truth["layer"].iloc[0]), int(truth["neuron"].iloc[0]))
    capture = fm.capture(planted.model, fact.text)
    found = fm.ablate(capture, f" {fact.target_true}", top=1, by="paths").neurons
    assert list(zip(found["layer"], found["neuron"], strict=True)) == [own]
    assert found["probability"].iloc[0] > 0.5
    direct = fm.ablate(capture, f" {fact.target_true}", top=5).neurons
    assert own not in set(zip(direct["layer"], direct["neuron"], strict=True))
    with pytest.raises(fm.FfnmemError, match="direct"):
        fm.ablate(capture, by="gradients")


def test_agreement_of_direct_and_total_effects(tiny: fm.Model) -> None:
    """By ranks, and by signs; an effect of zero has none."""
    found = fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", top=9)

    def with_effects(direct: list[float], total: list[float]) -> fm.interventions.Ablation:
        return replace(found, neurons=found.neurons.head(len(direct)).assign(direct=direct, logit=total))

    some = with_effects([1.0, 2.0, -3.0, 0.0], [0.1, 40.0, 5.0, -1.0])
    assert some.spearman == pytest.approx(np.corrcoef([2, 3, 0, 1], [1, 3, 2, 0])[0, 1])
    assert some.opposite == 1
    assert np.isnan(with_effects([1.0, 1.0], [2.0, 3.0]).spearman)
    alone = with_effects([1.0], [2.0])
    assert np.isnan(alone.spearman)
    assert alone.to_dict()["spearman"] is None


def test_what_people_read_of_an_ablation(tiny: fm.Model) -> None:
    found = fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", top=23, positions=[1, -1])
    (table,) = (block for block in found.sheet(20).blocks if isinstance(block, Table))
    assert len(table.rows) == 20
    for row, expected in zip(table.rows, found.neurons.itertuples(), strict=False):
        assert row[0] == (expected.layer, expected.neuron)
        assert row[3:5] == (expected.direct, expected.logit)
    assert "3 more in .neurons" in table.caption
    assert "at position 1, 8" in found.to_markdown()
    assert repr(found).startswith("Ablation(23 neurons, how 'set to zero', target ' Paris', foil ' Rome', logit ")
