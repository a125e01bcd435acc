"""``load``: a name, a folder, a Hugging Face model or a TransformerBridge becomes a Model."""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..arguments import public
from ..errors import FileError, InputError, ModelError, ModelNotFoundError, UnsupportedModelError, check_choice, quoted
from ..files import user_folder
from ..resources import EMBEDDED, embedded_folder
from .bare_body import bound_masks
from .checking import check_undescribed
from .layout import check_weights
from .model import Model
from .norms import widen

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@public
def load(
    source: Any,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    prepend_bos: bool | None = None,
) -> Model:
    """Load a model and hook-ready views of its FFNs.

    Args:
        source: ``"atlas"`` (embedded, offline); a local folder in Hugging Face layout; a Hugging Face id such as
            ``"gpt2"`` (asks the hub unless cached); a loaded Hugging Face model, which is copied and stays as it is;
            or a ``TransformerBridge``, which is borrowed with its hooks, weights, tokenizer, device and dtype.
        tokenizer: needed with a loaded Hugging Face model whose folder or id is not known; else the model's own.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` …; by default CUDA for a model of over 50 million parameters if
            present, else the CPU. ``"mps"`` is refused: it has no float64, in which the sums are taken.
        dtype: ``"float32"`` (default), ``"float64"``, ``"bfloat16"``, ``"float16"``.
        prepend_bos: put the beginning-of-sequence token before every text; default: the model's own convention.

    Raises:
        ModelNotFoundError: no such name, folder or hub id.
        UnsupportedModelError: not a decoder, no FFN, a mixture of experts, or a layout that cannot be read.
        ModelError: broken files or weights with NaN.
        InputError: no tokenizer, no such device or dtype, or one of these given for a bridge, which has its own.
    """
    torch_dtype = check_dtype("float32" if dtype is None else dtype)
    if is_bridge(source):
        given = [n for n, v in (("tokenizer", tokenizer), ("device", device), ("dtype", dtype)) if v is not None]
        if given:
            raise InputError(
                f"a TransformerBridge keeps its own {' and '.join(given)}: leave {'= and '.join(given)}= out"
            )
        name = str(getattr(source.cfg, "model_name", "bridge"))
        if source.original_model.training:
            raise InputError(
                f"{name} is in training mode, so its dropout would change every number: call .eval() first"
            )
        check_weights(source.original_model, name)
        return checked(Model(source, name=name, prepend_bos=prepend_bos))
    if isinstance(source, torch.nn.Module):
        config: Any = getattr(source, "config", None)
        if config is None:
            raise UnsupportedModelError(f"{type(source).__name__} is no Hugging Face model: it has no config")
        origin = str(getattr(config, "_name_or_path", ""))
        name = origin or type(source).__name__
        tokenizer = tokenizer if tokenizer is not None else tokenizer_of(origin, name)
        hf_model = copy.deepcopy(source).to(torch_dtype)
    elif isinstance(source, str | Path):
        name = str(source)
        hf_model, tokenizer = read_checkpoint(source, torch_dtype, tokenizer)
    else:
        raise InputError(
            f"cannot load a {type(source).__name__}: give a name, a folder, a Hugging Face model or a TransformerBridge"
        )
    hf_model = hf_model.to(choose_device(device, hf_model)).eval()
    check_weights(hf_model, name)
    if torch_dtype == torch.float64:
        widen(hf_model)
    model = Model(boot(hf_model, tokenizer, name, torch_dtype), name=name, prepend_bos=prepend_bos)
    if torch_dtype == torch.float64:
        for block in model.layout.blocks:
            bound_masks(model, block.attention)
    if torch_dtype in (torch.bfloat16, torch.float16):
        check_runs(model)
    return checked(model)


def check_runs(model: Model) -> None:
    """Raise UnsupportedModelError where a model does not run in half precision, as OLMo under TransformerLens."""
    try:
        model.body(torch.zeros(1, 2, dtype=torch.long, device=model.device))
    except RuntimeError as error:
        dtype = str(model.dtype).removeprefix("torch.")
        raise UnsupportedModelError(
            f"{model.name} ({model.architecture}) does not run in {dtype} under TransformerLens ({first_line(error)}): "
            "load it in float32"
        ) from None


def checked(model: Model) -> Model:
    """The model, tried if its architecture has no description."""
    if not model.layout.described:
        check_undescribed(model)
    return model


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
        except (RuntimeError, AssertionError, TypeError) as error:
            raise InputError(
                f"device {quoted(str(device))} is not available here: {str(error).splitlines()[0]}"
            ) from None
        if chosen.type in ("mps", "meta"):
            lacks = "float64, in which the sums are taken" if chosen.type == "mps" else "numbers"
            raise InputError(f"device {quoted(str(device))} has no {lacks}: use 'cpu' or 'cuda'")
        return chosen
    large = sum(p.numel() for p in model.parameters()) > 50_000_000
    if large and torch.cuda.is_available():
        return torch.device("cuda")
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


