"""``describe``: words for neurons, and how well they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, RULES
from ..core.errors import InputError, check_choice, counted
from ..core.json_values import plain
from ..core.neuron_names import NeuronName, place_of
from ..core.progress import Progress
from ..core.sheets import Column, Origin, Sheet, Table, rows
from ..core.token_text import printable
from ..core.types import DESCRIPTION_SCORES, CoefficientSign, Seed, Whole, at_least, checked
from ..models.model import Model
from ..scanning.neuron import Neuron
from ..scanning.store import Store
from ..show.result import Result
from . import prompts
from .answers import Answers, Asker, Question, name_asker
from .endpoint import Endpoint
from .extracts import BANDS, FIRES, MARKED, QUIET, ContextSettings, NeuronContexts, draw
from .rules import Rule, Vocabulary, learn_rule
from .scoring import TOGETHER, Trial, compute_score, judge_by_asking, judge_by_rule, make_trial_groups

CONTEXT = 16
DEAD, FEW, SILENT = "never fires", "fires in too few contexts", "no usable answer"
TABLE = (
    "layer", "neuron", "sign", "description", "why",
    *(f"{score}{end}" for score in DESCRIPTION_SCORES for end in ("", "_low", "_high")), "n", "shown", "unanswered",
)  # fmt: skip
EXTRACTS = ("layer", "neuron", "part", "band", "coefficient", "sequence", "position", "document", "token", "context")
TRIALS = ("layer", "neuron", "score", "sequence", "position", "band", "truth", "right")
ANSWERS = ("asked", "layer", "neuron", "asker", "messages", "answer")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Descriptions(Result):
    """Words for neurons. Made by :func:`ffnmem.describe`.

    Attributes:
        model: the name of the one described.
        table: one row a neuron: layer, neuron, sign (of the coefficients that are described), description (empty where
            there is none), why (there is none), and for each score its value with ``_low`` and ``_high`` (95%; NaN
            where it was not asked for or nothing could be judged), n (contexts held back, firing and quiet), shown
            (contexts that the description is made of), unanswered (trials without a usable answer, which no score
            counts).
        extracts: one row a context: layer, neuron, part ("shown", "tested", "quiet"), band (by strength, 0 the
            strongest; −1 quiet), coefficient, sequence, position, document, token, context.
        trials: one row for each thing judged: layer, neuron, score, trial, sequence, position, band, truth (1 or 0; of
            an intruder its place), right (1, 0, a share, or NaN without a usable answer).
        answers: one row a question: asked ("description" or a score), layer, neuron, asker, messages (JSON), answer;
            none where nobody was asked.
        provenance: plain values; ``describe`` has who explained and who judged.
    """

    model: str
    table: pd.DataFrame
    extracts: pd.DataFrame
    trials: pd.DataFrame
    answers: pd.DataFrame
    provenance: dict[str, Any]

    main = "table"

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

    def on(self, neuron: Neuron) -> Neuron:
        """A neuron of :meth:`Store.neuron` with its description on its card, of a gated one with the side that it is
        of. Raises InputError: not asked for."""
        row = self.row(neuron.layer, neuron.neuron)
        side = f" ({row['sign']} side)" if neuron.gated and row["description"] else ""
        return replace(neuron, description=f"{row['description']}{side}")

    @property
    def scores(self) -> list[str]:
        """Those that were asked for."""
        return list(self.provenance["describe"]["scores"])

    @property
    def origin(self) -> dict[str, Any]:
        """Who found the words, and who judged them where they were judged."""
        own = self.provenance["describe"]
        return {"explained by": own["explainer"], **({"judged by": own["judge"]} if self.scores else {})}

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON: the neurons, the questions and answers, and the provenance."""
        return {
            "neurons": plain(self.naming_experts(self.table[:top])),
            "answers": plain(self.answers),
            "provenance": self.provenance,
        }

    def summary(self) -> str:
        said = [f"{row.layer}.{row.neuron} {row.description or row.why}" for row in self.table.head(3).itertuples()]
        return printable(f"{counted(len(self.table), 'neuron')} of {self.model}: {'; '.join(said)}")

    def sheet(self) -> Sheet:
        """The descriptions with their scores, and who made them."""
        own = self.provenance["describe"]
        rest = {name: value for name, value in self.provenance.items() if name not in ("describe", "seed", "ffnmem")}
        origin = {**rest, **self.origin, "seed": own["seed"], "ffnmem": self.provenance["ffnmem"]}
        return Sheet.of(self.listing(), Origin(origin), title=f"Descriptions of neurons of {self.model}")

    def listing(self) -> Table:
        """A row a neuron; its side where any is the negative one."""
        sides = (self.table["sign"] == "negative").any()
        shown = rows(
            Column("neuron", "neuron"), *(["side"] if sides else []), Column("description", wraps=True),
            *(Column(score, left=False) for score in self.scores), Column("contexts", "count"),
        )  # fmt: skip
        for row in self.table.to_dict("records"):
            ends = [within(*(row[f"{score}{end}"] for end in ("", "_low", "_high"))) for score in self.scores]
            words = printable(row["description"]) or f"– ({row['why']})"
            shown.add((row["layer"], row["neuron"]), *([row["sign"]] if sides else []), words, *ends, row["n"])
        chance = {"detection": "50%", "fuzzing": "50%", "intruder": "20%"}
        told = ", ".join(f"{score} {chance[score]}" for score in self.scores)
        caption = f"of contexts that were not shown; 95% intervals; by chance {told}" if told else ""
        return shown.table(caption=caption)


