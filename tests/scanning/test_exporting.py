"""Other programs' forms of a store, read back by readers of the forms as they are documented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError
from ffnmem.scanning import Store, export_store, open_store

from ..helpers import allclose, refuses

NUMBER = {"feature_index": int, "frac_nonzero": float, "n_prompts_total": int, "n_tokens_in_prompt": int}
LISTS = {
    int: """neuron_alignment_indices correlated_neurons_indices correlated_features_indices freq_hist_data_bar_heights
        logits_hist_data_bar_heights""",
    float: """neuron_alignment_values neuron_alignment_l1 correlated_neurons_l1 correlated_neurons_pearson
        correlated_features_l1 correlated_features_pearson neg_values pos_values decoder_weights_dist
        freq_hist_data_bar_values logits_hist_data_bar_values""",
    str: "neg_str pos_str",
    dict: "activations",
}
"""The fields of SAEDashboard's NeuronpediaDashboardFeature."""
ACTIVATION = {"bin_min", "bin_max", "bin_contains", "tokens", "values", "qualifying_token_index"}


@pytest.fixture(scope="module")
def store(tiny_store: Store, tiny: fm.Model) -> Store:
    return open_store(tiny_store.folder, tiny)


# Neuronpedia.


def features(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The records of all batches, each checked to have the fields of the form and no others."""
    for path in sorted(folder.glob("*/batch-*.json")):
        batch = json.loads(path.read_text("utf-8"))
        assert set(batch) == {"model_id", "layer", "sae_set", "sae_id_suffix", "features"}
        for feature in batch["features"]:
            lists = {name: kind for kind, names in LISTS.items() for name in names.split()}
            assert set(feature) == {*NUMBER, *lists, "dataset"}
            assert all(isinstance(feature[name], kind) for name, kind in NUMBER.items())
            for name, kind in lists.items():
                assert all(isinstance(one, kind) for one in feature[name]), name
            for one in feature["activations"]:
                assert set(one) == ACTIVATION
                assert len(one["tokens"]) == len(one["values"])
            yield batch, feature


def test_neuronpedia(store: Store, tmp_path: Path) -> None:
    """What is read back is what the store and the model have."""
    folder = export_store(store, "neuronpedia", tmp_path / "out", neurons=["1.5", (0, 3), "1.2"], context=4)
    found = {(batch["layer"], feature["feature_index"]): feature for batch, feature in features(folder)}
    assert sorted(found) == [(0, 3), (1, 2), (1, 5)]
    assert {path.name for path in folder.iterdir()} == {"blocks.0.mlp.hook_post", "blocks.1.mlp.hook_post"}
    for place, feature in found.items():
        stats = store.stats(*place).iloc[0]
        assert allclose(feature["frac_nonzero"], stats["firing_rate"])
        values = store.values(*place)
        promoted = values[(values["side"] == "value") & (values["sign"] == "promoted")].sort_values("rank")
        assert feature["pos_str"] == promoted["token"].tolist()
        assert allclose(feature["pos_values"], promoted["score"], 1e-4)
        assert sum(feature["logits_hist_data_bar_heights"]) == store.corpus.vocab
        assert feature["logits_hist_data_bar_values"][-1] < feature["pos_values"][0]
        histogram = store.histogram(*place)
        assert sum(feature["freq_hist_data_bar_heights"]) == histogram[histogram["low"] >= 0]["count"].sum()
        rows = store.examples(*place, kind=("top", "quantile"), context=4)
        rows = rows[rows["extreme"] != "min"]
        assert len(rows) == len(feature["activations"])
        for row, one in zip(rows.itertuples(), feature["activations"], strict=True):
            at = one["qualifying_token_index"]
            assert one["tokens"][at] == row.token
            assert allclose(one["values"][at], row.coefficient, 1e-3)
            assert "".join(one["tokens"]) == row.context
            if row.kind == "top":
                assert (one["bin_min"], one["bin_contains"]) == (-1, -1)
                assert allclose(one["bin_max"], stats["max"], 1e-4)
            else:
                assert one["bin_min"] - 1e-3 <= row.coefficient <= one["bin_max"] + 1e-3
                assert one["bin_contains"] == pytest.approx(row.band_high - row.band_low)


# delphi.


def cache(folder: Path) -> tuple[dict[int, tuple[np.ndarray, np.ndarray]], np.ndarray, dict[str, Any]]:
    """A layer of a latent cache as delphi's TensorBuffer reads it: by latent its locations and activations; tokens."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    tokens = None
    ends = sorted(tuple(map(int, path.stem.split("_"))) for path in folder.glob("*.safetensors"))
    assert [start for start, _ in ends] == [0, *(end + 1 for _, end in ends[:-1])]  # as _build_selected expects
    for start, end in ends:
        data = load_file(folder / f"{start}_{end}.safetensors")
        assert data["locations"].dtype in (np.uint16, np.uint32)
        assert data["activations"].dtype == np.float16
        locations, tokens = data["locations"].astype(np.int64), data["tokens"].astype(np.int64)
        locations[:, 2] += start
        for latent in np.unique(locations[:, 2]).tolist():
            mine = locations[:, 2] == latent
            found[latent] = locations[mine, :2], data["activations"][mine].astype(np.float64)
    assert tokens is not None
    return found, tokens, config


def test_delphi(store: Store, tmp_path: Path) -> None:
    """Every coefficient above the share, where it is, and the text; nothing at BOS or pads, nor below 0, however large:
    delphi's latents are silent or above 0."""
    stats = store.stats(1)
    below = int(stats[(-stats["min"] > stats["max"]) & (stats["max"] > 0.01)].index[0])
    neurons = [(1, 5), (1, below), (0, 3)]
    folder = export_store(store, "delphi", tmp_path / "out", neurons=neurons, least=0.2, sequences=None, splits=3)
    assert {path.name for path in folder.iterdir()} == {"blocks.0.mlp.hook_post", "blocks.1.mlp.hook_post"}
    found, tokens, config = cache(folder / "blocks.1.mlp.hook_post")
    assert sorted(found) == sorted({5, below})
    assert config["ffnmem"]["sign"] == "positive"
    assert (config["cache_ctx_len"], config["n_splits"], config["model_name"]) == (tokens.shape[1], 3, store.model)
    assert len(tokens) == len(store.sequences)
    lengths = [len(store.sequences.sequence_tokens(number)) for number in range(len(tokens))]
    for number, length in enumerate(lengths):
        assert tokens[number, :length].tolist() == store.sequences.sequence_tokens(number).tolist()
        assert (tokens[number, length:] == config["ffnmem"]["pad_token_id"]).all()
    model = store.read_model()
    for neuron, (places, values) in found.items():
        largest = float(store.stats(1, neuron)["max"].iloc[0])
        expected = {}
        for number, length in enumerate(lengths):
            capture = fm.capture(model, torch.from_numpy(tokens[number, :length][None]))
            row = capture.coefficients[1][0, :, neuron].numpy()
            expected |= {(number, at): row[at] for at in range(store.sequences.lead, length) if row[at] > 0.2 * largest}
        assert {tuple(place) for place in places.tolist()} == set(expected)
        assert allclose(values, [expected[tuple(place)] for place in places.tolist()], 2e-3)


def test_delphi_of_some_text_and_all_neurons(store: Store, tmp_path: Path) -> None:
    """Rows are the sequences that the config names, in their order; the same seed takes the same."""
    folder, again = (export_store(store, "delphi", tmp_path / name, sequences=6, seed=3) for name in ("out", "again"))
    assert {path.name for path in folder.iterdir()} == {"blocks.0.mlp.hook_post", "blocks.1.mlp.hook_post"}
    for path in folder.rglob("*.safetensors"):
        assert path.read_bytes() == (again / path.relative_to(folder)).read_bytes()
    found, tokens, config = cache(folder / "blocks.1.mlp.hook_post")
    numbers = config["ffnmem"]["sequences"]
    assert len(tokens) == len(numbers) == 6
    assert numbers == sorted(set(numbers))
    for row, number in zip(tokens, numbers, strict=True):
        some = store.sequences.sequence_tokens(number)
        assert row[: len(some)].tolist() == some.tolist()
    assert all(places[:, 0].max() < 6 for places, _ in found.values())
    assert found
    found, *_ = cache(
        export_store(store, "delphi", tmp_path / "all", sequences=None, splits=1) / "blocks.0.mlp.hook_post"
    )
    assert len(found) == int((store.stats(0)["max"] > 0).sum())


def test_mistakes(store: Store, tiny_store: Store, tmp_path: Path) -> None:
    with refuses(InputError, ValueError, "form", "sae", "neuronpedia"):
        export_store(store, "sae", tmp_path / "out")
    with refuses(InputError, ValueError, "least", "1"):
        export_store(store, "delphi", tmp_path / "out", least=1.0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text.txt").write_text("mine")
    for form in ("neuronpedia", "delphi"):
        with refuses(FileError, OSError, "mine", "not empty"):
            export_store(store, form, tmp_path / "mine", neurons="1.5")
        with pytest.raises(ModelError):  # nothing is written without the model
            export_store(open_store(tiny_store.folder), form, tmp_path / "out", neurons="1.5")
    assert not (tmp_path / "out").exists()
