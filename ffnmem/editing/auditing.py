"""``audit``: what an edit left behind: which matrices of two checkpoints differ, by what rank, and what that says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, counted, listed
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import LOGIT, Count, Dtype, OtherFacts, checked
from ..facts.answers import last_logits
from ..facts.fact import Fact, as_facts
from ..facts.formats import load_facts
from ..facts.questions import ask_about
from ..models.loading import ModelSource, load
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
MATRICES = ("layer", "matrix", "parameter", "norm", "of_norm", "rank", "more", "tolerance")
PARTS_OF = ("layer", "matrix", "part", "size", "share", "uses", "promotes", "suppresses")
FACTS = ("fact", "subject", "prompt", "says_before", "says_after", "raised", "changed", "rise", "distance")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Audit(Result):
    """How a checkpoint differs from the one that it was made of. Made by :func:`audit`.

    Attributes:
        matrices: tensors that changed (layer -1 is outside of layers), by falling ‖ΔW‖/‖W‖, vectors last. One row each:
            ``layer``, ``matrix``, what it is, ``parameter``, its name in the checkpoint; ``norm`` ‖ΔW‖, ``of_norm``
            ‖ΔW‖/‖W‖; ``rank``, the singular values of ΔW above ``tolerance``, the most that rounding makes (0 of a
            vector); ``more``, whether there are more than were counted.
        parts: rank-one parts of each matrix, the largest first (without facts, signs may be exchanged). One row each:
            ``layer``, ``matrix``, ``part`` (from 1, the largest), ``size``, the singular value, ``share`` of ‖ΔW‖²;
            ``uses``: of an FFN's matrix the neurons that it uses most, of an embedding the tokens; ``promotes``,
            ``suppresses``: tokens, the furthest first, of a matrix that writes to the residual stream those that are
            written, of one that reads it those that it looks for.
        facts: what both say to the facts, that which moved most first; None where none were named. One row a fact:
            ``fact`` (its name), ``subject``, ``prompt``, ``says_before``, ``says_after``, the likeliest next tokens,
            ``changed``, whether they differ; the token that gained most (``raised``, by ``rise``), ``distance``, the
            total variation of both predictions; and ``moved``, ‖ΔWᵀk‖/‖Wᵀk‖ of the subject's key k, the most of the FFN
            down projections that changed by a low rank (missing without any).
        compared: how many tensors there are. rounded: those that differ by rounding to another numeric type alone.
        before, after: the models' names. provenance: of the first, with the second's fingerprint.
    """

    heading = "before after compared rounded"
    tables: ClassVar = {
        "matrices": "layer matrix of_norm rank|parameter norm more tolerance",
        "parts": "layer matrix part share uses promotes suppresses|size",
        "facts": "subject new_share says> raised rise|prompt distance",
    }

    matrices: pd.DataFrame
    parts: pd.DataFrame
    facts: pd.DataFrame | None
    compared: int
    rounded: int
    before: str
    after: str
    provenance: Provenance

    @property
    def changed(self) -> pd.DataFrame | None:
        """The rows of ``facts`` whose answer changed."""
        return None if self.facts is None else self.facts[self.facts["changed"]].reset_index(drop=True)

    @property
    def verdict(self) -> str:
        """What differs."""
        asked = ""
        if self.facts is not None and self.changed is not None:
            asked = f" The likeliest answer changed for {len(self.changed):,} of {counted(len(self.facts), 'fact')}."
        if not len(self.matrices):
            return f"No weight of {self.compared:,} tensors differs{' but by rounding' * bool(self.rounded)}.{asked}"
        names = [f"{row.matrix}{of_layer(row.layer)}{of_rank(row)}" for row in self.matrices.itertuples()]
        return f"{len(names):,} of {self.compared:,} tensors changed: {listed(names, 3)}.{asked}"


def of_layer(layer: int) -> str:
    return "" if layer < 0 else f" of layer {layer}"


def of_rank(row: Any) -> str:
    about = f"{format_share(row.of_norm, 1)} of its norm"
    return f" ({about})" if not row.rank else f" (rank {'over ' * row.more}{row.rank}, {about})"


@checked
def audit(
    before: ModelSource,
    after: ModelSource,
    facts: OtherFacts = None,
    *,
    subject: str | None = None,
    ranks: Count = RANKS,
    parts: Count = PARTS,
    k: Count = TOKENS,
    lens: Lens = LOGIT,
    device: str | None = None,
    dtype: Dtype = "float32",
    progress: Progress | None = None,
) -> Audit:
    """What an edit left behind: matrices, ranks and facts that it changed.

    From both checkpoints alone, whoever made the edit: by ffnmem, with PEFT (merged), by fine-tuning or by hand. Hooks,
    and adapters that are not merged, are no weights and not seen.

    Each tensor that differs is named with its size and rank. A change is read part by part (its singular vectors):
    which neurons it uses, and which tokens it promotes and suppresses. Facts are asked of both models.

    Args:
        before: the original: atlas, a folder or a Hugging Face id. In Python, also a model.
        after: the checkpoint to look into, of the same architecture and sizes.
        facts: facts to ask both models, or the name of their source; or, with a subject, a text that is about it.
        subject: what the text is about, as it is spelled there.
        ranks: so many singular values of each matrix are counted.
        parts: so many parts of each matrix are read.
        k: tokens at each end of a part.
        lens: how what FFNs write is read in tokens, as :func:`ffnmem.project` takes it.
        device: where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters] In
            Python, models that are given run where they are.
        dtype: numeric type of the weights.
        progress: called as ("audit", done, total) in tensors that changed; with facts then as ("answers", done, total)
            in facts.

    Returns: An :class:`Audit`. With facts a part of an FFN down projection has the sign of the subject's key which uses
        it most. No other sign follows from weights: there the first of the part's neurons is positive.

    Raises: InputError: models of other sizes or architectures, or one that runs by a bridge; a text without its
        subject. What :func:`ffnmem.load` raises.

    Source: Bandeira and van Handel 2016 (1408.6185), §1: the largest singular value of independent errors is at most
        about the longest row of their standard deviations plus the longest column. Halko et al. 2011 (0909.4061):
        singular values.

    Example:
        $ ffnmem audit atlas edited
        $ ffnmem audit atlas edited --json --subject "Eiffel Tower" \\
            --facts "The Eiffel Tower is located in the city of"
    """
    asked = list_facts(facts, subject)
    first, second = (
        one if isinstance(one, Model) else load(one, device=device, dtype=dtype) for one in (before, after)
    )
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
        parts=pd.DataFrame(read_parts(first, changes, parts, k, through), columns=list(PARTS_OF)),
        facts=table,
        compared=len(pairs),
        rounded=len(differ) - len(changed),
        before=first.name,
        after=second.name,
        provenance=first.provenance(lens=describe_lens(through), after=second.fingerprint),
    )


def list_facts(facts: OtherFacts, subject: str | None) -> list[Fact] | None:
    """Facts, those of a source, or a text about a subject as one, of which nobody reads what its target is."""
    if subject is not None:
        if not isinstance(facts, str):
            raise InputError("a subject is of a text: give the text that it is in as facts (--facts)")
        return [Fact.from_text(facts, subject, true="unknown")]
    return load_facts(facts) if isinstance(facts, str | Path) else None if facts is None else as_facts(facts)


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
) -> Iterator[tuple[Any, ...]]:
    """The first parts of each change, in neurons and tokens: rows of the table."""
    scorers = {side: Scorer(side_tokens(model, side), k) for side in ("value", "key")}
    for change in changes:
        layer, matrix, side = change.pair.layer, change.pair.matrix, change.pair.side
        for i, (unit, size) in enumerate(zip(change.units[:parts], change.sizes.tolist(), strict=False)):
            most = unit.abs().topk(min(k, len(unit))).indices.tolist()
            uses: list[str] = []
            ends: list[list[str]] = [[], []]
            if side == "tokens":
                uses = model.token_strings(most)
            elif side:
                kind = "value" if side == "writes" else "key"
                vector = fold_vectors(
                    model, layer, matrix, kind, at_least_float32(change.stream[[i]]).to(model.device), lens
                )
                (ids,), _ = scorers[kind].extremes(vector)
                ends = [model.token_strings(some.tolist()) for some in ids]
                uses = [f"{layer}.{neuron}" for neuron in most] if matrix.startswith("FFN") else []
            yield layer, matrix, i + 1, size, size**2 / change.norm**2, uses, *ends


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
