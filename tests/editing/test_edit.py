"""The edit as an object: its algebra, its tables, and what it changes, memory by memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, OutOfRangeError, unwarned
from ffnmem.editing import Edit, EditedLayer

from ..helpers import PROMPT, Pair, allclose, printed, refuses
from .edits import COLOSSEUM, EIFFEL, change, made, same_bits, weights


@pytest.mark.parametrize("rank", [1, 5])
def test_a_change_is_what_its_factors_say(tiny: fm.Model, rank: int) -> None:
    """A norm of the factors instead of their product, a transposed change, or factors that alias the editor's."""
    found = change(tiny, 0, rank)
    assert (found.rank, tuple(found.delta().shape)) == (rank, (tiny.d_mlp, tiny.d_model))
    assert allclose(found.delta(), found.left.T @ found.right, 1e-12)
    assert allclose(found.norm, found.delta().norm(), 1e-12)
    right = torch.ones(1, tiny.d_model, dtype=torch.float64)
    kept = EditedLayer(0, torch.ones(1, tiny.d_mlp), right)
    right.zero_()
    assert kept.left.dtype == torch.float64
    assert bool((kept.right == 1).all())


def test_what_it_is(tiny: fm.Model) -> None:
    edit = made(tiny, (1, 0))
    assert (edit.layers, edit.rank, edit.under, edit.parts) == ((0, 1), 2, (), (edit.digest,))
    assert edit.fingerprint == tiny.fingerprint == edit.provenance.fingerprint
    assert allclose(edit.norm**2, sum(c.delta().square().sum() for c in edit.changes), 1e-12)
    assert edit.title == "rome: Eiffel Tower → Rome"
    # Two edits with one digest could not be told apart in a model.
    assert made(tiny).digest == made(tiny, clamp=9.0).digest
    others = [made(tiny, seed=1), made(tiny, (0,)), made(tiny, rank=2), made(tiny, (0, 1))]
    assert len({edit.digest for edit in [made(tiny), *others]}) == 5


def test_tables_and_json(tiny: fm.Model) -> None:
    """A number that is lost, or one that JSON does not hold; an edit of a memory that stands for no fact."""
    edit = made(tiny)
    frame = edit.to_frame()
    assert " ".join(frame.columns) == "fact subject prompt target_true target k_u steps stopped loss"
    assert frame.loc[0, ["target", "k_u"]].tolist() == ["Rome", 0.7]
    record = json.loads(json.dumps(edit.to_dict(), allow_nan=False))
    assert record["layers"] == [1]
    assert record["changed"] == [{"layer": 1, "rank": 1, "norm": edit.changes[0].norm}]
    assert (record["rewrites"][0]["k_u"], record["rewrites"][0]["loss"]) == (0.7, None)
    assert {"setting": "clamp", "is": 4.0} in record["made_with"]
    assert "loss" not in " ".join(printed(edit.sheet()))  # which nobody measured
    bare = Edit.of(tiny, [change(tiny, 0)], method="mine")
    assert bare.title == "mine"
    assert bare.to_frame().empty
    assert (bare + Edit.of(tiny, [change(tiny, 1)], method="mine")).to_dict()["rewrites"] == []


def test_refusals(tiny: fm.Model) -> None:
    right, left = torch.ones(1, tiny.d_model), torch.ones(1, tiny.d_mlp)

    def of(*changes: EditedLayer, **more: Any) -> Edit:
        return Edit.of(tiny, changes, method="rome", **more)

    one = change(tiny, 0)
    refused: tuple[tuple[Callable[[], object], tuple[str, ...]], ...] = (
        (lambda: EditedLayer(2, left * float("nan"), right), ("layer 2", "left")),
        (lambda: EditedLayer(2, left[:0], right[:0]), ("layer 2", "no rows")),
        (lambda: EditedLayer(0, torch.cat([left, left]), right), ("layer 0", "2", "1")),
        (lambda: EditedLayer(-1, left, right), ("layer", "-1")),
        (of, ("at least one change",)),
        (lambda: of(one, one), ("0, 0",)),
        (lambda: of(one, facts=[EIFFEL]), ("1 facts", "0 targets")),
        (lambda: of(one, numbers=pd.DataFrame({"loss": [0.0, 0.1]})), ("2 rows", "0 facts")),
        (lambda: made(tiny, hook=lambda: None), ("settings.hook", "function")),
    )
    for call, named in refused:
        with refuses(InputError, ValueError, *named):
            call()
    with refuses(OutOfRangeError, IndexError, "layer 7", "0 to 1"):
        of(EditedLayer(7, left, right))
    with refuses(ModelError, ValueError, "[3, 16]", "[64, 16]"):
        of(EditedLayer(0, left[:, :3], right))


# -- sums of edits, against the edits one after the other --------------------------------------------------------------


