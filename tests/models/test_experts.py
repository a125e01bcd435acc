"""Mixtures of experts: what the contracts of all architectures do not ask of them."""

from __future__ import annotations

import copy
import gc
import math
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError, UnsupportedModelError
from ffnmem.core.neuron_names import ExpertSizes, describe_experts, read_experts
from ffnmem.core.sheets import Table
from ffnmem.evaluation.effects import Effects
from ffnmem.vocabulary.projections import projection_sheet, promoters_sheet

from ..architectures import DECODERS, MIXTURES
from ..helpers import PROMPT, allclose, build, randomise, refuses

TEXTS = [PROMPT, "The city of the Eiffel Tower", "The Colosseum is in Rome", " is in the Tower of London"]


@pytest.fixture(scope="module", params=MIXTURES)
def model(request: pytest.FixtureRequest, tokenizer: Any) -> fm.models.Model:
    return fm.load(DECODERS[request.param](), tokenizer=tokenizer, dtype="float64")


def test_experts_are_the_layers_neurons(model: fm.models.Model) -> None:
    """A row that was written into an expert would change another neuron, or a copy."""
    for ffn in model.ffn[1:]:
        assert [i for expert in ffn.experts for i in expert.neurons] == list(range(ffn.d_mlp))
        for name in ("keys", "gates", "values"):
            assert torch.equal(torch.cat([getattr(expert, name) for expert in ffn.experts]), getattr(ffn, name))
        expert = ffn.experts[-1]
        biases = ffn.key_bias is not None  # the last values are the experts' biases then, which compare with nothing
        for name in ("values",) if biases else ("keys", "gates", "values"):
            with torch.no_grad():
                getattr(expert, name)[3] += 1
                assert torch.equal(getattr(ffn, name)[expert.neurons[3]], getattr(expert, name)[3])
                getattr(expert, name)[3] -= 1
                assert torch.equal(getattr(ffn, name)[expert.neurons[3]], getattr(expert, name)[3])
    with torch.no_grad():  # and what is written into the layer's values, into the experts'
        values, before = model.ffn[1].values, fm.capture(model, PROMPT, logits=True).logits
        saved = values.clone()
        values *= 2
        assert torch.equal(torch.cat([expert.values for expert in model.ffn[1].experts]), 2 * saved)
        assert not torch.allclose(fm.capture(model, PROMPT, logits=True).logits, before, atol=1e-3)
        values.copy_(saved)
    assert torch.equal(fm.capture(model, PROMPT, logits=True).logits, before)


def test_only_routed_experts_fire(model: fm.models.Model) -> None:
    """Rates and examples would be of experts that no token went to."""
    capture = fm.capture(model, [PROMPT, "The city of the Eiffel Tower"])
    found = capture.routing()
    assert set(found["layer"]) == {layer for layer, ffn in enumerate(model.ffn) if ffn.experts}
    for (layer, prompt, position), rows in found.groupby(["layer", "prompt", "position"]):
        own = capture.coefficients[layer][prompt, position]
        chosen = set(rows["expert"])
        assert len(rows) == 2  # of four
        for place, expert in enumerate(model.ffn[layer].experts[:4]):
            fires = bool((own[list(expert.neurons)] != 0).any())
            assert fires == (place in chosen)
    assert found.groupby(["prompt", "position"])["token"].nunique().max() == 1
    assert (found["position"] < capture.mask.sum(1).numpy()[found["prompt"]]).all()


