"""A store in the forms of other programs: Neuronpedia's dashboard records, and delphi's latent cache.

**neuronpedia**: a folder a layer, and in it ``batch-0.json``, ``batch-1.json``, …, as SAEDashboard's
``NeuronpediaRunner`` writes them and its ``export_neuronpedia_dashboards`` turns them into what Neuronpedia imports
(``neuronpedia_dashboard.py`` of jbloomAus/SAEDashboard at commit 234ea32, and ``neuronpedia_export.py`` at 3ea1249). A
neuron is a feature there; what only sparse autoencoders have is an empty list. Its activations are the store's examples
of the largest coefficients (``bin_min`` and ``bin_contains`` −1, as theirs) and of each quantile band of the random
sequences by their largest coefficient, with its ends in coefficients and its share of sequences, where theirs is one
of firings.

**delphi**: a folder a layer (``blocks.3.mlp.hook_post``) with ``START_END.safetensors`` for each part of its neurons
and ``config.json`` (``delphi/latents/cache.py`` of EleutherAI/delphi at commit cd43058, ``config.py`` at 7bfbf46;
eai-delphi 0.1). A store keeps a neuron's strongest sequences and no others, from which no cache can be made; so the
text is read again, and every coefficient above a share of the neuron's largest is in it. The neurons of an FFN are
hardly ever exactly 0, and to delphi a context without an entry is one in which a latent is silent: the share says what
counts. Activations of delphi's latents are above 0, and it sorts examples by them, so that negative coefficients are no
entries, however large: there a neuron is silent. ``config.json`` says so (``sign``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from safetensors.numpy import save_file
from torch import Tensor

from .._version import __version__
from ..core.defaults import SEQUENCES_READ
from ..core.files import appearing, check_new_folder, write_whole, writing
from ..core.neuron_names import NeuronName, NeuronNames
from ..core.progress import Progress
from ..core.types import Count, NewFolder, Range, Seed, StoreForm, Whole, checked
from ..corpus.excerpts import Page, Selection, draw_sequences
from ..corpus.passes import Forward, Observer, read
from ..models.model import Model
from ..vocabulary.vectors import side_tokens, side_vectors
from .contexts import clipped, merged
from .projected import BASIS
from .shading import check_coefficient, read_passages
from .store import Store

Place = tuple[int, int]


@checked
def export_store(
    store: Store,
    form: StoreForm,
    out: NewFolder,
    *,
    neurons: NeuronName | NeuronNames | None = None,
    k: Count | None = None,
    context: Whole = 32,
    least: Annotated[float, Range(0, below=1)] = 0.1,
    sequences: Count | None = SEQUENCES_READ,
    splits: Count = 5,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Path:
    """Write a scan in the form that another program reads.

    Writes what other programs read of a store into a new folder, and prints its path. The model computes what the store
    does not keep.

    Args:
        store: the folder of a scan.
        form: of which program. neuronpedia: dashboard records in batches, as SAEDashboard's NeuronpediaRunner writes
            them for Neuronpedia's import: tokens promoted and suppressed, histograms, and examples with the
            coefficient at every token. delphi: a latent cache for EleutherAI's delphi: every large coefficient in
            some of the store's text, and that text. Negative coefficients are no entries, however large: delphi's
            latents are silent or above 0.
        out: the folder: new or empty.
        neurons: which. [default: all] All take long of a large model, and for delphi some 40 bytes of memory for each
            entry of one layer, and meanwhile 16 on disk for each of all.
        k: of "neuronpedia": examples of the largest coefficients, and of each band; default as :meth:`Store.examples`.
        context: of neuronpedia: tokens on each side of an example.
        least: of delphi: the share of a neuron's largest coefficient above which one is an entry. To delphi a context
            without entries is one in which a latent is silent, and the neurons of an FFN are hardly ever 0.
        sequences: of delphi: how many of the store's, at random. Each is a row, a shorter one padded with a special
            token, at which there are no entries. In Python, None for all.
        splits: of delphi: files a layer.
        seed: of delphi: of which sequences.
        progress: called as (phase, done, total) in tokens, with "shade" or "text".

    Returns: The folder.

    Raises:
        InputError, OutOfRangeError, FileError; ModelError: the model cannot be loaded by its name.

    Example:
        $ ffnmem export neuronpedia --store runs/atlas -o out --neurons 3.17,5.97
    """
    if neurons is None:
        places = [(layer, neuron) for layer in range(store.n_layers) for neuron in range(store.d_mlp(layer))]
    else:
        places = store.places(neurons)
    if form == "neuronpedia":
        return neuronpedia(store, places, out, k, context, progress)
    return delphi(store, places, out, least, sequences, splits, seed, progress)


BATCH = 64  # neurons of a file, and of one reading
HISTOGRAM = 50  # bars
DIGITS = 4
SAE_ONLY = (
    "neuron_alignment_indices", "neuron_alignment_values", "neuron_alignment_l1", "correlated_neurons_indices",
    "correlated_neurons_l1", "correlated_neurons_pearson", "correlated_features_indices", "correlated_features_l1",
    "correlated_features_pearson", "decoder_weights_dist",
)  # fmt: skip


def layer_name(layer: int) -> str:
    """The place of a layer's coefficients, as TransformerLens names it."""
    return f"blocks.{layer}.mlp.hook_post"


