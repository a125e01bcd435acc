"""What may be chosen, and what is taken where nothing is said, in words that the library and the command line share.

Imports nothing, so that a manual is there at once.
"""

# corpora and scans
DIVISIONS = ("paragraph", "line", "file")
"""What is a document of a .txt file: what blank lines separate, a line, or all of it."""
SCAN_DTYPES = ("float32", "bfloat16")
ENGINES = ("local", "ray")

# projections
LENSES = LOGIT, JACOBIAN = ("logit", "jacobian")
"""How values are read in tokens: as they are written, or as they arrive at the final norm."""

# examples of a store
EXAMPLE_KINDS = ("top", "bottom", "quantile", "random")
CASES = ("gate+ linear+", "gate+ linear-", "gate- linear+", "gate- linear-")
"""Of gated neurons, in the order of every array of cases; + is above 0, - is 0 or below."""
EXAMPLES_SHOWN, CASE_SHOWN = 10, 5
"""Of a kind, and of a sign case; of a band all that were read."""
SEARCHED = ("weights", "examples")
STORE_FORMS = ("neuronpedia", "delphi")
"""Other programs' forms of a store."""

# polysemanticity
COEFFICIENT_SIGNS = ("positive", "negative")
VERDICTS = ("monosemantic", "polysemantic", "unclear", "inactive")
ABOVE = 1.35
"""The number of meanings above which a neuron is polysemantic."""
DIRECTIONS = ("own", "matched", "isotropic", "mixed")
"""What verdicts by chance are of: neurons themselves, and kinds of random directions."""
ODD_ONES = ("meaning", "neuron", "half")
JUDGES = ("state", "around", "token", "trigger")
"""Where an intruder among examples is from, and by what it is looked for."""
MEANING_DRAWS = 200
MEANING_BUDGET = 300_000  # tokens read again, at most

# descriptions
RULES = "rules"
"""The explainer, and the judge, that asks nobody."""
DESCRIPTION_SCORES = ("detection", "fuzzing", "intruder")
CONTEXTS_SHOWN = CONTEXTS_TESTED = 20

# facts and traces
FACT_FORMATS = ("ffnmem", "counterfact", "known_1000", "zsre", "knowedit", "mquake", "pararel")
FACT_FORMATS_WRITTEN = ("ffnmem", "counterfact", "knowedit", "mquake")
TRACE_KINDS = ("state", "ffn", "attention")
"""What a trace restores."""
TRACE_PARTS = ("ffn", "attention")
"""What a trace can keep corrupted above a restored state."""
TRACE_SAMPLES = 10

# edits
EDITORS = (
    "rome",
    "rome_original",
    "emmet",
    "emmet_original",
    "memit",
    "memit_original",
    "alphaedit",
    "alphaedit_original",
    "encore",
    "encore_original",
    "ft_l",
    "embedding_swap",
)
ORIGINAL = "_original"
"""Of the name of an editor that is another one's published program."""
WITHOUT_MOMENT = ("ft_l", "embedding_swap")
WITHOUT_LAYER = ("embedding_swap",)
"""Editors that need no second moment, and those that choose their layers themselves."""
SWEPT = "swept"
"""In place of a layer: the one that :func:`ffnmem.evaluation.choose_layer` found."""
PROTOCOLS = ("teacher_forced", "generated")
"""How edits are judged: by the probabilities of given answers, or besides by what the model writes."""

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

# comparisons
COMPARED_TOKENS, CHANCE, REACH = 10_000, 0.01, 1
BASELINES = ("keys", "coefficients")
"""What random neurons are made of: what neurons take in, rotated, or what comes out."""

# causal scores and circuits
CAUSAL_RULES = ("gradient", "relp", "ig")
CIRCUIT_FORMS = ("circuit-tracer",)
CIRCUIT_NODES, NODE_THRESHOLD, EDGE_THRESHOLD = 500, 0.8, 0.98
SUPERNODE_SIMILARITY = 0.5

# planted models and calibration
PLANTED_KINDS = ("meanings", "roles", "facts")
CALIBRATION_SEEDS = (110, 111, 112, 113, 114)
"""Held out: thresholds were chosen on seeds 0 to 4."""
CALIBRATION_SUPERPOSITION = (1.0, 1.5, 2.0, 2.5)

# studies
STUDIES = ("geva2021", "gurnee2024", "voita2023")
STUDY_EXAMPLES = 25
"""At each end of a neuron, where a study scans the corpus itself: as many prefixes as Geva et al. show annotators."""
