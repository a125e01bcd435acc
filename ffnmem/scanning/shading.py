"""Every token of an example: a store keeps a neuron's coefficient at the strongest, and the model computes the others
when somebody looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64

from ..core.errors import ModelError
from ..core.progress import Phase, Progress
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection, TextSettings
from ..corpus.passes import read
from ..models.layer_pass import LayerPass
from ..models.model import Model
from .contexts import Contexts, Example, Passage
from .neuron import Neuron, Scanned
from .projected import AT_ONCE

TOLERANCE = 1e-4
"""By how much a coefficient may differ from the store's: of the neuron's largest magnitude, or of 1 where that is less.

The same float32 weights differ by some 10⁻⁶ in batches of other sizes.
"""
Place = tuple[int, int]


def shaded(
    neurons: Sequence[Neuron],
    model: Model,
    contexts: Contexts,
    settings: TextSettings,
    listed: int | None = None,
    progress: Progress | None = None,
) -> list[Neuron]:
    """Neurons with the passages of the examples that their cards show; those in folded groups are left out.

    The model reads each sequence once for all of them, whole, up to the deepest layer that is asked for there.

    Args:
        neurons: of one store. model: the one that was scanned.
        contexts: the store's text. settings: how it was cut.
        listed: as :meth:`Neuron.groups` takes it.
        progress: called as ("shade", done, total) in tokens of text.

    Raises: ModelError: the model gives other coefficients than the store has.
    """
    shown = [shown_examples(one, listed) for one in neurons]
    wanted: dict[Place, set[int]] = defaultdict(set)
    for one, examples in zip(neurons, shown, strict=True):
        wanted[one.layer, one.neuron] |= {example.sequence for example in examples}
    found = read_passages(model, contexts, settings, wanted, progress)
    for one, examples in zip(neurons, shown, strict=True):
        check_agreement(one, found[one.layer, one.neuron], examples)
    return [replace(one, passages=found[one.layer, one.neuron]) for one in neurons]


def shown_examples(neuron: Neuron, listed: int | None = None) -> list[Example]:
    """The examples on a neuron's card, those of its meanings too."""
    groups = (group for group in neuron.groups(listed) if not group.folded)
    return [*(example for group in groups for example in group.examples()), *neuron.meaning_examples]


def shadable(model: Model, fingerprint: str) -> bool:
    """Whether this is a model as it was scanned: the same weights, and nothing that changes what they compute."""
    return not model.interventions and model.fingerprint == fingerprint


def is_quick(neuron: Neuron, model: Model, contexts: Contexts) -> bool:
    """Whether :func:`shaded` takes a second or two for a card: at most 10¹¹ multiplications."""
    sequences = {example.sequence for example in shown_examples(neuron)}
    tokens = sum(contexts.sequences.locate(number)[2] for number in sequences)
    layers = model.ffn[: neuron.layer + 1]
    weights = sum((3 if ffn.gated else 2) * ffn.d_mlp * model.d_model + 4 * model.d_model**2 for ffn in layers)
    return tokens * weights <= AT_ONCE


def check_agreement(neuron: Neuron, passages: Mapping[int, Passage], examples: Iterable[Example]) -> None:
    """Raise ModelError unless the passages have the coefficients at the examples that the store has."""
    for example in examples:
        place = example.sequence, example.position
        passage = passages[example.sequence]
        check_coefficient(neuron.store, neuron.name, neuron.largest, *place, example.coefficient, passage)


def check_coefficient(
    store: Scanned, name: str, largest: float, sequence: int, position: int, kept: float, passage: Passage
) -> None:
    """Raise ModelError unless a passage has the coefficient at a place that the store has, of the neuron of a name."""
    found, allowed = float(passage.coefficients[position - passage.first]), TOLERANCE * max(largest, 1.0)
    if not abs(found - kept) <= allowed:
        raise ModelError(
            f"{name} has the coefficient {kept:.6g} at sequence {sequence}, position {position} in the store "
            f"{store.folder}, and {found:.6g} in the model at hand, which is not {store.model} as it was scanned (at "
            f"most {allowed:.1g} apart is rounding): load it anew, or leave tokens unshaded"
        )