def test_sum_is_both(make_tiny: Callable[..., fm.Model]) -> None:
    """A layer that only one of them changes, ranks in the wrong order, a change counted twice."""
    model = make_tiny(dtype="float64")
    pristine = weights(model)
    first, second = made(model, (0, 1)), made(model, (1,), rank=2, seed=1, fact=COLOSSEUM)
    both = first + second
    assert [(c.layer, c.rank) for c in both.changes] == [(0, 1), (1, 4)]
    with first.applied(model), second.applied(model):
        one_by_one = [ffn.values.detach().clone() for ffn in model.ffn]
    with both.applied(model):
        for ffn, expected in zip(model.ffn, one_by_one, strict=True):
            assert allclose(ffn.values, expected, 1e-14)
    assert same_bits(model, pristine)


def test_sum_knows_its_parts(tiny: fm.Model) -> None:
    first, second = made(tiny), made(tiny, seed=1, fact=COLOSSEUM, clamp=2.0)
    third = Edit.of(tiny, [change(tiny, 0, seed=5)], method="ft_l")
    both = first + second + third
    assert both.parts == (first.digest, second.digest, third.digest)
    assert [fact.id for fact in both.facts] == ["eiffel", "colosseum"]
    assert both.targets == ("Rome", "London")
    assert both.method == "rome + ft_l"
    assert both.numbers["k_u"].tolist() == [0.7, 1.7]
    assert [settings.get("clamp") for settings in both.settings["edits"]] == [4.0, 2.0, None]
    assert both.provenance.to_dict()["edits"] == both.parts
    assert both.fingerprint == first.fingerprint
    assert (first + made(tiny, seed=1)).settings == first.settings  # equal ones stay one
    bare = Edit.of(tiny, [change(tiny, 0)], method="mine", facts=[COLOSSEUM], targets=["London"])
    assert (bare + first).numbers["k_u"].isna().tolist() == [True, False]
    for again in (first, second):
        with refuses(InputError, ValueError, again.digest):
            both + again
    narrow = EditedLayer(1, torch.ones(1, 3), torch.ones(1, tiny.d_model))  # only hand-made edits can be so
    other = Edit((narrow,), first.fingerprint, "rome", (), (), {}, first.numbers.head(0), first.provenance)
    with refuses(InputError, ValueError, "layer 1", "[3, 16]"):
        first + other


def test_one_on_top_of_the_other(make_tiny: Callable[..., fm.Model]) -> None:
    """The chain from one edit to the next is what lets them add up though their fingerprints differ."""
    model = make_tiny()
    first = made(model)
    with first.applied(model):
        second = made(model, seed=1)
        assert second.under == (first.digest,)
        assert second.fingerprint == model.fingerprint != first.fingerprint
        with second.applied(model):
            third = made(model, seed=2)
    chain = first + second + third
    assert chain.fingerprint == model.fingerprint
    with chain.applied(model):
        assert len(model.edits) == 1
    assert (first + (second + third)).parts == chain.parts
    with refuses(InputError, ValueError, first.fingerprint, third.fingerprint):
        first + third
    with refuses(InputError, ValueError, first.fingerprint, second.fingerprint):
        second + first


Make = Callable[..., fm.Model]


def test_each_side_is_the_models_own_and_changes_add_up(pair64: Pair) -> None:
    """Before and after mixed up, or both of the same model; a component that is counted on one side only."""
    model, edit = pair64.model, made(pair64.model, (0, 1))
    found = edit.diff(model, PROMPT, k=None)
    assert (found.target, found.foil, found.hidden) == (" Rome", " Paris", 0)
    before = fm.attribute(fm.capture(model, PROMPT), " Rome", " Paris")
    with edit.applied(model):
        capture = fm.capture(model, PROMPT)
        after = fm.attribute(capture, " Rome", " Paris")
        likely = capture.predictions(k=model.d_vocab).set_index("token_id")["probability"]
    assert (found.logit_before, found.logit_after) == (before.logit, after.logit)
    assert allclose(found.probability_after, likely[model.token_id(" Rome")], 1e-12)
    mine = found.neurons.set_index(["layer", "neuron"]).sort_index()
    for side, attribution in (("before", before), ("after", after)):
        expected = attribution.neurons.set_index(["layer", "neuron"]).sort_index()
        assert allclose(mine[f"coefficient_{side}"], expected["coefficient"], 0.0)
        assert allclose(mine[f"logit_{side}"], expected["logit"], 0.0)
        assert allclose(found.components[f"logit_{side}"].sum(), attribution.logit, 1e-10)
    assert allclose(found.components["change"].sum(), found.change, 1e-10)
    ffn = found.components[found.components["component"] == "ffn"].set_index("layer")["change"]
    assert allclose(found.neurons.groupby("layer")["change"].sum(), ffn.astype(float), 1e-10)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_edits_own_write(pair64: Pair, rank: int) -> None:
    """What the factors add, neuron by neuron, is what the values' change adds: the same write in two ways."""
    model, edit = pair64.model, made(pair64.model, (1,), rank=rank)
    found = edit.diff(model, PROMPT, k=None)
    old = model.ffn[1].values.detach().clone()
    with edit.applied(model):
        capture = fm.capture(model, PROMPT)
        whole = fm.attribute(capture, " Rome", " Paris").neuron_logits[0, 1]
        model.ffn[1].values.data.copy_(old)  # the same coefficients and scale with the values as they were
        with unwarned():  # whose sum is not the logit
            without = fm.attribute(capture, " Rome", " Paris").neuron_logits[0, 1]
        model.ffn[1].values.data.copy_(old + edit.changes[0].delta())
    written = found.neurons[found.neurons["layer"] == 1].sort_values("neuron")["written"]
    assert allclose(written, whole - without, 1e-10)
    assert float(found.neurons.loc[found.neurons["layer"] == 0, "written"].abs().max()) == 0.0


