"""What ablation and knowledge-neuron attribution share: a capture's prompt, ready to be run again, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..captures import Capture
from ..contributions import Target, choose_targets
from ..errors import InputError
from ..models import Model
from ..models.final_norm import FinalNorm, at_least_float32, model_logits
from ..models.model import AGREE, HALF
from ..models.restarting import Restart
from ..models.writes import pulled_through
from ..targets import token_after

EXACT = 1e-10  # of the largest, in float64


@dataclass(frozen=True, eq=False)
class Question:
    """One answer of one prompt of a capture."""

    capture: Capture
    row: int
    position: int
    target: int
    foil: int | None
    restart: Restart

    @property
    def model(self) -> Model:
        return self.capture.model

    def coefficients(self, layer: int) -> Float[Tensor, " d_mlp"]:
        """At the answer's position."""
        return self.restart.coefficients[layer][-1]

    def scores(self, final: Float[Tensor, "rows d_model"]) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
        """The target's logit (minus the foil's) and its log-probability, in float64, of what reaches the final norm.

        The logit is that of :func:`ffnmem.attribute`: before a soft cap, where the model has one.
        """
        logits = self.restart.logits(final).double()
        target = logits[:, self.target]
        log = target - logits.logsumexp(-1)
        if self.model.layout.soft_cap is not None:
            ids = torch.full((len(final),), self.target, device=final.device)
            return model_logits(self.model, self.restart.replay.layers.final_norm(final), ids, self.foil), log
        return target if self.foil is None else target - logits[:, self.foil], log

    def directions(self) -> list[Float[Tensor, " d_model"]]:
        """For each layer, what its FFN's output at the answer's position adds to the logit: u/σ, norms' scales frozen.

        Where a norm stands behind the FFN, u is taken through it.
        """
        norm = FinalNorm(self.model)
        u, _ = norm.directions(torch.tensor([self.target], device=self.model.device), self.foil)
        u = u / norm.scale(at_least_float32(self.restart.stream[-1][-1:])).unsqueeze(-1)
        written = self.restart.replay.ffn
        return [pulled_through(self.model, i, u, written[i][0, -1:])[0] for i in range(self.model.n_layers)]


def ask(
    capture: Capture,
    target: Target,
    foil: str | SupportsIndex | None,
    position: SupportsIndex,
    prompt: SupportsIndex,
    first_token: bool,
) -> Question:
    """Choose the answer, run its prompt once, and check that this is the pass that was captured.

    Raises InputError: several targets, a capture of some layers, of an intervention or of other weights.
    UnsupportedModelError: layers that cannot be run again by themselves. OutOfRangeError: no such position or prompt.
    """
    model = capture.model
    if capture.residual is None:
        raise InputError("this needs a capture of every layer: capture(model, prompt) without layers=")
    capture.check_current()
    made_under = dict(capture.provenance.settings).get("interventions")
    if made_under:
        raise InputError(f"the capture was made under an intervention ({made_under}): capture the prompt without it")
    positions, ids = choose_targets(capture, target, position, prompt, first_token)
    if len(positions) != 1:
        raise InputError("name one target at one position, not one for every position")
    row, last = capture.row(prompt), positions[0]
    expected = capture.residual.final_in[row, : last + 1]
    restart = Restart(model, capture.tokens[row, : last + 1])
    off = distance(restart, expected)
    if model.dtype == torch.float64 and off > EXACT:  # the bridge's attention takes its softmax in float32
        other = Restart(model, capture.tokens[row, : last + 1], "eager")
        restart, off = min((restart, off), (other, distance(other, expected)), key=lambda found: found[1])
    if not off <= AGREE.get(model.dtype, HALF):
        raise InputError(
            f"{model.name}: its layers by themselves compute something else than was captured (off by {off:.1g}): "
            "remove hooks that change what passes, and load it without compatibility mode"
        )
    foil_id = None if foil is None else token_after(capture, foil, row, last, first_token, "foil")
    return Question(capture, row, last, int(ids[0]), foil_id, restart)


def distance(restart: Restart, expected: Float[Tensor, "pos d_model"]) -> float:
    """The largest difference of what goes into the final norm, as a share of the largest number at its position.

    By position, because what stands at the first token may be a thousand times what stands elsewhere.
    """
    off = (restart.stream[-1] - expected).abs().amax(-1) / expected.abs().amax(-1).clamp(min=1e-30)
    return float(off.max())
