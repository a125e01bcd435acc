"""GGUF files: the weights that were written, to the bit, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
import transformers

import ffnmem as fm
from ffnmem.core.errors import InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models.loading import load_tokenizer, read_checkpoint

from ..helpers import PROMPT, build, build_tokenizer, refuses
from .gguf_files import SIZES, SOFT, TOYS, logits, toy, write_gguf, write_pieces

ALIKE = ("qwen2", "gemma3", "starcoder2", "stablelm", "nemotron")
"""Whose tensors are stored as those of another toy."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.exhaustive) if k in ALIKE else k for k in TOYS])
def test_the_weights_that_were_written(kind: str, tmp_path: Path) -> None:
    """A permutation, a transpose or a setting read otherwise gives another model under the same name."""
    original = toy(kind)
    file = write_gguf(tmp_path / "toy.gguf", kind, original)
    original.set_attn_implementation("eager")
    assert torch.equal(logits(read_checkpoint(file, torch.float32).eval()), logits(original))
    if kind.startswith("gemma"):  # whose tokenizers transformers gives one token more than this one's model has
        return
    model = fm.load(file)
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


def pieces(tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("cuts_by", ["gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-llm", ""])
def test_its_tokenizer_cuts_as_the_file_says(cuts_by: str, tmp_path: Path) -> None:
    """GPT-2's way, which transformers takes for every name that it does not know, parts the two breaks before "1":
    texts would be other tokens without a word. The weights can be had with a tokenizer of one's own."""
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"), cuts_by=cuts_by)
    if cuts_by in ("deepseek-llm", ""):
        with refuses(InputError, ValueError, "toy.gguf", cuts_by, "tokenizer.ggml.pre", "tokenizer="):
            fm.load(file)
        assert fm.load(file, tokenizer=build_tokenizer()).n_layers == 2
        return
    tokenizer = load_tokenizer(file)
    assert tokenizer.decode(tokenizer(PROMPT).input_ids) == PROMPT
    breaks = ["Ċ", "Ċ"] if cuts_by == "gpt-2" else ["ĊĊ"]
    numbers = ["12"] if cuts_by in ("gpt-2", "llama-bpe") else ["1", "2"]
    assert pieces(tokenizer, "so\n\n12") == ["so", *breaks, *numbers]
    assert tokenizer.backend_tokenizer.model.ignore_merges == (cuts_by == "llama-bpe")


SPACES = (
    *("The city of", " the city", "  two", "end ", "the  city the city", "", " ", "   ", "\n", "\nline", "a\n\nb"),
    *("Zürich 東京 🙂", "1 234", "the<think> city", "<think>", "x<think>y"),
)


def test_no_space_is_put_before_a_text_where_the_file_says_so(tmp_path: Path) -> None:
    """transformers reads no tokenizer.ggml.add_space_prefix: most texts would begin with another token."""
    pieces = pytest.importorskip("sentencepiece", reason="the wheel is tried without SentencePiece")
    with (tmp_path / "pieces.model").open("wb") as file:
        pieces.SentencePieceTrainer.train(
            sentence_iterator=iter([PROMPT] * 3),
            model_writer=file,
            vocab_size=300,
            model_type="bpe",
            byte_fallback=True,
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            normalization_rule_name="identity",
            user_defined_symbols=["<think>"],
            minloglevel=2,
        )
    theirs = pieces.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    tokenizer = load_tokenizer(write_pieces(tmp_path / "toy.gguf", theirs, add_add_space_prefix=False))
    tokenizer.save_pretrained(tmp_path / "saved")
    for ours in (tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")):
        for text in SPACES:
            ids = ours(text, add_special_tokens=False).input_ids
            assert (ids, ours.decode(ids)) == (theirs.encode(text), text)
    spaced = load_tokenizer(write_pieces(tmp_path / "spaced.gguf", theirs))
    assert spaced.tokenize("The city")[0].startswith("▁")


def test_what_is_no_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Broken, foreign and ambiguous files get one line that names them, and nothing else is said."""
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"))
    data = file.read_bytes()
    for name, content in (("empty", b""), ("text", b"hello, world" * 9), ("cut", data[: len(data) // 2])):
        broken = tmp_path / name / "toy.gguf"
        broken.parent.mkdir()
        broken.write_bytes(content)
        with refuses(ModelError, ValueError, str(broken)):
            fm.load(broken)
    fm.load(file)
    assert capfd.readouterr() == ("", "")
    (tmp_path / "other.gguf").write_bytes(data)
    with refuses(ModelNotFoundError, FileNotFoundError, "2 GGUF files", "other.gguf", "toy.gguf"):
        fm.load(tmp_path)
    for missing in (tmp_path / "nothing.gguf", "nothing.gguf"):
        with refuses(ModelNotFoundError, FileNotFoundError, f"no file {missing}"):
            fm.load(missing)


def test_a_file_in_parts(tmp_path: Path) -> None:
    """Its fields, which stand in the first part, ask for more weights than that holds; later parts have no fields."""
    for number in (1, 2):
        part = tmp_path / f"toy-{number:05}-of-00002.gguf"
        write_gguf(part, "llama", toy("llama"), add_key_value=("split.count", 2, gguf.GGUFValueType.UINT16))
    for source in (part, tmp_path):
        with refuses(UnsupportedModelError, ValueError, "one of the 2 parts", "llama-gguf-split --merge"):
            fm.load(source)


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


Fields = dict[str, Any]
READ_OTHERWISE: list[tuple[str, Fields, tuple[str, ...]]] = [
    ("starcoder2", {"add_rope_freq_base": 100_000.0}, ("rope.freq_base", "100000.0", "10000.0")),
    ("stablelm", {"add_rope_dimension_count": 8}, ("rope.dimension_count",)),
    ("qwen2", {"add_rope_dimension_count": 4}, ("rope.dimension_count = '4'", "8")),
    ("phi3", {"add_sliding_window": 4}, ("attention.sliding_window",)),
    ("nemotron", {"add_layer_norm_eps": 0.01}, ("attention.layer_norm_epsilon", "1e-05")),
    ("falcon", {"add_head_count_kv": 2}, ("attention.head_count_kv",)),
    ("gemma2", {"add_final_logit_softcapping": 5.0}, ("final_logit_softcapping", "30.0")),
    ("qwen3", {"add_key_length": 8}, ("attention.key_length",)),
    ("llama", {"add_logit_scale": 2.0}, ("llama.logit_scale", "does not read")),
    ("llama", {"add_rope_scaling_type": SimpleNamespace(value="yarn")}, ("rope.scaling.type",)),
    ("llama", {"add_name": "mistral"}, ("mistral",)),  # which transformers takes for an architecture
    ("qwen2", {"arch": "qwen2moe"}, ("qwen2moe", "llama, qwen2, qwen3")),
]


@pytest.mark.parametrize(("kind", "fields", "words"), READ_OTHERWISE, ids=str)
def test_what_transformers_reads_otherwise_is_refused(
    kind: str, fields: Fields, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Fields that transformers ignores, and names that were not tried: the same weights would be another model."""
    file = write_gguf(tmp_path / "toy.gguf", kind, toy(kind), **fields)
    with refuses(UnsupportedModelError, ValueError, *words):
        fm.load(file)


def test_fields_that_do_not_fit_the_tensors(tmp_path: Path) -> None:
    """A field that changes nothing is no reason to refuse; a layer more would be filled in at random; of
    Gemma's largest, which llama.cpp knows by its number of layers, the file does not say what divides the scores."""
    assert fm.load(write_gguf(tmp_path / "same.gguf", "qwen2", toy("qwen2"), add_rope_dimension_count=8)).n_layers == 2
    for blocks, says in ((3, ("weights", "fields")), (10**9, ("num_hidden_layers",))):
        with refuses(ModelError, ValueError, *says):
            fm.load(write_gguf(tmp_path / "more.gguf", "llama", toy("llama"), add_block_count=blocks))
    large = build("Gemma2", **SIZES | SOFT | {"tie_word_embeddings": True, "num_hidden_layers": 46})
    with refuses(UnsupportedModelError, ValueError, "root of 8", "256"):
        fm.load(write_gguf(tmp_path / "more.gguf", "gemma2", large))
