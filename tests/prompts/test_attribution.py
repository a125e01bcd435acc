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

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.models.layout import inner
from ffnmem.models.residual import FinalNorm
from ffnmem.prompts import NEXT

from ..architectures import DECODERS
from ..helpers import OTHER_PROMPT, PROMPT, Pair, added, allclose, printed, refuses

# -- decompose --------------------------------------------------------------------------------------------------------


def test_decompose_is_exact(pair64: Pair) -> None:
    """Against every mᵢvᵢ written out, of one row of a padded batch; largest first, and the bias last."""
    capture = fm.capture(pair64.model, [OTHER_PROMPT, PROMPT])
    for layer, row, position in ((0, 0, -1), (1, 0, 0), (0, 1, 4), (1, 1, -1)):
        ffn, at = capture.model.ffn[layer], capture.position(position, row)
        found = fm.decompose(capture, layer, position, prompt=row)
        table = found.to_frame()
        assert list(table.columns) == ["layer", "neuron", "coefficient", "value_norm", "weight", "share"]
        assert (table["layer"] == layer).all()
        assert table.attrs["position"] == at
        assert table.attrs["provenance"]["fingerprint"] == capture.model.fingerprint
        y, m, values = capture.ffn_out[layer][row, at], capture.coefficients[layer][row, at], ffn.values.detach()
        bias = torch.zeros_like(y) if ffn.value_bias is None else ffn.value_bias.detach()
        writes = torch.cat([m.unsqueeze(-1) * values, bias.unsqueeze(0)])
        assert allclose(writes.sum(0), y, 1e-12)
        assert max(found.error, table.attrs["error"]) < 1e-12
        ordered = table.set_index("neuron").loc[list(range(ffn.d_mlp))]
        assert allclose(np.array([*ordered["share"], found.bias_share]), writes @ y / (y @ y), 1e-11)
        assert sum([*table["share"], found.bias_share]) == pytest.approx(1)
        assert allclose(np.array([*ordered["weight"], found.bias_norm]), writes.norm(dim=-1), 1e-11)
        assert allclose(ordered["coefficient"], m, 1e-12)
        assert allclose(ordered["value_norm"], values.norm(dim=-1), 1e-12)
        assert found.output_norm == pytest.approx(float(y.norm()))
        assert table["weight"].is_monotonic_decreasing


