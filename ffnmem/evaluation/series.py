"""Edits kept one after another in one model, and what becomes of them and of everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.errors import (
    InputError,
    counted,
    listed,
)
from ..core.folders import Kind
from ..core.json_values import plain
from ..core.neuron_names import LayerName
from ..core.plain_values import plain_value
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.run_folders import run_folder
from ..core.sheets import Content, Facts, Origin, Sheet
from ..core.token_text import printable
from ..core.types import Count, Positive, Seed, checked
from ..editing.applying import put_back
from ..facts.fact import Fact, as_facts
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..models.turns import in_turn
from ..show.result import Result
from .edit_sequence import STEPS, EditSequence
from .editors import OwnEditor, check_together, choose_editors, set_up
from .evaluating import (
    Bench,
    kept_by,
    layer_by,
    run_of,
    writing,
    written_words,
)
from .metrics import NO_TEXT, NUMBERS, check_metrics, read_off, summarised, unmeasured, without
from .scores import (
    AROUND,
    DRAWS,
    DRIFTED,
    MAIN,
    SAID,
    SIZED,
    failure_table,
    missing_lines,
    score_tables,
    transcript_table,
)
from .texts import DRIFT, Source, drift_texts, mentions_none
from .written import COLUMNS as TRANSCRIPT
from .written import Interview, transcripts

if TYPE_CHECKING:
    pass


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

    main = "frame"
    not_brief = "transcripts"

    @property
    def collapsed(self) -> int | None:
        """The first edit after which the loss had risen by more than ``collapse``; None where it never had.

        A loss that is no number any more has. None, too, where there was no loss to measure: see ``steps``.
        """
        loss = self.steps["loss"].to_numpy(dtype=np.float64)
        if not len(loss) or not math.isfinite(loss[0]):
            return None
        broken = ~(loss - loss[0] <= self.collapse)
        return int(self.steps["edits"].iloc[int(broken.argmax())]) if broken.any() else None

    @property
    def missing(self) -> dict[str, str]:
        """The metrics that no fact gives a value, and why."""
        found = unmeasured(self.frame, self.cases)
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
        tables = [transcripts(rows).assign(edits=edits) for edits, rows in self.cases.groupby("edits", sort=False)]
        return pd.concat(tables, ignore_index=True)[["edits", *TRANSCRIPT]]

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON; numbers beyond all floats are texts."""
        found = {
            "editor": self.editor,
            "edits": plain(self.frame),
            "steps": plain(self.steps),
            "collapsed": self.collapsed,
            "collapse": self.collapse,
            "missing": self.missing,
            **({"transcripts": plain(self.transcripts)} if "written" in self.cases else {}),
            "failures": plain(self.failures),
            "settings": dict(self.settings),
            "provenance": self.provenance.to_dict(),
        }
        return {name: plain_value(value, name) for name, value in found.items()}

    @property
    def collapse_words(self) -> str:
        """Where the model collapsed, with the loss before all edits and then; empty where it did not."""
        if self.collapsed is None:
            return ""
        first, then = (self.steps.set_index("edits")["loss"].loc[at] for at in (0, self.collapsed))
        return f"collapsed at edit {self.collapsed:,}: loss on ordinary text {first:.2f} → {then:.2f} nats a token"

    @property
    def manner(self) -> str:
        """How the edits were made."""
        together = self.settings.get("together", 1)  # older results do not say
        return "one edit after another" if together == 1 else f"one edit of {together:,} facts after another"

    def summary(self) -> str:
        points = ", ".join(map(str, self.frame["edits"].unique()))
        failed = f", {len(self.failures)} failures" if len(self.failures) else ""
        words = f"; {self.collapse_words}" if self.collapse_words else ""
        return f"{self.editor} of {printable(self.provenance.model)} after {points} edits{failed}{words}"

    def sheet(self, kept: str | None = None) -> Sheet:
        """The scores of all edits so far, after so many, the failures, and whether the model collapsed.

        Args:
            kept: adds the folder that holds them.
        """
        title = f"{self.editor}, {self.manner}, in percent"
        rows: dict[str, Content] = {"collapse": self.describe_collapse(), **missing_lines(self.missing)}
        rows |= {} if kept is None else {"kept in": kept}
        last = self.transcripts[self.transcripts["edits"] == self.transcripts["edits"].max()]
        return Sheet.of(
            *score_tables(self.frame, "edits", SAID, AROUND),
            *score_tables(self.frame, "edits", (MAIN, title, ""), SIZED, DRIFTED),
            transcript_table(last),
            failure_table(self.failures),
            Facts(rows),
            Origin(self.provenance.to_dict()),
        )

    def describe_collapse(self) -> str:
        """Where the model collapsed, or that it did not, or why nobody knows."""
        loss = self.steps["loss"].to_numpy(dtype=np.float64)
        if not len(loss) or math.isnan(loss[0]):
            return "not told: there is no ordinary text to read (give drift)"
        most = f"loss on ordinary text {loss[0]:.2f}, at most {loss.max():.2f} nats a token"
        return self.collapse_words or f"none within {self.steps['edits'].iloc[-1]:,} edits: {most}"


