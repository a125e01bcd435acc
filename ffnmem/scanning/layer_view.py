"""One layer of a stored state, array by array when asked."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from .state_file import StateFile
from .statistics import bucket_name, means


class LayerView:
    """The arrays of one layer that answer questions about single neurons."""

    def __init__(self, file: StateFile, layer: int) -> None:
        self.file, self.layer = file, layer

    def read(self, name: str) -> np.ndarray:
        return self.file.array(f"{self.layer}.{name}")

    @cached_property
    def histogram(self) -> np.ndarray:
        return self.read("histogram")

    @cached_property
    def token_counts(self) -> np.ndarray:
        return self.file.array("token_counts")

    @cached_property
    def token_sums(self) -> np.ndarray:
        return self.read("token_sums")

    @cached_property
    def bucket_sums(self) -> np.ndarray:
        return self.read("bucket_sums")

    @cached_property
    def sample_sequences(self) -> np.ndarray:
        return self.file.array("sequences")

    @cached_property
    def sample(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Per extreme ("max", "min"): coefficients and positions ``[sample, d_mlp]`` of the random sequences."""
        return {
            name: (self.read(f"sample_{side}"), self.read(f"sample_{side}_at"))
            for name, side in (("max", "high"), ("min", "low"))
        }

    @cached_property
    def draws(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The random positions: coefficients ``[draws, d_mlp]``, sequences, positions (−1 where not scanned)."""
        return self.read("draw"), self.file.array("draws"), self.file.array("draw_positions")

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return self.file.gated

    @cached_property
    def sample_parts(self) -> np.ndarray:
        """Of gated neurons: gate and linear part at the maximum and at the minimum ``[2, 2, sample, d_mlp]``."""
        return self.read("gate.sample_parts")

    @cached_property
    def draw_parts(self) -> np.ndarray:
        """The same at the random positions ``[2, draws, d_mlp]``."""
        return self.read("gate.draw_parts")

    def token_means(self, neuron: int) -> np.ndarray:
        return means(self.token_sums[:, neuron], self.token_counts)

    def by_position(self, neuron: int, context: int) -> pd.DataFrame:
        counts = self.file.array("bucket_counts")
        frame = pd.DataFrame(
            {
                "positions": [bucket_name(bucket, context) for bucket in range(len(counts))],
                "count": counts,
                "mean": means(self.bucket_sums[:, neuron], counts),
            }
        )
        return frame[frame["count"] > 0].reset_index(drop=True)
