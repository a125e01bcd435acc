"""An FFN's output and a token's logit as exact sums over memories, and the tables of these."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.models.layout import inner
from ffnmem.models.residual import FinalNorm
from ffnmem.prompts import NEXT
from ffnmem.prompts.attribution import largest

from ..helpers import OTHER_PROMPT, PROMPT, Pair, added, allclose, build_twins, refuses

# -- decompose --------------------------------------------------------------------------------------------------------


def check_decomposition(capture: fm.prompts.Capture, layer: int, position: int, tolerance: float) -> None:
    """Against the naive way: every mᵢvᵢ written out."""
    ffn = capture.model.ffn[layer]
    table = fm.decompose(capture, layer, position)
    assert list(table.columns) == ["layer", "neuron", "coefficient", "value_norm", "weight", "share"]
    assert len(table) == ffn.d_mlp + 1
    assert table["neuron"].tolist()[-1] == -1
    assert sorted(table["neuron"]) == list(range(-1, ffn.d_mlp))
    assert (table["layer"] == layer).all()
    y = capture.ffn_out[layer][0, position]
    writes = capture.coefficients[layer][0, position].unsqueeze(-1) * ffn.values.detach()
    bias = torch.zeros_like(y) if ffn.value_bias is None else ffn.value_bias.detach()
    assert float((writes.sum(0) + bias - y).norm() / y.norm()) <= tolerance
    assert table.attrs["error"] <= tolerance
    naive = torch.cat([writes, bias.unsqueeze(0)])
    ordered = table.set_index("neuron").loc[[*range(ffn.d_mlp), -1]]
    assert allclose(ordered["share"], naive @ y / (y @ y), 10 * tolerance)
    assert allclose(ordered["weight"], naive.norm(dim=-1), 10 * tolerance)
    assert allclose(ordered["coefficient"].iloc[:-1], capture.coefficients[layer][0, position], tolerance)
    assert allclose(ordered["value_norm"].iloc[:-1], ffn.values.detach().norm(dim=-1), tolerance)
    assert allclose(table["share"].sum(), 1.0, 10 * tolerance)
    weights = table["weight"].to_numpy()[:-1]
    assert (np.diff(weights) <= 0).all()


def test_decompose_is_exact(pair64: Pair) -> None:
    """The memories would not make up the output that they are said to make up."""
    capture = fm.capture(pair64.model, PROMPT)
    for layer in range(2):
        for position in (0, 4, -1):
            check_decomposition(capture, layer, position, 1e-12)


def test_decompose_of_a_batch(tiny: fm.Model) -> None:
    """Another prompt's row would be decomposed, or a pad; or the table could not be traced to its model."""
    batch, alone = fm.capture(tiny, [PROMPT, OTHER_PROMPT, "The"]), fm.capture(tiny, "The")
    found, expected = fm.decompose(batch, 0, prompt=2), fm.decompose(alone, 0)
    assert found.attrs["position"] == expected.attrs["position"] == 1
    assert found.attrs["provenance"]["fingerprint"] == tiny.fingerprint
    assert allclose(found.sort_values("neuron")["weight"], expected.sort_values("neuron")["weight"], 1e-5)


def test_top_keeps_the_largest_and_the_bias(tiny: fm.Model) -> None:
    """The weakest would be shown, or the shares of the shown ones change."""
    capture = fm.capture(tiny, PROMPT)
    whole, top = fm.decompose(capture, 0), fm.decompose(capture, 0, top=3)
    assert whole.attrs["position"] == len(capture.tokens[0]) - 1
    assert top["neuron"].tolist() == [*whole["neuron"].tolist()[:3], -1]
    assert top["share"].tolist() == [*whole["share"].tolist()[:3], whole["share"].tolist()[-1]]
    assert len(fm.decompose(capture, 0, top=10**6)) == 65


def test_an_output_of_zero(make_tiny: Callable[..., fm.Model]) -> None:
    """A layer that writes nothing would divide by zero; nothing has a share of nothing."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].values[:] = 0
        model.ffn[0].value_bias[:] = 0
    table = fm.decompose(fm.capture(model, PROMPT), 0)
    assert not table.isna().any().any()
    assert (table["share"] == 0).all()
    assert table.attrs["error"] == 0


# -- attribute: the sum is the logit ----------------------------------------------------------------------------------


def check_sum(attribution: fm.prompts.Attribution, expected: torch.Tensor, tolerance: float) -> None:
    """The components sum to the model's own logit, at every position attributed."""
    assert attribution.error < tolerance
    assert allclose(attribution.logits, expected, tolerance)
    assert allclose(attribution.sums, expected, tolerance)


