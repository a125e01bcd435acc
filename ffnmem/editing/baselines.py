"""``ft_l``: a fact rewritten by fine-tuning one layer's values within a bound, as a baseline."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Count, Positive, checked
from ..facts.fact import Fact
from ..models.model import Model
from ..models.replaying import Replay
from .changes import EditedLayer
from .edit import Edit
from .preparing import EditPlan, edit_each, make_edit, plan_edits
from .published import FT_L, plain_name
from .values import Adam, wide

STEPS, STOP = 25, 1e-2  # the ROME authors' program


@checked
def ft_l(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    layer: LayerName | None = None,
    bound: Positive | None = None,
    rate: Positive | None = None,
    steps: Count = STEPS,
    stop: float = STOP,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit | tuple[Edit, ...]:
    """Rewrite a fact by fine-tuning one layer's values on its prompt, no weight moving further than a bound.

    This is the ROME authors' baseline but for three things of their program: it tunes layer 0 (``layer=0``), the bias
    behind the values with them, and reads every token of a target at the prompt's last token. Of a target of one token
    in a layer without a bias both are the same.

    Args:
        model, facts, target, subject, layer, force, progress: as :func:`ffnmem.rome` has them.
        bound: the largest change of a weight (L∞); default the published one (5e-4 for GPT-2 XL), else a thirtieth of
            the root mean square of the layer's values.
        rate: Adam's; default the published 5e-4, else as large as the bound.
        steps, stop: at most so many, until the loss is so low.

    Returns: An :class:`Edit` for one fact, a tuple for some.

    Raises: InputError: no target, numbers out of range, an outlier that is not forced. OutOfRangeError: no such layer.

    Source: Zhu et al. 2020 (2012.00363); settings: Meng et al. 2022 (2202.05262), appendix E.1.
    """
    plan = plan_edits(model, facts, target, subject, layer, contexts=("{}",))
    make = partial(tune_values, plan, bound=bound, rate=rate, steps=steps, stop=stop, force=force)
    return edit_each(plan, facts, make, progress)


def tune_values(
    plan: EditPlan,
    which: int,
    *,
    bound: float | None = None,
    rate: float | None = None,
    steps: int = STEPS,
    stop: float = STOP,
    force: bool = False,
) -> Edit:
    """The edit of one of a plan's requests; see :func:`ft_l`."""
    layer, named = plan.settings.layer, FT_L.get(plain_name(plan.model.name))
    if rate is None and bound is None and named:
        rate = named.rate
    if bound is None:
        bound = named.bound if named else plan.norm(layer) / plan.model.ffn[layer].values.numel() ** 0.5 / 30
    rate, request = bound if rate is None else rate, plan.requests[which]
    row = request.rows[0]
    tokens = torch.tensor([row.tokens], device=plan.model.device)
    replay = Replay(plan.layers, tokens, start=layer)
    m, above, written = replay.coefficients[layer], replay.stream[layer + 1], replay.ffn[layer]
    ids = torch.tensor(request.ids, device=m.device)

    def loss_of(delta: Float[Tensor, "d_mlp d_model"]) -> Tensor:
        final = replay.finish([layer], plan.layers.more(layer, above, written, m @ delta.to(m.dtype)), last=len(ids))
        logs = wide(replay.logits(final[0])).log_softmax(-1)
        return -logs.gather(1, ids.unsqueeze(1)).mean()

    delta = wide(torch.zeros(m.shape[-1], above.shape[-1], dtype=m.dtype, device=m.device))
    adam = Adam(delta)
    taken, losses = 0, []
    for _ in range(steps):
        moving = delta.clone().requires_grad_()
        with torch.enable_grad():
            loss = loss_of(moving)
            losses.append(float(loss.detach()))
            if losses[-1] < stop:
                break
            (gradient,) = torch.autograd.grad(loss, moving)
        delta = (delta - rate * adam.step(gradient)).clamp(-bound, bound)
        taken += 1
    with torch.no_grad():
        last = float(loss_of(delta))
    change = EditedLayer(layer, delta.T, torch.eye(delta.shape[1], dtype=torch.float64))
    numbers = {"id": request.fact.id, "steps": taken, "loss": last}
    recorded = {"layer": layer, "bound": bound, "rate": rate, "steps": steps, "stop": stop}
    return make_edit(plan, [which], "ft_l", [change], [numbers], recorded, force)
