"""What the benchmarks share: a tokenizer of any size, GPT-2 small's shape, two ways of doing a thing taking turns."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast


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


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def paired(
    first: Callable[[], object], second: Callable[[], object], rounds: int, warmups: int = 3
) -> list[tuple[float, float]]:
    """Seconds of both, taking turns in alternating order."""
    for _ in range(warmups):
        first(), second()
    times = []
    for i in range(rounds):
        if i % 2:
            b, a = seconds(second), seconds(first)
        else:
            a, b = seconds(first), seconds(second)
        times.append((a, b))
    return times


def machine() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}
