"""What an edit does to what a model says: probabilities on prompts, continuations, and drift on unrelated text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..core.errors import InputError, counted, quoted
from ..core.json_values import plain
from ..core.number_text import format_probability, format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Content, Line, Origin, Sheet, Span, Style, Table, line, rows, token
from ..editing.differing import EditDiff
from ..editing.edit import Edit, row_changes, with_edit
from ..editing.preparing import weight_norm
from ..facts.answers import make_question
from ..facts.fact import Fact
from ..models.answers import Answered, Question, answer, generate
from ..models.hooks import OpenBlock
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..prompts.captures import capture
from ..show.result import BRIEF, Result
from .texts import Texts, drift_texts

LAYER_BY = {
    "name": "published for the model's name",
    "shipped": "the best one of a sweep, which ships with ffnmem",
    "depth": "by the model's depth, for want of anything better",
    "tried": "the first tried where the edit is reached; in that by the model's depth it is not",
}
"""Of a layer that nobody gave, how it was chosen."""
TITLES = {
    "prompt": "the prompt",
    "paraphrase": "the same in other words",
    "neighbour": "about neighbours",
    "unrelated": "what else is known",
    "other": "another prompt",
}
ROUTED = {
    "prompt": "the prompt",
    "paraphrase": "paraphrases",
    "neighbour": "prompts about neighbours",
    "unrelated": "what else is known",
    "other": "other prompts",
}
MEASURED = {
    "steps": "{:.0f} steps",
    "loss": "loss {:.3g}",
    "delta": "δ {:.2g} of what was written",
    "stretch": "edit vector lengthened × {:.3g}",
    "rarity": "rarity {:.2g}",
    "tried": "tried, with the target’s probability: {}",
}
MOST = 4  # facts whose numbers are listed
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

    def measure(
        self,
        texts: Sequence[str] | None = None,
        top: int = 8,
        seed: int = 0,
        more: Sequence[AskedPrompt] = (),
        most: int | None = None,
        progress: Progress | None = None,
    ) -> EditEffects:
        """What the edit does, all in all.

        Args:
            texts: prompts; by default those of its facts, of their paraphrases and neighbours.
            top: how many neurons. seed: of the texts for drift.
            more: further prompts. most: of how many facts, by default, prompts are asked.
            progress: called as ("effects", done, 4) before each of its steps.

        Raises: InputError: prompts for an edit that names no facts. Otherwise as :meth:`on`.
        """
        facts = list(zip(self.edit.facts, self.edit.targets, strict=True))
        if texts is None:
            asked = [one for fact, target in facts[:most] for one in prompts_of(fact, target)]
        else:
            asked = [AskedPrompt("other", text, *self.targets_of(text), fact="") for text in texts]
        steps: list[Callable[[], Any]] = [
            lambda: self.on([*asked, *more]),
            self.changes,
            lambda: self.drift(seed),
            lambda: self.edit.diff(self.model, asked[0].text, top) if asked and facts else None,
        ]
        found: list[Any] = []
        for done, step in enumerate(steps):
            if progress is not None:
                progress("effects", done, len(steps))
            found.append(step())
        return EditEffects(self.edit, *found)

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
        """``drift_kl``, ``drift_perplexity``, and ``texts``: how many name no subject of it; empty if none.

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
            return {**reader.now(subjects), "texts": sum(reader.counted(subjects))}

    def changes(self) -> list[dict[str, float]]:
        """For each edited layer: layer, rank, norm and change (‖ΔW‖/‖W‖)."""
        with self.unedited():
            norms = [weight_norm(self.model, change.layer) for change in self.edit.changes]
        return [
            {"layer": one.layer, "rank": one.rank, "norm": one.norm, "change": one.norm / norm}
            for one, norm in zip(self.edit.changes, norms, strict=True)
        ]


