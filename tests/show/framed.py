"""A result that is one table of anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from ffnmem.show.result import Result


@dataclass(frozen=True, repr=False)
class Framed(Result):
    """All columns of a frame."""

    tables: ClassVar = {"frame": "*"}

    frame: pd.DataFrame
