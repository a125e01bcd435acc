"""``compare``: permuted copies, edits, seeds, and what both models say, against plain computations."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

import ffnmem as fm
from ffnmem.comparing import Comparison
from ffnmem.comparing.comparison import SAID, VERDICTS
from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import activation

from ..architectures import DECODERS
from ..editing.edits import made as random_edit
from ..helpers import ARCHITECTURES, allclose, build, build_gpt2, build_tokenizer, randomise, refuses
from ..planted_models import plant_facts
from .made import TEXTS, permuted


def check(found: Comparison) -> None:
    """Verdicts and what is said of layers are what the rows say, by plain rules for one neuron after another."""
    kinds = [name for name in ("key_change", "gate_change", "value_change") if name in found.neurons]
    for layer, part in found.neurons.groupby("layer"):
        own = found.layers.set_index("layer").loc[layer]
        known = sorted(part["baseline"].dropna())
        null = known[min(math.ceil(round((1 - found.chance) * (len(known) + 1), 6)), len(known)) - 1]
        sizes = part["correlation"].abs() if "gate_change" in part else part["correlation"]
        change = part[kinds].max(axis=1, skipna=False).fillna(np.inf)
        reads = part[[name for name in kinds if name != "value_change"]].max(axis=1, skipna=False)
        due = []
        for row, size, moved, read in zip(part.to_dict("records"), sizes, change, reads, strict=True):
            there = (row["match_layer"], row["match_neuron"]) == (layer, row["neuron"]) and np.isfinite(moved)
            if moved <= found.tolerance:
                due.append("same")
            elif np.isnan(size):
                due.append("moved" if read <= found.tolerance else "silent")
            else:
                due.append("new" if size <= null else "moved" if there else "permuted")
        assert part["verdict"].tolist() == due
        assert {verdict: own[verdict] for verdict in VERDICTS} == {verdict: due.count(verdict) for verdict in VERDICTS}
        assert allclose(part["excess"].dropna(), (sizes - part["baseline"]).dropna(), 1e-12)
        assert (part.loc[sizes.isna(), ["match_layer", "match_neuron"]] == -1).all(axis=None)
        named = ["null", "correlation", "baseline", "above_null", "universal"]
        plain = [null, sizes.median(), part["baseline"].median(), (sizes > null).mean(), (part["excess"] > 0.5).mean()]
        assert allclose(own[named], plain, 1e-12)
        if found.alike:
            assert allclose(own[["change_median", "change_max"]], [change.median(), change.max()], 1e-12)
    rows = found.sensitivity.query("setting == 'chance'")
    assert rows["new"].is_monotonic_increasing
    mine = rows[rows["value"] == found.chance].iloc[0]
    assert {name: mine[name] for name in found.counts} == found.counts
    assert set(found.by_layer) & set(VERDICTS) == {verdict for verdict, count in found.counts.items() if count}
    permuted = found.neurons[found.neurons["verdict"] == "permuted"].sort_values(
        "excess", ascending=False, kind="stable"
    )
    elsewhere = found.elsewhere
    assert (elsewhere is None) == (not len(permuted))
    if elsewhere is not None:
        assert elsewhere["in_second"].tolist() == [f"{row.layer}.{row.neuron}" for row in permuted.itertuples()]
        assert elsewhere[["layer", "neuron"]].equals(
            permuted[["match_layer", "match_neuron"]].set_axis(["layer", "neuron"], axis=1)
        )
    for verdict, count in found.counts.items():
        assert (f" {count:,} {SAID[verdict]}" in found.verdict) == bool(count)


@pytest.mark.parametrize("name", ["gpt2", "opt", "gemma2", pytest.param("llama", marks=pytest.mark.exhaustive)])
def test_permuted_copies_are_recovered_exactly(name: str, tokenizer: Any) -> None:
    """Whatever a symmetry of the FFN allows: order everywhere, and signs and lengths where gates keep them apart."""
    hf = ARCHITECTURES[name]()
    first, second = (fm.load(hf, tokenizer=tokenizer, dtype="float64") for _ in range(2))
    gated = first.gated
    orders = [permuted(second, layer, layer, turns=gated, stretches=gated).numpy() for layer in range(2)]
    found = fm.compare(first, second, TEXTS, reach=None)
    for layer, order in enumerate(orders):
        rows = found.neurons[(found.neurons["layer"] == layer) & (found.neurons["verdict"] != "silent")]
        due = order[rows["neuron"]]
        assert len(rows) > 0.8 * len(order)  # a ReLU may never fire on so little text
        assert (rows["match_layer"] == layer).all()
        assert (rows["match_neuron"] == due).all()
        assert allclose(rows["correlation"].abs(), np.ones(len(rows)), 1e-10)
        assert (rows["correlation"] < 0).any() == gated
        assert allclose(rows["value_cosine"], np.sign(rows["correlation"]), 1e-12)
        assert allclose(rows["key_cosine"], np.sign(rows["correlation"]), 1e-12)
        assert rows["value_norm_ratio"].between(1 / 3 - 1e-9, 1 + 1e-9).all()
        assert (rows["value_norm_ratio"] < 0.9).any() == gated
        moved = due != rows["neuron"]
        assert (rows.loc[moved, "verdict"] == "permuted").all()
    check(found)
    assert found.other_tensors == ()
    assert found.predictions is not None
    assert found.predictions["kl"] < 1e-12
    assert found.predictions["agreement"] == 1


EXPERTS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("Mixtral", "Qwen 2 MoE")] + ["OLMoE"]


@pytest.mark.parametrize("name", ["GPT-2", *EXPERTS])
def test_an_edit_moves_its_layer_alone(name: str, tokenizer: Any) -> None:
    """The values of one layer, by as much as ΔW says, whether one model is given or two, and nothing is left behind."""
    hf = DECODERS[name]()
    model, edited = (fm.load(deepcopy(hf), tokenizer=tokenizer) for _ in range(2))
    edit, before = random_edit(model, (1,)), model.fingerprint
    found = fm.compare(model, edit, TEXTS[:40])
    assert model.fingerprint == before
    assert (found.first, found.second) == (model.name, f"{model.name} with {edit.title}")
    check(found)
    rows = found.neurons[found.neurons["layer"] == 1]
    assert set(found.moved()["layer"]) == {1}
    assert not rows["key_change"].any()
    top = found.moved(1).iloc[0]
    assert top["value_change"] == rows["value_change"].max()
    moved = found.changed(3)
    assert moved is not None
    assert len(moved) == 3
    assert "key_change" not in moved
    if name == "GPT-2":
        change = (edit.changes[0].delta().norm(dim=1) / model.ffn[1].values.norm(dim=1)).detach()
        assert allclose(rows["value_change"], change, 1e-5)
        assert (found.counts["moved"], found.counts["same"]) == (model.d_mlp, model.d_mlp)
    edit.apply(edited)
    both = fm.compare(model, edited, TEXTS[:40])
    pd.testing.assert_frame_equal(both.neurons, found.neurons, check_exact=True)
    assert both.predictions == found.predictions
    with edit.applied(model):
        pd.testing.assert_frame_equal(fm.compare(model, edit, TEXTS[:40]).neurons, found.neurons)


@pytest.mark.parametrize("name", ["GPT-2", *EXPERTS])
def test_weights_beside_the_neurons_are_named(name: str, tokenizer: Any) -> None:
    """Neurons may be the same in a model that is not: a router that differs is named, an expert's neuron is not."""
    hf = DECODERS[name]()
    first, second = (fm.load(deepcopy(hf), tokenizer=tokenizer) for _ in range(2))
    same = fm.compare(first, second)
    assert same.other_weights == "the same"
    assert same.first_rows().equals(same.neurons)
    with torch.no_grad():
        second.ffn[1].values[3] += 1
    assert fm.compare(first, second).moved()[["layer", "neuron"]].to_numpy().tolist() == [[1, 3]]
    assert fm.compare(first, second).other_tensors == ()
    other = "transformer.h.1.mlp.c_proj.bias" if name == "GPT-2" else "model.layers.1.mlp.gate.weight"
    with torch.no_grad():
        second.ffn[1].values.copy_(first.ffn[1].values)
        dict(second.hf_model.named_parameters())[other][0] += 1
    found = fm.compare(first, second)
    assert found.counts["same"] == len(found.neurons)
    assert found.other_tensors == (other,)
    assert found.other_weights == f"differ in 1 tensor: {other}"


