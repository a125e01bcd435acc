"""Second moments out of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import FileError, InputError
from ..core.files import check_destination
from ..core.folders import Kind
from ..core.neuron_names import LayerName
from ..core.number_text import format_bytes
from ..core.progress import Progress, log
from ..core.types import ContextLength, Count, Division, NonNegative, ResultFile, Shard, Texts, checked
from ..corpus.excerpts import BATCH_TOKENS, Page, Stretch, TextSettings, check_shard
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
from .moments import Part, SecondMoment, TriangleSums, join_ranges, moment_of

# `second_moment`: one pass over a corpus, every layer's coefficients into C = E[m mᵀ].

PARTIAL = Kind(MANIFEST, "ffnmem second moment under way", 1, "the pass", subfolders=(CORPUS,))


def check_second_moment(out: ResultFile = None) -> None:
    """Raise InputError for a command whose long pass would leave nothing."""
    if out is None:
        raise InputError("name the file to write: --out moment.safetensors")


@checked
def second_moment(
    model: Model,
    texts: Texts,
    out: ResultFile = None,
    *,
    layers: Sequence[LayerName] | None = None,
    tokens: Count | None = None,
    context: ContextLength | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    shard: Shard = (0, 1),
    text: str = "text",
    documents: Division | None = None,
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> SecondMoment:
    """Read text for what editors need: the second moment C = E[m mᵀ] of every layer.

    Reads a corpus once and sums the second moments of the coefficients m of every layer (what its down projection
    reads), for --moment of edit and evaluate. The one of atlas ships with it.

    The pass can be stopped at any moment: the same call goes on where the last checkpoint was and writes the same
    bytes. How much text is enough: a rank below the number of neurons is too little, twice as many tokens as neurons
    are enough.

    Note:
        BOS, pads and special tokens do not count. Sums are float64; see :class:`ffnmem.editing.moments.TriangleSums`
        for how far float32 products may be off. Memory does not grow with the corpus: 4 to 5 bytes × d_mlp² a layer,
        twice that while a checkpoint is written.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        texts: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the file to write: FILE.safetensors. What is needed to go on lies beside it meanwhile. In Python, in
            ``OUT.partial``; None writes nothing.
        layers: of these layers only.
        tokens: stop after the sequence, in the order of the text, that brings the count to so many. [default: all of
            the text] Ten times as many as a layer has neurons go most of the way, about as many are worse than fewer.
        context: the longest sequence in tokens, BOS included. [default: 128, or what the model reads]
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        batch_tokens: of one forward pass, pads included; changes float rounding only.
        shard: only the I-th of N parts of the text, from 0. [default: all of it] In Python, (i, n): every n-th unit
            (of 1,024 sequences) from the i-th, to be joined by :meth:`SecondMoment.merge`.
        text: the field of a record that is its text, see :func:`ffnmem.corpus.open_corpus`.
        documents: what is a document of a .txt file: what blank lines separate, a line, or all of it.
        checkpoint_seconds: between checkpoints.
        progress: called as ("moment", done, total) in tokens of text.

    Raises:
        InputError: settings that cannot be, a corpus without text. FileError: a file that holds something else, a
            damaged corpus. OutOfRangeError: a layer that the model has not.

    Source: Meng et al. 2022 (2202.05262), section 3.1: 100,000 samples of Wikipedia for GPT-2 XL.

    Example:
        $ ffnmem moment texts.jsonl --text body --tokens 20000 -o moments.safetensors
        $ ffnmem moment atlas --layers 0 --tokens 500 -o first.safetensors --json
    """
    settings = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    chosen = tuple(range(model.n_layers) if layers is None else sorted({model.layer(layer) for layer in layers}))
    if not chosen:
        raise InputError("layers is empty: give at least one")
    shard = check_shard(shard)
    target = None if out is None else check_destination(out)
    finished = None if target is None or not target.exists() else SecondMoment.load(target)
    with workplace(target, PARTIAL) as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), model, folder / CORPUS)
        excerpt = Stretch(settings.sequences(packed), settings, shard, tokens)
        of_shard = "" if shard[1] == 1 else f" in shard {shard[0]} of {shard[1]}"
        if not excerpt.pieces:
            raise InputError(f"{packed.source} has no text to read{of_shard}")
        sums = MomentSums(model, packed, settings, chosen)
        sums.ranges = join_ranges([(piece.unit.first_sequence, piece.end) for piece in excerpt.pieces])
        if finished is not None and target is not None:
            sums.check_same_as(finished, target)
        else:
            if target is not None:
                size = sum(4 * width * (width + 1) for width in sums.widths)  # packed triangles in float64
                log.info("will write about %s into %s", format_bytes(size), out)
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
            log.info("wrote %s", out)
    remove_partial(folder)
    return SecondMoment.load(target)


class MomentSums(Statistic):
    """Σ m mᵀ of some layers over the content of pages, which lie where the model is.

    Args:
        model, packed, settings: whose coefficients, over which text, read how.
        layers: ascending.

    Attributes:
        sums: by layer. count: content tokens in them. ranges: the numbers of the sequences that they are to hold.
    """

    def __init__(self, model: Model, packed: Packed, settings: TextSettings, layers: tuple[int, ...]) -> None:
        self.model, self.packed, self.settings, self.layers = model, packed, settings, layers
        self.widths = tuple(model.ffn[layer].d_mlp for layer in layers)
        self.sums = {layer: TriangleSums(width, model.device) for layer, width in zip(layers, self.widths, strict=True)}
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
