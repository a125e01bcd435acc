"""How long work says how far it is: one signature, whatever the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

log = logging.getLogger("ffnmem")
"""What is worth saying before a result is there, at level INFO: the command line shows it on standard error."""

Phase = Literal[
    "download", "convert", "verify", "compare", "pack", "scan", "rescore", "project", "read", "pages",
    "shade", "ablate", "weights", "text", "inputs", "meanings",
    "explain", "judge", "geometry", "edit", "trace", "traces", "silence",
    "silences", "virtual", "knockout", "knockouts", "evaluate", "moment", "lens", "known", "health", "causal", "exact",
    "faithfulness", "prune", "effects", "contrast", "contrasts", "audit", "answers", "steer",
]  # fmt: skip
Progress = Callable[[Phase, int, int], None]
"""Called as (phase, done, total) now and then, e.g. ("scan", 2048, 100000). Which phases there are, and what is counted
in each, says the function that is given it."""

PHASES: dict[Phase, tuple[str, str]] = {  # what is said of each, and what it counts
    "download": ("downloading", "MB"),
    "convert": ("dequantising", "models"),
    "verify": ("comparing with what was downloaded", "models"),
    "compare": ("comparing neurons", "tokens"),
    "pack": ("tokenising", "documents"),
    "scan": ("scanning", "tokens"),
    "rescore": ("running candidates again in float32", "tokens"),
    "project": ("projecting values", "neurons"),
    "read": ("reading neurons", "neurons"),
    "pages": ("writing pages", "neurons"),
    "shade": ("reading examples again", "tokens"),
    "ablate": ("removing neurons", "neurons"),
    "weights": ("comparing values with the vocabulary", "neurons"),
    "text": ("reading text", "tokens"),
    "inputs": ("reading inputs again", "tokens"),
    "meanings": ("comparing examples", "neurons"),
    "explain": ("asking for descriptions", "questions"),
    "judge": ("asking for judgements", "questions"),
    "geometry": ("comparing keys and values", "layers"),
    "edit": ("finding what to write", "facts"),
    "trace": ("restoring states", "columns"),
    "traces": ("tracing facts", "facts"),
    "silence": ("silencing", "columns"),
    "silences": ("silencing facts", "facts"),
    "virtual": ("comparing weights", "layers"),
    "knockout": ("blocking attention", "batches"),
    "knockouts": ("blocking attention", "facts"),
    "evaluate": ("editing and asking", "edits"),
    "moment": ("reading text", "tokens"),
    "lens": ("going back through text", "dimensions"),
    "known": ("asking for facts", "facts"),
    "health": ("reading text", "tokens"),
    "causal": ("integrating gradients", "steps"),
    "exact": ("removing single firings", "firings"),
    "faithfulness": ("keeping some firings", "sets of firings"),
    "prune": ("leaving firings out", "firings"),
    "steer": ("judging what is written", "prompts"),
    "contrast": ("adding firings", "percent of the goal"),
    "contrasts": ("contrasting prompts", "pairs"),
    "audit": ("taking changes apart", "matrices"),
    "answers": ("asking both models", "facts"),
    "effects": ("measuring what the edit does", "steps"),
}