def test_experts_in_names_and_tables(model: fm.models.Model, tmp_path: Any) -> None:
    """A name would mean another neuron, or a table not say whose its neurons are."""
    ffn = model.ffn[1]
    names = {f"1.{'s' if at == 4 else f'e{at}'}.3": one.neurons[3] for at, one in enumerate(ffn.experts)}
    assert {name: model.neuron(name) for name in names} == names
    store = fm.scan(model, [PROMPT] * 4, tmp_path / "store", k=3, sample=6, draws=2, frequent=4)
    last = list(names)[-1]
    assert [store.index(name) for name in names] == [(1, neuron) for neuron in names.values()]
    card = str(store.neuron(last).sheet().blocks)
    assert last in card
    assert ("key +" in card) == (ffn.key_bias is None)  # GPT-OSS's last neurons read nothing
    first = store.stats(0).query("count > 0").iloc[0]
    assert ("routed" in repr(store.neuron(0, int(first["neuron"])))) == bool(
        model.ffn[0].experts
    )  # else: of all tokens
    projected = fm.project(model, list(names), side="key")
    assert projected["neuron"].unique().tolist() == list(names.values())
    shown = str(projection_sheet(projected).blocks)
    assert all(f"1.{neuron} ({name}) key" in shown for name, neuron in names.items())
    ends = promoters_sheet(fm.vocabulary.promoters(model, " Paris", side="value", k=3)).blocks[0]
    assert isinstance(ends, Table)
    assert [column.name for column in ends.columns].count("expert") == 2  # behind the neurons of each end
    assert ("all zeros" in shown) == (ffn.key_bias is not None)  # what GPT-OSS's experts write whatever they read
    assert fm.virtual_weights(model, last, heads=False).neuron == names[last]
    shared = "out of range" if len(ffn.experts) > 4 else "no shared experts"
    for name, word in {
        "1.e4.0": "expert 4",
        f"1.e0.{len(ffn.experts[0].neurons)}": "expert 0",
        "1.s.16": shared,
    }.items():
        with refuses(OutOfRangeError, IndexError, word):
            model.neuron(name)
    assert f"(experts {describe_experts(model.experts)})" in repr(model)
    assert f"{ffn.experts[1].neurons[0]} to {ffn.experts[1].neurons[-1]}" in repr(ffn.experts[1])
    capture = fm.capture(model, PROMPT)
    with fm.intervene(model, {last: 0.0}), fm.intervene(model, {(1, names[last]): 3.0}):
        assert (fm.capture(model, PROMPT).coefficients[1][..., names[last]] == 3).all()
    frames = [store.stats(), fm.attribute(capture, " Paris").neurons, fm.attribute_paths(capture, " Paris").top(None)]
    for frame in frames:
        for layer, rows in frame.groupby("layer"):
            experts = model.ffn[layer].experts
            assert rows["expert"].isna().all() if not experts else rows["expert"].notna().all()
            for row in rows.head(40).itertuples():
                assert not experts or row.neuron in experts[row.expert].neurons


