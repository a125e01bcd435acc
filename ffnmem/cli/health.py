"""``ffnmem health``: dead, stuck and saturated neurons."""

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
    top: Top = 5,
    full: Full = False,
    model: ReaderChoice = ReaderChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Dead, stuck and saturated neurons.

    Reads a sample of CORPUS and says how every neuron fares.

    dead: never fires. stuck: passes no gradient at any position read (|act'| < 0.01 at all), as every dead ReLU neuron;
    a dead GELU neuron need not be. saturated: in one regime at 99% of positions, flat (|act'| < 0.01) or linear
    (|act' - 1| < 0.01).

    Examples
      ffnmem health atlas
      ffnmem health texts.jsonl --tokens 5000 --top 10
      ffnmem health atlas --plot health.png
      ffnmem health atlas --csv > neurons.csv

    --csv has one row a neuron: layer, neuron, fires, dead, flat, linear, stuck, saturated. --json has the layers, the
    neurons listed (with --full all) and where the numbers come from.
    """
    loaded = model.load()
    with show_progress() as report:
        result = fm.neurons.neuron_health(loaded, corpus, progress=report, **vars(text))
    output.emit(result, top=top, full=full)
