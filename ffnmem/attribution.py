"""``Attribution``: a token's logit as the sum of what every memory and every other component wrote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from .arguments import public
from .errors import InputError, check_count, quoted
from .provenance import Provenance


@dataclass(frozen=True, eq=False)
class ComponentLogits:
    """What one component adds to the logit at each attributed position."""

    component: str
    layer: int | None
    logits: Float[Tensor, " n"]


@public
@dataclass(frozen=True, eq=False)
class Attribution:
    """Direct logit attribution at one position, or at many. Made by :func:`ffnmem.attribute`.

    Attributes:
        neuron_logits: ``[n, layer, d_mlp]``, what each neuron adds to the logit at each attributed position.
        coefficients: ``[n, layer, d_mlp]``, its coefficient there.
        component_logits: every component in the order of the residual stream.
        logits: ``[n]``, the model's own logit of the target (minus the foil's); before a soft cap, where it has one.
        tokens: the prompt's tokens; positions: where the attribution is made; target_ids, target_tokens: of what.
        foil, foil_id: the foil's token and its id, or None.
    """

    neuron_logits: Float[Tensor, "n layer d_mlp"]
    coefficients: Float[Tensor, "n layer d_mlp"]
    component_logits: tuple[ComponentLogits, ...]
    logits: Float[Tensor, " n"]
    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    target_ids: tuple[int, ...]
    target_tokens: tuple[str, ...]
    foil: str | None
    foil_id: int | None
    provenance: Provenance

    @property
    def target(self) -> str:
        """The target's token, when there is one position."""
        return self.target_tokens[self.single()]

    @property
    def position(self) -> int:
        return self.positions[self.single()]

    @property
    def logit(self) -> float:
        """The model's logit of the target (minus the foil's) at the one position; see ``logits`` for many."""
        return float(self.logits[self.single()])

    @cached_property
    def sums(self) -> Float[Tensor, " n"]:
        """The sum of all components at each position, in float64."""
        total = self.component_logits[0].logits.double().clone()
        for part in self.component_logits[1:]:
            total += part.logits.double()
        return total

    @property
    def error(self) -> float:
        """The largest \\|sum of components − logit\\| over the positions."""
        return float((self.sums - self.logits.double()).abs().max())

    def single(self) -> int:
        if len(self.positions) != 1:
            raise InputError(f"this attribution holds {len(self.positions)} positions: read .logits, or attribute one")
        return 0

    @cached_property
    def neurons(self) -> pd.DataFrame:
        """One row a neuron, largest \\|logit\\| first: layer, neuron, coefficient, logit, share (of the whole logit).

        With several positions, a first column ``position``, and the rows of each position together.
        """
        return self.top(None)

    def top(self, k: int | None = 20) -> pd.DataFrame:
        """The ``k`` neurons with the largest \\|logit\\| at each position (all for None), as ``neurons``."""
        n, _, d_mlp = self.neuron_logits.shape
        logits = self.neuron_logits.reshape(n, -1).double().cpu().numpy()
        coefficients = self.coefficients.reshape(n, -1).double().cpu().numpy()
        k = logits.shape[1] if k is None else min(check_count("top", k), logits.shape[1])
        # Ties go to the earlier layer, then the lower neuron.
        order = np.argsort(-np.abs(logits), axis=1, kind="stable")[:, :k]
        taken = np.take_along_axis(logits, order, axis=1)
        whole = self.logits.double().cpu().numpy()
        whole = np.where(whole == 0, np.nan, whole)  # nothing is a share of a logit of exactly zero
        columns: dict[str, Any] = {
            "layer": (order // d_mlp).ravel(),
            "neuron": (order % d_mlp).ravel(),
            "coefficient": np.take_along_axis(coefficients, order, axis=1).ravel(),
            "logit": taken.ravel(),
            "share": (taken / whole[:, None]).ravel(),
        }
        if n > 1:
            columns = {"position": np.repeat(np.array(self.positions), k), **columns}
        return self.with_attrs(pd.DataFrame(columns))

    @cached_property
    def components(self) -> pd.DataFrame:
        """One row a component, in the order of the residual stream: component, layer, logit. They sum to the logit.

        ``layer`` is missing (<NA>) where there is none. With several positions, a first column ``position``.
        """
        rows = [
            (position, part.component, part.layer, float(part.logits[i]))
            for i, position in enumerate(self.positions)
            for part in self.component_logits
        ]
        frame = pd.DataFrame(rows, columns=["position", "component", "layer", "logit"]).astype({"layer": "Int64"})
        return self.with_attrs(frame if len(self.positions) > 1 else frame.drop(columns="position"))

    def with_attrs(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.attrs = {"target": self.target_tokens, "foil": self.foil, "provenance": self.provenance.as_dict()}
        return frame

    def to_dict(self, top: int | None = 20) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "prompt_tokens": list(self.tokens),
            "positions": list(self.positions),
            "targets": list(self.target_tokens),
            "foil": self.foil,
            "logits": self.logits.tolist(),
            "error": self.error,
            "neurons": plain_records(self.top(top)),
            "components": plain_records(self.components),
            "provenance": self.provenance.as_dict(),
        }

    def __repr__(self) -> str:
        what = f"{quoted(self.target_tokens[0])}" if len(self.positions) == 1 else f"{len(self.positions)} targets"
        against = "" if self.foil is None else f" against {self.foil!r}"
        logit = f", logit {self.logit:.3f}" if len(self.positions) == 1 else ""
        return f"Attribution(of {what}{against}{logit}, error {self.error:.1e})"

    def _repr_html_(self) -> str:
        from .reports.display import attribution_html

        return attribution_html(self)


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries ready for strict JSON: what is missing becomes None."""
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
