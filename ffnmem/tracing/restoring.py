"""A subject hidden by noise on its embeddings, and clean outputs put back, one position after another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError
from ..core.types import checked
from ..facts.answers import Answer
from ..facts.fact import Fact
from ..facts.questions import SubjectPrompt, ask_about
from ..models.layout import inner
from ..models.model import Model
from ..models.replaying import Change, PlainLayers, Replay
from .settings import FACTOR, PARTS

# Noise on the token embeddings of a subject: how much, and which, so that a prompt's depends on nothing else.


@checked
def noise_scale(model: Model, facts: Iterable[Fact], factor: float = FACTOR, prepend_bos: bool | None = None) -> float:
    """The standard deviation of the noise that hides the subjects of some facts.

    Args:
        model: from :func:`ffnmem.load`.
        facts: whose subjects' tokens, as they stand in the prompts, are taken together, each as often as it is asked
            about; facts that cannot be asked are left out.
        factor: how many standard deviations of their embeddings.
        prepend_bos: None for the model's own way.

    Returns: ``factor`` times the standard deviation of all numbers of all these embeddings.

    Raises: InputError: no fact that can be asked.

    Source: Meng et al. 2022, section 2.1 and appendix B.1.
    """
    asked = []
    for fact in facts:
        try:
            asked.append(ask_about(model, fact.prompt, fact.subject, prepend_bos=prepend_bos))
        except InputError:
            continue
    if not asked:
        raise InputError(f"no fact that {model.name} can be asked, so there is no noise scale: give noise a number")
    return scale_of(model, asked, factor)


def scale_of(model: Model, asked: Sequence[SubjectPrompt], factor: float = FACTOR) -> float:
    """The same for prompts whose subjects are found already."""
    ids = [one.tokens[position] for one in asked for position in one.subject]
    return factor * float(embed(model, torch.tensor(ids, device=model.device)).double().std())


def embed(model: Model, tokens: Int[Tensor, "*pos"]) -> Float[Tensor, "*pos d_embedding"]:
    """Token embeddings as the first layer gets them, before positions."""
    with torch.no_grad():
        found: Tensor = inner(model.layout.embedding)(tokens)
    return found


def standard_noise(
    seed: int, text: str, samples: int, tokens: int, width: int
) -> Float[Tensor, "samples tokens width"]:
    """Independent standard normal numbers, in float64, the same for the same seed and prompt.

    More samples begin with the same ones; the model's dtype and device do not matter, nor does what a fact is called.
    """
    digest = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
    drawn = np.random.default_rng([seed, digest]).standard_normal((samples, tokens, width))
    return torch.from_numpy(drawn)


def corrupted(
    model: Model, asked: SubjectPrompt, noise: float, samples: int, seed: int, answer: Answer | None = None
) -> Float[Tensor, "rows pos d_embedding"]:
    """Token embeddings of the prompt as it is (and of what is run of its answer), in row 0, and with noise on the
    subject's tokens in ``samples`` more."""
    own = embed(model, torch.tensor([asked.tokens if answer is None else answer.tokens], device=model.device))
    rows = own.repeat(samples + 1, 1, 1)
    drawn = standard_noise(seed, asked.text, samples, len(asked.subject), own.shape[-1])
    rows[1:, asked.subject.start : asked.subject.stop] += (noise * drawn).to(own)
    return rows


# All cells of one place: each layer's output there replaced, in every run that is changed, and what that leads to.
#
# Nothing is computed twice that is the same. A run starts above the first changed layer, at the first changed position,
# with the keys and values of the positions before it; the state at the subject's first token, before which nothing is
# corrupted, is clean from there on up, so its keys and values are the clean run's too; windows that begin at the same
# layer are one run until the shorter one ends; the last layer's FFN and the unembedding see the last position alone.

Cell = TypeVar("Cell")
UNEMBEDDED = 256  # rows at a time
Written = Callable[[str, int], Float[Tensor, "rows places d_model"]]


@dataclass(frozen=True)
class RestoredCell:
    """One layer of the map of a kind.

    Attributes:
        layer: its row in the map.
        start: the first layer that is restored; nothing below it changes.
        end: the layer from which on nothing is imposed any more.
    """

    layer: int
    start: int
    end: int


