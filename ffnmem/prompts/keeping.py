"""``Keeping``: a prompt run with chosen firings kept and all others at their reference, many sets as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.errors import InputError
from .causal import causal_scores
from .firings import Firings, PromptQuestion

BATCH_TOKENS = 1024
CARRIES = 0.5
"""The least share of an answer that firings must keep to carry it: where less is left, those left out make more of it
than those kept."""
LEAST = 1e-4  # of the answer that the firings must make, for shares of it to mean anything

Set = Bool[Tensor, "layer pos d_mlp"]


class Keeping:
    """A prompt run with chosen firings as they come, and all others at their reference.

    A kept firing is what its neuron computes from what then stands below it, or ``recorded``, what it was in the
    capture. The beginning-of-sequence token's firings are kept always, and those of the positions ``always``.

    Attributes:
        reference: ``[layer, d_mlp]`` or ``[layer, pos, d_mlp]``; words: what it is.
        choosable: ``[layer, pos, d_mlp]``, the firings that are not always kept; total: how many these are.
        everything, nothing: Δ with all firings kept, and with none.
        runs: how many sets were run so far.
    """

    def __init__(
        self,
        question: PromptQuestion,
        reference: Float[Tensor, "layer *pos d_mlp"],
        words: str,
        recorded: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        always: Sequence[int] = (),
    ) -> None:
        self.question, self.model, self.recorded = question, question.model, recorded
        self.reference, self.words = reference, words
        self.own = question.coefficients
        self.shape = tuple(self.own.shape)
        self.always = torch.zeros(self.shape[1], dtype=torch.bool, device=self.model.device)
        self.always[[*range(question.capture.starts_with_bos), *always]] = True
        widths = torch.tensor(self.model.widths, device=self.model.device)
        there = torch.arange(self.shape[2], device=self.model.device) < widths.reshape(-1, 1, 1)
        self.choosable = there & ~self.always.unsqueeze(-1)
        self.total = int(self.choosable.sum())
        self.batch = max(1, batch_tokens // len(question.tokens))
        self.runs = 0
        if not self.total:
            raise InputError(
                "there is no firing to choose: those of the beginning-of-sequence token, and of positions without a "
                "partner, are always kept"
            )
        ends = torch.ones(2, *self.shape, dtype=torch.bool, device=self.model.device)
        ends[1] = False
        self.everything, self.nothing = self.answers(iter(ends)).tolist()

    def check_matters(self) -> None:
        """Raise InputError where the answer is the same with all firings as they come and with none."""
        if not abs(self.everything - self.nothing) > LEAST * max(1.0, abs(self.everything)):
            raise InputError(
                f"with all firings at {self.words} this answer has a logit of {self.nothing:.4g}, as they come of "
                f"{self.everything:.4g}: there is nothing that firings could be enough for"
            )

    @property
    def values(self) -> str:
        """What kept firings are, in words."""
        return "as recorded" if self.recorded else "as computed"

    def shares(self, sets: Iterator[Set]) -> Float[np.ndarray, " n"]:
        """The share of the answer that each set keeps: (Δ − Δ(none)) / (Δ(all) − Δ(none))."""
        return (self.answers(sets) - self.nothing) / (self.everything - self.nothing)

    def answers(self, sets: Iterator[Set]) -> Float[np.ndarray, " n"]:
        """Δ of each set."""
        found: list[Tensor] = []
        while some := [one for _, one in zip(range(self.batch), sets, strict=False)]:
            with torch.no_grad():
                found.append(self.question.rerun(len(some), self.change(some)))
        return torch.cat(found).cpu().numpy() if found else np.zeros(0)

    def change(self, sets: Sequence[Set]) -> Callable[[int, Tensor], Tensor]:
        """What a batch of runs, one a set, does to each layer's coefficients."""
        kept = torch.stack(list(sets))
        kept[:, :, self.always] = True
        self.runs += len(kept)

        def changed(layer: int, m: Tensor) -> Tensor:
            own, reference = (of[layer, ..., : m.shape[-1]] for of in (self.own, self.reference))
            return torch.where(kept[:, layer, :, : m.shape[-1]], own if self.recorded else m, reference)

        return changed

    def worth(self, kept: Set) -> Float[Tensor, " all"]:
        """Of one set, (m − m̄)·∂Δ/∂m of each of its firings as it is there, for the share that the set keeps: with its
        sign turned where firings lower Δ."""
        (gradient,), (m,), _ = self.gradients([kept])
        reference = self.reference if self.reference.ndim == 3 else self.reference.unsqueeze(1)
        return ((m - reference).double() * gradient).flatten() * self.sign

    @property
    def sign(self) -> float:
        """-1 where firings lower Δ, else 1."""
        return 1.0 if self.everything > self.nothing else -1.0

    def gradients(
        self, sets: Sequence[Set]
    ) -> tuple[Float[Tensor, "set layer pos d_mlp"], Float[Tensor, "set layer pos d_mlp"], Float[np.ndarray, " set"]]:
        """Of some sets, run as one batch: ∂Δ/∂m of every firing, its coefficient there, and Δ."""
        gradients, m, logits = self.question.gradients(len(sets), self.change(sets))
        return self.model.stack_layers(gradients, 1), self.model.stack_layers(m, 1), logits.cpu().numpy()

    # -- sets ----------------------------------------------------------------------------------------------------

    def of(self, places: Int[np.ndarray, " n"]) -> Set:
        """The set of these firings, by their places in ``[layer, pos, d_mlp]``."""
        found = torch.zeros(self.shape, dtype=torch.bool, device=self.model.device)
        found.view(-1)[torch.as_tensor(places, device=self.model.device)] = True
        return found

    def counted(self) -> Int[np.ndarray, " total"]:
        """The places of all firings that are not always kept."""
        return np.flatnonzero(self.choosable.cpu().numpy())

    def ranked(self, firings: Any) -> tuple[Int[np.ndarray, " n"], str, bool]:
        """The places of firings, most important first; what they are in words; and whether their order says anything.

        ``firings``: None for all of them by their gradients against the same reference. Raises InputError: none, or of
        another prompt. OutOfRangeError: a firing that this prompt does not have.
        """
        if firings is None:
            question = self.question
            firings = causal_scores(
                question.capture, question.answer, mean=self.reference, prompt=question.row, exact=0
            )
        if isinstance(firings, Firings):
            return self.by_score(firings)
        found = [
            int(np.ravel_multi_index((layer, position, neuron), self.shape))
            for layer, neuron, position in self.question.triples(firings)
            if not self.always[position]
        ]
        if not found:
            raise InputError("firings is empty, or of the beginning-of-sequence token alone, whose are always kept")
        return np.array(found), "given", False

    def by_score(self, firings: Firings) -> tuple[Int[np.ndarray, " n"], str, bool]:
        scores = firings.scores
        other = firings.provenance.fingerprint != self.model.fingerprint
        if other or tuple(scores.shape) != self.shape or firings.tokens != self.question.texts:
            raise InputError("these scores are of another prompt, position or model than the capture")
        places = self.counted()
        size = np.abs(scores.double().cpu().numpy().ravel()[places])
        rule = getattr(firings, "rule", "paths")
        return places[np.argsort(-size, kind="stable")], f"largest |score| by {rule} first", True
