"""Corpora: text from anywhere as documents, tokenised once into files, cut into the sequences that a scan reads."""

from .batching import Batch
from .packed import Packed, open_packed
from .packing import pack
from .problems import Document, Problem
from .sequences import Sequences, Unit
from .sources import Corpus, open_corpus
from .tokenizing import tokenizer_hash

__all__ = [
    "Batch",
    "Corpus",
    "Document",
    "Packed",
    "Problem",
    "Sequences",
    "Unit",
    "open_corpus",
    "open_packed",
    "pack",
    "tokenizer_hash",
]
