"""What edited models write in answer: prompts of many kinds, greedy text to a stop, and whether it holds a target."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ..editing.edit import Edit
from ..facts.fact import Fact
from ..facts.templates import mentions
from ..models.answers import written_on
from ..models.replaying import PlainLayers
from .following import prompts_that_follow
from .measuring import EditCase
from .metrics import METRICS, mean
from .texts import Keep, write_with_edits

# Normalised matches, and where an answer stops.

ARTICLES = frozenset({"a", "an", "the"})
DELETED = str.maketrans("", "", string.punctuation + "’‘")
STOP = re.compile(r"\n|(?:[!?]|(?<!\b[^\W\d_])(?<!\b[A-Z][a-z])\.)[\"'”’)\]]*(?=\s)")
"""A full stop behind a single letter, or behind a capital and a small one, is of an abbreviation: D.C., St. Louis."""


def normalise(text: str) -> str:
    """A text in small letters, without punctuation and articles, its words one space apart.

    Punctuation of ASCII and apostrophes go; any other mark, such as a dash, becomes a space. Where nothing but articles
    is there, they stay.

    Source: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016, 1606.05250), which EasyEdit's is a copy of; it
        knows the marks of ASCII alone.
    """
    plain = text.lower().translate(DELETED)
    words = "".join(" " if unicodedata.category(c).startswith("P") else c for c in plain).split()
    return " ".join([word for word in words if word not in ARTICLES] or words)


def is_exactly(text: str, answers: Iterable[str]) -> bool:
    """Whether a normalised text is one of some normalised answers."""
    said = normalise(text)
    return any(said == normalise(answer) for answer in answers)


def holds(text: str, answers: Iterable[str]) -> bool:
    """Whether a normalised text holds one of some normalised answers, as whole words that stand side by side."""
    said = f" {normalise(text)} "
    return any(f" {normalise(answer)} " in said for answer in answers)


def first_answer(text: str) -> str:
    """What is written up to the first stop: the end of a line or of a sentence. Empty lines before it do not count."""
    plain = text.lstrip()
    found = STOP.search(plain)
    return plain[: found.end()].rstrip() if found else plain.rstrip()


# What is asked.

KINDS = ("prompt", "paraphrase", "negated", "attack", "other", "neighbour")
"""The fact's own prompt; the same in other words; its negation; after a mention of the old object; other relations of
the subject; and neighbours."""
NEW = 20  # tokens of an answer at most, or
BEYOND = 4  # more than the longest answer that is looked for
REPEATED = 3  # times that an attack says the old object
FIRST_WORD = re.compile(r"(?:The|A|An|In|On|At|As|By|For|From|To|What|It|Its|Everyone)\b")
AUXILIARY = re.compile(r"\b(?:is|are|was|were|has|have|had|can|could|will|would|does|did)\b(?!.*\{\})")


@dataclass(frozen=True)
class WrittenQuestion:
    """A prompt that is written on, and what is looked for in the answer.

    Attributes:
        kind: one of KINDS.
        question: its number among those of its kind.
        text: the whole prompt. tokens: its ids.
        wanted: answers that are right with the edit; empty where none is known.
        unwanted: answers that should not be given: the old object, or the new target where it has no place.
        room: tokens of an answer at most.
    """

    kind: str
    question: int
    text: str
    tokens: tuple[int, ...]
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]
    room: int


Wording = tuple[str, int, str, tuple[str, ...], tuple[str, ...]]
"""Kind, question, text, wanted, unwanted."""


def negate(template: str) -> list[str]:
    """A template's negations: "It is not true that …", and "not" behind its first auxiliary verb after the subject.

    None of a question, and only the first where there is no such verb.

    Source: 2510.00625: edits that say their target under negation, too.
    """
    if template.rstrip().endswith("?"):
        return []
    found = AUXILIARY.search(template)
    inserted = [] if found is None else [f"{template[: found.end()]} not{template[found.end() :]}"]
    return [f"It is not true that {within_sentence(template)}", *inserted]


def within_sentence(text: str) -> str:
    """A text as it stands inside of a sentence: a first word that is no name has a small letter there."""
    return text[0].lower() + text[1:] if FIRST_WORD.match(text) else text


def write_attacks(text: str, old: str) -> list[str]:
    """A prompt after a mention of the old object: repeated, and in a question.

    Source: "Rep" and "Que" of Xie et al. 2025 (2505.12636); the wordings are ours.
    """
    asked = [] if text.rstrip().endswith("?") else [f"Is it true that {within_sentence(text)} {old}? {text}"]
    return [f"{', '.join([old] * REPEATED)}. {text}", *asked]


@dataclass(frozen=True, eq=False)
class Interview:
    """Asks edited models, and keeps what they write.

    Attributes:
        layers: of the model.
        others: facts by subject, for its other relations.
        followed: by name of a fact, the prompts whose answers its edit changes too.
    """

    layers: PlainLayers
    others: Mapping[str, Sequence[Fact]]
    followed: Mapping[str, set[str]]

    @classmethod
    def of(cls, layers: PlainLayers, facts: Sequence[Fact], others: Iterable[Fact] | None) -> Interview:
        """For facts; the subjects' other relations, and what follows from an edit, are found among these and others."""
        own = {fact.id for fact in facts if fact.id}
        pool = [*facts, *(fact for fact in others or () if not fact.id or fact.id not in own)]
        by_subject: dict[str, list[Fact]] = {}
        for fact in pool:
            by_subject.setdefault(fact.subject, []).append(fact)
        return cls(layers, by_subject, prompts_that_follow(pool))

    def questions(self, case: EditCase) -> tuple[list[WrittenQuestion], int]:
        """What is asked of a case, and how many prompts were left out since the model has no room for the answer."""
        model, found, left = self.layers.model, [], 0
        for kind, question, text, wanted, unwanted in self.wordings(case):
            longest = max(len(model.ids_of(f" {words[0]}")) for words in (wanted, unwanted) if words)
            try:
                tokens = tuple(model.tokenize(text))
            except InputError:
                left += 1
                continue
            room = min(max(NEW, longest + BEYOND), model.n_ctx - len(tokens))
            if room < longest:
                left += 1
                continue
            found.append(WrittenQuestion(kind, question, text, tokens, wanted, unwanted, room))
        return found, left

    def wordings(self, case: EditCase) -> Iterator[Wording]:
        """All that can be asked of a case."""
        fact, numbers = case.fact, dict.fromkeys(KINDS, 0)

        def one(kind: str, text: str, wanted: tuple[str, ...], unwanted: tuple[str, ...]) -> Wording:
            numbers[kind] += 1
            return kind, numbers[kind] - 1, text, wanted, unwanted

        own = case.target == (fact.target_new or "").strip()  # what follows is known of that target alone
        new = (case.target, *(fact.new_aliases if own else ()))
        old = (fact.target_true, *fact.true_aliases)
        templates = (fact.prompt, *fact.paraphrases)
        yield one("prompt", fact.text, new, old)
        for template in fact.paraphrases:
            yield one("paraphrase", fact.ask(template), new, old)
        for template in templates[:2]:
            for text in negate(template):
                yield one("negated", fact.ask(text), (), new)
            for text in write_attacks(fact.ask(template), fact.target_true):
                yield one("attack", text, new, old)
        known = {fact.ask(template) for template in templates} | (self.followed[fact.name] if own else set())
        for text, right in self.other_relations(fact):
            if text not in known:
                yield one("other", text, right, () if holds(" / ".join(right), new) else new)
        for text in fact.prompts_about_neighbours:
            yield one("neighbour", text, old, new)

    def other_relations(self, fact: Fact) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Prompts about a fact's subject in other relations, with the right answers."""
        for other in self.others.get(fact.subject, ()):
            if other.target_true and (other.relation != fact.relation or not fact.relation):
                yield other.text, (other.target_true, *other.true_aliases)
        for probe in fact.probes:
            if probe.kind == "unrelated" and mentions(probe.prompt, fact.subject):
                yield probe.prompt, (probe.target, *probe.aliases)

    def answers(self, asked: Sequence[Sequence[WrittenQuestion]], edits: Sequence[Edit | None]) -> list[list[str]]:
        """What the model writes in answer to the questions of each case, with the case's own edit."""
        owners = [i for i, questions in enumerate(asked) for _ in questions]
        every = [one for questions in asked for one in questions]
        pads = self.layers.model.n_ctx - max((len(one.tokens) + one.room for one in every), default=0)

        def write(batch: list[int], keep: Keep) -> list[str]:
            return self.write([every[at] for at in batch], keep)

        texts = iter(write_with_edits(self.layers, edits, owners, [one.tokens for one in every], pads, write))
        return [[next(texts) for _ in questions] for questions in asked]

    def write(self, questions: Sequence[WrittenQuestion], keep: Keep | None = None) -> list[str]:
        """Greedy answers up to their first stop; ``keep`` as :func:`ffnmem.models.answers.written_on` takes it."""
        decode = self.layers.model.tokenizer.decode

        def text_of(ids: list[int]) -> str:
            return str(decode(ids, skip_special_tokens=True))

        written = written_on(
            self.layers,
            [one.tokens for one in questions],
            [one.room for one in questions],
            ended=lambda _row, ids: STOP.search(text_of(ids).lstrip()) is not None,
            keep=keep,
        )
        return [first_answer(text_of(ids)) for ids in written]


