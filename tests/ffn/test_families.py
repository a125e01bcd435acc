"""The table of families and the one way to read a config."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ffnmem.ffn.shapes import FAMILIES, ConfigReader, falcon_kv_heads, falcon_norms


def test_the_families_that_are_promised() -> None:
    """A family would have fallen out of the table, or could be put in by a reader."""
    promised = "gpt2 gpt_neo gptj gpt_neox opt phi bloom falcon llama mistral qwen2 qwen3 gemma gemma2 gemma3_text"
    assert list(FAMILIES) == [*promised.split(), "stablelm", "olmo", "olmo2", "phi3"]
    with pytest.raises(TypeError):
        FAMILIES["bert"] = FAMILIES["gpt2"]  # type: ignore[index]


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_the_first_name_that_is_there_counts(kind: type) -> None:
    """A config with an old and a new key would be read by the wrong one, or None be taken for a missing key."""
    read = ConfigReader(kind(a=1, b=2, nothing=None))
    assert read("x", "b", "a", default=7) == 2
    assert read("nothing", default=7) is None
    assert read("x", default=7) == 7
    assert read.flag("a", False) is True
    assert read.flag("x", False) is False


@pytest.mark.parametrize(
    ("config", "kv_heads", "norms"),
    [
        ({}, 1, 1),  # Falcon 7B
        ({"multi_query": False, "num_kv_heads": 4}, 4, 1),
        ({"parallel_attn": False}, 1, 2),  # Falcon RW
        ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8, 2),  # Falcon 40B
        ({"new_decoder_architecture": True, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1}, 8, 1),  # Falcon2 11B
    ],
)
def test_falcons_differ(config: dict[str, object], kv_heads: int, norms: int) -> None:
    """One Falcon would be read as another."""
    assert falcon_kv_heads(ConfigReader(config)) == kv_heads
    assert falcon_norms(ConfigReader(config)) == norms
