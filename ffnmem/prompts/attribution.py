"""``decompose`` and ``attribute``: an FFN's output, and a token's logit, as exact sums over memories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, counted, quoted
from ..core.neuron_names import LayerName, add_experts
from ..core.provenance import Provenance, experts_in
from ..core.sheets import Prompt
from ..core.types import Count, checked
from ..facts.answers import Answer, check_foil
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from ..models.tolerance import check_identity
from ..show.result import Result
from .answer_text import answered_prompt
from .captures import Capture, answer_after, with_answer

# `Attribution`: a token's logit as the sum of what every memory and every other component wrote.

PREDICTIONS = 5


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Result):
    """Direct logit attribution at one position, or at many. Made by :func:`ffnmem.attribute`.

    Of an answer of several tokens, each has its sum at its own position, after the ones before it; ``.total`` is their
    sum.

    Attributes:
        neuron_logits: ``[n, layer, d_mlp]``, what each neuron adds to the logit at each attributed position.
        coefficients: ``[n, layer, d_mlp]``, its coefficient there.
        widths: how many neurons each layer has; both tensors are 0 behind those of narrower layers.
        component_names: component and layer (None where there is none), in the order of the residual stream.
        component_logits: ``[component, n]``, what each adds to the logit at each attributed position.
        logits: ``[n]``, the model's own logit of the target (minus the foil's); before a soft cap, where it has one.
        tokens: the prompt's tokens, and those of the answer before the last one that is read.
        positions: where the attribution is made; target_ids, target_tokens: of what.
        foil, foil_id: the foil's token and its id, or None.
        answer: which tokens answer the prompt; None of a target for every position.
        predictions: the model's own top tokens there, and the target and the foil among all.
        model: which one; None of what was loaded without it.
    """

    heading = "prompt target foil logit error"
    by_neuron: ClassVar = {"neurons": "neuron coefficient logit share promotes | suppresses"}
    main, uncut = "neurons", "predictions ledger"

    neuron_logits: Float[Tensor, "n layer d_mlp"]
    coefficients: Float[Tensor, "n layer d_mlp"]
    widths: tuple[int, ...]
    component_names: tuple[tuple[str, int | None], ...]
    component_logits: Float[Tensor, "component n"]
    logits: Float[Tensor, " n"]
    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    target_ids: tuple[int, ...]
    target_tokens: tuple[str, ...]
    foil: str | None
    foil_id: int | None
    provenance: Provenance
    answer: Answer | None = None
    predictions: pd.DataFrame | None = None
    model: Model | None = None

    @property
    def target(self) -> str:
        """The target's text, when there is one answer."""
        self.check_single()
        return self.target_tokens[0] if self.answer is None else self.answer.target_text

    @property
    def position(self) -> int:
        """Where the answer is read, or begins to be."""
        self.check_single()
        return self.positions[0]

    @property
    def logit(self) -> float:
        """The model's logit of the target (minus the foil's), summed over the tokens of one answer; see ``logits``."""
        self.check_single()
        return float(self.logits.sum())

    @property
    def whole(self) -> bool:
        """Whether this is of an answer of several tokens, each at its own position."""
        return self.answer is not None and self.answer.whole and len(self.positions) > 1

    @cached_property
    def total(self) -> Attribution:
        """Of an answer of several tokens their sum: what each neuron and component adds to all of them together.

        A neuron's coefficient is that where it adds most. Of one token, the attribution itself.

        Raises: InputError: a target for every position.
        """
        self.check_single()
        if not self.whole:
            return self
        most = self.neuron_logits.abs().argmax(0, keepdim=True)
        return replace(
            self,
            neuron_logits=self.neuron_logits.double().sum(0, keepdim=True),
            coefficients=self.coefficients.gather(0, most),
            component_logits=self.component_logits.sum(1, keepdim=True),
            logits=self.logits.sum(0, keepdim=True),
            positions=self.positions[:1],
            target_ids=self.target_ids[:1],
            target_tokens=(self.target,),
        )

    @cached_property
    def sums(self) -> Float[Tensor, " n"]:
        """The sum of all components at each position, in float64."""
        return self.component_logits.sum(0)

    @property
    def error(self) -> float:
        """The largest \\|sum of components − logit\\| over the positions."""
        return float((self.sums - self.logits.double()).abs().max())

    def check_single(self) -> None:
        """Raise InputError for a target at every position."""
        if len(self.positions) != 1 and not self.whole:
            raise InputError(
                f"this attribution holds {counted(len(self.positions), 'position')}: read .logits, or attribute one"
            )

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, largest \\|logit\\| first: layer, neuron, coefficient, logit, share (of the whole logit);
        where layers have experts, ``expert`` behind ``neuron``.

        With several positions, a first column ``position``, and the rows of each position together.
        """
        return self.top(None)

    def top(self, k: Count | None = 20) -> pd.DataFrame:
        """The ``k`` neurons with the largest \\|logit\\| at each position (all for None), as ``neurons``."""
        frames = []
        for i, position in enumerate(self.positions):
            arrays = {"logit": self.neuron_logits[i], "coefficient": self.coefficients[i]}
            found = rank_cells(["layer", "neuron"], self.widths, k, **arrays)
            whole = float(self.logits[i]) or math.nan  # nothing is a share of exactly zero
            frames.append(found.assign(position=position, share=found["logit"] / whole))
        every = pd.concat(frames, ignore_index=True)[["position", "layer", "neuron", "coefficient", "logit", "share"]]
        return self.table(add_experts(every, experts_in(self.provenance)))

    @cached_property
    def components(self) -> pd.DataFrame:
        """One row a component, in the order of the residual stream: component, layer, logit. They sum to the logit.

        ``layer`` is missing (<NA>) where there is none. With several positions, a first column ``position``.
        """
        every = pd.DataFrame([*self.component_names] * len(self.positions), columns=["component", "layer"])
        every.insert(0, "position", np.repeat(self.positions, len(self.component_names)))
        logits = self.component_logits.T.flatten().tolist()
        return self.table(every.assign(logit=logits).astype({"layer": "Int64"}))

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A table that says where it is from; of a single position without its column."""
        frame = frame if len(self.positions) > 1 else frame.drop(columns="position")
        frame.attrs = {"target": self.target_tokens, "foil": self.foil, "provenance": self.provenance.to_dict()}
        return frame

    @property
    def prompt(self) -> Prompt:
        """The prompt's tokens, where the answer is read."""
        self.check_single()
        return answered_prompt(self)

    @property
    def tables(self) -> dict[str, str]:  # type: ignore[override]
        """Of a target for every position, which neuron wrote most at each; else all about the one."""
        by_position = {"by_position": "position after target logit neuron"}
        if self.answer is None:
            return by_position
        predictions = {"predictions": "rank token answer logit probability"}
        return predictions | by_position | self.by_neuron | {"ledger": "*"}

    @property
    def written(self) -> float:
        """What all neurons wrote of the logit."""
        parts = self.components
        return float(parts.loc[parts["component"] == "ffn", "logit"].sum())

    @property
    def verdict(self) -> str:
        """How much of the answer the neurons wrote."""
        if len(self.positions) > 1 and not self.whole:
            many = counted(len(self.positions), "position")
            return f"The largest error over {many} is {self.error:.1e}{self.provenance.before_cap}."
        minus = "" if self.foil is None else ", the target’s minus the foil’s"
        summed = f", the sum over its {len(self.positions)} tokens" if self.whole else ""
        return (
            f"All {sum(self.widths):,} neurons wrote {self.total.written:+.3f} of the logit "
            f"{self.logit:.3f}{minus}{summed}{self.provenance.before_cap}."
        )

    @property
    def count(self) -> int:
        return sum(self.widths) * (1 if self.whole else len(self.positions))

    def shown_neurons(self, top: Count | None = 20) -> pd.DataFrame | None:
        """The neurons that wrote most; of an answer of several tokens, to their sum."""
        return (self.total if self.whole else self).top(top)

    @property
    def by_position(self) -> pd.DataFrame | None:
        """Each position with its target, the target's logit, and the neuron that wrote most of it."""
        if len(self.positions) == 1:
            return None
        return self.top(1).assign(
            position=list(self.positions),
            after=[self.tokens[position] for position in self.positions],
            target=self.target_tokens,
            logit=self.logits.tolist(),
        )

    @property
    def ledger(self) -> pd.DataFrame | None:
        """Every component by layer, and their sum so far, which ends in the model's logit but for the error."""
        if self.answer is None:
            return None
        parts = self.total.components
        names = parts["component"].where(parts["layer"].isna(), "layer " + parts["layer"].astype(str))
        kinds = parts.loc[parts["layer"].notna(), "component"].unique().tolist()
        wide = parts.assign(row=names).pivot_table("logit", "row", "component", sort=False).reindex(names.unique())
        found = pd.DataFrame(
            {"component": wide.index} | {kind.replace(" ", "_"): wide[kind].to_numpy() for kind in kinds}
        )
        found["together"] = parts.groupby(names, sort=False)["logit"].sum().to_numpy()
        return found.assign(sum_so_far=found["together"].cumsum())


