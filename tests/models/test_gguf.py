"""GGUF files: the weights that were written, to the bit, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models.loading import load_tokenizer

from ..helpers import PROMPT, refuses
from .gguf_files import logits, toy, write_gguf


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2"])
def test_the_weights_that_were_written(kind: str, tmp_path: Path) -> None:
    """A permutation, a transpose or a setting read otherwise gives another model under the same name."""
    original = toy(kind)
    file = write_gguf(tmp_path / "toy.gguf", kind, original)
    model = fm.load(file)
    original.set_attn_implementation("eager")
    assert torch.equal(logits(model.hf_model), logits(original))
    assert (model.name, model.dtype) == (str(file), torch.float32)
    assert dict(model.provenance().settings) == {"quantization": "F32"}
    assert fm.load(tmp_path).fingerprint == model.fingerprint  # the folder that holds it


def test_quantised_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    """Dequantised here and there must be the same numbers, and the model must be one that can be saved."""
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"), quantise="Q8_0", add_add_bos_token=False)
    model = fm.load(str(file))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="toy.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    assert torch.equal(logits(model.hf_model), logits(theirs.eval()))
    assert dict(model.provenance().settings) == {"quantization": "Q8_0"}
    assert model.prepend_bos is False  # as the file says
    model.hf_model.save_pretrained(tmp_path / "saved")
    model.tokenizer.save_pretrained(tmp_path / "saved")
    again = fm.load(tmp_path / "saved")
    assert torch.equal(logits(again.hf_model), logits(theirs))
    assert (again.fingerprint, again.prepend_bos) == (model.fingerprint, False)
    assert dict(again.provenance().settings) == {"quantization": "Q8_0"}
    assert fm.load(file, dtype="float64").dtype == torch.float64


def test_its_tokenizer(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"))
    model, tokenizer = fm.load(file), load_tokenizer(file)
    assert tokenizer.decode(tokenizer(PROMPT).input_ids) == PROMPT
    assert fm.capture(model, PROMPT, prepend_bos=False).token_strings()[:2] == ["The", " Eiffel"]


def test_what_is_no_model(tmp_path: Path) -> None:
    """Broken, foreign and ambiguous files get one line that names them."""
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"))
    data = file.read_bytes()
    for name, content in (("empty", b""), ("text", b"hello, world" * 9), ("cut", data[: len(data) // 2])):
        broken = tmp_path / name / "toy.gguf"
        broken.parent.mkdir()
        broken.write_bytes(content)
        with refuses(ModelError, ValueError, str(broken)):
            fm.load(broken)
    (tmp_path / "other.gguf").write_bytes(data)
    with refuses(ModelNotFoundError, FileNotFoundError, "2 GGUF files", "other.gguf", "toy.gguf"):
        fm.load(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "nothing.gguf"):
        fm.load(tmp_path / "nothing.gguf")


def test_other_rotary_positions_are_refused(tmp_path: Path) -> None:
    """transformers leaves the scaling of Llama 3.1's positions out without a word."""
    file, model = tmp_path / "toy.gguf", toy("llama")
    for field, value in (("add_rope_scaling_type", gguf_scaling()), ("add_rope_scaling_factor", 4.0)):
        with refuses(UnsupportedModelError, ValueError, "rotary"):
            fm.load(write_gguf(file, "llama", model, **{field: value}))
    assert fm.load(write_gguf(file, "llama", model, add_rope_scaling_factor=1.0)).n_layers == 2


def test_heads_turned_in_part_are_refused(tmp_path: Path) -> None:
    """Of Qwen2 and others transformers turns whole heads, whatever the file says."""
    model = toy("qwen2")
    assert fm.load(write_gguf(tmp_path / "toy.gguf", "qwen2", model, add_rope_dimension_count=8)).n_layers == 2
    with refuses(UnsupportedModelError, ValueError, "4 dimensions", "rotary", "8"):
        fm.load(write_gguf(tmp_path / "toy.gguf", "qwen2", model, add_rope_dimension_count=4))


def test_code_beside_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer_config.json may name code, and someone at a terminal would be asked whether to run it."""
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"))
    names = {"tokenizer_class": "Strange", "auto_map": {"AutoTokenizer": ["strange.Strange", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Strange: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with refuses(InputError, ValueError, str(file)):
        load_tokenizer(file)
    assert not (tmp_path / "ran").exists()


def gguf_scaling() -> object:
    import gguf

    return gguf.RopeScalingType.YARN


def test_fields_that_do_not_fit_the_tensors(tmp_path: Path) -> None:
    """A layer more in the fields would be filled in at random."""
    with refuses(ModelError, ValueError, "weights", "fields"):
        fm.load(write_gguf(tmp_path / "more.gguf", "llama", toy("llama"), add_block_count=3))
    with refuses(ModelError, ValueError, "num_hidden_layers"):
        fm.load(write_gguf(tmp_path / "many.gguf", "llama", toy("llama"), add_block_count=10**9))
