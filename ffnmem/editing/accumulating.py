"""``second_moment``: one pass over a corpus, every layer's coefficients into C = E[m mᵀ]."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, SupportsIndex

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ..arguments import public
from ..corpus import Batch, Packed, Sequences, Unit, open_corpus, open_packed, pack, tokenizer_hash
from ..corpus.packing import FILES
from ..errors import FfnmemError, FileError, InputError, check_number
from ..files import check_destination
from ..folders import LOCK, Kind, claimed, locked, remove_files
from ..models import Model
from ..models.layer_pass import LayerPass, check_same
from ..models.turns import in_turn
from ..scanning.passes import CHECKPOINT_SECONDS
from ..scanning.settings import BATCH_TOKENS
from .moments import Part, SecondMoment
from .moments_file import read, save, write
from .moments_merging import fewest
from .moments_settings import Settings, content
from .triangles import TriangleSums

Progress = Callable[[int, int], None]
"""Told how many tokens are done, and of how many, after every batch."""

STATE, CORPUS, MANIFEST = "state.safetensors", "corpus", "manifest.json"
PARTIAL = Kind(MANIFEST, "ffnmem second moment under way", 1, "the pass", rooms=(CORPUS,))


@public
@in_turn
def second_moment(
    model: Model,
    corpus: Any,
    out: str | Path | None = None,
    *,
    layers: Sequence[SupportsIndex] | None = None,
    tokens: int | None = None,
    context: int | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: int = BATCH_TOKENS,
    shard: tuple[int, int] = (0, 1),
    text: str = "text",
    documents: str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> SecondMoment:
    """C = E[m mᵀ] of the coefficients m of every layer (what its down projection reads), in one pass over a corpus.

    BOS, pads and special tokens do not count. Sums are float64; see :class:`.triangles.TriangleSums` for how far
    float32 products may be off. Memory does not grow with the corpus: 4 to 5 bytes × d_mlp² a layer,
    twice that while a checkpoint is written. With ``out`` the pass can be killed at any moment: the same call goes on
    where the last checkpoint was and writes the same bytes.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        corpus: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the file to write. What is needed to go on lies beside it meanwhile, in ``OUT.partial``.
        layers: which; default: all.
        tokens: stop after the sequence, in the order of the text, that brings the count to so many; default: all of
            the text. Ten times d_mlp go most of the way, about d_mlp are worse than fewer: see :func:`.convergence`.
        context: the longest sequence in tokens, BOS included; default 128, or what the model reads.
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        batch_tokens: of one forward pass, pads included; changes float rounding only.
        shard: (i, n): only every n-th unit (of 1,024 sequences) of the corpus from the i-th, to be joined by
            :meth:`SecondMoment.merge`.
        text, documents: how to read the corpus, see :func:`ffnmem.open_corpus`.
        checkpoint_seconds: between checkpoints.
        progress: told of tokens done, and of how many.

    Raises:
        InputError: settings that cannot be, a corpus without text. FileError: a file that holds something else, a
            damaged corpus. OutOfRangeError: a layer that the model has not.

    Source: Meng et al. 2022 (2202.05262), section 3.1: 100,000 samples of Wikipedia for GPT-2 XL.
    """
    settings = Settings.checked(model, layers, tokens, context, prepend_bos, batch_tokens, shard)
    if check_number("checkpoint_seconds", checkpoint_seconds) < 0:
        raise InputError(f"checkpoint_seconds must be at least 0, not {checkpoint_seconds}")
    target = None if out is None else check_destination(out)
    finished = None if target is None or not target.exists() else SecondMoment.load(target)
    with workplace(target) as folder:
        packed = packed_corpus(model, corpus, folder / CORPUS, text, documents)
        job = Pass(model, packed, settings)
        if target is None:
            job.run(None, checkpoint_seconds, progress)
            return job.moment()
        if finished is not None:
            job.check_same_as(finished, target)
        else:
            job.run(folder / STATE, checkpoint_seconds, progress)
            save(job.moment(), target)
    remove_partial(folder)
    return SecondMoment.load(target)


@contextmanager
def workplace(target: Path | None) -> Iterator[Path]:
    """A folder for the packed corpus and the checkpoint: one that stays when killed, or a temporary one."""
    if target is None:
        with TemporaryDirectory(prefix="ffnmem-") as name:
            yield Path(name)
        return
    folder = target.with_name(f"{target.name}.partial")
    with claimed(folder, PARTIAL) as place, locked(place, str(target)):
        try:
            yield place
        except FfnmemError:
            if not (place / STATE).exists():  # nothing to go on from
                remove_partial(place)
            raise


def remove_partial(folder: Path) -> None:
    """Remove what was kept to go on from, and the folder unless there is something else in it."""
    remove_files(folder / CORPUS, FILES)
    remove_files(folder, (STATE, LOCK, MANIFEST))


def packed_corpus(model: Model, source: Any, folder: Path, text: str = "text", documents: str | None = None) -> Packed:
    """The corpus as tokens: packed into the folder, or where it lies if it is packed already."""
    ready = open_corpus(source, text=text, documents=documents)
    return open_packed(ready.folder, tokenizer_hash(model)) if isinstance(ready, Packed) else pack(ready, model, folder)


@dataclass(frozen=True)
class Piece:
    """A unit of the corpus, up to the sequence ``end``."""

    unit: Unit
    end: int
    tokens: int


class Pass:
    """The pass over a corpus, from its last checkpoint or from the beginning; ``exact``: all products in float64."""

    def __init__(self, model: Model, packed: Packed, settings: Settings, exact: bool = False) -> None:
        check_same(model)
        self.model, self.packed, self.settings = model, packed, settings
        self.sequences = Sequences(packed, settings.context, settings.bos)
        self.pieces = pieces(self.sequences, settings)
        if not self.pieces:
            raise InputError(f"{packed.source} has no text to read" + settings.shard_text)
        self.widths = tuple(model.ffn[layer].d_mlp for layer in settings.layers)
        self.sums = {
            layer: TriangleSums(width, model.device, exact)
            for layer, width in zip(settings.layers, self.widths, strict=True)
        }
        self.count = 0
        self.part = Part(packed.hash, packed.source, fewest([(p.unit.first_sequence, p.end) for p in self.pieces]))

    @property
    def products(self) -> str:
        """The type in which outer products are computed, before they are added up in float64."""
        exact = self.model.dtype == torch.float64 or any(sums.exact for sums in self.sums.values())
        return "float64" if exact else "float32"

    def moment(self) -> SecondMoment:
        """What is summed so far."""
        if not self.count:
            raise InputError(f"{self.packed.source} has no text but special tokens" + self.settings.shard_text)
        return SecondMoment(
            model=self.model.name,
            fingerprint=self.model.fingerprint,
            tokenizer_hash=self.packed.tokenizer_hash,
            layers=self.settings.layers,
            widths=self.widths,
            count=self.count,
            context=self.settings.context,
            prepend_bos=self.settings.prepend_bos,
            parts=(self.part,),
            provenance=self.model.provenance(
                self.settings.prepend_bos,
                corpus=self.packed.source,
                corpus_hash=self.packed.hash,
                context=self.settings.context,
                tokens=self.count,
                batch_tokens=self.settings.batch_tokens,
                products=self.products,
            ).as_dict(),
            sums={layer: sums.packed() for layer, sums in self.sums.items()},
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def run(self, state: Path | None, every: float, progress: Progress | None) -> None:
        """Read what was not read yet; with ``state``, leave checkpoints there."""
        skip = 0 if state is None or not state.exists() else self.resume(state)
        reader = Reader(self.model, self.sums, self.settings)
        saved, done, total = time.monotonic(), 0, sum(piece.tokens for piece in self.pieces)
        for number, batch in enumerate(self.batches()):
            done += int((batch.lengths - self.sequences.lead).sum())
            if number < skip:
                continue
            self.count += reader.read(batch)
            if progress is not None:
                progress(done, total)
            if state is not None and time.monotonic() - saved > every:
                self.checkpoint(state, number + 1)
                saved = time.monotonic()

    def batches(self) -> Iterator[Batch]:
        for piece in self.pieces:
            for batch in self.sequences.iter_batches(piece.unit, self.settings.batch_tokens):
                rows = batch.sequences < piece.end
                if rows.all():
                    yield batch
                elif rows.any():
                    longest = int(batch.lengths[rows].max())
                    yield Batch(batch.tokens[rows][:, :longest], batch.sequences[rows], batch.lengths[rows])

    def checkpoint(self, state: Path, batches: int) -> None:
        if self.count:
            progress = {"batches": batches, "batch_tokens": self.settings.batch_tokens}
            write(state, self.moment(), "float64", {"progress": progress})

    def resume(self, state: Path) -> int:
        """Take the sums of a checkpoint; returns the batches that they hold. Raises FileError for another pass's."""
        found, header = read(state)
        self.check_same_as(found, state)
        progress = header.get("progress", {})
        if progress.get("batch_tokens") != self.settings.batch_tokens:
            raise FileError(
                f"{state.parent} was begun with batch_tokens {progress.get('batch_tokens')}, not "
                f"{self.settings.batch_tokens}: finish it with that, or remove this folder"
            )
        for layer, sums in self.sums.items():
            sums.load(found.sums[layer])
        self.count = found.count
        return int(progress["batches"])

    def check_same_as(self, found: SecondMoment, path: Path) -> None:
        """Raise FileError if a file holds something else than this pass gives."""
        wanted = {
            "model": self.model.fingerprint,
            "tokenizer": self.packed.tokenizer_hash,
            "layers": self.settings.layers,
            "context": self.settings.context,
            "prepend_bos": self.settings.prepend_bos,
            "corpus": self.packed.hash,
            "sequences": (self.part.ranges,),
        }
        held = (
            *(found.fingerprint, found.tokenizer_hash, found.layers, found.context, found.prepend_bos),
            found.corpus_hash,
            tuple(part.ranges for part in found.parts),
        )
        differ = [
            "other parts of the text" if name == "sequences" else f"{name} {b}, not {a}"
            for (name, a), b in zip(wanted.items(), held, strict=True)
            if a != b
        ]
        if differ:
            raise FileError(
                f"{path} holds another second moment ({'; '.join(differ)}): name another file, or remove it"
            )


