"""Every mistake that the manual's reader can make: one line that says what is wrong, and what would be right."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ..helpers import build_gpt2, shared_sizes
from .running import PROMPT, mistake

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, **shared_sizes()}
HEADS = {"num_attention_heads": 2, "intermediate_size": 32}


def mamba() -> Any:
    return transformers.MambaForCausalLM(transformers.MambaConfig(state_size=4, **SMALL))


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SMALL, **HEADS))


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, **HEADS))


def broken() -> Any:
    model = build_gpt2()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 4] = float("nan")
    return model


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (mamba, ("MambaForCausalLM", "no feed-forward network (MLP)")),
        (bert, ("Bert", "no decoder-only language model")),
        (mixtral, ("MixtralForCausalLM", "mixture of experts")),
        (broken, ("transformer.h.1.mlp.c_fc.weight", "NaN")),
    ],
    ids=["without MLPs", "an encoder", "experts", "NaN weights"],
)
@pytest.mark.parametrize("command", [["attribute", "The city"], ["project", "0.1"]], ids=lambda c: c[0])
def test_models_that_cannot_be_read(
    build: Callable[[], Any], named: tuple[str, ...], command: list[str], tokenizer: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    build().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    mistake(*command, "--model", folder, named=(folder, *named))


def test_model_that_is_nowhere() -> None:
    """At once, and not after the hub library's retries."""
    start = time.perf_counter()
    mistake("attribute", "x", "--model", "no-such-model", named=("'no-such-model'", "atlas", "folder", "hub"))
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("name", ["", "./none", "a/b/c"])
def test_folder_that_is_nowhere(name: str) -> None:
    mistake("attribute", "x", "--model", name, named=(repr(name), "folder"))


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    mistake("attribute", "x", "--model", tmp_path, named=(tmp_path, "config.json"))


def test_broken_weights(tiny_folder: Path, tmp_path: Path) -> None:
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:200] if "safetensors" in file.name else file.read_bytes())
    mistake("attribute", "x", "--model", tmp_path, named=(tmp_path,))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["attribute", ""], ["prompt is empty"]),
        (["attribute", "a" * 40], ["41 tokens", "at most 32"]),
        (["attribute", PROMPT, "--layer", "2"], ["layer 2", "0 to 1"]),
        (["attribute", PROMPT, "--position", "10"], ["position 10", "0 to 8"]),
        (["attribute", PROMPT, "--position", "-10"], ["position -10", "0 to 8"]),
        (["circuit", PROMPT, "--target", " Parisian"], ["4 tokens", "·Paris | i | a | n", "--first-token"]),
        (["attribute", PROMPT, "--target", " Parisian", "--foil", " Paris"], ["begins with all of", "' Paris'"]),
        (["attribute", PROMPT, "--target", ""], ["target is empty"]),
        *(
            ([command, PROMPT, "--target", " Paris", "--foil", " Paris"], ["the same token, ' Paris'", "name two"])
            for command in ("attribute", "paths", "causal", "circuit", "ablate")
        ),
        (["attribute", PROMPT, "--device", "tpu9"], ["tpu9"]),
        (["attribute", PROMPT, "--plot", "/nowhere/at/all.png"], ["/nowhere/at"]),
        (["attribute", PROMPT, "--plot", "plot.gif"], [".png", ".svg", "plot.gif"]),
        (["attribute", PROMPT, "--json", "--csv"], ["--json", "--csv"]),
        (["decompose", "", "--layer", "0"], ["prompt is empty"]),
        (["decompose", PROMPT, "--layer", "2"], ["layer 2", "0 to 1"]),
        (["decompose", PROMPT, "--layer", "0", "--position", "10"], ["position 10", "0 to 8"]),
        (["project", "2.0"], ["layer 2", "0 to 1"]),
        (["project", "1.63", "1.64"], ["neuron 64", "0 to 63"]),
        (["project", "1.5", "--basis", "cooked"], ["cooked", "folded", "raw"]),
        (["project", "1.5", "--side", "front"], ["front", "value", "key"]),
        (["report", "", "-o", "out.html"], ["prompt is empty"]),
        (["report", PROMPT, "-o", "/nowhere/at/all.html"], ["/nowhere/at"]),
        (["report", PROMPT, "-o", "/"], ["folder"]),
        (["report", PROMPT, "--target", "", "-o", "out.html"], ["target is empty"]),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_one_line_each(
    args: list[str], named: list[str], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake(*args, "--model", tiny_folder, named=tuple(named))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["3.x", "3", "3.", ".3", "3.1.2", "-1.3", "3.1,", "٣.١", "3 1", ""])
def test_what_names_no_neuron(text: str) -> None:
    """Before any model is loaded."""
    mistake("project", "--", text, named=("LAYER.NEURON", "3.17"))


@pytest.mark.parametrize("name", ["no facts here", "empty.jsonl", "broken.jsonl", "."])
def test_facts_that_are_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("\n", "utf-8")
    Path("broken.jsonl").write_text('{"subject": "x"}\n', "utf-8")
    mistake("facts", name, named=(name,))
