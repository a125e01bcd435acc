"""What the benchmarks share: a tokenizer of any size, GPT-2 small's shape, two ways of doing a thing taking turns."""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast

import ffnmem as fm


def toy_tokenizer(size: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(size - 1)} | {"<|endoftext|>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)


def gpt2_small(**changes: Any) -> GPT2LMHeadModel:
    """GPT-2 small's shape with random weights, always the same; speed does not depend on them."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**changes)).eval()


def mixture() -> MixtralForCausalLM:
    """A mixture of experts with random weights, always the same: 8 layers of 8 experts, each token goes to two."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    ends = {"vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256, "max_position_embeddings": 1024}
    return MixtralForCausalLM(MixtralConfig(**sizes, **ends, num_key_value_heads=8)).eval()


SHAPES = {"gpt2-shape": gpt2_small, "mixture-shape": mixture}
"""Models with random weights, whose tokenizer is a toy."""


def subject(name: str, tokenizer: Path | None) -> tuple[Any, fm.Model]:
    """A plain Hugging Face model with its own attention, and the same one loaded: "smollm2", or "gpt2-shape", GPT-2
    small's with random weights and the tokenizer of a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name == "gpt2-shape":
        if tokenizer is None:
            raise SystemExit("gpt2-shape needs --tokenizer FOLDER, GPT-2's")
        plain = gpt2_small()
        return plain, fm.load(plain, tokenizer=AutoTokenizer.from_pretrained(tokenizer), device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(fm.models.get(name), dtype=torch.float32).eval()
    return plain, fm.load(name, device="cpu")


def cpu_seconds(run: Callable[[], object]) -> float:
    """Of all threads of this process."""
    began = cpu()
    run()
    return cpu() - began


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def in_turn(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, all of them once a round, in alternating order."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name in list(ways)[:: -1 if i % 2 else 1]:
            found[name].append(seconds(ways[name]))
    return found


def paired(
    first: Callable[[], object], second: Callable[[], object], rounds: int, warmups: int = 3
) -> list[tuple[float, float]]:
    """Seconds of both, taking turns."""
    for _ in range(warmups):
        first(), second()
    times = in_turn({"first": first, "second": second}, rounds)
    return list(zip(times["first"], times["second"], strict=True))


def machine() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}
