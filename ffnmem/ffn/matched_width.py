"""The width at which gating costs nothing: a gated FFN beside a classic one of as many weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..core.errors import check_count


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
