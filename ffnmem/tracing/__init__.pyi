from .restoring import noise_scale as noise_scale
from .traces import Trace as Trace
from .traces import Traces as Traces
from .tracing import trace_fact as trace_fact
from .tracing import trace_facts as trace_facts