def test_what_is_no_difference(make_tiny: Callable[..., fm.Model], tokenizer: Any) -> None:
    """The same model; rounding; a buffer of one alone. Angles of positions are weights too."""
    fine = make_tiny()
    found = fm.compare(fine, fine, TEXTS)
    assert found.predictions is not None
    assert found.predictions["kl"] == 0
    assert (found.verdict, found.other_weights) == ("Of 128 neurons 128 are the same.", "the same")
    coarse = fm.load(deepcopy(fine.hf_model), tokenizer=tokenizer, dtype="bfloat16")
    for first, second in ((fine, coarse), (coarse, fine)):
        found = fm.compare(first, second)
        assert (found.other_tensors, found.counts["same"]) == ((), len(found.neurons))
    hf = ARCHITECTURES["llama"]()
    first, second = (fm.load(deepcopy(hf), tokenizer=tokenizer) for _ in range(2))
    second.hf_model.register_buffer("mine", torch.ones(3))
    assert fm.compare(first, second).other_tensors == ()
    dict(second.hf_model.named_buffers())["model.rotary_emb.inv_freq"].mul_(2)
    assert fm.compare(first, second).other_tensors == ("model.rotary_emb.inv_freq",)


def test_planted_facts_are_found_again() -> None:
    """Of the same late facts and other seeds, matches are of the same fact; random keys match by chance alone."""
    one, two = (plant_facts(seed, "late", n_subjects=20, n_relations=2, n_objects=4, stated=0) for seed in (1, 2))
    rows = fm.compare(one.model, two.model, one.texts, reach=0, tokens=3000).neurons
    names = ["layer", "role", "subject", "relation"]
    first, second = (
        model.truth[names].astype(str).agg("/".join, axis=1).to_numpy().reshape(model.model.n_layers, -1)
        for model in (one, two)
    )
    planted = (two.truth["role"] != "none").to_numpy()
    matched = rows["verdict"].isin(("permuted", "moved")).to_numpy()
    right = first[rows["match_layer"], rows["match_neuron"]] == second.reshape(-1)
    assert (matched & right)[planted].mean() >= 0.95
    assert right[planted & matched].mean() >= 0.95
    assert matched[~planted].mean() < 0.05


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.exhaustive)])
def test_random_models_match_by_chance_alone(kind: str, tokenizer: Any) -> None:
    """Of neurons whose keys are random draws, as many are above the null as it says, and no more."""
    above: dict[float, list[float]] = {0.01: [], 0.1: []}
    for seed in range(2):
        sizes = {"n_embd": 32, "n_inner": 256} if kind == "gpt2" else {"hidden_size": 32, "intermediate_size": 256}
        models = [build_gpt2(**sizes) if kind == "gpt2" else build("Llama", **sizes) for _ in range(2)]
        first, second = (fm.load(randomise(hf, 10 * seed + i), tokenizer=tokenizer) for i, hf in enumerate(models))
        found = fm.compare(first, second, TEXTS, reach=0)
        check(found)
        new = found.sensitivity.query("setting == 'chance'").set_index("value")["new"]
        for chance, shares in above.items():
            shares.append(1 - new[chance] / len(found.neurons))
    assert np.mean(above[0.01]) < 0.03
    assert 0.03 < np.mean(above[0.1]) < 0.17