def test_sum_is_the_logit(pair64: Pair) -> None:
    """The ledger would not add up: something was left out, counted twice, or scaled wrongly, such as by another ε."""
    model, tolerance = pair64.model, 1e-10
    paris, rome = model.token_id(" Paris"), model.token_id(" Rome")
    capture = fm.capture(model, PROMPT)
    logits = pair64.uncapped(capture.tokens)[0]
    n = len(logits)
    following, targets = capture.tokens[0, 1:], torch.arange(n) * 7 % model.d_vocab
    check_sum(fm.attribute(capture, " Paris"), logits[-1:, paris], tolerance)
    check_sum(fm.attribute(capture, " Paris", " Rome"), logits[-1:, paris] - logits[-1:, rome], tolerance)
    for position in range(n):
        check_sum(fm.attribute(capture, paris, position=position), logits[position : position + 1, paris], tolerance)
    check_sum(fm.attribute(capture, NEXT), logits[range(n - 1), following], tolerance)
    check_sum(fm.attribute(capture, NEXT, rome), logits[range(n - 1), following] - logits[:-1, rome], tolerance)
    check_sum(fm.attribute(capture, NEXT, position=2), logits[2:3, following[2]], tolerance)
    for several in (targets, targets.tolist(), targets.numpy()):
        check_sum(fm.attribute(capture, several), logits[range(n), targets], tolerance)


SUMS: dict[str, Callable[..., float | None]] = {
    "attribute": lambda *asked, **of: fm.attribute(*asked, **of).error,
    "paths": lambda *asked, **of: fm.attribute_paths(*asked, **of).error,
    "relp": lambda *asked, **of: fm.causal_scores(*asked, "relp", exact=0, **of).completeness_error,
}


@pytest.mark.parametrize("way", SUMS)
def test_sums_in_float32(pair: Pair, way: str) -> None:
    """What holds to rounding in float64 would fall apart in the type that models have."""
    capture = fm.capture(pair.model, ["The", PROMPT])
    for prompt in (0, 1):
        for foil in (None, " Rome"):
            error = SUMS[way](capture, " Paris", foil, prompt=prompt)
            assert error is not None
            assert error < 1e-4


def test_a_padded_batch(pair: Pair) -> None:
    """A shorter prompt would be attributed at its padding."""
    prompts = ["The", PROMPT, OTHER_PROMPT]
    batch = fm.capture(pair.model, prompts)
    for row, prompt in enumerate(prompts):
        alone = fm.capture(pair.model, prompt)
        logits = pair.uncapped(alone.tokens)[0]
        found = fm.attribute(batch, " Paris", prompt=row)
        expected = fm.attribute(alone, " Paris")
        check_sum(found, logits[-1:, pair.model.token_id(" Paris")], 1e-4)
        assert found.position == expected.position == alone.length() - 1
        assert found.tokens == expected.tokens
        assert allclose(found.neuron_logits, expected.neuron_logits, 1e-5)
    following = batch.tokens[2, 1 : batch.length(2)]
    logits = pair.uncapped(fm.capture(pair.model, OTHER_PROMPT).tokens)[0]
    check_sum(fm.attribute(batch, NEXT, prompt=2), logits[range(len(following)), following], 1e-4)


@given(data=st.data())
def test_any_position_target_and_foil(tiny: fm.Model, data: st.DataObject) -> None:
    """Some token or place (the first, a special one) would be an exception to the sum."""
    ids = data.draw(st.lists(st.integers(0, tiny.d_vocab - 1), min_size=1, max_size=tiny.n_ctx))
    position = data.draw(st.integers(-len(ids), len(ids) - 1))
    target = data.draw(st.integers(0, tiny.d_vocab - 1))
    foil = data.draw(st.none() | st.integers(0, tiny.d_vocab - 1).filter(lambda other: other != target))
    capture = fm.capture(tiny, ids, logits=True)
    assert capture.logits is not None
    expected = capture.logits[0, position, target] - (0 if foil is None else capture.logits[0, position, foil])
    attribution = fm.attribute(capture, target, foil, position)
    check_sum(attribution, expected.reshape(1), 1e-4)
    neurons = attribution.neurons
    assert allclose(neurons["logit"].sum(), attribution.neuron_logits.double().sum(), 1e-4)


# -- attribute: each part is what it is called ------------------------------------------------------------------------


