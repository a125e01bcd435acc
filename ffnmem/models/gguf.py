"""GGUF files, as llama.cpp writes them: dequantised by transformers and the package ``gguf``, never executed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import (
    InputError,
    MissingExtraError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    listed,
    quoted,
)
from ..core.foreign import Shared, foreign
from .configs import check_counts, model_path, quiet

SUFFIX = ".gguf"
READ = (
    "llama",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma2",
    "gemma3",
    "stablelm",
    "starcoder2",
    "nemotron",
    "gpt2",
    "falcon",
    "bloom",
)
"""The architectures, by llama.cpp's names, that are read back to the bit (tests/models/test_gguf.py)."""
FACTORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Tensors of factors by which rotary positions are scaled."""
COUNTED = ("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size")
"""Fields of sizes: one read otherwise gives another number of weights, or weights of other shapes, which is refused."""
OF_LAYOUT = ("tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned")
"""Fields that say nothing more, once scaled rotary positions are refused."""
ELSEWHERE = "load the model's Hugging Face checkpoint"
AS_GPT2 = ("gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling")
"""Pre-tokenisers, by llama.cpp's names, that are GPT-2's; transformers takes all for it that it does not know."""
BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Those that cut numbers into digits first, so that a space before one stays with the spaces before it."""
AS_QWEN2 = ("stablelm2",)
WHOLE = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
)
"""Those whose words are one token where the vocabulary has them, whatever the merges say."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""How many layers the one has whose attention scores llama.cpp divides by the root of d_model / heads."""


def gguf_file(source: str | Path) -> Path | None:
    """The GGUF file that a path names, or that its folder holds in place of a Hugging Face model; None where none is.

    Raises ModelNotFoundError for one that is not there, and for a folder with several.
    """
    if not str(source).strip():
        return None
    path = model_path(source)
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        if path.is_file():
            return path
        raise ModelNotFoundError(f"there is no file {source}")
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX and file.is_file())
    if len(found) > 1 and not all(
        re.search(r"-\d{5}-of-\d{5}$", file.stem) for file in found
    ):  # parts: said of the first
        names = listed([file.name for file in found], 3)
        raise ModelNotFoundError(f"{source} holds {len(found)} GGUF files ({names}): name one of them")
    return found[0] if found else None


def gguf_library(name: str) -> Any:
    """The package ``gguf``; raises MissingExtraError, which says what it is needed for, where it is not installed."""
    try:
        import gguf
    except ImportError:
        raise MissingExtraError(f"{name} needs the package gguf: pip install 'ffnmem[gguf]'") from None
    return gguf


class GgufHeader:
    """What a GGUF file says of itself, read before a model is made of it.

    Attributes:
        architecture: as llama.cpp names it, ``"llama"``.
        notes: what a config made of it says in its field ``ffnmem``, there and wherever the model is saved: the
            quantization of most of its weights (``"Q4_1"``; ``"F32"`` is none), and whether its tokenizer puts a
            beginning-of-sequence token before a text, where it says that.
        cuts_by: how its tokenizer cuts a text before it merges, as llama.cpp names it, ``"smollm"``; "" where it does
            not say; None for a tokenizer that does not cut.
        spaced: False for a tokenizer of SentencePiece that puts no space before a text.
        n_weights: the numbers in all of its tensors.
        fields: what it says of its architecture, ``{"block_count": 30}``.

    Raises:
        MissingExtraError: the package ``gguf`` is not installed. ModelError: no GGUF file, or a damaged one.
        UnsupportedModelError: positions that transformers would read as others, or one part of several.
    """

    def __init__(self, file: Path, name: str) -> None:
        gguf = gguf_library(name)
        with foreign(ModelError, f"{name} is no GGUF file that can be read"):
            reader = gguf.GGUFReader(file)

            def value_of(field: str) -> Any:
                found = reader.get_field(field)
                return None if found is None else found.contents()

            self.architecture, add_bos = value_of("general.architecture"), value_of("tokenizer.ggml.add_bos_token")
            kind = value_of("tokenizer.ggml.model")
            self.cuts_by = value_of("tokenizer.ggml.pre") or "" if kind == "gpt2" else None
            self.spaced = kind != "llama" or value_of("tokenizer.ggml.add_space_prefix") is not False
            parts = value_of("split.count") or 1
            own = f"{self.architecture}."
            self.fields = {key.removeprefix(own): value_of(key) for key in reader.fields if key.startswith(own)}
            weights: Counter[str] = Counter()
            for tensor in reader.tensors:
                weights[tensor.tensor_type.name] += int(tensor.n_elements)
            tensors = {tensor.name for tensor in reader.tensors}
        if parts > 1:
            raise UnsupportedModelError(
                f"{name} is one of the {parts} parts of a GGUF file: merge them first, by "
                f"llama-gguf-split --merge NAME-00001-of-{parts:05}.gguf NAME.gguf"
            )
        if not weights or not isinstance(self.architecture, str):
            raise ModelError(f"{name} holds no model: it has {len(tensors)} tensors of {quoted(self.architecture)}")
        self.n_weights = sum(weights.values())
        bos = {} if add_bos is None else {"prepend_bos": bool(add_bos)}
        self.notes = {"quantization": max(weights, key=weights.__getitem__), **bos}
        if not FACTORS.isdisjoint(tensors):  # which transformers leaves out without a word
            raise UnsupportedModelError(f"{name} scales its rotary positions by factors of their own: {ELSEWHERE}")


