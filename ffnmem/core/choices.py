"""What may be chosen, and what is taken where nothing is said, in words that the library and the command line share.

Imports nothing, so that a manual is there at once.
"""

# geometry and roles
DUPLICATE_COSINE = 0.9
"""Above it two keys, values or gates nearly coincide."""
ROLE_NAMES = (
    "dead",
    "position",
    "entropy",
    "token-frequency",
    "prediction",
    "suppression",
    "partition",
    "token-detector",
    "strengthening",
    "weakening",
)
"""In order of precedence: a neuron's primary role is the first one that applies."""
TEXT_ROLES = ("dead", "position", "token-frequency", "token-detector")
"""Those that need a store."""
SEQUENCES_READ = 2048
"""Of a store, where its text is read again: 260,000 tokens at a context of 128."""

# dying neurons
DYING_OPTIMISERS = ("adam", "sgd")
DYING_ACTIVATIONS = ("relu", "gelu", "silu")
DYING_STEPS, DYING_SHARE, DYING_DEPTH = 2000, 0.5, 0.5

# planted models and calibration
PLANTED_KINDS = ("meanings", "roles", "facts")
CALIBRATION_SEEDS = (110, 111, 112, 113, 114)
"""Held out: thresholds were chosen on seeds 0 to 4."""
CALIBRATION_SUPERPOSITION = (1.0, 1.5, 2.0, 2.5)
CALIBRATION_DRAWS = 200

# studies
STUDY_NAMES = ("geva2021", "gurnee2024", "voita2023")
STUDY_EXAMPLES = 25
"""At each end of a neuron, where a study scans the corpus itself: as many prefixes as Geva et al. show annotators."""
