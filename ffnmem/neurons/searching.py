"""``search``: neurons by text: what their values write and their keys read, or what fires them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import InputError, quoted
from ..core.files import clear_abandoned
from ..core.progress import Progress
from ..core.types import Count, SearchPlace, checked
from ..prompts.captures import capture
from ..scanning.contexts import Contexts
from ..scanning.neuron_sides import NEGATIVE, POSITIVE
from ..scanning.projected import search_values, write_values
from ..scanning.store import Store
from ..scanning.tables import VALUES, layer_examples
from ..show.result import Result
from ..vocabulary.projections import WHY

PLACE = ["layer", "neuron"]
FOUND = {
    "weights": "Neurons of which a token with {} is among the ten that they promote, suppress or read most",
    "examples": "Neurons with examples at a token with {}: first those whose coefficient there is the most unusual for "
    "them, in standard deviations above their mean over the store's text",
    "text": "Neurons that fire in {}: first those whose coefficient there is the most unusual for them, in standard "
    "deviations above their mean over the store's text",
}
NONE = {
    "weights": "No token with {} is among the ten that any neuron promotes, suppresses or reads most "
    "(looked in weights; try --where examples)",
    "examples": "No neuron has an example at a token with {} (looked in examples; try --where weights)",
    "text": "No neuron fires in {}",
}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class FoundNeurons(Result):
    """What :func:`search` found, which says what the columns mean.

    Attributes:
        neurons: what a neuron fires at and promotes is of its side with the coefficient's sign, else of its stronger
            one. One row a neuron and why it was found.
        text, where: what was asked.
        store: in which.
        provenance: of the store.
    """

    tables: ClassVar = {
        "neurons": "neuron fires_at why effect token score coefficient mean deviations promotes "
        "| rank kind hits std position"
    }
    only_data = "text where"

    neurons: pd.DataFrame
    text: str
    where: SearchPlace
    provenance: dict[str, Any]
    store: Store | None = None

    @property
    def verdict(self) -> str:
        """What the rows are, or that there are none."""
        return f"{(FOUND if len(self.neurons) else NONE)[self.where].format(quoted(self.text))}."


@checked
def search(
    store: Store, text: str, *, where: SearchPlace = "weights", k: Count = 50, progress: Progress | None = None
) -> FoundNeurons:
    """Neurons by a text: what fires them, or what they write.

    With --where weights (default) those whose value promotes or suppresses a token that contains the text, or, of gated
    neurons, whose key or gate reads it; with "examples" those that have examples at such a token; with "text" those
    that the text fires, which the store's model reads for that.

    What fires a neuron is ranked by how far the coefficient lies above the neuron's own mean over the store's text, in
    its standard deviations, not by its size: a neuron that fires at most tokens says little about one.

    Note: Upper and lower case are alike in weights and examples. In weights the best ranks come first. Of a gated
    neuron, whose coefficient may be large with either sign, far below the mean counts as far above it.

    The first search in weights of a store that was scanned without projecting its neurons projects all, which takes the
    model and of a large one minutes, and keeps the table in the store's folder.

    Args:
        store: from :func:`ffnmem.scan` or :func:`ffnmem.open_store`.
        text: Part of a token; or, with --where text, a text.
        where: Where to search.
        k: rows at most.
        progress: called as ("project", done, all) in neurons, where all must be projected.

    Returns:
        A :class:`FoundNeurons`. The columns of its ``neurons``: layer, neuron; in weights those of
        :func:`ffnmem.project`, why (what the neuron does with the token) and, of gated neurons, effect (whether it
        promotes the token on its stronger side, and which side that is); else token (the first that matched),
        coefficient, mean and std (of the neuron, over the store's text), deviations (the coefficient less the mean,
        over std), of examples kind, hits (how many of that kind match), rank (the best of them), sequence and position,
        of a text position.

    Raises: InputError: an empty text. ModelError: the model is needed and not at hand. FileError.

    Example:
        $ ffnmem search paris --store runs/atlas
        $ ffnmem search paris --store runs/atlas --where examples
        $ ffnmem search "The museum is in Paris" --store runs/atlas --where text
    """
    if not text.strip():
        raise InputError("the text to search for is empty: give a part of a token, such as 'Paris'")
    if where == "weights":
        found = with_reasons(search_weights(store, text, k, progress), store)
    elif where == "examples":
        found = by_deviation(search_examples(store, text), store, ["hits", "rank"]).head(k)
    else:
        found = by_deviation(fired_by(store, text), store, []).head(k)
    return FoundNeurons(found, text, where, store.provenance, store)


# -- in weights ------------------------------------------------------------------------------------------------------


def search_weights(store: Store, text: str, limit: int, progress: Progress | None) -> pd.DataFrame:
    """Rows of the table of what all neurons write, which is made where there is none; where the folder cannot be
    written to, it is not kept."""
    path = store.folder / VALUES
    if VALUES in store.manifest["files"]:
        store.verified_path(VALUES)
    elif store.projected:
        clear_abandoned(path.parent, path.name)  # what its making left, where that was killed
    elif os.access(store.folder, os.W_OK):
        store.keep_values(progress)
    else:
        with TemporaryDirectory() as room:
            write_values(store.model_for(), Path(room) / VALUES, progress)
            return search_values(Path(room) / VALUES, text, limit)
    return search_values(path, text, limit)


def with_reasons(found: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Rows of a search in weights with what the neuron does with the token, of a gated one on its stronger side too."""
    found = found.assign(why=[WHY[end] for end in zip(found["side"], found["sign"], strict=True)])
    if store.gated:
        stats = store.stats()
        signs = stats[PLACE].assign(stronger=np.where(-stats["min"] > stats["max"], NEGATIVE, POSITIVE))
        merged = found.merge(signs, "left", PLACE)
        found = found.assign(effect=[in_effect(row) for row in merged.to_dict("records")])
    return found