# What is found in it.

MATCHES = ("wanted", "exact", "unwanted")
COLUMNS = (
    "editor", "id", "kind", "question", "prompt", "wanted", "unwanted", "before", "after",
    *(f"{match}_{side}" for match in MATCHES for side in ("before", "after")),
)  # fmt: skip
BETWEEN = " | "  # answers in a table


def match_answer(one: WrittenQuestion, text: str) -> dict[str, float]:
    """Whether an answer holds what is wanted, is exactly that, and holds what is unwanted; NaN where there is none."""
    return {
        "wanted": float(holds(text, one.wanted)) if one.wanted else np.nan,
        "exact": float(is_exactly(text, one.wanted)) if one.wanted else np.nan,
        "unwanted": float(holds(text, one.unwanted)) if one.unwanted else np.nan,
    }


def score_answers(
    questions: Sequence[WrittenQuestion], texts: Sequence[str], metrics: Sequence[str], suffix: str = ""
) -> dict[str, float]:
    """A case's metrics of written answers: means over its questions of a kind, NaN where there are none."""
    found = {}
    matches = [match_answer(one, text) for one, text in zip(questions, texts, strict=True)]
    for name in metrics:
        metric = METRICS[name]
        if not metric.written:
            continue
        values = [
            match[metric.written] for one, match in zip(questions, matches, strict=True) if one.kind == metric.asks
        ]
        found[f"{name}{suffix}"] = mean([value for value in values if not np.isnan(value)])
    return found


