"""The one pass over a corpus: pages of text through a model's layers into accumulators, with checkpoints and progress.

A statistic of a corpus is one class, an :class:`Accumulator` (most are :class:`Sums`). :func:`accumulate` reads an
:class:`ffnmem.corpus.excerpts.Excerpt`, such as a shard, into some of them, goes on where it was killed, and says which
sequences a mistake was in. Memory holds one page's coefficients of one layer, and what the accumulators keep.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.checked_files import Form, HeadedTensors, write_tensors
from ..core.errors import FfnmemError, FileError, InputError, quoted
from ..core.folders import LOCK, Kind, claimed, locked, remove_files
from ..core.progress import Phase, Progress
from ..models.layer_pass import LayerPass, check_same
from ..models.model import Model
from .excerpts import Excerpt, Page
from .packing import FILES

CHECKPOINT_SECONDS = 60.0
STATE = "state.safetensors"

# What a pass tells, and to whom.


class Observer(ABC):
    """Is shown a text, page by page and layer by layer."""

    def begin(self, page: Page) -> None:  # noqa: B027 (most need not know)
        """Told of a page before its layers."""

    @abstractmethod
    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None,
    ) -> None:
        """Take what is wanted of one layer of a page. Tensors are only lent, and hold pads too.

        Args:
            page: whose ``places`` are the rows that count.
            pre: pre-activations, of gated neurons those of their gates.
            coefficients: what the down projection reads. linear: the linear parts of gated neurons.
        """

    def end(self, page: Page) -> None:  # noqa: B027
        """Told of a page after its layers."""


@dataclass(frozen=True)
class Held:
    """All that an accumulator holds.

    Attributes:
        arrays: by name.
        header: what else there is to say, ready for JSON.
    """

    arrays: Mapping[str, np.ndarray]
    header: Mapping[str, Any] = field(default_factory=dict)


Same = TypeVar("Same", bound="Accumulator")
SameSums = TypeVar("SameSums", bound="Sums")


class Kept(ABC):
    """What of a pass can be kept in a file and gone on with.

    Attributes:
        form: of the header of its file, where it is kept alone.
    """

    form: ClassVar[Form] = Form(
        "ffnmem statistic",
        1,
        "statistic under way",
    )

    @abstractmethod
    def state(self) -> Held | None:
        """All that it holds, where it stands by the next page; None while there is nothing to keep."""

    @abstractmethod
    def restore(self, state: Held, path: Path) -> None:
        """Go on from what another's :meth:`state` gave; an array is read when it is asked for.

        Raises FileError, with the path of the file, for what another statistic left there.
        """


class Accumulator(Observer, Kept):
    """A statistic that can be kept in a file, gone on with and joined with that of other text.

    Source: the protocol of baukit's running statistics (add, merge, state).
    """

    @abstractmethod
    def merge(self: Same, other: Same) -> None:
        """Take in what another one holds, which was shown other text."""


class HeldSums(Kept):
    """Arrays that a pass fills.

    Attributes:
        sums: by name; changed in place.
    """

    def __init__(self, sums: Mapping[str, np.ndarray]) -> None:
        self.sums = dict(sums)

    def state(self) -> Held:
        return Held(self.sums)

    def restore(self, state: Held, path: Path) -> None:
        for name, total in self.sums.items():
            found, mine = np.atleast_1d(state.arrays[name]), np.atleast_1d(total)  # a file may add an axis
            if (found.dtype, found.shape) != (mine.dtype, mine.shape):
                raise FileError(
                    f"{path} holds another statistic: {name} is {found.dtype} {list(found.shape)}, not {mine.dtype} "
                    f"{list(mine.shape)}"
                )
            mine[...] = found


class Sums(HeldSums, Accumulator):
    """Arrays that add up: of a statistic that is a sum, or counts, only ``add`` is left to write."""

    def merge(self: SameSums, other: SameSums) -> None:
        for name, total in self.sums.items():
            total += other.sums[name]


# Where a pass that writes one file keeps what it needs to go on.

CORPUS, MANIFEST = "corpus", "manifest.json"


@contextmanager
def workplace(target: Path | None, kind: Kind) -> Iterator[Path]:
    """A folder for the packed corpus and the checkpoint of a pass: one beside its file that stays when killed, or a
    temporary one."""
    if target is None:
        with TemporaryDirectory(prefix="ffnmem-") as name:
            yield Path(name)
        return
    folder = target.with_name(f"{target.name}.partial")
    with claimed(folder, kind) as place, locked(place, str(target)):
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


# The pass.


def accumulate(
    model: Model,
    excerpt: Excerpt,
    accumulators: Sequence[Accumulator],
    phase: Phase,
    progress: Progress | None = None,
    *,
    dtype: torch.dtype | None = None,
    until: int | None = None,
    folder: Path | None = None,
    every: float = CHECKPOINT_SECONDS,
) -> None:
    """Read an excerpt into accumulators, all of them in one pass.

    Args:
        model: whose weights; hooks on its bridge are not seen.
        excerpt: what is read. Shards of a corpus are read each by itself, and joined by :meth:`Accumulator.merge`.
        accumulators: new ones.
        phase: what ``progress`` is told, with tokens of text done, and in all.
        dtype, until: see :class:`Forward`.
        folder: keeps what is needed to go on, where the same call goes on after a kill; the caller removes it. None:
            nothing is kept.
        every: seconds between checkpoints.

    Raises:
        InputError: what the accumulators raise, with the sequences that it was in. FileError: a folder of another pass.
        UnsupportedModelError: hooks or an intervention change what the layers compute.
    """
    forward, checkpoint = Forward(model, accumulators, dtype, until), None
    if folder is not None:
        made_by = {**excerpt.made_by(), "fingerprint": model.fingerprint, "dtype": str(dtype or model.dtype)}
        path = folder / STATE
        checkpoint = Checkpoint(
            restored(path, accumulators, made_by), lambda pages: keep(path, accumulators, made_by, pages), every
        )
    read(excerpt, forward, phase, progress, checkpoint)


def keep(path: Path, accumulators: Sequence[Kept], made_by: Mapping[str, Any], pages: int) -> None:
    """Write what accumulators hold of so many pages, whole or not at all. Raises FileError."""
    states = [state for one in accumulators if (state := one.state()) is not None]
    if len(states) < len(accumulators):
        return
    progress = {"progress": {"batches": pages, **made_by}}
    if len(states) == 1:
        form = accumulators[0].form
        header = {"kind": form.kind, "schema": form.newest, **states[0].header, **progress}
        write_tensors(path, header, states[0].arrays)
        return
    arrays = {f"{i}.{name}": array for i, state in enumerate(states) for name, array in state.arrays.items()}
    form = Accumulator.form
    header = {"kind": form.kind, "schema": form.newest, "held": [dict(s.header) for s in states], **progress}
    write_tensors(path, header, arrays)


def restored(path: Path, accumulators: Sequence[Kept], made_by: Mapping[str, Any]) -> int:
    """Let accumulators go on from a file, if there is one; returns the pages that they hold.

    Raises FileError for another pass's.
    """
    if not path.exists():
        return 0
    alone = len(accumulators) == 1
    file = HeadedTensors(path, accumulators[0].form if alone else Accumulator.form)
    held = [file.header] if alone else file.header.get("held", [])
    if len(held) != len(accumulators):
        raise FileError(f"{path} holds {len(held)} statistics, not {len(accumulators)}: remove {path.parent}")
    progress = file.header["progress"]
    for name, now in made_by.items():  # first: of other settings there may be other arrays
        before = progress.get(name, now)  # second moments were once kept with their batch_tokens alone
        if before != now:
            raise FileError(
                f"{path.parent} was begun with {name} {quoted(before)}, not {quoted(now)}: finish it with that, or "
                "remove this folder"
            )
    for index, (one, header) in enumerate(zip(accumulators, held, strict=True)):
        one.restore(Held(Stored(file, "" if alone else f"{index}."), header), path)
    return int(progress["batches"])


class Stored(Mapping[str, np.ndarray]):
    """The arrays of a file whose names begin so, each read, and checked, when it is asked for."""

    def __init__(self, file: HeadedTensors, prefix: str) -> None:
        self.file, self.prefix = file, prefix

    def __getitem__(self, name: str) -> np.ndarray:
        return self.file.array(f"{self.prefix}{name}")

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.file.shapes if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Forward:
    """Runs pages through the layers of a model by themselves, up to the last one that is wanted.

    Args:
        model: whose weights; hooks on its bridge are not seen.
        observers: each is handed every layer of every page, in order.
        dtype: in which the layers run; default the model's own.
        until: the last layer to run; default all.

    Raises: UnsupportedModelError: hooks or an intervention change what the layers compute.
    """

    def __init__(
        self,
        model: Model,
        observers: Sequence[Observer],
        dtype: torch.dtype | None = None,
        until: int | None = None,
    ) -> None:
        self.device, self.observers, self.until = model.device, observers, until
        self.body = LayerPass(model, dtype)
        check_same(model, self.body)

    def __call__(self, page: Page) -> None:
        linear: dict[int, Tensor] = {}

        def hand(layer: int, pre: Tensor, coefficients: Tensor) -> None:
            part = linear.pop(layer, None)
            for observer in self.observers:
                observer.add(page, layer, pre, coefficients, part)

        for observer in self.observers:
            observer.begin(page)
        tokens = torch.from_numpy(page.batch.tokens).to(self.device)
        self.body.run(tokens, hand, on_linear=linear.__setitem__, until=self.until)
        for observer in self.observers:
            observer.end(page)


@dataclass(frozen=True)
class Checkpoint:
    """How a pass that may be killed goes on.

    Attributes:
        pages: of the excerpt that are in what was kept.
        save: keeps what there is, told of how many pages it is.
        every: seconds between two of them.
    """

    pages: int
    save: Callable[[int], None]
    every: float = CHECKPOINT_SECONDS


def read(
    excerpt: Excerpt,
    take: Callable[[Page], None],
    phase: Phase,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Lead the pages of an excerpt through ``take``, such as a :class:`Forward`, once.

    Args:
        excerpt: what is read.
        take: given one page after another.
        phase: what ``progress`` is told, with tokens of text done, and in all.
        checkpoint: where to go on, and how to keep what there is.

    Raises:
        InputError: what ``take`` raises, with the sequences that it was in.
    """
    skip = 0 if checkpoint is None else checkpoint.pages
    total = excerpt.n_tokens if progress is not None else 0
    done, saved = excerpt.read_before, time.monotonic()
    for number, page in enumerate(excerpt.pages()):
        done += page.n_tokens
        if number < skip:
            continue
        try:
            take(page)
        except InputError as error:
            first, last = int(page.batch.sequences.min()), int(page.batch.sequences.max())
            raise InputError(f"{error}, somewhere in sequences {first} to {last}") from None
        if progress is not None:
            progress(phase, done, total)
        if checkpoint is not None and time.monotonic() - saved > checkpoint.every:
            checkpoint.save(number + 1)
            saved = time.monotonic()
