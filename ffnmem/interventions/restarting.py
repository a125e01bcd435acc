"""An answer whose prompt can be run again from any layer on: what ablation and knowledge neurons share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError
from ..models.model import AGREE, HALF
from ..models.replaying import PlainLayers, Replay
from ..models.residual import model_logits
from ..prompts.attribution import Next, targets_everywhere
from ..prompts.captures import Capture, Target
from ..prompts.causal import check_plain
from ..prompts.firings import PromptQuestion

EXACT = 1e-10  # of the largest, in float64


@dataclass(frozen=True, eq=False)
class RestartedQuestion(PromptQuestion):
    """One answer, and its prompt run layer by layer, each of which can be run again by itself."""

    replay: Replay

    @classmethod
    def of(
        cls,
        capture: Capture,
        target: Target | Next,
        foil: str | SupportsIndex | None,
        position: SupportsIndex,
        prompt: SupportsIndex | None,
        first_token: bool,
    ) -> RestartedQuestion:
        """Run the prompt once more, and check that this is the pass that was captured.

        Raises as :meth:`PromptQuestion.of`; InputError, too: several targets, or a capture of an intervention.
        UnsupportedModelError: layers that cannot be run again by themselves.
        """
        if isinstance(target, Next):
            target = int(targets_everywhere(capture, target, capture.position(position, prompt), prompt)[1])
        question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
        check_plain(capture)
        model, residual = question.model, question.capture.residual
        assert residual is not None
        expected = residual.final_in[question.row, : question.position + 1]
        tokens = question.tokens.unsqueeze(0)
        replay = Replay(PlainLayers(model), tokens)
        off = distance(replay, expected)
        if model.dtype == torch.float64 and off > EXACT:  # the bridge's attention takes its softmax in float32
            other = Replay(PlainLayers(model, "eager"), tokens)
            replay, off = min((replay, off), (other, distance(other, expected)), key=lambda pair: pair[1])
        if not off <= AGREE.get(model.dtype, HALF):
            raise InputError(
                f"{model.name}: its layers by themselves compute something else than was captured (off by {off:.1g}): "
                "remove hooks that change what passes, and load it without compatibility mode"
            )
        return cls(question.capture, question.row, question.answer, replay)

    @property
    def clean(self) -> Float[Tensor, "1 n d_model"]:
        """What reaches the final norm at the positions that are read."""
        return self.replay.stream[self.model.n_layers][:, self.answer.positions.start :]

    def scores(self, final: Float[Tensor, "rows n d_model"]) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
        """The target's logit (minus the foil's), before a soft cap, and its log-probability, each summed over the
        tokens that are read, in float64, of what reaches the final norm there."""
        logits, targets, foil = (
            self.replay.logits(final).double(),
            self.targets.expand(len(final), -1),
            self.answer.foil_id,
        )
        read = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        log = (read - logits.logsumexp(-1)).sum(-1)
        if self.model.layout.soft_cap is not None:
            normed = self.replay.layers.final_norm(final)
            return model_logits(self.model, normed, targets, foil).sum(-1), log
        return (read - (0.0 if foil is None else logits[..., foil])).sum(-1), log


def distance(replay: Replay, expected: Float[Tensor, "pos d_model"]) -> float:
    """The largest difference of what goes into the final norm, as a share of the largest number at its position.

    By position, because what stands at the first token may be a thousand times what stands elsewhere.
    """
    off = (replay.stream[len(replay.layers)][0] - expected).abs().amax(-1) / expected.abs().amax(-1).clamp(min=1e-30)
    return float(off.max())