def test_where_it_writes(make_tiny: Make) -> None:
    """The norm of what the edit adds at each position: the difference of the FFN's outputs."""
    model = make_tiny(dtype="float64")
    edit = made(model, (0,), rank=2)
    found = edit.diff(model, PROMPT).writes
    before = fm.capture(model, PROMPT)
    with edit.applied(model):
        after = fm.capture(model, PROMPT)
    more = (after.ffn_out[0] - before.ffn_out[0])[0].norm(dim=-1)
    assert found["token"].tolist() == before.token_strings()
    assert allclose(found["norm"], more, 1e-10)
    assert allclose(found["share"], more / after.ffn_out[0][0].norm(dim=-1), 1e-10)


def test_applied_or_not(make_tiny: Make) -> None:
    """It gives the same, and leaves the model as it found it, with other edits around it."""
    model = make_tiny()
    edit, other = made(model), made(model, (0,), seed=1)
    diff = edit.diff(model, PROMPT).neurons
    edit.apply(model)
    pd.testing.assert_frame_equal(edit.diff(model, PROMPT).neurons, diff)
    other.apply(model)
    held = weights(model)
    edit.diff(model, PROMPT)
    assert same_bits(model, held)
    assert list(model.edits) == [edit, other]


def test_targets(tiny: fm.Model) -> None:
    """Each fact of an edit has its own target; a foil with the target's first token would cancel it."""
    both = made(tiny) + made(tiny, seed=1, fact=COLOSSEUM)
    for asked, options, expected in (
        (EIFFEL, {}, (" Rome", " Paris")),
        (COLOSSEUM, {}, (" London", " Rome")),
        ("The city of", {}, (" Rome", " Paris")),
        (EIFFEL, {"target": " France"}, (" France", None)),
        (EIFFEL, {"target": " France", "foil": " London"}, (" France", " London")),
    ):
        found = both.diff(tiny, asked, **options)  # type: ignore[arg-type]
        assert (found.target, found.foil) == expected
    same = fm.facts.fact.Fact("Tower", "r", "The {} is in", "Paris", "Paris")
    assert made(tiny, fact=same).diff(tiny, same).foil is None
    assert both.diff(tiny, EIFFEL, position=1).position == 1


def test_what_a_diff_shows(tiny: fm.Model) -> None:
    edit = made(tiny)
    found, everything = edit.diff(tiny, PROMPT, k=3), edit.diff(tiny, PROMPT, k=None).neurons
    assert everything["change"].abs().is_monotonic_decreasing
    pd.testing.assert_frame_equal(found.neurons, everything.head(3))
    assert found.hidden == len(everything) - 3 == tiny.n_layers * tiny.d_mlp - 3
    assert f"{found.hidden:,} more" in found._repr_html_()
    assert "target ' Rome', foil ' Paris'" in repr(found)
    assert "foil" not in repr(edit.diff(tiny, PROMPT, target=" France"))
    top = found.components.loc[found.components["change"].abs().idxmax()]
    assert f"changes by {found.change:+.2f}, most of it by {top['component']}" in found.verdict
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (len(record["neurons"]), record["provenance"]["edit"]) == (3, edit.digest)


def test_diffs_refused(tiny: fm.Model, make_tiny: Make) -> None:
    edit, bare = made(tiny), Edit.of(tiny, [change(tiny, 0)], method="mine")
    for call, named in (
        (lambda: bare.diff(tiny, PROMPT), ("target=",)),
        (lambda: edit.diff(tiny, PROMPT, k=0), ("k", "0")),
        (lambda: edit.diff(tiny, PROMPT, target=" Paris", foil=" Paris"), ("Paris", "same")),
    ):
        with refuses(InputError, ValueError, *named):
            call()
    with refuses(OutOfRangeError, IndexError, "99"):
        edit.diff(tiny, PROMPT, position=99)
    with refuses(ModelError, ValueError, edit.fingerprint):
        edit.diff(make_tiny(dtype="bfloat16"), PROMPT)
    assert len(tiny.edits) == 0
