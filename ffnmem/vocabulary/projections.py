"""``project``: what memories write, and what excites them, in tokens; ``promoters``: the neurons behind a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Float, Int

from ..core.errors import InputError, quoted
from ..core.neuron_names import LayerName, NeuronName, NeuronNames, is_pair, is_place, pair_of
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Words
from ..core.types import LOGIT, Basis, Count, Side, checked
from ..models.model import Model
from ..models.norms import at_least_float32
from ..show.result import Result
from .lenses import JacobianLens, Lens, describe_lens, load_lens, name_of
from .scoring import BLOCK, Scorer, in_threads, loops_for
from .vectors import SIDES, SIGNS, check_sides, everything, side_tokens, side_vectors

# Projections as tables.

COLUMNS = ("layer", "neuron", "side", "sign", "rank", "token", "token_id", "score", "basis", "lens")
PLAIN = {"layer": pa.int64(), "neuron": pa.int64(), "rank": pa.int64(), "token_id": pa.int64(), "score": pa.float64()}


def words(codes: Int[np.ndarray, " n"], texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts, pa.string()))


def plain_frame(table: pa.Table, provenance: dict[str, Any]) -> pd.DataFrame:
    """A table with pandas' usual types: whole numbers in 64 bits, text as text."""
    types = [PLAIN.get(field.name, pa.string()) for field in table.schema]
    frame = table.cast(pa.schema(zip(table.column_names, types, strict=True))).to_pandas()
    frame.attrs = {"provenance": provenance}
    return frame


# `project`: what memories write, and what excites them, in tokens: one, a layer's, or all of a model's.

SHOWN = 20  # neurons whose rankings are shown
SIDE_MEANINGS = {
    "value": "what it writes towards and against",
    "key": "what excites and inhibits it",
    "gate": "what opens and shuts its gate",
}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Projection(Result):
    """What neurons write, and what excites them, in tokens. Made by :func:`ffnmem.project`, which says what the columns
    mean; ``.to_frame()`` is the table.

    Attributes:
        tokens: one row a token: layer, neuron, side, sign, rank, token, token_id, score, basis, lens.
    """

    tables: ClassVar = {"rankings": "rank promoted promoted_score suppressed suppressed_score"}
    main, only_shown = "tokens", "rankings"

    tokens: pd.DataFrame
    provenance: Provenance

    def shown_tokens(self, top: Count | None = None) -> pd.DataFrame:
        """The first ``top`` of each ranking."""
        return self.tokens if top is None else self.tokens[self.tokens["rank"] <= top]

    @property
    def n_neurons(self) -> int:
        """How many neurons it is of."""
        return len(self.tokens[["layer", "neuron"]].drop_duplicates())

    @property
    def verdict(self) -> str:
        """That not all neurons are shown, where that is so."""
        if self.n_neurons <= SHOWN:
            return ""
        return f"The first {SHOWN} of {self.n_neurons:,} neurons; JSON, CSV and .to_frame() have all."

    def rankings(self, top: Count | None = None) -> dict[str, pd.DataFrame | Words]:
        # Both ends of each ranking beside each other.
        found: dict[str, pd.DataFrame | Words] = {}
        first = self.tokens[["layer", "neuron"]].drop_duplicates().head(SHOWN)
        rows = self.shown_tokens(top).merge(first).astype({"side": str})
        for (layer, neuron, side), some in rows.groupby(["layer", "neuron", "side"], sort=False):
            named = f" ({layer}.{self.experts[layer].name(neuron)})" if layer in self.experts else ""
            name = f"{layer}.{neuron}{named} {side}"
            if some["score"].any():
                found[f"{name}: {SIDE_MEANINGS[side]}"] = both_ends(some, some["token"].tolist())
            else:  # as of experts' output biases (GPT-OSS), which read nothing
                found[name] = Words.of(f"{name}: all zeros, of no token")
        return found


def both_ends(rows: pd.DataFrame, named: Sequence[Any], heads: Sequence[str] = SIGNS) -> pd.DataFrame:
    """The promoted end of a ranking beside the suppressed one, what is ``named`` in front of each score."""
    ends = [(rows["sign"] == sign).to_numpy() for sign in SIGNS]
    columns: dict[str, Any] = {"rank": rows["rank"][ends[0]].tolist()}
    for head, end in zip(heads, ends, strict=True):
        columns[head] = [one for one, here in zip(named, end, strict=True) if here]
        columns[f"{head}_score"] = rows["score"][end].tolist()
    return pd.DataFrame(columns)


