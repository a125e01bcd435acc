"""``ffnmem health`` and ``ffnmem dying-relu``: neurons that never fire, and who comes back."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.defaults import DYING_DEPTH, DYING_SHARE, DYING_STEPS
from ..core.types import DYING_ACTIVATIONS, DyingActivation, DyingOptimiser
from .options import (
    Corpus,
    CorpusReading,
    Count,
    CountOrAll,
    Full,
    PlottedOutput,
    ReaderChoice,
    Seed,
    Share,
    Top,
    option_group,
)
from .progress import show_progress


@option_group
class HealthText(CorpusReading):
    """The text that is read, as the library's arguments of it.

    Attributes:
        tokens: Read whole sequences, drawn at random, until they hold so many tokens; all reads everything.
        batch_tokens: Tokens of one pass; fewer need less memory.
    """

    tokens: CountOrAll = 20_000
    batch_tokens: Count = 2048
    seed: Seed = 0


def health(
    corpus: Corpus = "atlas",
    /,
    *,
    text: HealthText = HealthText(),
    no_flow: bool = False,
    top: Top = 5,
    full: Full = False,
    model: ReaderChoice = ReaderChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Dead, stuck and saturated neurons, and the gradient that each carries.

    Reads a sample of CORPUS, forward and back, and says how every neuron fares.

    dead: never fires. stuck: passes no gradient at any position read (|act'| < 0.01 at all), as every dead ReLU neuron;
    a dead GELU neuron need not be. saturated: in one regime at 99% of positions, flat (|act'| < 0.01) or linear
    (|act' - 1| < 0.01). dL/dpre: the mean size of the loss's gradient at the pre-activation, where the loss is summed
    over a sequence: nats for one unit at one position. half: the share of neurons that carries half of it.

    Examples
      ffnmem health atlas
      ffnmem health texts.jsonl --tokens 5000 --no-flow --top 10
      ffnmem health atlas --plot health.png
      ffnmem health atlas --csv > neurons.csv

    --csv has one row a neuron: layer, neuron, fires, dead, local_gradient, flat, linear, stuck, saturated, and
    without --no-flow flow_coefficient, flow_pre and both with _rms. --json has the layers, the neurons listed (with
    --full all) and where the numbers come from.

    Args:
        no_flow: Leave the way back out: no gradients of the loss, half the time.
    """
    loaded = model.load()
    with show_progress() as report:
        result = fm.neurons.neuron_health(loaded, corpus, flow=not no_flow, progress=report, **vars(text))
    output.emit(result, top=top, full=full)


@option_group
class DyingSettings:
    """How neurons are pushed, and trained, as the library's arguments of it.

    Attributes:
        steps: Of training.
        share: Of the 64 hidden neurons to push.
        depth: How far below 0 a pushed neuron's highest pre-activation is, in standard deviations of it.
        activations: Train with this one (repeatable). [default: relu, gelu, silu]
        optimiser: How weights are changed.
        rate: The learning rate. [default: 0.001 for adam, 0.1 for sgd]
    """

    steps: Count = DYING_STEPS
    share: Share = DYING_SHARE
    depth: Annotated[float, Parameter(metavar="SIGMAS")] = DYING_DEPTH
    activations: Annotated[tuple[DyingActivation, ...], Parameter(name="--activation", show_default=False)] = (
        DYING_ACTIVATIONS
    )
    optimiser: DyingOptimiser = "adam"
    rate: Annotated[float | None, Parameter(metavar="RATE")] = None
    seed: Seed = 0


def dying_relu(*, settings: DyingSettings = DyingSettings(), output: PlottedOutput = PlottedOutput()) -> None:
    """Dead ReLU neurons stay dead; who comes back with GELU and SiLU.

    Trains one small FFN with ReLU, GELU and SiLU from the same weights, half of its neurons pushed first to where they
    fire for no input, and counts who fires again.

    A dead ReLU neuron has a gradient of exactly 0 at every input, so no weight of it ever moves. GELU and SiLU keep a
    small one, the smaller the deeper: some of their neurons come back, more near the edge (--depth), and with Adam,
    which makes much of small gradients; plain gradient descent (sgd) at its default rate brings back hardly any.

    Examples
      ffnmem dying-relu
      ffnmem dying-relu --seed 1 --depth 2 --csv
      ffnmem dying-relu --optimiser sgd --plot dying.png

    --csv has one row for each activation and step: activation, step, dead, pushed_dead, zero_slope, gradient, loss.
    --json has these, a summary and the settings.
    """
    with show_progress() as report:
        result = fm.neurons.dying_relu(progress=report, **vars(settings))
    output.emit(result)