SHORT = [text[:30].strip() for text in TEXTS[:40]]


def coefficients(model: fm.Model, texts: list[str]) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """By layer, of all content, by plain captures of one text after another: coefficients; and what neurons read,
    pre-activations and of gated models linear parts."""
    captures = [fm.capture(model, text, prepend_bos=True) for text in texts]

    def joined(part: str) -> list[np.ndarray]:
        read = [getattr(capture, part) for capture in captures]
        return [np.concatenate([one[layer][0, 1:].numpy() for one in read]) for layer in range(model.n_layers)]

    parts = [joined(part) for part in ("pre", "linear")[: 1 + model.gated]]
    return joined("coefficients"), [list(layer) for layer in zip(*parts, strict=True)]


def rotated(x: np.ndarray, *seed: int) -> np.ndarray:
    """Random signs, then a Hartley transform."""
    turned = np.fft.fft(x * (2 * np.random.default_rng([0, *seed]).integers(0, 2, x.shape[1]) - 1))
    return (turned.real - turned.imag) / x.shape[1] ** 0.5


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_streaming_is_one_shot(kind: str, tokenizer: Any) -> None:
    """Many small pages give the correlations of all coefficients at once, and the best of them."""
    exact = 1e-12 if kind == "gpt2" else 1e-6
    first, second = (
        fm.load(randomise(ARCHITECTURES[kind](), seed), tokenizer=tokenizer, dtype="float64") for seed in (1, 2)
    )
    found = fm.compare(first, second, SHORT, reach=None, batch_tokens=64, prepend_bos=True)
    (a, _), (b, _) = coefficients(first, SHORT), coefficients(second, SHORT)
    for layer, mine in enumerate(b):
        both = np.concatenate([np.corrcoef(mine.T, theirs.T)[: mine.shape[1], mine.shape[1] :] for theirs in a], axis=1)
        rows = found.neurons[found.neurons["layer"] == layer]
        sizes = np.abs(both) if kind == "llama" else both
        assert allclose(rows["correlation"].abs() if kind == "llama" else rows["correlation"], sizes.max(1), exact)
        assert (rows["match_layer"] * 64 + rows["match_neuron"] == sizes.argmax(1)).all()
        own = np.diagonal(both[:, layer * 64 : (layer + 1) * 64])
        assert allclose(rows["own_correlation"], own, exact)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_random_neurons_read_what_the_firsts_read(kind: str, tokenizer: Any) -> None:
    """By default: pre-activations, and linear parts, in units of their deviations, rotated; then the activation."""
    first, second = (
        fm.load(randomise(ARCHITECTURES[kind](), seed), tokenizer=tokenizer, dtype="float64") for seed in (1, 2)
    )
    texts = [text for text in TEXTS if len(first.ids_of(text)) == 20]  # of one page
    found = fm.compare(first, second, texts, reach=0, prepend_bos=True).neurons
    reads, (b, _) = coefficients(first, texts)[1], coefficients(second, texts)
    for layer, parts in enumerate(reads):
        turned = [
            rotated((part - part.mean(0)) / part.std(0), layer, at) * part.std(0) + part.mean(0)
            for at, part in enumerate(parts)
        ]
        fired = activation(first.ffn[layer].activation)(torch.from_numpy(turned[0])).numpy() * np.prod(turned[1:], 0)
        null = np.corrcoef(b[layer].T, fired.T)[:64, 64:]
        due = (np.abs(null) if kind == "llama" else null).max(1)
        assert allclose(found.loc[found["layer"] == layer, "baseline"], due, 1e-4)


