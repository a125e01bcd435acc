"""Adam's step."""

from __future__ import annotations

import torch

from ffnmem.editing.values import Adam


def test_steps_are_those_of_torch_optim_adam() -> None:
    """A descent that is not Adam's would not reproduce the published program's."""
    theirs = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ours, adam, other = theirs.detach().clone(), Adam(theirs.detach()), torch.optim.Adam([theirs], lr=0.07)
    for _ in range(25):
        other.zero_grad()
        theirs.grad = torch.autograd.grad((theirs**4 + theirs.sin()).sum(), theirs)[0]
        moving = ours.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((moving**4 + moving.sin()).sum(), moving)
        ours = ours - 0.07 * adam.step(gradient)
        other.step()
    assert torch.allclose(ours, theirs.detach(), rtol=0, atol=1e-13)
