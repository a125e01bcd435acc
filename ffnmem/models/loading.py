"""``load``: a name, a folder, a Hugging Face model or a TransformerBridge becomes a Model."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError, ModelError, ModelNotFoundError, UnsupportedModelError, check_choice
from ..resources import EMBEDDED, embedded_folder
from .layout import check_weights
from .model import Model

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    source: Any,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "float32",
    prepend_bos: bool | None = None,
) -> Model:
    """Load a model and hook-ready views of its FFNs.

    Args:
        source: ``"atlas"`` (embedded, offline); a local folder in Hugging Face layout; a Hugging Face id such as
            ``"gpt2"`` (asks the hub unless cached); a loaded Hugging Face model, which is copied and stays as it is;
            or a ``TransformerBridge``, which is borrowed: same weights, same hooks.
        tokenizer: needed with a loaded Hugging Face model whose folder or id is not known; else the model's own.
        device: ``"cpu"``, ``"cuda"``, ``"mps"`` …; by default CUDA or MPS for a model of over 50 million parameters
            if present, else the CPU. A bridge keeps its own.
        dtype: ``"float32"`` (default), ``"float64"``, ``"bfloat16"``, ``"float16"``. A bridge keeps its own.
        prepend_bos: put the beginning-of-sequence token before every text; default: the model's own convention.

    Raises:
        ModelNotFoundError: no such name, folder or hub id.
        UnsupportedModelError: not a decoder, no FFN, gated (not yet), or a layout that cannot be read.
        ModelError: broken files or weights with NaN.
    """
    torch_dtype = check_dtype(dtype)
    if is_bridge(source):
        return Model(source, name=str(getattr(source.cfg, "model_name", "bridge")), prepend_bos=prepend_bos)
    if isinstance(source, torch.nn.Module):
        config: Any = getattr(source, "config", None)
        if config is None:
            raise UnsupportedModelError(f"{type(source).__name__} is no Hugging Face model: it has no config")
        name = str(getattr(config, "_name_or_path", "") or type(source).__name__)
        hf_model = copy.deepcopy(source).to(torch_dtype)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_of(name)
    elif isinstance(source, str | Path):
        name = str(source)
        hf_model, found = read_checkpoint(source, torch_dtype)
        tokenizer = tokenizer if tokenizer is not None else found
    else:
        raise InputError(
            f"cannot load a {type(source).__name__}: give a name, a folder, a Hugging Face model or a TransformerBridge"
        )
    hf_model = hf_model.to(choose_device(device, hf_model)).eval()
    check_weights(hf_model, name)
    return Model(boot(hf_model, tokenizer, name, torch_dtype), name=name, prepend_bos=prepend_bos)


def check_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    return DTYPES[check_choice("dtype", dtype, DTYPES)]


def is_bridge(source: Any) -> bool:
    return any(cls.__name__ == "TransformerBridge" for cls in type(source).__mro__)


def choose_device(device: str | torch.device | None, model: Any) -> torch.device:
    if device is not None:
        try:
            chosen = torch.device(device)
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {str(device)!r} is not available here: {str(error).splitlines()[0]}") from None
        return chosen
    large = sum(p.numel() for p in model.parameters()) > 50_000_000
    if large and torch.cuda.is_available():
        return torch.device("cuda")
    if large and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from the libraries below while a model loads; as it was afterwards."""
    import transformers

    library = transformers.logging
    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    root_level = logging.getLogger().level
    library.disable_progress_bar()
    library.set_verbosity_error()
    logging.getLogger().setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.set_verbosity(level)
        logging.getLogger().setLevel(root_level)
        if bars:
            library.enable_progress_bar()


def read_checkpoint(source: str | Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """A Hugging Face model and tokenizer from the embedded folder, a local folder or the hub."""
    import transformers

    name, path, local = locate(source)
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=local)
            if getattr(config, "is_encoder_decoder", False):
                raise UnsupportedModelError(f"{name} is an encoder-decoder model; ffnmem reads decoder-only models")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=dtype, local_files_only=local, use_safetensors=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=local)
        except UnsupportedModelError:
            raise
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise explain(error, name, local) from None
    return model, tokenizer


def locate(source: str | Path) -> tuple[str, str, bool]:
    """The name to show, what to hand to Hugging Face, and whether it lies on this disk."""
    name = str(source)
    if name in EMBEDDED:
        return name, str(embedded_folder(name)), True
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{name} is a folder without config.json, so it holds no Hugging Face model")
        return name, str(path), True
    if path.is_file():
        raise ModelNotFoundError(f"{name} is a file; give the folder that holds config.json and the weights")
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.strip():
        raise ModelNotFoundError(f"no model folder at {name!r}")
    return name, name, False


def explain(error: Exception, name: str, local: bool) -> ModelError:
    """One line for what Hugging Face says in many."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if local:
        return ModelError(f"{name} could not be read: {first}")
    return ModelNotFoundError(
        f"no model named {name!r}: it is not embedded ({', '.join(EMBEDDED)}), no folder here, "
        f"and the Hugging Face hub gave nothing ({first[:160]})"
    )


def tokenizer_of(name: str) -> Any:
    import transformers

    with quiet():
        try:
            return transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"pass tokenizer=…: none was found for {name!r} ({type(error).__name__})") from None


def boot(hf_model: Any, tokenizer: Any, name: str, dtype: torch.dtype) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    with quiet():
        try:
            return TransformerBridge.boot_transformers(name, hf_model=hf_model, tokenizer=tokenizer, dtype=dtype)
        except (ValueError, KeyError, AttributeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnsupportedModelError(
                f"{name} ({type(hf_model).__name__}) has no feed-forward layers that TransformerLens knows: {reason}"
            ) from None
