"""Edits kept one after another in one model, what each leaves, and what becomes of them and of everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..core.errors import FileError, InputError, counted
from ..core.files import make_folder
from ..core.folders import Kind
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.run_folders import RunFolder
from ..core.sheets import Table
from ..core.types import (
    Count,
    EvaluationProtocol,
    FactOrder,
    OrdinaryText,
    OtherFacts,
    OutFolder,
    Positive,
    Seed,
    checked,
)
from ..editing.edit import Edit
from ..editing.ledger import set_edits
from ..editing.moments import SecondMoment
from ..editing.preparing import Moment, Settings, weight_norm
from ..facts.fact import Fact, Facts, as_facts
from ..facts.listing import shuffle_facts
from ..models.hooks import OpenBlock
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..show.result import Result
from .editors import OwnEditor, ProtectedKeys, Setup, check_together, choose_editors, keys_in, set_up
from .evaluating import (
    Bench,
    case_frame,
    check_evaluate,
    describe_case,
    failure_of,
    is_unlooked,
    numbers_of,
    other_facts,
    reach_of,
)
from .measuring import CaseAnswers, EditCase, ask_cases, measure
from .metrics import COLUMNS, METRICS, NO_TEXT, NUMBERS, check_metrics, explain_missing, summarise
from .scores import (
    AROUND,
    DRAWS,
    DRIFTED,
    MAIN,
    SAID,
    SIZED,
    missing_table,
    score_tables,
)
from .texts import DRIFT, Texts, drift_texts, mentions_none
from .written import COLUMNS as TRANSCRIPT
from .written import Written, read_transcripts

STEPS = ("edits", "made", "loss", "norm")
EDITS = Kind("manifest.json", "ffnmem edits", 1, "the edits", subfolders=("edits", "steps", "checkpoints"))
DECAY = "decay.zip"  # in their folder, once all are made
AT = (1, 10, 100, 1000)
COLLAPSE = 1.0
"""Nats a token by which the loss on ordinary text rises where a model collapses: it is e times as perplexed. Single
edits of atlas move it by hundredths."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Decay(Result):
    """What becomes of edits as more of them are made. Made by :func:`ffnmem.evaluation.sequential`.

    Attributes:
        frame: columns edits (facts edited so far, one after another), metric, mean, low, high, n: means over these
            facts with 95% bootstrap intervals, as in :attr:`Scores.summary`; drift is one number, against the unedited
            model, over the n texts that mention none of the facts' subjects; so are drift_loss and norm, the loss and
            the norm of ``steps``.
        cases: one row a checkpoint and fact: edits, then as :attr:`Scores.cases`.
        editor: its name.
        settings: what was asked for. provenance: of the unedited model.
        steps: one row an edit, the first of no edit: edits (facts edited so far), made (whether this edit was), loss
            (on the texts that mention none of the facts' subjects, mean −log p a token in nats; NaN without such texts)
            and norm (‖W‖ over that of the unedited model, of the edited layer where it is farthest from 1).
        collapse: by how many nats a token the loss must have risen for ``collapsed``.
    """

    frame: pd.DataFrame
    cases: pd.DataFrame
    editor: str
    settings: Mapping[str, Any]
    provenance: Provenance
    steps: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(STEPS)))
    collapse: Positive = COLLAPSE

    heading = "editor manner collapsed"
    tables: ClassVar = {
        "overview": "",
        "transcripts": "edits kind id prompt before after",
        "failures": "id failure",
        "not_measured": "metrics reason",
        "steps": "|*",
        "made_with": "|*",
    }
    main, only_shown, in_full = "frame", "overview", "frame steps"

    @property
    def collapsed(self) -> int | None:
        """The first edit after which the loss had risen by more than ``collapse``; None where it never had.

        A loss that is no number any more has. None, too, where there was no loss to measure: see ``steps``.
        """
        loss = self.steps["loss"]
        if loss.empty or not math.isfinite(loss.iloc[0]):
            return None
        broken = self.steps[~(loss - loss.iloc[0] <= self.collapse)]
        return None if broken.empty else int(broken["edits"].iloc[0])

    @property
    def missing(self) -> dict[str, str]:
        """The metrics that no fact gives a value, and why."""
        found = explain_missing(self.frame, self.cases)
        rows = self.frame[self.frame["metric"] == "drift_loss"]
        return found | {"drift_loss": NO_TEXT} if len(rows) and not rows["n"].any() else found

    @property
    def failures(self) -> pd.DataFrame:
        """The facts that were not edited, or not reached when they were, in the order of the edits.

        Columns id, subject, target, failure.
        """
        last = self.cases[self.cases["edits"] == self.cases["edits"].max()]
        rows = last[last["failure"] != ""]
        return rows[["id", "subject", "target", "failure"]].reset_index(drop=True)

    @property
    def transcripts(self) -> pd.DataFrame:
        """What was written in answer at each checkpoint: edits, then as :attr:`Scores.transcripts`; else empty."""
        if "written" not in self.cases:
            return pd.DataFrame(columns=["edits", *TRANSCRIPT])
        tables = [read_transcripts(rows).assign(edits=edits) for edits, rows in self.cases.groupby("edits", sort=False)]
        return pd.concat(tables, ignore_index=True)[["edits", *TRANSCRIPT]]

    @property
    def verdict(self) -> str:
        """Where the model collapsed, with the loss before all edits and then; or that it did not, or nobody knows."""
        loss = self.steps.set_index("edits")["loss"]
        if loss.empty or math.isnan(loss.iloc[0]):
            return "Whether the model collapsed is not known: there is no ordinary text to read (give drift)."
        if self.collapsed is None:
            return (
                f"The model does not collapse within {counted(int(loss.index[-1]), 'edit')}: its loss on ordinary text "
                f"was {loss.iloc[0]:.2f}, and is at most {loss.max():.2f} nats a token."
            )
        return (
            f"The model collapses at edit {self.collapsed:,}: its loss on ordinary text goes from {loss.iloc[0]:.2f} "
            f"to {loss.loc[self.collapsed]:.2f} nats a token."
        )

    @property
    def manner(self) -> str:
        """How the edits were made."""
        together = self.settings.get("together", 1)
        return "one edit after another" if together == 1 else f"one edit of {together:,} facts after another"

    @property
    def overview(self) -> dict[str, Table]:
        """Means over the facts edited so far, above their intervals."""
        return score_tables(self.frame, "edits", SAID, AROUND, (MAIN, "Scores, in percent", ""), SIZED, DRIFTED)

    @property
    def not_measured(self) -> pd.DataFrame:
        """The metrics that no fact gives a value, and why."""
        return missing_table(self.missing)

    @property
    def made_with(self) -> pd.DataFrame:
        """What was asked for."""
        return pd.DataFrame([*self.settings.items()], columns=["setting", "is"], dtype=object)


