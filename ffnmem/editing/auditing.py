"""``audit``: what an edit left behind: which matrices of two checkpoints differ, by what rank, and what that says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, counted, listed
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Origin, Sheet, Table, Words, line, token, tokens
from ..core.types import LOGIT, Count, checked
from ..facts.answers import last_logits
from ..facts.fact import Fact, as_facts
from ..facts.questions import ask_about
from ..models.loading import load
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm
from ..prompts.captures import capture
from ..show.result import Result
from ..vocabulary.lenses import JacobianLens, Lens, describe_lens, load_lens
from ..vocabulary.scoring import Scorer
from ..vocabulary.vectors import ready, side_tokens
from .weight_changes import WeightChange, pair_weights, rounding_step

RANKS = 64
PARTS = 4
TOKENS = 10  # at each end of a part's direction, and its neurons
ROWS = 20  # of a table that is shown
SHOWN_NEURONS = 2
SHOWN_SHARE = 0.05  # of parts: what a change of full rank consists of are hundreds of smaller ones
READS = "promotes, of what reads the residual stream: the tokens that it looks for"
NO_SIGN = "no facts say with which sign a part is used: these are its tokens where its first neuron is positive"
MATRICES = ("layer", "matrix", "parameter", "norm", "of_norm", "rank", "more", "tolerance")
FACTS = ("fact", "subject", "prompt", "says_before", "says_after", "raised", "changed", "rise", "distance")


@dataclass(frozen=True)
class ChangePart:
    """A rank-one part of a change, a pair of its singular vectors.

    Attributes:
        layer, matrix: of which, as in ``matrices``. part: from 1, the largest.
        size: the singular value. share: of ‖ΔW‖².
        neurons: of an FFN's matrix, those that the part uses most, by name; of an embedding, the tokens.
        promotes, suppresses: tokens, the furthest first: of a matrix that writes to the residual stream those that are
            written, of one that reads it those that it looks for; none of others.
    """

    layer: int
    matrix: str
    part: int
    size: float
    share: float
    neurons: tuple[str, ...] = ()
    promotes: tuple[str, ...] = ()
    suppresses: tuple[str, ...] = ()


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Audit(Result):
    """How a checkpoint differs from the one that it was made of. Made by :func:`audit`.

    Attributes:
        matrices: one row a tensor that changed, by falling ‖ΔW‖/‖W‖, vectors last: ``layer`` (-1 outside of layers),
            ``matrix``, what it is, ``parameter``, its name in the checkpoint; ``norm`` ‖ΔW‖, ``of_norm`` ‖ΔW‖/‖W‖;
            ``rank``, the singular values of ΔW above ``tolerance``, the most that rounding makes (0 of a vector);
            ``more``, whether there are more than were counted.
        parts: of each matrix the largest rank-one parts, see :class:`ChangePart`.
        facts: None where none were named; else one row a fact, that which moved most first: ``fact`` (its name),
            ``subject``, ``prompt``, ``says_before``, ``says_after``, the likeliest next tokens, ``changed``, whether
            they differ; the token that gained most (``raised``, by ``rise``), ``distance``, the total variation of both
            predictions; and ``moved``, ‖ΔWᵀk‖/‖Wᵀk‖ of the subject's key k, the most of the FFN down projections that
            changed by a low rank (missing without any).
        compared: how many tensors there are. rounded: those that differ by rounding to another numeric type alone.
        before, after: the models' names. provenance, other: of both.
    """

    matrices: pd.DataFrame
    parts: tuple[ChangePart, ...]
    facts: pd.DataFrame | None
    compared: int
    rounded: int
    before: str
    after: str
    provenance: Provenance
    other: Provenance

    main = "matrices"
    in_json = "before after conclusion compared rounded matrices parts changed facts provenance other"
    not_brief = "facts"

    @property
    def changed(self) -> pd.DataFrame | None:
        """The rows of ``facts`` whose answer changed."""
        return None if self.facts is None else self.facts[self.facts["changed"]].reset_index(drop=True)

    @property
    def conclusion(self) -> str:
        """What differs, in a sentence."""
        rounded = f"; {self.rounded:,} differ by rounding alone" if self.rounded else ""
        asked = ""
        if self.facts is not None and self.changed is not None:
            asked = f"; answers changed: {len(self.changed):,} of {counted(len(self.facts), 'fact')}"
        if not len(self.matrices):
            return f"no weight of {self.compared:,} tensors differs{rounded}{asked}"
        names = [f"{row.matrix}{of_layer(row.layer)}{of_rank(row)}" for row in self.matrices.itertuples()]
        return f"{len(names):,} of {self.compared:,} tensors changed: {listed(names, 3)}{rounded}{asked}"

    def summary(self) -> str:
        return self.conclusion

    def sheet(self) -> Sheet:
        """What changed, what each part of it reads and writes, and what both models say to the facts."""
        layer = Column("layer", left=False, of=lambda row: "" if row["layer"] < 0 else str(row["layer"]))
        matrices = Table.of(
            self.matrices,
            layer,
            "matrix",
            Column("change", "percent", of="of_norm"),
            Column("rank", left=False, of=lambda row: f"over {row['rank']}" if row["more"] else str(row["rank"] or "")),
            top=ROWS,
            title="what changed",
            caption="change: ‖ΔW‖ of ‖W‖; rank: singular values above what rounding makes",
        )
        reads = any(not part.matrix.startswith("FFN down") for part in self.parts)
        parts = Table.of(
            [vars(part) for part in self.parts if part.share >= SHOWN_SHARE],
            layer,
            "matrix part share",
            Column("neurons", of=lambda row: tokens(row["neurons"][:SHOWN_NEURONS])),
            Column("promotes", wraps=True, of=lambda row: tokens(row["promotes"])),
            Column("suppresses", wraps=True, of=lambda row: tokens(row["suppresses"])),
            top=ROWS,
            title="its parts, the largest first",
            caption="; ".join([NO_SIGN] * (self.facts is None) + [READS] * reads),
        )
        return Sheet.of(
            Words.of(self.conclusion, "strong"),
            matrices if len(self.matrices) else None,
            parts if parts.rows else None,
            self.fact_table(),
            Origin(self.provenance.to_dict()),
            Origin(self.other.to_dict()),
        )

    def fact_table(self) -> Table | None:
        """What the models say to the facts."""
        if self.facts is None:
            return None
        return Table.of(
            self.facts,
            "subject",
            Column("moved", "percent", places=0),
            Column("says", of=lambda row: line(token(row["says_before"]), " → ", token(row["says_after"], "strong"))),
            Column("gained most", wraps=True, of=lambda row: line(token(row["raised"]), f" {row['rise']:+.0%}")),
            top=ROWS,
            title="the facts, those that moved most first",
            caption="moved: how much of what the layer writes at the subject's last token changed",
        )


def of_layer(layer: int) -> str:
    return "" if layer < 0 else f" of layer {layer}"


def of_rank(row: Any) -> str:
    about = f"{format_share(row.of_norm, 1)} of its norm"
    return f" ({about})" if not row.rank else f" (rank {'over ' * row.more}{row.rank}, {about})"


@checked
def audit(
    before: Model | str | Path,
    after: Model | str | Path,
    facts: Fact | str | Iterable[Fact] | None = None,
    *,
    subject: str | None = None,
    ranks: Count = RANKS,
    parts: Count = PARTS,
    k: Count = TOKENS,
    lens: Lens = LOGIT,
    progress: Progress | None = None,
) -> Audit:
    """What an edit left behind: which matrices of a checkpoint changed, by what rank, and which facts.

    From both checkpoints alone, whoever made the edit: by ffnmem, with PEFT (merged), by fine-tuning or by hand. Hooks,
    and adapters that are not merged, are no weights and not seen.

    Each tensor that differs is named with its size and rank. A change is read part by part (its singular vectors):
    which neurons it uses, and which tokens it promotes and suppresses. Facts are asked of both models.

    Args:
        before: the original: a model, or what :func:`ffnmem.load` takes. after: the one to look into, of the same
            architecture and sizes.
        facts: to ask both models; or a text, with the ``subject`` in it.
        ranks: singular values to count. parts: of each matrix to read. k: tokens at each end of a part.
        lens: how what FFNs write is read in tokens, as :func:`ffnmem.project` takes it.
        progress: called as ("audit", done, total) in tensors that changed; with facts then as ("answers", done, total)
            in facts.

    Returns: An :class:`Audit`. With facts a part of an FFN down projection has the sign of the subject's key which uses
        it most. No other sign follows from weights: there the first of the part's neurons is positive.

    Raises: InputError: models of other sizes or architectures, or one that runs by a bridge; a text without its
        subject. What :func:`ffnmem.load` raises.

    Source: Bandeira and van Handel 2016 (1408.6185), §1: the largest singular value of independent errors is at most
        about the longest row of their standard deviations plus the longest column. Halko et al. 2011 (0909.4061):
        singular values.
    """
    first, second = (one if isinstance(one, Model) else load(one) for one in (before, after))
    asked = None if facts is None else list_facts(facts, subject)
    through = load_lens(first, lens)
    pairs = pair_weights(first, second)
    differ = [pair for pair in pairs if pair.differs]
    changed = [pair for pair in differ if not pair.is_rounding]
    steps = [rounding_step(model) for model in (first, second)]
    step = steps[1] if len(changed) == len(differ) else max(steps)
    changes = []
    for done, pair in enumerate(changed, 1):
        changes.append(WeightChange.of(pair, step, ranks, parts))
        if progress is not None:
            progress("audit", done, len(changed))
    table = None
    if asked is not None:
        table, changes = ask_facts(first, second, asked, changes, progress)
    changes.sort(key=lambda change: (not change.rank, -change.of_norm))
    rows = [(c.pair.layer, c.pair.matrix, c.pair.name, c.norm, c.of_norm, c.rank, c.more, c.tolerance) for c in changes]
    return Audit(
        matrices=pd.DataFrame(rows, columns=list(MATRICES)),
        parts=tuple(read_parts(first, changes, parts, k, through)),
        facts=table,
        compared=len(pairs),
        rounded=len(differ) - len(changed),
        before=first.name,
        after=second.name,
        provenance=first.provenance(lens=describe_lens(through)),
        other=second.provenance(),
    )


def list_facts(facts: Fact | str | Iterable[Fact], subject: str | None) -> list[Fact]:
    """Facts, or a text about a subject as one; nobody reads what its target is."""
    if not isinstance(facts, str):
        return as_facts(facts)
    if subject is None:
        raise InputError("a text needs the subject that it is about: name it with subject= (--subject)")
    return [Fact.from_text(facts, subject, true="unknown")]


def ask_facts(
    before: Model, after: Model, facts: list[Fact], changes: Sequence[WeightChange], progress: Progress | None
) -> tuple[pd.DataFrame, list[WeightChange]]:
    """The table of facts, and the changes with the signs of the subjects' keys."""
    own = {i: change for i, change in enumerate(changes) if change.pair.matrix == "FFN down" and change.is_low}
    keys: dict[int, list[Tensor]] = {change.pair.layer: [] for change in own.values()}
    rows = []
    for done, fact in enumerate(facts, 1):
        ids = before.tokenize(fact.text)
        one, two = (last_logits(model, ids)[0].double().softmax(0).cpu() for model in (before, after))
        raised = int((two - one).argmax())
        says = before.token_strings([int(one.argmax()), int(two.argmax()), raised])
        distance = float((two - one).abs().sum()) / 2
        changed = int(one.argmax()) != int(two.argmax())
        rows.append((fact.name, fact.subject, fact.text, *says, changed, float(two[raised] - one[raised]), distance))
        if keys:
            asked = ask_about(before, fact.prompt, fact.subject)
            ids = list(asked.tokens[: asked.subject_last + 1])
            taken = capture(before, torch.tensor([ids]), layers=list(keys))
            for layer, found in keys.items():
                found.append(taken.coefficients[layer][0, -1].double().cpu())
        if progress is not None:
            progress("answers", done, len(facts))
    table = pd.DataFrame(rows, columns=list(FACTS))
    moved, turned = torch.full((len(facts),), torch.nan, dtype=torch.float64), list(changes)
    for i, change in own.items():
        m, old, new = (
            torch.stack(keys[change.pair.layer]),
            *map(change.pair.wide, (change.pair.before, change.pair.after)),
        )
        moved = moved.fmax((m @ (new - old)).norm(dim=1) / (m @ old).norm(dim=1))
        use = m @ change.units.T
        turned[i] = change.turn_round(use.gather(0, use.abs().argmax(0, keepdim=True)).sign()[0])
    table["moved"] = moved.numpy()
    return table.sort_values("distance", ascending=False, kind="stable", ignore_index=True), turned


