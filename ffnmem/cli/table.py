"""The table of commands: each is a public function, and nothing more is said of it here."""

from __future__ import annotations

GROUPS = {
    "A prompt": {
        "report": "ffnmem.prompts.reporting:report",
        "attribute": "ffnmem.prompts.attribution:attribute",
        "paths": "ffnmem.prompts.paths:attribute_paths",
        "decompose": "ffnmem.prompts.attribution:decompose",
        "contrast": "ffnmem.interventions.contrasts:contrast",
        "causal": "ffnmem.prompts.causal:causal_scores",
        "faithfulness": "ffnmem.prompts.sufficiency:faithfulness",
        "minimal": "ffnmem.prompts.minimal:minimal_circuit",
        "circuit": "ffnmem.prompts.circuits:circuit",
        "ablate": "ffnmem.interventions.ablating:ablate",
        "intervene": "ffnmem.interventions.predicting:changed_predictions",
    },
    "Neurons": {
        "project": "ffnmem.vocabulary.projections:project",
        "token": "ffnmem.vocabulary.projections:promoters",
        "neuron": "ffnmem.neurons.cards:read_cards",
        "neurons": "ffnmem.neurons.cards:list_neurons",
        "search": "ffnmem.neurons.searching:search",
        "concept": "ffnmem.concepts.finding:concept",
        "steer": "ffnmem.concepts.steering:steer",
        "readable": "ffnmem.neurons.readable:find_readable",
        "meanings": "ffnmem.neurons.concepts:meanings",
        "polysemanticity": "ffnmem.neurons.survey:polysemanticity",
        "describe": "ffnmem.describing.describing:describe",
        "roles": "ffnmem.neurons.role_assignment:roles",
        "weights": "ffnmem.neurons.wiring:virtual_weights",
        "geometry": "ffnmem.neurons.layer_geometry:geometry",
        "health": "ffnmem.neurons.health:neuron_health",
    },
    "Facts and edits": {
        "facts": "ffnmem.facts.listing:list_facts",
        "known": "ffnmem.facts.known:filter_known",
        "fact": "ffnmem.evaluation.fact_reports:fact_report",
        "trace": "ffnmem.tracing.tracing:trace_fact",
        "trace-facts": "ffnmem.tracing.tracing:trace_facts",
        "knockout": "ffnmem.tracing.blocking:knockout",
        "knockout-facts": "ffnmem.tracing.blocking:knockout_facts",
        "edit": "ffnmem.evaluation.edit_reports:edited",
        "apply": "ffnmem.evaluation.edit_reports:edit_effects",
        "evaluate": "ffnmem.evaluation.evaluating:evaluate",
        "sweep": "ffnmem.evaluation.sweeping:layer_sweep",
        "sequential": "ffnmem.evaluation.series:sequential",
        "audit": "ffnmem.editing.auditing:audit",
        "moment": "ffnmem.editing.accumulating:second_moment",
    },
    "Models and files": {
        "explore": "ffnmem.explorer.exploring:explore",
        "get": "ffnmem.models.fetching:get",
        "scan": "ffnmem.scanning.scanning:scan",
        "merge": "ffnmem.scanning.merging:merge",
        "store": "ffnmem.scanning.store:open_store",
        "export": "ffnmem.scanning.exporting:export_store",
        "pack": "ffnmem.corpus.packing:pack",
        "site": "ffnmem.pages.neuron_site:site",
        "lens": "ffnmem.vocabulary.lenses:jacobian_lens",
        "compare": "ffnmem.comparing.comparing:compare",
        "anatomy": "ffnmem.models.parameters:anatomy",
        "activations": "ffnmem.ffn.activation_tables:compare_activations",
    },
}
"""By task: a command, and the public function that it is, or the module of this subpackage that holds it."""
SELDOM = frozenset(
    "decompose causal faithfulness minimal neurons meanings describe weights geometry health known trace-facts "  # noqa: SIM905
    "knockout knockout-facts apply sweep sequential audit moment merge store export pack lens anatomy "
    "activations".split()
)
"""Those that ``ffnmem --help`` names without a line of their own: a newcomer reads the others first."""
COMMANDS = {name: path for group in GROUPS.values() for name, path in group.items()}
OPERATIONS = {name: path for name, path in COMMANDS.items() if ":" in path}
