"""HTML: the report of one prompt, reports of neurons, and what notebooks show of results."""

from .neurons import neuron_report as neuron_report
from .report import report as report

__all__ = ["neuron_report", "report"]