def by_layer(places: Sequence[Place]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for layer, neuron in sorted(places):
        found.setdefault(layer, []).append(neuron)
    return found


# Neuronpedia.


def neuronpedia(
    store: Store, places: Sequence[Place], folder: str | Path, k: int | None, context: int, progress: Progress | None
) -> Path:
    """Batches of dashboard records; the folder appears whole or not at all."""
    path = check_new_folder(folder)
    model = store.model_for("coefficients at every token of an example")
    with appearing(path) as room:
        for layer, neurons in by_layer(places).items():
            (room / layer_name(layer)).mkdir()
            for number, start in enumerate(range(0, len(neurons), BATCH)):
                some = neurons[start : start + BATCH]
                batch = {
                    "model_id": store.model,
                    "layer": layer,
                    "sae_set": "mlp",
                    "sae_id_suffix": None,
                    "features": list(records(store, model, layer, some, k, context, progress)),
                }
                text = json.dumps(batch, ensure_ascii=False, allow_nan=False)
                write_whole(room / layer_name(layer) / f"batch-{number}.json", text + "\n")
    return path


def records(
    store: Store, model: Model, layer: int, neurons: Sequence[int], k: int | None, width: int, progress: Progress | None
) -> Iterator[dict[str, Any]]:
    """The record of each of some neurons of a layer, whose texts are read once for all of them."""
    tables = {}
    for neuron in neurons:
        rows = store.example_rows(layer, neuron, kind=("top", "quantile"), k=k)
        tables[neuron] = rows[rows["extreme"] != "min"].reset_index(drop=True)
    wanted = {(layer, neuron): rows["sequence"].tolist() for neuron, rows in tables.items()}
    passages = read_passages(model, store.contexts, store.settings, wanted, progress)
    stats = store.stats(layer)
    for neuron, rows in tables.items():
        own = stats.iloc[neuron]
        largest = max(abs(float(own["max"])), abs(float(own["min"])))
        activations = []
        sample = store.view(layer).sample[0][:, neuron].astype(np.float64)
        random = np.sort(sample[~np.isnan(sample)])
        for row, window in zip(rows.itertuples(), store.windows(rows, width), strict=True):
            passage = passages[layer, neuron][row.sequence]
            check_coefficient(store, f"{layer}.{neuron}", largest, row.sequence, row.position, row.coefficient, passage)
            activations.append(
                {
                    **bin_of(row, float(own["max"]), random),
                    "tokens": list(window.tokens),
                    "values": rounded(passage.within(row.position, window)),
                    "qualifying_token_index": window.at,
                }
            )
        values = store.values(layer, neuron)
        values = values[values["side"] == "value"].sort_values("rank")
        ends = {name: values[values["sign"] == sign] for name, sign in (("neg", "suppressed"), ("pos", "promoted"))}
        bars = [
            b for b in merged(clipped(store.histogram(layer, neuron), own["min"], own["max"]), HISTOGRAM) if b.low >= 0
        ]
        heights, edges = np.histogram(scores_of(model, layer, neuron), HISTOGRAM)
        yield {
            "feature_index": neuron,
            **{name: [] for name in SAE_ONLY},
            **{f"{name}_str": end["token"].astype(str).tolist() for name, end in ends.items()},
            **{f"{name}_values": rounded(end["score"]) for name, end in ends.items()},
            "frac_nonzero": float(own["firing_rate"] * own.get("routed", 1.0)) if own["count"] else 0.0,
            "freq_hist_data_bar_values": rounded((b.low + b.high) / 2 for b in bars),
            "freq_hist_data_bar_heights": [b.count for b in bars],
            "logits_hist_data_bar_heights": heights.tolist(),
            "logits_hist_data_bar_values": rounded((edges[:-1] + edges[1:]) / 2),
            "n_prompts_total": int(store.manifest["sequences"]),
            "n_tokens_in_prompt": store.settings.context,
            "dataset": str(store.manifest["corpus"]["source"]),
            "activations": activations,
        }


def bin_of(row: Any, largest: float, random: Float64[np.ndarray, " sample"]) -> dict[str, float]:
    """Which group of activations an example is of: the largest, or a band of the random sequences, whose largest
    coefficients are given in order."""
    if row.kind == "top":
        return {"bin_min": -1, "bin_max": round(largest, DIGITS), "bin_contains": -1}
    first, last = (int(np.ceil(end * len(random))) for end in (row.band_low, row.band_high))
    low, high = rounded(random[[first, last - 1]])
    return {"bin_min": low, "bin_max": high, "bin_contains": round(row.band_high - row.band_low, DIGITS)}


def scores_of(model: Model, layer: int, neuron: int) -> Float32[np.ndarray, " vocab"]:
    """What the value adds to every logit, as :meth:`Store.values` has its ends."""
    vector = side_vectors(model, layer, [neuron], "value", BASIS)
    return (vector @ side_tokens(model, "value").to(vector.dtype).T)[0].float().cpu().numpy()


def rounded(values: Any) -> list[float]:
    return [round(float(value), DIGITS) for value in values]


# delphi.


ENTRY = np.dtype([("row", "<i4"), ("position", "<i4"), ("neuron", "<i4"), ("coefficient", "<f4")])


class Firings(Observer):
    """Every coefficient of some neurons above a threshold of each, in a file a layer: of all neurons they are more than
    memory holds.

    Args:
        thresholds: by layer. numbers: of the sequences read, ascending. folder: for the files.
    """

    def __init__(
        self, thresholds: Mapping[int, Float[Tensor, " d_mlp"]], numbers: Int64[np.ndarray, " n"], folder: Path
    ) -> None:
        self.thresholds, self.numbers, self.folder = thresholds, numbers, folder

    def file(self, layer: int) -> Path:
        return self.folder / f"{layer}.entries"

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None,
    ) -> None:
        if layer not in self.thresholds:
            return
        threshold = self.thresholds[layer].to(coefficients)
        where = torch.nonzero(coefficients > threshold, as_tuple=True)
        values = coefficients[where].float().cpu().numpy()
        cells, neurons = (part.cpu().numpy() for part in where)
        content = page.mask[cells]
        cells, neurons, values = cells[content], neurons[content], values[content]
        width = page.batch.tokens.shape[1]
        entries = np.empty(len(values), ENTRY)
        entries["row"] = np.searchsorted(self.numbers, page.batch.sequences[cells // width])
        entries["position"], entries["neuron"], entries["coefficient"] = cells % width, neurons, values
        with writing(self.folder), self.file(layer).open("ab") as file:
            file.write(entries.tobytes())

    def of(self, layer: int) -> np.ndarray:
        """Entries of a layer, in the order of the text; its file goes."""
        found = np.fromfile(self.file(layer), ENTRY) if self.file(layer).exists() else np.empty(0, ENTRY)
        self.file(layer).unlink(missing_ok=True)
        return found[np.lexsort((found["neuron"], found["position"], found["row"]))]


def delphi(
    store: Store,
    places: Sequence[Place],
    folder: str | Path,
    least: float,
    sequences: int | None,
    splits: int,
    seed: int,
    progress: Progress | None,
) -> Path:
    """A latent cache; the folder appears whole or not at all. Raises InputError where nothing is above ``least``."""
    path = check_new_folder(folder)
    numbers = draw_sequences(store.sequences, sequences, seed)
    model = store.model_for("coefficients at every token of the text")
    thresholds = {}
    for layer, neurons in by_layer(places).items():
        threshold = torch.full((store.d_mlp(layer),), float("inf"))
        largest = torch.tensor(store.stats(layer)["max"].to_numpy()[neurons]).clamp(min=0)
        threshold[neurons] = torch.where(largest > 0, (least * largest).clamp(min=1e-5), torch.inf).float()
        thresholds[layer] = threshold
    pad = store.settings.special[0] if store.settings.special else 0
    tokens = np.full((len(numbers), store.settings.context), pad, np.int64)
    for row, number in enumerate(numbers.tolist()):
        some = store.sequences.sequence_tokens(number)
        tokens[row, : len(some)] = some
    config = {
        "dataset_repo": str(store.manifest["corpus"]["source"]),
        "dataset_split": "",
        "dataset_name": "",
        "dataset_column": "text",
        "batch_size": 1,
        "cache_ctx_len": store.settings.context,
        "ctx_len": store.settings.context,  # its name before
        "n_tokens": int(tokens.size),
        "n_splits": splits,
        "model_name": store.model,
        "ffnmem": {
            "version": __version__,
            "fingerprint": store.fingerprint,
            "least": least,
            "sign": "positive",
            "pad_token_id": int(pad),
            "sequences": "all" if len(numbers) == len(store.sequences) else numbers.tolist(),
        },
    }
    with appearing(path) as room:
        firings = Firings(thresholds, numbers, room)
        forward = Forward(model, [firings], torch.float32, max(thresholds))
        read(Selection(store.sequences, store.settings, numbers), forward, "text", progress)
        for layer in thresholds:
            place = room / layer_name(layer)
            place.mkdir()
            write_splits(place, firings.of(layer), tokens, store.d_mlp(layer), splits)
            write_whole(place / "config.json", json.dumps(config, indent=4) + "\n")
    return path


def write_splits(
    folder: Path, entries: np.ndarray, tokens: Int64[np.ndarray, "rows pos"], width: int, parts: int
) -> None:
    """A layer's neurons in parts of like many: entries as delphi has them, neurons counted from the part's first."""
    bounds = np.linspace(0, width, min(parts, width) + 1).astype(np.int64)
    for start, end in zip(bounds[:-1].tolist(), (bounds[1:] - 1).tolist(), strict=True):
        some = entries[(entries["neuron"] >= start) & (entries["neuron"] <= end)]
        locations = np.stack([some["row"], some["position"], some["neuron"] - start], axis=1)
        small = locations.size == 0 or int(locations.max()) < 2**16
        save_file(
            {
                "locations": locations.astype(np.uint16 if small else np.uint32),
                "activations": some["coefficient"].astype(np.float16),
                "tokens": tokens,
            },
            folder / f"{start}_{end}.safetensors",
        )