def pack_transcript(questions: Sequence[WrittenQuestion], before: Sequence[str], after: Sequence[str]) -> str:
    """A case's transcript as one text, to be kept beside its figures."""
    return json.dumps(
        [
            [one.kind, one.question, one.text, list(one.wanted), list(one.unwanted), old, new]
            for one, old, new in zip(questions, before, after, strict=True)
        ],
        ensure_ascii=False,
    )


def read_transcripts(cases: pd.DataFrame) -> pd.DataFrame:
    """The transcripts of cases: a row a prompt, with the columns COLUMNS."""
    found = []
    for editor, name, text in zip(cases["editor"], cases["id"], cases["written"], strict=True):
        for kind, question, prompt, wanted, unwanted, before, after in json.loads(text) if text else ():
            one = WrittenQuestion(kind, question, prompt, (), tuple(wanted), tuple(unwanted), 0)
            sides = {"before": match_answer(one, before), "after": match_answer(one, after)}
            answers = (BETWEEN.join(wanted), BETWEEN.join(unwanted), before, after)
            figures = (sides[side][match] for match in MATCHES for side in ("before", "after"))
            found.append((editor, name, kind, question, prompt, *answers, *figures))
    return pd.DataFrame(found, columns=list(COLUMNS))


class Written:
    """What is written about some cases with the edits of one editor or several; without edits it is written at once.

    Args:
        interview: asks. cases: of which. metrics: wanted.
    """

    def __init__(self, interview: Interview, cases: Sequence[EditCase], metrics: Sequence[str]) -> None:
        self.interview, self.cases, self.metrics = interview, cases, tuple(metrics)
        asked = [interview.questions(case) for case in cases]
        self.questions = [questions for questions, _ in asked]
        self.left = [left for _, left in asked]
        self.plain = interview.answers(self.questions, [None] * len(self.questions))

    def rows(self, places: Sequence[int], edits: Sequence[Edit | None] | None = None) -> Iterator[dict[str, Any]]:
        """For the cases at some places: metrics after and before, and the transcript.

        Args:
            places: of the cases.
            edits: their own; default those that the model has by now, which were made since.
        """
        asked = [self.questions[i] for i in places]
        if edits is not None and not any(edits):
            texts = [self.plain[i] for i in places]
        else:
            texts = self.interview.answers(asked, edits or [None] * len(asked))
        for i, questions, new in zip(places, asked, texts, strict=True):
            old = self.plain[i]
            yield {
                **score_answers(questions, new, self.metrics),
                **score_answers(questions, old, self.metrics, "_before"),
                "written": pack_transcript(questions, old, new),
                "unasked": self.cases[i].unasked + self.left[i],
            }
