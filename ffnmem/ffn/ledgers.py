"""Where the parameters and the arithmetic of a language model are, and the width at which gating costs nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from ..core.errors import InputError, check_count, counted, quoted
from ..core.json_values import plain
from ..core.sheets import Column, Sheet, Table, Words
from ..core.token_text import printable
from ..show.result import Result
from .shapes import Shape

CONTEXT = 1024


@dataclass(frozen=True)
class Component:
    """One line of a ledger.

    Attributes:
        component: its name.
        layer_parameters: parameters of it in one layer.
        other_parameters: parameters of it outside the layers.
        layer_flops: FLOPs for one token in one layer.
        other_flops: FLOPs for one token outside the layers.
    """

    component: str
    layer_parameters: int = 0
    other_parameters: int = 0
    layer_flops: int = 0
    other_flops: int = 0


@dataclass(frozen=True, repr=False)
class Ledger(Result):
    """Parameters and FLOPs by component.

    FLOPs are those of matrix products in one forward pass for one token, 2 for a multiply-add, as in Kaplan et al.
    2020 (2001.08361), §2.1: lookups, biases, norms, activations and softmax count 0.

    Attributes:
        name: of the model or block.
        n_layers: layers.
        context: positions that the token attends over, itself among them, in every layer.
        components: the lines.
    """

    in_json = "name n_layers context parameters flops ffn_share ffn_share_of_layers components"

    name: str
    n_layers: int
    context: int
    components: tuple[Component, ...]

    @property
    def parameters(self) -> int:
        """All parameters; a matrix that two components share counts once."""
        return sum(self.of(one)[0] for one in self.components)

    @property
    def flops(self) -> int:
        """All FLOPs for one token."""
        return sum(self.of(one)[1] for one in self.components)

    @property
    def ffn_share(self) -> float:
        """The FFNs' share of all parameters."""
        return self.of(self["FFN"])[0] / self.parameters

    @property
    def ffn_share_of_layers(self) -> float:
        """The FFNs' share of the parameters in layers: 2/3 but for biases and norms where d_mlp = 4·d_model."""
        return self["FFN"].layer_parameters / sum(one.layer_parameters for one in self.components)

    def __getitem__(self, component: str) -> Component:
        """The line of a component; raises InputError if there is none."""
        for one in self.components:
            if one.component == component:
                return one
        names = ", ".join(one.component for one in self.components)
        raise InputError(f"component {quoted(component)} is unknown: this ledger has {names}")

    def of(self, one: Component) -> tuple[int, int]:
        """Parameters and FLOPs of a line in the whole model."""
        return (
            self.n_layers * one.layer_parameters + one.other_parameters,
            self.n_layers * one.layer_flops + one.other_flops,
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a component.

        Columns: ``component``, ``layer_parameters`` and ``layer_flops`` (in one layer), ``parameters`` and ``flops``
        (in all), ``share`` (of all parameters), ``flops_share``.
        """
        totals = [self.of(one) for one in self.components]
        return pd.DataFrame(
            {
                "component": [one.component for one in self.components],
                "layer_parameters": [one.layer_parameters for one in self.components],
                "parameters": [parameters for parameters, _ in totals],
                "share": [parameters / self.parameters for parameters, _ in totals],
                "layer_flops": [one.layer_flops for one in self.components],
                "flops": [flops for _, flops in totals],
                "flops_share": [flops / self.flops for _, flops in totals],
            }
        )

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**super().to_dict(top), "components": plain(self.to_frame())}

    def summary(self) -> str:
        return (
            f"{printable(self.name)}, {self.parameters:,} parameters, FFN {self.ffn_share:.1%} of all and "
            f"{self.ffn_share_of_layers:.1%} of the layers, {self.flops:,} FLOPs a token at context {self.context}"
        )

    def sheet(self) -> Sheet:
        """What it comes to, and its lines."""
        return Sheet.of(Words.of(self.summary()), self.table(in_layers=True))

    def table(self, *, in_layers: bool = False) -> Table:
        """One row a component, and their sum; ``in_layers``: with what one layer has of each."""
        names = {"parameters": "parameters", "share": "share", "flops": "FLOPs a token", "flops_share": "share"}
        if in_layers:
            names = {
                "layer_parameters": "parameters in a layer", "parameters": names["parameters"], "share": "share",
                "layer_flops": "FLOPs in a layer", "flops": names["flops"], "flops_share": "share",
            }  # fmt: skip
        records = self.to_frame().to_dict("records")
        total = {name: 1.0 if "share" in name else sum(row[name] for row in records) for name in names}
        return Table.of(
            [*records, {"component": "all", **total}],
            "component",
            *(Column(head, "percent" if "share" in head else "count", of=name) for name, head in names.items()),
            caption=f"FLOPs of a token that attends over {counted(self.context, 'position')}",
            strong=(len(records),),
        )


def ledger(shape: Any, *, context: int | None = None) -> Ledger:
    """Where a model's parameters and arithmetic are, exactly, from its shape alone.

    Args:
        shape: a :class:`Shape`, or what :meth:`Shape.from_config` takes.
        context: positions that the token attends over, itself among them, as if every layer saw them all (windows of
            local attention are not taken off); default 1024, or the model's whole context where that is shorter.

    Returns:
        A :class:`Ledger` of token embedding, position embedding, attention, FFN, norms and unembedding. A tied
        unembedding has no parameters of its own.

    Raises:
        UnsupportedModelError: as :meth:`Shape.from_config`. InputError: a context below 1 or beyond the model's.

    Source: the accounting of Kaplan et al. 2020 (2001.08361), table 1, with every bias and norm.
    """
    shape = shape if isinstance(shape, Shape) else Shape.from_config(shape)
    seen = checked_context(context, shape.n_ctx, f"this {shape.family}")
    d, d_embed, vocabulary = shape.d_model, shape.d_embed, shape.d_vocab
    projection = d * d_embed if d_embed != d else 0
    norm = shape.norm_gain * d + shape.norm_bias * d
    attention, attention_flops = attention_cost(shape, seen)
    matrices = 3 if shape.gated else 2
    ffn = matrices * d * shape.d_mlp
    ffn_biases = shape.ffn_bias * ((matrices - 1) * shape.d_mlp + d)
    outside_norms = shape.final_norm + shape.embedding_norm
    unembedding = (0 if shape.tied else vocabulary * d_embed) + projection + shape.unembedding_bias * vocabulary
    return Ledger(
        name=shape.family,
        n_layers=shape.n_layers,
        context=seen,
        components=(
            Component(
                "token embedding", other_parameters=vocabulary * d_embed + projection, other_flops=2 * projection
            ),
            Component("position embedding", other_parameters=shape.position_rows * d),
            Component("attention", attention, layer_flops=attention_flops),
            Component("FFN", ffn + ffn_biases, layer_flops=2 * ffn),
            Component("norms", shape.norms_per_layer * norm + qk_norm_parameters(shape), outside_norms * norm),
            Component("unembedding", other_parameters=unembedding, other_flops=2 * (vocabulary * d_embed + projection)),
        ),
    )


def checked_context(context: int | None, longest: int | None, name: str) -> int:
    """The context to count attention at, of a model that reads ``longest`` positions."""
    if context is None:
        return min(CONTEXT, longest or CONTEXT)
    if longest is not None and check_count("context", context) > longest:
        raise InputError(f"context {context} is beyond the {longest} positions of {name}")
    return check_count("context", context)


def attention_cost(shape: Shape, context: int) -> tuple[int, int]:
    """Parameters of one attention layer, and its FLOPs for one token: projections, then scores and mix."""
    queries, shared = shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    weights = shape.d_model * (2 * queries + 2 * shared)
    biases = shape.qkv_bias * (queries + 2 * shared) + shape.attention_out_bias * shape.d_model
    scores_and_mix = 2 * (2 * queries * context)
    return weights + biases, 2 * weights + scores_and_mix


def qk_norm_parameters(shape: Shape) -> int:
    """Parameters of the norms of one layer's queries and keys."""
    heads = {"none": 0, "head": 2, "width": shape.n_heads + shape.n_kv_heads}[shape.qk_norm]
    return heads * shape.d_head * (1 + shape.qk_norm_bias)


@dataclass(frozen=True)
class Parity:
    """A gated FFN beside a classic one of about as many weights, without biases.

    Attributes:
        d_model: width of the residual stream.
        d_mlp: neurons of the classic FFN.
        h: neurons of the gated one.
        classic: 2·d_model·d_mlp.
        gated: 3·d_model·h.
    """

    d_model: int
    d_mlp: int
    h: int
    classic: int
    gated: int

    @property
    def difference(self) -> int:
        """Weights that the gated one has more."""
        return self.gated - self.classic

    @property
    def relative(self) -> float:
        """The difference as a share of the classic one's."""
        return self.difference / self.classic

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"difference": self.difference, "relative": self.relative}

    def __repr__(self) -> str:
        return (
            f"Parity(d_model {self.d_model}: gated {self.h} neurons, {self.gated:,} weights; "
            f"classic {self.d_mlp}, {self.classic:,}; {self.relative:+.1%})"
        )


