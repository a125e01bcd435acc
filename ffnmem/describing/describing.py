"""``describe``: descriptions of neurons in words, and how well they fit contexts that were held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, JUDGED_TOGETHER
from ..core.errors import InputError, counted
from ..core.neuron_names import NeuronName, NeuronNames, place_of
from ..core.progress import Progress
from ..core.token_text import printable
from ..core.types import Ask, CoefficientSign, Contexts, Count, Seed, Whole, checked
from ..neurons.cards import NeuronCards
from ..scanning.neuron import Neuron
from ..scanning.store import Store, open_store
from ..show.result import Result
from . import prompts
from .answers import Answers, read_answers
from .contexts import FIRES, DrawnContexts, draw_contexts
from .scoring import balanced_accuracy, judge_contexts, pair_others

CONTEXT = 16
DEAD, FEW, SILENT = "never fires", "fires in too few contexts", "no description could be read"
TRIED = 100  # neurons of a layer, for one to compare a single neuron with
TABLE = (
    "layer", "neuron", "sign", "description", "why", "score", "score_low", "score_high", "null", "null_low",
    "null_high", "null_of", "n", "shown", "unread",
)  # fmt: skip
CONTEXTS = (
    "layer", "neuron", "part", "coefficient", "sequence", "position", "document", "token", "context", "applies",
    "null_applies",
)  # fmt: skip
ANSWERS = ("asked", "layer", "neuron", "question", "answer", "read")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Descriptions(Result):
    """Descriptions of neurons in words. Made by :func:`ffnmem.describe`.

    Attributes:
        table: one row a neuron: layer, neuron, sign (of the coefficients that are described), description (empty where
            there is none), why (there is none), score (balanced accuracy of the description on held-out contexts) with
            ``score_low`` and ``score_high`` (95%), null (the same under the description of another neuron, ``null_of``)
            with its interval, n (contexts held back, half of them firing), shown (contexts that the description was
            made of), unread (questions about contexts whose answer could not be read; no score counts them).
        contexts: one row a context: layer, neuron, part ("shown", "firing", "quiet"), coefficient (NaN of quiet ones),
            sequence, position, document, token, context; applies and null_applies (whether the description, and that
            of the other neuron, was said to apply: 1, 0, or NaN where it was not asked or not read).
        answers: one row a question: asked ("description", "score" or "null"), layer, neuron, question, answer, read
            (whether the answer could be read).
        provenance: plain values: of the store, who was asked ("described by"), the settings.
    """

    tables: ClassVar = {"descriptions": "neuron sign description accuracy other contexts", "answers": "|*"}
    main, uncut, only_shown = "table", "descriptions", "descriptions"

    table: pd.DataFrame
    contexts: pd.DataFrame
    answers: pd.DataFrame
    provenance: dict[str, Any]

    def of(self, layer: int | NeuronName, neuron: int | None = None) -> str:
        """The description of a neuron; empty where there is none. Raises InputError: it was not asked for."""
        return str(self.row(layer, neuron)["description"])

    def row(self, layer: int | NeuronName, neuron: int | None = None) -> pd.Series:
        """A neuron's row of ``table``. Raises InputError: it was not asked for."""
        place = tuple(int(one) for one in place_of(layer, neuron))
        found = self.table[(self.table["layer"] == place[0]) & (self.table["neuron"] == place[1])]
        if found.empty:
            raise InputError(f"{place[0]}.{place[1]} was not described here")
        return found.iloc[0]

    def on(self, neuron: Neuron | NeuronCards) -> Any:
        """A neuron of :meth:`Store.neuron` with its description on its card, of a gated one with the side that it is
        of; or several, of which those that were not asked for stay as they are. Raises InputError: not asked for, or
        of another model."""
        fingerprint = self.provenance["fingerprint"]
        if neuron.provenance["fingerprint"] != fingerprint:
            raise InputError(
                f"the descriptions are of {self.provenance['model']} {fingerprint}, and the neurons are of "
                f"{neuron.provenance['model']} {neuron.provenance['fingerprint']}"
            )
        if isinstance(neuron, NeuronCards):
            known = set(zip(self.table["layer"], self.table["neuron"], strict=True))
            cards = (self.on(one) if (one.layer, one.neuron) in known else one for one in neuron.cards)
            return replace(neuron, cards=tuple(cards))
        row = self.row(neuron.layer, neuron.neuron)
        side = f" ({row['sign']} side)" if neuron.gated and row["description"] else ""
        return replace(neuron, description=f"{row['description']}{side}")

    @property
    def descriptions(self) -> pd.DataFrame:
        """How well each description tells contexts in which the neuron fires from others (half of them, so 50% by
        chance, with the 95% interval), and how well another neuron's description does on the same contexts."""
        found = self.table if (self.table["sign"] == "negative").any() else self.table.drop(columns="sign")
        ends = {"accuracy": "score", "other": "null"}
        columns = {
            name: [within(*row) for row in self.table[[own, f"{own}_low", f"{own}_high"]].to_numpy()]
            for name, own in ends.items()
        }
        words = [printable(row.description) or f"– ({row.why})" for row in self.table.itertuples()]
        return found.assign(description=words, contexts=self.table["n"], **columns)

    @property
    def verdict(self) -> str:
        """How many descriptions say something of their neuron, and what could not be read."""
        scored, lost = self.table.dropna(subset=["score", "null"]), self.answers[~self.answers["read"]]
        better = (scored["score"] > scored["null"]).sum()
        fit = f"{better} of {counted(len(scored), 'description')} fit their neuron better than another neuron's does."
        parts = [fit] if len(scored) else []
        if len(lost):
            first = printable(lost["answer"].iloc[0])[:60]
            parts += [f"{len(lost)} of {counted(len(self.answers), 'answer')} could not be read and are not counted;"]
            parts += [f"the first: {first!r}."]
        return " ".join(parts)


