"""v*: what a layer's FFN should write at the subject's last token, found for many facts in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..core.progress import Progress
from ..models.answers import padded
from ..models.replaying import PlainLayers, Replay
from .requests import Request, RequestRow
from .searching import Search
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
BEGIN = 8  # steps: where there are fewer, a search has all contexts from the first
LEAST = 0.1  # of δ: what a change writes in front of the subject's last token, from which on a search takes it in


@dataclass(frozen=True, eq=False)
class FoundValue:
    """What was found for one request.

    Attributes:
        keys: ``[contexts, d_mlp]``, the coefficients at the subject's last token after each context.
        written: ``[contexts, d_model]``, what the FFN writes there for them.
        weights: ``[contexts]``, of each context in averages of keys.
        delta: ``[d_model]``, to be written in addition.
        longest: the largest ‖δ‖ that the clamp allows.
        steps: taken until the loss was low enough, or all; looks are one more.
        passes: forward and back over all contexts, a pass over some of them counted as that share.
        loss: the last loss; nll: its part of the target.
        after: the target's probability (the geometric mean over its tokens, over contexts) with ``delta``, added where
            it was optimised.
    """

    keys: Float[Tensor, "contexts d_mlp"]
    written: Float[Tensor, "contexts d_model"]
    weights: Float64[Tensor, " contexts"]
    delta: Float[Tensor, " d_model"]
    longest: float
    steps: int
    passes: float
    loss: float
    nll: float
    after: float

    @property
    def key(self) -> Float64[Tensor, " d_mlp"]:
        """k*: the average of ``keys``."""
        return self.weights @ self.keys.double()

    @property
    def scale(self) -> float:
        """‖v₀‖: of what the FFN writes for the prompt without context."""
        return float(self.written[0].norm())


Directions = Callable[[Float64[Tensor, "n d_mlp"]], Float64[Tensor, "n d_mlp"]]
"""For the averaged keys of some requests, which coefficients bring δ: the key itself brings it once."""


@dataclass(frozen=True, eq=False)
class Descent:
    """By request δ, the steps taken and passes run, the loss and its part of the target."""

    delta: Float[Tensor, "requests d_model"]
    steps: list[int]
    passes: list[float]
    loss: list[float]
    nll: list[float]


def optimise(
    layers: PlainLayers,
    requests: Sequence[Request],
    settings: EditSettings,
    *,
    directions: Directions | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> list[FoundValue]:
    """δ for each request: what makes the target likely, with the essence's prediction held.

    Losses are summed over requests, so that their gradients do not mix; steps, stop and clamp are each request's own.
    Doing them one by one gives the same to rounding.

    Args:
        layers: of the model.
        requests: from :func:`ffnmem.editing.requests.make_requests`.
        settings: layer, optimiser, steps, step size, stop, clamp and weights of the loss.
        directions: δ is added at each position as often as its key has of a request's direction, as the rank-one
            change of the weights does (before the subject's last token only where that is LEAST times or more); None:
            once, at the subject's last token.
        batch_tokens: positions that are run at once; memory grows with it.
        progress: called with "edit", the requests done and all of them.
    """
    found: dict[int, FoundValue] = {}
    if progress is not None:
        progress("edit", 0, len(requests))
    for chunk in request_batches(requests, batch_tokens):
        batch = RequestBatch(layers, [requests[i] for i in chunk], settings, directions)
        found.update(zip(chunk, batch.descend(), strict=True))
        if progress is not None:
            progress("edit", len(found), len(requests))
    return [found[i] for i in range(len(requests))]


def request_batches(requests: Sequence[Request], batch_tokens: int, *, whole: bool = False) -> Iterator[list[int]]:
    """Requests whose rows are of like length behind the subject, or as a ``whole``, as many together as fit."""

    def after(request: Request) -> int:
        return max(len(row.tokens) if whole else row.after for row in (*request.rows, request.essence))

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
    """Some requests' rows, their essences' too, stepped together.

    Attributes:
        gains: ``[rows, pos]``, how many times δ is added at each position, what is below LEAST in front of the
            subject's last token left out; None: once, at the subject's last token.
    """

    def __init__(
        self,
        layers: PlainLayers,
        requests: Sequence[Request],
        settings: EditSettings,
        directions: Directions | None = None,
    ) -> None:
        super().__init__(layers, requests, settings, settings.layer, essence=True)
        self.layers, self.requests, self.settings = layers, requests, settings
        device, every = layers.model.device, self.every
        mask = self.replay.mask
        self.is_essence = torch.tensor(
            [row is request.essence for request in requests for row in (*request.rows, request.essence)], device=device
        )
        self.keys = self.replay.coefficients[settings.layer][every, self.lookup]
        self.written = self.replay.ffn[settings.layer][every, self.lookup]
        self.gains: Tensor | None = None
        if directions is not None:
            averaged = torch.zeros(len(requests), self.keys.shape[1], dtype=torch.float64, device=device)
            averaged = averaged.index_add(0, self.owner, self.key_weights.unsqueeze(1) * self.keys.double())
            own = directions(averaged)[self.owner]
            coefficients = self.replay.coefficients[settings.layer]
            gains = torch.stack([row.double() @ u for row, u in zip(coefficients, own, strict=True)])
            before = torch.arange(gains.shape[1], device=device) < self.lookup.unsqueeze(1)
            gains = gains.masked_fill(before & (gains.abs() < LEAST), 0.0)
            gains = gains if mask is None else gains * mask
            self.gains = gains.to(wide(self.written).dtype)
            self.first = min(self.first, int(gains.any(0).nonzero()[0]))
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

    # -- what is measured --------------------------------------------------------------------------------------------

    def essence_logs(
        self, final: Float[Tensor, "rows _ d_model"], rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "essences vocab"]:
        """What the model predicts in each essence among some rows, as log-probabilities."""
        held = self.is_essence[rows]
        back = self.back[self.owner[rows][held]]
        return wide(self.replay.logits(final[held, final.shape[1] - back])).log_softmax(-1)

    def nll(self, final: Float[Tensor, "rows width d_model"], rows: Int[Tensor, " rows"]) -> Float[Tensor, " asking"]:
        """For each row that asks for a target, the mean over its tokens of −log p."""
        asking = ~self.is_essence[rows]
        targets = self.targets[self.owner[rows][asking]]
        there = targets >= 0
        logs = wide(self.replay.logits(final[asking][there])).log_softmax(-1)
        each = -logs.gather(1, targets[there].unsqueeze(1)).squeeze(1)
        where, share = (
            rearrange(x, "rows -> rows 1").expand_as(targets)[there]
            for x in (torch.arange(len(targets), device=each.device), 1.0 / there.sum(1))
        )
        return torch.zeros(len(targets), dtype=each.dtype, device=each.device).index_add(0, where, each * share)

    def measured(self, deltas: Float[Tensor, "rows d_model"], rows: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """For each row with its own δ: −log p of the target, or of an essence the divergence of what it predicts."""
        layer, after = self.settings.layer, self.replay.stream[self.settings.layer + 1][rows, self.first :]
        more = deltas.to(after.dtype)
        if self.gains is None:
            outputs, at = after.clone(), self.lookup[rows] - self.first
            each = torch.arange(len(rows), device=rows.device)
            outputs[each, at] = self.layers.more(layer, outputs[each, at], self.written[rows], more)
        else:
            written = self.replay.ffn[layer][rows, self.first :]
            spread = self.gains[rows, self.first :].unsqueeze(2) * more.unsqueeze(1)
            outputs = self.layers.more(layer, after, written, spread.to(after.dtype))
        read = max(self.width, int(self.back.max()))  # positions from the end, all of them behind the first
        final = self.replay.finish([layer] * len(rows), outputs, rows, last=read)
        nll = self.nll(final[:, final.shape[1] - self.width :], rows)
        held = self.is_essence[rows]
        logs = self.essence_logs(final, rows)
        kl = (logs.exp() * (logs - self.essence[self.owner[rows][held]])).sum(-1)
        found = torch.zeros(len(rows), dtype=nll.dtype, device=nll.device)
        return found.masked_scatter(~held, nll).masked_scatter(held, kl)

    def averages(self, each: Float[Tensor, " rows"], rows: Int[Tensor, " rows"]) -> Float[Tensor, "2 requests"]:
        """By request, of what :meth:`measured` gives, the average over contexts, and the essence's."""
        nothing = torch.zeros(len(self.requests), dtype=each.dtype, device=each.device)
        held, own = self.is_essence[rows], self.owner[rows]
        nll = nothing.index_add(0, own, torch.where(held, 0.0, self.weights[rows].to(each.dtype) * each))
        return torch.stack([nll, nothing.index_add(0, own, torch.where(held, each, 0.0))])

    def losses(
        self, delta: Float[Tensor, "requests d_model"], rows: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " requests"], Float[Tensor, " requests"]]:
        """The whole loss of each request that has rows here, and its part of the target."""
        nll, kl = self.averages(self.measured(delta[self.owner[rows]], rows), rows)
        decay = delta.norm(dim=1) / self.scales**2
        return nll + self.settings.kl * kl + self.settings.decay * decay, nll

    # -- two ways to δ -----------------------------------------------------------------------------------------------

    def descend(self) -> list[FoundValue]:
        """What is found by the optimiser of the settings."""
        return self.found(self.by_adam() if self.settings.optimiser == "adam" else self.by_projections())

    def by_adam(self) -> Descent:
        """By gradient descent with Adam on the loss, clamped; stopped where it is low."""
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
        looks = [1.0 + steps for steps in taken.tolist()]
        return Descent(delta, taken.tolist(), looks, last_loss.tolist(), last_nll.tolist())

    def by_projections(self) -> Descent:
        """By steps to the smallest δ that, with every row taken as linear, gives the target in each context.

        A row's gradient is its own, so one pass back gives those of all of them; where nobody goes on from what was
        looked at, there is none. A search begins with a few of the contexts, which cost as many times less and bring
        most of the way, and goes on from there with all.
        """
        settings, count = self.settings, len(self.requests)
        searches = [Search(settings, float(scale), self.written.shape[1]) for scale in self.scales]
        few = self.few()
        begin = settings.steps // 2 if settings.steps >= BEGIN else 0  # looks at few contexts, at most
        early = torch.tensor(
            [begin > 0 and not bool(few[self.owner == i].all()) for i in range(count)], device=self.owner.device
        )
        looks, run = [0] * count, torch.zeros(count, dtype=torch.long, device=self.owner.device)
        for look in range(settings.steps):
            running = torch.tensor([search.running for search in searches], device=self.owner.device)
            rows = (running[self.owner] & (few | ~early[self.owner])).nonzero().squeeze(1)
            deltas = torch.stack([search.candidate for search in searches]).to(self.owner.device)
            moving = deltas[self.owner[rows]].to(wide(self.written).dtype).requires_grad_()
            with torch.enable_grad():
                measured = self.measured(moving, rows)
            each, own, held = measured.detach().double().cpu(), self.owner[rows].cpu(), self.is_essence[rows].cpu()
            run += torch.bincount(self.owner[rows], minlength=count)
            turning: dict[int, tuple[Tensor, Tensor]] = {}  # by search that goes on from here, its rows and weights
            for i, search in enumerate(searches):
                if not search.running:
                    continue
                mine, looks[i] = own == i, looks[i] + 1
                weights = settings.weights(int((~held[mine]).sum()))
                weights = torch.cat([weights, weights.new_zeros(int(held[mine].sum()))])
                goes_on = search.look(each[mine], weights, held[mine])
                if bool(early[i]) and (not search.running or look + 1 == begin):
                    searches[i], early[i] = search.again(), False
                elif goes_on:
                    turning[i] = mine, weights
            if turning:
                (gradient,) = torch.autograd.grad(measured.sum(), moving)
                slopes = gradient.double().cpu()
                for i, (mine, weights) in turning.items():
                    searches[i].turn(each[mine], slopes[mine], weights, held[mine])
            if not any(search.running for search in searches):
                break
        return Descent(
            torch.stack([search.best for search in searches]).to(self.scales),
            [n - 1 for n in looks],
            (run / torch.bincount(self.owner, minlength=count)).tolist(),
            [search.nll + settings.kl * search.kl for search in searches],
            [search.nll for search in searches],
        )

    def few(self) -> Bool[Tensor, " rows"]:
        """The rows that a search begins with: the prompt without context, some contexts from all of them, the essence.

        The settings' ``first`` says how many contexts; None: all.
        """
        found = torch.ones(len(self.every), dtype=torch.bool, device=self.every.device)
        first = self.settings.first
        for i, request in enumerate(self.requests):
            contexts = len(request.rows)
            if first is not None and contexts > first:
                rows = (self.owner == i).nonzero().squeeze(1)[:contexts]
                found[rows] = False
                # The plain prompt is row 0, and short contexts stand before long ones.
                found[rows[torch.linspace(0, contexts - 1, first, device=rows.device).round().long()]] = True
        return found

    def found(self, descent: Descent) -> list[FoundValue]:
        """For each request what was found."""
        count, settings = len(self.requests), self.settings
        own = [(self.owner == i) & ~self.is_essence for i in range(count)]
        return [
            FoundValue(
                keys=self.keys[own[i]],
                written=self.written[own[i]],
                weights=self.key_weights[own[i]],
                delta=descent.delta[i],
                longest=settings.clamp * float(self.scales[i]),
                steps=descent.steps[i],
                passes=descent.passes[i],
                loss=descent.loss[i],
                nll=descent.nll[i],
                after=math.exp(-descent.nll[i]),
            )
            for i in range(count)
        ]