class Next(Enum):
    """The type of :data:`NEXT`."""

    NEXT = "next"

    def __repr__(self) -> str:
        return "NEXT"


NEXT = Next.NEXT
"""As a target: at every position, the token that truly follows in the text."""

Targets = str | SupportsIndex | Answer | Next | Iterable[SupportsIndex] | None


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Result):
    """One FFN's output at one position as the sum of its memories. Made by :func:`ffnmem.decompose`.

    Attributes:
        memories: one row a neuron, by falling weight: ``layer``, ``neuron``, ``coefficient`` mᵢ, ``value_norm`` ‖vᵢ‖,
            ``weight`` |mᵢ|·‖vᵢ‖, ``share`` mᵢvᵢ·y/‖y‖². ``attrs`` holds the error, the position and the provenance.
        layer, position: where; tokens: the prompt's.
        output_norm: ‖y‖. bias_norm, bias_share: the output bias's, whose share and those of all memories sum to 1.
        error: ‖Σmᵢvᵢ + b − y‖/‖y‖.
        model: which one; None of what was loaded without it.
    """

    heading = "prompt layer output_norm bias_norm bias_share error"
    tables: ClassVar = {"memories": "neuron coefficient value_norm weight share promotes | suppresses"}

    memories: pd.DataFrame
    layer: int
    position: int
    tokens: tuple[str, ...]
    output_norm: float
    bias_norm: float
    bias_share: float
    error: float
    provenance: Provenance
    model: Model | None = None

    @property
    def prompt(self) -> Prompt:
        """The prompt's tokens, and the position at which the output is."""
        return Prompt(self.tokens, self.position, self.provenance.prepend_bos is True)


