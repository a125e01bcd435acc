"""What may be chosen, and what is taken where nothing is said, in words that the library and the command line share.

Imports nothing, so that a manual is there at once.
"""

# corpora and scans
DIVISIONS = ("paragraph", "line", "file")
"""What is a document of a .txt file: what blank lines separate, a line, or all of it."""

# facts and traces
FACT_FORMATS = ("ffnmem", "counterfact", "known_1000", "zsre", "pararel")
TRACE_KINDS = ("state", "ffn", "attention")
"""What a trace restores."""
TRACE_PARTS = ("ffn", "attention")
"""What a trace can keep corrupted above a restored state."""
TRACE_SAMPLES = 10

# edits
EDITORS = ("rome", "rome_original", "emmet", "memit", "alphaedit", "ft_l", "embedding_swap")
WITHOUT_MOMENT = ("ft_l", "embedding_swap")
WITHOUT_LAYER = ("embedding_swap",)
"""Editors that need no second moment, and those that choose their layers themselves."""
