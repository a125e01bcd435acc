"""``Fact``: a subject, a relation and an object, with everything needed to ask for it and to test a rewrite of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..core.errors import InputError, check_text, quoted
from ..core.sheets import Line, Span, line
from ..core.types import checked
from ..show.result import Result
from .records import read_as
from .templates import check_marked_once, only_place

if TYPE_CHECKING:
    pass

ProbeKind = Literal["unrelated", "reverse", "alias"]
KINDS = get_args(ProbeKind)

NEIGHBOURS = "neighbours and no neighbour_prompts"
NEEDS: Mapping[str, tuple[str, ...]] = {
    "ES": ("target_new",),
    "EM": ("target_new",),
    "PS": ("target_new", "paraphrases"),
    "PM": ("target_new", "paraphrases"),
    "NS": ("target_new", NEIGHBOURS),
    "NM": ("target_new", NEIGHBOURS),
    "S": ("target_new", "paraphrases", NEIGHBOURS),
    "NS_plus": ("target_new", NEIGHBOURS),
    "NKL": (NEIGHBOURS,),
}
"""What each metric of an edit is computed from, besides subject, prompt and target_true."""


STRICT = {"extra": "forbid"}
"""Of a class that is read from a file: a field that it does not have is a mistake."""


def check_texts(record: Probe | Fact, title: str, *needed: str) -> None:
    """Raise InputError for half a character, which no tokenizer and no file takes, and for a needed text that is empty,
    or has an empty one in it."""
    for name, value in vars(record).items():
        texts = [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]
        for text in texts:
            check_text(name, text)
        if name in needed and not all(text.strip() for text in texts):
            raise InputError(f"{title}: {f'one of its {name}' if isinstance(value, tuple) else name} is empty")


@checked
@dataclass(frozen=True)
class Probe:
    """One more question about an edit, with the answer that it should have.

    Attributes:
        kind: ``"unrelated"`` (its answer must stay as it is), ``"reverse"`` (from the new target back to the subject)
            or ``"alias"`` (the subject by another name).
        prompt: whole text, which ends where the target begins.
        target: a plain word or some.
        aliases: further right answers, such as other names of the target.
        category: what its data set calls such questions, e.g. ``"Relation_Specificity"``; empty where it has no name.

    Raises: InputError: another kind, an empty prompt, target or alias.
    """

    kind: ProbeKind
    prompt: str
    target: str
    aliases: tuple[str, ...] = ()
    category: str = ""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        check_texts(self, "a probe", "prompt", "target", "aliases")


@checked
@dataclass(frozen=True)
class Fact(Result):
    """One fact. Templates hold ``{}`` for the subject; targets are plain words, the space before them is ours to add.

    Subject, prompt and one of the targets are enough; :meth:`from_text` makes one of a text that holds its subject.

    Attributes:
        subject: as it stands in text, without article.
        relation: its name, e.g. ``"landmark.city"``; empty where it has none.
        prompt: template that ends where the target begins.
        target_true: what is true; empty where nobody says it.
        target_new: a plausible false target to edit towards, or None.
        paraphrases: templates that ask the same in other words.
        neighbours: other subjects with the same relation and the same true target.
        generation_prompts: templates of open-ended beginnings about the subject.
        false_targets: further plausible false targets.
        id: unique within its file.
        neighbour_prompts: whole prompts about other subjects whose true answer is this fact's true target.
        probes: further questions, each with its own answer.
        notes: what a reader changed or left out when it made this fact of a record.
        true_aliases: further right answers as long as nothing is rewritten; new_aliases: other names of target_new.
    """

    subject: str
    relation: str = ""
    prompt: str = ""
    target_true: str = ""
    target_new: str | None = None
    paraphrases: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    generation_prompts: tuple[str, ...] = ()
    false_targets: tuple[str, ...] = field(default=())
    id: str = ""
    neighbour_prompts: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    notes: tuple[str, ...] = ()
    true_aliases: tuple[str, ...] = ()
    new_aliases: tuple[str, ...] = ()

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        title = f"fact {quoted(self.id or self.subject)}"
        given = [name for name in ("relation", "target_true") if getattr(self, name)]
        check_texts(self, title, "subject", *given, "neighbour_prompts", "true_aliases", "new_aliases")
        if not self.target_true and not (self.target_new or "").strip():
            raise InputError(f"{title} has no target: give target_true or target_new")
        for template in (self.prompt, *self.paraphrases, *self.generation_prompts):
            if template.count("{}") != 1:
                raise InputError(f"{title}: {quoted(template)} needs exactly one {{}} for the subject")

    @classmethod
    def from_text(cls, text: str, subject: str, target: str | None = None, *, true: str = "", **more: Any) -> Fact:
        """A fact of a text and where in it its subject stands: ``Fact.from_text("Paris is in", "Paris", " Italy")``.

        Args:
            text: ends where the target begins. It holds the subject once, as a word of its own, or ``{}`` in its place.
            subject: spelled as in the text, but that it may be composed where the text is decomposed (NFC and NFD).
            target: the new one, to edit towards.
            true: the true one. more: further fields.

        Raises: InputError: the subject is not in the text, or there twice, or besides ``{}``; no target.
        """
        check_marked_once(text, subject)
        template = text
        if text.count("{}") != 1:
            begin, end = only_place(text, subject)
            subject, template = text[begin:end], f"{text[:begin]}{{}}{text[end:]}"
        return cls(subject=subject, prompt=template, target_true=true, target_new=target, **more)

    @property
    def name(self) -> str:
        """What messages and seeds call it: its id, or its prompt where it has none."""
        return self.id or self.text

    @property
    def text(self) -> str:
        """The prompt with the subject filled in: ``"The Eiffel Tower is located in the city of"``."""
        return self.ask(self.prompt)

    def ask(self, template: str, subject: str | None = None) -> str:
        """A template with this fact's subject (or another, such as a neighbour) filled in."""
        return template.replace("{}", self.subject if subject is None else subject)

    @property
    def prompts_about_neighbours(self) -> list[str]:
        """Whole prompts whose true answer is this fact's too: its own prompt about neighbours, then those given."""
        return [self.ask(self.prompt, neighbour) for neighbour in self.neighbours] + list(self.neighbour_prompts)

    @property
    def lacks(self) -> dict[str, str]:
        """The metrics that cannot be computed from this record, each with what is missing for it.

        Metrics have the names of the evaluation's columns, probes those of their kinds.
        """
        has = {
            "target_new": bool(self.target_new),
            "paraphrases": bool(self.paraphrases),
            NEIGHBOURS: bool(self.neighbours or self.neighbour_prompts),
        }
        missing = {metric: [need for need in needs if not has[need]] for metric, needs in NEEDS.items()}
        if not self.target_true:
            missing |= {m: ["target_true", *needs] for m, needs in missing.items()}
        found = {metric: ", ".join(f"no {need}" for need in needs) for metric, needs in missing.items() if needs}
        kinds = {probe.kind for probe in self.probes}
        return {**found, **{kind: f"no probe of kind {kind!r}" for kind in KINDS if kind not in kinds}}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Fact:
        """The fact of a record in the project's own format; raises InputError naming the first field that is wrong."""
        fact: Fact = read_as(cls, record)
        return fact

    @property
    def title(self) -> str:
        return self.id or "Fact"

    @property
    def verdict(self) -> Line:
        """The prompt with its true target, and the new one."""
        new = [] if self.target_new is None else [Span(" → "), Span(self.target_new, "soft")]
        return line(f"{self.text} ", Span(self.target_true, "strong"), *new)

    def __repr__(self) -> str:
        return f"Fact({self.name})"


