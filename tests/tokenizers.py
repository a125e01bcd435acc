"""Tokenizers of every kind that models come with, small enough to be built in a test, and a tiny model around each.

All know the same words: " Paris" and "Paris" are a token each where a kind tells them apart, " North America" is two,
北京 is one but in WordPiece, which cuts between its characters, é is one, and an emoji falls into bytes, or is unknown
where a kind has none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import ffnmem as fm

from .helpers import build

WORDS = (
    "The",
    "Paris",
    "Rome",
    "North",
    "America",
    "France",
    "Tower",
    "Beyonc",
    "capital",
    "city",
    "called",
    "is",
    "in",
    "of",
)
"""Each a token with a space before it, and one without."""
PIECES = ("北京", "首都", "中国", "é", "ing", "\u0301")
"""Each a token without a space before it alone, as scripts have that need no spaces."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"’-()#{}|<>/_\n北京首都中国的是é\u0301"
BEGIN, END, UNKNOWN, PAD = "<s>", "</s>", "<unk>", "<pad>"
SPECIAL = (UNKNOWN, BEGIN, END, PAD)
SPELLED = {"unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A chat template that brings its own beginning."""


def merged(words: Iterable[str], first: Iterable[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A BPE vocabulary with ``first`` at its beginning, and the merges that make each word letter by letter."""
    vocabulary: dict[str, int] = {token: i for i, token in enumerate(first)}
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
        for end in range(len(word)):
            vocabulary.setdefault(word[end], len(vocabulary))
            vocabulary.setdefault(word[: end + 1], len(vocabulary))
    return vocabulary, list(merges)


def wrapped(tokenizer: Tokenizer, adds: str = "", **options: Any) -> Any:
    """In transformers' class; ``adds``: "begin", "end", "begin end" or nothing."""
    import transformers

    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    names = {"begin": BEGIN, "end": END}
    parts = [*(["begin"] if "begin" in adds else []), "$A", *(["end"] if "end" in adds else [])]
    if adds:
        tokenizer.post_processor = processors.Sequence(
            [
                *([tokenizer.post_processor] if tokenizer.post_processor is not None else []),
                processors.TemplateProcessing(
                    single=[names.get(part, part) for part in parts],
                    special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)],
                ),
            ]
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**SPELLED, **options})


@cache
def byte_level_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [byte_level.pre_tokenize_str(word)[0][0] for word in (*(f" {word}" for word in WORDS), *WORDS, *PIECES)]
    return merged(words, (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))


@cache
def spaced_parts(with_bytes: bool = True) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """With ``▁`` for a space, as SentencePiece has it."""
    first = (*SPECIAL, *(BYTES if with_bytes else ()), "▁", *dict.fromkeys(LETTERS))
    return merged((*(f"▁{word}" for word in WORDS), *WORDS, *PIECES), first)


def byte_level(prefix_space: bool = False, adds: str = "") -> Any:
    """GPT-2, GPT-NeoX, Llama 3; with ``prefix_space``, RoBERTa's kind."""
    tokenizer = Tokenizer(models.BPE(*byte_level_parts()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer, adds)


def byte_fallback() -> models.BPE:
    return models.BPE(*spaced_parts(), unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)


def spaced_decoder(strip: bool = True) -> Any:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strip else parts)


def llama2(adds: str = "begin") -> Any:
    """Llama 2 and Mistral as their tokenizer.json says it: a ``▁`` in front of every text and for every space."""
    tokenizer = Tokenizer(byte_fallback())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = spaced_decoder()
    return wrapped(tokenizer, adds)


def metaspace(scheme: str, adds: str = "begin") -> Any:
    """The same by a pre-tokenizer: Llama 2 without ``legacy``, Phi 3, XLM-R."""
    tokenizer = Tokenizer(byte_fallback())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    tokenizer.decoder = spaced_decoder(strip=scheme != "never")
    return wrapped(tokenizer, adds)


def unigram(scheme: str = "always", adds: str = "end", with_bytes: bool = False) -> Any:
    """T5 and, with bytes, the first Gemma's kind: pieces with scores in place of merges."""
    vocabulary = spaced_parts(with_bytes)[0]
    scores = [(token, -float(i < 300) * 9 - 1.0 / len(token)) for i, token in enumerate(vocabulary)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=with_bytes))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
    tokenizer.decoder = decoders.Metaspace("▁", scheme) if not with_bytes else spaced_decoder(strip=scheme != "never")
    return wrapped(tokenizer, adds)