@checked
def decompose(
    capture: Capture, layer: LayerName, position: SupportsIndex = -1, *, prompt: SupportsIndex | None = None
) -> Decomposition:
    """Which memories make up one layer's output.

    Splits one FFN's output at one position into its memories, y = Σᵢ mᵢvᵢ + b: neurons by falling weight, which is
    |coefficient| · the value's norm. A share is how much of the output, along its own direction, a neuron wrote.

    Args:
        capture: from :func:`ffnmem.capture`.
        layer: a captured layer; -1 is the last.
        position: where in the prompt: 0 is the first token, -1 the last.
        prompt: which one, of a capture of several.

    Returns: A :class:`Decomposition`: ``.memories``, ``.bias_share`` and ``.error``.

    Raises:
        OutOfRangeError: no such layer, position or prompt. InputError: the layer was not captured.

    Source: Geva et al. 2022 (2203.14680), eq. 3; weight is their §3.2 for dominant sub-updates.

    Example:
        $ ffnmem decompose "The Eiffel Tower is located in the city of" 5
        $ ffnmem decompose "The Eiffel Tower is in" -1 --position 2 --csv
    """
    index = capture.model.layer(layer)
    if index not in capture.coefficients:
        raise InputError(f"layer {index} was not captured: this capture holds layers {list(capture.layers)}")
    capture.check_current()
    row, pos = capture.row(prompt), capture.position(position, prompt)
    ffn = capture.model.ffn[index]
    values, y = at_least_float32(ffn.values.detach()), at_least_float32(capture.ffn_out[index][row, pos])
    m = at_least_float32(capture.coefficients[index][row, pos])
    bias = torch.zeros_like(y) if ffn.value_bias is None else at_least_float32(ffn.value_bias.detach())
    square = (y @ y).clamp_min(torch.finfo(y.dtype).tiny)
    norms = values.norm(dim=-1)
    weight = m.abs() * norms
    order = weight.argsort(descending=True, stable=True)
    columns = {"coefficient": m, "value_norm": norms, "weight": weight, "share": m * (values @ y) / square}
    memories = pd.DataFrame(
        {"layer": index, "neuron": order.tolist()} | {name: some[order].tolist() for name, some in columns.items()}
    )
    missed, size = (m @ values + bias - y).norm(), square.sqrt()
    check_identity(capture.model, f"decompose of layer {index}", missed, torch.maximum(size, weight.max()), least=0.0)
    error = float(missed / size)
    memories.attrs = {"error": error, "position": pos, "provenance": capture.provenance.to_dict()}
    return Decomposition(
        memories=memories,
        layer=index,
        position=pos,
        tokens=tuple(capture.token_strings(row)),
        output_norm=float(y.norm()),
        bias_norm=float(bias.norm()),
        bias_share=float(bias @ y / square),
        error=error,
        provenance=capture.provenance,
        model=capture.model,
    )


