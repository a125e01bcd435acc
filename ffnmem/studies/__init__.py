"""Studies: the protocols of papers, run on any model, as tables and figures to compare with theirs."""

from ..core.choices import STUDY_NAMES as STUDIES
from .running import study as study
from .study import Figure as Figure
from .study import Study as Study
from .study import Table as Table

__all__ = ["STUDIES", "Figure", "Study", "Table", "study"]