GROUP = 256  # neurons of a table, which is a row group where it is written into a file
PROMOTED = 12  # tokens: more than a line of 120 columns holds
Layers = SupportsIndex | NeuronName | NeuronNames | None
Neurons = SupportsIndex | Iterable[SupportsIndex] | None


@checked
def project(
    model: Model,
    layer: LayerName | NeuronName | NeuronNames | None = None,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    k: Count = 10,
    basis: Basis = "folded",
    lens: Lens = LOGIT,
    side: Side | Sequence[Side] | None = None,
    candidates: str = "auto",
    progress: Progress | None = None,
) -> Projection:
    """What memories write, and what excites them, in tokens.

    Names the tokens that a neuron's value promotes and suppresses, and those that excite and inhibit its key. A value's
    score is what a coefficient of 1 adds to the token's logit, before the final norm's scale. A key's score is how the
    token's own embedding moves the pre-activation, which says nothing about context. "ffnmem token" asks which neurons
    stand for a token.

    Layers in between change what a value comes to say: the Jacobian lens reads it as it arrives, which is what counts
    below mid-depth. That is for values alone.

    Args:
        model: from :func:`ffnmem.load`.
        layer: neurons by name, ``"3.17"`` or a list of names, in whose order rows come; or one layer. [default: all]
        neuron: one or several neurons of that layer; None for all.
        k: tokens a side and sign.
        basis: ``"folded"`` (default) scores values by ``((v − mean v) ⊙ γ_f)·W_U``, the final norm's gain folded in,
            and keys by the gain of the norm before the FFN and W_E; ``"raw"`` by ``v·W_U`` and ``k·W_E``. They rank
            tokens differently, so the basis is a column. An RMSNorm takes no mean away, and a norm behind the FFN
            (Gemma 2) has its gain folded in as well.
        lens: ``"logit"`` (default) reads a value v as if nothing stood between its layer and the unembedding;
            ``"jacobian"`` as what arrives there on average over a text, J_l v in place of v, which is what layers below
            mid-depth really promote: see :class:`ffnmem.vocabulary.JacobianLens`. Or such a lens, or its file. It is a
            column, and with its text in the provenance.
        side: ``"value"``, ``"key"``, in a gated model ``"gate"``, or several; by default all that the model has, of
            a Jacobian lens the values: what excites a neuron is not written anywhere.
        candidates: how the tokens in question are found, ``"auto"``, ``"bfloat16"`` or ``"float32"``: the faster on
            this machine, or that one. It never changes the result.
        progress: called after every block with "project", the neurons done and the neurons to do.

    Returns:
        A :class:`~ffnmem.vocabulary.Projection`. The columns of its ``.to_frame()``: layer, neuron, side, sign
        ("promoted"/"suppressed"), rank (from 1), token, token_id, score, basis, lens;
        ties by token id. A score is the dot product taken in float64 in one fixed order and rounded once to float32
        (kept in float64 for a float64 model): the same whatever the block and the path. A key's score tells how a
        token's embedding moves the pre-activation; it says nothing about context, which grows with depth.
        Of a whole model, text columns are categorical and numbers have 32 bits.

    Raises:
        OutOfRangeError: no such layer or neuron. InputError: unknown basis, side or candidates, or neurons without a
        layer, no Jacobian lens of this model, or one for keys. ModelError: a lens of other weights.

    Source: Geva et al. 2022 (2203.14680), §4, for values; Dar et al. 2023 (2209.02535) for keys; Gurnee et al. 2026
    (transformer-circuits.pub/2026/workspace) for the Jacobian lens.

    Example:
        $ ffnmem project 5.349
        $ ffnmem project 5.349,5.171 1.786 --side value --top 5
        $ ffnmem project 1.786 --lens jacobian --json
    """
    through = load_lens(model, lens)
    tokens = project_frame(
        model,
        layer,
        neuron,
        k=k,
        basis=basis,
        lens=through or LOGIT,
        side=side,
        candidates=candidates,
        progress=progress,
    )
    return Projection(tokens, model.provenance(basis=basis, lens=describe_lens(through)))


