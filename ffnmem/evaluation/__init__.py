"""Evaluation: what edits of many facts do to what was meant, to what follows from it, and to everything else."""

from .editors import EDITORS
from .evaluating import evaluate
from .metrics import METRICS
from .quality_by_moment import edit_quality
from .scores import Scores
from .sequential import Decay, sequential
from .sweeping import Sweep, layer_sweep

__all__ = ["EDITORS", "METRICS", "Decay", "Scores", "Sweep", "edit_quality", "evaluate", "layer_sweep", "sequential"]