def gguf_config(file: Path, name: str, header: GgufHeader) -> Any:
    """The Hugging Face config of a GGUF file.

    Raises UnsupportedModelError for an architecture that is not read, or not described, and for a field that
    transformers reads otherwise than it is meant.
    """
    import transformers

    if header.architecture not in READ:
        raise UnsupportedModelError(
            f"{name} is of the architecture {quoted(header.architecture)}; GGUF files are read of {', '.join(READ)}: "
            f"{ELSEWHERE}"
        )
    with quiet(), foreign(UnsupportedModelError, f"{name} ({quoted(header.architecture)}) is not read by transformers"):
        config = transformers.AutoConfig.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )
    if config.model_type.removesuffix("_text") != header.architecture:  # "mistral", which is then read otherwise
        raise UnsupportedModelError(
            f"{name} is of {quoted(header.architecture)}, but transformers reads it as {quoted(config.model_type)} "
            f"because of its general.name: {ELSEWHERE}"
        )
    check_counts(config.to_dict(), name)
    check_fields(header, config, name)
    return config


def check_fields(header: GgufHeader, config: Any, name: str) -> None:
    """Raise UnsupportedModelError where a field says other than the config made of it: transformers passes over a field
    that it does not know and takes what the class has by default, and the same weights are another model."""
    asked = {"attention.head_count_kv": header.fields.get("attention.head_count")}
    if hasattr(config, "rope_parameters"):
        asked["rope.freq_base"] = 10_000.0  # llama.cpp's own, where a file does not say
    read = read_fields(config)
    for field, value in {**asked, **header.fields}.items():
        if field in COUNTED or field in OF_LAYOUT:
            continue
        if field not in read or not is_same(value, read[field]):
            taken = (
                f"which transformers reads as {read[field]}" if field in read else "which transformers does not read"
            )
            raise UnsupportedModelError(
                f"{name} says {header.architecture}.{field} = {quoted(str(value))}, {taken}: {ELSEWHERE}"
            )
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar is not None:
        wide = LARGEST.get(header.architecture) == config.num_hidden_layers
        meant = config.hidden_size / config.num_attention_heads if wide else config.head_dim
        if meant != scalar:
            raise UnsupportedModelError(
                f"{name} divides attention scores by the root of {meant:g}, which GGUF does not say and transformers "
                f"takes for {scalar}: {ELSEWHERE}"
            )


def read_fields(config: Any) -> dict[str, Any]:
    """The fields of an architecture as a config has them, whatever became of them on the way."""

    def first(*names: str) -> Any:
        return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)

    heads = first("num_attention_heads")
    head = first("head_dim") or config.hidden_size // heads
    eps = first("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    kv = 1 if getattr(config, "multi_query", False) else first("num_key_value_heads") or heads
    turning: Any = getattr(config, "rope_parameters", None) or {}
    far, near = turning.get("full_attention", turning), turning.get("sliding_attention", turning)
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.layer_norm_epsilon": eps,
        "attention.causal": True,
        "attention.sliding_window": first("sliding_window"),
        "attn_logit_softcapping": first("attn_logit_softcapping"),
        "final_logit_softcapping": first("final_logit_softcapping"),
        "expert_count": 0,
        "expert_used_count": 0,
        "rope.dimension_count": int(head * far.get("partial_rotary_factor", 1)),
        "rope.freq_base": far.get("rope_theta"),
        "rope.freq_base_swa": near.get("rope_theta"),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1,
        "rope.scale_linear": 1,
        "rope.scaling.attn_factor": 1,
        "use_parallel_residual": first("use_parallel_residual"),
    }


def is_same(given: Any, read: Any) -> bool:
    """Whether a field's value is the config's: 0 stands for none, and floating point is of float32."""
    given, read = given or 0, read or 0
    numbers = isinstance(given, int | float) and isinstance(read, int | float)
    return math.isclose(given, read, rel_tol=1e-6) if numbers else bool(given == read)


def open_gguf_tokenizer(file: Path, name: str) -> Any:
    """The tokenizer in a GGUF file; raises InputError, also for one that cuts texts in a way that is not known."""
    import transformers

    header = GgufHeader(file, name)
    with quiet(), foreign(InputError, f"{name} has no tokenizer that can be read"):
        # It may read the tokenizer_config.json beside the file, and that can name code.
        found = transformers.AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )
    if header.cuts_by is not None:
        cut_as_named(found.backend_tokenizer, header.cuts_by, name)
    elif not header.spaced:
        take_no_space(found.backend_tokenizer)
    return found


def take_no_space(backend: Any) -> None:
    """Have a tokenizer of SentencePiece put no space before a text, where its file says so: transformers does not read
    that."""
    from tokenizers import decoders, normalizers

    backend.normalizer, backend.pre_tokenizer = normalizers.Replace(" ", "▁"), None
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def cut_as_named(backend: Any, cuts_by: str, name: str) -> None:
    """Have a tokenizer cut texts as its file says: transformers takes GPT-2's way for every name that it does not know.

    Source: src/llama-vocab.cpp of llama.cpp.
    """
    from tokenizers import Regex, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as KNOWN

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if cuts_by in BY_DIGIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif cuts_by in AS_QWEN2:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(KNOWN["qwen2"]), behavior="isolated"), whole]
        )
    elif cuts_by not in AS_GPT2 and cuts_by not in KNOWN:
        way = f"by {quoted(cuts_by)}, which is not known here" if cuts_by else "in a way that it does not name"
        raise InputError(f"{name} cuts texts {way} (tokenizer.ggml.pre): pass tokenizer=…, or {ELSEWHERE}")
    if cuts_by in WHOLE:
        backend.model.ignore_merges = True


@Shared
@contextmanager
def no_bar() -> Iterator[None]:
    """No bar of transformers' for the tensors, which its own switch for bars leaves on."""
    from transformers import modeling_gguf_pytorch_utils as reading

    shown = reading.tqdm
    reading.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        reading.tqdm = shown