def pieces(sequences: Sequences, settings: Settings) -> list[Piece]:
    """The units of the shard, the last of them up to the sequence that brings the text to the tokens asked for."""
    found: list[Piece] = []
    left = settings.tokens
    index, count = settings.shard
    for number in range(index, len(sequences.units), count):
        unit = sequences.units[number]
        text = np.cumsum(sequences.lengths(unit) - sequences.lead)
        if left is None or left > text[-1]:
            found.append(Piece(unit, unit.first_sequence + unit.n_sequences, int(text[-1])))
            left = None if left is None else left - int(text[-1])
            continue
        if left > 0:
            last = int(np.searchsorted(text, left))
            found.append(Piece(unit, unit.first_sequence + last + 1, int(text[last])))
        break
    return found


class Reader:
    """Batches through the bare body into the sums."""

    def __init__(self, model: Model, sums: dict[int, TriangleSums], settings: Settings) -> None:
        self.model, self.sums, self.settings = model, sums, settings
        self.body = LayerPass(model)

    def read(self, batch: Batch) -> int:
        """Add one batch; returns its content tokens. Raises InputError where coefficients are not finite."""
        mask = content(batch, self.settings)
        count = int(mask.sum())
        if not count:
            return 0
        device = self.model.device
        places = torch.from_numpy(np.flatnonzero(rearrange(mask, "rows pos -> (rows pos)"))).to(device)

        def add(layer: int, _pre: Float[Tensor, "tokens d_mlp"], m: Float[Tensor, "tokens d_mlp"]) -> None:
            if layer in self.sums:
                self.sums[layer].add(m[places])

        self.body.run(torch.from_numpy(batch.tokens).to(device), add, until=max(self.sums))
        for layer, sums in self.sums.items():
            if not sums.is_finite():
                first, last = int(batch.sequences.min()), int(batch.sequences.max())
                raise InputError(
                    f"coefficients of layer {layer} of {self.model.name} are not finite, or too large to be squared, "
                    f"somewhere in sequences {first} to {last}"
                )
        return count