def test_neurons_equal_transformer_lens(make_tiny: Callable[..., fm.Model]) -> None:
    """The field's own tool would give each memory another logit."""
    tiny = make_tiny()  # its own: a bridge, once made, stays
    capture = fm.capture(tiny, PROMPT)
    _, cache = tiny.to_bridge().run_with_cache(capture.tokens)
    norm = inner(tiny.layout.final_norm)
    for target, foil in ((" Paris", None), (" Paris", " Rome")):
        direction = tiny.unembedding[tiny.token_id(target)]
        if foil is not None:
            direction = direction - tiny.unembedding[tiny.token_id(foil)]
        # Theirs leaves the norm's gain to the caller, ours folds it into the direction.
        theirs = cache.stack_neuron_results(-1, apply_ln=True, project_output_onto=(norm.weight * direction).detach())
        for position in (0, 5, 8):
            ours = fm.attribute(capture, target, foil, position).neuron_logits[0]
            assert allclose(ours.flatten(), theirs[:, 0, position], 1e-6)


def test_components_equal_their_writes(pair64: Pair) -> None:
    """Attention's part would be called the FFN's, or one layer's another's."""
    model = pair64.model
    capture = fm.capture(model, PROMPT)
    residual = capture.residual
    assert residual is not None
    token = torch.tensor([model.token_id(" Paris")])
    u, constant = FinalNorm(model).directions(token)
    direction = u[0] / FinalNorm(model).scale(residual.final_in[0, -1:])
    assert model.ffn[0].value_bias is None or model.layout.blocks[0].post is None
    table = fm.attribute(capture, " Paris").components.set_index(["component", "layer"])["logit"]
    expected = {("embedding", None): residual.embedding, ("position", None): residual.position}
    for layer in range(2):
        expected["attention", layer] = residual.attention[layer]
        bias = model.ffn[layer].value_bias
        expected["ffn", layer] = added(model, layer, "ffn", capture.ffn_out[layer]) - (0 if bias is None else bias)
        expected["ffn bias", layer] = None if bias is None else bias.expand_as(capture.ffn_out[layer])
    for (component, layer), write in expected.items():
        rows = table[[name == component and (layer is None or at == layer) for name, at in table.index]]
        if write is None:
            assert rows.empty  # nothing is listed that the model does not have
        else:
            assert allclose(rows, (write[0, -1] @ direction).reshape(1), 1e-12)
    assert allclose(table["final bias"], constant, 1e-12)
    assert len(table) == 1 + sum(write is not None for write in expected.values())


def test_a_foil_is_a_difference(pair: Pair) -> None:
    """A foil that is not subtracted everywhere: swapping the two must turn every sign."""
    capture = fm.capture(pair.model, PROMPT)
    for explain, numbers in ((fm.attribute, "neuron_logits"), (fm.attribute_paths, "scores")):
        paris, rome = explain(capture, " Paris"), explain(capture, " Rome")
        there, back = explain(capture, " Paris", " Rome"), explain(capture, " Rome", " Paris")
        assert allclose(getattr(there, numbers), getattr(paris, numbers) - getattr(rome, numbers), 1e-5)
        assert allclose(getattr(there, numbers), -getattr(back, numbers), 1e-6)
        assert there.logit == pytest.approx(-back.logit)
        assert allclose(there.components["logit"], -back.components["logit"], 1e-5)


def test_a_logit_of_zero_has_no_shares(tokenizer: Any) -> None:
    """Shares of nothing would be infinite."""
    twins = fm.capture(fm.load(build_twins(tokenizer), tokenizer=tokenizer), PROMPT)
    same = fm.attribute(twins, " Paris", " Rome")
    assert same.logit == 0
    assert not same.neuron_logits.any()
    assert same.neurons["share"].isna().all()


def test_one_call_equals_many(tiny: fm.Model) -> None:
    """A position's attribution would depend on which others are asked for, or have another's coefficients."""
    capture = fm.capture(tiny, PROMPT)
    together = fm.attribute(capture, NEXT)
    assert together.positions == tuple(range(8))
    assert together.target_ids == tuple(capture.tokens[0, 1:].tolist())
    for i, position in enumerate(together.positions):
        alone = fm.attribute(capture, together.target_ids[i], position=position)
        assert allclose(together.neuron_logits[i], alone.neuron_logits[0], 1e-6)
        for layer in range(2):
            assert torch.equal(together.coefficients[i, layer], capture.coefficients[layer][0, position])


# -- attribute: what may be asked -------------------------------------------------------------------------------------