def word_piece(adds: str = "begin end") -> Any:
    """BERT, cased: words are cut at spaces and marks, and ``##`` begins a token that goes on with a word. It has no
    beginning that texts get; what it adds is its own."""
    letters = [*dict.fromkeys(LETTERS.replace("\n", ""))]
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *WORDS, *PIECES, *(f"##{w}" for w in PIECES)]
    tokenizer = Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(dict.fromkeys(tokens))}, unk_token=UNKNOWN)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=True)
    return wrapped(tokenizer, adds, bos_token=None)


def from_files(kind: str, parts: tuple[dict[str, int], list[tuple[str, str]]], **options: Any) -> Any:
    """transformers' own class, read from the files that it writes."""
    import transformers

    named = getattr(transformers, kind)
    with tempfile.TemporaryDirectory() as folder:
        named(vocab=parts[0], merges=parts[1], **{**SPELLED, **options}).save_pretrained(folder)
        return named.from_pretrained(folder)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "byte-level, adds a beginning": lambda: byte_level(adds="begin"),
    "byte-level, adds an end": lambda: byte_level(adds="end"),
    "byte-level, adds both": lambda: byte_level(adds="begin end"),
    "byte-level with a prefix space": lambda: byte_level(prefix_space=True),
    "Llama 2": llama2,
    "Llama 2, adds nothing": lambda: llama2(adds=""),
    "Metaspace first": lambda: metaspace("first"),
    "Metaspace always": lambda: metaspace("always"),
    "Metaspace never": lambda: metaspace("never"),
    "Unigram (T5)": unigram,
    "Unigram with bytes (Gemma)": lambda: unigram("never", "begin", with_bytes=True),
    "WordPiece": word_piece,
    "LlamaTokenizer": lambda: from_files("LlamaTokenizer", spaced_parts(), add_bos_token=True),
    "LlamaTokenizer, legacy": lambda: from_files("LlamaTokenizer", spaced_parts(), legacy=True),
    "LlamaTokenizer, no prefix space": lambda: from_files("LlamaTokenizer", spaced_parts(), add_prefix_space=False),
    "GemmaTokenizer": lambda: from_files("GemmaTokenizer", spaced_parts(), add_bos_token=True),
    "Qwen2Tokenizer": lambda: from_files("Qwen2Tokenizer", byte_level_parts(), bos_token=None),
}
"""By the name of each. A test takes ``@pytest.mark.parametrize("name", EACH)`` and :func:`model_with`."""

FORMS = (
    "byte-level, adds a beginning",
    "byte-level with a prefix space",
    "Llama 2",
    "Metaspace first",
    "Unigram (T5)",
    "Unigram with bytes (Gemma)",
    "WordPiece",
    "LlamaTokenizer, legacy",
)
EACH = [name if name in FORMS else pytest.param(name, marks=pytest.mark.exhaustive) for name in TOKENIZERS]
"""All of them, of which ``make test`` takes one of each form."""

ADDS_SPACE = frozenset(
    {
        "byte-level with a prefix space", "Llama 2", "Llama 2, adds nothing", "Metaspace first", "Metaspace always",
        "Unigram (T5)", "LlamaTokenizer", "LlamaTokenizer, legacy",
    }
)  # fmt: skip
"""Those that put a space of their own in front of a text, so that "Paris" alone is what " Paris" is in a sentence."""


@cache
def tokenizer_named(name: str) -> Any:
    """Built once. Shared: copy it before changing it."""
    return TOKENIZERS[name]()


@cache
def model_with(name: str, prepend_bos: bool | None = None) -> fm.Model:
    """A tiny random Llama with a tokenizer of :data:`TOKENIZERS`. Shared: do not change it."""
    return load_with(tokenizer_named(name), prepend_bos=prepend_bos)


def load_with(tokenizer: Any, **options: Any) -> fm.Model:
    """A tiny random Llama with any tokenizer."""
    hf = build("Llama", vocab_size=len(tokenizer), max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    return fm.load(hf, tokenizer=tokenizer, **options)
