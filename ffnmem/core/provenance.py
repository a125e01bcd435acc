"""What every result carries about how it was obtained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .._version import __version__
from .neuron_names import Experts, read_experts


class Live(ABC):
    """What a result may hold and its file does not, such as a model: it is given again where the file is read.

    ``device``: where it computes.
    """

    device: Any = "cpu"

    @abstractmethod
    def identified(self) -> tuple[str, str]:
        """What it is called, and what tells it from every other."""


def experts_in(provenance: Any) -> Experts:
    """The experts of the model that a result is of, by its provenance, or by that in plain values."""
    fields = provenance.to_dict() if isinstance(provenance, Provenance) else provenance
    return read_experts(str(fields.get("experts", "")) if isinstance(fields, Mapping) else "")


FIELDS = ("model", "fingerprint", "dtype", "device", "prepend_bos", "version")


@dataclass(frozen=True)
class Provenance:
    """Model, numeric type and settings behind a result. ``settings`` holds what only some have (basis, seed, …)."""

    model: str
    fingerprint: str
    dtype: str
    device: str
    prepend_bos: bool | None = None
    version: str = __version__
    settings: tuple[tuple[str, Any], ...] = field(default=())

    def with_settings(self, **settings: Any) -> Provenance:
        """The same provenance with further settings recorded."""
        return replace(self, settings=tuple({**dict(self.settings), **settings}.items()))

    @property
    def before_cap(self) -> str:
        """What is said behind a logit that attribution explains, where the model caps its logits (Gemma 2)."""
        cap = dict(self.settings).get("soft_cap")
        return "" if cap is None else f", before the soft cap of {cap:g}"

    def record(self) -> dict[str, Any]:
        """All of it as a file holds it, and :meth:`of` reads it."""
        fields = {name: getattr(self, name) for name in FIELDS}
        return {**fields, "settings": [[name, value] for name, value in self.settings]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Provenance:
        """The provenance of a :meth:`record`."""
        settings = tuple((str(name), value) for name, value in record["settings"])
        return cls(**{name: record[name] for name in FIELDS}, settings=settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        fields = {name: getattr(self, name) for name in FIELDS if name != "version"}
        if self.prepend_bos is None:
            del fields["prepend_bos"]
        return {**fields, **dict(self.settings), "ffnmem": self.version}
