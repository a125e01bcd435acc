"""v*: what a layer's FFN should write at the subject's last token, found for many facts in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..core.progress import Progress
from ..models.answers import padded
from ..models.replaying import PlainLayers, Replay
from .requests import Request, RequestRow
from .settings import EditSettings

# Adam's step as plain arithmetic, for descents that clamp, stop or scale each row by itself.

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


# v*: what a layer's FFN should write at the subject's last token, found for many facts in one batch.
#
# Everything below the layer and left of the subject's last token is computed once; each step runs the layers above it
# on the positions from there on, and unembeds only where a target is read.

BATCH_TOKENS = 3072


@dataclass(frozen=True, eq=False)
class FoundValue:
    """What was found for one request.

    Attributes:
        keys: ``[contexts, d_mlp]``, the coefficients at the subject's last token after each context.
        written: ``[contexts, d_model]``, what the FFN writes there for them.
        weights: ``[contexts]``, of each context in averages of keys.
        delta: ``[d_model]``, to be written in addition.
        steps: taken until the loss was low enough, or all.
        loss: the last loss; nll: its part of the target.
        before, after: the target's probability (the geometric mean over its tokens, over contexts) without and with
            ``delta``.
    """

    keys: Float[Tensor, "contexts d_mlp"]
    written: Float[Tensor, "contexts d_model"]
    weights: Float64[Tensor, " contexts"]
    delta: Float[Tensor, " d_model"]
    steps: int
    loss: float
    nll: float
    before: float
    after: float

    @property
    def key(self) -> Float64[Tensor, " d_mlp"]:
        """k*: the average of ``keys``."""
        return self.weights @ self.keys.double()

    @property
    def scale(self) -> float:
        """‖v₀‖: of what the FFN writes for the prompt without context."""
        return float(self.written[0].norm())


def optimise(
    layers: PlainLayers,
    requests: Sequence[Request],
    settings: EditSettings,
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> list[FoundValue]:
    """δ for each request: by gradient descent on the target's loss, with the essence's prediction held.

    Losses are summed over requests, so that their gradients do not mix; steps, stop and clamp are each request's own.
    Doing them one by one gives the same to rounding.

    Args:
        layers: of the model.
        requests: from :func:`ffnmem.editing.requests.make_requests`.
        settings: layer, steps, step size, stop, clamp and weights of the loss.
        batch_tokens: positions that are run at once; memory grows with it.
        progress: called with "edit", the requests done and all of them.
    """
    found: dict[int, FoundValue] = {}
    for chunk in request_batches(requests, batch_tokens):
        batch = RequestBatch(layers, [requests[i] for i in chunk], settings)
        found.update(zip(chunk, batch.descend(), strict=True))
        if progress is not None:
            progress("edit", len(found), len(requests))
    return [found[i] for i in range(len(requests))]


def request_batches(requests: Sequence[Request], batch_tokens: int) -> Iterator[list[int]]:
    """Requests whose rows are of like length behind the subject, as many together as fit."""

    def after(request: Request) -> int:
        return max(row.after for row in (*request.rows, request.essence))

    chunk: list[int] = []
    rows = 0
    for i in sorted(range(len(requests)), key=lambda i: (after(requests[i]), i)):
        own = len(requests[i].rows) + 1
        if chunk and (rows + own) * after(requests[i]) > batch_tokens:
            yield chunk
            chunk, rows = [], 0
        chunk.append(i)
        rows += own
    if chunk:
        yield chunk


def wide(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """At least float32, where halves would round sums and logarithms away."""
    return x if x.dtype == torch.float64 else x.float()


class RequestRows:
    """Some requests' rows, run once from a layer on.

    Attributes:
        replay: of all rows, a request's together. every: their numbers. owner: by row, its request.
        weights, key_weights: by row, what it counts in averages over a request's contexts, of losses and of keys; the
            essence's nothing.
        first: the first position behind which any row is read. lookup: by row, its subject's last token.
        plain: by request, its first row, the prompt without context.
    """

    def __init__(
        self, layers: PlainLayers, requests: Sequence[Request], settings: EditSettings, start: int, essence: bool
    ) -> None:
        by_request = [(*request.rows, request.essence) if essence else request.rows for request in requests]
        rows: list[RequestRow] = [row for own in by_request for row in own]
        device = layers.model.device
        tokens, mask = padded([row.tokens for row in rows], device)
        self.replay = Replay(layers, tokens, mask, start=start)
        self.every = torch.arange(len(rows), device=device)
        self.owner = torch.tensor([i for i, own in enumerate(by_request) for _ in own], device=device)
        nothing = torch.zeros(int(essence), dtype=torch.float64)
        self.weights, self.key_weights = (
            torch.cat([part for request in requests for part in (shares(len(request.rows)), nothing)]).to(device)
            for shares in (settings.weights, settings.key_weights)
        )
        self.first = self.replay.length - max(row.after for row in rows)
        self.lookup = torch.tensor([self.replay.length - row.after for row in rows], device=device)
        self.plain = torch.searchsorted(self.owner, torch.arange(len(requests), device=device))


class RequestBatch(RequestRows):
    """Some requests' rows, their essences' too, stepped together."""

    def __init__(self, layers: PlainLayers, requests: Sequence[Request], settings: EditSettings) -> None:
        super().__init__(layers, requests, settings, settings.layer, essence=True)
        self.layers, self.requests, self.settings = layers, requests, settings
        device, every = layers.model.device, self.every
        self.is_essence = torch.tensor(
            [row is request.essence for request in requests for row in (*request.rows, request.essence)], device=device
        )
        self.keys = self.replay.coefficients[settings.layer][every, self.lookup]
        self.written = self.replay.ffn[settings.layer][every, self.lookup]
        self.width = max(len(request.ids) for request in requests)
        self.targets = torch.tensor(
            [[-1] * (self.width - len(request.ids)) + list(request.ids) for request in requests], device=device
        )
        # How far from its end each essence is read.
        self.back = torch.tensor(
            [request.essence.after if settings.kl_at == "subject" else 1 for request in requests], device=device
        )
        scales = self.replay.stream[settings.layer + 1][every, self.lookup]
        self.scales = wide((self.written if settings.scale_of == "ffn" else scales)[self.plain]).norm(dim=1)
        with torch.no_grad():
            final = self.replay.stream[len(layers)]
            self.essence = self.essence_logs(final, every)
            self.clean_nll = self.nll(final[:, -self.width :], every, len(requests))

    # -- the loss ------------------------------------------------------------------------------------------------

    def essence_logs(
        self, final: Float[Tensor, "rows _ d_model"], rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "essences vocab"]:
        """What the model predicts in each essence among some rows, as log-probabilities."""
        held = self.is_essence[rows]
        back = self.back[self.owner[rows][held]]
        return wide(self.replay.logits(final[held, final.shape[1] - back])).log_softmax(-1)

    def nll(
        self, final: Float[Tensor, "rows width d_model"], rows: Int[Tensor, " rows"], count: int
    ) -> Float[Tensor, " requests"]:
        """For each request the average over contexts of the mean over target tokens of −log p."""
        asking = ~self.is_essence[rows]
        own = self.owner[rows][asking]
        targets = self.targets[own]
        there = targets >= 0
        logs = wide(self.replay.logits(final[asking][there])).log_softmax(-1)
        each = -logs.gather(1, targets[there].unsqueeze(1)).squeeze(1)
        lengths = there.sum(1)
        where = rearrange(own, "rows -> rows 1").expand_as(targets)[there]
        share = (self.weights[rows][asking] / lengths).unsqueeze(1).expand_as(targets)[there]
        return torch.zeros(count, dtype=each.dtype, device=each.device).index_add(0, where, each * share.to(each.dtype))

    def losses(
        self, delta: Float[Tensor, "requests d_model"], rows: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " requests"], Float[Tensor, " requests"]]:
        """The whole loss of each request that has rows here, and its part of the target."""
        settings, count = self.settings, len(self.requests)
        outputs = self.replay.stream[settings.layer + 1][rows, self.first :].clone()
        at = self.lookup[rows] - self.first
        each, more = torch.arange(len(rows), device=rows.device), delta[self.owner[rows]].to(outputs.dtype)
        outputs[each, at] = self.layers.more(settings.layer, outputs[each, at], self.written[rows], more)
        read = max(self.width, int(self.back.max()))  # positions from the end, all of them behind the first
        final = self.replay.finish([settings.layer] * len(rows), outputs, rows, last=read)
        nll = self.nll(final[:, final.shape[1] - self.width :], rows, count)
        own = self.owner[rows][self.is_essence[rows]]
        logs = self.essence_logs(final, rows)
        kl = (logs.exp() * (logs - self.essence[own])).sum(-1)
        kl = torch.zeros(count, dtype=kl.dtype, device=kl.device).index_add(0, own, kl)
        decay = delta.norm(dim=1) / self.scales**2
        return nll + settings.kl * kl + settings.decay * decay, nll

    # -- the descent ---------------------------------------------------------------------------------------------

    def descend(self) -> list[FoundValue]:
        settings, count = self.settings, len(self.requests)
        device, scales = self.written.device, self.scales
        delta = torch.zeros(count, self.written.shape[1], dtype=scales.dtype, device=device)
        adam = Adam(delta)
        step_size = settings.step_size(scales, self.written.shape[1]).unsqueeze(1)
        running = torch.ones(count, dtype=torch.bool, device=device)
        taken = torch.zeros(count, dtype=torch.long, device=device)
        last_loss, last_nll = torch.zeros(2, count, device=device).double()
        for step in range(settings.steps):
            rows = running[self.owner].nonzero().squeeze(1)
            moving = delta.clone().requires_grad_()
            with torch.enable_grad():
                loss, nll = self.losses(moving, rows)
                last_loss[running], last_nll[running] = loss.detach().double()[running], nll.detach().double()[running]
                running = running & (loss.detach() >= settings.stop)
                if step == settings.steps - 1 or not bool(running.any()):
                    break
                (gradient,) = torch.autograd.grad(loss[running].sum(), moving)
            moved = delta - step_size * adam.step(gradient)
            length = moved.norm(dim=1)
            moved = moved * (settings.clamp * scales / length.clamp(min=1e-30)).clamp(max=1.0).unsqueeze(1)
            delta = torch.where(running.unsqueeze(1), moved, delta)
            taken += running
        own = [(self.owner == i) & ~self.is_essence for i in range(count)]
        return [
            FoundValue(
                keys=self.keys[own[i]],
                written=self.written[own[i]],
                weights=self.key_weights[own[i]],
                delta=delta[i],
                steps=int(taken[i]),
                loss=float(last_loss[i]),
                nll=float(last_nll[i]),
                before=float((-self.clean_nll[i]).exp()),
                after=float((-last_nll[i]).exp()),
            )
            for i in range(count)
        ]
