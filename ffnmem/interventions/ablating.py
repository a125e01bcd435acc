"""``ablate``: many neurons removed one at a time, with everything below them reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..arguments import public
from ..captures import Capture
from ..contributions import Target, attribute
from ..errors import InputError, check_choice, check_count, quoted
from ..models.final_norm import at_least_float32
from ..models.turns import in_turn
from ..neuron_names import NeuronNames, pair_of
from ..paths import attribute_paths
from .ablation import COLUMNS, Ablation
from .changes import Change, Mean, Set, as_change
from .clean import Question, ask
from .plan import make_plan

BATCH = 64
CHOSEN_BY = ("direct", "paths")


@public
@in_turn
def ablate(
    capture: Capture,
    target: Target = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    neurons: NeuronNames | None = None,
    top: int | None = 20,
    by: str = "direct",
    how: str | float | Change = "zero",
    positions: SupportsIndex | Iterable[SupportsIndex] | None = None,
    prompt: SupportsIndex = 0,
    first_token: bool = False,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> Ablation:
    """What removing each of some neurons, one at a time, does to an answer: its direct and its total effect.

    The direct effect is what :func:`ffnmem.attribute` says: the neuron's own write, read by the frozen final norm. The
    total effect is what the model then says without it, through all later layers and positions. They differ where later
    layers make up for the loss, pass it on, or read it for something else.

    A neuron is removed at every position of the prompt, the beginning-of-sequence token's too, unless ``positions``
    says where. Each row of a batch is one ablation; it restarts above its neuron's layer with all below reused, and
    only positions from the first changed one on are computed. The numbers are those of one :func:`ffnmem.intervene`
    and one forward pass for each neuron, to rounding.

    Args:
        capture: of all layers, without an intervention.
        target: the token, as :func:`ffnmem.attribute` takes it; default: the model's own top token.
        foil: a second token: effects on logit(target) − logit(foil).
        position: where the answer is read.
        neurons: ``"3.17"`` or (layer, neuron) of each; default the ``top`` ones (None: all).
        by: which are top: "direct", the largest direct effects, or "paths", the largest sums over positions of
            :func:`ffnmem.attribute_paths`: a memory that writes at the subject for attention to read has no direct
            effect at the answer.
        how: "zero"; "mean", over the capture's content positions; a number; or a change as ``intervene`` takes one,
            such as ``Mean(store)`` or ``Scale(2.0)``.
        positions: where to remove them, negatives from the prompt's end; none right of ``position``.
        prompt: which prompt of a batch.
        first_token: take the first token of a target or foil of several tokens instead of refusing it.
        batch: ablations at once; memory grows with it and with the prompt's length.
        progress: called with the ablations done and all of them.

    Raises:
        InputError: no single target, a partial or outdated capture, an unknown ``how``, no neurons. OutOfRangeError: no
            such layer, neuron or position. UnsupportedModelError: layers that cannot be run by themselves.
    """
    check_count("batch", batch)
    asked = ask(capture, target, foil, position, prompt, first_token)
    change = as_how(how, capture)
    cells = choose_cells(asked, positions, prompt)
    chosen = choose_neurons(asked, neurons, top, by)
    found = effects(asked, chosen, change, cells, batch, progress)
    clean_logit, clean_log = (float(x) for x in asked.scores(asked.restart.stream[-1][-1:]))
    frame = effect_frame(chosen, found, clean_logit, clean_log)
    model, words = asked.model, how_words(how, change)
    provenance = capture.provenance.with_settings(
        ablated=words, positions="all" if cells is None else list(cells), **seed_of(change)
    )
    frame.attrs = {"provenance": provenance.as_dict()}
    names = model.token_strings([asked.target, *([] if asked.foil is None else [asked.foil])])
    return Ablation(
        neurons=frame,
        logit=clean_logit,
        probability=float(np.exp(clean_log)),
        loss=-clean_log,
        target=names[0],
        target_id=asked.target,
        foil=None if asked.foil is None else names[1],
        foil_id=asked.foil,
        position=asked.position,
        positions=cells,
        how=words,
        tokens=tuple(capture.token_strings(prompt)),
        provenance=provenance,
    )


def as_how(how: Any, capture: Capture) -> Change:
    if isinstance(how, str):
        if how not in ("zero", "mean"):
            raise InputError(
                f"how {quoted(how)} is unknown: choose 'zero', 'mean', a number or a change such as Scale(2.0)"
            )
        return Set(0.0) if how == "zero" else Mean(capture)
    return as_change(how)


def how_words(how: Any, change: Change) -> str:
    return {"zero": "set to zero", "mean": "set to their mean"}.get(how, "") if isinstance(how, str) else str(change)


def seed_of(change: Change) -> dict[str, int]:
    seed = getattr(change, "seed", None)
    return {} if seed is None else {"seed": seed}


def choose_cells(
    asked: Question, positions: SupportsIndex | Iterable[SupportsIndex] | None, prompt: SupportsIndex
) -> tuple[int, ...] | None:
    """The positions to change, ascending; None for all. Raises InputError for one that cannot reach the answer."""
    if positions is None:
        return None
    wanted = list(positions) if isinstance(positions, Iterable) else [positions]
    if not wanted:
        raise InputError("positions is empty: name at least one, or leave it out for all")
    found = sorted({asked.capture.position(p, prompt) for p in wanted})
    if found[-1] > asked.position:
        raise InputError(
            f"position {found[-1]} stands right of the answer's, {asked.position}, which cannot see what changes there"
        )
    return tuple(found)


def choose_neurons(
    asked: Question, neurons: NeuronNames | None, top: int | None, by: str = "direct"
) -> list[tuple[int, int]]:
    """The neurons to remove, by ascending layer and neuron."""
    model = asked.model
    check_choice("by", by, CHOSEN_BY)
    if neurons is None and by == "paths":
        return along_paths(asked, top)
    if neurons is None:
        frame = attribute(asked.capture, asked.target, asked.foil, asked.position, prompt=asked.row).top(
            None if top is None else check_count("top", top)
        )
        return sorted(zip(frame["layer"].tolist(), frame["neuron"].tolist(), strict=True))
    pairs = list(neurons)
    if not pairs:
        raise InputError("neurons is empty: name some, as in ['3.17', (4, 5)], or leave it out for the top ones")
    return sorted({(model.layer(pair_of(pair)[0]), model.neuron(pair)) for pair in pairs})


def along_paths(asked: Question, top: int | None) -> list[tuple[int, int]]:
    """The neurons with the largest sums over positions, of either sign."""
    frame = attribute_paths(asked.capture, asked.target, asked.foil, asked.position, prompt=asked.row).neurons
    kept = frame if top is None else frame.head(check_count("top", top))
    return sorted(zip(kept["layer"].tolist(), kept["neuron"].tolist(), strict=True))


def effects(
    asked: Question,
    neurons: list[tuple[int, int]],
    change: Change,
    cells: tuple[int, ...] | None,
    batch: int,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Float[np.ndarray, " n"]]:
    """Coefficient, direct effect, the ablated logit and log-probability of each neuron, in float64; and its peak."""
    restart = asked.restart
    first = 0 if cells is None else cells[0]
    direction = asked.directions()
    names = ("coefficient", "direct", "logit", "log", "peak_position", "peak")
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    places = peak_places(asked, cells)
    differences: dict[int, Tensor] = {}
    with torch.no_grad():
        for begin in range(0, len(neurons), batch):
            some = neurons[begin : begin + batch]
            for layer in {layer for layer, _ in some} - set(differences):
                differences = {k: d for k, d in differences.items() if k >= some[0][0]}
                differences[layer] = difference(asked, layer, change, cells)
            delta = torch.stack([differences[layer][first:, neuron] for layer, neuron in some])
            values = torch.stack([asked.model.ffn[layer].values[neuron].detach() for layer, neuron in some])
            outputs = restart.outputs([layer for layer, _ in some], first, delta.unsqueeze(-1) * values.unsqueeze(1))
            final = restart.finish([layer for layer, _ in some], outputs)
            logit, log = asked.scores(final)
            parts["coefficient"].append(torch.stack([asked.coefficients(layer)[neuron] for layer, neuron in some]))
            firings = torch.stack([restart.coefficients[layer][places, neuron] for layer, neuron in some])
            highest = firings.abs().argmax(dim=1)
            parts["peak_position"].append(places[highest])
            parts["peak"].append(firings.gather(1, highest.unsqueeze(1)).squeeze(1))
            directions = torch.stack([direction[layer] for layer, _ in some])
            parts["direct"].append(-at_least_float32(delta[:, -1]) * (at_least_float32(values) * directions).sum(-1))
            parts["logit"].append(logit)
            parts["log"].append(log)
            if progress is not None:
                progress(begin + len(some), len(neurons))
    return {name: torch.cat(tensors).double().cpu().numpy() for name, tensors in parts.items()}


def peak_places(asked: Question, cells: tuple[int, ...] | None) -> Int[Tensor, " some"]:
    """Positions where neurons are removed and a token of the text stands; all of them where none does."""
    every = range(asked.position + 1) if cells is None else cells
    content = asked.capture.content[asked.row].tolist()
    return torch.tensor([p for p in every if content[p]] or list(every), device=asked.model.device)


def difference(
    asked: Question, layer: int, change: Change, cells: tuple[int, ...] | None
) -> Float[Tensor, "pos d_mlp"]:
    """By how much each coefficient of a layer changes when its neuron alone is intervened on."""
    m = asked.restart.coefficients[layer].unsqueeze(0)
    plan = make_plan(asked.model, {(layer, None): change})
    where = None
    if cells is not None:
        where = torch.zeros(m.shape[:2], dtype=torch.bool, device=m.device)
        where[0, list(cells)] = True

    def uniforms(seed: int) -> Float[Tensor, "batch pos"]:
        return torch.tensor(np.random.default_rng([seed, 0]).random(asked.model.n_ctx)[: m.shape[1]]).unsqueeze(0)

    return (plan.layers[layer].applied(m, where, uniforms) - m)[0]


def effect_frame(
    neurons: list[tuple[int, int]], found: dict[str, Float[np.ndarray, " n"]], logit: float, log: float
) -> pd.DataFrame:
    """The table of an Ablation: what each neuron adds, largest total effect first; ties by layer and neuron."""
    frame = pd.DataFrame(
        {
            "layer": [layer for layer, _ in neurons],
            "neuron": [neuron for _, neuron in neurons],
            "coefficient": found["coefficient"],
            "direct": found["direct"],
            "logit": logit - found["logit"],
            "probability": np.exp(log) - np.exp(found["log"]),
            "loss": log - found["log"],
            "peak_position": found["peak_position"].astype(np.int64),
            "peak": found["peak"],
        },
        columns=list(COLUMNS),
    )
    return frame.sort_values("logit", key=lambda total: -total.abs(), kind="stable", ignore_index=True)
