"""Adam's step as plain arithmetic, for descents that clamp, stop or scale each row by itself."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Running means of the gradient and its square.

    Args:
        like: a tensor of the shape, type and device of what is stepped.

    Source: Kingma & Ba 2015 (1412.6980), algorithm 1, with its defaults.
    """

    def __init__(self, like: Float[Tensor, "*shape"]) -> None:
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = 0

    def step(self, gradient: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What to subtract, in units of the step size."""
        self.steps += 1
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * gradient
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * gradient**2
        mean, spread = self.first / (1 - BETAS[0] ** self.steps), self.second / (1 - BETAS[1] ** self.steps)
        return mean / (spread.sqrt() + EPSILON)
