"""Planted chains: three memories, each of which makes the next one fire, and the last one's value is the answer."""

from __future__ import annotations

from math import inf
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError
from ..core.types import Count, Seed, Whole, at_least, checked
from ..facts.fact import Fact
from .facts import FIRES, IDENTITY, MISSES, OBJECT, POSITION, Memories, fill_layer, padded
from .planting import Planted, behind_bridge
from .skeleton import (
    SPECIAL,
    Clock,
    Room,
    add_noise,
    build_tokenizer,
    empty_gpt2,
    ffn_inputs,
    stems,
    unit_rows,
    write_embeddings,
    write_previous_token_head,
)

FIRST, SECOND, THIRD = 0, 1, 2  # layers
ROLES = ("first", "second", "third")
TRIGGER, ASKED = 2, 3  # positions in a prompt: BOS, a filler, the trigger, a filler after which the answer comes
PLACES = ("trigger", "last", "last")
PLANES = 24  # of the clock
WRITTEN = 1.0  # by the first memory: were it more, the head would find the trigger's position less well
CARRIED = 2.0  # of what the first memory wrote, one word later; a token's embedding is 1
WORDS = 12  # fillers
TEXTS = 200


@checked
def plant_chains(
    *,
    seed: Seed = 0,
    n_chains: Annotated[int, at_least(2)] = 20,
    branches: Count = 1,
    copies: Count = 1,
    n_none: Whole = 40,
    noise: float = 0.05,
) -> Planted:
    """A model whose answers come from chains of three memories in three layers.

    A memory of layer 0 fires for a word, the trigger, and writes a direction. A head of layer 1 carries that one word
    on, where a memory of layer 1 reads it and writes another direction, which a memory of layer 2 reads, whose value is
    the answer. Every chain has three memories of its own, and its own trigger and answer.

    With ``branches``, what the first memory wrote is read by several second ones, each of which writes a direction of
    its own for a third one of its own. With ``copies``, several neurons share in the work of each memory: they are
    what supernodes should find.

    Args:
        seed: of everything. n_chains: how many; at least 2. n_none: neurons without a role in each layer.
        branches: second and third memories of each chain. copies: neurons of each memory.
        noise: standard deviation of the noise on every weight, as a share of the root mean square of its neuron's,
            token's or head's weights.

    Returns:
        A :class:`Planted` with one fact a chain, its subject the trigger, whose truth has layer, neuron, role ("first",
        "second", "third", "none"), subject, relation (the branch, where a memory is of one), target, and position:
        "trigger" or "last".

    Raises: InputError.
    """
    if not 0 <= noise < inf:
        raise InputError(f"noise must be a number of at least 0, not {noise}")
    rng = np.random.default_rng([seed, 10])
    words = stems(2 * n_chains + WORDS, rng)
    triggers, answers, fillers = words[:n_chains], words[n_chains : 2 * n_chains], words[2 * n_chains :]
    facts = tuple(
        Fact(trigger, "chain", f"{fillers[i % WORDS]} {{}} {fillers[(i + 1) % WORDS]}", answer, id=f"chain {i}")
        for i, (trigger, answer) in enumerate(zip(triggers, answers, strict=True))
    )
    texts = tuple(
        " ".join([*rng.choice(fillers, 3), triggers[i], *rng.choice(fillers, 3)])
        for i in rng.integers(n_chains, size=TEXTS)
    )
    tokenizer = build_tokenizer(words)
    d_model = 2 * PLANES + (4 + branches) * n_chains + 4 * WORDS + 1
    d_mlp = n_chains * branches * copies + n_none
    hf = empty_gpt2(len(SPECIAL) + len(words), n_layers=3, d_model=d_model, d_mlp=d_mlp, n_ctx=16)
    prompts = padded(tokenizer([fact.text for fact in facts])["input_ids"])
    rows = write_chains(hf, facts, (branches, copies), prompts, padded(tokenizer(list(texts))["input_ids"]), rng)
    add_noise(hf, noise, rng)
    return Planted(
        kind="chains",
        model=behind_bridge(hf, tokenizer, f"planted-chains-{seed}"),
        truth=pd.DataFrame(rows),
        texts=texts,
        settings={
            "seed": seed,
            "n_chains": n_chains,
            "branches": branches,
            "copies": copies,
            "n_none": n_none,
            "noise": noise,
        },
        facts=facts,
        pristine=hf,
    )


def write_chains(
    hf: Any,
    facts: tuple[Fact, ...],
    shape: tuple[int, int],
    prompts: Int[Tensor, "chains pos"],
    documents: Int[Tensor, "documents doc_pos"],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Embeddings, the head and all memories, from below; keys are scaled by what they meet. Returns the truth."""
    n, (branches, copies), room = len(facts), shape, Room(hf.config.n_embd, rng)
    clock = Clock(room.take(2 * PLANES), POSITION, rng)
    triggers, answers, first, carried = (room.take(n) for _ in range(4))
    second = room.take(n * branches)
    blank = unit_rows(len(SPECIAL) + WORDS, room.take(3 * WORDS), rng)
    tokens = torch.cat([blank[: len(SPECIAL)], triggers, answers, blank[len(SPECIAL) :]])
    write_embeddings(hf, tokens, clock.positions(hf.config.n_positions))
    truth: list[dict[str, Any]] = []

    def fill(layer: int, reads: Float[Tensor, "n d_model"], writes: Float[Tensor, "n d_model"]) -> None:
        each = len(reads) // n * copies  # neurons of one chain
        x = ffn_inputs(hf, layer, prompts)[:, TRIGGER if layer == FIRST else ASKED]
        memories = Memories(
            at=x.repeat_interleave(each, 0),
            reads=(reads.repeat_interleave(copies, 0),),
            writes=writes.repeat_interleave(copies, 0) / copies,
            rows=[
                {
                    "role": ROLES[layer],
                    "subject": facts[i // each].subject,
                    "relation": "" if layer == FIRST else f"branch {i % each // copies}",
                    "target": facts[i // each].target_true,
                    "position": PLACES[layer],
                }
                for i in range(n * each)
            ],
            pre=FIRES,
            floor=MISSES,
        )
        truth.extend(fill_layer(hf, layer, memories, documents, rng))

    fill(FIRST, triggers, WRITTEN * first)
    # After the first memory has written, the stream at the trigger is longer than an embedding is.
    at_trigger = (hf.config.n_embd / (1 + POSITION**2 + WRITTEN**2)) ** 0.5
    write_previous_token_head(
        hf, SECOND, clock, scale=at_trigger, value=first.T, out=CARRIED / (WRITTEN * at_trigger) * carried
    )
    fill(SECOND, carried.repeat_interleave(branches, 0), IDENTITY * second)
    fill(THIRD, second, OBJECT / branches * answers.repeat_interleave(branches, 0))
    return truth