def largest(values: Float[np.ndarray, " n"], k: int | None) -> Int[np.ndarray, " k"]:
    """Where the ``k`` largest magnitudes stand, or all, largest first; NaN last. Ties go to the first: the earlier
    layer, then the earlier position, then the lower neuron."""
    size = np.abs(values)
    size[np.isnan(size)] = -1.0
    if k is None or k >= len(size):
        return np.argsort(-size, kind="stable")
    worth = np.flatnonzero(size >= np.partition(size, len(size) - k)[len(size) - k])  # sorting a million takes longer
    return worth[np.argsort(-size[worth], kind="stable")][:k]


def rank_cells(
    axes: Sequence[str], widths: Sequence[int], k: int | None = None, **arrays: Float[Tensor, "layer *more d_mlp"]
) -> pd.DataFrame:
    """The cells of arrays of one shape in which the first one is largest in size (``k`` of them, all for None), largest
    first: a column for each axis, and one for each array. ``widths``: how many neurons each layer has."""
    first = next(iter(arrays.values()))
    size = at_least_float32(first).detach().cpu().numpy().ravel()
    if min(widths) == first.shape[-1]:
        order = largest(size, k)
    else:
        there = np.arange(first.shape[-1]) < np.array(widths).reshape(-1, *[1] * (first.ndim - 1))
        places = np.flatnonzero(np.broadcast_to(there, first.shape))
        order = places[largest(size[places], k)]
    columns = dict(zip(axes, np.unravel_index(order, first.shape), strict=True))
    values = {name: array.flatten()[order].double().cpu().numpy() for name, array in arrays.items()}
    return pd.DataFrame(columns | values)


