"""Whether an edit does what it is for: its own prompts, asked with the change of the weights itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..models.answers import Answered, Question, answer
from ..models.replaying import Change, PlainLayers, Replay
from .edit import Edit, row_changes
from .requests import Request, request_for


@dataclass(frozen=True)
class Verified:
    """What a model says to a fact's prompt with the change of its weights, which acts at every position.

    Attributes:
        before, after: the target's probability without and with the change, the geometric mean over its tokens.
        reached: whether each token of the target is the likeliest where it stands: greedy decoding gives it.
        says: the likeliest token after the prompt.
        unseen: the share of contexts that no search had in which greedy decoding gives it, of those behind which the
            unedited model says what it says without; NaN where there are none.
        gain: how much of what the change writes at the subject's last token it writes at another position of the same
            row: the projection, largest in size over positions and layers. ΔW is δ at one position where it is 0.
    """

    before: float
    after: float
    reached: bool
    says: str
    gain: float
    unseen: float = math.nan

    def numbers(self) -> dict[str, Any]:
        """As an edit records it."""
        told = {name: getattr(self, name) for name in ("before", "after", "reached", "says", "gain")}
        return told if math.isnan(self.unseen) else {**told, "unseen": self.unseen}


def verify(layers: PlainLayers, requests: Sequence[Request], edit: Edit, unseen: Sequence[str] = ()) -> list[Verified]:
    """What a model says to the prompts of requests with an edit of all of them, in one pass of the layers from it on.

    Args:
        layers: of the model that the edit was made for.
        requests: which. edit: of them. unseen: contexts behind which the prompts are asked, too.
    """
    count = len(requests)
    rows = row_changes(layers.model, [edit], [0] * count * (1 + len(unseen)))
    gains = [math.nan] * len(requests)

    def changing(which: Int[Tensor, " rows"], replay: Replay) -> Change:
        change = rows.changing(which, replay)

        def measured(layer: int, part: str, first: int, written: Tensor, m: Tensor | None) -> Tensor:
            after = change(layer, part, first, written, m)
            if part == "ffn" and layer in edit.layers:
                more = after.double() - written.double()
                for row, place in enumerate(which.tolist()):
                    if place >= count:
                        continue
                    at = replay.length - requests[place].rows[0].after - first
                    pads = 0 if replay.mask is None else int((~replay.mask[row]).sum())
                    found = gain_of(more[row, max(pads - first, 0) :], at - max(pads - first, 0))
                    if math.isnan(gains[place]) or abs(found) > abs(gains[place]):
                        gains[place] = found
            return after

        return measured

    behind = [request_for(layers.model, one.fact, one.target, one.ids, unseen) for one in requests] if unseen else []
    questions = [Question(request.prompt, (request.ids,)) for request in requests]
    questions += [Question(row.prompt(one.ids), (one.ids,)) for one in behind for row in one.rows]
    clean, said = answer(layers, questions, changing, start=rows.lowest, next_token=True)
    before, found = [likeliest(one) for one in clean], []
    for i, (one, gain) in enumerate(zip(said[:count], gains, strict=True)):
        places = range(count + i * len(unseen), count + (i + 1) * len(unseen))
        # Behind a context where the model as it is says something else, an edit of what it says cannot be seen.
        own = [said[place].exact[0] for place in places if before[place] == before[i]]
        share = sum(own) / len(own) if own else math.nan
        says = layers.model.token_strings([likeliest(one)])[0]
        chance, after = math.exp(clean[i].mean_log(0)), math.exp(one.mean_log(0))
        found.append(Verified(chance, after, one.exact[0], says, gain, share))
    return found


def likeliest(said: Answered) -> int:
    """The token that a model gives after a prompt."""
    assert said.next_log is not None
    return int(said.next_log.argmax())


def gain_of(more: Float[Tensor, "pos d_model"], at: int) -> float:
    """The largest projection of what is written elsewhere on what is written at a position, in units of it.

    NaN where nothing is written there, or that position does not run: above the last layer none but the last does.
    """
    if not 0 <= at < len(more) or not bool(more[at].any()):
        return math.nan
    along = more @ more[at] / (more[at] @ more[at])
    along[at] = 0.0
    return float(along[int(along.abs().argmax())])
