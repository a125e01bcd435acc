"""``trace_fact`` and ``trace_facts``: where a fact is recalled, by restoring outputs or by silencing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch

from ..core.errors import InputError
from ..core.folders import Kind
from ..core.progress import Progress
from ..core.run_folders import read_run
from ..core.types import Count, Seed, TraceKind, TraceWay, checked
from ..facts.answers import Answer
from ..facts.fact import Fact, Facts, as_facts
from ..facts.questions import SubjectPrompt
from ..models.model import Model
from ..models.replaying import Replay
from .mapping import BATCH_TOKENS, Mapper, find_question
from .maps import Silencing, Silencings, Trace, Traces
from .restoring import Restoring, corrupted, noise_scale, scale_of
from .settings import GIVEN, KINDS, OWN, SAMPLES, check_kinds, check_noise, check_window, noise_of_all
from .silencing import Silencer

TRACES = Kind("manifest.json", "ffnmem traces", 1, "the traces", subfolders=("facts",))


@overload
def trace_fact(
    model: Model, fact: Fact | str, subject: str | None = None, *, way: Literal["restore"] = "restore",
    target: str | None = None, first_token: bool = False, kinds: Sequence[TraceKind] | None = None,
    window: Count | None = None, samples: Count = SAMPLES, noise: float | None = None, seed: Seed = 0,
    prepend_bos: bool | None = None, batch_tokens: Count = BATCH_TOKENS, progress: Progress | None = None,
) -> Trace: ...  # fmt: skip


@overload
def trace_fact(
    model: Model, fact: Fact | str, subject: str | None = None, *, way: Literal["silence"],
    target: str | None = None, first_token: bool = False, kinds: Sequence[TraceKind] | None = None,
    window: Count | None = None, samples: Count = SAMPLES, noise: float | None = None, seed: Seed = 0,
    prepend_bos: bool | None = None, batch_tokens: Count = BATCH_TOKENS, progress: Progress | None = None,
) -> Silencing: ...  # fmt: skip


@checked
def trace_fact(
    model: Model,
    fact: Fact | str,
    subject: str | None = None,
    *,
    way: TraceWay = "restore",
    target: str | None = None,
    first_token: bool = False,
    kinds: Sequence[TraceKind] | None = None,
    window: Count | None = None,
    samples: Count = SAMPLES,
    noise: float | None = None,
    seed: Seed = 0,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Trace | Silencing:
    """Where a fact is recalled: causal tracing of one.

    Hides the subject with noise, puts one clean output back, and measures how much of the answer's probability returns:
    an effect for each layer and token. With the way "silence" nothing is hidden; what FFNs or attention write at one
    token, or at all of the subject, is taken away, and the loss is measured. Restoring says which outputs are enough to
    bring an answer back; silencing says which it cannot do without.

    Args:
        model: from :func:`ffnmem.load`.
        fact: a fact, or a prompt: a whole text, or a template with ``{}`` for the subject.
        subject: of a prompt, as it is spelled there.
        way: ``"restore"``: the subject is hidden by noise, and one clean output is put back. ``"silence"``: FFNs or
            attention write nothing at one token, or at all of the subject, of an otherwise clean run.
        target: what is true, as :func:`ffnmem.facts.read_answer` reads it; refused if the model says something else.
            Default the fact's own, and of a prompt the model's own top token. Of several tokens, scores are the
            probability of all of them.
        first_token: of a target of several tokens the first one alone.
        kinds: what is restored, at one position: ``"state"`` (a layer's output: the whole residual stream), ``"ffn"``
            or ``"attention"`` (what these write in ``window`` layers around one); default all three. Of silencing
            ``"ffn"``, the default, and ``"attention"``.
        window: in layers; default 10 of every 48, but at least 3 unless that is more than half of all.
        samples: runs with noise. This, noise and seed are of restoring alone.
        noise: standard deviation of the Gaussian noise on the subject's token embeddings; default three times that
            of these embeddings. :func:`noise_scale` takes it over many facts.
        seed: of the noise, which further depends on the prompt's text (with its subject) and on nothing else.
        prepend_bos: whether the prompt gets the beginning-of-sequence token; None for the model's own way.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "trace" or "silence", the maps' columns done and all of them.

    Returns: A :class:`Trace`; of silencing a :class:`Silencing`, whose places are the prompt's tokens, the whole
        subject, and the whole prompt.

    Raises:
        InputError: a subject that is not found, an option that cannot be used, or a model that does not say the known
            attribute, each of its tokens being the likeliest where it stands.
        UnsupportedModelError: a model under an intervention, or whose layers cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), section 2; taking outputs away as Geva et al. 2023 (2304.14767), section 5.

    Example:
        $ ffnmem trace "The Eiffel Tower is located in the city of" \\
            "Eiffel Tower" --plot eiffel.png
        $ ffnmem trace "The capital of France is" France \\
            --target Paris --kinds ffn --window 1 --samples 3
        $ ffnmem trace "The Eiffel Tower is located in the city of" \\
            "Eiffel Tower" --way silence --window 1
    """
    question = find_question(model, fact, subject, prepend_bos)
    check_trace_fact(way, samples, noise)
    if way == "silence":
        silencer = Silencer(model, kinds, window, prepend_bos, batch_tokens)
        return silencer.map_fact(question, target, first_token, progress=progress)
    sigma = (scale_of(model, [question[0]]), OWN) if noise is None else (check_noise(noise), GIVEN)
    tracer = Tracer(model, kinds, window, samples, sigma, seed, prepend_bos, batch_tokens)
    return tracer.map_fact(question, target, first_token, progress=progress)


@overload
def trace_facts(
    model: Model, facts: Facts, *, way: Literal["restore"] = "restore", out: str | Path | None = None,
    kinds: Sequence[TraceKind] | None = None, window: Count | None = None, samples: Count = SAMPLES,
    noise: float | None = None, seed: Seed = 0, prepend_bos: bool | None = None, batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Traces: ...  # fmt: skip


@overload
def trace_facts(
    model: Model, facts: Facts, *, way: Literal["silence"], out: str | Path | None = None,
    kinds: Sequence[TraceKind] | None = None, window: Count | None = None, samples: Count = SAMPLES,
    noise: float | None = None, seed: Seed = 0, prepend_bos: bool | None = None, batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Silencings: ...  # fmt: skip


@checked
def trace_facts(
    model: Model,
    facts: Facts,
    *,
    way: TraceWay = "restore",
    out: str | Path | None = None,
    kinds: Sequence[TraceKind] | None = None,
    window: Count | None = None,
    samples: Count = SAMPLES,
    noise: float | None = None,
    seed: Seed = 0,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Traces | Silencings:
    """Where many facts are recalled: causal tracing of each.

    The effects are averaged by where a token stands towards the subject. Facts that the model does not know are
    skipped, with the reason. What is silenced is silenced together at a group's positions: the six of restoring, the
    beginning-of-sequence token, what stands before the subject, the whole subject, and the whole prompt.

    Args:
        model, way, kinds, window, samples, seed, prepend_bos, batch_tokens: as :func:`ffnmem.trace_fact` takes them.
        facts: to trace, one or some.
        out: a folder to keep each fact's result in as soon as it is there, made if missing. The same call goes on
            where one was stopped; other facts may be added.
        noise: the same for all facts; default that of the traces in ``out``, else :func:`noise_scale` of all facts.
        progress: called with "traces" or "silences", the facts done and all of them.

    Returns: :class:`Traces`: ``.traces``, ``.groups``, ``.skipped``; of silencing :class:`Silencings`.

    Raises:
        InputError: no facts, or an option that cannot be used.
        FileError: a folder that cannot be written, holds something else, or was made by another model or with other
            settings.
        UnsupportedModelError: as :func:`trace_fact`.

    Source: Meng et al. 2022 (2202.05262), section 2.2.

    Example:
        $ ffnmem trace-facts atlas --relation landmark.city --limit 3 --samples 2
        $ ffnmem trace-facts atlas --known --limit 2 --way silence
    """
    some = as_facts(facts)
    check_trace_fact(way, samples, noise)
    if way == "silence":
        return Silencings(*Silencer(model, kinds, window, prepend_bos, batch_tokens).map_facts(some, out, progress))
    before = None if noise is not None or out is None else read_run(out, TRACES).get("settings", {}).get("noise")
    if before is not None:  # facts that are added would ask for another one
        sigma = check_noise(before), "the traces kept before"
    elif noise is not None:
        sigma = check_noise(noise), GIVEN
    else:
        sigma = noise_scale(model, some, prepend_bos=prepend_bos), OWN if len(some) == 1 else noise_of_all(len(some))
    tracer = Tracer(model, kinds, window, samples, sigma, seed, prepend_bos, batch_tokens)
    return Traces(*tracer.map_facts(some, out, progress))


def check_trace_fact(way: TraceWay = "restore", samples: int = SAMPLES, noise: float | None = None) -> None:
    """Raise InputError for settings of noise where nothing is hidden by it."""
    if way == "silence" and (samples != SAMPLES or noise is not None):
        raise InputError(
            "nothing is hidden by noise where parts are silenced: leave out samples= and noise= (--samples, --noise)"
        )


check_trace_facts = check_trace_fact


class Tracer(Mapper[Trace]):
    """Traces with the same settings. ``noise``: its standard deviation, and what that was taken from."""

    ONE, FOLDER, PHASE, MANY_PHASE = Trace, TRACES, "trace", "traces"

    def __init__(
        self,
        model: Model,
        kinds: Sequence[str] | None,
        window: int | None,
        samples: int,
        noise: tuple[float, str],
        seed: int,
        prepend_bos: bool | None,
        batch_tokens: int,
    ) -> None:
        self.kinds = check_kinds(KINDS if kinds is None else kinds, KINDS, "trace")
        self.samples, self.seed, (self.noise, noise_from) = samples, seed, noise
        width = check_window(window, model.n_layers)
        recorded = {
            "kinds": ", ".join(self.kinds),
            "window": width,
            "noise": self.noise,
            "noise_from": noise_from,
            "samples": samples,
            "seed": seed,
        }
        deciding = {"kinds": self.kinds, "noise": self.noise, "samples": samples, "seed": seed}
        super().__init__(model, width, prepend_bos, batch_tokens, recorded, deciding)

    def measure(
        self, asked: SubjectPrompt, answer: Answer, alone: bool, progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        embeddings = corrupted(self.model, asked, self.noise, self.samples, self.seed, answer)
        tokens = torch.tensor([answer.tokens], device=self.model.device).repeat(len(embeddings), 1)
        replay = Replay(self.layers, tokens, embeddings=embeddings)
        clean, *noisy = self.probabilities(replay, asked, answer)
        before, start = float(np.mean(noisy)), asked.subject.start  # what no noise precedes, nothing brings back

        def impose(kind: str, position: int) -> Restoring:
            return Restoring(replay, kind, position, start, len(answer.read))

        columns = range(start, len(asked.tokens))
        scores = self.score_columns(self.kinds, columns, impose, answer, before, progress)
        padded = {kind: np.pad(one, ((0, 0), (start, 0)), constant_values=before) for kind, one in scores.items()}
        return {
            "scores": padded,
            "clean": clean,
            "samples": np.array(noisy),
            "noise": self.noise,
            "seed": self.seed,
        }