@checked
def attribute(
    capture: Capture,
    target: Targets = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex | None = None,
    *,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
) -> Attribution:
    """Which memories, in all layers, wrote an answer.

    Splits the logit of an answer into what every FFN neuron, attention layer, embedding and bias wrote: direct logit
    attribution. The neurons come by what they wrote towards the target or away from it, with the tokens that they
    promoted there (where a coefficient is negative, those that the value suppresses); the components add up to the
    model's logit.

    Note:
        The logit of token t is w_t·norm(x) + b_t, x the sum of what every component wrote into the residual stream.
        With the norm's scale σ taken as it is (frozen), that is linear in x, so each component's share of the logit is
        its write · u / σ with u = γ ⊙ w_t, centred for LayerNorm; a neuron's write is mᵢvᵢ. Where a norm stands behind
        the FFN (Gemma 2), the write goes through it with its scale as it is. A soft cap on logits is not linear: what
        is explained is the logit before it.

    Args:
        capture: of all layers.
        target: the answer, as text or by a token's number (typed: id:417); default: the model's own top token. Of
            several tokens, each is attributed at its own position, after those before it. In Python, :data:`NEXT` or a
            sequence of ids gives a different target at every position; :func:`ffnmem.facts.read_answer` says which
            tokens a text is.
        foil: a second answer, read in the same way: attribute the difference, logit(target) − logit(foil), at the first
            token where the two part. In Python, with several positions: one token, at the last.
        position: where the answer is predicted; default the last one. In Python, with NEXT or a sequence: every
            position.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.

    Returns:
        An :class:`Attribution` with ``.neurons``, ``.components``, ``.logit`` and ``.error`` = \\|sum − logit\\|.

    Raises:
        InputError: a target or foil that :func:`ffnmem.facts.read_answer` refuses; a capture of some layers only.
        OutOfRangeError: no such position.

    Source: direct logit attribution as in Elhage et al. 2021; per memory, Geva et al. 2022 (2203.14680), §3.

    Example:
        $ ffnmem attribute "The Eiffel Tower is located in the city of"
        $ ffnmem attribute "The Eiffel Tower is located in the city of" \\
            --target " Paris" --foil " Rome"
        $ ffnmem attribute "The capital of France is" --json | jq '.neurons[0]'
    """
    if capture.residual is None:
        raise InputError("attribution needs every layer: capture(model, prompt) without layers=")
    capture.check_current()
    row, answer = capture.row(prompt), None
    several = isinstance(target, Next | Iterable) and not isinstance(target, str)
    if several and getattr(target, "ndim", 1) > 0:  # a tensor of no dimensions is one id
        positions, targets = targets_everywhere(capture, target, position, prompt)  # type: ignore[arg-type]
        foil_id, foil_text = foil_everywhere(capture, foil, targets.tolist(), row, positions[-1], first_token)
    else:
        pos = capture.position(-1 if position is None else position, prompt)
        answer = answer_after(capture, target, foil, row, pos, first_token)  # type: ignore[arg-type]
        capture, row = with_answer(capture, answer, row)
        positions, foil_id, foil_text = list(answer.positions), answer.foil_id, answer.foil_text
        targets = torch.tensor(answer.read, device=capture.tokens.device)
    directions, constant, logits = capture.read_along(row, positions, targets, foil_id)
    components, neurons, coefficients = component_logits(capture, row, positions, directions)
    components["final bias", None] = constant.double()
    found = Attribution(
        neuron_logits=neurons,
        coefficients=coefficients,
        widths=capture.model.widths,
        component_names=tuple(components),
        component_logits=torch.stack(list(components.values())),
        logits=logits,
        tokens=tuple(capture.token_strings(row)),
        positions=tuple(positions),
        target_ids=tuple(targets.tolist()),
        target_tokens=tuple(capture.model.token_strings(targets)),
        foil=foil_text,
        foil_id=foil_id,
        provenance=capture.provenance,
        answer=answer,
        predictions=None if answer is None else ranked_answers(capture, answer, row),
        model=capture.model,
    )
    scale = torch.cat([found.component_logits, logits.unsqueeze(0)]).abs().amax(0)
    check_identity(capture.model, "attribute", found.sums - logits, scale)
    return found


