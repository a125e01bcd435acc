"""Interventions: what a model says with other coefficients, and what each neuron's absence does."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
