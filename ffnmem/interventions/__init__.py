"""Interventions: what a model says with other coefficients, and what each neuron's absence does."""

from .ablating import ablate
from .ablation import Ablation
from .changes import Add, Mean, Resample, Scale, Set
from .intervening import intervene
from .knowledge import KnowledgeNeurons, knowledge_neurons

__all__ = [
    "Ablation",
    "Add",
    "KnowledgeNeurons",
    "Mean",
    "Resample",
    "Scale",
    "Set",
    "ablate",
    "intervene",
    "knowledge_neurons",
]