def cells_of(kind: str, n_layers: int, window: int) -> list[RestoredCell]:
    """The cells of a kind, by rising start.

    A window is centred on its layer as in the paper's program, one layer more below it than above where its width is
    even, and cut at both ends.
    """
    if kind == "state":
        return [RestoredCell(layer, layer, layer + 1) for layer in range(n_layers)]
    spans = [(max(0, layer - window // 2), min(n_layers, layer + (window + 1) // 2)) for layer in range(n_layers)]
    return [RestoredCell(layer, start, end) for layer, (start, end) in enumerate(spans)]


class Imposing:
    """Runs in which a part writes other things than it did, at some positions and in windows of layers.

    Args:
        replay: the runs as they are, from the embeddings on.
        part: ``"ffn"`` or ``"attention"``; None where nothing is imposed above a cell's first layer.
        positions: ascending.
        rows: those of the replay that are changed.
        written: given the part and a layer, what it is to write: ``[rows or 1, positions, d_model]``.
        reads: how many positions are read, the last ones.
    """

    def __init__(
        self, replay: Replay, part: str | None, positions: Sequence[int], rows: slice, written: Written, reads: int = 1
    ) -> None:
        self.reads = reads
        self.replay, self.part, self.positions, self.changed, self.written = replay, part, positions, rows, written
        self.first = positions[0]  # the first position that is run
        self.rows = torch.arange(replay.rows)[rows]  # whose keys and values stand before it
        self.samples = len(self.rows)

    def begin(self, layer: int) -> Float[Tensor, "samples after d_model"]:
        """The output of the first layer of a window, from the first position that is run on."""
        replay, layers, part = self.replay, self.replay.layers, self.part
        assert part is not None
        at = list(self.positions)
        output = replay.stream[layer + 1][self.changed, self.first :].clone()
        x = replay.stream[layer][self.changed][:, at]
        own = {"attention": replay.attention, "ffn": replay.ffn}
        does = {name: own[name][layer][self.changed][:, at] for name in own}
        does[part] = self.written(part, layer)
        added = layers.added(layer, "attention", does["attention"])
        if part == "attention" and not replay.parallel[layer]:  # its FFN reads what its attention writes
            does["ffn"] = layers.parts[layer].project_out(layers.coefficients(layer, x + added))
        output[:, [position - self.first for position in at]] = x + added + layers.added(layer, "ffn", does["ffn"])
        return output

    def change(self, running: Sequence[RestoredCell]) -> Change:
        """What to impose at the positions in the layers that run; the rows are those of the running cells."""

        def impose(layer: int, part: str, first: int, written: Tensor, _coefficients: Tensor | None) -> Tensor:
            held = [i for i, cell in enumerate(running) if cell.start < layer < cell.end]
            reached = [(i, position - first) for i, position in enumerate(self.positions) if position >= first]
            if part != self.part or not reached or not held:
                return written
            by_cell = rearrange(written.clone(), "(cell sample) pos d -> cell sample pos d", sample=self.samples)
            imposed = self.written(part, layer)
            for i, column in reached:
                by_cell[held, :, column] = imposed[:, i]
            return rearrange(by_cell, "cell sample pos d -> (cell sample) pos d")

        return impose

    def run(self, cells: Sequence[RestoredCell]) -> Float[Tensor, "cells samples reads d_model"]:
        """What reaches the final norm at the last positions, for each cell and changed row."""
        replay, n_layers = self.replay, len(self.replay.layers)
        leads = {cell.start: cell for cell in sorted(cells, key=lambda cell: cell.end)}  # the last to end runs first
        running: list[RestoredCell] = []
        x = replay.stream[0][:0, self.first :]
        for layer in range(min(leads) + 1, n_layers + 1):
            x = self.entering(x, running, cells, leads, layer)
            if layer < n_layers:
                rows = self.rows.to(x.device).repeat(len(running))
                last = self.reads if layer == n_layers - 1 else None
                x = replay.run_layer(layer, x, self.first, rows, last, self.change(running))
        final = rearrange(x[:, -self.reads :], "(cell sample) pos d -> cell sample pos d", sample=self.samples)
        return final[[running.index(cell) for cell in cells]]

    def entering(
        self,
        x: Tensor,
        running: list[RestoredCell],
        cells: Sequence[RestoredCell],
        leads: dict[int, RestoredCell],
        layer: int,
    ) -> Float[Tensor, "rows after d_model"]:
        """What goes into a layer: of the cells that run, and of those that begin here or part from a longer window.

        The latter are added to ``running``.
        """
        width = x.shape[1]
        if layer - 1 in leads:
            x = torch.cat([x, self.begin(layer - 1)[:, -width:]])
            running.append(leads[layer - 1])
        for cell in cells:
            if cell.end == layer and cell is not leads[cell.start]:
                at = running.index(leads[cell.start]) * self.samples
                x = torch.cat([x, x[at : at + self.samples]])
                running.append(cell)
        return x


class Restoring(Imposing):
    """The cells of a kind at one position, each with its clean output put back.

    Args:
        replay: row 0 clean, each further row a corrupted run, from the embeddings on.
        kind: one of ``KINDS``.
        position: where the clean output is put back.
        corrupted_from: the first position with noise.
        reads: how many positions are read, the last ones.
    """

    def __init__(self, replay: Replay, kind: str, position: int, corrupted_from: int, reads: int = 1) -> None:
        self.window = kind in PARTS

        def written(part: str, layer: int) -> Tensor:
            found = replay.ffn if part == "ffn" else replay.attention
            return found[layer][:1, position : position + 1]

        super().__init__(replay, kind if self.window else None, [position], slice(1, None), written, reads)
        if kind == "state" and position == corrupted_from and position < replay.length - reads:
            self.first = position + 1
            self.rows = torch.zeros_like(self.rows)

    def begin(self, layer: int) -> Float[Tensor, "samples after d_model"]:
        """The output of the first restored layer, from the first position that is run on."""
        if self.window:
            return super().begin(layer)
        replay, at = self.replay, self.positions[0]
        output = replay.stream[layer + 1][1:, self.first :].clone()
        if self.first == at:
            output[:, 0] = replay.stream[layer + 1][:1, at]
        return output


def cell_batches(cells: Sequence[Cell], tokens: int, batch_tokens: int) -> Iterator[Sequence[Cell]]:
    """Cells of ``tokens`` tokens each, as many at once as fit; one where not even that does."""
    size = max(1, batch_tokens // tokens)
    for start in range(0, len(cells), size):
        yield cells[start : start + size]


def probability(
    layers: PlainLayers, final: Float[Tensor, "*rows reads d_model"], answer: Sequence[int]
) -> Float[Tensor, "*rows"]:
    """The probability of an answer, in float64, of what reaches the final norm where it is read."""
    ids = torch.tensor(answer, device=final.device)
    found = []
    for rows in torch.split(final.reshape(-1, *final.shape[-2:]), max(1, UNEMBEDDED // len(answer))):
        logits = layers.logits(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        own = logits.gather(-1, ids.expand(len(rows), -1).unsqueeze(-1)).squeeze(-1)
        found.append((own - logits.logsumexp(-1)).double().sum(-1).exp())
    return torch.cat(found).reshape(final.shape[:-2])