@dataclass(frozen=True, eq=False, repr=False)
class EditEffects(Result):
    """What an edit does to a model. Made by :meth:`Effects.measure`.

    Attributes:
        edit: which.
        prompts: one row a prompt, as :meth:`Effects.on` has them.
        changes: of its layers. drift: on other text; empty where there is none.
        memories: the neurons whose contribution changed most on the first prompt; None for an edit without facts.
        warnings: what is doubtful, a line each.
    """

    edit: Edit
    prompts: pd.DataFrame
    changes: Sequence[Mapping[str, Any]]
    drift: Mapping[str, float]
    memories: EditDiff | None
    warnings: tuple[str, ...] = ()

    main = "prompts"
    in_json = "edit prompts changes drift warnings memories"

    @property
    def provenance(self) -> Provenance:
        """Of the edit."""
        return self.edit.provenance

    def summary(self) -> str:
        return f"{self.edit.title}; {counted(len(self.prompts), 'prompt')}"

    def brief(self, top: int = BRIEF) -> dict[str, Any]:
        """As :meth:`to_dict`, with the edit by what it is called, and of the memories those that changed most."""
        edit = {name: getattr(self.edit, name) for name in ("title", "digest", "method", "fingerprint")}
        edit |= {"reached": not self.edit.unreached, "numbers": plain(self.edit.numbers)}
        return {**self.to_dict(), "edit": edit, "memories": None if self.memories is None else self.memories.brief(top)}

    def sheet(self, promoted: Mapping[tuple[int, int], Sequence[str]] | None = None) -> Sheet:
        """What was edited, what the model says to each prompt before and after, and the neurons that changed most.

        Args:
            promoted: the tokens that each of these neurons promotes after the edit, by (layer, neuron).
        """
        return Sheet.of(
            self.heading(),
            *prompt_tables(self.prompts),
            None if self.memories is None else self.memories.neuron_table(promoted),
            Origin({**self.edit.provenance.to_dict(), "edit": self.edit.digest}),
        )

    def heading(self) -> dict[str, Content | None]:
        """What was edited, by how much, and how far other text moved."""
        within = f", in expert {self.edit.settings['expert']} alone" if "expert" in self.edit.settings else ""
        layers = [
            f"layer {c['layer']} by {format_share(c['change'])} of its norm, rank {c['rank']}{within}"
            for c in self.changes
        ]
        drift = self.drift and (
            f"KL {self.drift['drift_kl']:.2g} nats a token, perplexity × {self.drift['drift_perplexity']:.4f} "
            f"on {counted(int(self.drift['texts']), 'text')} about other things"
        )
        reached = "reached" in self.edit.numbers and not self.edit.unreached
        alone = set(self.prompts["kind"]) == {"prompt"}
        layer_by = str(self.edit.settings.get("layer_by"))
        return {
            "edit": self.edit.title,
            "reached": "yes: the edited model gives the target as its likeliest answer" if reached else None,
            "besides": "not asked: paraphrases, neighbours, other facts (--facts, --neighbour)" if alone else None,
            "changes": tuple(map(line, layers)),
            "layer": "the best of those tried; the edit is reached in none"
            if layer_by == "tried" and self.edit.unreached
            else LAYER_BY.get(layer_by),
            "made": tuple(self.measured()) or None,
            "drift": drift or None,
            "routing": self.routing() or None,
        }

    def routing(self) -> str:
        """How many tokens of the prompts go to other experts with the edit; empty where no router stands behind it."""
        if "rerouted" not in self.prompts or self.prompts["rerouted"].isna().all():
            return ""
        shares = self.prompts.groupby("kind", sort=False)["rerouted"].mean()
        parts = [f"{format_share(share)} of the tokens of {ROUTED[str(kind)]}" for kind, share in shares.items()]
        return f"{', '.join(parts)} are routed to other experts in the layers behind"

    def measured(self) -> Iterator[Line]:
        """What the editor measured of each of the first facts."""
        for row in self.edit.numbers.head(MOST).to_dict("records"):
            row = {name: value for name, value in row.items() if value == value and (name, value) != ("stretch", 1.0)}
            parts = [words.format(row[name]) for name, words in MEASURED.items() if name in row]
            if "neurons" in row:
                parts.append(f"neurons {row['neurons']}")
            if parts:
                yield line(", ".join(parts))


def prompt_tables(prompts: pd.DataFrame) -> list[Table]:
    """What the model says to the prompts of each fact, before and after; what else is known has answers of its own."""
    apart = prompts["kind"] == "unrelated"
    facts = prompts[~apart].groupby(["fact", "true", "target"], sort=False)
    others = prompts[apart].groupby(["fact", "target"], sort=False)
    return [
        *(prompt_table(some, str(true), str(target)) for (_, true, target), some in facts),
        *(prompt_table(some, "what is known", str(target)) for (_, target), some in others),
    ]


def prompt_table(prompts: pd.DataFrame, true: str, target: str) -> Table:
    """A row a prompt: the probabilities of both targets before and after, and the likeliest token."""
    named = {name: title for name, title in (("true", true), ("target", target)) if title}
    shown = rows(Column("prompt", wraps=True), *(Column(title, left=False) for title in named.values()), "says")
    for kind, some in prompts.groupby("kind", sort=False):
        if str(kind) != "other" or prompts["kind"].nunique() > 1:
            shown.add(Span(TITLES[str(kind)], "soft"))
        for row in some.to_dict("records"):
            moves = [format_move(row[f"{name}_before"], row[f"{name}_after"]) for name in named]
            shown.add(row["prompt"], *moves, format_answers(row["answer_before"], row["answer_after"]))
    return shown.table()


def format_move(before: float, after: float) -> Line:
    """A probability before and after; coloured where it moved by a percent or more."""
    style: Style = "" if abs(after - before) < 0.01 else "adds" if after > before else "takes"
    return line(f"{format_probability(before)} → ", Span(f"{format_probability(after):>5}", style))


def format_answers(before: str, after: str) -> Line:
    """The likeliest token, and what it becomes."""
    first = token(before, limit=12)
    return line(first) if before == after else line(first, " → ", token(after, "strong", 12))


def moved_neighbours(table: pd.DataFrame) -> list[str]:
    """Of a table of :meth:`Effects.on`, that prompts which should stay are answered otherwise; empty where none is."""
    found = []
    for kind, words in (("neighbour", "about neighbours"), ("unrelated", "about what else is known")):
        asked = table[table["kind"] == kind]
        moved = asked[asked["answer_before"] != asked["answer_after"]]
        if len(moved):
            one = moved.iloc[0]
            found.append(
                f"{len(moved)} of {len(asked)} prompts {words} are answered otherwise now: {quoted(one['prompt'])} "
                f"with {one['answer_after']!r} instead of {one['answer_before']!r}"
            )
    return found
