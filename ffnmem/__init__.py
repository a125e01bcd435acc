"""ffnmem: read and rewrite the key-value memories in the feed-forward networks of language models.

Importing it is cheap: torch and the models load with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .activations_plots import plot_activations as plot_activations
    from .anatomy_plots import plot_anatomy as plot_anatomy
    from .attribution import Attribution as Attribution
    from .calibration import Calibration as Calibration
    from .calibration.calibrating import calibrate as calibrate
    from .calibration_plots import plot_calibration as plot_calibration
    from .captures import Capture as Capture
    from .captures import capture as capture
    from .contributions import NEXT as NEXT
    from .contributions import attribute as attribute
    from .contributions import decompose as decompose
    from .corpus import open_corpus as open_corpus
    from .corpus import pack as pack
    from .editing.accumulating import second_moment as second_moment
    from .editing.alphaedit import alphaedit as alphaedit
    from .editing.contexts import sample_contexts as sample_contexts
    from .editing.convergence import convergence as convergence
    from .editing.differing import EditDiff as EditDiff
    from .editing.edit import Edit as Edit
    from .editing.embedding_swap import embedding_swap as embedding_swap
    from .editing.emmet import emmet as emmet
    from .editing.fine_tuning import ft_l as ft_l
    from .editing.memit import memit as memit
    from .editing.moments import SecondMoment as SecondMoment
    from .editing.rome import rome as rome
    from .errors import FfnmemError as FfnmemError
    from .errors import FfnmemWarning as FfnmemWarning
    from .evaluation import EDITORS as EDITORS
    from .evaluation import METRICS as METRICS
    from .evaluation import Decay as Decay
    from .evaluation import Scores as Scores
    from .evaluation import Sweep as Sweep
    from .evaluation import edit_quality as edit_quality
    from .evaluation import evaluate as evaluate
    from .evaluation import layer_sweep as layer_sweep
    from .evaluation.sequential import sequential as sequential
    from .evaluation_plots import plot_decay as plot_decay
    from .evaluation_plots import plot_scores as plot_scores
    from .evaluation_plots import plot_sweep as plot_sweep
    from .facts import Fact as Fact
    from .facts import Probe as Probe
    from .facts import load_facts as load_facts
    from .facts import with_portability as with_portability
    from .facts.known import Known as Known
    from .facts.known import filter_known as filter_known
    from .geometry_plots import plot_geometry as plot_geometry
    from .health import Dying as Dying
    from .health import NeuronHealth as NeuronHealth
    from .health import dying_relu as dying_relu
    from .health import neuron_health as neuron_health
    from .health_plots import plot_dying as plot_dying
    from .health_plots import plot_health as plot_health
    from .intervention_plots import plot_ablation as plot_ablation
    from .interventions import Ablation as Ablation
    from .interventions import Add as Add
    from .interventions import KnowledgeNeurons as KnowledgeNeurons
    from .interventions import Mean as Mean
    from .interventions import Resample as Resample
    from .interventions import Scale as Scale
    from .interventions import Set as Set
    from .interventions import ablate as ablate
    from .interventions import intervene as intervene
    from .interventions import knowledge_neurons as knowledge_neurons
    from .meanings_plots import plot_meanings as plot_meanings
    from .meanings_plots import plot_verdicts as plot_verdicts
    from .models import Model as Model
    from .models import load as load
    from .models.anatomy import Anatomy as Anatomy
    from .models.dissecting import anatomy as anatomy
    from .paths import PathAttribution as PathAttribution
    from .paths import attribute_paths as attribute_paths
    from .planted import Planted as Planted
    from .planted import load_planted as load_planted
    from .planted import plant as plant
    from .plots import plot_components as plot_components
    from .plots import plot_layers as plot_layers
    from .plots import plot_map as plot_map
    from .plots import plot_neurons as plot_neurons
    from .reports import neuron_report as neuron_report
    from .reports.activations import activations_report as activations_report
    from .reports.editing import edit_report as edit_report
    from .reports.report import report as report
    from .roles_plots import plot_roles as plot_roles
    from .scanning import Store as Store
    from .scanning import merge as merge
    from .scanning import open_store as open_store
    from .scanning.scan import scan as scan
    from .semantics.geometry import Geometry as Geometry
    from .semantics.geometry import geometry as geometry
    from .semantics.meanings import Meanings as Meanings
    from .semantics.meanings import meanings as meanings
    from .semantics.polysemanticity import polysemanticity as polysemanticity
    from .semantics.roles import roles as roles
    from .semantics.verdicts import Rule as Rule
    from .store_plots import plot_dead as plot_dead
    from .store_plots import plot_firing_rates as plot_firing_rates
    from .store_plots import plot_histogram as plot_histogram
    from .studies.running import study as study
    from .tracing import Trace as Trace
    from .tracing import Traces as Traces
    from .tracing import noise_scale as noise_scale
    from .tracing import trace_fact as trace_fact
    from .tracing import trace_facts as trace_facts
    from .tracing_plots import plot_trace as plot_trace
    from .tracing_plots import plot_traces as plot_traces
    from .vocabulary import project as project
    from .vocabulary import projection_null as projection_null
    from .vocabulary import promoters as promoters
    from .vocabulary import search_projection as search_projection

# Public name -> the room that holds it.
_HOMES = {
    "EDITORS": "evaluation",
    "METRICS": "evaluation",
    "NEXT": "contributions",
    "Ablation": "interventions",
    "Add": "interventions",
    "Anatomy": "models.anatomy",
    "Attribution": "attribution",
    "Calibration": "calibration",
    "Capture": "captures",
    "Decay": "evaluation",
    "Dying": "health",
    "Edit": "editing.edit",
    "EditDiff": "editing.differing",
    "Fact": "facts",
    "FfnmemError": "errors",
    "FfnmemWarning": "errors",
    "Geometry": "semantics.geometry",
    "KnowledgeNeurons": "interventions",
    "Known": "facts.known",
    "Mean": "interventions",
    "Meanings": "semantics.meanings",
    "Model": "models",
    "NeuronHealth": "health",
    "PathAttribution": "paths",
    "Planted": "planted",
    "Probe": "facts",
    "Resample": "interventions",
    "Rule": "semantics.verdicts",
    "Scale": "interventions",
    "Scores": "evaluation",
    "SecondMoment": "editing.moments",
    "Set": "interventions",
    "Store": "scanning",
    "Sweep": "evaluation",
    "Trace": "tracing",
    "Traces": "tracing",
    "ablate": "interventions",
    "activations_report": "reports.activations",
    "alphaedit": "editing.alphaedit",
    "anatomy": "models.dissecting",
    "attribute": "contributions",
    "attribute_paths": "paths",
    "calibrate": "calibration.calibrating",
    "capture": "captures",
    "convergence": "editing.convergence",
    "decompose": "contributions",
    "dying_relu": "health",
    "edit_quality": "evaluation",
    "edit_report": "reports.editing",
    "emmet": "editing.emmet",
    "evaluate": "evaluation",
    "filter_known": "facts.known",
    "ft_l": "editing.fine_tuning",
    "geometry": "semantics.geometry",
    "intervene": "interventions",
    "embedding_swap": "editing.embedding_swap",
    "knowledge_neurons": "interventions",
    "layer_sweep": "evaluation",
    "load": "models",
    "load_facts": "facts",
    "load_planted": "planted",
    "meanings": "semantics.meanings",
    "memit": "editing.memit",
    "merge": "scanning",
    "neuron_health": "health",
    "neuron_report": "reports",
    "noise_scale": "tracing",
    "open_corpus": "corpus",
    "open_store": "scanning",
    "pack": "corpus",
    "plant": "planted",
    "plot_ablation": "intervention_plots",
    "plot_activations": "activations_plots",
    "plot_anatomy": "anatomy_plots",
    "plot_calibration": "calibration_plots",
    "plot_components": "plots",
    "plot_dead": "store_plots",
    "plot_decay": "evaluation_plots",
    "plot_dying": "health_plots",
    "plot_firing_rates": "store_plots",
    "plot_geometry": "geometry_plots",
    "plot_health": "health_plots",
    "plot_histogram": "store_plots",
    "plot_layers": "plots",
    "plot_map": "plots",
    "plot_meanings": "meanings_plots",
    "plot_neurons": "plots",
    "plot_roles": "roles_plots",
    "plot_scores": "evaluation_plots",
    "plot_sweep": "evaluation_plots",
    "plot_trace": "tracing_plots",
    "plot_traces": "tracing_plots",
    "plot_verdicts": "meanings_plots",
    "polysemanticity": "semantics.polysemanticity",
    "project": "vocabulary",
    "projection_null": "vocabulary",
    "promoters": "vocabulary",
    "report": "reports.report",
    "roles": "semantics.roles",
    "rome": "editing.rome",
    "sample_contexts": "editing.contexts",
    "scan": "scanning.scan",
    "search_projection": "vocabulary",
    "second_moment": "editing.accumulating",
    "sequential": "evaluation.sequential",
    "study": "studies.running",
    "trace_fact": "tracing",
    "trace_facts": "tracing",
    "with_portability": "facts",
}

__all__ = [
    "EDITORS",
    "METRICS",
    "NEXT",
    "Ablation",
    "Add",
    "Anatomy",
    "Attribution",
    "Calibration",
    "Capture",
    "Decay",
    "Dying",
    "Edit",
    "EditDiff",
    "Fact",
    "FfnmemError",
    "FfnmemWarning",
    "Geometry",
    "KnowledgeNeurons",
    "Known",
    "Mean",
    "Meanings",
    "Model",
    "NeuronHealth",
    "PathAttribution",
    "Planted",
    "Probe",
    "Resample",
    "Rule",
    "Scale",
    "Scores",
    "SecondMoment",
    "Set",
    "Store",
    "Sweep",
    "Trace",
    "Traces",
    "__version__",
    "ablate",
    "activations_report",
    "alphaedit",
    "anatomy",
    "attribute",
    "attribute_paths",
    "calibrate",
    "capture",
    "convergence",
    "decompose",
    "dying_relu",
    "edit_quality",
    "edit_report",
    "embedding_swap",
    "emmet",
    "evaluate",
    "filter_known",
    "ft_l",
    "geometry",
    "intervene",
    "knowledge_neurons",
    "layer_sweep",
    "load",
    "load_facts",
    "load_planted",
    "meanings",
    "memit",
    "merge",
    "neuron_health",
    "neuron_report",
    "noise_scale",
    "open_corpus",
    "open_store",
    "pack",
    "plant",
    "plot_ablation",
    "plot_activations",
    "plot_anatomy",
    "plot_calibration",
    "plot_components",
    "plot_dead",
    "plot_decay",
    "plot_dying",
    "plot_firing_rates",
    "plot_geometry",
    "plot_health",
    "plot_histogram",
    "plot_layers",
    "plot_map",
    "plot_meanings",
    "plot_neurons",
    "plot_roles",
    "plot_scores",
    "plot_sweep",
    "plot_trace",
    "plot_traces",
    "plot_verdicts",
    "polysemanticity",
    "project",
    "projection_null",
    "promoters",
    "report",
    "roles",
    "rome",
    "sample_contexts",
    "scan",
    "search_projection",
    "second_moment",
    "sequential",
    "study",
    "trace_fact",
    "trace_facts",
    "with_portability",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ffnmem' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # later uses cost nothing
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
