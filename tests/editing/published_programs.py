"""What the published programs of ROME, MEMIT and AlphaEdit do, written plainly from what they compute.

Whole forward passes of a Hugging Face model in float64, one prompt each, hooks on its modules, torch's own Adam, dense
matrices. Nothing of ffnmem is used but the model's tokenizer. Settings are those of a program's hyperparameter file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ffnmem.facts import Fact

Left = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of C, K and K_p, what times R is a change."""


class Asked(NamedTuple):
    """A prompt with a target's tokens but the last, and where the subject ends."""

    tokens: list[int]
    subject_end: int


@dataclass(frozen=True)
class Descent:
    """How v* is looked for."""

    steps: int = 20
    rate: float = 0.5
    stop: float = 5e-2
    clamp: float = 4.0
    kl: float = 0.0625
    decay: float = 0.5


@dataclass
class Program:
    """A Hugging Face model and what is edited in it.

    Args:
        hf: in float64.
        blocks: its layers; each has an ``mlp`` whose last projection is ``out``.
        tokenize: a text to ids, with whatever stands in front of every text.
        contexts: templates, the first ``"{}"``.
        c: by layer, C.
    """

    hf: Any
    blocks: Sequence[Any]
    out: str
    tokenize: Callable[[str], list[int]]
    target_ids: Callable[[str], Sequence[int]]
    contexts: Sequence[str]
    c: dict[int, Tensor]

    # -- passes ----------------------------------------------------------------------------------------------------

    def asked(self, template: str, subject: str, ids: Sequence[int] = ()) -> Asked:
        head = template[: template.index("{}")] + subject
        return Asked([*self.tokenize(template.replace("{}", subject)), *ids[:-1]], len(self.tokenize(head)) - 1)

    def rows(self, fact: Fact) -> list[Asked]:
        ids = list(self.target_ids(str(fact.target_new)))
        return [self.asked(context.replace("{}", fact.prompt), fact.subject, ids) for context in self.contexts]

    def logits(self, asked: Asked) -> Tensor:
        found: Tensor = self.hf(input_ids=torch.tensor([asked.tokens]), use_cache=False).logits[0]
        return found

    @contextmanager
    def adding(self, module: nn.Module, delta: Tensor, at: int, seen: list[Tensor] | None = None) -> Iterator[None]:
        """``delta`` is added to what a module gives at one position."""

        def hook(_module: Any, _args: Any, given: Any) -> Any:
            output = given[0] if isinstance(given, tuple) else given
            if seen is not None:
                seen.append(output[0, at].detach().clone())
            place = torch.zeros(output.shape[1], 1, dtype=delta.dtype)
            place[at] = 1.0
            changed = output + place * delta
            return (changed, *given[1:]) if isinstance(given, tuple) else changed

        handle = module.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def projection(self, layer: int) -> Any:
        return getattr(self.blocks[layer].mlp, self.out)

    @torch.no_grad()
    def key(self, layer: int, asked: Asked) -> Tensor:
        """What the last projection reads where the subject ends."""
        found: list[Tensor] = []
        handle = self.projection(layer).register_forward_pre_hook(lambda _m, args: found.append(args[0]))
        self.logits(asked)
        handle.remove()
        return found[0].reshape(len(asked.tokens), -1)[asked.subject_end]

    @torch.no_grad()
    def output(self, module: nn.Module, asked: Asked) -> Tensor:
        seen: list[Tensor] = []
        with self.adding(module, torch.zeros(1, dtype=torch.float64), asked.subject_end, seen):
            self.logits(asked)
        return seen[0]

    # -- v* --------------------------------------------------------------------------------------------------------

    def find(self, fact: Fact, module: nn.Module, how: Descent) -> tuple[Tensor, Tensor, int]:
        """v* and what the module gave before, for the prompt without context; and how many steps were taken.

        The loss: over contexts the mean of the mean over the target's tokens of −log p; the divergence from what
        "SUBJECT is a" predicted *where the subject ends*; and ‖δ‖/‖v₀‖².
        """
        rows, ids = self.rows(fact), torch.tensor(list(self.target_ids(str(fact.target_new))))
        essence = self.asked("{} is a", fact.subject)
        before = self.output(module, rows[0])
        with torch.no_grad():
            predicted = self.logits(essence)[essence.subject_end].log_softmax(-1)
        delta = torch.zeros_like(before, requires_grad=True)
        adam = torch.optim.Adam([delta], lr=how.rate)
        for step in range(how.steps):
            adam.zero_grad()
            with torch.enable_grad():
                each = []
                for row in rows:
                    with self.adding(module, delta, row.subject_end):
                        logs = self.logits(row)[-len(ids) :].log_softmax(-1)
                    each.append(-logs[torch.arange(len(ids)), ids].sum() / len(ids))
                with self.adding(module, delta, essence.subject_end):
                    now = self.logits(essence)[essence.subject_end].log_softmax(-1)
                loss = torch.stack(each).mean()
                loss = loss + how.kl * nn.functional.kl_div(predicted, now, log_target=True, reduction="sum")
                loss = loss + how.decay * delta.norm() / before.norm() ** 2
            if float(loss.detach()) < how.stop or step == how.steps - 1:
                return before + delta.detach(), before, step
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            longest = how.clamp * before.norm()
            with torch.no_grad():
                if delta.norm() > longest:
                    delta *= longest / delta.norm()
        raise AssertionError("the last step returns")

    # -- changes of weights, as [d_mlp, d_model] -------------------------------------------------------------------

    def rome(self, fact: Fact, layer: int, how: Descent) -> Tensor:
        """u of the averaged key, the rest of the plain prompt's own."""
        rows = self.rows(fact)
        target, now, _ = self.find(fact, self.blocks[layer].mlp, how)
        u = self.c[layer].inverse() @ torch.stack([self.key(layer, row) for row in rows]).mean(0)
        return torch.outer(u, (target - now) / (self.key(layer, rows[0]) @ u))

    def keys(self, facts: Sequence[Fact], layer: int) -> Tensor:
        """``[d_mlp, facts]``: the mean of the plain prompt's key and of the mean of all other contexts' keys."""
        found = []
        for fact in facts:
            first, *others = [self.key(layer, row) for row in self.rows(fact)]
            found.append((first + torch.stack(others).mean(0)) / 2)
        return torch.stack(found, 1)

    def spread(
        self,
        facts: Sequence[Fact],
        layers: Sequence[int],
        how: Descent,
        left: Left,
        previous: Sequence[Fact] = (),
    ) -> list[Tensor]:
        """Layer after layer, the model being changed as one goes; ``left(C, K, K_p)`` times R is a change."""
        top = self.blocks[layers[-1]]
        targets = [self.find(fact, top, how)[0] for fact in facts]
        held = {layer: self.keys(previous, layer) if previous else torch.zeros(1, 0) for layer in layers}
        changes: list[Tensor] = []
        try:
            for layer in layers:
                now = [self.output(top, self.rows(fact)[0]) for fact in facts]
                missing = torch.stack([t - n for t, n in zip(targets, now, strict=True)])
                solved = left(self.c[layer], self.keys(facts, layer), held[layer])
                changes.append(solved @ missing / (len(layers) - len(changes)))
                self.add(layer, changes[-1])
        finally:
            for layer, change in zip(layers, changes, strict=False):
                self.add(layer, -change)
        return changes

    @torch.no_grad()
    def add(self, layer: int, change: Tensor) -> None:
        projection = self.projection(layer)
        projection.weight += change if isinstance(projection, Conv1D) else change.T


def memit(weight: float, norm: float = 0.0) -> Left:
    """λₙ is ``norm`` (Gupta et al. 2025)."""

    def left(c: Tensor, k: Tensor, held: Tensor) -> Tensor:
        every = weight * c + norm * torch.eye(len(k), dtype=k.dtype) + k @ k.T
        return torch.linalg.solve(every + (held @ held.T if held.numel() else 0.0), k)

    return left


def alphaedit(threshold: float, penalty: float) -> Left:
    def left(c: Tensor, k: Tensor, held: Tensor) -> Tensor:
        u, s, _ = torch.linalg.svd(c)
        p = u[:, s < threshold] @ u[:, s < threshold].T
        return torch.linalg.solve(p @ (k @ k.T + held @ held.T) + penalty * torch.eye(len(p), dtype=p.dtype), p @ k)

    return left