@checked
def sequential(
    model: Model,
    facts: Facts,
    editor: str | OwnEditor = "rome",
    at: Sequence[Count] | None = None,
    *,
    together: Count = 1,
    order: FactOrder = "given",
    target: str | None = None,
    metrics: Iterable[str] | None = None,
    layer: LayerName | None = None,
    seed: Seed = 0,
    out: OutFolder | None = None,
    moment: Moment = None,
    settings: Settings = None,
    protocol: EvaluationProtocol = "teacher_forced",
    others: OtherFacts = None,
    drift: OrdinaryText = None,
    collapse: Positive = COLLAPSE,
    draws: Count = DRAWS,
    progress: Progress | None = None,
    **options: Any,
) -> Decay:
    """Make edits one after another, keep them, and measure on the way.

    Each fact is edited in the model that the edits before it left. The edits are written into the model's weights and
    taken out again in the end, bit for bit, whatever happens. Second moment and contexts are those of the model as it
    was; alphaedit protects the keys of the facts before.
    After each edit the loss on ordinary text is read, and how large the weights are.

    Args:
        model, editor, target, layer, moment, settings, seed, draws, options: as :func:`ffnmem.evaluate` has them.
        facts: to be edited.
        at: after how many facts to measure; default 1, 10, 100 … as far as the facts go, and all of them. Measured is
            where an edit ends: with ``together``, at the first multiple of it, or the last fact, that is not less.
        order: of the facts: as "given", or "drawn" with the seed. In a file facts that stand together are often alike,
            and what one edit does to the next would be taken for what edits do.
        together: facts edited at a time, in one edit, by editors that can: memit and alphaedit.
        metrics: default all but those of written answers.
        out: a folder to keep each edit in as it is made (:meth:`ffnmem.Edit.load` reads those in ``edits``), what each
            left, and the tables of checkpoints; made if missing. The same call goes on where one was stopped, and gives
            the same result, which is there in the end as ``decay.zip``.
        protocol, others: as :func:`ffnmem.evaluate` has them; the model, with all edits so far, writes at checkpoints.
        drift: the ordinary texts, as :func:`ffnmem.evaluate` has them; those are read that mention none of the facts'
            subjects. Without them no loss is read, and no collapse told.
        collapse: nats a token by which the loss on these texts must rise above the unedited model's for a collapse; our
            own criterion.
        progress: called with "evaluate", the facts edited and all of them.

    Returns: A :class:`Decay`. A fact that cannot be edited is left out with its reason, and counts in ``edits``; where
        several are edited at a time and their edit cannot be made, that is the reason of all of them.

    Raises: as :func:`ffnmem.evaluate`; InputError: more facts asked for than there are,
        ``together`` of an editor that edits single facts. FileError: edits in a folder that give other weights here
        than where they were made.

    Source: Gupta et al. 2024 (2401.07453); Meng et al. 2023 (2210.07229), §5.2; perplexity as the sign of a collapse:
        Yang et al. 2024 (2402.09656).

    Example:
        $ ffnmem sequential atlas --at 1,3 --editor ft_l --limit 3 --order drawn
        $ ffnmem sequential atlas --editor memit --limit 2 --together 2
    """
    every = as_facts(facts)
    if order == "drawn":
        every = shuffle_facts(every, seed)
    editors = choose_editors((editor,))
    if together > 1:
        check_together(editors[0])
    points = checkpoints(at, len(every), together)
    pool = other_facts(protocol, others)
    wanted = check_metrics(metrics, pool is not None)
    texts = drift_texts(model, drift, seed)
    options |= {"moment": moment, "settings": settings}
    setup = set_up(PlainLayers(model), editors, target, layer=layer, seed=seed, **options)
    bench = Bench.of(setup, editors, every, wanted, texts, pool, at=points, together=together)
    name, settings = editors[0].name, bench.settings
    asked = {"editor": name, "seed": seed, "facts": points[-1]}
    asked |= ({"together": together} if together > 1 else {}) | ({} if pool is None else {"protocol": protocol})
    provenance = model.provenance(model.prepend_bos, **asked)
    some = every[: points[-1]]
    # Of all facts, so that every checkpoint has the same texts.
    plain_texts = tuple(text for text in texts if mentions_none(text, [fact.subject for fact in some]))
    answers = tuple(name for name in wanted if METRICS[name].asks != "texts")
    run = EditSequence(replace(bench, metrics=answers, texts=plain_texts), some, together)
    drifts = [name for name in DRIFT if name in wanted or name == "drift_loss"] if texts else []
    tables: list[pd.DataFrame] = []
    frames: list[pd.DataFrame] = []
    with restored(model), bench.folder(out, EDITS) as folder:
        for done in run.go_on(folder):
            if done in points:
                key = [fact.id for fact in some[:done]]
                cases = folder.kept(f"checkpoints/{done:05d}", pd.DataFrame, key, run.measure)
                table = summarise(cases, (*answers, *NUMBERS), draws, seed)
                tables.append(pd.concat([table, run.figure_rows(drifts)]).assign(edits=done))
                frames.append(cases.assign(edits=done)[["edits", *cases.columns]])
            if progress is not None and done:
                progress("evaluate", done, points[-1])
        frame = pd.concat(tables, ignore_index=True)[["edits", "metric", "mean", "low", "high", "n"]]
        cases = pd.concat(frames, ignore_index=True)
        decay = Decay(frame, cases, name, settings, provenance, run.table(), float(collapse))
        if folder.path is not None:
            decay.save(folder.path / DECAY)
    return decay


