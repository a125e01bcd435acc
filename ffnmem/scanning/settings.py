"""What a scan was asked to do: everything that its result depends on besides the model and the text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from dataclasses import fields as names
from typing import Annotated, Any

from ..core.types import Count, Range, ScanDtype, Seed, at_least, checked
from ..corpus.excerpts import TextSettings
from ..models.model import Model

MOST = 10_000  # examples at each end of a neuron: their memory grows with this, whatever the corpus


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
        return ScanSettings(
            **{f.name: values[f.name] for f in names(ScanSettings)}
            | {"frequent": tuple(values["frequent"]), "special": tuple(values["special"])}
        )

    def differences(self, other: ScanSettings) -> list[str]:
        """The names of what differs, with both values, for a message."""
        found = []
        for f in names(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if mine != theirs:
                found.append(f.name if f.name == "frequent" else f"{f.name} {mine} and {theirs}")
        return found


@checked
def make_settings(
    model: Model,
    *,
    context: Annotated[int, at_least(2)] | None,
    prepend_bos: bool | None,
    dtype: ScanDtype,
    batch_tokens: Count,
    seed: Seed,
    k: Annotated[int, Range(1, MOST)],
    sample: Count,
    draws: Count,
    frequent: tuple[int, ...],
) -> ScanSettings:
    """Checked settings; raises InputError."""
    text = TextSettings.checked(model, context, prepend_bos, batch_tokens)
    return ScanSettings(
        context=text.context,
        prepend_bos=text.prepend_bos,
        dtype=dtype,
        batch_tokens=text.batch_tokens,
        seed=seed,
        k=k,
        candidates=k if dtype == "float32" else 2 * k,
        sample=sample,
        draws=draws,
        frequent=frequent,
        bos=text.bos,
        special=text.special,
    )
