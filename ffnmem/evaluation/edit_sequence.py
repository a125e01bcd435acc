"""Edits made one after another in a model's weights: what each leaves, and what the model says then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..core.errors import FileError, InputError, ModelError
from ..core.files import make_folder
from ..core.run_folders import RunFolder
from ..editing.applying import put_back
from ..editing.edit import Edit
from ..editing.moments import SecondMoment
from ..editing.preparing import weight_norm
from ..facts.fact import Fact
from .editors import Editor, Held, Setup, keys_in
from .evaluating import Bench, about, case_frame, failure_of, is_unlooked, numbers_of, reach_of
from .measuring import CaseAnswers, EditCase, ask_cases, measure
from .metrics import NUMBERS
from .texts import DRIFT, Texts
from .written import Written

STEPS = ("edits", "made", "loss", "norm")


@dataclass(frozen=True, eq=False)
class Step:
    """What became of one edit of a sequence; the first step is the unedited model.

    Attributes:
        facts: one row a fact that it was to edit: id, edited (whether it was), failure, and what
            :data:`ffnmem.evaluation.metrics.NUMBERS` names.
        figures: of the model after it, as :meth:`ffnmem.evaluation.texts.Texts.now` has them, and norm.
        digest: of the edit; empty where none was made.
        keys: by layer, those of its facts that alphaedit and encore protect from then on.
    """

    facts: pd.DataFrame
    figures: dict[str, float]
    digest: str = ""
    keys: Held | None = None


@dataclass(frozen=True, eq=False)
class Unedited:
    """What the model says before the first edit: to the questions of each case, of texts, and in writing."""

    answers: list[CaseAnswers]
    texts: Texts | None
    written: Written | None


class EditSequence:
    """Edits so far, and the facts that they are of.

    Args:
        bench: what is measured; its texts are read, and its questions asked, before the first edit.
        editor: which.
        facts: to be edited in this order.
        together: how many at a time.
    """

    def __init__(self, bench: Bench, editor: Editor, facts: Sequence[Fact], together: int = 1) -> None:
        self.bench, self.editor, self.facts, self.together = bench, editor, facts, together
        self.model = bench.layers.model
        self.asked = [bench.case(fact) for fact in facts]
        self.fine = [i for i, case in enumerate(self.asked) if isinstance(case, EditCase)]
        self.steps: list[Step] = []
        self.rows: list[dict[str, Any]] = []  # of the facts that were come to, as steps have them
        self.held: Held = {}
        self.norms: dict[int, float] = {}  # of the layers that were edited, as they were before
        self.waiting: list[Edit] = []  # taken from a folder, and not in the model yet

    # -- edits -------------------------------------------------------------------------------------------------------

    def go_on(self, folder: RunFolder) -> Iterator[int]:
        """Make edit after edit, or take it from the folder; before the first and after each, of how many facts."""
        for number in range(1 + math.ceil(len(self.facts) / self.together)):
            some = self.ahead if number else range(0)
            self.take(self.step(number, some, folder))
            yield len(self.rows)

    def step(self, number: int, facts: range, folder: RunFolder) -> Step:
        """Make an edit and measure what it leaves, or read both from the folder; a step that is there has its edit."""
        file = Path() if folder.path is None else folder.path / "edits" / f"{number:05d}.safetensors"
        made: list[Step] = []

        def make() -> Step:
            self.catch_up()
            step, edit = self.edit(facts)
            if edit is not None and folder.path is not None:
                make_folder(file.parent)
                edit.save(file)
            made.append(step)
            return step

        step: Step = folder.kept(f"steps/{number:05d}", Step, [self.facts[i].id for i in facts], make)
        if step.digest and not made:
            edit = Edit.load(file)
            if edit.digest != step.digest:
                raise FileError(f"{file} is another edit than the one that was made: remove the steps from it on")
            self.waiting.append(edit)
        return step

    @property
    def ahead(self) -> range:
        """The facts to be edited next."""
        return range(len(self.rows), min(len(self.rows) + self.together, len(self.facts)))

    @cached_property
    def unedited(self) -> Unedited:
        """Asked for by :meth:`catch_up`, before there is any edit; never where all that follows was kept."""
        cases = self.cases_of(self.fine)
        written = None if self.bench.interview is None else Written(self.bench.interview, cases, self.bench.metrics)
        if written is not None:
            _ = written.plain
        return Unedited(ask_cases(self.bench.layers, cases)[0] if cases else [], self.bench.reader(), written)

    def cases_of(self, places: Iterable[int]) -> list[EditCase]:
        return [case for i in places if isinstance(case := self.asked[i], EditCase)]

    def catch_up(self) -> None:
        """Write the edits that wait into the model; before, it is asked what the unedited one is asked.

        Raises: FileError: they give other weights than those that the last of them was made on.
        """
        _ = self.unedited
        if not self.waiting:
            return
        for edit in self.waiting:
            self.remember_norms(edit)
        *most, last = self.waiting
        put_back(self.model, (*self.model.edits, *most))
        try:
            last.apply(self.model)  # which looks at the weights
        except ModelError as error:
            other = "the edits that were kept give other weights here"
            raise FileError(f"{other}: name another folder ({error})") from None
        self.waiting = []

    def remember_norms(self, edit: Edit) -> None:
        """Before an edit is applied, the norms of the layers that it is the first to change."""
        for layer in edit.layers:
            if layer not in self.norms:
                self.norms[layer] = weight_norm(self.model, layer)

    def take(self, step: Step) -> None:
        """Go on from a step whose edit is in the model, or waits."""
        self.steps.append(step)
        self.rows += step.facts.to_dict("records")
        for layer, keys in (step.keys or {}).items():
            own = keys.to(self.model.device)
            self.held[layer] = torch.cat([self.held[layer], own]) if layer in self.held else own

    def edit(self, some: Sequence[int]) -> tuple[Step, Edit | None]:
        """Edit some facts in the model's weights, which stay as they are where there are none."""
        asked = [i for i in some if isinstance(self.asked[i], EditCase)]
        rows: dict[int, dict[str, Any]] = {
            i: {"edited": False, "failure": self.asked[i]} for i in some if i not in asked
        }
        edit: Edit | None = None
        keys: Held = {}
        if asked:
            batch = self.setup().start([self.facts[i] for i in asked], self.held)
            found = batch.edits(self.editor) if self.together == 1 else batch.together(self.editor)
            edit = next((one for one in found if isinstance(one, Edit)), None)
            made = [place for place, one in enumerate(found) if isinstance(one, Edit)]
            for place, (i, one) in enumerate(zip(asked, found, strict=True)):
                own = one_of(one, made.index(place)) if isinstance(one, Edit) and self.together > 1 else one
                rows[i] = {"edited": not isinstance(own, str), "failure": failure_of(own)}
                rows[i] |= {} if isinstance(own, str) else numbers_of(batch.plan, own) | self.reach(i, own)
            if edit is not None:
                self.remember_norms(edit)
                try:
                    edit.apply(self.model)
                except InputError as error:  # too large for the model's dtype
                    edit = None
                    rows |= {i: {"edited": False, "failure": str(error)} for i in asked if rows[i]["edited"]}
                else:  # its keys as they are now, as the published program keeps them
                    keys = keys_in(batch, self.editor, made)
        facts = step_facts([{"id": self.facts[i].id, **rows[i]} for i in some])
        return Step(facts, self.figures(), "" if edit is None else edit.digest, keys), edit

    def reach(self, i: int, edit: Edit | None) -> dict[str, Any]:
        """What a fact's edit does before it is in the model, where its editor did not look."""
        if not is_unlooked(edit):
            return {}
        (case,) = self.cases_of([i])
        alone = replace(case, roles=("rewrite",), questions=(case.questions[case.roles.index("rewrite")],))
        return reach_of(alone, ask_cases(self.bench.layers, [alone], [edit])[1][0])

    def setup(self) -> Setup:
        """The setup for the model as it is now, with the second moment of the model as it was."""
        setup = self.bench.setup
        source = setup.plan.source
        if isinstance(source, SecondMoment):
            # The corpus' keys are taken to stay what they were; the copy shares all that it has solved.
            source = replace(source, fingerprint=self.model.fingerprint)
        return replace(setup, plan=replace(setup.plan, source=source))

    # -- what they leave ---------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Of the model as it is now: drift on the texts, and ‖W‖ over what it was where that is farthest from 1."""
        texts = self.unedited.texts
        ratios = [weight_norm(self.model, layer) / norm for layer, norm in self.norms.items()]
        norm = max(ratios, key=lambda ratio: abs(ratio - 1.0), default=1.0)
        return {**(dict.fromkeys(DRIFT, math.nan) if texts is None else texts.now()), "norm": norm}

    def figure_rows(self, names: Iterable[str]) -> pd.DataFrame:
        """Some of the last step's figures as rows of a summary, and norm."""
        counts = {"norm": sum(row["edited"] for row in self.rows)}
        n = {name: counts.get(name, len(self.bench.texts)) for name in (*names, "norm")}
        rows = [(name, self.steps[-1].figures[name], math.nan, math.nan, count) for name, count in n.items()]
        return pd.DataFrame(rows, columns=["metric", "mean", "low", "high", "n"])

    def table(self) -> pd.DataFrame:
        """One row a step, the first of the unedited model: edits, made, loss, norm."""
        edits = pd.Series([len(step.facts) for step in self.steps]).cumsum()
        made = [(step.digest != "", step.figures["drift_loss"], step.figures["norm"]) for step in self.steps]
        found = pd.DataFrame(made, columns=list(STEPS[1:]))
        found.insert(0, STEPS[0], edits)
        return found

    def cases(self) -> pd.DataFrame:
        """One row a fact that was come to, measured in the model as it is now."""
        self.catch_up()
        before = self.unedited
        measured: dict[int, Mapping[str, Any]] = {}
        places = [at for at, i in enumerate(self.fine) if i < len(self.rows) and self.rows[i]["edited"]]
        if places:
            now = ask_cases(self.bench.layers, self.cases_of(self.fine[at] for at in places))[0]
            texts = [{} for _ in places] if before.written is None else before.written.now(places)
            for at, answers, text in zip(places, now, texts, strict=True):
                (case,) = self.cases_of([self.fine[at]])
                measured[self.fine[at]] = measure(case, before.answers[at], answers, self.bench.metrics) | text
        found = []
        for i, row in enumerate(self.rows):
            told = about(self.editor.name, self.facts[i], self.asked[i], self.bench.setup.target)
            numbers = {name: row[name] for name in ("failure", *NUMBERS)}
            found.append({**told, **numbers, **measured.get(i, {})})
        return case_frame(found, self.bench.metrics)


def one_of(edit: Edit, place: int) -> Edit:
    """An edit of several facts with the words and numbers of one of them alone; its changes are those of all."""
    return replace(
        edit,
        facts=(edit.facts[place],),
        targets=(edit.targets[place],),
        numbers=edit.numbers.iloc[[place]].reset_index(drop=True),
    )


def step_facts(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The facts of a step, as :class:`Step` has them."""
    kinds = {"id": "str", "edited": "bool", "failure": "str"} | dict.fromkeys(NUMBERS, "float64")
    return pd.DataFrame(list(rows), columns=list(kinds)).astype(kinds)
