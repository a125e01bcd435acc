"""The tensors in which two checkpoints of one architecture differ, and of each change its rank and singular parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ..core.errors import InputError
from ..models.layout import Half, inner
from ..models.model import Model

SPARE = 8  # directions beyond those that are counted: Halko et al. 2011, §4.2, take 5 to 10
NARROW = (torch.bfloat16, torch.float16, torch.float32)
"""Types that a checkpoint may be rounded to, the coarsest first."""


@dataclass(frozen=True, eq=False)
class WeightPair:
    """A tensor of both models.

    Attributes:
        name: the parameter's. layer: which holds it, -1 for none. matrix: what it is, for people.
        side: how it meets the residual stream: "writes" or "reads" (rows are neurons, or the like, and columns the
            stream's dimensions once it is ``turned``), "tokens" (a row a token); empty where it is something else.
        turned: whether it is stored the other way round. before, after: as stored.
    """

    name: str
    layer: int
    matrix: str
    side: str
    turned: bool
    before: Tensor
    after: Tensor

    @property
    def differs(self) -> bool:
        return not bool((self.before == self.after.to(self.before.device)).all())

    @property
    def is_rounding(self) -> bool:
        """Whether one is the other in a narrower type."""
        pair = self.before, self.after.to(self.before.device)
        return any(bool((a.to(kind) == b).all()) for kind in NARROW for a, b in (pair, pair[::-1]))

    def wide(self, tensor: Tensor) -> Float64[Tensor, "..."]:
        """One of its tensors in float64, with the residual stream along columns; experts' neurons one after another."""
        found = tensor.detach().cpu().double()
        found = found.mT if self.turned else found
        return found.flatten(0, 1) if found.ndim == 3 and self.side else found


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Every parameter by its name in a checkpoint, tied ones by each of theirs."""
    parameters = model.hf_model.named_parameters(remove_duplicate=False)
    return {name.replace("_original_component.", ""): parameter.detach() for name, parameter in parameters}


def pair_weights(before: Model, after: Model) -> list[WeightPair]:
    """The tensors of two models, each once.

    Raises: InputError: they do not have the same ones, of the same shapes.
    """
    mine, theirs = named_tensors(before), named_tensors(after)
    shapes = [{name: list(tensor.shape) for name, tensor in some.items()} for some in (mine, theirs)]
    strange = next((name for name in {**mine, **theirs} if shapes[0].get(name) != shapes[1].get(name)), None)
    if strange is not None:
        has = [f"{m.name} has {some.get(strange, 'none')}" for m, some in zip((before, after), shapes, strict=True)]
        raise InputError(
            f"the models are not of one architecture and size: of {strange}, {has[0]} and {has[1]}; an audit is of a "
            "checkpoint and the one that it was made of"
        )
    known = find_places(before)
    found = {(mine[name].data_ptr(), theirs[name].data_ptr()): name for name in reversed(mine)}  # tied ones: the first
    return [
        WeightPair(
            name, *known.get(identify(mine[name]), (-1, shorten_name(name), "", False)), mine[name], theirs[name]
        )
        for name in reversed(found.values())
    ]


def identify(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def shorten_name(name: str) -> str:
    """A parameter's name without what holds its module: ``self_attn.q_proj``."""
    return ".".join(name.removesuffix(".weight").split(".")[-2:])


def find_places(model: Model) -> dict[tuple[int, tuple[int, ...]], tuple[int, str, str, bool]]:
    """By tensor: its layer, what it is called, how it meets the residual stream, and whether it is stored turned."""
    found = {}
    layout, d_model = model.layout, model.d_model
    for layer, block in enumerate(layout.blocks):
        names = {"FFN down": block.project_out, "FFN up" if model.gated else "FFN in": block.project_in}
        # Hugging Face's attention has queries, keys and values first, whatever their names, and its output last.
        projections = [m for m in block.attention.modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 2]
        names |= {"attention out": projections[-1]}
        names |= {} if block.project_gate is None else {"FFN gate": block.project_gate}
        mixture = model.ffn[layer].mixture
        called = {id(inner(module)): name for name, module in names.items() if not isinstance(inner(module), Half)}
        for path, module in block.whole.named_modules():
            for leaf, parameter in module.named_parameters(recurse=False):
                matrix, side, turned = shorten_name(f"{path}.{leaf}"), "", False
                if leaf == "weight" and parameter.ndim == 2:
                    matrix = called.get(id(module), matrix)
                    linear = isinstance(module, nn.Linear)
                    ends = parameter.shape[::-1] if linear else parameter.shape
                    writes = matrix in ("FFN down", "attention out")
                    if ends[1 if writes else 0] == d_model:
                        side, turned = ("writes", linear) if writes else ("reads", not linear)
                if mixture is not None and parameter is mixture.routed_experts.down_proj:
                    matrix, side, turned = "FFN down of experts", "writes", not mixture.form.columns
                found[identify(parameter)] = layer, matrix, side, turned
    for matrix, end in (("unembedding", layout.unembedding), ("embedding", layout.embedding)):
        found[identify(inner(end).weight)] = -1, matrix, "tokens", False
    return found


def rounding_step(model: Model) -> float:
    """The precision (spacing at 1) of the coarsest numeric type that holds all weights of a model."""
    weights = list(model.hf_model.parameters())
    fitting = (kind for kind in NARROW if all(bool((w.to(kind) == w).all()) for w in weights))
    return torch.finfo(next(fitting, model.dtype)).eps


@dataclass(frozen=True, eq=False)
class WeightChange:
    """What was added to a matrix: its size, its rank, and its largest parts ``sizes[i] · outer(units[i], stream[i])``.

    Of both signs of a part, it has the one in which the largest of ``units[i]`` is positive.

    Attributes:
        norm: ‖ΔW‖. of_norm: of ‖W‖. tolerance: the largest singular value that rounding makes.
        rank: singular values above it, as far as they were counted; 0 of a vector. more: whether there are more.
    """

    pair: WeightPair
    norm: float
    of_norm: float
    tolerance: float
    rank: int
    more: bool
    units: Float64[Tensor, "parts units"]
    sizes: Float64[Tensor, " parts"]
    stream: Float64[Tensor, "parts d_model"]

    @classmethod
    def of(cls, pair: WeightPair, step: float, ranks: int, parts: int) -> WeightChange:
        """The change of a matrix; of one of more than ``ranks`` ranks, ``parts`` parts are kept.

        Args:
            step: the precision of the numeric type that its numbers are rounded to: each is off by up to half of it.
        """
        before, after = pair.wide(pair.before), pair.wide(pair.after)
        delta = after - before
        norm = float(delta.norm())
        of_norm = norm / float(before.norm()) if before.any() else math.inf
        if delta.ndim != 2:
            none = torch.zeros(0, 0, dtype=torch.float64)
            return cls(pair, norm, of_norm, 0.0, 0, False, none, none.diagonal(), none)
        # The error of both numbers is uniform within half a step, where they differ at all.
        variance = (before.square() + after.square()).mul_(delta != 0).mul_(step**2 / 12)
        tolerance = float(variance.sum(1).max().sqrt() + variance.sum(0).max().sqrt())
        u, sizes, v = singular_parts(delta, ranks + 1)
        count = int((sizes > tolerance).sum())
        kept = parts if count > ranks else count
        rank, more = min(count, ranks), count > ranks
        found = cls(pair, norm, of_norm, tolerance, rank, more, u.T[:kept], sizes[:kept], v.T[:kept])
        return found.turn_round(found.units.gather(1, found.units.abs().argmax(1, keepdim=True)).sign()[:, 0])

    @property
    def is_low(self) -> bool:
        """Whether its rank is known and at most half of the full one, so that its row space says something."""
        return not self.more and 0 < self.rank <= min(self.pair.before.shape) // 2

    def turn_round(self, signs: Float64[Tensor, " parts"]) -> WeightChange:
        """The same with its parts' vectors times these signs."""
        return replace(self, units=self.units * signs[:, None], stream=self.stream * signs[:, None])


def singular_parts(
    delta: Float64[Tensor, "rows columns"], count: int
) -> tuple[Float64[Tensor, "rows parts"], Float64[Tensor, " parts"], Float64[Tensor, "columns parts"]]:
    """The largest singular values of a matrix, ``count`` or some more, with their vectors; of a large matrix by random
    directions that are made orthogonal and multiplied by it twice, which is exact where its rank is lower.

    Source: Halko et al. 2011 (0909.4061), algorithms 4.4 and 5.1.
    """
    if min(delta.shape) <= 2 * (count + SPARE):
        u, sizes, vh = torch.linalg.svd(delta, full_matrices=False)
        return u, sizes, vh.T
    start = torch.randn(delta.shape[1], count + SPARE, generator=torch.Generator().manual_seed(0), dtype=delta.dtype)
    basis = torch.linalg.qr(delta @ start).Q
    for _ in range(2):
        basis = torch.linalg.qr(delta @ torch.linalg.qr(delta.T @ basis).Q).Q
    u, sizes, vh = torch.linalg.svd(basis.T @ delta, full_matrices=False)
    return basis @ u, sizes, vh.T