def read_checkpoint(source: str | Path, dtype: torch.dtype, tokenizer: Any) -> tuple[Any, Any]:
    """A Hugging Face model from the embedded folder, a local folder or the hub; its tokenizer too, unless given."""
    import transformers
    from safetensors import SafetensorError

    name, path, local = locate(source)
    local = local or is_cached(path) or ask_hub(name)
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=local, trust_remote_code=False)
            if getattr(config, "is_encoder_decoder", False):
                raise UnsupportedModelError(f"{name} is an encoder-decoder model; ffnmem reads decoder-only models")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                local_files_only=local,
                use_safetensors=True,
                trust_remote_code=False,
            )
        except UnsupportedModelError:
            raise
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise explain(error, name, local) from None
    return model, load_tokenizer(source) if tokenizer is None else tokenizer


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer alone of what ``load`` takes as a name, for work that needs no weights.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. InputError: there, but without a tokenizer.
    """
    import transformers

    name, path, local = locate(source)
    local = local or is_cached(path) or ask_hub(name)
    with quiet():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=local, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            reason = "no tokenizer.json there" if "backend tokenizer" in str(error) else first_line(error)
            raise InputError(f"{name} has no tokenizer that can be read: {reason}") from None
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InputError(f"{name} has no tokenizer")
    return tokenizer


def locate(source: str | Path) -> tuple[str, str, bool]:
    """The name to show, what to hand to Hugging Face, and whether it lies on this disk."""
    name = str(source)
    if not name.strip():
        raise ModelNotFoundError(f"no model folder at {quoted(name)}")
    if name in EMBEDDED:
        return name, str(embedded_folder(name)), True
    path = model_path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{name} is a folder without config.json, so it holds no Hugging Face model")
        if not any(path.glob("*.safetensors")) and any(path.glob("*.bin")):
            raise ModelError(
                f"{name} has only pickled weights (.bin), which are never opened: save them as safetensors"
            )
        return name, str(path), True
    if path.is_file():
        raise ModelNotFoundError(f"{name} is a file; give the folder that holds config.json and the weights")
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelNotFoundError(f"no model folder at {quoted(name)}")
    return name, name, False


def model_path(source: str | Path) -> Path:
    """A source as a path, whether anything is there or not; raises ModelNotFoundError where nothing can be."""
    try:
        return user_folder(source)
    except FileError as error:
        raise ModelNotFoundError(str(error)) from None


def is_cached(name: str) -> bool:
    """Whether a hub model's files are on this disk already, so that no network is needed."""
    import huggingface_hub

    try:
        found = {
            file: isinstance(huggingface_hub.try_to_load_from_cache(name, file), str)
            for file in ("config.json", "model.safetensors", "model.safetensors.index.json")
        }
    except ValueError:  # no valid id
        return False
    return found["config.json"] and (found["model.safetensors"] or found["model.safetensors.index.json"])


def ask_hub(name: str) -> bool:
    """One short question to the hub, so that a wrong name or a missing network fails at once. Always returns False.

    Raises ModelNotFoundError.
    """
    import huggingface_hub

    session = huggingface_hub.get_session()
    library = sys.modules[type(session).__module__.partition(".")[0]]  # the hub's HTTP library of the day
    try:
        huggingface_hub.HfApi().model_info(name, timeout=15)
    except huggingface_hub.errors.HfHubHTTPError as error:
        reason = "has no such model" if error.response.status_code in (401, 404) else f"refused: {first_line(error)}"
    except (library.HTTPError, OSError) as error:
        reason = f"cannot be reached: {first_line(error)}"
    except ValueError as error:
        reason = f"takes no such id: {first_line(error)}"
    else:
        return False
    embedded = ", ".join(EMBEDDED)
    raise ModelNotFoundError(
        f"no model {quoted(name)}: not embedded ({embedded}), no folder here, and the Hugging Face hub {reason}"
    )


def first_line(error: Exception) -> str:
    return next((line.strip()[:160] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def explain(error: Exception, name: str, local: bool) -> ModelError:
    """One line for what Hugging Face says in many."""
    where = "" if local else " from the Hugging Face hub"
    if "ignore_mismatched_sizes" in str(error):
        return ModelError(
            f"{name} could not be read{where}: its weights have other shapes than the sizes in its config.json say"
        )
    return ModelError(f"{name} could not be read{where}: {first_line(error)}")


def tokenizer_of(origin: str, name: str) -> Any:
    """The tokenizer of the folder or hub id that a loaded model says it came from."""
    import transformers

    if not origin:
        raise InputError(f"pass tokenizer=…: this {name} does not say which folder or id it came from")
    with quiet():
        try:
            local = Path(origin).is_dir() or is_cached(origin) or ask_hub(origin)
            return transformers.AutoTokenizer.from_pretrained(origin, local_files_only=local, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"pass tokenizer=…: none was found for {quoted(name)} ({type(error).__name__})") from None


def boot(hf_model: Any, tokenizer: Any, name: str, dtype: torch.dtype) -> Any:
    """The bridge around a model that is ours; the tokenizer stays as it is."""
    from transformer_lens.model_bridge import TransformerBridge

    with quiet(), tempfile.TemporaryDirectory() as folder:
        # TransformerLens reads the tokenizer again from where it came from, which an in-memory one does not have.
        tokenizer = copy.deepcopy(tokenizer)
        if not getattr(hf_model.config, "architectures", None):
            hf_model.config.architectures = [type(hf_model).__name__]  # which TransformerLens goes by
        if not Path(tokenizer.init_kwargs.get("name_or_path") or "no folder").is_dir():
            tokenizer.save_pretrained(folder)
            tokenizer.init_kwargs["name_or_path"] = folder
        try:
            return TransformerBridge.boot_transformers(name, hf_model=hf_model, tokenizer=tokenizer, dtype=dtype)
        except (ValueError, KeyError, AttributeError, RuntimeError, AssertionError) as error:
            reason = first_line(error).partition(" Available")[0]  # what follows lists a hundred names
            raise UnsupportedModelError(
                f"{name} ({type(hf_model).__name__}) is no language model that TransformerLens boots: {reason}"
            ) from None
