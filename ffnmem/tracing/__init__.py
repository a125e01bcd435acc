"""Causal tracing: where in a model, and at which token, a fact is recalled."""

from .corrupting import noise_scale
from .settings import KINDS, SEVERED
from .trace import Trace
from .traces import GROUPS, Traces
from .tracing import trace_fact, trace_facts

__all__ = ["GROUPS", "KINDS", "SEVERED", "Trace", "Traces", "noise_scale", "trace_fact", "trace_facts"]