def test_an_output_of_zero(make_tiny: Callable[..., fm.Model]) -> None:
    """A layer that writes nothing would divide by zero; nothing has a share of nothing."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].values[:] = 0
        model.ffn[0].value_bias[:] = 0
    found = fm.decompose(fm.capture(model, PROMPT), 0)
    assert not found.memories.isna().any().any()
    assert (found.memories["share"] == 0).all()
    assert (found.error, found.bias_share) == (0, 0)


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
}


@pytest.mark.parametrize("way", SUMS)
def test_sums_in_float32(pair: Pair, way: str) -> None:
    """What holds to rounding in float64 would fall apart in the type that models have; a pad be read."""
    batch = fm.capture(pair.model, ["The", PROMPT])
    for prompt in (0, 1):
        for foil in (None, " Rome"):
            error = SUMS[way](batch, " Paris", foil, prompt=prompt)
            assert error is not None
            assert error < 1e-4
    alone, found = fm.attribute(fm.capture(pair.model, "The"), " Paris"), fm.attribute(batch, " Paris", prompt=0)
    assert (found.position, found.tokens) == (alone.position, alone.tokens)
    assert allclose(found.neuron_logits, alone.neuron_logits, 1e-5)


def test_a_model_that_scales_what_it_writes(tokenizer: Any) -> None:
    capture = fm.capture(fm.load(DECODERS["Granite"](), tokenizer=tokenizer, dtype="float64"), PROMPT)
    assert all((error or 0.0) < 1e-10 for error in (ask(capture, " Paris", " Rome") for ask in SUMS.values()))


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
    (OUT, lambda c: fm.attribute(c, [0] * 8 + [c.model.d_vocab]), ("token id",)),
    (IN, lambda c: fm.attribute(fm.capture(c.model, PROMPT, layers=[0, 1])), ("every layer", "without layers=")),
    (IN, lambda c: fm.attribute_paths(fm.capture(c.model, PROMPT, layers=[0])), ("every layer", "without layers=")),
    (IN, lambda c: fm.decompose(fm.capture(c.model, PROMPT, layers=1), 0), ("layer 0", "[1]")),
    (OUT, lambda c: fm.decompose(c, 2), ("layer 2", "0 to 1")),
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
    found = fm.decompose(capture, 1)
    assert found.error < 1e-2
    assert abs(found.memories["share"].sum() + found.bias_share - 1) < 1e-2


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


def test_tables(tiny: fm.Model) -> None:
    """A column renamed, a neuron missing, positions mixed, or the weakest first: everything downstream reads these."""
    capture = fm.capture(tiny, PROMPT)
    one, many = fm.attribute(capture, " Paris", " Rome"), fm.attribute(capture, NEXT)
    assert (one.target, one.foil, one.position) == (" Paris", " Rome", 8)
    assert many.positions == tuple(range(8))
    assert many.target_ids == tuple(capture.tokens[0, 1:].tolist())
    answer = fm.attribute(capture, " Paris Rome")
    assert answer.total.error < 1e-4
    assert answer.total.logit == pytest.approx(float(answer.logits.sum()))
    assert allclose(answer.total.neuron_logits[0], answer.neuron_logits.sum(0), 1e-6)
    names = ["layer", "neuron", "coefficient", "logit", "share"]
    for found, keys in ((one, []), (many, ["position"])):
        table, parts = found.neurons, found.components
        assert list(table.columns) == [*keys, *names]
        assert list(parts.columns) == [*keys, "component", "layer", "logit"]
        for i, position in enumerate(found.positions):
            alone = fm.attribute(capture, found.target_ids[i], one.foil if found is one else None, position)
            rows, own = (frame[frame["position"] == position] if keys else frame for frame in (table, parts))
            assert len(rows.drop_duplicates(["layer", "neuron"])) == 2 * 64
            assert rows["logit"].abs().is_monotonic_decreasing
            at = rows["layer"].to_numpy(), rows["neuron"].to_numpy()
            assert allclose(rows["logit"], alone.neuron_logits[0].numpy()[at], 1e-6)
            assert allclose(rows["share"] * alone.logit, rows["logit"], 1e-6)
            held = torch.stack([capture.coefficients[layer][0, position] for layer in (0, 1)])
            assert allclose(rows["coefficient"], held.numpy()[at], 1e-6)
            assert allclose(own["logit"].sum(), found.sums[i], 1e-9)
        for frame in (table, found.top(3), parts):
            assert frame.attrs["target"] == found.target_tokens
            assert frame.attrs["provenance"]["fingerprint"] == tiny.fingerprint
    assert one.top(7).equals(one.neurons.head(7))
    assert len(many.top(3)) == len(many.to_dict(top=3)["neurons"]) == 8 * 3
    parts = one.components
    assert parts["component"].tolist() == [
        "embedding", "position", *["attention", "ffn", "ffn bias"] * 2, "final bias",
    ]  # fmt: skip
    assert parts["layer"].fillna(-1).tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, -1]
    record = json.loads(json.dumps(one.to_dict(top=5), allow_nan=False))
    assert (record["target"], record["foil"]) == (" Paris", " Rome")
    assert record["prompt"]["tokens"] == list(one.tokens)
    assert len(record["ledger"]) == 5
    assert record["ledger"][0]["attention"] is None
    for name in ("logit", "target", "position"):
        with refuses(InputError, ValueError, "8 positions"):
            getattr(many, name)


def test_tables_of_given_numbers(tiny: fm.Model) -> None:
    """Two runs would rank equal neurons differently, shares of 0 be infinite, a broken position hide in a mean."""
    one = fm.attribute(fm.capture(tiny, PROMPT), " Paris", " Rome")
    values = torch.tensor([[[1.0, -2.0, 1.0, 2.0], [2.0, 0.0, -1.0, 0.0]]])
    given = replace(one, neuron_logits=values, coefficients=values, logits=torch.zeros(1))
    table = given.neurons
    order = list(zip(table["layer"], table["neuron"], strict=True))
    assert order == [(0, 1), (0, 3), (1, 0), (0, 0), (0, 2), (1, 2), (1, 1), (1, 3)]
    assert table["share"].isna().all()
    last = replace(given, neuron_logits=values.where(values != -2, torch.nan)).neurons.iloc[-1]
    assert (last["layer"], last["neuron"]) == (0, 1)
    assert json.loads(json.dumps(given.to_dict(), allow_nan=False))["neurons"][0]["share"] is None
    parts = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).double()
    some = replace(one, component_logits=parts, logits=torch.tensor([2.0, 7.0, 2.0]))
    assert some.error == pytest.approx(5.0)


def test_it_shows_what_the_model_says_of_target_and_foil(tiny: fm.Model) -> None:
    """Their ranks among all, how much neurons wrote, and a ledger whose last sum is the logit."""
    capture = fm.capture(tiny, PROMPT)
    logits = capture.logits_at(0, -1)
    for bos in (True, False):  # whether the first token stands out
        assert fm.attribute(fm.capture(tiny, PROMPT, prepend_bos=bos)).prompt.bos is bos
    for foil in (None, " Rome"):
        found = fm.attribute(capture, " Paris", foil)
        shown = " ".join(" ".join(printed(found.sheet(5), 200)).split())
        said = found.predictions.set_index("answer")  # type: ignore[union-attr]
        for role, text in (("target", " Paris"), *([("foil", foil)] if foil else [])):
            own = logits[tiny.token_id(text)]
            assert said.loc[role, "rank"] == 1 + int((logits > own).sum())
            assert said.loc[role, "logit"] == pytest.approx(float(own))
        ffn = found.components.query("component == 'ffn'")["logit"].sum()
        assert f"wrote {ffn:+.3f} of the logit {found.logit:.3f}" in shown
        assert ("the target’s minus the foil’s" in shown) == (foil is not None)
        ledger = found.ledger
        assert ledger is not None
        assert ledger["together"].sum() == pytest.approx(found.components["logit"].sum())
        assert ledger["sum_so_far"].iloc[-1] == pytest.approx(found.logit, abs=1e-4)
        first = found.to_frame(1, derived=True).iloc[0]
        own = fm.project(tiny, first["layer"], first["neuron"], k=8, side="value").to_frame()
        own = own.groupby("sign")["token"].agg(list)
        ends = ("promoted", "suppressed") if first["coefficient"] >= 0 else ("suppressed", "promoted")
        assert (first["promotes"], first["suppresses"]) == tuple(own[end] for end in ends)
    several = fm.attribute(capture, " Paris Rome")
    assert "the sum over its 2 tokens" in several.verdict
    assert several.to_frame()["logit"].iloc[0] == several.total.top(1)["logit"].iloc[0]
