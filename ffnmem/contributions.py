"""``decompose`` and ``attribute``: an FFN's output, and a token's logit, as exact sums over memories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .arguments import public
from .attribution import Attribution, ComponentLogits
from .captures import Capture
from .core.sheets import Column, Content, Facts, Origin, Prompt, Sheet, decimals, line, of_negatives, place, rows
from .core.sheets import tokens as strip_of
from .errors import InputError, check_count
from .models.final_norm import FinalNorm, at_least_float32, model_logits
from .models.turns import in_turn
from .models.writes import pulled_through
from .targets import token_after


class Next(Enum):
    """The type of :data:`NEXT`."""

    NEXT = "next"

    def __repr__(self) -> str:
        return "NEXT"


NEXT = Next.NEXT
"""As a target: at every position, the token that truly follows in the text."""

Target = str | SupportsIndex | Next | Iterable[SupportsIndex] | None


@public
@in_turn
def decompose(
    capture: Capture,
    layer: SupportsIndex,
    position: SupportsIndex = -1,
    *,
    prompt: SupportsIndex = 0,
    top: int | None = None,
) -> pd.DataFrame:
    """Which memories make up one FFN's output at one position: y = Σᵢ mᵢvᵢ + b.

    Args:
        capture: from :func:`ffnmem.capture`.
        layer: a captured layer.
        position: index in the prompt; negatives count from its end.
        prompt: which prompt of a batch.
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
    order = order if top is None else order[: check_count("top", top)]
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
    frame.attrs = {"error": float(error), "position": pos, "provenance": capture.provenance.as_dict()}
    return frame