def parity_width(d_model: int, multiple: int = 256, d_mlp: int | None = None) -> int:
    """Neurons of the gated FFN that has as many weights as a classic one: 2·d_mlp/3, rounded up to a multiple.

    Args:
        d_model: width of the residual stream.
        multiple: what the width is a multiple of, for the sake of the hardware; Llama's is 256.
        d_mlp: neurons of the classic FFN; default 4·d_model, which gives 8·d_model/3.

    Returns:
        The width.

    Raises:
        InputError: a number below 1.

    Source: Shazeer 2020 (2002.05202), §2; the rounding is that of Touvron et al. 2023 (2302.13971) in their code.
    """
    check_count("d_model", d_model)
    wide = 4 * d_model if d_mlp is None else check_count("d_mlp", d_mlp)
    return -(-2 * wide // (3 * check_count("multiple", multiple))) * multiple


def parity(d_model: int, h: int | None = None, *, d_mlp: int | None = None) -> Parity:
    """A gated FFN of ``h`` neurons beside a classic one.

    Args:
        d_model: width of the residual stream.
        h: neurons of the gated FFN; default :func:`parity_width`.
        d_mlp: neurons of the classic FFN; default 4·d_model.

    Returns:
        A :class:`Parity`. Llama 7B: d_model 4096 and h 11008 give 135,266,304 against 134,217,728, +0.8%.

    Raises:
        InputError: a number below 1.
    """
    check_count("d_model", d_model)
    wide = 4 * d_model if d_mlp is None else check_count("d_mlp", d_mlp)
    width = parity_width(d_model, d_mlp=wide) if h is None else check_count("h", h)
    return Parity(d_model, wide, width, 2 * d_model * wide, 3 * d_model * width)
