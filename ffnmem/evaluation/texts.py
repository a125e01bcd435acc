"""What edited models say and write: drift on unrelated text, and texts in batches, each row with its own edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.resources import EMBEDDED
from ..core.types import OrdinaryText
from ..corpus.packed import Packed
from ..corpus.sources import open_corpus
from ..editing.changes import RowChanges
from ..editing.edit import Edit, row_changes
from ..facts.templates import mentions
from ..models.answers import LOGITS, padded
from ..models.hooks import OpenBlock, UndoList
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.replaying import PlainLayers, Replay
from .measuring import GATHERED, case_slices, changes_by_owner

# Drift: how much an edit changes what a model says of text that has nothing to do with it.

DOCUMENTS, LENGTH = 20, 32  # texts, and tokens of each
DRIFT = ("drift_kl", "drift_perplexity", "drift_loss")


def drift_texts(model: Model, source: OrdinaryText, seed: int) -> tuple[str, ...]:
    """The texts that drift is measured on.

    Args:
        model: to be edited.
        source: texts, all of which are taken; a corpus, of which 20 documents are drawn; None (or True) for the corpus
            that ships with an embedded model, no text for another one; False for none.
        seed: of the draw.

    Raises: InputError: texts that are empty or none. FileError: no such corpus.
    """
    if source is False or (source is None and model.name not in EMBEDDED):
        return ()
    if source is None or source is True:
        source = model.name
    texts = sample_documents(source, seed) if isinstance(source, str | Path) else tuple(source)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError("drift needs texts that are not empty: give some, a corpus, or False for none")
    return texts


def sample_documents(source: str | Path, seed: int) -> tuple[str, ...]:
    """Some documents of a corpus, each as likely as any other, in one reading."""
    generator = np.random.default_rng(seed)
    corpus = open_corpus(source)
    if isinstance(corpus, Packed):
        raise InputError(f"{source} is a packed corpus, of which only tokens are left: give texts for drift, or a file")
    kept: list[tuple[int, str]] = []
    for number, document in enumerate(d for d in corpus if d.text.strip()):
        if len(kept) < DOCUMENTS:
            kept.append((number, document.text))
        elif (place := int(generator.integers(number + 1))) < DOCUMENTS:
            kept[place] = (number, document.text)
    return tuple(text for _, text in sorted(kept))


class Texts:
    """Texts, cut after ``length`` tokens, that a model has read once, ready to be read again with edits."""

    def __init__(self, layers: PlainLayers, texts: Sequence[str], length: int = LENGTH) -> None:
        self.layers, self.texts = layers, tuple(texts)
        model = layers.model
        ids = (model.ids_of(text) for text in self.texts)
        rows = [(model.begun(row) if model.prepend_bos else row)[: min(length, model.n_ctx)] for row in ids]
        short = next((text for text, row in zip(self.texts, rows, strict=True) if len(row) < 2), None)
        if short is not None:
            raise InputError(f"drift needs texts of two tokens or more, unlike {quoted(short)}")
        self.tokens, self.mask = padded(rows, model.device)
        self.replay = self.read()
        self.clean = self.replay.stream[len(layers)]

    def read(self) -> Replay:
        """The texts read by the model as it is now; kept are only what layers read and their attention's cache."""
        replay = Replay(self.layers, self.tokens, self.mask, start=0)
        for part in (replay.coefficients, replay.attention, replay.ffn):
            part.clear()
        return replay

    def now(self, subjects: Sequence[str] = ()) -> dict[str, float]:
        """Drift from the model as it was first read to the model as it is now."""
        final = self.read().stream[len(self.layers)]
        return self.compared(final.unsqueeze(0), [self.counted(subjects)])[0]

    def drift(self, edits: Sequence[Edit | None], subjects: Sequence[str]) -> list[dict[str, float]]:
        """Drift of each edit: ``drift_kl``, mean KL(before‖after) of the next token in nats, over all tokens but BOS,
        ``drift_perplexity``, the perplexity after over the one before, and ``drift_loss``, the mean −log p after.

        Args:
            edits: of the model as it was first read; None changes nothing.
            subjects: as many; texts that mention an edit's own subject are not counted for it.
        """
        found: list[dict[str, float]] = []
        made = [(edit, self.counted([subject])) for edit, subject in zip(edits, subjects, strict=True)]
        for some in self.batches([edit for edit, _ in made]):
            own = [edit for edit, _ in made[some] if edit is not None]
            finals = iter(self.finals(own) if own else ())
            every = torch.stack([self.clean if edit is None else next(finals) for edit, _ in made[some]])
            found += self.compared(every, [counted for _, counted in made[some]])
        return found

    def batches(self, edits: Sequence[Edit | None]) -> Iterator[slice]:
        """As many edits at once as fit."""
        rows, length = self.tokens.shape
        numbers = rows * length * (self.clean.shape[-1] * 4 + self.layers.model.d_mlp * 2)
        factors = max((rows * c.rank * c.left.shape[1] for e in edits if e for c in e.changes), default=1)
        at_once = max(1, min(GATHERED // numbers, GATHERED // factors))
        yield from (slice(i, i + at_once) for i in range(0, len(edits), at_once))

    def finals(self, edits: Sequence[Edit]) -> Float[Tensor, "edits rows pos d_model"]:
        """What reaches the final norm under each edit."""
        count, length = self.tokens.shape
        rows = row_changes(self.layers.model, edits, [i for i in range(len(edits)) for _ in range(count)])
        index = torch.arange(count, device=self.tokens.device).repeat(len(edits))
        with torch.no_grad():
            final = self.replay.finish(
                [rows.lowest - 1] * len(index), self.replay.stream[rows.lowest][index], index, last=length, change=rows
            )
        return rearrange(final, "(edits rows) pos d_model -> edits rows pos d_model", rows=count)

    def counted(self, subjects: Sequence[str]) -> list[bool]:
        """Which texts mention none of some subjects."""
        return [mentions_none(text, subjects) for text in self.texts]

    def compared(
        self, finals: Float[Tensor, "edits rows pos d_model"], counted: Sequence[Sequence[bool]]
    ) -> list[dict[str, float]]:
        """Figures for what reaches the final norm under each edit, the clean side unembedded once for all."""
        kl, old, new = torch.zeros(3, len(finals), dtype=torch.float64)
        weights = torch.tensor(counted, dtype=torch.float64)
        asked = self.mask[:, :-1].clone()  # what follows a pad is no prediction
        if self.layers.model.prepend_bos:  # no statistic counts the beginning-of-sequence token's own
            asked &= self.mask[:, :-1].cumsum(1) > 1
        at_once = max(1, LOGITS // self.layers.model.d_vocab)
        with torch.no_grad():
            for some in torch.split(asked.nonzero(), at_once):
                rows, places = some.unbind(1)
                following = self.tokens[rows, places + 1].unsqueeze(1)
                clean = self.logs(self.clean[rows, places])
                share = clean.exp()
                for i, final in enumerate(finals):
                    changed = self.logs(final[rows, places])
                    weight = weights[i][rows.cpu()]
                    kl[i] += weight @ (share * (clean - changed)).sum(-1).double().cpu()
                    old[i] -= weight @ clean.gather(1, following).squeeze(1).double().cpu()
                    new[i] -= weight @ changed.gather(1, following).squeeze(1).double().cpu()
        tokens = (weights @ asked.sum(1).double().cpu()).numpy()
        with np.errstate(all="ignore"):  # of a model that was broken; NaN where every text was left out
            # What changes nothing may come out a rounding below 0; what is no number stays none.
            mean_kl, ratio = np.maximum(0.0, kl.numpy() / tokens), np.exp((new - old).numpy() / tokens)
            figures = np.stack([mean_kl, ratio, new.numpy() / tokens], axis=1)
        return [dict(zip(DRIFT, row, strict=True)) for row in figures.tolist()]

    def logs(self, final: Float[Tensor, "n d_model"]) -> Float[Tensor, "n vocab"]:
        return at_least_float32(self.layers.logits(final)).log_softmax(-1)


def mentions_none(text: str, subjects: Iterable[str]) -> bool:
    """Whether a text mentions none of some subjects."""
    return not any(mentions(text, subject) for subject in subjects)


# What edited models write, in batches, each row with its own edit.

ROWS, TOKENS = 64, 100  # texts written at once, and the tokens of one with its prompt

Keep = Callable[[Int[Tensor, " some"]], None]
"""Takes which rows of a batch go on alone."""


def batches_of_like_length(lengths: Sequence[int], pads: int) -> Iterator[list[int]]:
    """Prompts that are written on together, by place: no row has so many pads that its text would not fit."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        if batch and (len(batch) == ROWS or lengths[place] - lengths[batch[0]] > pads):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def write_with_edits(
    layers: PlainLayers,
    edits: Sequence[Edit | None],
    owners: Sequence[int],
    prompts: Sequence[Sequence[int]],
    pads: int,
    write: Callable[[list[int], Keep], list[str]],
) -> list[str]:
    """What ``write`` writes after prompts, some at a time by their places, each with the edit that its owner has."""
    texts: dict[int, str] = {}
    for some in case_slices(edits, ROWS * TOKENS):
        own = [at for at, owner in enumerate(owners) if some.start <= owner < some.stop]
        for places in batches_of_like_length([len(prompts[at]) for at in own], pads):
            batch = [own[place] for place in places]
            with with_own_edits(layers, changes_by_owner(layers.model, edits, [owners[at] for at in batch])) as keep:
                texts |= zip(batch, write(batch, keep), strict=True)
    return [texts[at] for at in range(len(prompts))]


def with_own_edits(layers: PlainLayers, rows: RowChanges | None) -> OpenBlock:
    """A block in which each row of a batch has its own edit, in every pass; it takes which rows go on alone."""

    def begin(undo: UndoList) -> Keep:
        if rows is None:
            return lambda _some: None
        for layer in rows.stacks:
            undo.hook(layers.parts[layer].project_out, rows.hook(layer))
        return rows.keep

    return OpenBlock(begin)
