"""``filter_known``: which facts a model knows, that is, answers with their true target by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch

from ..core.errors import InputError, counted, quoted
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import KnownBy, checked
from ..models.answers import Answered, answer
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..show.result import Result
from .answers import make_question
from .fact import Fact, Facts, as_facts

AT_ONCE = 256  # facts whose next tokens' probabilities are held at a time
COLUMNS = ("id", "subject", "relation", "target", "answer", "probability", "rank", "known", "reason")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Known(Result):
    """Which of some facts a model knows. Made by :func:`ffnmem.facts.filter_known`.

    Attributes:
        facts: those that it knows, in the order given.
        answers: one row a fact that was asked for: id, subject, relation, target (the true one), answer (the model's
            own first token), probability (of the whole target: the product over its tokens), rank (of its first token,
            from 1 on), known, reason (why not; empty for a known one). A fact that cannot be asked has its reason,
            and neither answer, probability nor rank.
    """

    facts: tuple[Fact, ...]
    answers: pd.DataFrame
    provenance: Provenance

    tables: ClassVar = {"answers": "subject relation target answer probability rank known|reason id"}

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def verdict(self) -> str:
        """How many it knows."""
        return f"{self.provenance.model} knows {len(self):,} of {counted(len(self.answers), 'fact')}."


@checked
def filter_known(
    model: Model,
    facts: Facts,
    *,
    known_by: KnownBy = "target",
    progress: Progress | None = None,
) -> Known:
    """Which facts a model knows: what it says to each.

    A fact is known where the model gives its true target by itself.

    Args:
        model: from :func:`ffnmem.load`.
        facts: asked by their prompts.
        known_by: ``"target"``: every token of the true target is the likeliest one where it stands, so that greedy
            decoding writes it. ``"first"``: its first token is.
        progress: called with "known", the facts asked and all of them.

    Returns: The known facts, and a table of all.

    Raises: UnsupportedModelError: layers that cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), appendix B.1: facts are traced where the prediction is the true attribute.

    Example:
        $ ffnmem known atlas --relation landmark --limit 10
    """
    every = as_facts(facts, least=0)
    layers = PlainLayers(model)
    rows: list[dict[str, Any]] = []
    for begin in range(0, len(every), AT_ONCE):
        rows += ask(layers, every[begin : begin + AT_ONCE], known_by)
        if progress is not None:
            progress("known", len(rows), len(every))
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"probability": float, "rank": "Int64", "known": bool})
    provenance = model.provenance(prepend_bos=model.prepend_bos, known_by=known_by, facts=len(every))
    frame.attrs = {"provenance": provenance.to_dict()}
    known = tuple(fact for fact, row in zip(every, rows, strict=True) if row["known"])
    return Known(known, frame, provenance)


def ask(layers: PlainLayers, facts: Sequence[Fact], known_by: str) -> list[dict[str, Any]]:
    """Rows of the table for some facts, asked in batches."""
    rows: list[dict[str, Any]] = []
    questions, asked = [], []
    for place, fact in enumerate(facts):
        row = {"id": fact.id, "subject": fact.subject, "relation": fact.relation, "target": fact.target_true}
        rows.append({**row, "answer": None, "probability": float("nan"), "rank": pd.NA, "known": False, "reason": ""})
        try:
            questions.append(make_question(layers.model, fact.text, fact.target_true))
            asked.append(place)
        except InputError as error:
            rows[place]["reason"] = str(error)
    found, _ = answer(layers, questions, next_token=True)
    for place, one, said in zip(asked, questions, found, strict=True):
        rows[place].update(judge_answer(layers.model, one.answers[0], said, known_by))
    return rows


def judge_answer(model: Model, target: tuple[int, ...], said: Answered, known_by: str) -> dict[str, Any]:
    """What a model says, as columns of the table."""
    logs = said.next_log
    assert logs is not None
    top = int(logs.argmax())
    rank = 1 + int((logs > logs[target[0]]).sum())
    text = model.token_strings([top])[0]
    known = said.exact[0] if known_by == "target" else top == target[0]
    if known:
        reason = ""
    elif top == target[0]:
        reason = "another token follows the target's first one"
    else:
        reason = f"the model says {quoted(text)}"
    probability = float(torch.exp(said.log_probabilities[0].sum()))
    return {"answer": text, "probability": probability, "rank": rank, "known": known, "reason": reason}
