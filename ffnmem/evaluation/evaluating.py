"""``evaluate``: every fact edited by itself, by one editor or several, and all measured that the edit changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.checked_files import digest
from ..core.errors import InputError, check_choice
from ..core.folders import Kind
from ..core.neuron_names import LayerName
from ..core.plain_values import plain_value
from ..core.progress import Progress
from ..core.run_folders import RunFolder, run_folder
from ..core.types import PROTOCOLS, Count, EvaluationProtocol, OrdinaryText, OtherFacts, OutFolder, Seed, checked
from ..editing.edit import Edit
from ..editing.preparing import EditPlan, Moment, Settings
from ..editing.wording import missed_words
from ..facts.fact import Fact, Facts, as_facts
from ..facts.formats import load_facts
from ..models.model import Model
from ..models.replaying import PlainLayers
from .editors import (
    Editor,
    EditOrReason,
    OwnEditor,
    Setup,
    check_editors,
    choose_editors,
    edit_conditions,
    own_editors,
    set_up,
)
from .measuring import CaseAnswers, EditCase, ask_cases, make_case, measure
from .metrics import (
    ABOUT,
    METRICS,
    NUMBERS,
    check_metrics,
    roles_of,
)
from .scores import DRAWS, Scores
from .texts import LENGTH, Texts, drift_texts
from .written import NEW, Interview, Written

EVALUATION = Kind("manifest.json", "ffnmem evaluation", 1, "the evaluation", subfolders=("chunks",))
SCORES = "scores.zip"  # in its folder, once it is finished
CHUNK = 8  # facts whose v* are found together, and that are kept together


@checked
def evaluate(
    model: Model,
    facts: Facts,
    editor: str | OwnEditor = "rome",
    *,
    compare: Sequence[str | OwnEditor] = (),
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
    draws: Count = DRAWS,
    keep_edits: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Scores:
    """Edit facts, each by itself, and measure what the edits do.

    Does the edited model say the new target, in other words too, and still the old one of neighbours? The model's
    weights stay as they are. In tables and JSON, in percent of facts:

      ES, PS  the new target is likelier than the true one: prompt, paraphrases
      NS      the true one is likelier than the new: prompts about neighbours
      S       harmonic mean of ES, PS and NS
      EM, PM, NM  by how much: differences of the probabilities behind these
      NS+     NS right after the edit's own sentence
      NKL     how far the next token's distribution moves on neighbours (nats)

    Facts without a new target, and edits that would break the model, are failures: they are listed with their reason,
    and count in no mean. Edits that do not reach their target are listed with them, and count. Intervals are 95%
    bootstraps over facts.

    Args:
        model: from :func:`ffnmem.load`, as it is now.
        facts: each edited from this model.
        editor: how facts are written: rome, rome_original, memit, memit_original, alphaedit, alphaedit_original, ft_l;
            none leaves the model; or edits that are there already, a file or a folder of files as "ffnmem edit --out"
            writes them: each fact gets its own, and one without is a failure. In Python, also a function of model and
            facts (whose ``target_new`` is what is asked for) that gives an edit each, or
            :func:`ffnmem.evaluation.made` of some edits.
        compare: further editors for the same facts. Those that find a v* by the same settings share it; NAME_original
            is the published program of NAME, whose settings are its own.
        target: the new target of all facts; default each fact's ``target_new``.
        metrics: such as ES, NKL or S (:data:`ffnmem.evaluation.metrics.METRICS`); default all but those of written
            answers.
        layer: whose FFN is edited; default the one published for the model's name, else one that ships for it, else one
            by its depth; ``settings["layer_by"]`` tells which.
        seed: of contexts, of the texts for drift and of the bootstrap.
        out: a folder to keep results in, chunk by chunk, made if missing. The same call goes on where one was stopped,
            and gives the same table.
        moment: the second moment of the model's coefficients, a file as "ffnmem moment" writes it; default the one
            that ships with atlas.
        settings: any other setting of the editors, such as steps=40, clamp=2, keys=original, layers=2 or force=true.
        protocol: "teacher_forced" compares probabilities of given answers; "generated" besides lets the model write,
            greedily, up to the end of a sentence or line: in answer to the prompt, its paraphrases and negations, after
            a mention of the old object, about the subject's other relations and about neighbours, and to questions that
            join several facts. What it wrote is in :attr:`Scores.transcripts`.
        others: with "generated", further facts, or their source, among which those are found that say something else
            of the same subjects, and what follows from an edit. They are not edited.
        drift: texts that have nothing to do with the facts, or a corpus to draw 20 from; default the corpus that ships
            with an embedded model, for others none; False for none.
        draws: of the bootstrap.
        keep_edits: give back the edits, in :attr:`Scores.edits`. They are small but for those of ft_l. Not with
            ``out``, which keeps none.
        progress: called with "evaluate", the cases done and all of them.
        options: of the editors: ``contexts``, and what ``settings`` takes, each given to the editors that take it.

    Returns: :class:`Scores`: ``.cases``, ``.summary``, ``.relations``, ``.failures``. A fact that cannot be edited is a
        failure with its reason; so is one whose edit is not reached (:class:`ffnmem.editing.verifying.Verified`; of
        edits whose editor did not look, by their answer to the fact's prompt), which is measured all the same.

    Raises:
        InputError: no facts, an unknown editor, metric or option, no second moment for this model. OutOfRangeError: no
            such layer. FileError: a folder that holds something else or another run, or cannot be written. ModelError:
            edits of another model. UnsupportedModelError: layers that cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), §4 and appendix D.

    Example:
        $ ffnmem evaluate atlas --limit 2 --compare memit
        $ ffnmem evaluate eiffel.zip --editor eiffel.zip
        $ ffnmem evaluate atlas --limit 2 --protocol generated \\
            --others atlas --settings steps=10
    """
    every = as_facts(facts)
    editors = choose_editors((editor, *compare))
    pool = other_facts(protocol, others)
    wanted = check_metrics(metrics, pool is not None)
    if keep_edits and out is not None:
        raise InputError("keep_edits does not go with out, whose chunks hold no edits: give one of them")
    texts = drift_texts(model, drift, seed) if any(METRICS[name].asks == "texts" for name in wanted) else ()
    if metrics is None and not texts:
        wanted = tuple(name for name in wanted if METRICS[name].asks != "texts")
    options |= {"moment": moment, "settings": settings}
    setup = set_up(PlainLayers(model), editors, target, layer=layer, seed=seed, **options)
    bench = Bench.of(setup, editors, every, wanted, texts, pool)
    edits: dict[str, dict[str, Edit]] | None = {} if keep_edits else None
    frames: list[pd.DataFrame] = []
    with bench.folder(out, EVALUATION) as folder:
        for number, begin in enumerate(range(0, len(every), CHUNK)):
            some = every[begin : begin + CHUNK]
            key = [(editor.name, fact.id) for fact in some for editor in editors]
            frames.append(folder.kept(f"chunks/{number:05d}", pd.DataFrame, key, partial(bench.table, some, edits)))
            if progress is not None:
                progress("evaluate", (begin + len(some)) * len(editors), len(every) * len(editors))
        settings = bench.settings
        asked = {"editors": list(settings["editors"]), "seed": seed, "facts": len(every)}
        asked |= {"layer_by": settings["layer_by"]} | ({} if pool is None else {"protocol": protocol})
        scores = Scores(
            cases=pd.concat(frames, ignore_index=True),
            settings=settings,
            provenance=model.provenance(model.prepend_bos, **asked),
            draws=draws,
            seed=seed,
            edits=edits or {},
        )
        if folder.path is not None:
            scores.save(folder.path / SCORES)
    return scores


def check_evaluate(
    editor: str | OwnEditor = "rome",
    compare: Sequence[str | OwnEditor] = (),
    layer: LayerName | None = None,
    moment: Moment = None,
    settings: Settings = None,
    protocol: EvaluationProtocol = "teacher_forced",
    others: OtherFacts = None,
) -> None:
    """Raise what needs no model: for editors and settings, and for other facts that nobody asks about."""
    check_editors((editor, *compare), layer, moment, settings)
    other_facts(protocol, others)


def other_facts(protocol: str, others: OtherFacts) -> list[Fact] | None:
    """The further facts to ask about where answers are written; None where none are. Raises InputError."""
    if check_choice("protocol", protocol, PROTOCOLS) == "generated":
        return load_facts(others) if isinstance(others, str | Path) else as_facts(others or (), least=0)
    if others is not None:
        raise InputError("others are asked about with protocol='generated' alone: give that, or leave them out")
    return None


@dataclass(frozen=True, eq=False)
class Bench:
    """All that edits are made and measured with. Texts and model are read when the first case needs it.

    Attributes:
        setup: of the editors. editors: which.
        facts: that are edited, and asked about.
        metrics: wanted.
        texts: for drift.
        interview: asks for written answers; None where none are wanted.
        settings: everything that was asked for, as plain values.
    """

    setup: Setup
    editors: tuple[Editor, ...]
    facts: Sequence[Fact]
    metrics: tuple[str, ...]
    texts: tuple[str, ...]
    interview: Interview | None
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        setup: Setup,
        editors: tuple[Editor, ...],
        facts: Sequence[Fact],
        metrics: tuple[str, ...],
        texts: tuple[str, ...],
        others: Sequence[Fact] | None,
        **conditions: Any,
    ) -> Bench:
        """With the settings that follow, and ``conditions`` of the run's own; written answers where ``others`` are."""
        layer_by = setup.plan_of(editors[0]).settings.layer_by
        settings = {"metrics": metrics, "layer_by": layer_by, **conditions, **edit_conditions(setup, editors)}
        if texts:
            settings["drift"] = {"texts": len(texts), "tokens": LENGTH, "hash": digest(list(texts))}
        settings["chunk"] = CHUNK
        interview = None
        if others is not None:
            interview = Interview.of(setup.plan.layers, facts, others)
            settings["written"] = {
                "tokens": NEW,
                "others": digest([fact.to_dict() for fact in others]) if others else None,
            }
        return cls(setup, editors, facts, metrics, texts, interview, plain_value(settings))

    @property
    def layers(self) -> PlainLayers:
        return self.setup.plan.layers

    def folder(self, out: str | Path | None, kind: Kind) -> AbstractContextManager[RunFolder]:
        """The folder of this run. Raises as :func:`ffnmem.core.run_folders.run_folder`; InputError: a function among
        the editors that a folder cannot know again."""
        run: dict[str, Any] = {}
        if out is not None:
            model = self.setup.plan.model
            run = {"model": model.name, "fingerprint": model.fingerprint, "dtype": str(model.dtype)}
            run |= {"prepend_bos": model.prepend_bos, "own_editors": own_editors(self.editors)}
            run["facts"] = f"{len(self.facts)}, {digest([fact.to_dict() for fact in self.facts])}"
        return run_folder(out, kind, {**run, **self.settings})

    def reader(self) -> Texts | None:
        """The texts for drift, read by the model as it is now."""
        return Texts(self.layers, self.texts) if self.texts else None

    def case(self, fact: Fact) -> EditCase | str:
        """A fact's questions, or why it cannot be asked."""
        try:
            return make_case(self.layers.model, fact, self.setup.target, {*roles_of(self.metrics), "rewrite"})
        except InputError as error:
            return str(error)

    def table(self, facts: Sequence[Fact], kept: dict[str, dict[str, Edit]] | None = None) -> pd.DataFrame:
        """One row a fact and editor, of facts that are edited together; ``kept`` takes the edits."""
        cases = [self.case(fact) for fact in facts]
        asked = [case for case in cases if isinstance(case, EditCase)]
        batch = self.setup.start([case.fact for case in asked])
        reader = self.reader() if asked else None
        written = None if self.interview is None else Written(self.interview, asked, self.metrics)
        by_editor = []
        for editor in self.editors:
            made = batch.edits(editor)
            if kept is not None:
                own = {case.fact.name: edit for case, edit in zip(asked, made, strict=True) if isinstance(edit, Edit)}
                kept.setdefault(editor.name, {}).update(own)
            rows = iter(self.rows(asked, made, reader, written))
            by_editor.append([{"failure": case} if isinstance(case, str) else next(rows) for case in cases])
        table = [
            describe_case(editor.name, fact, case, self.setup.target) | row
            for fact, case, of_fact in zip(facts, cases, zip(*by_editor, strict=True), strict=True)
            for editor, row in zip(self.editors, of_fact, strict=True)
        ]
        return case_frame(table, self.metrics)

    def rows(
        self,
        cases: Sequence[EditCase],
        made: Sequence[EditOrReason],
        reader: Texts | None,
        written: Written | None,
    ) -> list[dict[str, Any]]:
        """What is measured of each case, or its failure."""
        rows: list[dict[str, Any]] = [{"failure": failure_of(edit)} for edit in made]
        fine = [i for i, edit in enumerate(made) if not isinstance(edit, str)]
        own = [cases[i] for i in fine]
        edits = [edit for edit in made if not isinstance(edit, str)]
        if not own:
            return rows
        for i, case, edit, before, after in zip(fine, own, edits, *ask_cases(self.layers, own, edits), strict=True):
            rows[i] |= measure(case, before, after, self.metrics) | numbers_of(self.setup.plan, edit)
            rows[i] |= reach_of(case, after) if is_unlooked(edit) else {}
        more: list[Iterable[dict[str, Any]]] = []
        if reader is not None:
            more.append(reader.drift(edits, [case.fact.subject for case in own]))
        if written is not None:
            more.append(written.rows(fine, edits))
        for figures in more:
            for i, row in zip(fine, figures, strict=True):
                rows[i] |= row
        return rows


