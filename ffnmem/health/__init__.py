"""Neuron health: which neurons never fire, which pass no gradient; and how ReLU neurons die and others come back."""

from .dying import Dying, dying_relu
from .health import NeuronHealth
from .measuring import neuron_health

__all__ = ["Dying", "NeuronHealth", "dying_relu", "neuron_health"]
