"""``Fact``: a subject, a relation and an object, with everything needed to ask for it and to test a rewrite of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any

from ..errors import InputError


@dataclass(frozen=True)
class Fact:
    """One fact. Templates hold ``{}`` for the subject; targets are plain words, the space before them is ours to add.

    Attributes:
        subject: as it stands in text, without article.
        relation: its name, e.g. ``"landmark.city"``.
        prompt: template that ends where the target begins.
        target_true: what is true.
        target_new: a plausible false target to edit towards, or None.
        paraphrases: templates that ask the same in other words.
        neighbours: other subjects with the same relation and the same true target.
        generation_prompts: templates of open-ended beginnings about the subject.
        false_targets: further plausible false targets.
        id: unique within its file.
    """

    subject: str
    relation: str
    prompt: str
    target_true: str
    target_new: str | None = None
    paraphrases: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    generation_prompts: tuple[str, ...] = ()
    false_targets: tuple[str, ...] = field(default=())
    id: str = ""

    def __post_init__(self) -> None:
        for name in ("subject", "relation", "target_true"):
            if not getattr(self, name).strip():
                raise InputError(f"fact {self.id or self.subject!r}: {name} is empty")
        for template in (self.prompt, *self.paraphrases, *self.generation_prompts):
            if template.count("{}") != 1:
                name = self.id or repr(self.subject)
                raise InputError(f"fact {name}: {template!r} needs exactly one {{}} for the subject")

    @property
    def text(self) -> str:
        """The prompt with the subject filled in: ``"The Eiffel Tower is located in the city of"``."""
        return self.ask(self.prompt)

    def ask(self, template: str, subject: str | None = None) -> str:
        """A template with this fact's subject (or another, such as a neighbour) filled in."""
        return template.replace("{}", self.subject if subject is None else subject)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Fact:
        """The fact of a record in the project's own format; raises InputError naming a missing or unknown field."""
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(record) - names)
        missing = sorted({"subject", "relation", "prompt", "target_true"} - set(record))
        if unknown or missing:
            problem = f"unknown fields {unknown}" if unknown else f"missing fields {missing}"
            raise InputError(f"{problem}; a fact has {', '.join(f.name for f in fields(cls))}")
        lists = {f.name for f in fields(cls) if f.default == ()}
        for name, value in record.items():
            if name in lists:
                # A text is a sequence of texts to Python: its letters would become neighbours.
                fits = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
            else:
                fits = isinstance(value, str) or (name == "target_new" and value is None)
            if not fits:
                kind = "a list of texts" if name in lists else "text"
                raise InputError(f"field {name} must be {kind}, not {value!r}")
        values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in record.items()}
        return cls(**values)

    def _repr_html_(self) -> str:
        new = f" &rarr; <i>{escape(self.target_new)}</i>" if self.target_new else ""
        answer = f"<b>{escape(self.target_true)}</b>{new}"
        return f"<span>{escape(self.text)} {answer} <small>({escape(self.id)})</small></span>"
