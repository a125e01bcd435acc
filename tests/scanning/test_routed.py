"""Scans of mixtures of experts: what a neuron does is measured over the tokens that are routed to its expert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus import batches
from ffnmem.scanning.state import COLUMNS

from ..architectures import build
from ..helpers import allclose, build_tokenizer, refuses
from .corpora import SMALL, digests, texts

CORPUS = texts(60)
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 1}


def build_moe() -> Any:
    """Experts, a shared one among them; to some no token of the corpus is routed."""
    return build("Qwen2Moe", moe_intermediate_size=12, shared_expert_intermediate_size=16, **EXPERTS)


@pytest.fixture(scope="module", autouse=True)
def small_units() -> Iterator[None]:
    """Several units of work in a small corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "UNIT", 20)
        yield


@pytest.fixture(scope="module")
def model() -> fm.Model:
    return fm.load(build_moe(), tokenizer=build_tokenizer())


@pytest.fixture(scope="module")
def store(model: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return scan(model, tmp_path_factory.mktemp("stores") / "store")


def scan(model: fm.Model, folder: Path, **changes: Any) -> fm.scanning.Store:
    return fm.scan(model, CORPUS, folder, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def tokens(model: fm.Model, store: fm.scanning.Store) -> list[dict[str, np.ndarray]]:
    """By layer, of every content token and neuron: coefficient, gate, linear, and whether its expert was chosen."""
    found: list[dict[str, list[np.ndarray]]] = [{} for _ in model.ffn]
    for number in range(len(store.sequences)):
        tokens = torch.from_numpy(store.sequences.sequence_tokens(number)[None])
        capture = fm.capture(model, tokens)
        content, chosen = capture.content[0].numpy(), capture.routing()
        for layer, ffn in enumerate(model.ffn):
            own = np.zeros((tokens.shape[1], ffn.d_mlp), bool)
            shared = [expert.neurons for expert in ffn.experts[ffn.expert_sizes.experts :]]
            for neurons in shared:
                own[:, list(neurons)] = True
            for row in chosen[chosen["layer"] == layer].itertuples():
                own[row.position, list(ffn.experts[row.expert].neurons)] = True
            arrays = {"m": capture.coefficients, "gate": capture.pre, "linear": capture.linear}
            for name, values in {**{k: v[layer][0].numpy() for k, v in arrays.items()}, "own": own}.items():
                found[layer].setdefault(name, []).append(values[content])
    return [{name: np.concatenate(parts) for name, parts in layer.items()} for layer in found]


def test_statistics_are_of_the_tokens_routed(
    model: fm.Model, store: fm.scanning.Store, tokens: list[dict[str, np.ndarray]]
) -> None:
    """Rates and sign cases would say how often an expert is chosen rather than what its neurons do."""
    unused = 0
    for layer, of_layer in enumerate(tokens):
        stats = store.stats(layer)
        m, gate, linear, own = (of_layer[name] for name in ("m", "gate", "linear", "own"))
        assert (stats["count"] == own.sum(0)).all()
        assert allclose(stats["routed"], own.mean(0), 1e-12)
        for neuron, row in enumerate(stats.to_dict("records")):
            its = own[:, neuron]
            if not its.any():
                unused += 1
                assert row["dead"]
                assert np.isnan([row["mean"], row["min"], row["firing_rate"], row["share_gate_neg_linear_neg"]]).all()
                assert not len(store.examples(layer, neuron))
                continue
            x, g, u = (part[its, neuron].astype(np.float64) for part in (m, gate, linear))
            found = [row[name] for name in ("mean", "std", "min", "max", "pre_mean", "pre_max", "linear_min")]
            assert allclose(found, [x.mean(), x.std(), x.min(), x.max(), g.mean(), g.max(), u.min()], 1e-6)
            assert allclose([row["firing_rate"], row["zero_share"]], [(g > 0).mean(), (x == 0).mean()], 1e-12)
            for column, (opened, positive) in zip(COLUMNS, [(a, b) for a in (1, 0) for b in (1, 0)], strict=True):
                assert allclose(row[f"share_{column}"], ((g > 0) == opened)[(u > 0) == positive].sum() / len(x), 1e-12)
            histogram, positions = store.histogram(layer, neuron), store.by_position(layer, neuron)
            assert histogram["count"].sum() == positions["count"].sum() == len(x)
            assert allclose((positions["mean"] * positions["count"]).sum(), x.sum(), 1e-5)
    assert unused


def test_examples_are_routed(model: fm.Model, store: fm.scanning.Store) -> None:
    """A 0 at a token that went elsewhere would be shown as the lowest, the typical or the random coefficient."""
    seen = 0
    for layer, ffn in enumerate(model.ffn):
        for expert, one in enumerate(ffn.experts):
            examples = store.examples(layer, one.neurons[3])
            for number, rows in examples.groupby("sequence"):
                capture = fm.capture(model, torch.from_numpy(store.sequences.sequence_tokens(int(number))[None]))
                chosen = capture.routing()
                there = chosen[(chosen["layer"] == layer) & (chosen["expert"] == expert)]["position"]
                assert expert == ffn.expert_sizes.experts or rows["position"].isin(there).all()
                own = capture.coefficients[layer][0, :, one.neurons[3]]
                assert allclose(rows["coefficient"], own[rows["position"].tolist()], 1e-6)
                seen += len(rows)
    assert seen > 50


def test_how_much_goes_to_an_expert(model: fm.Model, store: fm.scanning.Store, tiny_store: fm.scanning.Store) -> None:
    found = store.routing()
    assert found[["layer", "expert"]].to_numpy().tolist() == [
        [layer, expert] for layer, ffn in enumerate(model.ffn) for expert in range(len(ffn.experts))
    ]
    for layer, ffn in enumerate(model.ffn):
        shares = found[found["layer"] == layer]["share"].to_numpy()
        assert allclose(shares[: ffn.expert_sizes.experts].sum(), 1.0, 1e-12)  # one a token
        assert (shares[ffn.expert_sizes.experts :] == 1).all()
    shown = str(store.sheet().blocks)
    assert "hardly used" in shown
    layer, expert = found.loc[found["tokens"] == 0, ["layer", "expert"]].to_numpy().tolist()[0]
    card = store.neuron(f"{layer}.e{expert}.3")
    assert "no token was routed to this expert" in str(card.sheet().blocks)
    assert "nan" not in card.to_markdown().casefold()
    assert "saw no tokens" in repr(card)
    used = found.loc[found["tokens"] > 0, ["layer", "expert"]].to_numpy().tolist()[0]
    assert "of routed tokens" in repr(store.neuron("{}.e{}.3".format(*used)))
    with refuses(InputError, ValueError, "no experts"):
        tiny_store.routing()


def test_shards_and_merges(model: fm.Model, tmp_path: Path) -> None:
    """Numbers of tokens routed would depend on how the work was shared out."""
    whole = scan(model, tmp_path / "whole", dtype="bfloat16")
    shards = [scan(model, tmp_path / f"shard{i}", dtype="bfloat16", shard=(i, 2)) for i in range(2)]
    assert digests(fm.merge(shards[::-1], tmp_path / "joined").folder) == digests(whole.folder)


def test_means_over_a_store_are_of_all_tokens(
    model: fm.Model, store: fm.scanning.Store, tokens: list[dict[str, np.ndarray]]
) -> None:
    """A mean that takes a neuron's place at every token would be that of the tokens routed alone."""
    neuron = model.neuron("1.e1.3")
    with fm.intervene(model, {(1, neuron): fm.interventions.Mean(store)}):
        found = fm.capture(model, "The city of Paris").coefficients[1][0, :, neuron]
    assert allclose(found, np.full(len(found), tokens[1]["m"][:, neuron].mean()), 1e-6)


def test_roles_are_of_all_tokens(
    model: fm.Model, store: fm.scanning.Store, tokens: list[dict[str, np.ndarray]]
) -> None:
    """A neuron that no token was routed to would not be dead, and one that few were would write as much as any."""
    found = fm.roles(model, store).neurons
    unused = store.stats().query("count == 0")[["layer", "neuron"]]
    assert len(unused)
    assert (found.merge(unused)["role"] == "dead").all()
    for layer, ffn in enumerate(model.ffn):
        square = (tokens[layer]["m"].astype(np.float64) ** 2).mean(0)
        expected = np.sqrt(square) * ffn.values.detach().norm(dim=1).double().numpy()
        assert allclose(found[found["layer"] == layer]["write_norm"], expected, 1e-5)


def test_health_is_of_the_tokens_routed(model: fm.Model, store: fm.scanning.Store) -> None:
    """Rates of neurons would be diluted by tokens that they never saw."""
    found = fm.neurons.neuron_health(model, CORPUS, context=store.settings.context)
    stats, neurons = store.stats(), found.neurons
    assert allclose(neurons["routed"], stats["routed"], 1e-12)
    assert (neurons["dead"] == stats["dead"]).all()
    seen = stats["count"] > 0
    assert allclose(neurons["fires"][seen], stats["firing_rate"][seen], 1e-6)
    for name in ("fires", "flat", "linear"):
        assert (neurons[name].isna() == ~seen).all()
