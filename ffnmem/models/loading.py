"""``load``: a name, a folder, a Hugging Face model or a TransformerBridge becomes a Model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from ..arguments import public
from ..errors import InputError, ModelError, UnsupportedModelError, check_choice, quoted
from ..foreign import foreign
from .architectures import DESCRIBED
from .bridging import boot, is_bridge
from .checking import check_undescribed
from .checkpoints import ATTENTION, read_checkpoint
from .configs import unusual_fields
from .layout import bound_masks, check_weights
from .model import Model
from .norms import widen
from .tokenizers import check_ids, load_tokenizer, own_copy, tokenizer_of

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
        ModelError: files that are broken, tensors that are not those that ``config.json`` asks for, or weights or
            logits with NaN.
        InputError: no tokenizer or one with ids beyond the embedding's rows, no such device or dtype, or one of these
            given for a bridge, which has its own.
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
        return checked(Model(source.original_model, source.tokenizer, name, prepend_bos, bridge=source))
    hf_model: Any
    if isinstance(source, torch.nn.Module):
        config: Any = getattr(source, "config", None)
        if config is None:
            raise UnsupportedModelError(f"{type(source).__name__} is no Hugging Face model: it has no config")
        origin = str(getattr(config, "_name_or_path", ""))
        name = origin or type(source).__name__
        tokenizer = tokenizer if tokenizer is not None else tokenizer_of(origin, name)
        hf_model = copy.deepcopy(source).to(torch_dtype)
        # In the config, which their attention asks at every call: set_attn_implementation refuses some (Falcon).
        hf_model.config._attn_implementation = ATTENTION
    elif isinstance(source, str | Path):
        name = str(source)
        hf_model = read_checkpoint(source, torch_dtype)
        tokenizer = tokenizer if tokenizer is not None else load_tokenizer(source)
    else:
        raise InputError(
            f"cannot load a {type(source).__name__}: give a name, a folder, a Hugging Face model or a TransformerBridge"
        )
    check_ids(tokenizer, name, rows_of(hf_model, name))
    hf_model = hf_model.to(choose_device(device, hf_model)).eval()
    check_weights(hf_model, name)
    if torch_dtype == torch.float64:
        widen(hf_model)
    if type(hf_model).__name__ in DESCRIBED:
        model = Model(hf_model, own_copy(tokenizer, name), name, prepend_bos)
    else:  # which has parts that only TransformerLens has names for
        bridge = boot(hf_model, tokenizer, name, torch_dtype)
        model = Model(bridge.original_model, bridge.tokenizer, name, prepend_bos, bridge)
    if torch_dtype == torch.float64:
        for block in model.layout.blocks:
            bound_masks(block.attention, model.layout.architecture.mask_leaves_out)
    check_runs(model)
    return checked(model)


def check_runs(model: Model) -> None:
    """Raise UnsupportedModelError where a model does not run, ModelError where what it gives is no number.

    In half precision, or by a number of its config that no tensor's shape depends on.
    """
    who, config = f"{model.name} ({model.architecture})", model.hf_model.config
    dtype = str(model.dtype).removeprefix("torch.")
    half = model.dtype in (torch.bfloat16, torch.float16)

    def advice() -> str:
        return ": load it in float32" if half else unusual_fields(config.to_dict())

    positions = model.numbers.n_ctx
    if not isinstance(positions, int) or positions < 1:
        raise ModelError(f"{who} reads {quoted(positions)} positions, says its config{advice()}")
    tokens = torch.zeros(1, min(2, positions), dtype=torch.long, device=model.device)
    what = f"{who} does not run in {dtype}"
    with torch.no_grad(), foreign(UnsupportedModelError, what, advice):
        final = model.layout.body(input_ids=tokens, use_cache=False).last_hidden_state
    if not bool(model.logits_of(final).isfinite().all()):
        raise ModelError(f"{who} gives no numbers (NaN or infinity) for a token in {dtype}{advice()}")


def rows_of(hf_model: Any, name: str) -> int:
    """The rows of a model's embedding; raises UnsupportedModelError where it has none."""
    with foreign(UnsupportedModelError, f"{name} ({type(hf_model).__name__}) has no embedding that can be found"):
        return int(hf_model.get_input_embeddings().weight.shape[0])


def checked(model: Model) -> Model:
    """The model, tried if its architecture has no description."""
    if not model.layout.described:
        check_undescribed(model)
    return model


def check_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    return DTYPES[check_choice("dtype", dtype, DTYPES)]


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