def project_frame(
    model: Model,
    layer: Layers = None,
    neuron: Neurons = None,
    *,
    k: int = 10,
    basis: Basis = "folded",
    lens: Lens = LOGIT,
    side: str | Sequence[str] | None = None,
    candidates: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The table of :func:`project`."""
    through = load_lens(model, lens)
    sides = check_sides(side, model, through)
    wanted = choose_neurons(model, layer, neuron)
    k = min(k, model.d_vocab)
    tables = project_blocks(model, wanted, sides, basis, through, k, candidates, progress)
    provenance = model.provenance(basis=basis, lens=describe_lens(through)).to_dict()
    whole = pa.concat_tables(list(tables)).unify_dictionaries()
    if layer is not None:
        return plain_frame(whole, provenance)
    frame = whole.to_pandas()  # some 30 bytes a row: text is categorical, whole numbers have 32 bits
    frame.attrs = {"provenance": provenance}
    return frame


End = tuple[int, int, str, str]
"""One end of what a neuron says in tokens: layer, neuron, side and sign."""


def end_tokens(model: Model, ends: Iterable[End], k: int = PROMOTED, lens: Lens = LOGIT) -> dict[End, list[str]]:
    """The ``k`` tokens at some ends of neurons' rankings, the furthest first."""
    found: dict[End, list[str]] = {end: [] for end in ends}
    if found:
        sides = [side for side in SIDES if any(side == end[2] for end in found)]
        for row in project_frame(model, sorted({end[:2] for end in found}), k=k, side=sides, lens=lens).itertuples():
            end = (row.layer, row.neuron, row.side, row.sign)
            if end in found:
                found[end].append(row.token)
    return found


def promoted_tokens(
    model: Model, neurons: pd.DataFrame, k: int = PROMOTED, *, fired: str | None = None
) -> dict[tuple[int, int], list[str]]:
    """The ``k`` tokens that each neuron of a table promotes most, best first, by (layer, neuron).

    In general those of its value. With ``fired``, the column of the coefficients that the neurons had somewhere, what
    they promoted there: where that is negative, what the value suppresses.
    """
    signs = [SIGNS[int(fired is not None and m < 0)] for m in neurons[fired or "neuron"]]
    pairs = zip(neurons["layer"].tolist(), neurons["neuron"].tolist(), signs, strict=True)
    found = end_tokens(model, [(layer, neuron, "value", sign) for layer, neuron, sign in pairs], k)
    return {end[:2]: tokens for end, tokens in found.items()}


def choose_neurons(model: Model, layer: Layers, neuron: Neurons) -> list[tuple[int, list[int]]]:
    """Layers and neurons of each, in the order asked; a layer comes twice where names of others stand between its own.

    Raises: InputError: what names no neuron, or nothing does. OutOfRangeError: no such layer or neuron.
    """
    if layer is None:
        if neuron is not None:
            raise InputError(
                f"neuron {quoted(neuron)} without a layer: name its layer, or leave both out for all neurons"
            )
        return [(index, everything(model, index)) for index in range(model.n_layers)]
    if is_place(layer) or isinstance(layer, SupportsIndex):  # arrays of one number are that and iterable
        index = model.layer(layer)
        if neuron is None:
            return [(index, everything(model, index))]
        neurons = [model.neuron(index, n) for n in (neuron if isinstance(neuron, Iterable) else [neuron])]
        found = [(index, neurons)] if neurons else []
    else:
        if neuron is not None:
            raise InputError(f"{quoted(layer)} names layer and neuron: leave out neuron {quoted(neuron)}")
        named: list[Any] = [layer] if isinstance(layer, str) or is_pair(layer) else list(layer)
        places = dict.fromkeys((model.layer(pair_of(name)[0]), model.neuron(name)) for name in named)
        found = [(at, [n for _, n in group]) for at, group in groupby(places, key=itemgetter(0))]
    if not found:
        raise InputError("no neuron given")
    return found


def project_blocks(
    model: Model,
    wanted: Sequence[tuple[int, list[int]]],
    sides: list[str],
    basis: str,
    lens: JacobianLens | None,
    k: int,
    candidates: str,
    progress: Progress | None,
) -> Iterator[pa.Table]:
    """The rows of one block of neurons after the other; only one block's scores exist at a time."""
    total, done = sum(len(neurons) for _, neurons in wanted), 0
    projector = Projector(model, sides, basis, k, candidates, total, lens)
    for layer, neurons in wanted:
        for start in range(0, len(neurons), BLOCK):
            block = neurons[start : start + BLOCK]
            ids, scores = projector.ends(layer, block)
            for first in range(0, len(block), GROUP):
                group = slice(first, first + GROUP)
                yield projector.table(layer, block[group], ids[group], scores[group])
            done += len(block)
            if progress is not None:
                progress("project", done, total)


class Projector:
    """A model's vocabulary made ready once, for as many neurons as are asked for, together or one after another.

    Its weights must stay as they are. ``rows``: about how many neurons will come at once.
    """

    def __init__(
        self,
        model: Model,
        sides: list[str],
        basis: str,
        k: int,
        candidates: str = "auto",
        rows: int = 1,
        lens: JacobianLens | None = None,
    ) -> None:
        self.model, self.sides, self.basis, self.lens = model, sides, basis, lens
        self.texts = np.full(model.d_vocab, None, object)  # of each id, once it was needed
        found: dict[int, Scorer] = {}  # by where the embeddings are: tied ones are prepared once
        self.scorers = []
        for side in sides:
            tokens = side_tokens(model, side)
            if tokens.data_ptr() not in found:
                found[tokens.data_ptr()] = Scorer(tokens, k, candidates, rows)
            self.scorers.append(found[tokens.data_ptr()])

    def ends(
        self, layer: int, neurons: list[int]
    ) -> tuple[Int[np.ndarray, "rows sides 2 k"], Float[np.ndarray, "rows sides 2 k"]]:
        """Ids and scores of both ends of at most BLOCK neurons of a layer, all sides of each."""
        vectors = [side_vectors(self.model, layer, neurons, side, self.basis, self.lens) for side in self.sides]
        if len(set(map(id, self.scorers))) == 1 and len(neurons) * len(vectors) <= BLOCK:
            # Few rows take as long as the embeddings take to be read: all sides at once.
            found = [np.split(part, len(vectors)) for part in self.scorers[0].block(torch.cat(vectors))]
        else:
            of_sides = [scorer.block(rows) for scorer, rows in zip(self.scorers, vectors, strict=True)]
            found = [list(part) for part in zip(*of_sides, strict=True)]
        ids, scores = (np.stack(part, axis=1) for part in found)
        return ids, scores

    def table(
        self,
        layer: int,
        neurons: list[int],
        ids: Int[np.ndarray, "rows sides 2 k"],
        scores: Float[np.ndarray, "rows sides 2 k"],
    ) -> pa.Table:
        """What :meth:`ends` gave as one row a token: by neuron, side, sign and rank."""
        rows, sides, ends, k = ids.shape
        count = rows * sides * ends * k
        columns = [
            pa.array(np.full(count, layer, np.int32)),
            pa.array(np.repeat(np.array(neurons, np.int32), sides * ends * k)),
            words(np.tile(np.repeat(np.arange(sides, dtype=np.int8), ends * k), rows), self.sides),
            words(np.tile(np.repeat(np.arange(ends, dtype=np.int8), k), rows * sides), list(SIGNS)),
            pa.array(np.tile(np.arange(1, k + 1, dtype=np.int32), rows * sides * ends)),
            self.coded(ids.reshape(-1)),
            pa.array(ids.reshape(-1).astype(np.int32)),
            pa.array(scores.reshape(-1)),
            words(np.zeros(count, np.int8), [self.basis]),
            words(np.zeros(count, np.int8), [name_of(self.lens)]),
        ]
        return pa.Table.from_arrays(columns, names=list(COLUMNS))

    def coded(self, ids: Int[np.ndarray, " n"]) -> pa.DictionaryArray:
        """The ids' texts, each text once; several ids may share one."""
        unknown = [index for index in np.unique(ids).tolist() if self.texts[index] is None]
        self.texts[unknown] = self.model.token_strings(unknown)
        return pa.array(self.texts[ids], pa.string()).dictionary_encode()


# `promoters`: the neurons that most promote and most suppress a token.

Tokens = str | SupportsIndex | Iterable[str | SupportsIndex]


NEURONS = {
    "value": "neurons that write towards and against",
    "key": "neurons that are excited and inhibited by",
    "gate": "neurons whose gates are opened and shut by",
}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Promoters(Result):
    """The neurons that most promote and most suppress a token. Made by :func:`ffnmem.vocabulary.promoters`, which says
    what the columns mean; ``.to_frame()`` is the table.

    Attributes:
        neurons: one row a neuron, by side and sign. tokens: those that were asked for.
    """

    tables: ClassVar = {"rankings": "rank promoting promoting_score suppressing suppressing_score"}
    main, only_shown = "neurons", "rankings"

    neurons: pd.DataFrame
    tokens: tuple[str, ...]
    provenance: Provenance

    def shown_neurons(self, top: Count | None = None) -> pd.DataFrame:
        """The first ``top`` of each side and sign."""
        return self.neurons if top is None else self.neurons[self.neurons["rank"] <= top]

    def rankings(self, top: Count | None = None) -> Mapping[str, pd.DataFrame]:
        # Both ends of each ranking beside each other.
        named = ", ".join(map(repr, self.tokens))
        return {
            f"{side}: {NEURONS[str(side)]} {named}": both_ends(
                some, list(zip(some["layer"], some["neuron"], strict=True)), ("promoting", "suppressing")
            )
            for side, some in self.shown_neurons(top).groupby("side", sort=False)
        }


@checked
def promoters(
    model: Model,
    tokens: Tokens,
    *,
    k: Count = 10,
    layer: LayerName | None = None,
    basis: Basis = "folded",
    lens: Lens = LOGIT,
    side: Side | Sequence[Side] | None = "value",
    first_token: bool = False,
) -> Promoters:
    """Which memories most promote and suppress a token.

    Of several tokens, on average over them. A token has its leading space: " Paris".

    Args:
        model: from :func:`ffnmem.load`.
        tokens: one token, as text with its leading space or as an id; or several, whose mean score counts.
        k: neurons a side and sign.
        layer: only this layer; default all.
        basis, lens: as :func:`ffnmem.project` takes them; the scores are those that it gives.
        side: ``"value"`` (default): the neurons that write the token; ``"key"``: those that it excites; ``"gate"`` of
            gated models: those whose gates it opens; several, or None for all.
        first_token: take the first token of a text of several tokens instead of refusing it.

    Returns:
        A :class:`~ffnmem.vocabulary.Promoters`. The columns of its ``.to_frame()``: layer, neuron, side, sign, basis,
        lens, rank, score, then token and token_id of a single token, or
        tokens (a list of texts). Ties by layer, then neuron.

    Raises:
        InputError: a text that is not one token, no token, or an unknown basis or side. OutOfRangeError: no such layer.

    Source: Geva et al. 2022 (2203.14680), §4, read in the other direction.

    Example:
        $ ffnmem token " Paris"
        $ ffnmem token " Paris" " London" --layer -1 --top 5
    """
    through = load_lens(model, lens)
    sides = check_sides(side, model, through)
    given = [tokens] if isinstance(tokens, str) or not isinstance(tokens, Iterable) else list(tokens)
    if not given:
        raise InputError("no token given: name at least one, such as ' Paris'")
    ids = list(dict.fromkeys(model.token_id(token, first_token) for token in given))
    texts = model.token_strings(ids)
    layers = list(range(model.n_layers)) if layer is None else [model.layer(layer)]
    owners = np.array([(index, neuron) for index in layers for neuron in everything(model, index)])
    frames = []
    for name in sides:
        scores = np.concatenate([mean_scores(model, index, ids, name, basis, through) for index in layers])
        for sign, keys in zip(SIGNS, (-scores, scores), strict=True):
            best = np.argsort(keys, kind="stable")[:k]
            columns = {"layer": owners[best, 0], "neuron": owners[best, 1], "side": name, "sign": sign}
            columns |= {"basis": basis, "lens": name_of(through)}  # a narrow terminal leaves out the middle of a table
            columns |= {"rank": np.arange(1, len(best) + 1), "score": scores[best].astype(np.float64)}
            asked = {"token": texts[0], "token_id": ids[0]} if len(ids) == 1 else {"tokens": [texts] * len(best)}
            frames.append(pd.DataFrame({**columns, **asked}))
    neurons, provenance = (
        pd.concat(frames, ignore_index=True),
        model.provenance(basis=basis, lens=describe_lens(through)),
    )
    neurons.attrs = {"provenance": provenance.to_dict()}
    return Promoters(neurons, tuple(texts), provenance)


def mean_scores(
    model: Model, layer: int, ids: list[int], side: str, basis: str, lens: JacobianLens | None = None
) -> Float[np.ndarray, " neurons"]:
    """Of every neuron of a layer, the mean over the tokens of the canonical score: of one token, the score itself."""
    vectors = side_vectors(model, layer, everything(model, layer), side, basis, lens).cpu().numpy()
    rows = at_least_float32(side_tokens(model, side)[ids]).cpu().contiguous().numpy()
    scores = np.empty((len(vectors), len(ids)), vectors.dtype)
    score_rows = loops_for(vectors.size * len(ids)).score_rows
    in_threads(lambda first, last: score_rows(vectors, rows, first, last, scores), len(vectors))
    return scores.mean(axis=1, dtype=np.float64).astype(vectors.dtype)


WHY = {
    ("value", "promoted"): "value promotes",
    ("value", "suppressed"): "value suppresses",
    ("key", "promoted"): "key excited by",
    ("key", "suppressed"): "key inhibited by",
    ("gate", "promoted"): "gate raised by",
    ("gate", "suppressed"): "gate lowered by",
}
"""Why words find a neuron: what its tokens at that end are to it, by side and sign."""
