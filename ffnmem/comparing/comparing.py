"""``compare``: two models, or one before and after an edit: which memories moved, which match, which are new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional as F

from ..core.defaults import CHANCE, COMPARED_TOKENS, REACH
from ..core.errors import InputError, listed
from ..core.neuron_names import describe_experts
from ..core.progress import Progress
from ..core.types import Below1, ContextLength, Count, Division, ModelOrEdit, Seed, Share, Texts, Whole, checked
from ..corpus.excerpts import BATCH_TOKENS, Selection, TextSettings, draw_tokens
from ..corpus.packing import pack
from ..corpus.passes import CORPUS, read
from ..corpus.sources import open_corpus
from ..corpus.tokenizing import tokenizer_hash
from ..editing.edit import Edit
from ..models.layout import FFN
from ..models.model import Model
from ..neurons.overlap import cosines
from .comparison import Comparison, layer_rows, verdicts
from .matching import FOUND, PairSums, layer_pairs
from .sides import Side

ROUNDINGS = 2
"""Of the numeric type's precision: a stored number is off by half of it, in each model, and that is doubled."""


@checked
def compare(
    first: Model,
    second: ModelOrEdit,
    texts: Texts | None = None,
    *,
    reach: Whole | None = REACH,
    tokens: Count | None = COMPARED_TOKENS,
    context: ContextLength | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    chance: Share = CHANCE,
    tolerance: Below1 | None = None,
    seed: Seed = 0,
    text: str = "text",
    documents: Division | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Two models memory by memory: what moved, what matches, what is new.

    Says which memories of the second model are those of the first, which moved, which are at another place, and which
    are new. The second may be a checkpoint, another seed, or an edit of the first, which stays as it is. Weights are
    compared place by place, exactly. With a text both read the same tokens: a neuron of the second is looked for among
    those of the first by the correlation of what they do, beside its best among random neurons.

    same: weights as in its place, to rounding. moved: changed, and still most like the neuron of its place. permuted:
    most like another. new: like none beyond chance. silent: changed, and never varies on the text.

    Note:
        Of the weights alone, and exactly: how far key, gate and value of each neuron moved, where both models have as
        many layers of as many neurons. With a text, both models read the same tokens at the same positions: each neuron
        of the second is looked for among those of the first by the Pearson correlation of their coefficients (of gated
        neurons by its size, for key and value may turn round together). BOS, pads and special tokens do not count.

        It holds 16 bytes × d_mlp² for each pair of layers, of which ``reach`` says how many there are, and the
        coefficients of ``batch_tokens`` tokens.

    Args:
        first: the model to compare with: the one before.
        second: the one after: a model's name or place, or the file of an edit of the first.
        texts: what both read: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
            [default: weights alone, and then nothing is looked for elsewhere]
        reach: neurons are looked for in layers up to so many away from the same relative depth. In Python, None: all.
        tokens: of text to read, in whole sequences drawn at random. In Python, None: all of it.
        context: the longest sequence in tokens, BOS included. [default: 128, or what both models read]
        prepend_bos: put BOS before each sequence; default: the first model's own convention.
        batch_tokens: of one pass, pads included.
        chance: a neuron counts as matched if its best match is better than that of all but this share of the layer's
            neurons among random ones.
        tolerance: weights that changed by no more than this, of their length, are the same. [default: twice the
            precision of the coarser numeric type, 2.4e-7 in float32]
        seed: of the draw of sequences, and of the rotations.
        text: the field of a record that is its text, see :func:`ffnmem.corpus.open_corpus`.
        documents: what is a document of a .txt file: what blank lines separate, a line, or all of it.
        progress: called as ("compare", done, total) in tokens of text.

    Returns:
        A :class:`Comparison`. Its ``neurons`` have, for each neuron of the second model: ``layer``, ``neuron``;
        ``match_layer``, ``match_neuron``, the neuron of the first that fires most like it, ``correlation`` with it,
        ``own_correlation`` with the neuron of its own place; ``baseline``, the best correlation with as many random
        neurons: what the first model's take in (pre-activations, and linear parts of gated ones), rotated at random,
        goes through the activation; ``excess``, the correlation (of gated neurons its size) less that. ``key_cosine``,
        ``value_cosine`` (``gate_cosine``), with the match, and ``value_norm_ratio``, its value's length of that of the
        match's; ``key_change``, ``value_change`` (``gate_change``), the length of the difference from the neuron of its
        own place (with the biases of keys and gates), of that one's length. NaN, and −1 of a match, where there is no
        such thing. Without a text the match is the neuron of its own place, and what is of firing is not there.
        ``verdict``: "same", weights as in its place; "moved", changed, and still most like the neuron of its place;
        "permuted", most like another; "new", like none beyond chance; "silent", changed, and its coefficient does not
        vary on this text.

        ``layers``: counts of verdicts, ``change_median``, ``change_max`` (of key, gate or value, whichever is larger);
        medians of ``correlation`` (of gated neurons its size) and of ``baseline``, ``null``, the threshold of a match,
        ``above_null``, the share of neurons above it, and ``universal``, the share with an excess above .5.

        ``predictions``: ``tokens`` read, ``scored`` predictions, ``loss_first``, ``loss_second`` (nats), ``kl`` of the
        second's predictions from the first's, ``agreement`` of top tokens.

    Raises:
        InputError: nothing to compare, tokenizers that differ, settings that cannot be, a corpus without text, an
            activation that :mod:`ffnmem.ffn` has not. ModelError: an edit of another model. FileError: a damaged
            corpus.

    Source: Gurnee et al. 2024 (2401.12181), §3: excess correlation; their baseline rotates coefficients.

    Example:
        $ ffnmem compare eiffel.zip
        $ ffnmem compare eiffel.zip --texts atlas --plot a.png
        $ ffnmem compare eiffel.zip --csv --full > neurons.csv
    """
    edit = second if isinstance(second, Edit) else None
    other = first if edit is not None else second
    if tolerance is None:
        tolerance = ROUNDINGS * max(torch.finfo(model.dtype).eps for model in (first, other))
    if texts is None:
        check_sizes(first, other)
        sides = Side.of(first, edit, False, runs=False), Side.of(other, edit, runs=False)
        return make_comparison(*sides, None, chance, tolerance)
    if tokenizer_hash(first) != tokenizer_hash(other):
        raise InputError(
            f"{first.name} and {other.name} have other tokenizers, so no text is the same tokens for both: "
            "compare them without one"
        )
    settings = text_settings(first, other, context, prepend_bos, batch_tokens)
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), first, Path(folder) / CORPUS)
        sequences = settings.sequences(packed)
        sample = Selection(sequences, settings, draw_tokens(sequences, tokens, seed))
        recorded = {
            "corpus": packed.source,
            "corpus_hash": packed.hash,
            "context": settings.context,
            "sequences": f"{len(sample)} of {len(sequences)}",
            "batch_tokens": settings.batch_tokens,
            "reach": reach,
            "chance": chance,
            "tolerance": tolerance,
            "seed": seed,
        }
        one, two = (
            Side.of(model, edit, present, prepend_bos=settings.prepend_bos, settings=recorded)
            for model, present in ((first, False), (other, True))
        )
        sums = PairSums(one, two, layer_pairs(first.n_layers, other.n_layers, reach), seed)
        read(sample, sums.take, "compare", progress)
    if not sums.count:
        raise InputError(f"{packed.source} has no text but special tokens")
    return make_comparison(one, two, sums, chance, tolerance)


def check_compare(texts: object = None, reach: object = None, tokens: object = None, context: object = None) -> None:
    """Raise InputError where a reading is described and there is none."""
    if texts is None and not reach is tokens is context is None:
        raise InputError("a comparison of weights alone reads no text: give --texts, or leave out how it is read")


def same_sizes(first: Model, second: Model) -> bool:
    """Whether each neuron has a place of its own in both."""
    shapes = [[(ffn.d_mlp, ffn.d_model, ffn.gated, ffn.expert_sizes) for ffn in one.ffn] for one in (first, second)]
    return shapes[0] == shapes[1]


def check_sizes(first: Model, second: Model) -> None:
    """Raise InputError unless weights can be compared in their places."""
    if not same_sizes(first, second):
        sizes = [
            f"{model.n_layers} layers of {listed(sorted({*model.widths}))} {'gated ' * model.gated}neurons of width "
            f"{model.d_model}{f' (experts {describe_experts(model.experts)})' if model.experts else ''}"
            for model in (first, second)
        ]
        raise InputError(
            f"{first.name} has {sizes[0]}, {second.name} {sizes[1]}, so weights do not compare: give a text to match "
            "what fires"
        )


def text_settings(
    first: Model, second: Model, context: int | None, prepend_bos: bool | None, batch_tokens: int
) -> TextSettings:
    """How both read a text; raises InputError."""
    settings = TextSettings.checked(first, context, prepend_bos, batch_tokens)
    theirs = TextSettings.checked(second, context, settings.prepend_bos, batch_tokens)
    return TextSettings(
        context=min(settings.context, theirs.context),
        bos=settings.bos,
        special=tuple(sorted({*settings.special, *theirs.special})),
        batch_tokens=settings.batch_tokens,
    )


# -- what comes of it --------------------------------------------------------------------------------------------------


def make_comparison(first: Side, second: Side, sums: PairSums | None, chance: float, tolerance: float) -> Comparison:
    """The result of weights, and of sums over a text."""
    alike = same_sizes(first.model, second.model)
    neurons = pd.concat(
        [layer_frame(first, second, layer, sums, alike) for layer in range(second.model.n_layers)], ignore_index=True
    )
    neurons["verdict"] = verdicts(neurons, chance, tolerance)
    return Comparison(
        neurons=neurons,
        layers=layer_rows(neurons, chance),
        predictions=None if sums is None else mean_predictions(sums),
        first=first.title,
        second=second.title,
        alike=alike,
        chance=chance,
        tolerance=tolerance,
        other_tensors=find_other_tensors(first, second) if alike else None,
        provenance=first.provenance,
        second_provenance=second.provenance,
        model=first.model,
    )


def mean_predictions(sums: PairSums) -> dict[str, float]:
    """Losses and how far predictions are apart, per prediction; NaN where none was scored."""
    scored, agreed = (int(n) for n in sums.scored)
    one, two, kl = (float(total) / scored if scored else float("nan") for total in sums.predictions)
    return {
        "tokens": sums.count,
        "scored": scored,
        "loss_first": one,
        "loss_second": two,
        "kl": max(kl, 0.0) if kl == kl else kl,
        "agreement": agreed / scored if scored else float("nan"),
    }


def layer_frame(first: Side, second: Side, layer: int, sums: PairSums | None, alike: bool) -> pd.DataFrame:
    """The rows of a layer's neurons, without verdicts."""
    d = second.model.ffn[layer].d_mlp
    columns: dict[str, Any] = {"layer": np.full(d, layer), "neuron": np.arange(d)}
    match = np.stack([np.full(d, layer), np.arange(d)], axis=1).astype(np.float64)
    if sums is not None:
        found = dict(zip(FOUND, sums.matches(layer).T, strict=True))
        match = np.stack([found["match_layer"], found["match_neuron"]], axis=1)
        columns |= found
        sizes = np.abs(found["correlation"]) if sums.unsigned else found["correlation"]
        columns["excess"] = sizes - found["baseline"]
    sides = [side for side in ("key", "gate", "value") if side in first.sides and side in second.sides]
    for side in sides:
        mine, theirs = second.rows(layer, side), matched_rows(first, side, match, second.model.ffn[layer].d_model)
        columns[f"{side}_cosine"] = cosines(theirs, mine).numpy()
        if side == "value":
            columns["value_norm_ratio"] = (mine.norm(dim=1) / theirs.norm(dim=1)).numpy()
    for side in sides:
        change = relative_change(first, second, layer, side) if alike else np.full(d, np.nan)
        columns[f"{side}_change"] = change
    for name in ("match_layer", "match_neuron"):
        if name in columns:
            columns[name] = np.nan_to_num(columns[name], nan=-1).astype(np.int64)
    return pd.DataFrame(columns)


def matched_rows(
    first: Side, side: str, match: Float64[np.ndarray, "d two"], width: int
) -> Float64[Tensor, "d d_model"]:
    """The keys, gates or values of the first model's neurons that these match; NaN where there is none."""
    found = torch.full((len(match), width), torch.nan, dtype=torch.float64)
    for layer in np.unique(match[:, 0][np.isfinite(match[:, 0])]).astype(int).tolist():
        if first.model.ffn[layer].d_model == width:
            mine = match[:, 0] == layer
            found[torch.from_numpy(mine)] = first.rows(layer, side)[torch.from_numpy(match[mine, 1].astype(np.int64))]
    return found


def relative_change(first: Side, second: Side, layer: int, side: str) -> Float64[np.ndarray, " d"]:
    """‖after − before‖/‖before‖ of each neuron's key, gate (both with their biases) or value; 0 where both are zero."""
    before, after = (one.rows(layer, side, biased=True) for one in (first, second))
    width = max(before.shape[1], after.shape[1])  # one of them may have biases
    before, after = (F.pad(one, (0, width - one.shape[1])) for one in (before, after))
    lengths, moved = before.norm(dim=1), (after - before).norm(dim=1)
    return torch.where(moved == 0, 0.0, moved / lengths).numpy()


def find_other_tensors(first: Side, second: Side) -> tuple[str, ...] | None:
    """The parameters, and buffers of both, that differ beside keys, gates and values: routers are among them.

    In the coarser of both numeric types. None where the models do not have the same parameters.
    """
    if first.model is second.model:
        return ()
    ours, theirs = (side.model.hf_model for side in (first, second))
    mine, yours = dict(ours.named_parameters()), dict(theirs.named_parameters())
    if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in yours.items()}:
        return None
    buffers = dict(theirs.named_buffers())
    shared = {name: one for name, one in ours.named_buffers() if name in buffers and one.shape == buffers[name].shape}
    neurons = {part.untyped_storage().data_ptr() for ffn in first.model.ffn for part in neuron_parameters(ffn)}
    differ = []
    for name, one in {**mine, **shared}.items():
        two = yours[name] if name in yours else buffers[name]
        if one.untyped_storage().data_ptr() in neurons:
            continue
        kind = one.dtype if one.element_size() < two.element_size() else two.dtype
        if not torch.equal(one.detach().to("cpu", kind), two.detach().to("cpu", kind)):
            differ.append(name)
    return tuple(differ)


def neuron_parameters(ffn: FFN) -> Iterator[Tensor]:
    """The live parameters that a layer's keys, gates and values, and the biases of keys and gates, lie in."""
    for expert in ffn.experts:
        yield from (expert.keys, expert.gates, expert.values)
    for module in (ffn.project_in, ffn.project_gate, ffn.project_out):
        if module is not None:
            yield from (one for one in module.parameters() if one.ndim > 1 or module is not ffn.project_out)