def test_what_both_say(tokenizer: Any) -> None:
    """Losses, KL and agreement are those of plain passes."""
    pairs = [randomise(build_gpt2(), seed).double() for seed in (1, 2)]
    models = [fm.load(hf, tokenizer=tokenizer, dtype="float64") for hf in pairs]
    found = fm.compare(*models, TEXTS[:10], prepend_bos=True).predictions
    assert found is not None
    sums, count = torch.zeros(4, dtype=torch.float64), 0
    for text in TEXTS[:10]:
        ids = torch.tensor([models[0].tokenize(text, prepend_bos=True)])
        with torch.no_grad():
            p, q = (hf(input_ids=ids).logits[0, :-1].log_softmax(-1) for hf in pairs)
        losses = [F.nll_loss(one, ids[0, 1:], reduction="sum") for one in (p, q)]
        sums += torch.stack([*losses, (p.exp() * (p - q)).sum(), (p.argmax(-1) == q.argmax(-1)).sum()])
        count += len(p)
    assert found["scored"] == count
    assert allclose([found[name] for name in ("loss_first", "loss_second", "kl", "agreement")], sums / count, 1e-10)


def test_layers_of_other_sizes_match_by_what_they_do(tiny: fm.Model, tokenizer: Any) -> None:
    """Without places of their own, neurons are permuted or new, and weights do not compare."""
    other = fm.load(build_gpt2(n_inner=48, n_layer=3), tokenizer=tokenizer)
    found = fm.compare(tiny, other, TEXTS)
    check(found)
    assert not found.alike
    assert set(found.neurons["verdict"]) <= {"permuted", "new", "silent"}
    assert found.neurons["value_change"].isna().all()
    assert found.other_tensors is None
    assert len(found.neurons) == 3 * 48
    near = (
        fm.compare(tiny, other, TEXTS[:40], reach=0)
        .neurons.groupby("layer")["match_layer"]
        .agg(lambda at: set(at) - {-1})
    )
    assert near.tolist() == [{0}, {0}, {1}]  # at the same relative depth, the lower one of two
    gated = fm.compare(tiny, fm.load(ARCHITECTURES["llama"](), tokenizer=tokenizer), TEXTS[:40])
    assert {"key_cosine", "value_cosine"} <= set(gated.neurons)
    assert "gate_cosine" not in gated.neurons
    with refuses(InputError, ValueError, "2 layers of 64", "3 layers of 48", "text"):
        fm.compare(tiny, other)
    sizes = ({"num_local_experts": 4, "intermediate_size": 16}, {"num_local_experts": 2, "intermediate_size": 32})
    with refuses(InputError, ValueError, "4 x 16", "2 x 32", "text"):  # as many neurons, but other ones
        fm.compare(*(fm.load(build("Mixtral", **size), tokenizer=tokenizer) for size in sizes))


def test_mistakes(tiny: fm.Model, tokenizer: Any) -> None:
    other = build_tokenizer()
    other.add_tokens([" Colosseum"])
    strange = fm.load(build_gpt2(vocab_size=len(other)), tokenizer=other)
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((tiny, tiny, TEXTS), {"chance": 1.1}, "chance must be at most 1"),
        ((tiny, tiny), {"tolerance": 1.0}, "tolerance"),
        ((tiny, strange, TEXTS), {}, "other tokenizers"),
    ]
    for given, options, says in refused:
        with refuses(InputError, ValueError, says):
            fm.compare(*given, **options)
