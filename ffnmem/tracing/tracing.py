"""``trace_fact`` and ``trace_facts``: hide a subject with noise, put back one clean output, read the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.checked_files import digest
from ..core.errors import InputError, quoted
from ..core.folders import Kind
from ..core.progress import Phase, Progress
from ..core.run_folders import RunFolder, read_run, run_folder
from ..core.types import Count, Seed, checked
from ..facts.answers import Answer, read_answer
from ..facts.fact import Fact, as_facts
from ..facts.questions import SubjectPrompt, ask_about, find_subject
from ..facts.templates import check_marked_once
from ..models.chat import prompt_provenance
from ..models.model import Model
from ..models.replaying import PlainLayers, Replay
from ..models.turns import in_turn
from ..prompts.captures import warn_of_trailing_space
from ..show.result import Result
from .restoring import Restoring, cell_batches, cells_of, corrupted, noise_scale, probability, scale_of
from .settings import GIVEN, KINDS, OWN, SAMPLES, TraceSettings, check_kinds, check_noise, check_window, noise_of_all
from .traces import Trace, Traces

BATCH_TOKENS = 4096
TRACES = Kind("manifest.json", "ffnmem traces", 1, "the traces", subfolders=("facts",))
FactResult = TypeVar("FactResult", bound=Result)


@checked
@in_turn
def trace_fact(
    model: Model,
    fact: Fact | str,
    subject: str | None = None,
    *,
    target: str | None = None,
    first_token: bool = False,
    kinds: Sequence[str] = KINDS,
    window: Count | None = None,
    samples: Count = SAMPLES,
    noise: float | None = None,
    seed: Seed = 0,
    severed: Sequence[str] = (),
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Trace:
    """Where a fact is recalled: what restoring each clean output brings back of an answer whose subject is hidden.

    Args:
        model: from :func:`ffnmem.load`.
        fact: a fact, or a prompt: a whole text, or a template with ``{}`` for the subject.
        subject: of a prompt, as it is spelled there.
        target: the known attribute, as :func:`ffnmem.facts.read_answer` reads it; default the fact's own, and of a
            prompt the model's own top token. Of several tokens, scores are the probability of all of them.
        first_token: of a known attribute of several tokens the first one alone.
        kinds: what is restored, at one position: ``"state"`` (a layer's output: the whole residual stream), ``"ffn"``
            or ``"attention"`` (what these write in ``window`` layers around one).
        window: in layers; default 10 of every 48, but at least 3 unless that is more than half of all.
        samples: corrupted runs.
        noise: standard deviation of the Gaussian noise on the subject's token embeddings; default three times that
            of these embeddings. :func:`noise_scale` takes it over many facts.
        seed: of the noise, which further depends on the prompt's text (with its subject) and on nothing else.
        severed: ``"ffn"`` or ``"attention"`` for another kind, ``"severed_ffn"`` or ``"severed_attention"``: the state
            is restored, and in all later layers that part writes at this position what it wrote in the corrupted run.
        prepend_bos: whether the prompt gets the beginning-of-sequence token; None for the model's own way.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "trace", the maps' columns done and all of them.

    Returns: A :class:`Trace`.

    Raises:
        InputError: a subject that is not found, an option that cannot be used, or a model that does not say the known
            attribute, each of its tokens being the likeliest where it stands.
        UnsupportedModelError: a model under an intervention, or whose layers cannot be run by themselves.

    Source: Meng et al. 2022 (2202.05262), section 2; severed: section 2.2, figure 3.
    """
    asked, name, known = question(model, fact, subject, prepend_bos)
    sigma = (scale_of(model, [asked]), OWN) if noise is None else (check_noise(noise), GIVEN)
    settings = trace_settings(model, kinds, severed, window, samples, sigma, seed, prepend_bos)
    if isinstance(fact, str):
        warn_of_trailing_space(model, asked.text)
    answer = expected_answer(model, asked, known, target, first_token)
    return traced(PlainLayers(model), asked, name, answer, settings, batch_tokens, progress)


@checked
@in_turn
def trace_facts(
    model: Model,
    facts: Fact | Iterable[Fact],
    *,
    out: str | Path | None = None,
    kinds: Sequence[str] = KINDS,
    window: Count | None = None,
    samples: Count = SAMPLES,
    noise: float | None = None,
    seed: Seed = 0,
    severed: Sequence[str] = (),
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Traces:
    """Trace many facts, each by itself; those that the model does not know are skipped, with the reason.

    Args:
        model, kinds, window, samples, seed, severed, prepend_bos, batch_tokens: as of :func:`trace_fact`.
        facts: to trace, one or some.
        out: a folder to keep each fact's result in as soon as it is there, made if missing. The same call goes on
            where one was stopped; other facts may be added.
        noise: the same for all facts; default that of the traces in ``out``, else :func:`noise_scale` of all facts.
        progress: called with "traces", the facts done and all of them.

    Returns: :class:`Traces`: ``.traces``, ``.groups``, ``.skipped``.

    Raises:
        InputError: no facts, or an option that cannot be used.
        FileError: a folder that cannot be written, holds something else, or was made by another model or with other
            settings.
        UnsupportedModelError: as :func:`trace_fact`.

    Source: Meng et al. 2022 (2202.05262), section 2.2.
    """
    some = as_facts(facts)
    before = None if noise is not None or out is None else read_run(out, TRACES).get("settings", {}).get("noise")
    if before is not None:  # facts that are added would ask for another one
        sigma = check_noise(before), "the traces kept before"
    elif noise is not None:
        sigma = check_noise(noise), GIVEN
    else:
        sigma = noise_scale(model, some, prepend_bos=prepend_bos), OWN if len(some) == 1 else noise_of_all(len(some))
    settings = trace_settings(model, kinds, severed, window, samples, sigma, seed, prepend_bos)
    layers = PlainLayers(model)

    def trace(asked: SubjectPrompt, name: str, answer: Answer) -> Trace:
        return traced(layers, asked, name, answer, settings, batch_tokens)

    with run_folder(out, TRACES, conditions(model, settings.to_dict())) as folder:
        traces, skipped = for_each_fact(model, some, prepend_bos, trace, folder, Trace, "traces", progress)
    provenance = model.provenance(settings.prepend_bos, **settings.recorded(), facts=len(some))
    return Traces(traces, skipped, provenance)


def conditions(model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that the results of a fact depend on, besides the fact."""
    dtype = str(model.dtype).removeprefix("torch.")
    return {"model": model.name, "fingerprint": model.fingerprint, "dtype": dtype, "settings": settings}


def for_each_fact(
    model: Model,
    facts: Sequence[Fact],
    prepend_bos: bool | None,
    measure: Callable[[SubjectPrompt, str, Answer], FactResult],
    folder: RunFolder,
    kind: type[FactResult],
    phase: Phase,
    progress: Progress | None,
) -> tuple[tuple[FactResult, ...], pd.DataFrame]:
    """What is measured of each fact that the model knows; of the others fact, subject and reason.

    What the folder holds is not measured again.
    """

    def result_or_reason(fact: Fact) -> FactResult | str:
        try:
            asked, name, known = question(model, fact, None, prepend_bos)
            return measure(asked, name, expected_answer(model, asked, known))
        except InputError as error:
            return str(error)

    results, skipped = [], []
    for done, fact in enumerate(facts, start=1):
        key = fact.to_dict()
        result = folder.kept(f"facts/{digest(key)}", kind | str, key, partial(result_or_reason, fact))
        if isinstance(result, str):
            skipped.append((fact.id, fact.subject, result))
        else:
            results.append(result)
        if progress is not None:
            progress(phase, done, len(facts))
    return tuple(results), pd.DataFrame(skipped, columns=["fact", "subject", "reason"])


def trace_settings(
    model: Model,
    kinds: Sequence[str],
    severed: Sequence[str],
    window: int | None,
    samples: int,
    noise: tuple[float, str],
    seed: int,
    prepend_bos: bool | None,
) -> TraceSettings:
    """The settings, or an InputError."""
    return TraceSettings(
        kinds=check_kinds(kinds, severed),
        window=check_window(window, model.n_layers),
        noise=noise[0],
        noise_from=noise[1],
        samples=samples,
        seed=seed,
        prepend_bos=model.prepend_bos if prepend_bos is None else prepend_bos,
    )


def question(
    model: Model, fact: Fact | str, subject: str | None, prepend_bos: bool | None
) -> tuple[SubjectPrompt, str, str | None]:
    """The prompt with its subject found, what it is called, and what is known to be true, if that is."""
    if isinstance(fact, Fact):
        if subject is not None:
            raise InputError(
                f"the fact has a subject, {quoted(fact.subject)}: give a prompt to trace {quoted(subject)}"
            )
        return ask_about(model, fact.prompt, fact.subject, prepend_bos=prepend_bos), fact.name, fact.target_true or None
    if subject is None:
        raise InputError(f"a subject is needed to trace {quoted(fact)}: which of its words to hide")
    check_marked_once(fact, subject)
    asked = (ask_about if "{}" in fact else find_subject)(model, fact, subject, prepend_bos=prepend_bos)
    return asked, asked.text, None


def traced(
    layers: PlainLayers,
    asked: SubjectPrompt,
    name: str,
    answer: Answer,
    settings: TraceSettings,
    batch_tokens: int,
    progress: Progress | None = None,
) -> Trace:
    """The trace of one prompt; InputError if the model does not say the answer."""
    model = layers.model
    embeddings = corrupted(model, asked, settings.noise, settings.samples, settings.seed, answer)
    tokens = torch.tensor([answer.tokens], device=model.device).repeat(len(embeddings), 1)
    replay = Replay(layers, tokens, embeddings=embeddings)
    with torch.no_grad():
        final = replay.stream[len(layers)][:, -len(answer.read) :]
        check_said(layers, final[0], asked, answer)
        clean, *noisy = probability(layers, final, answer.read).tolist()
        scores = maps(replay, asked, answer, settings, float(np.mean(noisy)), batch_tokens, progress)
    return Trace(
        scores=scores,
        clean=clean,
        samples=np.array(noisy),
        **answer_fields(model, asked, name, answer),
        provenance=prompt_provenance(
            model.provenance(settings.prepend_bos, **settings.recorded()), asked.text, model.begins(asked.tokens)
        ),
        **{key: getattr(settings, key) for key in ("window", "noise", "seed")},
    )


def answer_fields(model: Model, asked: SubjectPrompt, name: str, answer: Answer) -> dict[str, Any]:
    """What a result says of a prompt and its answer."""
    return {
        "answer": answer.target_text,
        "answer_ids": answer.target,
        "text": asked.text,
        "tokens": tuple(model.token_strings(asked.tokens)),
        "subject": asked.subject,
        "fact": name,
    }


def expected_answer(
    model: Model, asked: SubjectPrompt, known: str | None, target: str | None = None, first_token: bool = False
) -> Answer:
    """The answer of a prompt: the target, else what is known, else the model's own top token. Raises InputError."""
    given = known if target is None else target
    return read_answer(model, asked.tokens, given, first_token=first_token, word=target is None and known is not None)


def check_said(
    layers: PlainLayers, final: Float[Tensor, "reads d_model"], asked: SubjectPrompt, answer: Answer
) -> None:
    """Raise InputError if another token than the answer's is the likeliest after what reaches the final norm."""
    for token, said in zip(answer.read, layers.logits(final).argmax(-1).tolist(), strict=True):
        if said != token:
            model = layers.model
            other, wanted = model.token_strings([said, token])
            of = f" of {quoted(answer.target_text)}" if answer.whole else ""
            raise InputError(
                f"{model.name} answers {quoted(other)}, not {quoted(wanted)}{of}, to {quoted(asked.text)}: it does not "
                "know this"
            )


def maps(
    replay: Replay,
    asked: SubjectPrompt,
    answer: Answer,
    settings: TraceSettings,
    before: float,
    batch_tokens: int,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Each kind's ``[n_layers, pos]``; ``before``: the score where nothing is changed, such as before the subject."""
    layers, length = replay.layers, len(asked.tokens)
    columns = range(asked.subject.start, length)
    found: dict[str, np.ndarray] = {}
    done, total = 0, len(columns) * len(settings.kinds)
    for kind in settings.kinds:
        scores = np.full((len(layers), length), before, dtype=np.float64)
        for position in columns:
            restoring = Restoring(replay, kind, position, asked.subject.start, len(answer.read))
            cells = cells_of(kind, len(layers), settings.window)
            if position < length - 1:  # what the last layer writes there, no later position reads
                cells = [cell for cell in cells if cell.start < len(layers) - 1]
            for chunk in cell_batches(cells, settings.samples * (replay.length - position), batch_tokens):
                probabilities = probability(layers, restoring.run(chunk), answer.read)
                scores[[cell.layer for cell in chunk], position] = probabilities.mean(-1).cpu().numpy()
            done += 1
            if progress is not None:
                progress("trace", done, total)
        found[kind] = scores
    return found
