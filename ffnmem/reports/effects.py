"""What an edit does to what a model says: probabilities on prompts, continuations, and drift on unrelated text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..editing.applying import check_fits, with_edit
from ..editing.edit import Edit
from ..editing.per_row import Rows
from ..editing.preparing import weight_norm
from ..errors import InputError, quoted
from ..evaluation.drift import Texts, drift_texts
from ..facts import Fact
from ..facts.asking import target_ids
from ..models import Model
from ..models.generating import generate
from ..models.plain_layers import PlainLayers
from ..models.scoring import Answered, Question, answer

KINDS = ("prompt", "paraphrase", "neighbour", "other")
COLUMNS = (
    "fact", "kind", "prompt", "true", "target", "true_before", "true_after", "target_before", "target_after",
    "answer_before", "answer_after", "answer_before_probability", "answer_after_probability",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A prompt with the two answers whose probabilities are wanted.

    Attributes:
        kind: one of KINDS.
        text: the whole prompt.
        true, target: the true and the new target, plain words.
        fact: the fact's id, or its prompt.
    """

    kind: str
    text: str
    true: str
    target: str
    fact: str


def prompts_of(fact: Fact, target: str) -> list[Asked]:
    """A fact's own prompt, its paraphrases, and prompts about its neighbours."""
    texts = [("prompt", fact.text)]
    texts += [("paraphrase", fact.ask(template)) for template in fact.paraphrases]
    texts += [("neighbour", text) for text in fact.prompts_about_neighbours]
    return [Asked(kind, text, fact.target_true, target, fact.name) for kind, text in texts]


@dataclass(frozen=True, eq=False)
class Effects:
    """An edit seen from outside, the model's weights untouched.

    Attributes:
        edit: made for the model.
        model: with the edit or without it, which stays as it is.

    Raises: ModelError: an edit of another model.
    """

    edit: Edit
    model: Model

    def __post_init__(self) -> None:
        check_fits(self.edit, self.model)

    @cached_property
    def layers(self) -> PlainLayers:
        return PlainLayers(self.model)

    @contextmanager
    def unedited(self) -> Iterator[None]:
        """A block in which the model has not the edit."""
        with with_edit(self.edit, self.model, present=False):
            yield

    def on(self, prompts: Sequence[Asked]) -> pd.DataFrame:
        """What the model says to prompts before and after the edit.

        Probabilities of targets are p(o|x), the exponential of the mean log-probability of the tokens of " o".

        Args:
            prompts: paraphrases and neighbours that are longer than the model reads are left out.

        Returns: one row a prompt: fact, kind, prompt, true, target, true_before, true_after, target_before,
            target_after, answer_before, answer_after (the likeliest next token) and their probabilities.

        Raises: InputError: another prompt that is too long, a target that the model has no tokens for.
        """
        kept: list[Asked] = []
        questions: list[Question] = []
        for one in prompts:
            answers = tuple(target_ids(self.model, word) for word in (one.true, one.target))
            try:
                questions.append(self.question(one.text, answers))
            except InputError:
                if one.kind in ("prompt", "other"):
                    raise
                continue
            kept.append(one)
        with self.unedited():
            rows = Rows([self.edit], [0] * len(questions))
            said = answer(self.layers, questions, rows.changing, start=rows.lowest, next_token=True)
        found = [self.row(one, before, after) for one, before, after in zip(kept, *said, strict=True)]
        return pd.DataFrame(found, columns=list(COLUMNS))

    def question(self, text: str, answers: tuple[tuple[int, ...], ...]) -> Question:
        """A prompt with its answers; raises InputError where they are longer than the model reads."""
        tokens = tuple(self.model.tokenize(text))
        length = len(tokens) + max(map(len, answers)) - 1
        if length > self.model.n_ctx:
            raise InputError(
                f"{quoted(text)} and its answer have {length} tokens; {self.model.name} reads {self.model.n_ctx}"
            )
        return Question(tokens, answers)

    def row(self, one: Asked, before: Answered, after: Answered) -> dict[str, Any]:
        row: dict[str, Any] = {"fact": one.fact, "kind": one.kind, "prompt": one.text}
        row |= {"true": one.true, "target": one.target}
        for name, said in (("before", before), ("after", after)):
            logs = said.next_log
            assert logs is not None
            top = int(logs.argmax())
            row[f"true_{name}"], row[f"target_{name}"] = (math.exp(said.mean_log(i)) for i in (0, 1))
            row[f"answer_{name}"] = self.model.token_strings([top])[0]
            row[f"answer_{name}_probability"] = float(logs[top].exp())
        return row

    def continued(self, texts: Sequence[str], new: int = 20) -> list[tuple[str, str, str]]:
        """Texts with their likeliest continuations before and after; those without room for one are left out."""
        found = []
        for text in texts:
            try:
                tokens = self.model.tokenize(text)
            except InputError:
                continue
            room = min(new, self.model.n_ctx - len(tokens))
            if room < 1:
                continue
            both = []
            for present in (False, True):
                with with_edit(self.edit, self.model, present=present):
                    ids = generate(self.model, tokens, room)
                both.append(self.model.tokenizer.decode(ids, skip_special_tokens=True))
            found.append((text, both[0], both[1]))
        return found

    def drift(self, seed: int = 0) -> dict[str, float]:
        """``drift_kl``, ``drift_perplexity``, and ``texts``: how many name no subject of it; empty if none.

        On texts of the corpus that ships with an embedded model, see :mod:`ffnmem.evaluation.drift`.
        """
        texts = drift_texts(self.model, None, seed)
        if not texts:
            return {}
        subjects = [fact.subject for fact in self.edit.facts]
        with self.unedited():
            reader = Texts(self.layers, texts)
        if not any(reader.counted(subjects)):
            return {}
        with with_edit(self.edit, self.model):
            return {**reader.now(subjects), "texts": sum(reader.counted(subjects))}

    def changes(self) -> list[dict[str, float]]:
        """For each edited layer: layer, rank, norm and change (‖ΔW‖/‖W‖)."""
        with self.unedited():
            norms = [weight_norm(self.model, change.layer) for change in self.edit.changes]
        return [
            {"layer": one.layer, "rank": one.rank, "norm": one.norm, "change": one.norm / norm}
            for one, norm in zip(self.edit.changes, norms, strict=True)
        ]


def moved_neighbours(table: pd.DataFrame) -> list[str]:
    """Of a table of :meth:`Effects.on`, that prompts about neighbours are answered otherwise; empty where none is."""
    neighbours = table[table["kind"] == "neighbour"]
    moved = neighbours[neighbours["answer_before"] != neighbours["answer_after"]]
    if moved.empty:
        return []
    one = moved.iloc[0]
    return [
        f"{len(moved)} of {len(neighbours)} prompts about neighbours are answered otherwise now: "
        f"{quoted(one['prompt'])} with {one['answer_after']!r} instead of {one['answer_before']!r}"
    ]
