"""GPT-2 small as the hub has it, at full shape with random weights and the real tokenizer, through the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from .running import PROMPT, data, run

pytestmark = [pytest.mark.shared, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, gpt2_tokenizer: Any) -> Path:
    """Names without ``transformer.``, Conv1D, a mask and its filling beside the weights, no unembedding."""
    folder = tmp_path_factory.mktemp("hub") / "gpt2"
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    model.config.save_pretrained(folder)
    gpt2_tokenizer.save_pretrained(folder)
    tensors = model.transformer.state_dict()
    mask = torch.ones(1024, 1024).tril()[None, None]
    for layer in range(12):
        tensors |= {f"h.{layer}.attn.bias": mask.clone(), f"h.{layer}.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_every_command_that_reads_a_prompt(hub: Path, tmp_path: Path) -> None:
    """The model that everyone tries first: a name, a shape or a token read otherwise fails in one of them."""
    model = ("--model", hub)
    for command in ("attribute", "paths"):
        assert " Paris" in str(data(command, PROMPT, "--target", " Paris", *model))
    data("decompose", PROMPT, "--layer", 11, *model)
    data("project", "11.3071", "--top", 3, *model)
    data("ablate", PROMPT, "--target", " Paris", "--neurons", "5.349,11.3071", *model)
    data("intervene", PROMPT, "--set", "0.7=0", *model)
    data("trace", PROMPT, "--subject", "Eiffel Tower", "--kind", "ffn", "--samples", 1, *model)
    run("report", PROMPT, "--target", " Paris", *model, "-o", tmp_path / "page.html")
    saved = tmp_path / "edit.safetensors"
    edit = ("--subject", "Eiffel Tower", "--target", " Rome", "--layer", 3, "--editor", "ft_l", "--set", "steps=2")
    run("edit", PROMPT, *edit, "--unreached", "-o", saved, *model)
    assert saved.is_file()
    text, store = tmp_path / "text.txt", tmp_path / "store"
    text.write_text(f"{PROMPT} Paris.\n" * 2)
    data("scan", text, "--out", store, "--k", 2, *model)
    assert "11.3071" in run("neuron", "11.3071", "--store", store).stdout
