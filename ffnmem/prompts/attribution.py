"""``decompose`` and ``attribute``: an FFN's output, and a token's logit, as exact sums over memories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, counted, quoted
from ..core.neuron_names import LayerName, add_experts
from ..core.number_text import decimals, format_probability
from ..core.provenance import Provenance, experts_in
from ..core.sheets import (
    Column,
    Content,
    Fitting,
    Line,
    Origin,
    Prompt,
    Rows,
    Sheet,
    Span,
    Table,
    explain_negative,
    line,
    place,
    promoted_column,
    rows,
    token,
    tokens,
)
from ..core.types import Count, Whole, checked
from ..facts.answers import Answer, check_foil
from ..models.norms import at_least_float32
from ..models.residual import pulled_through
from ..show.result import Result
from .answer_text import describe_answer
from .captures import Capture, answer_after, with_answer

# `Attribution`: a token's logit as the sum of what every memory and every other component wrote.

PREDICTIONS = 5
AGAINST = "“suppresses”: the tokens that a neuron suppresses as it fired, where these say more about the answer"
Written = tuple[Sequence[str], Sequence[str], bool]
"""Tokens that a neuron promoted as it fired, those that it suppressed, and whether these say more about the answer."""


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
    """

    main = "neurons"
    in_json = "tokens positions target_tokens foil logits error neurons components"

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

    def to_dict(self, top: Whole | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON; of an answer of several tokens with those of its sum."""
        found: dict[str, Any] = super().to_dict(top)
        return found | {"target": self.target, "total": self.total.to_dict(top)} if self.whole else found

    def summary(self) -> str:
        single = len(self.positions) == 1 or self.whole
        return self.describe("target foil logit error" if single else "target_tokens foil error")

    def sheet(
        self,
        top: Whole = 10,
        *,
        layers: Sequence[int] = (),
        capture: Capture | None = None,
        written: Mapping[tuple[int, int], Written] | None = None,
        full: bool = False,
    ) -> Sheet:
        """The answer, the neurons that wrote most towards it, and the components with what they come to.

        Args:
            top: how many neurons. layers: of these layers only.
            capture: what was attributed: adds the model's own top tokens.
            written: adds the tokens that each neuron promotes as it fired, or those that it suppresses where these say
                more about target and foil, by (layer, neuron). full: both of each.
        """
        if len(self.positions) > 1 and not self.whole:
            return Sheet.of(self.position_table(), self.provenance)
        one = self.total
        neurons = one.strongest(top, layers)
        return Sheet.of(
            one.heading(neurons, layers, capture),
            self.position_table() if self.whole else None,
            one.neuron_table(neurons, written, full),
            one.ledger(),
            self.provenance if written is None else self.provenance.with_settings(basis="folded"),
        )

    def strongest(self, top: Whole, layers: Sequence[int] = ()) -> pd.DataFrame:
        """The ``top`` neurons by \\|logit\\|, of the given layers only if there are any."""
        if not layers:
            return (self.total if self.whole else self).top(top)
        frame = (self.total if self.whole else self).neurons
        return frame[frame["layer"].isin(layers)].head(min(top, len(frame))).reset_index(drop=True)

    def heading(
        self, neurons: pd.DataFrame, layers: Sequence[int], capture: Capture | None
    ) -> dict[str, Content | None]:
        """The prompt, the model's top tokens, the target (and foil), and how much the memories wrote of its logit."""
        facts = describe_answer(self, summed=True)
        if capture is not None and not (self.answer is not None and len(self.answer.target) > 1):
            roles = {self.target_ids[0]: "target"} | ({} if self.foil_id is None else {self.foil_id: "foil"})
            ranked = capture.ranked(self.position, roles, PREDICTIONS)
            first = {name: facts.pop(name) for name in ("prompt", "after")}
            pieces: list[Line] = []
            for p in ranked.itertuples():
                chance = format_probability(p.probability)
                if p.rank <= PREDICTIONS and len(pieces) < PREDICTIONS:
                    pieces.append((token(p.token, "strong" if p.role else ""), Span(f" {chance}", "soft")))
                if p.role:
                    facts[p.role] = line(token(p.token, "strong"), f"   rank {p.rank:,}, logit {p.logit:.3f}, {chance}")
            facts = first | {"next": Fitting(tuple(pieces))} | facts
            if self.foil is None:
                del facts["logit"]
        return facts | {"memories": self.written(neurons, layers)}

    def written(self, neurons: pd.DataFrame, layers: Sequence[int]) -> str:
        """How much of the logit all FFN neurons wrote, and how much those listed."""
        parts = self.components
        ffn = float(parts.loc[parts["component"] == "ffn", "logit"].sum())
        where = "" if not layers else f" (of layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))})"
        listed = f"the {len(neurons):,} below{where} {float(neurons['logit'].sum()):+.3f}"
        whole = f"{ffn:+.3f} of the logit {self.logit:.3f}{self.provenance.before_cap}"
        return f"all {sum(self.widths):,} wrote {whole}, {listed}"

    def neuron_table(
        self, neurons: pd.DataFrame, written: Mapping[tuple[int, int], Written] | None = None, full: bool = False
    ) -> Table:
        """Neurons, and the tokens that they promote as they fired, suppress, or both."""
        named = (self.target, self.foil)
        ends: list[Column] = []
        against = False
        if written is not None:
            places = zip(neurons["layer"], neurons["neuron"], strict=True)
            known = {at: written.get(at, ((), (), False)) for at in places}
            against = not full and any(tells_more for _, _, tells_more in known.values())

            def promoted(row: Mapping[str, Any]) -> Fitting:
                texts, suppressed, tells_more = known[row["layer"], row["neuron"]]
                if full or not tells_more:
                    return tokens(texts, named)
                return Fitting((line(Span("suppresses", "takes")), *tokens(suppressed, named).pieces))

            ends = [Column("promotes", wraps=True, of=promoted)]
            if full:
                suppressed = {at: one[1] for at, one in known.items()}
                ends.append(promoted_column(suppressed, named, "suppresses"))
        summed = self.answer is not None and self.answer.whole
        captions = (
            "coefficients are those at the token where a neuron adds most" if summed else "",
            explain_negative(neurons["coefficient"]),
            AGAINST if against else "",
        )
        caption = "; ".join(filter(None, captions))
        return Table.of(neurons, "neuron coefficient logit share", *ends, caption=caption)

    def ledger(self) -> Table:
        """Every component by layer, the sum so far, and what it all comes to beside the model's own logit."""
        parts = self.components
        kinds = parts.loc[parts["layer"].notna(), "component"].unique().tolist()
        places = decimals([*parts["logit"], self.logit], 5)
        columns = [Column(kind, "number", places=places, sign=True) for kind in [*kinds, "together"]]
        columns[-1] = replace(columns[-1], bars="steps")
        shown = rows("component", *columns, Column("sum so far", "number", places=places))
        names = parts["component"].where(parts["layer"].isna(), "layer " + parts["layer"].astype(str))
        total = 0.0
        for name, group in parts.groupby(names, sort=False):
            cells = dict(zip(group["component"], group["logit"], strict=True))
            together = float(group["logit"].sum())
            total += together
            shown.add(str(name), *(cells.get(kind) for kind in kinds), together, total)
        blanks = [None] * (len(kinds) + 1)
        shown.add("sum", *blanks, float(self.sums[0]), style="strong", section=True)
        shown.add(f"model's logit{self.provenance.before_cap}", *blanks, self.logit, style="strong")
        shown.add("error", *blanks, line(f"{self.error:.1e}"), style="soft")
        return shown.table()

    def position_table(self) -> Table:
        """Each position with its target, the target's logit and the neuron that wrote most of it."""
        frame = self.top(1).assign(
            position=list(self.positions),
            token=[self.tokens[position] for position in self.positions],
            target=self.target_tokens,
            logit=self.logits.tolist(),
        )
        capped = self.provenance.before_cap.replace(",", "; logits", 1)
        return Table.of(
            frame,
            "position",
            Column("after" if self.whole else "token", "token", of="token"),
            "target logit",
            Column("largest neuron", "neuron", of=("layer", "neuron")),
            caption=f"{counted(len(self.positions), 'position')}, the largest error {self.error:.1e}{capped}",
        )


class Next(Enum):
    """The type of :data:`NEXT`."""

    NEXT = "next"

    def __repr__(self) -> str:
        return "NEXT"


NEXT = Next.NEXT
"""As a target: at every position, the token that truly follows in the text."""

Targets = str | SupportsIndex | Answer | Next | Iterable[SupportsIndex] | None


@checked
def decompose(
    capture: Capture,
    layer: LayerName,
    position: SupportsIndex = -1,
    *,
    prompt: SupportsIndex | None = None,
    top: Count | None = None,
) -> pd.DataFrame:
    """Which memories make up one FFN's output at one position: y = Σᵢ mᵢvᵢ + b.

    Args:
        capture: from :func:`ffnmem.capture`.
        layer: a captured layer.
        position: index in the prompt; negatives count from its end.
        prompt: which one, of a capture of several.
        top: keep only this many neurons, by weight; the bias row always stays.

    Returns:
        One row a neuron, by falling weight, and a last row ``neuron = -1`` for the output bias: ``layer``, ``neuron``,
        ``coefficient`` mᵢ, ``value_norm`` ‖vᵢ‖, ``weight`` |mᵢ|·‖vᵢ‖, ``share`` mᵢvᵢ·y/‖y‖². The shares of all rows
        sum to 1 (without ``top``). ``attrs`` holds the ``error`` ‖Σmᵢvᵢ + b − y‖/‖y‖, the position and the provenance.

    Raises:
        OutOfRangeError: no such layer, position or prompt. InputError: the layer was not captured.

    Source: Geva et al. 2022 (2203.14680), eq. 3; weight is their §3.2 for dominant sub-updates.
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
    share = m * (values @ y) / square
    order = weight.argsort(descending=True, stable=True)
    order = order if top is None else order[:top]
    error = (m @ values + bias - y).norm() / square.sqrt()
    rows = {
        "layer": [index] * (len(order) + 1),
        "neuron": [*order.tolist(), -1],
        "coefficient": [*m[order].tolist(), 1.0],
        "value_norm": [*norms[order].tolist(), float(bias.norm())],
        "weight": [*weight[order].tolist(), float(bias.norm())],
        "share": [*share[order].tolist(), float(bias @ y / square)],
    }
    frame = pd.DataFrame(rows)
    frame.attrs = {"error": float(error), "position": pos, "provenance": capture.provenance.to_dict()}
    return frame


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
    """Which memories, in all layers, wrote this answer: direct logit attribution of every neuron and component.

    The logit of token t is w_t·norm(x) + b_t, x the sum of what every component wrote into the residual stream. With
    the norm's scale σ taken as it is (frozen), that is linear in x, so each component's share of the logit is its
    write · u / σ with u = γ ⊙ w_t, centred for LayerNorm; a neuron's write is mᵢvᵢ. Where a norm stands behind the FFN
    (Gemma 2), the write goes through it with its scale as it is. A soft cap on logits is not linear: what is explained
    is the logit before it.

    Args:
        capture: of all layers.
        target: the answer, as text or as a token id; default: the model's own top token. Which tokens a text is, says
            :func:`ffnmem.facts.read_answer`. Of several tokens, each is attributed at its own position, after those
            before it. :data:`NEXT` or a sequence of ids gives a different target at every position.
        foil: a second answer, read in the same way (with several positions, one token at the last): attribute the
            difference, logit(target) − logit(foil), at the first token where the two part.
        position: where the answer is predicted; default the last one (with NEXT or a sequence: every position).
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.

    Returns:
        An :class:`Attribution` with ``.neurons``, ``.components``, ``.logit`` and ``.error`` = \\|sum − logit\\|.

    Raises:
        InputError: a target or foil that :func:`ffnmem.facts.read_answer` refuses; a capture of some layers only.
        OutOfRangeError: no such position.

    Source: direct logit attribution as in Elhage et al. 2021; per memory, Geva et al. 2022 (2203.14680), §3.
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
    return Attribution(
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
    )


BIAS = -1
"""The neuron of the output bias's row."""


def decomposition_sheet(
    capture: Capture, whole: pd.DataFrame, listed: pd.DataFrame, promoted: Mapping[tuple[int, int], Sequence[str]]
) -> Sheet:
    """What :func:`decompose` found: the place, and the listed neurons, the others as one row, the bias and their sum.

    Args:
        whole: of all neurons. listed: those to show. promoted: the tokens that each promotes as it fired.
    """
    layer, position, tokens = capture.layers[0], whole.attrs["position"], capture.token_strings()
    norm = float(capture.ffn_out[layer][0, position].norm())
    facts: dict[str, Content] = {
        "prompt": Prompt(tuple(tokens), position, capture.starts_with_bos),
        "at": place(tokens, position),
        "output": f"layer {layer} writes a vector of norm {norm:.4g}; error of the sum {whole.attrs['error']:.1e}",
    }
    table = Table.of(
        listed,
        "neuron coefficient",
        Column("value norm", "number", places=decimals(listed["value_norm"]), of="value_norm"),
        "weight share",
        promoted_column(promoted),
    )
    shown = Rows(table.columns, list(table.rows))
    bias, total = whole[whole["neuron"] == BIAS].iloc[0], float(whole["share"].sum())
    others = len(whole) - 1 - len(listed)
    if others:
        rest = total - float(listed["share"].sum()) - float(bias["share"])
        shown.add(line(f"{others:,} more"), None, None, None, rest, section=True)
    shown.add(line("bias"), None, float(bias["value_norm"]), None, float(bias["share"]), section=not others)
    shown.add(line("all"), None, None, None, total, style="strong")
    return Sheet.of(
        facts,
        shown.table(caption=explain_negative(listed["coefficient"])),
        Origin({**whole.attrs["provenance"], "basis": "folded"}),
    )


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
