"""Defaults that the library and the command line share; they import nothing, so that ``--help`` is quick."""

# examples of a store
EXAMPLES_SHOWN, CASE_SHOWN = 10, 5
"""Of a kind, and of a sign case; of a band all that were read."""

READABLE = 24
"""Neurons worth opening first."""

# polysemanticity
ABOVE = 1.35
"""The number of meanings above which a neuron is polysemantic."""
ENOUGH = 20
"""The examples that a monosemantic neuron has at least."""
MEANING_DRAWS = 200
MEANING_BUDGET = 300_000  # tokens read again, at most

# descriptions
CONTEXTS_SHOWN = CONTEXTS_TESTED = 20
JUDGED_TOGETHER = 5
"""Contexts in a question, as delphi's default."""

# traces and edits
TRACE_SAMPLES = 10

# roles
SEQUENCES_READ = 2048
"""Of a store, where its text is read again: 260,000 tokens at a context of 128."""


# comparisons
COMPARED_TOKENS, CHANCE, REACH = 10_000, 0.01, 1

# circuits
CIRCUIT_NODES, CIRCUIT_SHARE = 200, 0.9
"""Firings that are drawn, and the share of the answer that those which nobody named keep."""