def test_rates_and_chance_count_the_router(model: fm.models.Model, tmp_path: Any) -> None:
    """A neuron would fire at tokens that its expert never saw, and be held against directions that saw them all."""
    store = fm.scan(model, TEXTS, tmp_path / "store", k=3, sample=20, draws=2, frequent=4)
    capture = fm.capture(model, TEXTS, prepend_bos=store.settings.prepend_bos)
    content = capture.mask & (capture.tokens != model.bos_token_id)
    fired = {layer: (one[content] > 0).double().mean(0) for layer, one in capture.coefficients.items()}
    measured = fm.polysemanticity(store, model, draws=20)
    chance = fm.neurons.chance_verdicts(store, model, per_layer=24, draws=20, kinds="matched").table
    for table in (measured, chance[chance["kind"] == "own"]):
        expected = [float(fired[row.layer][row.neuron]) for row in table.itertuples()]
        assert allclose(table["firing_rate"].to_numpy(), expected, 1e-9)
    moments = {}
    for layer, one in capture.coefficients.items():
        away = one[content].double() - one[content].double().mean(0)
        moments[layer] = (away**4).mean(0) / (away**2).mean(0) ** 2 - 3
    expected = [float(moments[row.layer][row.neuron]) for row in measured.itertuples()]
    there = np.isfinite(expected)
    assert allclose(measured["kurtosis"][there], np.array(expected)[there], 1e-4)
    for layer, rows in chance[chance["kind"] == "matched"].groupby("layer"):
        sizes = model.ffn[layer].expert_sizes
        if sizes is not None:
            routed = capture.routing().query("layer == @layer")
            counted = content.numpy()[routed["prompt"], routed["position"]]
            shares = routed[counted]["expert"].value_counts() / int(content.sum())
            of_experts = rows[rows["neuron"] < sizes[0] * sizes[1]]
            most = (of_experts["neuron"] // sizes[1]).map(shares).fillna(0.0)
            assert (of_experts["firing_rate"] <= most + 1e-9).all()


def test_relp_and_removal_are_exact(model: fm.models.Model) -> None:
    """What the router gives would be counted twice, a removal leave something behind, or a norm inside attention."""
    capture = fm.capture(model, PROMPT)
    parts = fm.attribute_paths(capture, " Paris").components.set_index(["component", "layer"])["logit"]
    biased = model.hf_model.config.model_type in ("qwen2_moe", "gpt_oss")
    assert biased or parts["attention bias"].abs().max() < 1e-10
    scores = fm.causal_scores(capture, " Paris", " Rome", rule="relp")
    assert scores.completeness_error is not None
    assert scores.completeness_error < 1e-10 * max(1.0, abs(scores.logit))
    first = fm.attribute(capture, " Paris").top(2)
    neurons = list(zip(first["layer"], first["neuron"], strict=True))
    logits = fm.capture(model, PROMPT, logits=True).logits[0, -1]
    for row in fm.ablate(capture, " Paris", neurons=neurons).to_frame().itertuples():
        with fm.intervene(model, {(row.layer, row.neuron): 0.0}):
            without = fm.capture(model, PROMPT, logits=True).logits[0, -1]
        at = model.token_id(" Paris")
        assert allclose(row.logit, logits[at] - without[at], 1e-9)  # DeepSeek V2 turns queries in float32


def test_what_experts_have_not(model: fm.models.Model, tiny: fm.models.Model, tmp_path: Any) -> None:
    """An adapter would change nothing, and a table of no experts look like one of none that were chosen."""
    change = fm.editing.EditedLayer(1, torch.randn(1, model.ffn[1].d_mlp), torch.randn(1, model.d_model))
    fact = fm.Fact("Eiffel Tower", "city", "The city of the {}", "Paris", "Rome")
    edit = fm.editing.Edit.of(model, [change], method="mine", facts=[fact], targets=["Rome"])
    with refuses(UnsupportedModelError, ValueError, "experts", "export a checkpoint"):
        edit.export_lora(model, tmp_path / "adapter")
    with refuses(InputError, ValueError, "no experts"):
        fm.capture(tiny, PROMPT).routing()
    with refuses(InputError, ValueError, "e3.2", "layer 0", "no experts", "LAYER.NEURON"):
        tiny.neuron("0.e3.2")
    assert "expert" not in fm.attribute(fm.capture(tiny, PROMPT), " Paris").neurons


def test_gradients_where_no_token_is_routed(tokenizer: Any) -> None:
    """Against a mean, firings of experts that were not chosen would be worth nothing."""
    model = fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    mean = [0.01 * torch.ones(model.d_mlp, dtype=torch.float64) for _ in model.ffn]
    scores = fm.causal_scores(capture, " Paris", " Rome", mean=mean)
    unrouted = (capture.coefficients[1][0] == 0).numpy()
    assert unrouted.any()
    assert (scores.scores[1][torch.from_numpy(unrouted[: scores.scores.shape[1]])] != 0).any()


def test_experts_stay_live_in_a_copy(model: fm.models.Model) -> None:
    """What is written into an expert of a copy, or of another type, would be lost."""
    copied = copy.deepcopy(model.hf_model)
    for network in (copied, copied.float(), copied.double()):
        mixture = next(module for module in network.model.layers[1].children() if hasattr(module, "views"))
        views, tokens = mixture.views, torch.arange(6).unsqueeze(0)
        _ = mixture.projections[2].weight
        with torch.no_grad():
            before = network(tokens).logits
            for expert in views:
                expert.values.mul_(2)
            assert torch.equal(mixture.projections[2].weight.T, torch.cat([expert.values for expert in views]))
            assert not torch.equal(network(tokens).logits, before)
            for expert in views:
                expert.values.div_(2)
            assert torch.equal(network(tokens).logits, before)


def test_routing_is_of_the_model_as_it_was(tokenizer: Any) -> None:
    model = fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer)
    capture = fm.capture(model, PROMPT)
    with torch.no_grad():
        model.ffn[0].mixture.router.weight.mul_(-1)
    with refuses(InputError, ValueError, "changed since"):
        capture.routing()


