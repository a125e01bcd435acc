"""What an edit does to what a model says: probabilities on prompts, continuations, and drift on unrelated text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..core.errors import InputError
from ..editing.edit import Edit, row_changes, with_edit
from ..editing.preparing import weight_norm
from ..facts.answers import make_question
from ..facts.fact import Fact
from ..models.answers import Answered, Question, answer, generate
from ..models.hooks import OpenBlock
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..prompts.captures import capture
from .texts import Texts, drift_texts

KINDS = ("prompt", "paraphrase", "neighbour", "unrelated", "other")
COLUMNS = (
    "fact", "kind", "prompt", "true", "target", "true_before", "true_after", "target_before", "target_after",
    "answer_before", "answer_after", "answer_before_probability", "answer_after_probability",
)  # fmt: skip


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt with the two answers whose probabilities are wanted.

    Attributes:
        kind: one of KINDS.
        text: the whole prompt.
        true, target: the true and the new target, plain words; ``true`` is empty where nobody names it.
        fact: the fact's id, or its prompt.
    """

    kind: str
    text: str
    true: str
    target: str
    fact: str


def prompts_of(fact: Fact, target: str) -> list[AskedPrompt]:
    """A fact's own prompt, its paraphrases, prompts about its neighbours, and what else is known."""
    texts = [("prompt", fact.text)]
    texts += [("paraphrase", fact.ask(template)) for template in fact.paraphrases]
    texts += [("neighbour", text) for text in fact.prompts_about_neighbours]
    others = [probe for probe in fact.probes if probe.kind == "unrelated"]
    return [
        *(AskedPrompt(kind, text, fact.target_true, target, fact.name) for kind, text in texts),
        *(AskedPrompt("unrelated", probe.prompt, probe.target, target, fact.name) for probe in others),
    ]


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
        self.edit.check_fits(self.model)

    def targets_of(self, prompt: str) -> tuple[str, str]:
        """The true and the new target of the fact that a prompt names, else of the first one."""
        facts = self.edit.facts
        if not facts:
            raise InputError(f"{self.edit.title} names no facts, so there are no targets to ask for")
        place = next((i for i, fact in enumerate(facts) if fact.subject in prompt), 0)
        return facts[place].target_true, self.edit.targets[place]

    @cached_property
    def layers(self) -> PlainLayers:
        return PlainLayers(self.model)

    def unedited(self) -> OpenBlock:
        """A block in which the model has not the edit."""
        return with_edit(self.edit, self.model, present=False)

    def on(self, prompts: Sequence[AskedPrompt]) -> pd.DataFrame:
        """What the model says to prompts before and after the edit.

        Probabilities of targets are p(o|x), the exponential of the mean log-probability of the tokens of " o".

        Args:
            prompts: paraphrases and neighbours that are longer than the model reads are left out.

        Returns: one row a prompt: fact, kind, prompt, true, target, true_before, true_after, target_before,
            target_after, answer_before, answer_after (the likeliest next token) and their probabilities; of a mixture
            of experts also rerouted, see :meth:`rerouted`.

        Raises: InputError: another prompt that is too long, a target that the model has no tokens for.
        """
        kept: list[AskedPrompt] = []
        questions: list[Question] = []
        for one in prompts:
            try:
                questions.append(make_question(self.model, one.text, *filter(None, (one.target, one.true))))
            except InputError:
                if one.kind in ("prompt", "other"):
                    raise
                continue
            kept.append(one)
        with self.unedited():
            rows = row_changes(self.model, [self.edit], [0] * len(questions))
            said = answer(self.layers, questions, rows.changing, start=rows.lowest, next_token=True)
        found = [self.row(one, before, after) for one, before, after in zip(kept, *said, strict=True)]
        table = pd.DataFrame(found, columns=list(COLUMNS))
        return table.assign(rerouted=[self.rerouted(one.text) for one in kept]) if self.model.experts else table

    def rerouted(self, text: str) -> float:
        """The share of a prompt's tokens, over all layers of experts behind the first edited one, that are routed to
        other experts with the edit; NaN where there is no such layer."""
        chosen = []
        for present in (False, True):
            with with_edit(self.edit, self.model, present=present):
                found = capture(self.model, text).routing()
            behind = found[found["layer"] > min(change.layer for change in self.edit.changes)]
            chosen.append(behind.groupby(["layer", "position"])["expert"].apply(frozenset))
        return float((chosen[0] != chosen[1]).mean()) if len(chosen[0]) else math.nan

    def row(self, one: AskedPrompt, before: Answered, after: Answered) -> dict[str, Any]:
        row: dict[str, Any] = {"fact": one.fact, "kind": one.kind, "prompt": one.text}
        row |= {"true": one.true, "target": one.target}
        for name, said in (("before", before), ("after", after)):
            logs = said.next_log
            assert logs is not None
            top = int(logs.argmax())
            row[f"true_{name}"] = math.exp(said.mean_log(1)) if one.true else math.nan
            row[f"target_{name}"] = math.exp(said.mean_log(0))
            row[f"answer_{name}"] = self.model.token_strings([top])[0]
            row[f"answer_{name}_probability"] = float(logs[top].exp())
        return row

    def continued(self, texts: Sequence[str], new: int = 20) -> list[tuple[str, str, str]]:
        """Texts with their likeliest continuations before and after; those without room for one are left out."""
        found: list[Any] = []
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
        """``texts``, how many name no subject of it, ``drift_kl``, ``drift_perplexity``; empty if none.

        On texts of the corpus that ships with an embedded model, see :mod:`ffnmem.evaluation.texts`.
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
            return {"texts": sum(reader.counted(subjects)), **reader.now(subjects)}

    def changes(self) -> pd.DataFrame:
        """For each edited layer: layer, rank, norm and of_norm (‖ΔW‖/‖W‖)."""
        with self.unedited():
            norms = [weight_norm(self.model, change.layer) for change in self.edit.changes]
        rows = [
            (one.layer, one.rank, one.norm, one.norm / norm) for one, norm in zip(self.edit.changes, norms, strict=True)
        ]
        return pd.DataFrame(rows, columns=["layer", "rank", "norm", "of_norm"])
