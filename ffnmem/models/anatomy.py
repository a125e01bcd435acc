"""``Anatomy``: where the parameters and the arithmetic of a model are, and what its FFNs are as memories."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from .._version import __version__
from ..arguments import public
from ..core.sheets import Facts, Sheet, Words
from ..ffn.ledgers import Ledger, Parity, parity, parity_width
from ..provenance import Provenance
from ..show.result import Result

MULTIPLE = 256
"""Widths of parity are multiples of it, as Llama's are."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of a layer: ``part`` "attention" or "FFN", its name there, and ``rows`` vectors of ``d_model``."""

    part: str
    name: str
    rows: int
    d_model: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return self.rows * self.d_model


@public
@dataclass(frozen=True, eq=False, repr=False)
class Anatomy(Result):
    """Where a model's parameters are, and its FFNs as memories. Made by :func:`ffnmem.anatomy`.

    Attributes:
        name: of the model. architecture: what people call its kind.
        counted: "weights": parameter by parameter in a model that is there; "formula": from the sizes in its config;
            "config": in a model built from its config without weights, where there is no formula for the family.
        ledger: parameters and FLOPs by component.
        formula: of a model that is there, what the formula gives for its config; None where there is none.
        d_model, d_mlp, d_vocab, n_ctx: sizes; ``n_ctx`` is None where the config names none.
        gated: whether the FFNs have gates. activation: as the config calls it. norm: "LayerNorm" or "RMSNorm".
        biases: the components that have any. tied: whether the unembedding is the token embedding.
        matrices: of the first layer, each as vectors of ``d_model`` numbers; attention first.
        provenance: of a model that is there, else None.
    """

    name: str
    architecture: str
    counted: str
    ledger: Ledger
    d_model: int
    d_mlp: int
    d_vocab: int
    n_ctx: int | None
    gated: bool
    activation: str
    norm: str
    biases: tuple[str, ...]
    tied: bool
    matrices: tuple[Matrix, ...]
    formula: Ledger | None = None
    provenance: Provenance | None = None

    @property
    def parameters(self) -> int:
        """All parameters; a matrix used twice counts once."""
        return self.ledger.parameters

    @property
    def neurons(self) -> int:
        """Memories of the whole model: neurons of all layers."""
        return self.ledger.n_layers * self.d_mlp

    @property
    def vectors(self) -> tuple[str, ...]:
        """What a neuron has of ``d_model`` numbers each."""
        return ("key", "gate", "value") if self.gated else ("key", "value")

    @property
    def expansion(self) -> float:
        """d_mlp / d_model."""
        return self.d_mlp / self.d_model

    @property
    def parity(self) -> Parity:
        """The FFN beside one of the other kind with about as many weights, the gated one never the smaller.

        Its width is a multiple of 256: a gated one's rounded up, a classic one's rounded down; where less than 256
        would be left, to a whole number.
        """
        if not self.gated:
            width = parity_width(self.d_model, MULTIPLE, self.d_mlp)
            return parity(self.d_model, width, d_mlp=self.d_mlp)
        classic = 3 * self.d_mlp // 2
        return parity(self.d_model, self.d_mlp, d_mlp=classic // MULTIPLE * MULTIPLE or max(classic, 1))

    def to_frame(self) -> pd.DataFrame:
        """One row a component.

        Columns: ``component``, ``layer_parameters`` and ``layer_flops`` (in one layer), ``parameters`` and ``flops``
        (in all), ``share`` (of all parameters), ``flops_share``. FLOPs are for one token, see
        :class:`ffnmem.ffn.Ledger`.
        """
        return self.ledger.to_frame()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        fields = ("name", "architecture", "counted", "d_model", "d_mlp", "d_vocab", "n_ctx", "gated", "activation")
        origin = {"model": self.name, "ffnmem": __version__}
        return {
            **{field: getattr(self, field) for field in (*fields, "norm", "tied")},
            "biases": list(self.biases),
            **{key: value for key, value in self.ledger.to_dict().items() if key != "name"},
            "formula_parameters": None if self.formula is None else self.formula.parameters,
            "memory": {
                "neurons": self.neurons,
                "vectors": list(self.vectors),
                "weights_per_neuron": len(self.vectors) * self.d_model,
                "expansion": self.expansion,
            },
            "parity": self.parity.to_dict(),
            "matrices": [asdict(matrix) | {"numbers": matrix.numbers} for matrix in self.matrices],
            "provenance": origin if self.provenance is None else self.provenance.as_dict(),
        }

    def traits(self) -> dict[str, str]:
        """The memories of the model and its other traits, a line each by its name."""
        n, kind = self.ledger.n_layers, "gated" if self.gated else "classic"
        vectors = ", ".join(self.vectors[:-1]) + " and " + self.vectors[-1]
        return {
            "memories": f"{n:,} layers × {self.d_mlp:,} neurons = {self.neurons:,}",
            "a memory": f"{vectors}, {self.d_model:,} numbers each: {len(self.vectors) * self.d_model:,} weights",
            "FFN": f"{kind}, {self.d_mlp:,} neurons for d_model {self.d_model:,}: {self.expansion:.3g}×",
            "its share": f"{self.ledger.ffn_share:.1%} of all parameters, {self.ledger.ffn_share_of_layers:.1%} of "
            "those in layers",
            "parity": self.parity_words(),
            "activation": f"{self.activation}{', of the gate' * self.gated}",
            "norm": self.norm,
            "biases": ", ".join(self.biases) or "none",
            "unembedding": "the token embedding (tied)" if self.tied else "a matrix of its own",
            "counted": self.counted_words(),
        }

    def parity_words(self) -> str:
        """The other kind of FFN with as many weights."""
        found = self.parity
        other, exact, width = ("classic", 1.5, found.d_mlp) if self.gated else ("gated", 2 / 3, found.h)
        words = f"a {other} FFN with as many weights has {exact * self.d_mlp:,.0f} neurons"
        if width == round(exact * self.d_mlp):
            return words
        by = f", a multiple of {MULTIPLE}" if width % MULTIPLE == 0 else ""
        ending = f"this one has {found.relative:+.1%}" if self.gated else f"it has {found.relative:+.1%}"
        return f"{words}; with {width:,}{by}, {ending}"

    def counted_words(self) -> str:
        """How the parameters were counted, and whether the formula gives the same number."""
        if self.counted == "formula":
            return "by the formula for its config; no weights were read"
        if self.counted == "config":
            return "in a model built from its config, without weights"
        if self.formula is None:
            return "in the loaded model; there is no formula for its config"
        missing = self.parameters - self.formula.parameters
        than = "" if missing == 0 else f": {abs(missing):,} {'fewer' if missing > 0 else 'more'}"
        return f"in the loaded model; the formula for its config gives {self.formula.parameters:,}{than}"

    def summary(self) -> str:
        return (
            f"{self.name!r}: {self.architecture}, {self.parameters:,} parameters, {self.neurons:,} "
            f"{'gated' if self.gated else 'classic'} neurons, FFN {self.ledger.ffn_share:.1%} of all and "
            f"{self.ledger.ffn_share_of_layers:.1%} of the layers"
        )

    def sheet(self) -> Sheet:
        """Parameters and FLOPs by component, and what the FFNs are as memories."""
        kind = f"{self.architecture}, {self.ledger.n_layers:,} layers, d_model {self.d_model:,}"
        in_layers = replace(self.ledger.table(in_layers=True), title="in a layer and in all", folded=True)
        return Sheet.of(
            self.ledger.table(),
            in_layers,
            Facts(self.traits()),
            Words.of(f"config of {self.name} · ffnmem {__version__}", "soft"),
            title=f"{self.name}: {kind}, vocabulary {self.d_vocab:,}",
        )
