"""What notebooks show of ablations and knowledge neurons."""

from __future__ import annotations

from ..interventions.ablation import Ablation
from ..interventions.knowledge import KnowledgeNeurons
from ..show.bars import Axis, bar
from ..show.rendering import provenance_line
from .templating import display

NEURONS = 20


def ablation_html(ablation: Ablation) -> str:
    """An ablation: a sentence, and the neurons with the largest total effect, the direct one beside it."""
    rows = ablation.neurons.head(NEURONS).to_dict("records")
    axis = Axis.over([row[name] for row in rows for name in ("direct", "logit")])
    return display(
        "ablation.html",
        ablation=ablation,
        rows=[(row, bar(axis, row["direct"]), bar(axis, row["logit"])) for row in rows],
        hidden=len(ablation.neurons) - len(rows),
        provenance=provenance_line(ablation.provenance.as_dict()),
    )


def knowledge_html(found: KnowledgeNeurons) -> str:
    """Knowledge neurons: a sentence, the largest attributions, and each layer's sum against what it should be."""
    rows = found.top(NEURONS).to_dict("records")
    layers = found.layers.to_dict("records")
    axis, by_layer = Axis.over([row["attribution"] for row in rows]), Axis.over([row["attribution"] for row in layers])
    return display(
        "knowledge.html",
        found=found,
        read_at=found.capture.token_strings(found.prompt)[found.position],
        selected=len(found.selected),
        rows=[(row, bar(axis, row["attribution"])) for row in rows],
        layers=[(row, bar(by_layer, row["attribution"])) for row in layers],
        provenance=provenance_line(found.provenance.as_dict()),
    )