@public
@in_turn
def attribute(
    capture: Capture,
    target: Target = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex | None = None,
    *,
    prompt: SupportsIndex = 0,
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
        target: the token, as text or as an id; default: the model's own top token. A text that begins with a space is
            taken as written; any other as it is or after a space, whichever the model finds likelier after the prompt
            (:func:`ffnmem.targets.spelled`), with a warning where a space is added.
            :data:`NEXT` or a sequence of ids gives a different target at every position.
        foil: a second token, read in the same way (with several positions, at the last): attribute the difference,
            logit(target) − logit(foil).
        position: where the answer is predicted; default the last one (with NEXT or a sequence: every position).
        prompt: which prompt of a batch.
        first_token: take the first token of a target or foil of several tokens instead of refusing it.

    Returns:
        An :class:`Attribution` with ``.neurons``, ``.components``, ``.logit`` and ``.error`` = \\|sum − logit\\|.

    Raises:
        InputError: a target that is not one token, or of which neither reading is likelier; a capture of some layers
            only. OutOfRangeError: no such position.

    Source: direct logit attribution as in Elhage et al. 2021; per memory, Geva et al. 2022 (2203.14680), §3.
    """
    if capture.residual is None:
        raise InputError("attribution needs every layer: capture(model, prompt) without layers=")
    capture.check_current()
    row = capture.row(prompt)
    positions, targets = choose_targets(capture, target, position, prompt, first_token)
    foil_id = None if foil is None else token_after(capture, foil, row, positions[-1], first_token, "foil")
    norm, cap = FinalNorm(capture.model), capture.model.layout.soft_cap
    final_in = at_least_float32(capture.residual.final_in[row, positions])
    u, constant = norm.directions(targets, foil_id)
    scale = norm.scale(final_in).unsqueeze(-1)
    components, neurons = component_logits(capture, row, positions, u / scale)
    components.append(ComponentLogits("final bias", None, constant.double()))
    return Attribution(
        neuron_logits=neurons,
        coefficients=torch.stack(
            [at_least_float32(capture.coefficients[layer][row, positions]) for layer in capture.layers], dim=1
        ),
        component_logits=tuple(components),
        logits=model_logits(capture.model, capture.residual.final_out[row, positions], targets, foil_id),
        tokens=tuple(capture.token_strings(prompt)),
        positions=tuple(positions),
        target_ids=tuple(targets.tolist()),
        target_tokens=tuple(capture.model.token_strings(targets)),
        foil=None if foil_id is None else capture.model.token_strings([foil_id])[0],
        foil_id=foil_id,
        provenance=capture.provenance if cap is None else capture.provenance.with_settings(soft_cap=cap),
    )


BIAS = -1
"""The neuron of the output bias's row."""


def decomposition_sheet(
    capture: Capture, whole: pd.DataFrame, listed: pd.DataFrame, promoted: Mapping[tuple[int, int], Sequence[str]]
) -> Sheet:
    """What :func:`decompose` found: the place, and the listed neurons, the others as one row, the bias and their sum.

    Args:
        whole: of all neurons. listed: those to show. promoted: the tokens that the value of each promotes.
    """
    layer, position, tokens = capture.layers[0], whole.attrs["position"], capture.token_strings()
    norm = float(capture.ffn_out[layer][0, position].norm())
    facts: dict[str, Content] = {
        "prompt": Prompt(tuple(tokens), position, capture.starts_with_bos),
        "at": place(tokens, position),
        "output": f"layer {layer} writes a vector of norm {norm:.4g}; error of the sum {whole.attrs['error']:.1e}",
    }
    shown = rows(
        Column("neuron", "neuron"),
        Column("coefficient", "number"),
        Column("value norm", "number", places=decimals(listed["value_norm"])),
        Column("weight", "number"),
        Column("share", "percent"),
        Column("value promotes", wraps=True),
    )
    for row in listed.itertuples():
        at = (int(row.layer), int(row.neuron))
        shown.add(at, row.coefficient, row.value_norm, row.weight, row.share, strip_of(promoted[at]))
    bias, total = whole[whole["neuron"] == BIAS].iloc[0], float(whole["share"].sum())
    others = len(whole) - 1 - len(listed)
    if others:
        rest = total - float(listed["share"].sum()) - float(bias["share"])
        shown.add(line(f"{others:,} more"), None, None, None, rest, section=True)
    shown.add(line("bias"), None, float(bias["value_norm"]), None, float(bias["share"]), section=not others)
    shown.add(line("all"), None, None, None, total, style="strong")
    return Sheet.of(
        Facts(facts),
        shown.table(caption=of_negatives(listed["coefficient"])),
        Origin({**whole.attrs["provenance"], "basis": "folded"}),
    )


def component_logits(
    capture: Capture, row: int, positions: list[int], direction: Float[Tensor, "n d_model"]
) -> tuple[list[ComponentLogits], Float[Tensor, "n layer d_mlp"]]:
    """What every component, and every neuron, writes along each position's direction. The sums are taken in float64."""
    residual = capture.residual
    assert residual is not None

    def along(write: Tensor) -> Float[Tensor, " n"]:
        return (at_least_float32(write[row, positions]).double() * direction.double()).sum(-1)

    model = capture.model
    parts = [ComponentLogits("embedding", None, along(residual.embedding))]
    if residual.position is not None:
        parts.append(ComponentLogits("position", None, along(residual.position)))
    neurons = []
    for layer in range(model.n_layers):
        ffn = model.ffn[layer]
        m = at_least_float32(capture.coefficients[layer][row, positions])
        along_ffn = pulled_through(model, layer, direction, capture.ffn_out[layer][row, positions])
        logits = m * (along_ffn @ at_least_float32(ffn.values.detach()).T)
        neurons.append(logits)
        parts.append(ComponentLogits("attention", layer, along(residual.attention[layer])))
        parts.append(ComponentLogits("ffn", layer, logits.double().sum(-1)))
        if ffn.value_bias is not None:
            parts.append(ComponentLogits("ffn bias", layer, along_ffn.double() @ ffn.value_bias.detach().double()))
    return parts, torch.stack(neurons, dim=1)


def choose_targets(
    capture: Capture, target: Target, position: SupportsIndex | None, prompt: SupportsIndex, first_token: bool
) -> tuple[list[int], Int[Tensor, " n"]]:
    """The positions to attribute at, and the target's id at each."""
    model, row, length = capture.model, capture.row(prompt), capture.length(prompt)
    device = capture.tokens.device
    if target is NEXT:
        if length < 2:
            raise InputError("NEXT needs a prompt of at least two tokens")
        chosen = list(range(length - 1)) if position is None else [capture.position(position, prompt)]
        if chosen[-1] == length - 1:
            raise InputError("NEXT has no target at the last position: nothing follows there")
        return chosen, capture.tokens[row, [p + 1 for p in chosen]]
    if isinstance(target, Tensor) and target.ndim == 0:
        target = int(target)
    if isinstance(target, str) or not isinstance(target, Iterable | Next):
        pos = capture.position(-1 if position is None else position, prompt)
        if target is None:
            return [pos], capture.logits_at(row, pos).argmax().reshape(1)
        return [pos], torch.tensor([token_after(capture, target, row, pos, first_token)], device=device)
    assert isinstance(target, Iterable)
    ids = [model.token_id(i) for i in target]
    if position is not None or len(ids) != length:
        raise InputError(f"a target for every position needs {length} token ids and no position, not {len(ids)}")
    return list(range(length)), torch.tensor(ids, device=device)
