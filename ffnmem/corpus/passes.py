"""The one pass over a corpus: pages of text through a model's layers into statistics, with checkpoints and progress.

A statistic of a corpus is one class, a :class:`Statistic`. :func:`accumulate` reads an
:class:`ffnmem.corpus.excerpts.Excerpt`, such as a shard, into some of them, goes on where it was killed, and says which
sequences a mistake was in. Memory holds one page's coefficients of one layer, and what the statistics keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.checked_files import Form, HeadedTensors, write_tensors
from ..core.errors import FfnmemError, FileError, InputError, quoted
from ..core.folders import LOCK, Kind, claimed, locked, remove_files
from ..core.progress import Phase, Progress
from ..models.layer_pass import LayerPass, check_same
from ..models.model import Model
from .excerpts import Excerpt, Page
from .packed import FILES

CHECKPOINT_SECONDS = 60.0
STATE = "state.safetensors"
FORM = Form("ffnmem statistic", 1, "statistic under way")

# What a pass tells, and to whom.


class Observer:
    """Is shown a text, page by page and layer by layer."""

    def begin(self, page: Page) -> None:
        """Told of a page before its layers."""

    def route(self, page: Page, layer: int, experts: Bool[Tensor, "cells experts"]) -> None:
        """Told, before a layer that has experts is handed over, which of them each cell is routed to; shared experts,
        which all are, are left out."""

    def read(self, page: Page, layer: int, x: Float[Tensor, "rows pos d_model"]) -> None:
        """Told what a layer's FFN reads, before the layer is handed over. The tensor is only lent, and holds pads."""

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

    def end(self, page: Page) -> None:
        """Told of a page after its layers."""


Same = TypeVar("Same", bound="Statistic")


class Statistic(Observer):
    """Arrays that a text fills. They can be kept in a file, gone on with, and joined with those of other text.

    Attributes:
        arrays: by name; changed in place.
        joins: how two arrays of a name become one; those that are not named are added.
        made_by: what the arrays depend on besides the text, ready for JSON.

    Source: the protocol of baukit's running statistics (add, merge, state).
    """

    joins: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}
    made_by: Mapping[str, Any] = {}

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)

    def merge(self: Same, other: Same) -> None:
        """Take in what another one holds, which was shown other text."""
        for name, array in self.arrays.items():
            assert array.shape == other.arrays[name].shape
            array[...] = self.joins.get(name, np.add)(array, other.arrays[name])

    def state(self) -> Mapping[str, np.ndarray]:
        """All that it holds, as arrays."""
        return self.arrays

    def restore(self, read: Callable[[str], np.ndarray], path: Path) -> None:
        """Go on from what another's :meth:`state` gave, which ``read`` reads by name.

        Raises FileError, with the path of the file, for arrays of another statistic."""
        for name, array in self.arrays.items():
            kept, mine = np.atleast_1d(read(name)), np.atleast_1d(array)  # a file may add an axis
            if (kept.dtype, kept.shape) != (mine.dtype, mine.shape):
                raise FileError(
                    f"{path} holds another statistic: {name} is {kept.dtype} {list(kept.shape)}, not {mine.dtype} "
                    f"{list(mine.shape)}"
                )
            mine[...] = kept


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
    statistics: Sequence[Statistic],
    phase: Phase,
    progress: Progress | None = None,
    *,
    dtype: torch.dtype | None = None,
    until: int | None = None,
    folder: Path | None = None,
    every: float = CHECKPOINT_SECONDS,
) -> None:
    """Read an excerpt into statistics, all of them in one pass.

    Args:
        model: whose weights; hooks on its bridge are not seen.
        excerpt: what is read. Shards of a corpus are read each by itself, and joined by :meth:`Statistic.merge`.
        statistics: new ones.
        phase: what ``progress`` is told, with tokens of text done, and in all.
        dtype, until: see :class:`Forward`.
        folder: keeps what is needed to go on, where the same call goes on after a kill; the caller removes it. None:
            nothing is kept.
        every: seconds between checkpoints.

    Raises:
        InputError: what the statistics raise, with the sequences that it was in. FileError: a folder of another pass.
        UnsupportedModelError: hooks or an intervention change what the layers compute.
    """
    forward, checkpoint = Forward(model, statistics, dtype, until), None
    if folder is not None:
        made_by = {**excerpt.made_by(), "fingerprint": model.fingerprint, "dtype": str(dtype or model.dtype)}
        checkpoint = go_on(folder / STATE, statistics, made_by, every)
    read(excerpt, forward, phase, progress, checkpoint)


def go_on(path: Path, statistics: Sequence[Statistic], made_by: Mapping[str, Any], every: float) -> Checkpoint:
    """Let statistics go on from what a file keeps of them, if there is one, and keep them there.

    Args:
        path: of the file. made_by: all that the pages depend on, ready for JSON. every: seconds between two savings.

    Raises: FileError: what another pass kept.
    """
    made_by = {"statistics": [type(one).__name__ for one in statistics], **made_by}
    for i, one in enumerate(statistics):
        for name, value in one.made_by.items():
            made_by[name if len(statistics) == 1 and name not in made_by else f"{i}.{name}"] = value

    def save(pages: int) -> None:
        arrays = {f"{i}.{name}": array for i, one in enumerate(statistics) for name, array in one.state().items()}
        write_tensors(path, {"kind": FORM.kind, "schema": FORM.schema, "pages": pages, "made_by": made_by}, arrays)

    pages = 0
    if path.exists():
        file = HeadedTensors(path, FORM)
        for name, before in file.header["made_by"].items():  # first: of other settings there may be other arrays
            if made_by.get(name) != before:
                raise FileError(
                    f"{path.parent} was begun with {name} {quoted(before)}, not {quoted(made_by.get(name))}: finish it "
                    "with that, or remove this folder"
                )
        for i, one in enumerate(statistics):
            one.restore(lambda name, i=i: file.array(f"{i}.{name}"), path)  # type: ignore[misc]
        pages = int(file.header["pages"])
    return Checkpoint(pages, save, every)


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

        def read_input(layer: int, x: Tensor) -> None:
            for observer in self.observers:
                observer.read(page, layer, x)
            mixture = self.body.mixtures[layer]
            if mixture is not None:
                experts = mixture.route(x.flatten(0, -2))[0] != 0
                for observer in self.observers:
                    observer.route(page, layer, experts)

        for observer in self.observers:
            observer.begin(page)
        tokens = torch.from_numpy(page.batch.tokens).to(self.device)
        self.body.run(
            tokens,
            hand,
            lengths=page.batch.lengths,
            on_input=read_input,
            on_linear=linear.__setitem__,
            until=self.until,
        )
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
