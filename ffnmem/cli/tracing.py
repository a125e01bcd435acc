"""``ffnmem trace`` and ``knockout``: where in a model, and at which token, a fact is recalled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.defaults import TRACE_SAMPLES
from ..core.types import TraceKind, TraceWay
from .facts import FactChoice
from .options import (
    Count,
    FactSource,
    Full,
    PlottedOutput,
    Position,
    Prompt,
    PromptChoice,
    ReaderChoice,
    Seed,
    option_group,
)
from .progress import show_progress

# What the two commands share: they map one prompt, or many facts, and print and draw the result.


@option_group
class PromptFact:
    """The fact that a prompt asks for.

    Attributes:
        subject: What the prompt is about: the words that a trace hides, and whose tokens are marked.
        target: What is true; refused if the model says something else. [default: whatever the model says]
    """

    subject: Annotated[str, Parameter(metavar="TEXT")]
    target: Annotated[str | None, Parameter(metavar="TEXT")] = None
    model: PromptChoice = PromptChoice()

    def map(self, function: Callable[..., Any], prompt: str) -> Any:
        """What a function says of the prompt."""
        loaded = self.model.load()
        with show_progress() as report:
            text = self.model.prompt_text(loaded, prompt)
            return function(loaded, text, self.subject, target=self.target, progress=report)


@option_group
class ManyFacts:
    """Facts of a source.

    Attributes:
        out: Keep each result in this folder; the same call goes on with it.
    """

    choice: FactChoice = FactChoice()
    seed: Seed = 0
    out: Annotated[str | None, Parameter(alias="-o", metavar="DIR")] = None
    model: ReaderChoice = ReaderChoice()

    def map(self, function: Callable[..., Any], source: str) -> Any:
        """What a function says of the facts."""
        # Whether a fact is known is asked as the maps read the answer: by its first token.
        loaded, facts = self.choice.choose(fm.load_facts(source), source, self.model, self.seed, known_by="first")
        with show_progress() as report:
            return function(loaded, facts, out=self.out, progress=report)


@option_group
class MapOutput(PlottedOutput):
    """What is printed and drawn."""

    full: Full = False

    def emit(self, result: Any, **printed: Any) -> None:
        """Print a map of one prompt or the means of many, and draw it."""
        super().emit(result, full=self.full, **printed)


# `ffnmem trace`

trace = App(name="trace")


@option_group
class TraceSettings:
    """How a trace is made, as the library's arguments of it.

    Attributes:
        way: restore: hide the subject with noise and put one clean output back; silence: let FFNs or attention write
            nothing at one place of a clean run.
        kinds: What is restored: state, ffn or attention; or silenced: ffn or attention (repeatable). [default: all that
            is restored; ffn]
        window: Layers whose FFN or attention is restored or silenced at once. [default: 10 of every 48, at least 3]
        samples: Runs with noise.
        noise: Its standard deviation. [default: three times that of the subjects' embeddings]
    """

    way: TraceWay = "restore"
    kinds: Annotated[tuple[TraceKind, ...] | None, Parameter(name="--kind")] = None
    window: Count | None = None
    samples: Count = TRACE_SAMPLES
    noise: Annotated[float | None, Parameter(metavar="SIGMA")] = None


@trace.default
def trace_prompt(
    prompt: Prompt,
    /,
    *,
    about: PromptFact,
    settings: TraceSettings = TraceSettings(),
    seed: Annotated[Seed, Parameter(help="Of the noise.")] = 0,
    output: MapOutput = MapOutput(),
) -> None:
    """Where a fact is recalled: causal tracing of one, or of many.

    Hides a subject with noise, puts one clean output back, and sees how much of the answer returns: where it is
    recalled. The table shades each layer by the indirect effect: how much likelier the answer is for the output
    restored there. With --way silence, what FFNs write at one token is taken away instead, or at all tokens of the
    subject, and the table has how much of the answer is lost: a trace says which outputs are enough to bring an answer
    back, silencing says which it cannot do without.

    Examples
      ffnmem trace "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --plot eiffel.png
      ffnmem trace "The capital of France is" --subject France \\
          --target Paris --kind ffn --window 1 --samples 3
      ffnmem trace "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --way silence --window 1

    --csv has a row a cell: kind, layer, position, token, score, indirect; of silencing kind, layer, place, positions,
    score, loss, share. --json has the largest effects, the
    probabilities and the provenance; with --full every cell.
    """
    output.emit(about.map(partial(fm.trace_fact, seed=seed, **vars(settings)), prompt))


@trace.command(name="facts")
def trace_facts(
    source: FactSource,
    /,
    *,
    facts: ManyFacts = ManyFacts(),
    settings: TraceSettings = TraceSettings(),
    output: MapOutput = MapOutput(),
) -> None:
    """Trace many facts.

    The effects are averaged by where a token stands towards the subject; facts that the model does not know are
    skipped, and counted.

    Examples
      ffnmem trace facts atlas --relation landmark.city --limit 3 --samples 2
      ffnmem trace facts atlas --known --limit 2 --way silence

    --csv has a row a group: kind, group, layer, mean, low, high, n; of silencing loss, low, high, share, share_low,
    share_high, n. --json has the largest effects and the
    provenance; with --full every fact.
    """
    output.emit(facts.map(partial(fm.tracing.trace_facts, seed=facts.seed, **vars(settings)), source))


# `ffnmem knockout`

knockout = App(name="knockout")
Window = Annotated[
    Count, Parameter(help="Layers in which edges are blocked at once. [default: 9 of every 48, at least 3]")
]


@knockout.default
def knockout_prompt(
    prompt: Prompt,
    /,
    *,
    about: PromptFact,
    window: Window | None = None,
    at: tuple[Position, ...] = (),
    output: MapOutput = MapOutput(),
) -> None:
    """What an answer loses where its position cannot look at a token: by layer.

    Blocks attention from the last token to one token, in a window of layers, and sees how much of the answer is lost.
    The tokens of the subject are blocked together, too. What attention writes there goes on, of the tokens that are
    left. The share of the answer's probability that is lost says in which layers its position fetches something from
    where.

    Examples
      ffnmem knockout "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --window 1 --plot eiffel.png
      ffnmem knockout "The capital of France is" --subject France \\
          --at 1 --at 2

    --csv has a row a cell: kind, layer, place, positions, score, loss, share. --json has the largest effects, the
    probabilities and the provenance; with --full every cell.

    Args:
        at: Block this position too, together with others so given (repeatable): 0 is the first token, -1 the last.
    """
    output.emit(about.map(partial(fm.knockout, window=window, positions=at or None), prompt))


@knockout.command(name="facts")
def knockout_facts(
    source: FactSource,
    /,
    *,
    facts: ManyFacts = ManyFacts(),
    window: Window | None = None,
    output: MapOutput = MapOutput(),
) -> None:
    """Block attention on many facts.

    The shares are averaged by where tokens stand towards the subject, and a group's tokens are blocked together; facts
    that the model does not know are skipped.

    Examples
      ffnmem knockout facts atlas --known --limit 3

    --csv has a row a group: kind, group, layer, share, low, high, loss, n. --json has the largest effects and the
    provenance; with --full every fact.
    """
    output.emit(facts.map(partial(fm.tracing.knockout_facts, window=window), source))
