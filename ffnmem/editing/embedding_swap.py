"""``embedding_swap``: a fact rewritten by adding embeddings to the values of its knowledge neurons, as a baseline."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..arguments import public
from ..captures import capture
from ..errors import InputError, check_count, quoted
from ..facts import Fact
from ..facts.asking import target_ids
from ..interventions import knowledge_neurons
from ..models import Model
from ..models.turns import in_turn
from .edit import Edit
from .edit_record import LayerChange
from .preparing import EditPlan, Progress, check_change, make_edit, one_or_all, plan_edits

NEURONS, LESS, MORE = 5, 1.0, 8.0  # λ₁ and λ₂: the knowledge-neuron authors' program


@public
@in_turn
def embedding_swap(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    *,
    subject: str | None = None,
    neurons: int = NEURONS,
    less: float = LESS,
    more: float = MORE,
    force: bool = False,
    progress: Progress | None = None,
) -> Edit | tuple[Edit, ...]:
    """Rewrite a fact in its knowledge neurons: their values lose the old answer's embedding and get the new one's.

    Args:
        model, facts, target, subject, force, progress: as :func:`ffnmem.rome` has them.
        neurons: how many, those with the largest attribution at the prompt's end.
        less, more: how many times the embedding of the old and the new answer's first token is subtracted, added.

    Returns: An :class:`Edit` for one fact, a tuple for some.

    Raises: InputError: no target, numbers out of range, targets that begin alike, an outlier that is not forced.
        UnsupportedModelError: layers that cannot be run by themselves.

    Source: Dai et al. 2022 (2104.08696), §4.4.
    """
    plan = plan_edits(model, facts, target, subject=subject, contexts=("{}",))
    edits = []
    for i in range(len(plan.requests)):
        edits.append(swapped(plan, i, neurons=neurons, less=less, more=more, force=force))
        if progress is not None:
            progress(i + 1, len(plan.requests))
    return one_or_all(facts, edits)


def swapped(
    plan: EditPlan, which: int, *, neurons: int = NEURONS, less: float = LESS, more: float = MORE, force: bool = False
) -> Edit:
    """The edit of one of a plan's requests; see :func:`embedding_swap`."""
    check_count("neurons", neurons)
    for name, value in (("less", less), ("more", more)):
        if not value >= 0:
            raise InputError(f"{name} must be at least 0, not {quoted(value)}")
    request = plan.requests[which]
    model = plan.model
    old, new = target_ids(model, request.fact.target_true)[0], request.ids[0]
    name = repr(request.fact.name)
    if old == new:
        both = model.token_strings([new])[0]
        raise InputError(f"fact {name}: both targets begin with {quoted(both)}, and only first tokens are rewritten")
    found = knowledge_neurons(capture(model, request.fact.text), old)
    top = found.neurons[found.neurons["attribution"] > 0].head(neurons)
    if top.empty:
        raise InputError(f"no neuron adds to the answer of fact {name}")
    embedding = model.embedding.detach().double()
    direction = more * embedding[new] - less * embedding[old]
    changes = []
    for layer, some in top.groupby("layer"):
        at = int(str(layer))
        left = torch.zeros(1, model.ffn[at].d_mlp, dtype=torch.float64)
        left[0, some["neuron"].tolist()] = 1.0
        changes.append(LayerChange(at, left, direction.unsqueeze(0)))
    pairs = [f"{layer}.{neuron}" for layer, neuron in zip(top["layer"], top["neuron"], strict=True)]
    ratio = check_change(plan, changes, name, force)
    row = {"id": request.fact.id, "neurons": " ".join(pairs), "before": found.probability, "change": ratio}
    recorded = {"neurons": neurons, "less": less, "more": more}
    return make_edit(plan, [which], "embedding_swap", changes, [row], recorded)