def in_effect(row: Mapping[str, Any]) -> str:
    """What a gated neuron does with a token that its value writes where it fires most strongly; else the sign there."""
    if row["side"] != "value":
        return str(row["stronger"])
    promotes = (row["sign"] == "promoted") == (row["stronger"] == POSITIVE)
    return f"{'promotes' if promotes else 'suppresses'}, {row['stronger']}"


# -- by what fires them ----------------------------------------------------------------------------------------------


def by_deviation(found: pd.DataFrame, store: Store, then: list[str]) -> pd.DataFrame:
    """Coefficients by how far they lie above their neuron's mean, in its standard deviations, the furthest first; of a
    gated neuron far below counts as far above. ``then``: hits and rank, by which equal ones are ordered."""
    found = found.merge(store.stats()[[*PLACE, "mean", "std"]], "left", PLACE)
    found["deviations"] = ((found["coefficient"] - found["mean"]) / found["std"].where(found["std"] > 0)).fillna(0.0)
    height = found["deviations"].abs() if store.gated else found["deviations"]
    order = found.assign(height=height).sort_values(
        ["height", *then, *PLACE], ascending=[False, *(name != "hits" for name in then), True, True], ignore_index=True
    )
    return order.drop(columns="height")


def search_examples(store: Store, text: str) -> pd.DataFrame:
    """One row a neuron and kind of examples (top, bottom, sign cases): how many of its examples are at a token that
    contains ``text``, and the best of them."""
    wanted = matching_ids(store.contexts, store.corpus.vocab, text)
    layers = (layer_examples(store.view(i), store.settings.k, store.sequences) for i in range(store.n_layers))
    found = {index: examples[np.isin(examples["token_id"], wanted)] for index, examples in enumerate(layers)}
    hits = pd.concat(found, names=["layer"]).reset_index("layer")
    grouped = hits.groupby([*PLACE, "kind"], observed=True, sort=False)
    best = grouped.first().reset_index()
    best.insert(3, "hits", grouped.size().to_numpy())
    return best.assign(kind=best["kind"].astype(str), token=store.contexts.strings(best["token_id"]))


def matching_ids(contexts: Contexts, vocab: int, text: str) -> np.ndarray:
    """Ids of tokens that contain the text, whatever its case."""
    strings = contexts.strings(range(vocab))
    return np.array([i for i, token in enumerate(strings) if text.casefold() in token.casefold()], np.int64)


def fired_by(store: Store, text: str) -> pd.DataFrame:
    """One row a neuron: the token of a text at which its coefficient lies furthest above its mean. The beginning of
    sequence and other special tokens do not count.

    Raises: InputError: a text without other tokens. ModelError: the model is not at hand.
    """
    captured = capture(store.model_for("coefficients in a text"), text)
    places, tokens = captured.content[0].nonzero()[:, 0], captured.token_strings()
    if not len(places):
        raise InputError("the text has no token but special ones: type some words")
    parts = []
    for layer in range(store.n_layers):
        coefficients = captured.coefficients[layer][0, places].detach().float().cpu().numpy()
        far = coefficients - store.stats(layer)["mean"].fillna(0).to_numpy()
        at = (np.abs(far) if store.gated else far).argmax(0)
        position = places.cpu().numpy()[at]
        parts.append(
            pd.DataFrame(
                {
                    "layer": layer,
                    "neuron": np.arange(len(at)),
                    "token": [tokens[index] for index in position],
                    "position": position,
                    "coefficient": coefficients[at, np.arange(len(at))].astype(np.float64),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)
