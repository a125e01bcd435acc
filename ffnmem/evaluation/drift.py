"""Drift: how much an edit changes what a model says of text that has nothing to do with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ..corpus import Packed, open_corpus
from ..editing.edit import Edit
from ..editing.per_row import Rows
from ..errors import InputError, quoted
from ..facts.spelling import mentions
from ..models import Model
from ..models.final_norm import at_least_float32
from ..models.plain_layers import PlainLayers
from ..models.replaying import Replay
from ..models.scoring import LOGITS, padded
from ..resources import EMBEDDED
from .measuring import GATHERED

DOCUMENTS, LENGTH = 20, 32  # texts, and tokens of each

Source = Sequence[str] | str | Path | bool | None


def drift_texts(model: Model, source: Source, seed: int) -> tuple[str, ...]:
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
    texts = sampled(source, seed) if isinstance(source, str | Path) else tuple(source)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError("drift needs texts that are not empty: give some, a corpus, or False for none")
    return texts


def sampled(source: str | Path, seed: int) -> tuple[str, ...]:
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
    """Texts that a model has read once, ready to be read again with edits.

    Args:
        layers: of the model.
        texts: cut after ``length`` tokens.
    """

    def __init__(self, layers: PlainLayers, texts: Sequence[str], length: int = LENGTH) -> None:
        self.layers, self.texts = layers, tuple(texts)
        model = layers.model
        begin = [int(model.bos_token_id)] if model.prepend_bos and model.bos_token_id is not None else []
        rows = [(begin + model.ids_of(text))[: min(length, model.n_ctx)] for text in self.texts]
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
        and ``drift_perplexity``, the perplexity after over the one before.

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
        rows = Rows(edits, [i for i in range(len(edits)) for _ in range(count)])
        index = torch.arange(count, device=self.tokens.device).repeat(len(edits))
        with torch.no_grad():
            final = self.replay.finish(
                [rows.lowest - 1] * len(index), self.replay.stream[rows.lowest][index], index, last=length, change=rows
            )
        return rearrange(final, "(edits rows) pos d_model -> edits rows pos d_model", rows=count)

    def counted(self, subjects: Sequence[str]) -> list[bool]:
        """Which texts mention none of some subjects."""
        return [not any(mentions(text, subject) for subject in subjects) for text in self.texts]

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
        tokens = weights @ asked.sum(1).double().cpu()
        return [figures(*map(float, each)) for each in zip(kl, old, new, tokens, strict=True)]

    def logs(self, final: Float[Tensor, "n d_model"]) -> Float[Tensor, "n vocab"]:
        return at_least_float32(self.layers.logits(final)).log_softmax(-1)


def figures(kl: float, old: float, new: float, tokens: float) -> dict[str, float]:
    """Sums over tokens as means; NaN where every text was left out."""
    if not tokens:
        return {"drift_kl": math.nan, "drift_perplexity": math.nan}
    # What changes nothing may come out a rounding below 0.
    return {"drift_kl": max(0.0, kl / tokens), "drift_perplexity": float(np.exp((new - old) / tokens))}