def within(share: float, low: float, high: float) -> str:
    """A score with its interval, short."""
    return f"{share:.0%} [{low:.0%}, {high:.0%}]" if share == share else "–"


@checked
def describe(
    store: Store,
    neurons: NeuronName | Iterable[NeuronName],
    explainer: str | Callable[..., str] = RULES,
    *,
    judge: str | Callable[..., str] | None = None,
    scores: str | Iterable[str] = (),
    model: Model | None = None,
    sign: CoefficientSign | None = None,
    shown: Annotated[int, at_least(BANDS)] = CONTEXTS_SHOWN,
    tested: Annotated[int, at_least(BANDS)] = CONTEXTS_TESTED,
    context: Whole = CONTEXT,
    out: str | Path | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Descriptions:
    """Say in words what neurons fire at, and how well that fits contexts that were not shown.

    Contexts are drawn from every band of strength; some are shown to the explainer, others, of other documents and
    texts, are held back for the scores. Nothing is sent anywhere unless an :class:`ffnmem.describing.Endpoint` is
    given.

    Args:
        store: from :func:`ffnmem.scan`.
        neurons: one or several, such as ``"3.17"`` or ``[(3, 17), (5, 97)]``.
        explainer: "rules" (what the tokens have in common that it fires at; asks nobody), an
            :class:`ffnmem.describing.Endpoint`, or a function: given the messages of a chat, a list of
            ``{"role": …, "content": …}``, it returns the answer as a text, empty to refuse.
        judge: who is asked for the scores, likewise; default: the explainer. "rules" judges by the trigger tokens that
            the explainer "rules" found, and no other descriptions.
        scores: any of "detection", "fuzzing" and "intruder"; default none.
        model: the one scanned; needed for scores and for all explainers but "rules". Default: loaded by its name.
        sign: of "positive" or "negative" coefficients; default: those of each neuron's stronger side.
        shown, tested: contexts that are shown, and held back, of each neuron, at most; of quiet ones as many are held
            back.
        context: tokens on each side of the one that fires most.
        out: a file of JSON lines that keeps questions and answers as they come. What it has is not asked again, so the
            same call goes on where one was stopped; a function is known by its name.
        seed: of what is drawn.
        progress: called as (phase, done, total) with the phases "shade" (tokens of text), "explain" and "judge"
            (questions).

    Returns: :class:`Descriptions`.

    Raises:
        OutOfRangeError: no such neuron. InputError: an unknown explainer, judge or score, numbers out of range, a file
        that holds no answers. ModelError: the model is needed and cannot be loaded by its name. EndpointError: an
        endpoint that does not answer; what was answered is in ``out``.

    Source: Bills et al. 2023, "Language models can explain neurons in language models"; Paulo et al. 2024 (delphi) for
        detection and fuzzing.
    """
    places = store.places(neurons)
    chosen = {
        check_choice("score", one, DESCRIPTION_SCORES) for one in ([scores] if isinstance(scores, str) else scores)
    }
    wanted = [score for score in DESCRIPTION_SCORES if score in chosen]
    by, judged_by = resolve_asker("explainer", explainer), resolve_asker("judge", explainer if judge is None else judge)
    if judged_by is None and by is not None and wanted:
        raise InputError(
            "the judge 'rules' knows what the explainer 'rules' found and no other description: "
            "give an endpoint or a function as judge"
        )
    settings = ContextSettings(sign, shown, tested, context, seed)
    answers = Answers(out)
    if model is not None:
        store.check_model(model)
    elif wanted or by is not None:
        model = store.model_for("coefficients at every token of a context")
    for one in (by, judged_by):
        if isinstance(one, Endpoint) and not answers.known:
            one.key()  # one that is missing is told before any work is done for nothing
    drawn = draw(store, places, model, settings, progress)
    rules: list[Rule] = []
    if by is None:
        vocabulary = Vocabulary.of(store)
        rules = [learn_rule(one, vocabulary) for one in drawn]
        described = [rule.words if one.shown else "" for one, rule in zip(drawn, rules, strict=True)]
    else:
        described = ask_descriptions(drawn, by, answers, progress)
    groups = [
        [group for score in wanted for group in make_trial_groups(one, score, seed)] if text else []
        for one, text in zip(drawn, described, strict=True)
    ]
    if judged_by is not None:
        pairs = [(group, text) for some, text in zip(groups, described, strict=True) for group in some]
        judge_by_asking(pairs, judged_by, answers, progress)
    elif rules:
        for some, rule in zip(groups, rules, strict=True):
            judge_by_rule(some, rule)
    trials = [[trial for group in some for trial in group] for some in groups]
    table = [table_row(*one, wanted) for one in zip(drawn, described, trials, strict=True)]
    judged = pd.DataFrame([trial.row() for some in trials for trial in some], columns=list(TRIALS))
    judged.insert(3, "trial", judged.groupby(["layer", "neuron", "score"]).cumcount())
    provenance = {
        **store.provenance,
        "describe": {
            "explainer": RULES if by is None else name_asker(by),
            "judge": (RULES if judged_by is None else name_asker(judged_by)) if wanted else None,
            "scores": wanted,
            **asdict(settings),
            "fires": FIRES,
            "quiet": QUIET,
            "marked": MARKED,
            "together": TOGETHER,
        },
    }
    return Descriptions(
        store.model,
        pd.DataFrame(table, columns=list(TABLE)),
        pd.DataFrame([row for one in drawn for row in extract_rows(one)], columns=list(EXTRACTS)),
        judged,
        pd.DataFrame(answers.rows, columns=list(ANSWERS)),
        provenance,
    )


def resolve_asker(what: str, given: str | Callable[..., str]) -> Asker | None:
    """Who is asked; None for the rules. Raises InputError."""
    if isinstance(given, str):
        if given != RULES:
            raise InputError(
                f"{what} {given!r} is unknown: give 'rules', fm.describing.Endpoint(url, model), or a function"
            )
        return None
    return given


def ask_descriptions(
    drawn: Sequence[NeuronContexts], by: Asker, answers: Answers, progress: Progress | None
) -> list[str]:
    """The descriptions that somebody gives; empty where a neuron never fires, or the answer has none."""
    there = [one for one in drawn if one.shown]
    questions = [Question("description", one.layer, one.neuron, prompts.explain(one.shown)) for one in there]
    found = answers.ask(by, questions, progress, "explain")
    said = {(one.layer, one.neuron): prompts.find_description(text) for one, text in zip(there, found, strict=True)}
    return [said.get((one.layer, one.neuron), "") for one in drawn]


def table_row(
    drawn: NeuronContexts, description: str, trials: Sequence[Trial], wanted: Sequence[str]
) -> dict[str, Any]:
    """A row of the table."""
    why = "" if description else DEAD if drawn.largest <= 0 else SILENT if drawn.shown else FEW
    row: dict[str, Any] = {
        "layer": drawn.layer, "neuron": drawn.neuron, "sign": drawn.sign, "description": description, "why": why,
    }  # fmt: skip
    for score in DESCRIPTION_SCORES:
        found = compute_score(trials, score) if score in wanted else (float("nan"),) * 3
        row |= dict(zip((score, f"{score}_low", f"{score}_high"), found, strict=True))
    unanswered = sum(trial.right != trial.right for trial in trials)
    return row | {"n": len(drawn.tested) + len(drawn.quiet), "shown": len(drawn.shown), "unanswered": unanswered}


def extract_rows(drawn: NeuronContexts) -> Iterator[tuple[Any, ...]]:
    """Rows of the contexts, in the order of EXTRACTS."""
    for part in ("shown", "tested", "quiet"):
        for one in getattr(drawn, part):
            place = one.sequence, one.position, one.document
            yield (
                *(drawn.layer, drawn.neuron, part, one.band, one.coefficient),
                *(*place, one.tokens[one.at], "".join(one.tokens)),
            )