def ranked_answers(capture: Capture, answer: Answer, row: int) -> pd.DataFrame:
    """The model's own top tokens where an answer is read, and the first token of target and foil among all; ``answer``
    says which they are."""
    position = answer.positions[0]
    roles = {answer.target[0]: "target"} | (
        {} if answer.foil_id is None or answer.parting else {answer.foil_id: "foil"}
    )
    return capture.ranked(position, roles, PREDICTIONS, row).rename(columns={"role": "answer"})


def component_logits(
    capture: Capture, row: int, positions: list[int], direction: Float[Tensor, "n d_model"]
) -> tuple[
    dict[tuple[str, int | None], Float[Tensor, " n"]], Float[Tensor, "n layer d_mlp"], Float[Tensor, "n layer d_mlp"]
]:
    """What every component (in float64), and every neuron, writes along each position's direction, and the neurons'
    coefficients."""
    residual = capture.residual
    assert residual is not None

    def along(write: Tensor) -> Float[Tensor, " n"]:
        return (at_least_float32(write[row, positions]).double() * direction.double()).sum(-1)

    model = capture.model
    parts: dict[tuple[str, int | None], Tensor] = {("embedding", None): along(residual.embedding)}
    if residual.position is not None:
        parts["position", None] = along(residual.position)
    neurons, coefficients = [], []
    for layer in range(model.n_layers):
        ffn = model.ffn[layer]
        m = at_least_float32(capture.coefficients[layer][row, positions])
        coefficients.append(m)
        along_ffn = pulled_through(model, layer, direction, capture.ffn_out[layer][row, positions])
        logits = m * (along_ffn @ at_least_float32(ffn.values.detach()).T)
        neurons.append(logits)
        parts["attention", layer] = along(residual.attention[layer])
        parts["ffn", layer] = logits.double().sum(-1)
        if ffn.value_bias is not None:
            parts["ffn bias", layer] = along_ffn.double() @ ffn.value_bias.detach().double()
    return parts, model.stack_layers(neurons, dim=1), model.stack_layers(coefficients, dim=1)


def targets_everywhere(
    capture: Capture,
    target: Next | Iterable[SupportsIndex],
    position: SupportsIndex | None,
    prompt: SupportsIndex | None,
) -> tuple[list[int], Int[Tensor, " n"]]:
    """The positions to attribute at, and the target's id at each, of a target for every position."""
    model, row, length = capture.model, capture.row(prompt), capture.length(prompt)
    if isinstance(target, Next):
        if length < 2:
            raise InputError("NEXT needs a prompt of at least two tokens")
        chosen = list(range(length - 1)) if position is None else [capture.position(position, prompt)]
        if chosen[-1] == length - 1:
            raise InputError("NEXT has no target at the last position: nothing follows there")
        return chosen, capture.tokens[row, [p + 1 for p in chosen]]
    ids = [model.token_id(i) for i in target]
    if position is not None or len(ids) != length:
        raise InputError(f"a target for every position needs {length} token ids and no position, not {len(ids)}")
    return list(range(length)), torch.tensor(ids, device=capture.tokens.device)


def foil_everywhere(
    capture: Capture, foil: str | SupportsIndex | None, targets: list[int], row: int, position: int, first_token: bool
) -> tuple[int | None, str | None]:
    """The id and text of a foil of targets at every position, read at the last.

    Raises InputError: it is no single token, or that of all of them.
    """
    if foil is None:
        return None, None
    read = answer_after(capture, foil, None, row, position, first_token)
    if len(read.target) > 1:
        raise InputError(
            f"foil {quoted(read.target_text)} is {len(read.target)} tokens: name one token for all positions"
        )
    if set(targets) == {*read.target}:
        check_foil(read.target, read.target, read.target_text, read.target_text)
    return read.target[0], read.target_text