def check_sequential(
    editor: str | OwnEditor = "rome",
    together: int = 1,
    layer: LayerName | None = None,
    moment: Moment = None,
    settings: Settings = None,
    protocol: EvaluationProtocol = "teacher_forced",
    others: OtherFacts = None,
) -> None:
    """Raise what needs no model: as :func:`ffnmem.evaluate`, and for an editor that edits one fact at a time."""
    check_evaluate(editor, (), layer, moment, settings, protocol, others)
    if together > 1:
        check_together(choose_editors((editor,))[0])


def checkpoints(at: Sequence[int] | None, facts: int, together: int = 1) -> list[int]:
    """After how many facts to measure, ascending, each where an edit of so many together ends; raises InputError."""
    points = [*(point for point in AT if point < facts), facts] if at is None else sorted(set(at))
    if not points:
        raise InputError("at is empty: give numbers of edits, such as (1, 10, 100)")
    if points[-1] > facts:
        raise InputError(f"at {points[-1]} is more than the {counted(facts, 'fact')} that were given")
    return sorted({min(-(-point // together) * together, facts) for point in points})


def restored(model: Model) -> OpenBlock:
    """A block after which the model has the edits that it had before, and no others."""
    return OpenBlock(lambda undo: undo.callback(set_edits, model, tuple(model.edits)))


# -- the sequence itself -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Step:
    """What became of one edit of a sequence; the first step is the unedited model.

    Attributes:
        facts: one row a fact that it was to edit: id, edited (whether it was), failure, and what
            :data:`ffnmem.evaluation.metrics.NUMBERS` names.
        figures: of the model after it, as :meth:`ffnmem.evaluation.texts.Texts.now` has them, and norm.
        fingerprint: of the model after it.
        digest: of the edit; empty where none was made.
        keys: by layer, those of its facts that alphaedit protects from then on.
    """

    facts: pd.DataFrame
    figures: dict[str, float]
    fingerprint: str
    digest: str = ""
    keys: ProtectedKeys = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Unedited:
    """What the model says before the first edit: to the questions of each case, of texts, and in writing."""

    answers: list[CaseAnswers]
    texts: Texts | None
    written: Written | None


class EditSequence:
    """Edits so far, and the facts that they are of. The model keeps them: see :func:`restored`.

    Args:
        bench: what is measured, of one editor.
        facts: to be edited in this order.
        together: how many at a time.
    """

    def __init__(self, bench: Bench, facts: Sequence[Fact], together: int = 1) -> None:
        self.bench, self.editor, self.facts, self.together = bench, bench.editors[0], facts, together
        self.model = bench.layers.model
        self.before = tuple(self.model.edits)
        asked = {i: bench.case(fact) for i, fact in enumerate(facts)}
        self.cases = {i: case for i, case in asked.items() if isinstance(case, EditCase)}
        self.reasons = {i: why for i, why in asked.items() if isinstance(why, str)}
        self.steps: list[Step] = []
        self.rows: list[dict[str, Any]] = []  # of the facts so far, as steps have them
        self.protected: ProtectedKeys = {}
        self.norms: dict[int, float] = {}  # of the layers that were edited, as they were before

    def go_on(self, folder: RunFolder) -> Iterator[int]:
        """Make edit after edit, or take it from the folder; before the first and after each, of how many facts."""
        for number in range(1 + math.ceil(len(self.facts) / self.together)):
            begin = len(self.rows)
            some = range(begin, min(begin + self.together, len(self.facts)) if number else begin)
            file = None if folder.path is None else folder.path / "edits" / f"{number:05d}.zip"
            key = [self.facts[i].id for i in some]
            step = folder.kept(f"steps/{number:05d}", Step, key, partial(self.make_step, some, file))
            if file is not None and len(self.steps) == number:
                self.take_step(step, file)
            self.rows += step.facts.to_dict("records")
            for layer, keys in step.keys.items():
                own = keys.to(self.model.device)
                self.protected[layer] = torch.cat([self.protected[layer], own]) if layer in self.protected else own
            yield len(self.rows)

    def take_step(self, step: Step, file: Path) -> None:
        """Go on from a step that was kept, with its edit. Raises FileError: the file holds another edit."""
        self.steps.append(step)
        if step.digest:
            edit = Edit.load(file)
            if edit.digest != step.digest:
                raise FileError(f"{file} is another edit than the one that was made: remove the steps from it on")
            self.remember_norms(edit)
            set_edits(self.model, (*self.model.edits, edit))

    def make_step(self, some: Sequence[int], file: Path | None) -> Step:
        """Edit some facts in the model's weights, which stay as they are where there are none, and keep the edit.

        Raises: FileError: the edits that were kept give other weights than those that the last of them gave.
        """
        if self.steps and self.model.fingerprint != self.steps[-1].fingerprint:
            raise FileError("the edits that were kept give other weights here: name another folder")
        asked = [i for i in some if i in self.cases]
        rows: dict[int, dict[str, Any]] = {
            i: {"edited": False, "failure": self.reasons[i]} for i in some if i in self.reasons
        }
        batch = self.setup().start([self.facts[i] for i in asked], self.protected)
        found = batch.edits(self.editor) if self.together == 1 else batch.together(self.editor)
        made = [place for place, one in enumerate(found) if isinstance(one, Edit)]
        edit = next((one for one in found if isinstance(one, Edit)), None)
        keys: ProtectedKeys = {}
        for place, (i, one) in enumerate(zip(asked, found, strict=True)):
            own = one_of(one, made.index(place)) if isinstance(one, Edit) and self.together > 1 else one
            rows[i] = {"edited": not isinstance(own, str), "failure": failure_of(own)}
            rows[i] |= {} if isinstance(own, str) else numbers_of(batch.setup.plan, own) | self.reach(i, own)
        if edit is not None:
            self.remember_norms(edit)
            try:
                edit.apply(self.model)
            except InputError as error:  # too large for the model's dtype
                edit = None
                rows |= {i: {"edited": False, "failure": str(error)} for i in asked if rows[i]["edited"]}
            else:  # its keys as they are now, as the published program keeps them
                keys = keys_in(batch, self.editor, made)
        if edit is not None and file is not None:
            make_folder(file.parent)
            edit.save(file)
        kinds = {"id": "str", "edited": "bool", "failure": "str"} | dict.fromkeys(NUMBERS, "float64")
        facts = pd.DataFrame([{"id": self.facts[i].id, **rows[i]} for i in some], columns=list(kinds)).astype(kinds)
        digest = "" if edit is None else edit.digest
        self.steps.append(Step(facts, self.figures(), self.model.fingerprint, digest, keys))
        return self.steps[-1]

    def remember_norms(self, edit: Edit) -> None:
        """Before an edit is applied, the norms of the layers that it is the first to change."""
        for layer in edit.layers:
            if layer not in self.norms:
                self.norms[layer] = weight_norm(self.model, layer)

    @cached_property
    def unedited(self) -> Unedited:
        """Asked when it is first needed, for which the edits so far are taken out."""
        edits, cases = tuple(self.model.edits), list(self.cases.values())
        set_edits(self.model, self.before)
        interview = self.bench.interview
        written = None if interview is None else Written(interview, cases, self.bench.metrics)
        unedited = Unedited(ask_cases(self.bench.layers, cases)[0], self.bench.reader(), written)
        set_edits(self.model, edits)
        return unedited

    def reach(self, i: int, edit: Edit | None) -> dict[str, Any]:
        """What a fact's edit does before it is in the model, where its editor did not look."""
        if not is_unlooked(edit):
            return {}
        case = self.cases[i]
        alone = replace(case, roles=("rewrite",), questions=(case.questions[case.roles.index("rewrite")],))
        return reach_of(alone, ask_cases(self.bench.layers, [alone], [edit])[1][0])

    def setup(self) -> Setup:
        """The setup for the model as it is now, with the second moment of the model as it was."""
        setup = self.bench.setup
        source = setup.plan.source
        if isinstance(source, SecondMoment):
            # The corpus' keys are taken to stay what they were; the copy shares all that it has solved.
            source = replace(source, fingerprint=self.model.fingerprint)
        return setup.with_plans(source=source)

    def figures(self) -> dict[str, float]:
        """Of the model as it is now: drift on the texts, and ‖W‖ over what it was where that is farthest from 1."""
        texts = self.unedited.texts
        ratios = [weight_norm(self.model, layer) / norm for layer, norm in self.norms.items()]
        norm = max(ratios, key=lambda ratio: abs(ratio - 1.0), default=1.0)
        return {**(dict.fromkeys(DRIFT, math.nan) if texts is None else texts.now()), "norm": norm}

    def figure_rows(self, names: Sequence[str]) -> pd.DataFrame:
        """Some of the last step's figures as rows of a summary, and norm."""
        n = dict.fromkeys(names, len(self.bench.texts)) | {"norm": sum(row["edited"] for row in self.rows)}
        rows = [(name, self.steps[-1].figures[name], math.nan, math.nan, count) for name, count in n.items()]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def table(self) -> pd.DataFrame:
        """One row a step, the first of the unedited model: edits, made, loss, norm."""
        edits = np.cumsum([len(step.facts) for step in self.steps])
        rows = [(step.digest != "", step.figures["drift_loss"], step.figures["norm"]) for step in self.steps]
        return pd.DataFrame([(count, *row) for count, row in zip(edits, rows, strict=True)], columns=list(STEPS))

    def measure(self) -> pd.DataFrame:
        """One row a fact so far, measured in the model as it is now."""
        before, metrics = self.unedited, self.bench.metrics
        edited = {i: at for at, i in enumerate(self.cases) if i < len(self.rows) and self.rows[i]["edited"]}
        now = ask_cases(self.bench.layers, [self.cases[i] for i in edited])[0]
        places = list(edited.values())
        texts = [{} for _ in places] if before.written is None else before.written.rows(places)
        measured: dict[int, dict[str, Any]] = {
            i: measure(self.cases[i], before.answers[at], answers, metrics) | text
            for (i, at), answers, text in zip(edited.items(), now, texts, strict=True)
        }
        table = []
        for i, row in enumerate(self.rows):
            case = self.cases.get(i, self.reasons.get(i, ""))
            described = describe_case(self.editor.name, self.facts[i], case, self.bench.setup.target)
            table.append(described | {name: row[name] for name in ("failure", *NUMBERS)} | measured.get(i, {}))
        return case_frame(table, metrics)


def one_of(edit: Edit, place: int) -> Edit:
    """An edit of several facts with the words and numbers of one of them alone; its changes are those of all."""
    return replace(
        edit,
        facts=(edit.facts[place],),
        targets=(edit.targets[place],),
        numbers=edit.numbers.iloc[[place]].reset_index(drop=True),
    )