def test_the_default_target_is_the_models_own(pair: Pair) -> None:
    """The answer explained would not be the answer given, or the numbers of our own tables not be taken back."""
    capture = fm.capture(pair.model, [OTHER_PROMPT, PROMPT])
    for position, prompt in ((-1, 0), (3, 1)):
        top = capture.predictions(position, k=1, prompt=prompt).iloc[0]
        for target in (None, top["token_id"], int(top["token_id"]), torch.tensor(top["token_id"])):
            attribution = fm.attribute(capture, target, position=position, prompt=prompt)
            assert attribution.target == top["token"]
            assert attribution.target_ids == (top["token_id"],)
        cap = pair.model.layout.soft_cap
        logit = attribution.logit if cap is None else cap * math.tanh(attribution.logit / cap)
        assert allclose(logit, top["logit"], 1e-5)
        assert fm.attribute_paths(capture, position=position, prompt=prompt).target == top["token"]


IN, OUT = (InputError, ValueError), (OutOfRangeError, IndexError)
REFUSED: list[
    tuple[tuple[type[Exception], type[Exception]], Callable[[fm.prompts.Capture], object], tuple[str, ...]]
] = [
    (IN, lambda c: fm.attribute(c, [1, 2, 3]), ("9 token ids", "3")),
    (IN, lambda c: fm.attribute(c, [1] * 9, position=0), ("no position",)),
    (IN, lambda c: fm.attribute(c, NEXT, position=-1), ("NEXT", "last position")),
    (IN, lambda c: fm.attribute(fm.capture(c.model, [5]), NEXT), ("NEXT", "two tokens")),
    (OUT, lambda c: fm.attribute(c, " Paris", position=9), ("position 9", "0 to 8")),
    (OUT, lambda c: fm.attribute(c, c.model.d_vocab), ("token id",)),
    (OUT, lambda c: fm.attribute(c, [0] * 8 + [c.model.d_vocab]), ("token id",)),
    (IN, lambda c: fm.attribute(fm.capture(c.model, PROMPT, layers=[0, 1])), ("every layer", "without layers=")),
    (IN, lambda c: fm.attribute_paths(fm.capture(c.model, PROMPT, layers=[0])), ("every layer", "without layers=")),
    (IN, lambda c: fm.decompose(fm.capture(c.model, PROMPT, layers=1), 0), ("layer 0", "[1]")),
    (IN, lambda c: fm.decompose(c, 0, top=0), ("top", "at least 1")),
    (OUT, lambda c: fm.decompose(c, 2), ("layer 2", "0 to 1")),
    (OUT, lambda c: fm.decompose(c, 1, 9), ("position 9", "0 to 8")),
    (OUT, lambda c: fm.decompose(c, 1, prompt=1), ("prompt 1", "0 to 0")),
]


def test_what_cannot_be_asked(tiny: fm.Model) -> None:
    """Targets would be cut to fit, the last position have a next token, or the sum lack the layers not captured."""
    capture = fm.capture(tiny, PROMPT)
    for kinds, ask, named in REFUSED:
        with refuses(*kinds, *named):
            ask(capture)


def test_half_precision_is_summed_in_more(tiny_hf: Any, tokenizer: Any) -> None:
    """The model's own rounding is not ours to mend, but our sums must add none of that size."""
    capture = fm.capture(fm.load(tiny_hf, tokenizer=tokenizer, dtype="bfloat16"), PROMPT)
    attribution = fm.attribute(capture, " Paris")
    assert attribution.neuron_logits.dtype == torch.float32
    assert attribution.error < 0.1
    table = fm.decompose(capture, 1)
    assert table.attrs["error"] < 1e-2
    assert abs(table["share"].sum() - 1) < 1e-2


def test_a_capture_of_other_weights_is_refused(make_tiny: Callable[..., fm.Model]) -> None:
    """Old coefficients times new values would be a sum of nothing; after a revert the capture holds again."""
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    kept = model.ffn[0].values[3].clone()
    with torch.no_grad():
        model.ffn[0].values[3].add_(1.0)
    for explain in (fm.attribute, fm.attribute_paths, lambda c: fm.decompose(c, 0)):
        with refuses(InputError, ValueError, "weights have changed", "capture the prompt again"):
            explain(capture)
    with torch.no_grad():
        model.ffn[0].values[3].copy_(kept)
    assert fm.attribute(capture).error < 1e-4


# -- the tables -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(tiny: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")


@pytest.fixture(scope="module")
def many(tiny: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(tiny, PROMPT), NEXT)