def read_parts(
    model: Model, changes: Sequence[WeightChange], parts: int, k: int, lens: JacobianLens | None
) -> Iterator[ChangePart]:
    """The first parts of each change, in neurons and tokens."""
    scorers = {side: Scorer(side_tokens(model, side), k) for side in ("value", "key")}
    for change in changes:
        layer, matrix, side = change.pair.layer, change.pair.matrix, change.pair.side
        for i, (unit, size) in enumerate(zip(change.units[:parts], change.sizes.tolist(), strict=False)):
            part = ChangePart(layer, matrix, i + 1, size, size**2 / change.norm**2)
            most = unit.abs().topk(min(k, len(unit))).indices.tolist()
            if side == "tokens":
                part = replace(part, neurons=tuple(model.token_strings(most)))
            elif side:
                kind = "value" if side == "writes" else "key"
                vector = fold_vectors(
                    model, layer, matrix, kind, at_least_float32(change.stream[[i]]).to(model.device), lens
                )
                (ends,), _ = scorers[kind].extremes(vector)
                names = [tuple(model.token_strings(ids.tolist())) for ids in ends]
                neurons = tuple(f"{layer}.{neuron}" for neuron in most) if matrix.startswith("FFN") else ()
                part = replace(part, neurons=neurons, promotes=names[0], suppresses=names[1])
            yield part


def fold_vectors(
    model: Model, layer: int, matrix: str, kind: str, vectors: Float[Tensor, "n d_model"], lens: JacobianLens | None
) -> Float[Tensor, "n d_model"]:
    """What :func:`ffnmem.project` makes of values and keys; of attention with its own norms."""
    if matrix.startswith("FFN"):
        return ready(model, layer, kind, vectors, "folded", lens if kind == "value" else None)
    block = model.layout.blocks[layer]
    norm = model.layout.norm(block.attention_norm if kind == "key" else block.attention_post, model.d_model)
    if kind == "key":
        return vectors if norm is None else norm.pull(vectors)
    return FinalNorm(model).norm.passed(vectors if norm is None else norm.passed(vectors))
