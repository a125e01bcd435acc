"""``dying_relu``: hidden neurons pushed to where they fire for no input, and who comes back under the same training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from .._version import __version__
from ..core.defaults import DYING_DEPTH, DYING_SHARE, DYING_STEPS
from ..core.errors import InputError, counted, quoted
from ..core.number_text import format_small
from ..core.progress import Progress
from ..core.sheets import Column, Sheet, Table, Words
from ..core.types import DYING_ACTIVATIONS, DYING_OPTIMISERS, Count, DyingOptimiser, Range, Seed, checked
from ..ffn.activations import Activation, activation
from ..show.result import Result

if TYPE_CHECKING:
    pass

D_MODEL, D_MLP, INPUTS = 8, 64, 256
OPTIMISERS = dict(zip(DYING_OPTIMISERS, (torch.optim.Adam, torch.optim.SGD), strict=True))
RATES = {"adam": 1e-3, "sgd": 0.1}
ROWS = 11  # steps looked at, the first and the last among them


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Dying(Result):
    """What became of the pushed neurons. Made by :func:`dying_relu`.

    Attributes:
        frame: one row for each activation and step looked at: ``activation``, ``step``; ``dead``, the share of all
            hidden neurons that fire for no input (pre ≤ 0 at every one); ``pushed_dead``, the same of the pushed ones;
            ``zero_slope``, the share of all whose act′ is exactly 0 at every input; ``gradient``, the largest
            |∂loss/∂w| of any weight of a dead neuron, missing where none is dead; ``loss``, the mean square error.
        activations: in order. settings: all that the numbers depend on.
    """

    main = "frame"
    in_json = "frame outcomes settings"

    frame: pd.DataFrame
    activations: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def outcomes(self) -> pd.DataFrame:
        """A row an activation.

        ``pushed``: how many neurons; ``recovered``: the share of them that fires for some input in the end; ``dead``,
        ``zero_slope``, ``gradient``, ``loss`` in the end; ``largest_gradient``: of a dead neuron at any step looked at.
        """
        rows = []
        for name in self.activations:
            steps = self.frame[self.frame["activation"] == name]
            end = steps.iloc[-1]
            rows.append(
                {
                    "activation": name,
                    "pushed": self.settings["pushed"],
                    "recovered": 1 - end["pushed_dead"],
                    **{column: end[column] for column in ("dead", "zero_slope", "gradient", "loss")},
                    "largest_gradient": steps["gradient"].max(),
                }
            )
        return pd.DataFrame(rows)

    def summary(self) -> str:
        if not self.settings["pushed"]:
            return f"no neuron pushed; {counted(self.settings['steps'], 'step')}"
        ends = ", ".join(f"{row.activation} {row.recovered:.0%}" for row in self.outcomes.itertuples())
        pushed, steps = counted(self.settings["pushed"], "neuron"), counted(self.settings["steps"], "step")
        return f"{pushed} pushed; back after {steps}: {ends}"

    def sheet(self) -> Sheet:
        """How many neurons are dead by step, and what became of them in the end."""
        pushed, of = self.settings["pushed"], self.settings["d_mlp"]
        return Sheet.of(
            self.step_table(),
            self.outcome_table(),
            Table.of(self.frame, title="steps", note="all columns", folded=True),
            Words.of(" · ".join(f"{name} {value}" for name, value in self.settings.items()), "soft"),
            title=f"{pushed} of {counted(of, 'neuron')} pushed to where they fire for no input",
        )

    def step_table(self) -> Table:
        """The share of the pushed neurons that is dead, and the loss, by step."""
        pushed = self.settings["pushed"]

        def number(name: str, column: str, **looks: Any) -> Column:
            return Column(f"{name} {'loss' if column == 'loss' else 'dead'}", of=lambda row: row[name, column], **looks)

        pairs = [
            column
            for name in self.activations
            for column in (
                number(name, "pushed_dead" if pushed else "dead", kind="percent"),
                number(name, "loss", kind="number", places=4),
            )
        ]
        records = [
            {"step": str(step)}
            | {(row["activation"], name): value for row in some.to_dict("records") for name, value in row.items()}
            for step, some in self.frame.groupby("step")
        ]
        of_whom = "of the pushed neurons, " if pushed else "of all neurons (none was pushed), "
        caption = f"dead: {of_whom}those that fire for no input; loss: mean square error"
        return Table.of(records, Column("step", left=False), *pairs, caption=caption)

    def outcome_table(self) -> Table:
        """What became of them in the end."""

        def largest(row: Mapping[str, Any]) -> str:
            return "0, at every step" if row["largest_gradient"] == 0 else format_small(row["largest_gradient"])

        return Table.of(
            self.outcomes,
            Column("", of="activation"),
            Column("came back", "percent", of="recovered"),
            Column("dead", "percent"),
            Column("act' = 0", "percent", of="zero_slope"),
            Column("largest gradient of a dead neuron", left=False, of=largest),
            caption="came back: of the pushed neurons; dead, and act' = 0 at every input: of all; after the last step",
        )


@checked
def dying_relu(
    *,
    seed: Seed = 0,
    steps: Count = DYING_STEPS,
    share: Annotated[float, Range(0, 1)] = DYING_SHARE,
    depth: Annotated[float, Range(above=0, below=math.inf)] = DYING_DEPTH,
    activations: Sequence[str] = DYING_ACTIVATIONS,
    optimiser: DyingOptimiser = "adam",
    rate: Annotated[float, Range(above=0, below=math.inf)] | None = None,
    progress: Progress | None = None,
) -> Dying:
    """Train one small FFN with ReLU, GELU and SiLU from the same weights, some neurons pushed into the dead zone first.

    A classic FFN (8 → 64 → 8) learns 256 Gaussian inputs of a random teacher FFN, which has tanh, so that none of the
    three is favoured; all inputs at once, float64. Pushing sets a neuron's bias so low that its highest pre-activation
    over the inputs is ``depth`` standard deviations of them below 0: what one step that was too long leaves behind.
    Nothing else differs between the runs than the activation.

    A dead ReLU neuron has act′ = 0 at every input: no weight of it ever moves. GELU′ and SiLU′ are not 0 there, only
    small and the smaller the deeper, so that these neurons *can* come back; whether they do in so many steps depends on
    ``depth`` and the optimiser. Adam, with which transformers are trained, divides a gradient by its size and so makes
    much of a small one; plain gradient descent brings back hardly any GELU neuron at its default rate. A GELU neuron
    that does not come back is no loss as a dead ReLU neuron is: its small negative coefficients still vary and learn.

    Args:
        seed: of data, teacher and weights.
        steps: of training.
        share: of the hidden neurons to push, 0 to 1.
        depth: how far below 0, in standard deviations of a neuron's pre-activation; above 0.
        activations: names that :func:`ffnmem.ffn.activations.activation` takes.
        optimiser: ``"adam"`` (torch's settings) or ``"sgd"`` (without momentum).
        rate: its learning rate; default 0.001 for Adam and 0.1 for SGD.
        progress: called as ("dying", done, total) in steps of all activations together.

    Returns: A :class:`Dying`.

    Raises: InputError: settings that cannot be, an unknown activation, training that diverged.

    Source: Lu et al. 2019 (1903.06733); Maas et al. 2013; Hendrycks and Gimpel 2016 (1606.08415).
    """
    rate = RATES[optimiser] if rate is None else rate
    if isinstance(activations, str) or not activations:
        raise InputError(f"activations must be a list of names, such as ['relu', 'gelu'], not {quoted(activations)}")
    chosen = tuple(dict.fromkeys(activations))
    functions = [activation(name) for name in chosen]
    pushed = round(share * D_MLP)
    looked = sorted({round(steps * row / (ROWS - 1)) for row in range(ROWS)})
    rows: list[dict[str, Any]] = []
    for place, (name, function) in enumerate(zip(chosen, functions, strict=True)):
        run = Run(function, seed, pushed, depth)
        trainer = OPTIMISERS[optimiser](run.parameters, lr=rate)
        for step in range(steps + 1):
            loss, pre = run.differentiate()
            if step in looked:
                rows.append({"activation": name, "step": step, **run.row(pre, loss, name, step)})
                if progress is not None:
                    progress("dying", place * steps + step, len(chosen) * steps)
            if step < steps:
                trainer.step()
    settings: dict[str, Any] = {"seed": seed, "steps": steps, "share": share, "pushed": pushed, "depth": depth}
    settings |= {
        "optimiser": optimiser,
        "rate": rate,
        "d_model": D_MODEL,
        "d_mlp": D_MLP,
        "inputs": INPUTS,
        "ffnmem": __version__,
    }
    return Dying(pd.DataFrame(rows), chosen, settings)


class Run:
    """One network and what it learns: the same for every activation.

    Args:
        function: the activation. seed: of data, teacher and weights. pushed: neurons to push. depth: how far.

    Attributes:
        parameters: w_in ``[d_model, d_mlp]``, b_in, w_out ``[d_mlp, d_model]``, b_out.
    """

    def __init__(self, function: Activation, seed: int, pushed: int, depth: float) -> None:
        self.function, self.pushed = function, pushed
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Float64[Tensor, "*shape"]:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.inputs = draw(INPUTS, D_MODEL)
        teacher_in, teacher_bias = draw(D_MODEL, D_MLP) / D_MODEL**0.5, draw(D_MLP) / 2
        self.targets = torch.tanh(self.inputs @ teacher_in + teacher_bias) @ (draw(D_MLP, D_MODEL) / D_MLP**0.5)
        w_in, w_out = draw(D_MODEL, D_MLP) / D_MODEL**0.5, draw(D_MLP, D_MODEL) / D_MLP**0.5
        b_in = torch.zeros(D_MLP, dtype=torch.float64)
        pre = self.inputs @ w_in
        b_in[:pushed] = -(pre.amax(0) + depth * pre.std(0))[:pushed]
        b_out = torch.zeros(D_MODEL, dtype=torch.float64)
        self.parameters = [tensor.requires_grad_() for tensor in (w_in, b_in, w_out, b_out)]

    def differentiate(self) -> tuple[float, Float64[Tensor, "inputs d_mlp"]]:
        """The mean square error, its gradients left in the parameters, and the pre-activations."""
        w_in, b_in, w_out, b_out = self.parameters
        with torch.enable_grad():
            pre = self.inputs @ w_in + b_in
            loss = (self.function(pre) @ w_out + b_out - self.targets).square().mean()
            gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return float(loss.detach()), pre.detach()

    def row(self, pre: Float64[Tensor, "inputs d_mlp"], loss: float, name: str, step: int) -> dict[str, float]:
        """What is looked at; raises InputError where training has diverged."""
        if not math.isfinite(loss):
            raise InputError(f"training with {name} diverged before step {step}: give a smaller rate")
        dead = (pre <= 0).all(0)
        zero_slope = (self.function.gradient(pre) == 0).all(0)
        return {
            "dead": float(dead.double().mean()),
            "pushed_dead": float(dead[: self.pushed].double().mean()),
            "zero_slope": float(zero_slope.double().mean()),
            "gradient": self.largest_gradient(dead),
            "loss": loss,
        }

    def largest_gradient(self, neurons: Bool[Tensor, " d_mlp"]) -> float:
        """The largest |∂loss/∂w| among the weights (key, bias and value) of some neurons; NaN for none."""
        if not bool(neurons.any()):
            return math.nan
        of_key, of_bias, of_value = (parameter.grad for parameter in self.parameters[:3] if parameter.grad is not None)
        return max(float(part.abs().max()) for part in (of_key[:, neurons], of_bias[neurons], of_value[neurons]))
