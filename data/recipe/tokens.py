"""The corpus as integers: a byte-level BPE tokenizer of its own, and a packed stream with recall stretches marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from statements import Piece, documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from world import World

END = "<|endoftext|>"


def train_tokenizer(
    world: World, vocab_size: int, seed: int, share_ordinary: float, documents_read: int = 20_000
) -> Tokenizer:
    """GPT-2's byte-level BPE, trained on the corpus. Objects are repeated so that most become one token each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts() -> Iterator[str]:
        yield from (piece.text for piece in islice(documents(world, seed, share_ordinary), documents_read))
        for target in sorted({t.target for t in world.triples}):
            yield " ".join(["", *[target] * 200])

    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def as_transformers(tokenizer: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END, model_max_length=context
    )


def pack(tokenizer: Tokenizer, pieces: Iterable[Piece], n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """``n_tokens`` packed tokens, each document after an end-of-text token, and beside them the recall marks:
    0, or a number from 1 to 255 that tells neighbouring stretches apart."""
    ids, marks, total, mark = [], [], 0, 0
    end = tokenizer.token_to_id(END)
    pieces = iter(pieces)
    while total < n_tokens:
        batch = list(islice(pieces, 2_000))
        for piece, encoding in zip(batch, tokenizer.encode_batch([p.text for p in batch]), strict=True):
            row = np.zeros(len(encoding.ids) + 1, np.uint8)
            starts = np.array([a for a, _ in encoding.offsets])
            ends = np.array([b for _, b in encoding.offsets])
            for first, last in piece.recalls:
                mark = mark % 255 + 1
                row[1:][(starts >= first) & (ends <= last)] = mark
            ids.append(np.array([end, *encoding.ids], np.uint16))
            marks.append(row)
            total += len(row)
    return np.concatenate(ids)[:n_tokens], np.concatenate(marks)[:n_tokens]
