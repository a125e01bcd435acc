"""How well the toolkit's own measures recover what was planted."""

from .calibration import Calibration as Calibration
