"""``EditDiff``: which memories fire otherwise with an edit, and what that does to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.provenance import Provenance
from ..core.sheets import Prompt
from ..core.types import checked
from ..facts.answers import Answer, read_answer
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm, pulled_through
from ..prompts.attribution import Attribution, rank_cells
from ..prompts.captures import Capture, answer_probability
from ..show.result import Result
from .changes import EditedLayer

COMPONENTS = 4  # that are named


@checked
@dataclass(frozen=True, eq=False, repr=False)
class EditDiff(Result):
    """A prompt before and after an edit, memory by memory. Made by :meth:`ffnmem.Edit.diff`.

    Each side is the direct attribution of the target's logit (minus the foil's) in the model of that side, so the
    changes of all components add up to the change of the logit.

    Attributes:
        neurons: memories that changed most, one row a neuron, largest \\|change\\| first: ``layer``, ``neuron``,
            ``coefficient_before``, ``coefficient_after``, ``logit_before``, ``logit_after``, ``change``, and
            ``written``: what of logit_after the edit's own factors add there, mᵢ Σᵣ leftᵣᵢ (rightᵣ·u), zero in other
            layers.
        components: one row a component: ``component``, ``layer``, ``logit_before``, ``logit_after``, ``change``.
        writes: where in the prompt the edit writes: ``layer``, ``position``, ``token``, ``norm`` of what it adds to the
            FFN's output there, ``share`` of the whole output's norm.
        hidden: how many neurons are not in ``neurons``.
        logit_before, logit_after, probability_before, probability_after: of the target, the logits minus the foil's. Of
            several tokens, all logits are sums over them, and coefficients those where the contribution changes most.
        target, foil, position, tokens: what was attributed, where, and the prompt's tokens.
        model: of which the tokens that neurons promote are.
    """

    neurons: pd.DataFrame
    components: pd.DataFrame
    writes: pd.DataFrame
    hidden: int
    logit_before: float
    logit_after: float
    probability_before: float
    probability_after: float
    target: str
    foil: str | None
    position: int
    tokens: tuple[str, ...]
    provenance: Provenance

    model: Model | None = None

    heading = "prompt target foil logit_before logit_after probability_before probability_after"
    tables: ClassVar = {
        "neurons": "neuron coefficient> logit> change written|promotes",
        "components": "*",
        "writes": "token layer norm share",
    }

    @classmethod
    def of(
        cls,
        changes: Sequence[EditedLayer],
        answer: Answer,
        before: Capture,
        after: Capture,
        old: Attribution,
        new: Attribution,
        k: int | None,
    ) -> EditDiff:
        """The difference of two attributions of an answer, in the model without changes and with them."""
        neurons = neuron_table(old, new, project_written(changes, after, new))
        shown = neurons if k is None else neurons.head(k).copy()
        return cls(
            neurons=shown,
            components=component_table(old, new),
            writes=write_table(changes, after),
            hidden=len(neurons) - len(shown),
            logit_before=old.logit,
            logit_after=new.logit,
            probability_before=answer_probability(before, answer),
            probability_after=answer_probability(after, answer),
            target=new.target,
            foil=new.foil,
            position=new.position,
            tokens=new.tokens,
            provenance=before.provenance,
            model=before.model,
        )

    @property
    def change(self) -> float:
        """Of the logit."""
        return self.logit_after - self.logit_before

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.tokens, self.position)

    @property
    def count(self) -> int:
        """Of neurons, with those that are not listed."""
        return len(self.neurons) + self.hidden

    def shown_neurons(self, top: int | None) -> pd.DataFrame:
        """The neurons whose contribution changed most."""
        return self.neurons.head(len(self.neurons) if top is None else top)

    @property
    def verdict(self) -> str:
        """How far the logit moved, and by which components."""
        frame = self.components.sort_values("change", key=abs, ascending=False, kind="stable").head(COMPONENTS)
        names = [
            f"{row.component}{'' if pd.isna(row.layer) else f' of layer {row.layer}'}" for row in frame.itertuples()
        ]
        parts = ", ".join(f"{name} ({change:+.2f})" for name, change in zip(names, frame["change"], strict=True))
        minus = "" if self.foil is None else f" minus {quoted(self.foil)}"
        by = f"{self.change:+.2f}{self.provenance.before_cap}"
        return f"With the edit the logit of {quoted(self.target)}{minus} changes by {by}, most of it by {parts}."


def read_first(
    before: Capture, target: str, foils: Sequence[str | None], position: SupportsIndex, word: bool
) -> Answer:
    """The answer that is attributed, against the first foil that a token tells it from."""
    model, at = before.model, before.position(position)
    tokens = before.tokens[0, : at + 1].tolist()
    for foil in foils:
        try:
            return read_answer(model, tokens, target, foil, word=word, logits=lambda: before.logits_at(0, at))
        except InputError:
            if foil is foils[-1]:
                raise
    raise AssertionError("there are no foils")


def project_written(changes: Sequence[EditedLayer], after: Capture, new: Attribution) -> Float[Tensor, "layer d_mlp"]:
    """What the edit's own factors add to each neuron's logit: mᵢ Σᵣ leftᵣᵢ (rightᵣ·u/σ), summed over the tokens that
    are read, in float64."""
    assert after.residual is not None
    norm, at = FinalNorm(after.model), list(new.positions)
    final_in = at_least_float32(after.residual.final_in[0, at])
    u, _ = norm.directions(torch.tensor(new.target_ids, device=after.model.device), new.foil_id)
    direction = u / norm.scale(final_in).unsqueeze(-1)
    found = torch.zeros(new.neuron_logits.shape[1:], dtype=torch.float64)
    for change in changes:
        m = after.coefficients[change.layer][0, at].double().cpu()
        along = pulled_through(after.model, change.layer, direction, after.ffn_out[change.layer][0, at]).double().cpu()
        found[change.layer, : m.shape[1]] = (m * (along @ change.right.T @ change.left)).sum(0)
    return found


def neuron_table(old: Attribution, new: Attribution, own: Float[Tensor, "layer d_mlp"]) -> pd.DataFrame:
    """Every neuron, by falling \\|change\\|, ties by layer and neuron."""
    logits = [one.neuron_logits.double().cpu() for one in (old, new)]
    most = (logits[1] - logits[0]).abs().argmax(0, keepdim=True)  # of several tokens, that where it changes most
    before, after = (one.sum(0) for one in logits)
    ends = {
        f"coefficient_{name}": one.coefficients.cpu().gather(0, most)[0]
        for name, one in (("before", old), ("after", new))
    }
    ends |= {"logit_before": before, "logit_after": after}
    frame = rank_cells(["layer", "neuron"], new.widths, None, change=after - before, written=own, **ends)
    return frame[["layer", "neuron", *ends, "change", "written"]]


def component_table(old: Attribution, new: Attribution) -> pd.DataFrame:
    """Every component before and after, in the order of the residual stream."""
    frame = old.total.components.rename(columns={"logit": "logit_before"})
    frame["logit_after"] = new.total.components["logit"]
    frame["change"] = frame["logit_after"] - frame["logit_before"]
    frame.attrs = {}
    return frame


def write_table(changes: Sequence[EditedLayer], after: Capture) -> pd.DataFrame:
    """What the edit adds to its layers' FFN outputs at each position of the prompt."""
    found = []
    for change in changes:
        m = after.coefficients[change.layer][0].double().cpu()
        norms = ((m @ change.left.T) @ change.right).norm(dim=-1)
        whole = after.ffn_out[change.layer][0].double().cpu().norm(dim=-1)
        for position, name in enumerate(after.token_strings()):
            norm = float(norms[position])
            share = norm / float(whole[position]) if float(whole[position]) else float("nan")
            found.append((change.layer, position, name, norm, share))
    return pd.DataFrame(found, columns=["layer", "position", "token", "norm", "share"])
