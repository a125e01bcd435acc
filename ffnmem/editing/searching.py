"""The search for the smallest δ that gives a target in each context: steps to where all rows, taken as linear, do."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float64
from scipy.optimize import nnls
from torch import Tensor

from .settings import EditSettings

AIM = 0.6  # of the loss to stop at: where a row's line is to go
FLOOR = 1e-3  # of that loss: nothing is certain
RIDGE = 0.1  # on the cosines between rows' gradients, whose differences would else be followed to the letter
SHRINK = 0.4  # of what of δ no row needs is left out with a step; half of it after a step that made things worse
TOO_FAR = 0.35  # of the last step, after one that made things worse
LONGER = 1.5  # after one that did not
KEPT = 1e-3  # the essence's ridge, in units of the others'


class Search:
    """δ of one request.

    Each context c has a margin m_c = log(p / (1 − p)) of its target, p the geometric mean over the tokens, and a
    gradient of its own. δ moves to the smallest vector for which m_c + J_c·(change of δ) reaches the goal for every
    context, and the essence's divergence stays below its bound: non-negative least squares in as many dimensions as
    rows. A step is no longer than a radius, which shrinks where the loss has grown, and the step is taken again from
    the best δ.

    Args:
        settings: rate (the first radius) and clamp in units of ``scale``, stop, kl.
        scale: ‖v₀‖. width: d_model.

    Attributes:
        candidate: to be looked at next. best: of those looked at.
        nll, kl: the averages of the best. looks: how many were looked at. running: whether another look is wanted.

    Source: Gauss–Newton steps in a trust region (Nocedal and Wright 2006, §10.3 and 4.1) on margins in place of the
        loss, whose slope vanishes where a target is likely; Lawson and Hanson 1974 for the inequalities.
    """

    def __init__(self, settings: EditSettings, scale: float, width: int) -> None:
        self.settings, self.scale = settings, scale
        self.candidate = torch.zeros(width, dtype=torch.float64)
        self.best = self.candidate
        self.radius, self.merit, self.shrink = settings.rate * scale, math.inf, SHRINK
        self.nll = self.kl = math.nan
        self.looks, self.running = 0, True
        stop = max(settings.stop, FLOOR)
        self.bound = stop / settings.kl if settings.kl else math.inf
        aim = AIM * stop
        self.goal = -aim - math.log(-math.expm1(-aim))
        self.lines: tuple[Tensor, Tensor, Tensor] | None = None

    def again(self) -> Search:
        """A search that goes on from the best δ of this one, with other rows."""
        found = Search(self.settings, self.scale, len(self.best))
        found.candidate, found.radius = self.best, max(self.radius, TOO_FAR * float(self.best.norm()))
        found.best, found.shrink = self.best, self.shrink
        return found

    def look(
        self,
        each: Float64[Tensor, " rows"],
        weights: Float64[Tensor, " rows"],
        held: Bool[Tensor, " rows"],
    ) -> bool:
        """Take in what was measured at the candidate.

        Args:
            each: by context −log p of the target, of the essence its divergence.
            weights: of contexts. held: which row is the essence.

        Returns: Whether the search goes on from this candidate: then :meth:`turn` is to be given the slopes there.
        """
        self.looks += 1
        nll, kl = float((weights * each)[~held].sum()), float(each[held].sum())
        merit = nll + self.settings.kl * max(kl - self.bound, 0.0)
        if not math.isfinite(merit) and self.lines is None:  # the model's own doing
            self.nll, self.kl, self.running = nll, kl, False
            return False
        if self.looks > 1 and torch.equal(self.candidate, self.best):  # there is nowhere to go
            self.running = False
            return False
        if merit <= self.merit:
            self.best, self.merit, self.nll, self.kl = self.candidate, merit, nll, kl
            self.radius *= LONGER if self.looks > 1 else 1.0
            reached = nll <= self.settings.stop and kl <= self.bound
            self.running = not reached
            return self.running
        # What no row needs while all are linear, they need where they are not: less of it is left out from here on.
        self.radius, self.shrink = TOO_FAR * float((self.candidate - self.best).norm()), self.shrink / 2
        self.candidate = self.next()
        return False

    def turn(
        self,
        each: Float64[Tensor, " rows"],
        slopes: Float64[Tensor, "rows d_model"],
        weights: Float64[Tensor, " rows"],
        held: Bool[Tensor, " rows"],
    ) -> None:
        """Choose the next candidate, given the gradients of what :meth:`look` took in."""
        self.lines = self.linear(each, slopes, weights, held)
        self.candidate = self.next()

    def linear(
        self, each: Tensor, slopes: Tensor, weights: Tensor, held: Tensor
    ) -> tuple[Float64[Tensor, "rows d_model"], Float64[Tensor, " rows"], Float64[Tensor, "rows rows"]]:
        """By row the direction that raises its margin, how far to go along it, and the factor of their cosines."""
        nll = each.clamp(min=1e-9)
        # With p = exp(−nll): the margin's slope is that of −nll over 1 − p.
        steep = torch.where(held, 1.0, 1.0 / -torch.expm1(-nll))
        slopes = -slopes * steep.unsqueeze(1)
        missing = torch.where(held, each - self.bound, self.goal + nll + torch.log(-torch.expm1(-nll)))
        sizes = slopes.norm(dim=1)
        # An essence that has not moved has no slope, and a collapsed model may have none that is a number.
        some = (sizes > 0) & sizes.isfinite() & missing.isfinite()
        units, distance = slopes[some] / sizes[some].unsqueeze(1), missing[some] / sizes[some]
        contexts = int((~held).sum())
        ridge = RIDGE * torch.where(held, KEPT, 1.0 / (weights * contexts).clamp(min=1e-6))[some]
        factor = torch.linalg.cholesky(units @ units.T + torch.diag(ridge))
        return units, distance, factor

    def next(self) -> Float64[Tensor, " d_model"]:
        """The next candidate, within radius and clamp."""
        assert self.lines is not None
        units, distance, factor = self.lines
        nearest = self.best + span(units, distance, factor)
        smallest = span(units, distance + units @ self.best, factor)
        less = self.shrink * (smallest - nearest)  # which the ridge makes too short, too
        step = less + span(units, distance - units @ less, factor)
        length = float(step.norm())
        found = self.best + step * min(1.0, self.radius / max(length, 1e-30))
        return found * min(1.0, self.settings.clamp * self.scale / max(float(found.norm()), 1e-30))


def span(
    units: Float64[Tensor, "rows d_model"], distance: Float64[Tensor, " rows"], factor: Float64[Tensor, "rows rows"]
) -> Float64[Tensor, " d_model"]:
    """The smallest vector that goes at least so far along each unit vector, up to the ridge in the factor."""
    if not len(units):
        return torch.zeros(units.shape[1], dtype=units.dtype)
    target = torch.linalg.solve_triangular(factor, distance.unsqueeze(1), upper=False).squeeze(1)
    try:
        shares, _ = nnls(factor.T.numpy(), target.numpy())
    except RuntimeError:  # it went round in circles: no step from here, which ends the search at its best
        return torch.zeros(units.shape[1], dtype=units.dtype)
    return units.T @ torch.from_numpy(shares)
