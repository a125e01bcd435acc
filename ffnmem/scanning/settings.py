"""What a scan was asked to do: everything that its result depends on besides the model and the text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..corpus.excerpts import TextSettings

SAMPLE, DRAWS = 128, 64  # random sequences, random positions
FREQUENT = 128  # tokens whose mean coefficients are kept


@dataclass(frozen=True)
class ScanSettings(TextSettings):
    """The settings of a scan; two scans can be merged when these, the model and the corpus agree.

    Attributes:
        context, bos, special, batch_tokens: see :class:`TextSettings`. The last changes the last bits of float sums,
            nothing else.
        k: sequences kept at the top and at the bottom of each neuron, at most 10,000.
        dtype: in which the pass runs. After ``"bfloat16"`` the candidates are run again in float32.
        seed: of the random samples.
        sample: uniformly random sequences, the same for all neurons, from which quantile bands are drawn.
        draws: random positions, the same for all neurons: at most one of a sequence, likelier the longer it is.
        frequent: ids of the most frequent tokens, whose mean coefficients are kept.
    """

    k: int
    dtype: str
    seed: int
    sample: int
    draws: int
    frequent: tuple[int, ...]

    @property
    def candidates(self) -> int:
        """How many sequences are tracked to find the ``k`` kept: as many, or twice as many in bfloat16."""
        return 2 * self.k if self.rescored else self.k

    @property
    def n_buckets(self) -> int:
        """Position buckets: 0, 1, 2–3, 4–7, … (BOS, if any, is position 0)."""
        return (self.context - 1).bit_length() + 1

    @property
    def rescored(self) -> bool:
        """Whether candidates are run again in float32."""
        return self.dtype != "float32"

    def to_dict(self) -> dict[str, Any]:
        lists = {"frequent": list(self.frequent), "special": list(self.special)}
        return {**asdict(self), **lists, "prepend_bos": self.prepend_bos, "candidates": self.candidates}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ScanSettings:
        tuples = {"frequent": tuple(values["frequent"]), "special": tuple(values["special"])}
        return ScanSettings(**{field.name: values[field.name] for field in fields(ScanSettings)} | tuples)

    def differences(self, other: ScanSettings) -> list[str]:
        """The names of what differs, with both values, for a message."""
        found = []
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if mine != theirs:
                found.append(f.name if f.name == "frequent" else f"{f.name} {mine} and {theirs}")
        return found
