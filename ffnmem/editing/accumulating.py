"""Second moments out of a text, and how much text they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import FileError, InputError
from ..core.files import check_destination
from ..core.folders import Kind
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Count, Division, NonNegative, Seed, at_least, checked
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection, Stretch, TextSettings, check_shard
from ..corpus.packed import Packed
from ..corpus.packing import pack
from ..corpus.passes import (
    CHECKPOINT_SECONDS,
    CORPUS,
    MANIFEST,
    Statistic,
    accumulate,
    remove_partial,
    workplace,
)
from ..corpus.sources import open_corpus
from ..models.model import Model
from ..models.turns import in_turn
from .moments import RIDGE, Part, SecondMoment, TriangleSums, join_ranges, moment_of

# `second_moment`: one pass over a corpus, every layer's coefficients into C = E[m mᵀ].

PARTIAL = Kind(MANIFEST, "ffnmem second moment under way", 1, "the pass", subfolders=(CORPUS,))


@checked
@in_turn
def second_moment(
    model: Model,
    corpus: Any,
    out: str | Path | None = None,
    *,
    layers: Sequence[LayerName] | None = None,
    tokens: Count | None = None,
    context: Annotated[int, at_least(2)] | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    shard: tuple[int, int] = (0, 1),
    text: str = "text",
    documents: Division | None = None,
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> SecondMoment:
    """C = E[m mᵀ] of the coefficients m of every layer (what its down projection reads), in one pass over a corpus.

    BOS, pads and special tokens do not count. Sums are float64; see :class:`ffnmem.editing.moments.TriangleSums` for
    how far float32 products may be off. Memory does not grow with the corpus: 4 to 5 bytes × d_mlp² a layer,
    twice that while a checkpoint is written. With ``out`` the pass can be killed at any moment: the same call goes on
    where the last checkpoint was and writes the same bytes.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        corpus: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the file to write. What is needed to go on lies beside it meanwhile, in ``OUT.partial``.
        layers: which; default: all.
        tokens: stop after the sequence, in the order of the text, that brings the count to so many; default: all of
            the text. Ten times d_mlp go most of the way, about d_mlp are worse than fewer: see
            :func:`ffnmem.editing.convergence`.
        context: the longest sequence in tokens, BOS included; default 128, or what the model reads.
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        batch_tokens: of one forward pass, pads included; changes float rounding only.
        shard: (i, n): only every n-th unit (of 1,024 sequences) of the corpus from the i-th, to be joined by
            :meth:`SecondMoment.merge`.
        text, documents: how to read the corpus, see :func:`ffnmem.corpus.open_corpus`.
        checkpoint_seconds: between checkpoints.
        progress: called as ("moment", done, total) in tokens of text.

    Raises:
        InputError: settings that cannot be, a corpus without text. FileError: a file that holds something else, a
            damaged corpus. OutOfRangeError: a layer that the model has not.

    Source: Meng et al. 2022 (2202.05262), section 3.1: 100,000 samples of Wikipedia for GPT-2 XL.
    """
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    chosen = tuple(range(model.n_layers) if layers is None else sorted({model.layer(layer) for layer in layers}))
    if not chosen:
        raise InputError("layers is empty: give at least one")
    shard = check_shard(shard)
    target = None if out is None else check_destination(out)
    finished = None if target is None or not target.exists() else SecondMoment.load(target)
    with workplace(target, PARTIAL) as folder:
        packed = pack(open_corpus(corpus, text=text, documents=documents), model, folder / CORPUS)
        excerpt = Stretch(settings.sequences(packed), settings, shard, tokens)
        of_shard = "" if shard[1] == 1 else f" in shard {shard[0]} of {shard[1]}"
        if not excerpt.pieces:
            raise InputError(f"{packed.source} has no text to read{of_shard}")
        sums = MomentSums(model, packed, settings, chosen)
        sums.ranges = join_ranges([(piece.unit.first_sequence, piece.end) for piece in excerpt.pieces])
        if finished is not None and target is not None:
            sums.check_same_as(finished, target)
        else:
            accumulate(
                model,
                excerpt,
                [sums],
                "moment",
                progress,
                until=chosen[-1],
                folder=None if target is None else folder,
                every=checkpoint_seconds,
            )
            moment = sums.moment(of_shard)
            if target is None:
                return moment
            moment.save(target)
    remove_partial(folder)
    return SecondMoment.load(target)


class MomentSums(Statistic):
    """Σ m mᵀ of some layers over the content of pages, which lie where the model is.

    Args:
        model, packed, settings: whose coefficients, over which text, read how.
        layers: ascending.
        exact: all products in float64.

    Attributes:
        sums: by layer. count: content tokens in them. ranges: the numbers of the sequences that they are to hold.
    """

    def __init__(
        self, model: Model, packed: Packed, settings: TextSettings, layers: tuple[int, ...], exact: bool = False
    ) -> None:
        self.model, self.packed, self.settings, self.layers = model, packed, settings, layers
        self.widths = tuple(model.ffn[layer].d_mlp for layer in layers)
        self.sums = {
            layer: TriangleSums(width, model.device, exact) for layer, width in zip(layers, self.widths, strict=True)
        }
        self.count = 0
        self.made_by = {"layers": list(layers)}
        self.ranges: tuple[tuple[int, int], ...] = ()

    # -- a page ----------------------------------------------------------------------------------------------------

    def begin(self, page: Page) -> None:
        self.places = torch.from_numpy(page.places).to(self.model.device)

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None,
    ) -> None:
        if layer in self.sums:
            self.sums[layer].add(coefficients[self.places])

    def end(self, page: Page) -> None:
        """Raises InputError where coefficients are not finite: one NaN would make the whole matrix NaN."""
        self.count += len(self.places)
        for layer, sums in self.sums.items():
            if not sums.is_finite():
                raise InputError(
                    f"coefficients of layer {layer} of {self.model.name} are not finite, or too large to be squared"
                )

    # -- what there is -----------------------------------------------------------------------------------------------

    def moment(self, of_shard: str = "") -> SecondMoment:
        """What is summed so far. Raises InputError where that is nothing."""
        if not self.count:
            raise InputError(f"{self.packed.source} has no text but special tokens{of_shard}")
        # The type of outer products before they are added up in float64.
        exact = self.model.dtype == torch.float64 or any(sums.exact for sums in self.sums.values())
        sums = {layer: sums.packed() for layer, sums in self.sums.items()}
        part = Part(self.packed.hash, self.packed.source, self.ranges)
        context, prepend_bos, batch_tokens = (
            self.settings.context,
            self.settings.prepend_bos,
            self.settings.batch_tokens,
        )
        return moment_of(self.model, sums, self.count, part, exact, context, prepend_bos, batch_tokens=batch_tokens)

    # -- what goes on, and is joined ---------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        triangles = {str(layer): sums.packed().numpy() for layer, sums in self.sums.items()}
        return {"count": np.array([self.count]), **triangles}

    def restore(self, read: Callable[[str], np.ndarray], path: Path) -> None:
        self.count = int(read("count")[0])
        for layer, sums in self.sums.items():
            sums.load(torch.from_numpy(read(str(layer))))

    def merge(self, other: MomentSums) -> None:
        for layer, sums in self.sums.items():
            for mine, theirs in zip(sums.blocks, other.sums[layer].blocks, strict=True):
                mine += theirs
        self.count += other.count
        self.ranges = join_ranges((*self.ranges, *other.ranges))

    def check_same_as(self, found: SecondMoment, path: Path) -> None:
        """Raise FileError if a file holds something else than this pass gives."""
        expected = {
            "fingerprint": self.model.fingerprint,
            "tokenizer_hash": self.packed.tokenizer_hash,
            "layers": self.layers,
            "context": self.settings.context,
            "prepend_bos": self.settings.prepend_bos,
            "corpus_hash": self.packed.hash,
        }
        held = {name: getattr(found, name) for name in expected}
        differ = [f"{name} {held[name]}, not {value}" for name, value in expected.items() if held[name] != value]
        if tuple(part.ranges for part in found.parts) != (self.ranges,):
            differ.append("other parts of the text")
        if differ:
            raise FileError(
                f"{path} holds another second moment ({'; '.join(differ)}): name another file, or remove it"
            )


# `convergence`: how an edit's direction settles as the second moment sees more text.

Quality = Callable[[SecondMoment], float]
"""Told the second moment of each row; returns a number, e.g. the share of edits that succeed with it."""

MULTIPLES = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)  # of d_mlp, the default counts


@checked
@in_turn
def convergence(
    model: Model,
    corpus: Any,
    keys: Float[Tensor, "n d_mlp"],
    layer: LayerName,
    counts: Sequence[Count] | None = None,
    *,
    seed: Seed = 0,
    ridge: float = RIDGE,
    quality: Quality | None = None,
    context: Annotated[int, at_least(2)] | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    text: str = "text",
    documents: Division | None = None,
) -> pd.DataFrame:
    """How far u = C⁻¹k/‖C⁻¹k‖ is from where it ends, by the tokens that C has seen.

    Sequences are taken in a random order, so that little text is a sample of all of it; each count holds the text of
    those before it, and one pass reads them all. Whether enough text was read shows where the curve has become flat.

    Args:
        model: from :func:`ffnmem.load`.
        corpus: as :func:`second_moment` takes it.
        keys: coefficient vectors of the layer, e.g. at the subjects' last tokens, one a row.
        layer: which.
        counts: tokens after which to look, rounded up to whole sequences; default: multiples of d_mlp from ¼ to 100,
            then all of the text. The last is what the others are compared with.
        seed: of the order.
        ridge: as :meth:`SecondMoment.solve` takes it.
        quality: called with each second moment; its numbers become a column.
        context, prepend_bos, batch_tokens, text, documents: as :func:`second_moment` takes them.

    Returns: a table with a row a count: tokens, distance_mean and distance_max (of ‖u − u_final‖ over the keys; two
        random directions are √2 apart), cosine_mean (of u with u_final), condition (of C), and quality if asked for.

    Raises: InputError: no keys, a key that is zero, counts above what the text holds. Otherwise as
        :func:`second_moment`.
    """
    index = model.layer(layer)
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    if keys.ndim != 2 or not len(keys) or not bool((keys != 0).any(dim=1).all()):
        raise InputError("keys must be at least one row of coefficients, none of them zero")
    rows: list[dict[str, float]] = []
    directions = []
    with TemporaryDirectory(prefix="ffnmem-") as folder:
        packed = pack(open_corpus(corpus, text=text, documents=documents), model, Path(folder) / CORPUS)
        # Below d_mlp tokens C is singular, and float32's rounding would decide whether it can be solved.
        sums = MomentSums(model, packed, settings, (index,), exact=True)
        wanted = check_token_counts(counts, sums.widths[0], packed.n_tokens)
        for moment in accumulate_nested(sums, wanted, seed):
            directions.append(torch.nn.functional.normalize(moment.solve(index, keys, ridge)))
            row = {"tokens": moment.count, "condition": moment.condition(index)}
            rows.append(row if quality is None else {**row, "quality": float(quality(moment))})
    distances = torch.stack([(u - directions[-1]).norm(dim=1) for u in directions])
    cosines = torch.stack([(u * directions[-1]).sum(dim=1) for u in directions])
    frame = pd.DataFrame(rows)
    frame.insert(1, "distance_mean", distances.mean(dim=1).tolist())
    frame.insert(2, "distance_max", distances.amax(dim=1).tolist())
    frame.insert(3, "cosine_mean", cosines.mean(dim=1).tolist())
    frame.attrs["provenance"] = {**moment.provenance, "layer": index, "ridge": ridge, "seed": seed, "keys": len(keys)}
    return frame


def check_token_counts(counts: Sequence[int] | None, width: int, available: int) -> list[int]:
    """Ascending counts; raises InputError for one that the text cannot give."""
    if counts is None:
        return [*sorted({n for m in MULTIPLES if (n := int(m * width)) and n < available}), available]
    found = sorted(set(counts))
    if not found:
        raise InputError("counts is empty: give at least one number of tokens")
    if found[-1] > available:
        raise InputError(f"counts go up to {found[-1]} tokens, and the corpus has {available}")
    return found


def accumulate_nested(sums: MomentSums, counts: Sequence[int], seed: int) -> Iterator[SecondMoment]:
    """The second moment after each count of tokens, sequences taken in a random order."""
    sequences = sums.settings.sequences(sums.packed)
    order = np.random.default_rng(seed).permutation(len(sequences))
    taken = seen = 0
    for count in counts:
        first = taken
        while seen < count:
            seen += sequences.locate(int(order[taken]))[2]
            taken += 1
        some = order[first:taken]
        text = Selection(sequences, sums.settings, some, together=max(1, len(some)))
        accumulate(sums.model, text, [sums], "moment", until=sums.layers[-1])
        sums.ranges = join_ranges([(int(n), int(n) + 1) for n in order[:taken]])
        yield sums.moment()