def facts_or_text(facts: Fact | str | Iterable[Fact], subject: str | None, target: str | None) -> list[Fact]:
    """What is to be rewritten: facts, or a text that holds a subject, with its new target.

    Raises: InputError: a text without subject or target, a subject beside facts, and as :meth:`Fact.from_text`.
    """
    if not isinstance(facts, str):
        if subject is not None:
            raise InputError(
                f"facts have subjects of their own: give a text in their place, or leave out {quoted(subject)}"
            )
        return as_facts(facts)
    if subject is None:
        raise InputError(f"a subject is needed to rewrite {quoted(facts)}: which of its words it is about")
    if target is None:
        raise InputError(f"a new target is needed to rewrite {quoted(facts)}: name one, such as target=' Rome'")
    return [Fact.from_text(facts, subject, target.strip())]


Facts = Fact | Iterable[Fact]
"""One fact or some: what commands read of a source."""


def as_facts(facts: Facts, least: int = 1) -> list[Fact]:
    """One fact or some as a list; raises InputError for anything else, or fewer than ``least``."""
    found = [facts] if isinstance(facts, Fact) else list(facts) if isinstance(facts, Iterable) else [facts]
    strange = next((one for one in found if not isinstance(one, Fact)), None)
    if strange is not None or len(found) < least:
        what = "no facts" if strange is None else f"{quoted(strange)} is no fact"
        raise InputError(f"{what}: give a fact or some, which fm.load_facts reads and fm.Fact(…) makes")
    return found


def known_fact(template: str, subject: str, known: Sequence[Fact]) -> Fact | None:
    """The fact of that subject with that prompt; with it among its paraphrases, as one that is asked in that way."""
    own = [fact for fact in known if fact.subject == subject]
    for fact in own:
        if fact.prompt == template:
            return fact
    for fact in own:
        if template in fact.paraphrases:
            others = (fact.prompt, *(text for text in fact.paraphrases if text != template))
            return replace(fact, prompt=template, paraphrases=others)
    return None


def fact_about(
    template: str,
    subject: str,
    known: Sequence[Fact],
    true: str | None,
    own: Callable[[str], str],
    new: str | None = None,
) -> Fact:
    """The known fact that a template and a subject name, else a new one; what else is known of the subject are probes.

    Args:
        true: what is true, where somebody says it. own: what the model itself says after a prompt, where nobody does;
            empty where that is no fact. new: the new target of a new fact.
    """
    found = known_fact(template, subject, known)
    if found is None:
        answer = own(template.replace("{}", subject)) if true is None else true
        found = Fact(subject, "prompt", template, answer.strip() or answer, new)
    elif true is not None:
        found = replace(found, target_true=true.strip() or true)
    asked = {found.text, *map(found.ask, found.paraphrases), *(probe.prompt for probe in found.probes)}
    others = [one for one in known if one.subject == subject and one.text not in asked]
    others = [one for one in others if not found.relation or one.relation != found.relation]
    probes = [Probe("unrelated", one.text, one.target_true) for one in others]
    return replace(found, probes=(*found.probes, *probes))
