"""``ablate``: many neurons removed one at a time, with everything below them reused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, check_index, counted, listed, quoted
from ..core.neuron_names import NeuronNames, pair_of
from ..core.progress import Progress
from ..core.types import AblationOrder, Count, Removal, checked
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from ..prompts.answer_text import AnswerResult
from ..prompts.attribution import Attribution, Next, attribute
from ..prompts.captures import Capture, Target
from ..prompts.firings import PromptQuestion
from ..prompts.paths import attribute_paths
from .changes import Change, Mean, Set, as_change, make_plan
from .integrated_gradients import knowledge_neurons
from .restarting import RestartedQuestion

# `Ablation`: what the removal of each of some neurons does to an answer, beside what attribution says it does.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Ablation(AnswerResult):
    """Direct and total effects of single neurons on one answer. Made by :func:`ffnmem.ablate`.

    Effects are what the neuron adds: clean minus ablated, so that a positive one says that without the neuron the
    answer would be less likely; the loss likewise is ablated minus clean, what the neuron saves.

    Attributes:
        neurons: what the answer loses without each, by what it writes itself (direct) and in all (logit,
            probability), largest \\|logit\\| first: ``layer``, ``neuron``, ``coefficient`` (at the answer's
            position), ``direct`` (what it adds to the logit by itself, all else frozen), ``logit`` (what it adds in
            all, through every later layer and position), ``probability``, ``loss`` (in nats), ``peak_position`` and
            ``peak``: where among the tokens at which it was removed its coefficient is largest, and that coefficient. A
            neuron that writes at the subject for attention to read does not fire at the answer.
        logit, probability, loss: of the target in the clean pass; the logit minus the foil's if there is one. Of an
            answer of several tokens the logits and the direct effects are sums over its tokens, the probability and the
            loss are those of all of them together, and ``coefficient`` is that where the direct effect is largest.
        positions: where neurons were removed, None for every one of the prompt; how: what they became.
        tokens: all of the prompt; target, foil, position: as of :class:`PathAttribution`.
    """

    tables: ClassVar = {
        "neurons": "neuron peak peak_position direct logit probability attribution promotes | loss suppresses"
    }
    in_full = "neurons"

    neurons: pd.DataFrame
    logit: float
    probability: float
    loss: float
    positions: tuple[int, ...] | None
    how: str

    @property
    def spearman(self) -> float:
        """Rank correlation between direct and total effect on the logit; NaN where either is the same for all."""
        from scipy import stats

        direct, total = self.neurons["direct"], self.neurons["logit"]
        if direct.nunique() < 2 or total.nunique() < 2:
            return float("nan")
        return float(stats.spearmanr(direct, total).statistic)

    @property
    def opposite(self) -> int:
        """How many neurons have a direct effect of the other sign than their total one: there attribution misleads."""
        return int((self.neurons["direct"] * self.neurons["logit"] < 0).sum())

    @property
    def heading(self) -> str:  # type: ignore[override]
        return "prompt after target foil logit probability loss removed spearman opposite"

    @property
    def removed(self) -> str:
        """What became of the neurons, and where."""
        where = (
            "at every position"
            if self.positions is None
            else f"at position{'s' * (len(self.positions) > 1)} {listed(self.positions)}"
        )
        return f"{self.how} {where}"

    @property
    def verdict(self) -> str:
        """How far attribution says what ablation finds."""
        if len(self.neurons) == 1:
            layer, neuron, direct, logit = self.neurons[["layer", "neuron", "direct", "logit"]].to_dict("split")[
                "data"
            ][0]
            does = "gains" if logit < 0 else "loses"
            return (
                f"Without {layer}.{neuron} the answer {does} {abs(logit):.3f} logits of {self.logit:.3f}; the neuron "
                f"itself wrote {direct:+.3f}."
            )
        rank = self.spearman
        known = "" if rank != rank else f", with a rank correlation of {rank:.2f}"
        return (
            f"{counted(len(self.neurons), 'neuron')} removed one at a time: for {self.opposite:,} of them what "
            f"attribution says (direct) and what the answer loses (logit) differ in sign{known}."
        )


BATCH = 64


@checked
def ablate(
    capture: Capture,
    target: Target | Next = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    neurons: NeuronNames | None = None,
    most: Count | None = 20,
    by: AblationOrder = "direct",
    how: Removal = "zero",
    positions: SupportsIndex | Iterable[SupportsIndex] | None = None,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    batch: Count = BATCH,
    progress: Progress | None = None,
) -> Ablation:
    """What the absence of single neurons does to an answer.

    Removes neurons one at a time and compares the direct effect on the answer with the total one. The direct effect is
    what :func:`ffnmem.attribute` says: the neuron's own write, read by the frozen final norm. The total effect is what
    the model then says without it, through all later layers and positions. They differ where later layers make up for
    the loss, pass it on, or read it for something else.

    Note:
        A neuron is removed at every position of the prompt, the beginning-of-sequence token's too, unless ``positions``
        says where. Each row of a batch is one ablation; it restarts above its neuron's layer with all below reused, and
        only positions from the first changed one on are computed. The numbers are those of one
        :func:`ffnmem.intervene` and one forward pass for each neuron, to rounding.

    Args:
        capture: of all layers, without an intervention.
        target: as :func:`ffnmem.attribute` takes it; default: the model's own top token.
        foil: a second token: effects on logit(target) − logit(foil).
        position: where the answer is read.
        neurons: which ones, such as ``"3.17"``; default the ``most`` first ones. In Python, all where that is None.
        most: how many neurons are removed where none are named.
        by: which come first: direct, the largest direct effects; paths, the largest sums over positions of
            :func:`ffnmem.attribute_paths`: a memory that writes at the subject for attention to read has no direct
            effect at the answer; or integrated-gradients of the answer's probability, as
            :func:`ffnmem.interventions.knowledge_neurons` has them, which are a column ``attribution``, too.
        how: what a removed neuron's coefficient becomes: zero; mean, over the prompt without special tokens; or a
            number. In Python, also a change as :func:`ffnmem.intervene` takes one, such as ``Mean(store)`` or
            ``Scale(2.0)``.
        positions: where to remove them, negatives from the prompt's end; none right of ``position``.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.
        batch: ablations at once; memory grows with it and with the prompt's length.
        progress: called with "ablate", the ablations done and all of them.

    Raises:
        InputError: a target for every position, a partial or outdated capture, an unknown ``how``, no neurons.
        OutOfRangeError: no such layer, neuron or position. UnsupportedModelError: layers that cannot be run by
            themselves.

    Example:
        $ ffnmem ablate "The Eiffel Tower is located in the city of"
        $ ffnmem ablate "The Eiffel Tower is located in the city of" \\
            --target " Paris" --neurons 5.349,5.171 --how mean --positions -1
        $ ffnmem ablate "The capital of France is" --by paths
        $ ffnmem ablate "The capital of France is" --most 64 --plot effects.png
    """
    question = RestartedQuestion.of(capture, target, foil, position, prompt, first_token)
    if not isinstance(how, str):
        change = as_change(how)
        words = str(change)
    else:
        named: dict[str, tuple[Change, str]] = {
            "zero": (Set(0.0), "set to zero"),
            "mean": (Mean(capture), "set to their mean"),
        }
        if how not in named:
            known = "'zero', 'mean', a number or a change such as Scale(2.0)"
            raise InputError(f"how {quoted(how)} is unknown: choose {known}")
        change, words = named[how]
    cells = choose_cells(question, positions, capture.length(prompt))
    attributed = None
    if by == "integrated-gradients":
        if foil is not None:
            raise InputError("integrated gradients explain a probability, and take no foil: leave it out")
        asked: Any = {"prompt": prompt, "first_token": first_token}
        attributed = knowledge_neurons(capture, question.answer, position, **asked)[["layer", "neuron", "attribution"]]
        if neurons is None:
            neurons = list(attributed[["layer", "neuron"]][:most].itertuples(index=False, name=None))
    frame = measure_effects(question, choose_neurons(question, neurons, most, by), change, cells, batch, progress)
    logit, log = (float(score) for score in question.scores(question.clean))
    frame["logit"] = logit - frame["logit"]
    frame["probability"], frame["loss"] = np.exp(log) - np.exp(frame["log"]), log - frame["log"]
    frame = frame.sort_values("logit", key=lambda total: -total.abs(), kind="stable", ignore_index=True)
    frame = frame[["layer", "neuron", "coefficient", "direct", "logit", "probability", "loss", "peak_position", "peak"]]
    if attributed is not None:
        frame = frame.merge(attributed, on=["layer", "neuron"], how="left")
    where = "all" if cells is None else list(cells)
    provenance = capture.provenance.with_settings(ablated=words, positions=where)
    frame.attrs = {"provenance": provenance.to_dict()}
    return Ablation(
        neurons=frame,
        logit=logit,
        probability=float(np.exp(log)),
        loss=-log,
        positions=cells,
        how=words,
        **question.result_fields() | {"tokens": tuple(question.capture.token_strings(question.row))},
        provenance=provenance,
    )


def choose_cells(
    question: PromptQuestion, positions: SupportsIndex | Iterable[SupportsIndex] | None, length: int
) -> tuple[int, ...] | None:
    """The positions to change, ascending, negatives from the end of the prompt's ``length``; None for all. Raises
    InputError for one that cannot reach the answer."""
    if positions is None:
        return None
    wanted = [*positions] if isinstance(positions, Iterable) else [positions]
    whole = question.capture.length(question.row)  # with the answer's tokens
    sizes = [length if p.__index__() < 0 else whole for p in wanted]
    found = sorted({check_index("position", p, size, "this prompt") for p, size in zip(wanted, sizes, strict=True)})
    if not found:
        raise InputError("positions is empty: name at least one, or leave it out for all")
    if found[-1] > question.position:
        raise InputError(
            f"position {found[-1]} stands right of the answer's, {question.position}, which cannot see "
            "what changes there"
        )
    return tuple(found)


def choose_neurons(
    question: PromptQuestion, neurons: NeuronNames | None, most: int | None, by: str
) -> list[tuple[int, int]]:
    """The neurons to remove, by ascending layer and neuron."""
    if neurons is None:
        attributed = attribute_paths if by == "paths" else attribute
        found = attributed(question.capture, question.answer, prompt=question.row)
        frame = (found.total if isinstance(found, Attribution) else found).neurons[:most]
        return sorted(zip(frame["layer"].tolist(), frame["neuron"].tolist(), strict=True))
    pairs = {(question.model.layer(pair_of(pair)[0]), question.model.neuron(pair)) for pair in neurons}
    if not pairs:
        raise InputError("neurons is empty: name some, as in ['3.17', (4, 5)], or leave it out for the top ones")
    return sorted(pairs)


@torch.no_grad()
def measure_effects(
    question: RestartedQuestion,
    neurons: list[tuple[int, int]],
    change: Change,
    cells: tuple[int, ...] | None,
    batch: int,
    progress: Progress | None,
) -> pd.DataFrame:
    """One row a neuron, in float64: layer, neuron, coefficient, direct effect, logit and log-probability without it,
    and where its coefficient is largest of the tokens at which it is removed."""
    replay, model, read = question.replay, question.model, len(question.answer.positions)
    first = 0 if cells is None else min(cells[0], question.answer.positions.start)
    along, _, _ = question.reads()
    directions = [pulled_through(model, layer, along, replay.ffn[layer][0, -read:]) for layer in range(model.n_layers)]
    every = range(question.position + 1) if cells is None else cells
    content = question.capture.content[question.row].tolist()
    places = torch.tensor([p for p in every if content[p]] or list(every), device=model.device)
    parts: list[pd.DataFrame] = []
    changes: dict[int, Tensor] = {}
    for begin in range(0, len(neurons), batch):
        some = neurons[begin : begin + batch]
        layers = [layer for layer, _ in some]
        changes = {
            i: changes[i] if i in changes else difference(question, i, change, cells) for i in dict.fromkeys(layers)
        }
        delta = torch.stack([changes[layer][first:, neuron] for layer, neuron in some])
        values = torch.stack([model.ffn[layer].values[neuron] for layer, neuron in some])
        firings = torch.stack([replay.coefficients[layer][0, :, neuron] for layer, neuron in some])
        outputs = replay.outputs(layers, first, delta.unsqueeze(-1) * values.unsqueeze(1))
        logit, log = question.scores(replay.finish(layers, outputs, last=read))
        added = (at_least_float32(values).unsqueeze(1) * torch.stack([directions[layer] for layer in layers])).sum(-1)
        direct = -at_least_float32(delta[:, -read:]) * added
        most = direct.abs().argmax(1, keepdim=True)
        peaks = places[firings[:, places].abs().argmax(1)]
        columns = {
            "coefficient": firings[:, -read:].gather(1, most).squeeze(1),
            "direct": direct.sum(-1),
            "logit": logit,
            "log": log,
            "peak": firings.gather(1, peaks.unsqueeze(1)).squeeze(1),
        }
        frame = pd.DataFrame({name: column.double().cpu().numpy() for name, column in columns.items()})
        frame[["layer", "neuron"]] = some
        parts.append(frame.assign(peak_position=peaks.tolist()))
        if progress is not None:
            progress("ablate", begin + len(some), len(neurons))
    return pd.concat(parts, ignore_index=True)


def difference(
    question: RestartedQuestion, layer: int, change: Change, cells: tuple[int, ...] | None
) -> Float[Tensor, "pos d_mlp"]:
    """By how much each coefficient of a layer changes when its neuron alone is intervened on."""
    m = question.replay.coefficients[layer]
    where = None
    if cells is not None:
        where = torch.zeros(m.shape[:2], dtype=torch.bool, device=m.device)
        where[0, list(cells)] = True

    return (make_plan(question.model, {(layer, None): change}).layers[layer].applied(m, where) - m)[0]
