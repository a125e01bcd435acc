"""What edited models say and write: drift on unrelated text, sampled continuations, fluency and consistency."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.resources import EMBEDDED
from ..corpus.packed import Packed
from ..corpus.sources import open_corpus
from ..editing.changes import RowChanges
from ..editing.edit import Edit, row_changes
from ..facts.templates import mentions
from ..models.answers import LOGITS, padded, written_on
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.replaying import PlainLayers, Replay
from .measuring import GATHERED, EditCase, case_slices, changes_by_owner
from .metrics import mean

# Drift: how much an edit changes what a model says of text that has nothing to do with it.

DOCUMENTS, LENGTH = 20, 32  # texts, and tokens of each
DRIFT = ("drift_kl", "drift_perplexity", "drift_loss")

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


# What edited models write: sampled continuations of a fact's generation prompts, their fluency and consistency.

TOKENS, TOP = 100, 5  # a text is at most so long with its prompt; likeliest tokens to draw from
ROWS = 64  # texts written at once
WORD, TERM = re.compile(r"\w+|[^\w\s]"), re.compile(r"\b\w\w+\b")

Start = tuple[int, tuple[int, ...], np.random.Generator]
"""The case of a text, its prompt's tokens, and where its random numbers come from."""

Keep = Callable[[Int[Tensor, " some"]], None]
"""Takes which rows of a batch go on alone."""

References = Mapping[str, Sequence[str]]
"""By new target, texts about things that it is true of."""


class Writer:
    """Writes texts about facts, with each fact's own edit.

    Args:
        layers: of the model.
        references: for RS; a target without texts has no RS.
        seed: of the sampling, which further depends on the fact and on nothing else.
    """

    def __init__(self, layers: PlainLayers, references: References | None, seed: int) -> None:
        self.layers, self.model, self.seed = layers, layers.model, seed
        model = layers.model
        self.length = min(model.n_ctx, TOKENS)  # of a text at most
        self.references = {target.strip(): " ".join(texts) for target, texts in (references or {}).items() if texts}
        self.weights = TermWeights([text for texts in (references or {}).values() for text in texts])

    def measure(self, cases: Sequence[EditCase], edits: Sequence[Edit | None]) -> list[dict[str, float]]:
        """GE and RS of what is written about each case; NaN without generation prompts or reference texts.

        Source: Meng et al. 2022 (2202.05262), appendix D. Words are runs of letters and digits, and single marks.
        """
        found = []
        for case, texts in zip(cases, self.write(cases, edits), strict=True):
            reference = self.references.get(case.target)
            similarity = self.weights.cosine(" ".join(texts), reference) if reference and texts else math.nan
            entropies = [value for text in texts if not math.isnan(value := entropy(text))]
            found.append({"GE": mean(entropies), "RS": similarity})
        return found

    def write(self, cases: Sequence[EditCase], edits: Sequence[Edit | None]) -> list[list[str]]:
        """For each case a text from each of its generation prompts, the prompt included."""
        starts: list[Start] = []
        for i, case in enumerate(cases):
            for j, template in enumerate(case.fact.generation_prompts):
                # The same random numbers for a prompt whatever else is in the batch, and for every edit of it.
                draws = np.random.default_rng([self.seed, zlib.crc32(case.fact.name.encode()), j])
                starts += [(i, tokens, draws) for tokens in self.prompt(case.fact.ask(template))]
        owners, prompts, generators = zip(*starts, strict=True) if starts else ((), (), ())

        def write(batch: list[int], _keep: Keep) -> list[str]:
            return sample(self.layers, [prompts[at] for at in batch], [generators[at] for at in batch])

        texts = write_with_edits(self.layers, edits, owners, prompts, self.model.n_ctx - self.length, write)
        return [[text for owner, text in zip(owners, texts, strict=True) if owner == i] for i in range(len(cases))]

    def prompt(self, text: str) -> list[tuple[int, ...]]:
        """A prompt's tokens; none where there is no room to write behind it."""
        try:
            tokens = tuple(self.model.tokenize(text))
        except InputError:
            return []
        return [tokens] if len(tokens) < self.length else []


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


@contextmanager
def with_own_edits(layers: PlainLayers, rows: RowChanges | None) -> Iterator[Keep]:
    """A block in which each row of a batch has its own edit, in every pass; it takes which rows go on alone."""
    if rows is None:
        yield lambda _some: None
        return
    with layers.model.turns.changing("the edits whose texts are written") as block:
        for layer in rows.stacks:
            block.hook(layers.parts[layer].project_out, rows.hook(layer))
        yield rows.keep


def sample(
    layers: PlainLayers, prompts: Sequence[Sequence[int]], draws: Sequence[np.random.Generator], top: int = TOP
) -> list[str]:
    """Prompts with what is written on them, each token drawn from the ``top`` likeliest ones by the prompt's own random
    numbers, until the text's end or TOKENS tokens."""
    model = layers.model
    rooms = [min(TOKENS, model.n_ctx) - len(prompt) for prompt in prompts]
    uniform = torch.tensor(np.stack([draw.random(max(*rooms, 1)) for draw in draws]))
    written = written_on(layers, prompts, rooms, lambda step, logits: pick_tokens(logits, uniform[:, step], top))
    return [
        model.tokenizer.decode([*prompt, *ids], skip_special_tokens=True)
        for prompt, ids in zip(prompts, written, strict=True)
    ]


def pick_tokens(logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"], top: int) -> Tensor:
    """One of each row's likeliest tokens, by a number between 0 and 1."""
    best = logits.float().topk(min(top, logits.shape[1]), dim=1)
    below = best.values.double().softmax(1).cumsum(1)[:, :-1]
    place = (uniform.to(below.device).unsqueeze(1) >= below).sum(1, keepdim=True)
    return best.indices.gather(1, place).squeeze(1)


def entropy(text: str) -> float:
    """⅓H₂ + ⅔H₃ in bits, of the text's pairs and triples of words; NaN of less than three words."""
    words = WORD.findall(text)
    if len(words) < 3:
        return math.nan
    found = []
    for size in (2, 3):
        counts = np.array(list(Counter(zip(*(words[i:] for i in range(size)), strict=False)).values()), dtype=float)
        shares = counts / counts.sum()
        found.append(float(-(shares * np.log2(shares)).sum()))
    return found[0] / 3 + 2 * found[1] / 3


class TermWeights:
    """Terms of two letters or more, weighted by their count and log((1 + n)/(1 + documents with it)) + 1."""

    def __init__(self, documents: Sequence[str]) -> None:
        seen = Counter(term for text in documents for term in set(TERM.findall(text.lower())))
        self.inverse = {term: math.log((1 + len(documents)) / (1 + count)) + 1 for term, count in seen.items()}

    def vector(self, text: str) -> dict[str, float]:
        """Weights of a text's terms; those of no document do not count."""
        counts = Counter(TERM.findall(text.lower()))
        return {term: n * self.inverse[term] for term, n in counts.items() if term in self.inverse}

    def cosine(self, first: str, second: str) -> float:
        """Between two texts; 0 where one has no known term."""
        a, b = self.vector(first), self.vector(second)
        norms = math.sqrt(sum(w * w for w in a.values()) * sum(w * w for w in b.values()))
        return sum(weight * b.get(term, 0.0) for term, weight in a.items()) / norms if norms else 0.0