@pytest.mark.parametrize("seed", range(6))
def test_bfloat16_is_routed_alike(seed: int, tokenizer: Any) -> None:
    """Layers by themselves would round otherwise, and be refused for a token that goes to another expert then."""
    model = fm.load(randomise(DECODERS["OLMoE"](), seed), tokenizer=tokenizer, dtype="bfloat16")
    fm.editing.second_moment(model, ["The city of the Eiffel Tower is Paris"] * 3)


def test_the_router_decides_once_a_layer(model: fm.models.Model) -> None:
    """Gates and keys would each ask it: a router's time twice, and two answers of one that draws at random."""
    calls: list[Any] = []
    mixtures = [ffn.mixture for ffn in model.ffn if ffn.mixture is not None]
    hooks = [mixture.router.register_forward_hook(lambda *_: calls.append(1)) for mixture in mixtures]
    fm.capture(model, PROMPT)
    for hook in hooks:
        hook.remove()
    assert len(calls) == len(mixtures)


def test_hugging_face_saves_it(model: fm.models.Model, tmp_path: Any) -> None:
    """Shared experts' values are rows of a matrix of all, which safetensors refuses with an error of its own."""
    model.hf_model.save_pretrained(tmp_path)
    again = fm.load(tmp_path, tokenizer=model.tokenizer, dtype="float64")
    logits = [fm.capture(one, PROMPT, logits=True).logits for one in (model, again)]
    assert allclose(*logits, 1e-10)


def test_every_table_of_neurons_names_experts(model: fm.models.Model, tmp_path: Any) -> None:
    """A reader would have to divide by an expert's size to learn whose a neuron is."""
    capture, texts = fm.capture(model, PROMPT), [PROMPT, "The city of the Eiffel Tower"] * 4
    store = fm.scan(model, texts, tmp_path / "store", k=3, sample=6, draws=2, frequent=4)
    results = [
        fm.attribute(capture, " Paris"),
        fm.attribute_paths(capture, " Paris"),
        fm.causal_scores(capture, " Paris", " Rome"),
        fm.circuit(capture, " Paris"),
        fm.ablate(capture, " Paris", neurons=[(1, 2)]),
        fm.minimal_circuit(capture, " Paris", " Rome"),
        fm.virtual_weights(model, "1.e1.3"),
        fm.neurons.neuron_health(model, texts, flow=False),
        fm.neurons.find_readable(store),
    ]
    for result in results:
        sheet, frame = result.sheet(), result.to_frame()
        for table in [block for block in sheet.blocks if isinstance(block, Table)]:
            heads = [column.kind for column in table.columns]
            for at in [i for i, kind in enumerate(heads) if kind == "neuron"]:
                assert table.columns[at + 1].name.endswith("expert")
                for row in table.rows:
                    experts = model.ffn[row[at][0]].experts
                    named = model.neuron(f"{row[at][0]}.{row[at + 1]}") if experts else row[at][1]
                    assert named == row[at][1]
        if {"layer", "neuron"} <= {*frame}:
            for row in frame.head(20).itertuples():
                experts = model.ffn[row.layer].experts
                assert pd.isna(row.expert) if not experts else row.neuron in experts[row.expert].neurons


SIZES = st.one_of(st.none(), st.builds(ExpertSizes, st.integers(1, 99), st.integers(1, 9999), st.integers(0, 9999)))


@given(st.lists(SIZES, max_size=12))
def test_experts_in_words_are_read_back(sizes: list[ExpertSizes | None]) -> None:
    """Names would be of another expert's neurons in what was saved."""
    assert read_experts(describe_experts(sizes)) == {layer: one for layer, one in enumerate(sizes) if one is not None}


