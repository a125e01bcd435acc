"""What FFNs read at chosen places of a store's text: the model is run again, exactly there and no further.

A store keeps where a neuron fired, not what it read. This reads it again: sequences are cut behind the last place that
is wanted (what follows cannot change it), run in batches of like length, no deeper than the deepest layer asked for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from ..corpus.excerpts import BATCH_TOKENS, Drawn, Page
from ..corpus.passes import read
from ..errors import InputError
from ..models import Model
from ..models.layer_pass import LayerPass
from ..progress import Progress
from ..scanning import Store
from ..scanning.state import place_of, position_of, sequence_of


class Inputs:
    """The inputs of FFNs at some places, float32, kept in a temporary file; close it, or use it in a ``with``.

    Args:
        store: whose text to read. model: the one that was scanned, see :meth:`Store.check_model`.
        places: by layer, as an index; sequence and position in one integer (``scanning.state.place_of``), in any order.
        progress: called as ("read", done, total) in tokens of text.

    Raises: InputError if the store is of another model.
    """

    def __init__(
        self,
        store: Store,
        model: Model,
        places: Mapping[int, Int64[np.ndarray, " n"]],
        progress: Progress | None = None,
    ) -> None:
        store.check_model(model)
        self.d_model = model.d_model
        self.places = {layer: np.unique(some) for layer, some in places.items() if len(some)}
        self.file = tempfile.TemporaryFile(dir=store.folder if os.access(store.folder, os.W_OK) else None)  # noqa: SIM115
        shapes = {layer: (len(some), self.d_model) for layer, some in self.places.items()}
        starts = np.cumsum([0, *(4 * n * d for n, d in shapes.values())])
        self.rows = {
            layer: np.memmap(self.file, np.float32, "w+", int(start), shape)
            for (layer, shape), start in zip(shapes.items(), starts, strict=False)
        }
        try:
            self.tokens_read = self.read(store, model, progress)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.rows.clear()
        self.file.close()

    def at(self, layer: int, places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n d_model"]:
        """The inputs at places that were asked for, in the order given; raises InputError for one that was not."""
        kept = self.places.get(layer, np.empty(0, np.int64))
        at = np.searchsorted(kept, places)
        unknown = places[np.append(kept, -1)[at] != places]
        if len(unknown):
            place = int(unknown[0])
            raise InputError(
                f"layer {layer} was not read at sequence {sequence_of(place)}, position {position_of(place)}"
            )
        return np.asarray(self.rows[layer][at]) if len(kept) else np.empty((0, self.d_model), np.float32)

    def read(self, store: Store, model: Model, progress: Progress | None) -> int:
        """Fill the rows; returns how many tokens were run."""
        if not self.places:
            return 0
        everywhere = np.unique(np.concatenate(list(self.places.values())))
        sequences, first = np.unique(sequence_of(everywhere), return_index=True)
        last = position_of(everywhere[np.append(first[1:], len(everywhere)) - 1])
        lengths = last + 1
        body, until = LayerPass(model), max(self.places)

        def take(page: Page) -> None:
            tokens = torch.from_numpy(page.batch.tokens).to(model.device)
            body.run(tokens, on_input=partial(self.keep, page.batch.sequences), until=until)

        settings = replace(store.settings.text, batch_tokens=BATCH_TOKENS)
        beginnings = Drawn(store.sequences, settings, sequences, lengths, together=len(sequences))
        read(beginnings, take, "read", progress)
        return int(lengths.sum())

    def keep(self, sequences: Int64[np.ndarray, " rows"], layer: int, x: Tensor) -> None:
        """Keep what is wanted of one layer of a batch."""
        if layer not in self.places:
            return
        wanted = self.places[layer]
        low = np.searchsorted(wanted, place_of(sequences, 0))
        high = np.searchsorted(wanted, place_of(sequences + 1, 0))
        for i, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if a < b:
                at = torch.from_numpy(position_of(wanted[a:b])).to(x.device)
                self.rows[layer][a:b] = x[i].index_select(0, at).float().cpu().numpy()