def failure_of(edit: EditOrReason) -> str:
    """Why there is no edit, or what it does not do; empty of one that does what it is for."""
    return edit if isinstance(edit, str) else "" if edit is None else edit.unreached_words


def is_unlooked(edit: Edit | None) -> bool:
    """Whether nobody looked what the model says with an edit, as of ready factors."""
    return edit is not None and not ("reached" in edit.numbers and edit.numbers["reached"].notna().all())


def reach_of(case: EditCase, after: CaseAnswers) -> dict[str, Any]:
    """Whether an edit is reached, as a row has it, by what the model says with it to the questions of its case."""
    said = after[case.roles.index("rewrite")]
    missed = "" if said.exact[1] else missed_words(case.fact, case.target, math.exp(said.mean_log(1)))
    return {"reached": float(said.exact[1]), "failure": missed}


def numbers_of(plan: EditPlan, edit: Edit | None) -> dict[str, float]:
    """How much an edit changes the model of a plan, and what its editor measured."""
    if edit is None:
        return {"change": 0.0}
    row = edit.numbers.iloc[0] if len(edit.numbers) else {}
    return {"change": plan.largest(edit.changes)[0]} | {
        name: float(row.get(name, math.nan)) for name in NUMBERS if name != "change"
    }


def describe_case(editor: str, fact: Fact, case: EditCase | str, target: str | None) -> dict[str, Any]:
    """What a row is about."""
    new = case.target if isinstance(case, EditCase) else ((fact.target_new if target is None else target) or "").strip()
    values = (editor, fact.id, fact.relation, fact.subject, fact.target_true, new)
    return dict(zip(ABOUT, values, strict=True)) | {"unasked": case.unasked if isinstance(case, EditCase) else 0}


def case_frame(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> pd.DataFrame:
    """Rows as a table with every column, of one type whatever is missing."""
    names = [*metrics, *(f"{name}_before" for name in metrics if METRICS[name].before), *NUMBERS]
    texts = ["written"] if any(METRICS[name].written for name in metrics) else []
    frame = pd.DataFrame(list(rows), columns=[*ABOUT, *names, "unasked", "failure", *texts])
    frame[texts] = frame[texts].astype(object).fillna("")  # all of them may be missing
    kinds = dict.fromkeys([*ABOUT, "failure", *texts], "str") | dict.fromkeys(names, "float64") | {"unasked": "int64"}
    return frame.astype(kinds)