def test_captures_hold_what_is_routed(tokenizer: Any) -> None:
    """Zeros of experts that no token went to would take more room than all else, or reading give other numbers."""
    model = fm.load(build("Olmoe", intermediate_size=16, num_experts=16, num_experts_per_tok=2), tokenizer=tokenizer)
    seen: dict[int, list[torch.Tensor]] = {layer: [] for layer in range(model.n_layers)}
    with ExitStack() as hooks:
        for ffn in model.ffn:
            hear = partial(lambda layer, _, x: seen[layer].append(x[0].to_sparse()), ffn.layer)
            hooks.callback(ffn.project_out.register_forward_pre_hook(hear).remove)
        capture = fm.capture(model, [PROMPT, "The city"])
        with fm.intervene(model, {(0, 7): 3.0}):  # of an expert that not every token goes to
            changed = fm.capture(model, PROMPT)
    shape = (*capture.tokens.shape, model.d_mlp)
    objects = [one for one in gc.get_objects() if type(one) is torch.Tensor and not one.is_sparse]
    assert not [one for one in objects if one.numel() == math.prod(shape)]
    assert shape == capture.coefficients[0].shape
    for layer, (first, second) in seen.items():
        whole = first.to_dense().view(shape).masked_fill(~capture.mask.unsqueeze(-1), 0)
        assert torch.equal(capture.coefficients[layer], whole)
        if layer:
            assert torch.equal(changed.coefficients[layer], second.to_dense().view(1, -1, model.d_mlp))
    assert (changed.coefficients[0][..., 7] == 3).all()
    assert (capture.coefficients[0][..., 7] == 0).any()


def test_what_each_neuron_is_multiplied_by(model: fm.models.Model) -> None:
    """A neuron would take what the router gives another expert, where some are asked for and where all are."""
    x = fm.capture(model, PROMPT).ffn_in[1]
    mixture = model.ffn[1].mixture
    whole = mixture.factors(x)
    some = torch.randperm(whole.shape[-1], generator=torch.Generator().manual_seed(0))[:20]
    assert torch.equal(mixture.factors(x, some), whole[..., some])
    for which, (projection, rows) in enumerate(
        zip(mixture.projections, (model.ffn[1].gates, model.ffn[1].keys), strict=False)
    ):
        slope, constant = mixture.line(which, x @ rows.T, whole, projection.bias)
        assert allclose(slope * (x @ rows.T) + constant, projection(x), 1e-12)


@pytest.mark.filterwarnings("ignore::ffnmem.FfnmemWarning")
def test_edits_of_one_expert(model: fm.models.Model) -> None:
    """Values of experts that the subject does not go to would change too, and with them what other tokens get."""
    texts, fact, layer = TEXTS * 8, fm.Fact("Eiffel Tower", "city", "The city of the {}", "Paris", "Rome"), 1
    moment = fm.editing.second_moment(model, texts, layers=[layer])
    made = partial(fm.rome, model, fact, layer=layer, moment=moment, contexts=["{}"], ridge=0.1, force=True)
    coefficients = fm.capture(model, TEXTS[1]).coefficients[layer][0, -1]
    experts = model.ffn[layer].experts
    there = [i for i, one in enumerate(experts) if coefficients[list(one.neurons)].any()]
    for number in there:
        neurons = experts[number].neurons
        edit = made(expert=number)
        (change,) = edit.changes
        changed = change.left[0].nonzero().flatten().tolist()
        assert changed
        assert {*changed} <= {*neurons}
        c = moment.matrix(layer)
        c = c + 0.1 * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype)
        rows = list(neurons)
        expected = torch.linalg.solve(c[rows][:, rows], coefficients[rows].double())
        found = change.left[0][rows].double()
        # Rotations are in float32; Hugging Face's Llama 4 counts pads before a text where it scales its queries.
        off = 0.05 if "Llama4" in model.architecture else 1e-6
        assert allclose(found / found.norm(), expected / expected.norm(), off)
    assert f"in expert {there[-1]} alone" in str(Effects(edit, model).measure(top=2).sheet().blocks[0])
    missing = next(i for i in range(len(experts)) if i not in there)
    with refuses(InputError, ValueError, f"does not go to expert {missing} in layer 1, but to"):
        made(expert=missing)
    with refuses(OutOfRangeError, IndexError, "expert 99", "layer 1"):
        made(expert=99)
