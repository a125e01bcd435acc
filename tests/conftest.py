"""Before anything imports ffnmem: nothing asks a network or opens a window, and types are checked where asked for."""

# ruff: noqa: E402 (the order of the imports is what this module is for)
from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

CHECKS_TYPES = bool(os.environ.get("FFNMEM_CHECK_TYPES"))
"""Whether every annotation of the package is checked at run time, shapes included (``make test-all``): that doubles
what the suite takes. pytest's own ``--jaxtyping-packages`` does not reach the workers of pytest-xdist."""

if CHECKS_TYPES:
    from jaxtyping import install_import_hook

    # An int may stand for a float, as it may for mypy.
    install_import_hook("ffnmem", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import ffnmem as fm
from ffnmem.core.resources import CACHE, cache_folder
from ffnmem.models.norms import widen
from ffnmem.scanning import Store, scan

from .examples import Examples
from .helpers import ARCHITECTURES, REPOSITORY, Pair, build_gpt2, build_tokenizer
from .neurons.gated import GATED, made, scanned, turn
from .planted_models import Planted, plant_meanings
from .scanning.texts import tiny_texts

collect_ignore = ["hostile"] if CHECKS_TYPES else []  # which meets the package as users do
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("suite")


BEGAN = time.monotonic()
SECONDS = float(os.environ.get("FFNMEM_TEST_SECONDS", "inf"))
"""Tests that have not begun after so many are skipped: of a run that has a limit, on a machine of any speed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What forks comes first: in a fork of a process whose libraries have begun threads, these may wait forever."""
    items.sort(key=lambda item: "test_kills" not in item.nodeid)


def pytest_runtest_setup() -> None:
    if time.monotonic() - BEGAN > SECONDS:
        pytest.skip(f"not begun within {SECONDS:.0f} s")


@pytest.fixture(autouse=True)
def no_figure_left() -> Iterator[None]:
    """A figure that a test leaves open would count for matplotlib's warning in another."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What was chosen, made or kept on this machine is not seen: of the user's cache folder, the models alone."""
    models, own = cache_folder("models"), tmp_path_factory.mktemp("cache")
    if models.is_dir():
        (own / "models").symlink_to(models, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(own))
        yield own


@pytest.fixture(autouse=True)
def nothing_kept(own_cache: Path) -> Iterator[None]:
    """A lens or a layer that one test keeps would be found by the next."""
    yield
    for room in ("lenses", "layers"):
        shutil.rmtree(own_cache / room, ignore_errors=True)


@pytest.fixture(scope="session")
def atlas() -> fm.Model:
    """The embedded model."""
    return fm.load("atlas")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_hf() -> Any:
    """A random two-layer GPT-2 as Hugging Face has it. Shared: do not change it."""
    return build_gpt2()


@pytest.fixture(scope="session")
def tiny(tiny_hf: Any, tokenizer: Any) -> fm.Model:
    """The same as a Model. Shared: a test that changes weights takes ``make_tiny``."""
    return fm.load(tiny_hf, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def tiny64(tiny_hf: Any, tokenizer: Any) -> fm.Model:
    """``tiny`` in float64, in which identities hold to rounding. Shared: do not change it."""
    return fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")


@pytest.fixture
def make_tiny(tiny_hf: Any, tokenizer: Any) -> Callable[..., fm.Model]:
    """A fresh ``tiny`` for a test that changes it."""
    return lambda **options: fm.load(tiny_hf, tokenizer=tokenizer, **options)


@pytest.fixture(scope="session")
def tiny_folder(tiny_hf: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny`` in the hub's own layout. Shared: copy it before breaking it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_store(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of ``tiny`` over some forty short sequences. Shared: copy its folder before breaking it."""
    return scan(tiny, tiny_texts(), tmp_path_factory.mktemp("stores") / "tiny", k=3, sample=8, draws=4, frequent=8)


@pytest.fixture(scope="session")
def examples(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """A result of every kind, made when it is asked for. Shared: do not change them."""
    folder = shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("examples") / "store")
    return Examples(tiny, fm.open_store(folder, model=tiny))


@pytest.fixture(scope="session")
def atlas_store(atlas: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of ``atlas`` over a few facts about cities. Shared: copy its folder before breaking it."""
    texts = [fact.text for fact in fm.load_facts("atlas")[:60]]
    return scan(atlas, texts, tmp_path_factory.mktemp("stores") / "atlas", k=3, sample=16, draws=8, frequent=8)


@pytest.fixture(scope="session")
def meanings() -> Planted:
    """A small model of monosemantic, polysemantic and dead neurons in two layers. Shared: do not change it."""
    return plant_meanings(3)


@pytest.fixture(scope="session")
def meanings_store(meanings: Planted, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of it over its own text. Shared: copy its folder before breaking it."""
    return scan(meanings.model, meanings.texts, tmp_path_factory.mktemp("stores") / "meanings")


# Llama is gemma2 without norms behind and caps, and biases are absent there too: test_architectures.py has all of them.
EVERYWHERE = [name for name in ARCHITECTURES if name not in ("opt without biases", "llama")]
FORMS = ("gpt2 untied", "gpt-neox parallel", "opt", "gemma2")  # those of `make test`; the others are one more of a form


@pytest.fixture(
    scope="session",
    params=[name if name in FORMS else pytest.param(name, marks=pytest.mark.exhaustive) for name in EVERYWHERE],
)
def pair(request: pytest.FixtureRequest, tokenizer: Any) -> Pair:
    """An architecture of each kind, at toy size with random weights, beside its Hugging Face original."""
    hf = ARCHITECTURES[request.param]()
    return Pair(request.param, hf, fm.load(hf, tokenizer=tokenizer))


@pytest.fixture(scope="session")
def architecture(pair: Pair) -> fm.Model:
    """The model alone."""
    return pair.model


@pytest.fixture(scope="session")
def pair64(pair: Pair, tokenizer: Any) -> Pair:
    """The same in float64."""
    model = fm.load(pair.hf, tokenizer=tokenizer, dtype="float64")
    hf = ARCHITECTURES[pair.name]().double()
    widen(hf)  # as load does, so that norms count in float64
    if pair.rounds_attention:
        hf.set_attn_implementation("eager")  # as the bridge sets it; it takes the softmax in float32
    return Pair(pair.name, hf, model)


@pytest.fixture(scope="session", params=GATED)
def gated_kind(request: pytest.FixtureRequest) -> str:
    """RMSNorm and gates, alone (llama) and with a norm behind the FFN and a soft cap (gemma2)."""
    return str(request.param)


@pytest.fixture(scope="session")
def gated(gated_kind: str, tokenizer: Any) -> fm.Model:
    """A random gated model. Shared: do not change it."""
    return made(gated_kind, tokenizer)


@pytest.fixture(scope="session")
def gated_store(gated: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of it. Shared: copy its folder before breaking it."""
    return scanned(gated, tmp_path_factory.mktemp("stores") / "gated")


@pytest.fixture(scope="session")
def turned(gated_kind: str, tokenizer: Any) -> fm.Model:
    """The same model with key and value of every second neuron turned round. Shared: do not change it."""
    return turn(made(gated_kind, tokenizer))


@pytest.fixture(scope="session")
def turned_store(turned: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished scan of it. Shared: copy its folder before breaking it."""
    return scanned(turned, tmp_path_factory.mktemp("stores") / "turned")


@pytest.fixture(scope="session")
def gpt2_tokenizer() -> Any:
    """GPT-2's real tokenizer, from beside the checkout."""
    import transformers

    folder = REPOSITORY.parent / "shared" / "data" / "gpt2-tokenizer"
    if not (folder / "vocab.json").is_file():
        pytest.skip("GPT-2's tokenizer is not beside this checkout (../shared/data/gpt2-tokenizer)")
    return transformers.AutoTokenizer.from_pretrained(folder)