def read_passages(
    model: Model,
    contexts: Contexts,
    settings: TextSettings,
    wanted: Mapping[Place, Iterable[int]],
    progress: Progress | None = None,
) -> dict[Place, dict[int, Passage]]:
    """Neurons' coefficients at every token of some sequences, float32.

    Args:
        model: whose weights; hooks on its bridge are not seen.
        contexts, settings: the text, and how it was cut.
        wanted: by (layer, neuron), the numbers of the sequences.
        progress: called as ("shade", done, total) in tokens of text.

    Returns: By neuron and by sequence; of gated neurons with gate and linear part.
    """
    numbers = {place: sorted(set(some)) for place, some in wanted.items()}
    deepest: dict[int, int] = {}
    for (layer, _), some in numbers.items():
        for number in some:
            deepest[number] = max(layer, deepest.get(number, 0))
    reader = PassageReader(model, numbers)
    total, before = sum(contexts.sequences.locate(number)[2] for number in deepest), 0

    def report(phase: Phase, done: int, _of: int) -> None:
        if progress is not None:
            progress(phase, before + done, total)

    text = replace(settings, batch_tokens=BATCH_TOKENS)
    for reader.until in sorted(set(deepest.values())):
        here = np.array(sorted(n for n, layer in deepest.items() if layer == reader.until), np.int64)
        selection = Selection(contexts.sequences, text, here, together=len(here))
        read(selection, reader, "shade", report)
        before += selection.n_tokens
    return with_texts(reader.found, contexts, sorted(deepest))


class PassageReader:
    """Runs pages through the layers of a model, and keeps what is wanted of each.

    Attributes:
        until: the last layer to run.
        found: by neuron and sequence, ``[1 or 3, pos]``: coefficients, and of gated neurons gates and linear parts.
    """

    def __init__(self, model: Model, wanted: Mapping[Place, Sequence[int]]) -> None:
        self.device, self.until = model.device, 0
        self.body = LayerPass(model, torch.float32)
        self.by_layer: dict[int, dict[int, set[int]]] = defaultdict(dict)
        for (layer, neuron), some in wanted.items():
            self.by_layer[layer][neuron] = set(some)
        self.found: dict[Place, dict[int, np.ndarray]] = {place: {} for place in wanted}

    def __call__(self, page: Page) -> None:
        linear: dict[int, torch.Tensor] = {}

        def hand(layer: int, pre: torch.Tensor, coefficients: torch.Tensor) -> None:
            part = linear.pop(layer, None)
            self.keep(page, layer, [coefficients] if part is None else [coefficients, pre, part])

        tokens = torch.from_numpy(page.batch.tokens).to(self.device)
        self.body.run(tokens, hand, lengths=page.batch.lengths, on_linear=linear.__setitem__, until=self.until)

    def keep(self, page: Page, layer: int, parts: Sequence[torch.Tensor]) -> None:
        """Keep what is wanted of one layer of a page, from the first token of text on."""
        rows = {int(number): row for row, number in enumerate(page.batch.sequences)}
        here = {neuron: some & rows.keys() for neuron, some in self.by_layer.get(layer, {}).items()}
        columns = [neuron for neuron, some in here.items() if some]
        if not columns:
            return
        at = torch.tensor(columns, device=parts[0].device)
        every = torch.stack([part.index_select(1, at) for part in parts]).cpu().numpy()
        every = rearrange(every, "part (rows pos) neurons -> neurons part rows pos", rows=len(rows))
        for neuron, values in zip(columns, every, strict=True):
            for number in here[neuron]:
                row = rows[number]
                text = values[:, row, page.lead : int(page.batch.lengths[row])]
                self.found[layer, neuron][number] = np.ascontiguousarray(text, np.float32)


def with_texts(
    found: Mapping[Place, Mapping[int, np.ndarray]], contexts: Contexts, numbers: Sequence[int]
) -> dict[Place, dict[int, Passage]]:
    """Passages of the numbers; those of one sequence share its texts."""
    lead = contexts.sequences.lead
    ids: dict[int, Int64[np.ndarray, " pos"]] = {n: contexts.sequences.sequence_tokens(n)[lead:] for n in numbers}
    tokens = {number: contexts.running(some.tolist()) for number, some in ids.items()}
    return {
        place: {number: Passage(tokens[number], lead, *values) for number, values in sorted(some.items())}
        for place, some in found.items()
    }