@checked
@in_turn
def sequential(
    model: Model,
    facts: Iterable[Fact],
    editor: str | OwnEditor = "rome",
    at: Sequence[Count] | None = None,
    *,
    together: Count = 1,
    target: str | None = None,
    metrics: Iterable[str] | None = None,
    layer: LayerName | None = None,
    seed: Seed = 0,
    out: str | Path | None = None,
    protocol: str = "teacher_forced",
    others: Iterable[Fact] | None = None,
    drift: Source = None,
    collapse: float = COLLAPSE,
    draws: Count = DRAWS,
    progress: Progress | None = None,
    **options: Any,
) -> Decay:
    """Edit facts one after another, each in the model that the edits before it left, and measure them on the way.

    The edits are written into the model's weights and taken out again in the end, bit for bit, whatever happens. Second
    moment and contexts are those of the model as it was; alphaedit and encore protect the keys of the facts before.
    After each edit the loss on ordinary text is read, and how large the weights are.

    Args:
        model, editor, target, layer, seed, draws, options: as :func:`ffnmem.evaluate` has them.
        facts: in the order in which they are edited.
        at: after how many facts to measure; default 1, 10, 100 … as far as the facts go, and all of them. Measured is
            where an edit ends: with ``together``, at the first multiple of it, or the last fact, that is not less.
        together: facts edited at a time, in one edit, by editors that can: memit, emmet, alphaedit and encore.
        metrics: default all but those of generated text.
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

    Raises: as :func:`ffnmem.evaluate`; InputError: more facts asked for than there are, a metric of generated text,
        ``together`` of an editor that edits single facts. FileError: edits in a folder that give other weights here
        than where they were made.

    Source: Gupta et al. 2024 (2401.07453); Meng et al. 2023 (2210.07229), §5.2; perplexity as the sign of a collapse:
        Yang et al. 2024 (2402.09656).
    """
    every = as_facts(facts)
    (chosen,) = choose_editors((editor,))
    if together > 1:
        check_together(chosen)
    points = checkpoints(at, len(every), together)
    written, pool = writing(protocol, others)
    wanted = check_metrics(metrics, False, written)
    if generated := read_off(wanted, "generation"):
        raise InputError(f"sequential measures no {listed(generated)}: let evaluate write texts, for single edits")
    texts = drift_texts(model, drift, seed)
    answers = without(wanted, "texts")
    layers = PlainLayers(model)
    setup = set_up(layers, (chosen,), target, layer=layer, seed=seed, **options)
    settings = {"metrics": list(wanted), "layer_by": layer_by(setup, chosen, every), "at": points, "together": together}
    settings |= run_of(setup, (chosen,), texts, None) | ({"written": written_words(pool)} if written else {})
    settings = plain_value(settings)
    asked = {"editor": chosen.name, "seed": seed, "facts": points[-1]}
    asked |= ({"together": together} if together > 1 else {}) | ({"protocol": protocol} if written else {})
    provenance = model.provenance(model.prepend_bos, **asked)
    some = every[: points[-1]]
    # Of all, so that every checkpoint has the same texts.
    plain = tuple(text for text in texts if mentions_none(text, [fact.subject for fact in some]))
    interview = Interview.of(layers, every, pool) if written else None
    run = EditSequence(Bench(setup, answers, plain, None, seed, interview), chosen, some, together)
    told = [name for name in DRIFT if name in wanted or name == "drift_loss"] if texts else []
    made_by = {} if out is None else kept_by(model, (editor,), every, settings)
    frames, tables = [], []
    with restored(model), run_folder(out, EDITS, made_by) as folder:
        for done in run.go_on(folder):
            if done in points:
                names = [fact.id for fact in some[:done]]
                cases = folder.kept(f"checkpoints/{done:05d}", pd.DataFrame, names, run.cases)
                table = summarised(cases, (*answers, *NUMBERS), draws, seed)
                tables.append(pd.concat([table, run.figure_rows(told)]).assign(edits=done))
                frames.append(cases.assign(edits=done)[["edits", *cases.columns]])
            if progress is not None and done:
                progress("evaluate", done, points[-1])
        frame = pd.concat(tables, ignore_index=True)[["edits", "metric", "mean", "low", "high", "n"]]
        cases = pd.concat(frames, ignore_index=True)
        found = Decay(frame, cases, chosen.name, settings, provenance, run.table(), float(collapse))
        if folder.path is not None:
            found.save(folder.path / DECAY)
    return found


def checkpoints(at: Sequence[int] | None, facts: int, together: int = 1) -> list[int]:
    """After how many facts to measure, ascending, each where an edit of so many together ends; raises InputError."""
    points = [*(point for point in AT if point < facts), facts] if at is None else sorted(set(at))
    if not points:
        raise InputError("at is empty: give numbers of edits, such as (1, 10, 100)")
    if points[-1] > facts:
        raise InputError(f"at {points[-1]} is more than the {counted(facts, 'fact')} that were given")
    return sorted({min(-(-point // together) * together, facts) for point in points})


def restored(model: Model) -> AbstractContextManager[object]:
    """A block after which the model has the edits that it has now, and no others."""
    before = tuple(model.edits)
    return model.turns.changing(
        "a sequence of edits", begin=lambda block: block.undo.append(lambda: put_back(model, before))
    )
