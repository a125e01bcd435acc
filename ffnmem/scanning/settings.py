"""What a scan was asked to do: everything that its result depends on besides the model and the text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..corpus.excerpts import TextSettings


@dataclass(frozen=True)
class ScanSettings:
    """The settings of a scan; two scans can be merged when these, the model and the corpus agree.

    Attributes:
        context: the longest sequence in tokens, BOS included.
        prepend_bos: whether every sequence begins with BOS (which no statistic sees).
        dtype: in which the pass runs. After ``"bfloat16"`` the candidates are run again in float32.
        batch_tokens: tokens (pads included) of one forward pass. It changes the last bits of float sums, nothing else.
        seed: of the random samples.
        k: sequences kept at the top and at the bottom of each neuron, at most 10,000.
        candidates: how many are tracked to find them: k, or 2k in bfloat16.
        sample: uniformly random sequences, the same for all neurons, from which quantile bands are drawn.
        draws: random positions, the same for all neurons: at most one of a sequence, likelier the longer it is.
        frequent: ids of the most frequent tokens, whose mean coefficients are kept.
        bos: the id in front of every sequence, or None.
        special: ids that no statistic sees.
    """

    context: int
    prepend_bos: bool
    dtype: str
    batch_tokens: int
    seed: int
    k: int
    candidates: int
    sample: int
    draws: int
    frequent: tuple[int, ...]
    bos: int | None = None
    special: tuple[int, ...] = ()

    @staticmethod
    def of(text: TextSettings, k: int, dtype: str, **more: Any) -> ScanSettings:
        """The settings of a scan of a text that is cut so; ``more``: seed, sample, draws, frequent."""
        return ScanSettings(
            context=text.context,
            prepend_bos=text.prepend_bos,
            dtype=dtype,
            batch_tokens=text.batch_tokens,
            k=k,
            candidates=k if dtype == "float32" else 2 * k,
            bos=text.bos,
            special=text.special,
            **more,
        )

    @property
    def text(self) -> TextSettings:
        """How the text is cut and run in the pass."""
        return TextSettings(self.context, self.bos, self.special, self.batch_tokens)

    @property
    def n_buckets(self) -> int:
        """Position buckets: 0, 1, 2–3, 4–7, … (BOS, if any, is position 0)."""
        return (self.context - 1).bit_length() + 1

    @property
    def rescored(self) -> bool:
        """Whether candidates are run again in float32."""
        return self.dtype != "float32"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "frequent": list(self.frequent), "special": list(self.special)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ScanSettings:
        return ScanSettings(**{**values, "frequent": tuple(values["frequent"]), "special": tuple(values["special"])})

    def differences(self, other: ScanSettings) -> list[str]:
        """The names of what differs, with both values, for a message."""
        found = []
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if mine != theirs:
                found.append(f.name if f.name == "frequent" else f"{f.name} {mine} and {theirs}")
        return found