def within(share: float, low: float, high: float) -> str:
    """A score with its interval, short."""
    return f"{share:.0%} [{low:.0%}, {high:.0%}]" if share == share else "–"


def check_describe(store: str | None = None, neurons: Sequence[NeuronName] = (), out: str | None = None) -> None:
    """Refuse neurons that a scan has not and files that hold no answers, before a model is loaded."""
    if store is not None:
        open_store(store).places(neurons)
    if out is not None and Path(out).exists():
        read_answers(Path(out), "")


@checked
def describe(
    store: Store,
    neurons: NeuronName | NeuronNames,
    ask: Ask,
    *,
    sign: CoefficientSign | None = None,
    shown: Contexts = CONTEXTS_SHOWN,
    tested: Contexts = CONTEXTS_TESTED,
    context: Whole = CONTEXT,
    together: Count = JUDGED_TOGETHER,
    out: str | Path | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Descriptions:
    """Descriptions of neurons in words, and how well they fit contexts that were held back.

    A language model on this machine is shown contexts in which a neuron fires, and describes it in a sentence. It is
    then asked to which of other contexts, half of them firing and half quiet, the description applies: the score, a
    balanced accuracy. The null is the same with the description of another neuron. Both are 50% by chance.

    Note:
        The other neuron is another of ``neurons``, drawn at random; for a single one, a random neuron of its layer.

    Args:
        store: the folder of a scan.
        neurons: which, such as 3.17,5.97. In Python, ``"3.17"`` or ``[(3, 17), (5, 97)]``.
        ask: any function from a question to an answer, both texts, such as :func:`ffnmem.describing.ask_model` makes of
            a model.
        sign: of positive or negative coefficients. [default: those of each neuron's stronger side]
        shown: contexts that are shown, at most.
        tested: contexts held back of each kind, firing and quiet, at most.
        context: tokens on each side of the one that fires.
        together: contexts in a question of the score.
        out: a file of JSON lines that keeps questions and answers as they come; what it has is not asked again. In
            Python, a function is known by its name: another one that has the same name needs another file.
        seed: of every random choice.
        progress: called as (phase, done, total) with the phases "explain" and "judge" (questions).

    Returns: :class:`Descriptions`.

    Raises:
        OutOfRangeError: no such neuron. InputError: numbers out of range, an answer that is no text, a file that holds
        no answers. Whatever ``ask`` raises; what was answered before is in ``out``.

    Source: Bills et al. 2023, "Language models can explain neurons in language models"; Paulo et al. 2024,
        "Automatically interpreting millions of features in large language models" (delphi) for detection.

    Example:
        $ ffnmem describe 3.17,5.97 --store runs/atlas --reader atlas
    """
    settings: dict[str, Any] = {"sign": sign, "shown": shown, "tested": tested, "context": context, "seed": seed}
    drawn = [draw_contexts(store, place, **settings) for place in store.places(neurons)]
    there = [one for one in drawn if one.shown]
    there += [find_other(store, there[0], settings)] if len(there) == 1 else []
    answers = Answers(ask, out, progress)
    answers.begin("explain", len(there))
    texts = {}
    for one in there:
        question = prompts.ask_description(one.shown)
        texts[one.place] = answers.put("description", *one.place, question, prompts.read_description)
    others = pair_others([place for place, text in texts.items() if text], seed)
    judged = {one.place: one for one in drawn if texts.get(one.place)}
    rounds = {place: {"score": place} | ({"null": others[place]} if place in others else {}) for place in judged}
    answers.begin("judge", sum(len(rounds[place]) * ceil(len(one.held) / together) for place, one in judged.items()))
    said = {
        place: [judge_contexts(one, asked, texts[of], answers, together, seed) for asked, of in rounds[place].items()]
        for place, one in judged.items()
    }
    log = pd.DataFrame(answers.log, columns=list(ANSWERS)).astype({"read": bool})
    lost = log[~log["read"] & (log["asked"] != "description")].value_counts(["layer", "neuron"]).to_dict()
    table, contexts = [], []
    for one in drawn:
        description = texts.get(one.place, "")
        why = "" if description else DEAD if one.largest <= 0 else SILENT if one.shown else FEW
        both = [*said.get(one.place, []), *[[nan] * len(one.held)] * 2][:2]
        scores = [end for each in both for end in balanced_accuracy(each)]
        counts = len(one.held), len(one.shown), lost.get(one.place, 0)
        other = ".".join(map(str, others.get(one.place, ())))
        table.append((*one.place, one.sign, description, why, *scores, other, *counts))
        contexts += context_rows(one, *both)
    settings = {name: value for name, value in settings.items() if value is not None}
    own = {**settings, "together": together, "fires": FIRES, "described by": answers.name}
    return Descriptions(
        pd.DataFrame(table, columns=list(TABLE)),
        pd.DataFrame(contexts, columns=list(CONTEXTS)),
        log,
        {**store.provenance, **own},
    )


def find_other(store: Store, one: DrawnContexts, settings: dict[str, Any]) -> DrawnContexts:
    """A random other neuron of the layer that fires, whose description a single neuron's is compared with; the same
    one where none of many does."""
    layer, neuron = one.place
    rng = np.random.default_rng([settings["seed"], 53, layer, neuron])
    some = (draw_contexts(store, (layer, i), **settings) for i in rng.permutation(store.d_mlp(layer))[:TRIED].tolist())
    return next((other for other in some if other.shown and other.place != one.place), one)


def context_rows(one: DrawnContexts, said: list[float], null: list[float]) -> list[tuple[Any, ...]]:
    """Rows of a neuron's contexts, in the order of CONTEXTS."""
    blank, half, found = [nan] * len(one.shown), len(one.held) // 2, []
    parts = ["shown"] * len(one.shown) + ["firing"] * half + ["quiet"] * half
    every = zip(parts, [*one.shown, *one.held], blank + said, blank + null, strict=True)
    for part, each, applies, null_applies in every:
        place = each.sequence, each.position, each.document
        texts = each.tokens[each.at], each.text
        found.append((*one.place, part, each.coefficient, *place, *texts, applies, null_applies))
    return found
