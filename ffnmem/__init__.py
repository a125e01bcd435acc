"""ffnmem: read and rewrite the key-value memories in the feed-forward networks of language models.

Importing it is cheap: torch and the models load with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .attribution import Attribution as Attribution
    from .captures import Capture as Capture
    from .captures import capture as capture
    from .contributions import NEXT as NEXT
    from .contributions import attribute as attribute
    from .contributions import decompose as decompose
    from .corpus import open_corpus as open_corpus
    from .corpus import pack as pack
    from .errors import FfnmemError as FfnmemError
    from .facts import Fact as Fact
    from .facts import load_facts as load_facts
    from .models import Model as Model
    from .models import load as load
    from .paths import PathAttribution as PathAttribution
    from .paths import attribute_paths as attribute_paths
    from .plots import plot_components as plot_components
    from .plots import plot_layers as plot_layers
    from .plots import plot_map as plot_map
    from .plots import plot_neurons as plot_neurons
    from .reports import neuron_report as neuron_report
    from .reports import report as report
    from .scanning import Store as Store
    from .scanning import merge as merge
    from .scanning import open_store as open_store
    from .scanning import scan as scan
    from .store_plots import plot_dead as plot_dead
    from .store_plots import plot_firing_rates as plot_firing_rates
    from .store_plots import plot_histogram as plot_histogram
    from .vocabulary import project as project
    from .vocabulary import projection_null as projection_null
    from .vocabulary import promoters as promoters
    from .vocabulary import search_projection as search_projection

# Public name -> the room that holds it.
_HOMES = {
    "Attribution": "attribution",
    "Capture": "captures",
    "Fact": "facts",
    "FfnmemError": "errors",
    "Model": "models",
    "NEXT": "contributions",
    "PathAttribution": "paths",
    "Store": "scanning",
    "attribute": "contributions",
    "attribute_paths": "paths",
    "capture": "captures",
    "decompose": "contributions",
    "load": "models",
    "load_facts": "facts",
    "merge": "scanning",
    "neuron_report": "reports",
    "open_corpus": "corpus",
    "open_store": "scanning",
    "pack": "corpus",
    "plot_components": "plots",
    "plot_dead": "store_plots",
    "plot_firing_rates": "store_plots",
    "plot_histogram": "store_plots",
    "plot_layers": "plots",
    "plot_map": "plots",
    "plot_neurons": "plots",
    "project": "vocabulary",
    "projection_null": "vocabulary",
    "promoters": "vocabulary",
    "report": "reports",
    "scan": "scanning",
    "search_projection": "vocabulary",
}

__all__ = [
    "NEXT",
    "Attribution",
    "Capture",
    "Fact",
    "FfnmemError",
    "Model",
    "PathAttribution",
    "Store",
    "__version__",
    "attribute",
    "attribute_paths",
    "capture",
    "decompose",
    "load",
    "load_facts",
    "merge",
    "neuron_report",
    "open_corpus",
    "open_store",
    "pack",
    "plot_components",
    "plot_dead",
    "plot_firing_rates",
    "plot_histogram",
    "plot_layers",
    "plot_map",
    "plot_neurons",
    "project",
    "projection_null",
    "promoters",
    "report",
    "scan",
    "search_projection",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ffnmem' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # later uses cost nothing
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
