"""``ffnmem health``: neurons that never fire, and those that pass no gradient."""

from __future__ import annotations

import ffnmem as fm

from .options import (
    Corpus,
    CorpusReading,
    Count,
    CountOrAll,
    Full,
    PlottedOutput,
    ReaderChoice,
    Seed,
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