def test_tables_of_one_position(one: fm.prompts.Attribution) -> None:
    """A column renamed, a neuron missing, or the weakest first: everything downstream reads these tables."""
    table = one.neurons
    assert list(table.columns) == ["layer", "neuron", "coefficient", "logit", "share"]
    assert len(table) == 2 * 64
    assert not table.duplicated(["layer", "neuron"]).any()
    assert (np.diff(table["logit"].abs()) <= 0).all()
    assert allclose(table["share"] * one.logit, table["logit"], 1e-6)
    at = 0, table["layer"].tolist(), table["neuron"].tolist()
    assert allclose(table["logit"], one.neuron_logits[at], 1e-7)
    assert allclose(table["coefficient"], one.coefficients[at], 1e-7)
    assert one.top(7).equals(table.head(7))
    parts = one.components
    assert list(parts.columns) == ["component", "layer", "logit"]
    assert parts["component"].tolist() == [
        "embedding", "position", *["attention", "ffn", "ffn bias"] * 2, "final bias",
    ]  # fmt: skip
    assert parts["layer"].fillna(-1).tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, -1]
    assert allclose(one.sums, [parts["logit"].sum()], 1e-9)
    assert abs(parts["logit"].sum() - one.logit) == pytest.approx(one.error, abs=1e-9)


def test_tables_of_many_positions(many: fm.prompts.Attribution) -> None:
    """Positions would be mixed."""
    assert list(many.neurons.columns) == ["position", "layer", "neuron", "coefficient", "logit", "share"]
    assert list(many.components.columns) == ["position", "component", "layer", "logit"]
    for i, position in enumerate(many.positions):
        rows, parts = (frame[frame["position"] == position] for frame in (many.neurons, many.components))
        assert len(rows) == 128
        assert allclose(rows["logit"].sum(), many.neuron_logits[i].double().sum(), 1e-6)
        assert allclose(parts["logit"].sum(), many.sums[i], 1e-9)
    assert len(many.top(3)) == 8 * 3
    for name in ("logit", "target", "position"):
        with refuses(InputError, ValueError, "8 positions"):
            getattr(many, name)
    with refuses(InputError, ValueError, "top", "at least 1"):
        many.top(0)


def test_tables_of_given_numbers(one: fm.prompts.Attribution) -> None:
    """Two runs would rank equal neurons differently, shares of 0 be infinite, a broken position hide in a mean."""
    values = torch.tensor([[[1.0, -2.0, 1.0, 2.0], [2.0, 0.0, -1.0, 0.0]]])
    given = replace(one, neuron_logits=values, coefficients=values, logits=torch.zeros(1))
    table = given.neurons
    order = list(zip(table["layer"], table["neuron"], strict=True))
    assert order == [(0, 1), (0, 3), (1, 0), (0, 0), (0, 2), (1, 2), (1, 1), (1, 3)]
    assert table["share"].isna().all()
    assert json.loads(json.dumps(given.to_dict(), allow_nan=False))["neurons"][0]["share"] is None
    parts = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).double()
    some = replace(one, component_logits=parts, logits=torch.tensor([2.0, 7.0, 2.0]))
    assert some.error == pytest.approx(5.0)


def test_tables_and_json_carry_their_origin(
    one: fm.prompts.Attribution, many: fm.prompts.Attribution, tiny: fm.Model
) -> None:
    """A table saved on its own would say nothing about its model; the command line's data would not be JSON."""
    for table in (one.neurons, one.top(3), one.components):
        assert (table.attrs["target"], table.attrs["foil"]) == ((" Paris",), " Rome")
        origin = table.attrs["provenance"]
        assert (origin["fingerprint"], origin["dtype"], origin["prepend_bos"]) == (tiny.fingerprint, "float32", True)
    assert many.neurons.attrs["target"] == many.target_tokens
    assert (one.target, one.foil, one.position) == (" Paris", " Rome", 8)
    record = json.loads(json.dumps(one.to_dict(top=5), allow_nan=False))
    assert (record["target_tokens"], record["foil"], record["tokens"]) == ([" Paris"], " Rome", list(one.tokens))
    assert len(record["neurons"]) == 5
    assert record["components"][0]["layer"] is None
    assert len(many.to_dict(top=2)["neurons"]) == 16
    assert repr(one).startswith(f"Attribution(target ' Paris', foil ' Rome', logit {one.logit:.4g}, error ")
    assert repr(many).startswith("Attribution(8 target tokens, error ")


def test_the_largest_are_those_of_a_whole_sort() -> None:
    # found without one: if it failed, tables would lack a strong neuron, or put equal ones in another order
    rng = np.random.default_rng(0)
    for size in (10, 64, 1000, 1003):
        values = rng.integers(-40, 40, size).astype(float)
        values[rng.integers(0, size, 5)] = np.nan
        values[3] = -np.inf
        whole = np.argsort(-np.where(np.isnan(values), -1.0, np.abs(values)), kind="stable")
        for k in (1, 3, 15, 16, size, None):
            assert largest(values, k).tolist() == whole[:k].tolist()
