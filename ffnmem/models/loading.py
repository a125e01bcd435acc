"""``load``: a name, a folder, a Hugging Face model or a TransformerBridge becomes a Model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from torch import Tensor

from .._version import __version__
from ..core.errors import FfnmemError, InputError, ModelError, UnsupportedModelError, check_choice, listed, quoted, warn
from ..core.foreign import foreign
from ..core.types import checked
from .architectures import DESCRIBED
from .bridging import boot, is_bridge, pass_caches
from .checking import check_undescribed
from .configs import ask_hub, check_unquantised, is_cached, locate, open_config, quiet, read_json
from .gguf import GgufHeader, gguf_config, gguf_file, no_bar, open_gguf_tokenizer
from .hooks import keeper, listening, on_meta
from .layout import bound_masks, check_in_memory, check_plain, check_weights
from .model import Model
from .norms import widen

# Tokenizers: read from a folder or the hub, and refused where they name tokens that the model does not have.

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
LARGEST = 1 << 22
"""Ids from here on belong to no model: four million, where the largest vocabularies have a quarter of one. Libraries
below walk through all ids up to the last one."""
WITHOUT_ROWS = frozenset({"<image_soft_token>"})
"""Tokens of a tokenizer that a text model shares with a multimodal one, as Gemma 3's 262144, one beyond its rows."""


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer alone of what ``load`` takes as a name, for work that needs no weights.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. InputError: there, but without a tokenizer.
    """
    file = gguf_file(source)
    if file is not None:
        name, tokenizer = str(source), open_gguf_tokenizer(file, str(source))
    else:
        name, path, local = locate(source)
        tokenizer = open_tokenizer(name, path, local or is_cached(path) or ask_hub(name))
    check_ids(tokenizer, name)
    return tokenizer


def find_tokenizer(origin: str, name: str) -> Any:
    """The tokenizer of the folder or hub id that a loaded model says it came from."""
    if not origin:
        raise InputError(f"pass tokenizer=…: this {name} does not say which folder or id it came from")
    try:
        return open_tokenizer(origin, origin, Path(origin).is_dir() or is_cached(origin) or ask_hub(origin))
    except FfnmemError as error:
        raise InputError(f"pass tokenizer=…: none was found for {name!r} ({error})") from None


def open_tokenizer(name: str, path: str, local: bool) -> Any:
    """The tokenizer in a folder or of a hub id; raises InputError, naming the file where it can be told."""
    import transformers

    check_added_tokens(name, Path(path))
    with quiet(), foreign(InputError, f"{name} has no tokenizer that can be read", lambda: broken_file(Path(path))):
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=local, trust_remote_code=False)


def copy_tokenizer(tokenizer: Any, name: str) -> Any:
    """A copy of a tokenizer that pads with its end or its beginning where it names no pad; nothing else is added."""
    with foreign(InputError, f"the tokenizer of {name} cannot be copied"):
        found = copy.deepcopy(tokenizer)
    if found.pad_token is None:
        found.pad_token = found.eos_token if found.eos_token is not None else found.bos_token
    return found


def check_added_tokens(name: str, folder: Path) -> None:
    """Raise InputError for an id that is out of range: some classes make a token for every id below it."""
    for file, field in (("tokenizer_config.json", "added_tokens_decoder"), ("added_tokens.json", None)):
        with suppress(ModelError):  # not there, or broken, which is said when the library cannot read it either
            found = read_json(folder / file)
            ids = found.get(field) if field is not None else list(found.values())
            for i in ids if isinstance(ids, dict | list) else ():
                if str(i).isdecimal() and int(i) >= LARGEST:
                    raise InputError(f"{name}: {file} has a token with the id {quoted(i)}, which no model has")


def check_ids(tokenizer: Any, name: str, rows: int = LARGEST) -> None:
    """Raise InputError where a tokenizer has no tokens of its own, or ids beyond the rows of an embedding."""
    with foreign(InputError, f"{name} has no tokenizer that can be read"):
        vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    # Without its files, a tokenizer may come up with special tokens only instead of failing.
    if set(vocabulary) <= special:
        raise InputError(f"{name} has no tokenizer")
    last = max((token for token in vocabulary if token not in WITHOUT_ROWS), key=vocabulary.__getitem__)
    if vocabulary[last] >= rows:
        has = f"the embedding has {rows:,} rows" if rows < LARGEST else "no model has so many"
        raise InputError(f"the tokenizer of {name} has ids up to {vocabulary[last]:,} ({quoted(last)}), but {has}")


def broken_file(folder: Path) -> str:
    """Which of the JSON files of a tokenizer in a folder is none, for a message; empty if all are."""
    for file in FILES:
        if (folder / file).is_file():
            try:
                read_json(folder / file)
            except ModelError as error:
                return f" ({error})"
    return "" if (folder / "tokenizer.json").is_file() or not folder.is_dir() else " (there is no tokenizer.json)"


# A checkpoint becomes a Hugging Face model only if it is what its config says: nothing is filled in at random.

MASKS = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask|embed_positions)$|rotary_emb\.inv_freq$")
"""What older versions of Hugging Face saved beside the weights, and newer ones compute: masks and angles."""
GIB = 1 << 30
ATTENTION = "eager"
"""Hugging Face's attention that shows its pattern, and takes the same steps on every machine."""


def read_checkpoint(source: str | Path, dtype: torch.dtype) -> Any:
    """A Hugging Face model from the embedded folder, a local folder or the hub, all of its weights from there.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. UnsupportedModelError: an encoder-decoder, a PEFT adapter.
        ModelError: files that cannot be read, or tensors that are not those that the config asks for.
    """
    file = gguf_file(source)
    if file is not None:
        return read_gguf(file, str(source), dtype)
    name, path, local = locate(source)
    local = local or is_cached(path) or ask_hub(name)
    config = open_config(name, path, local)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name} is an encoder-decoder model; ffnmem reads decoder-only models")
    check_unquantised(config, name)
    # First on the device "meta", where no number is read and no memory taken, however large the sizes in the config.
    with on_meta():  # for tables that are computed, too
        empty, report = from_files(name, path, config, local, dtype, device_map="meta")
    check_plain(empty, name)
    check_report(report, name, type(empty).__name__)
    check_buffers(empty, name)
    check_stored_once(path, empty.base_model_prefix, name)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    model, report = from_files(name, path, config, local, dtype)
    check_report(report, name, type(model).__name__)  # whatever became of the files in between
    own, table = model.get_output_embeddings(), model.get_input_embeddings()
    if tied and own is not None and own.weight is not table.weight:  # which Hugging Face unties without a word
        warn(
            f"{name}: its config.json says that the unembedding is the token embedding (tie_word_embeddings), but its "
            "files hold another one, which is taken: set it to false if that is meant"
        )
    return model


def read_gguf(file: Path, name: str, dtype: torch.dtype) -> Any:
    """The Hugging Face model in a GGUF file, dequantised to float32 and then of ``dtype``; raises as read_checkpoint.

    Its config says in ``ffnmem`` how it was quantised, and so does whatever it is saved as.
    """
    import transformers

    header = GgufHeader(file, name)
    config = gguf_config(file, name, header)
    config.ffnmem = header.notes
    with quiet(), on_meta(), foreign(ModelError, name):
        empty = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)
    check_buffers(empty, name)
    expected = sum(p.numel() for p in empty.parameters())
    if expected != header.n_weights:
        raise ModelError(f"{name} holds {header.n_weights:,} weights, but its fields ask for {expected:,}")
    with no_bar():
        model, report = from_files(name, str(file.parent), config, True, torch.float32, gguf_file=file.name)
    check_report(report, name, type(empty).__name__)
    # Its weights are whole numbers no more; transformers refuses to save a model that calls itself quantised.
    model.hf_quantizer = None
    del model.config.quantization_config
    return model.to(dtype)


def from_files(
    name: str, path: str, config: Any, local: bool, dtype: torch.dtype, **options: Any
) -> tuple[Any, Mapping[str, Any]]:
    """The model as Hugging Face loads it, and its report of what was missing, unexpected or of another shape."""
    import transformers

    where = "" if local else " from the Hugging Face hub"
    with quiet(), foreign(ModelError, f"{name} could not be read{where}"):
        return transformers.AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=local,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=ATTENTION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are in the report, and refused by us
            **options,
        )


def check_stored_once(path: str, prefix: str, name: str) -> None:
    """Raise ModelError where a weight is stored twice, in two shards or with and without the prefix of the base model:
    Hugging Face takes one of them without a word."""
    from safetensors import safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    seen: dict[str, str] = {}
    with quiet(), foreign(ModelError, f"{name} could not be read"):
        # What is on the hub was fetched when it was loaded; what it converted for us lies in another branch.
        here: dict[str, Any] = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
        files = [cached_file(path, SAFE_WEIGHTS_NAME, **here)]
        if files == [None]:
            index = cached_file(path, SAFE_WEIGHTS_INDEX_NAME, **here)
            files = [] if index is None else get_checkpoint_shard_files(path, index, local_files_only=True)[0]
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    weight = key.removeprefix(f"{prefix}.")
                    if weight in seen and not MASKS.search(key):
                        raise ModelError(
                            f"{name}: its files hold the same weight twice, as {seen[weight]} and as {key}"
                        )
                    seen[weight] = key


def check_report(report: Mapping[str, Any], name: str, kind: str) -> None:
    """Raise ModelError, with the first few names and how many, unless the tensors are those of the config."""
    unexpected = sorted(key for key in report["unexpected_keys"] if not MASKS.search(key))
    mismatched = [f"{key} {list(there)} instead of {list(ours)}" for key, there, ours in report["mismatched_keys"]]
    wrong = [
        f"{what} {listed(sorted(tensors), 3)}"
        for what, tensors in (
            ("missing", report["missing_keys"]),
            ("unexpected", unexpected),
            ("of another shape", mismatched),
            ("unreadable", report["error_msgs"]),
        )
        if tensors
    ]
    if wrong:
        if kind not in DESCRIBED:  # such as an encoder, which Hugging Face reads as a decoder without a head
            wrong.append(f"{kind} is no decoder-only language model that ffnmem describes")
        raise ModelError(f"{name}: its tensors are not those that its config.json asks for: {'; '.join(wrong)}")


def check_buffers(empty: torch.nn.Module, name: str) -> None:
    """Raise ModelError where tables that are computed, not stored, would take more memory than all of the weights."""
    weights = sum(p.numel() * p.element_size() for p in empty.parameters())
    sizes = {path: buffer.numel() * buffer.element_size() for path, buffer in empty.named_buffers()}
    if sum(sizes.values()) > max(GIB, weights):
        path, total = max(sizes, key=sizes.__getitem__), sum(sizes.values())
        raise ModelError(
            f"{name}: its config.json asks for tables of {total / GIB:,.0f} GiB beside {weights / GIB:,.1f} of weights "
            f"({path}): its number of positions is out of range"
        )


@cache
def warn_of_untested_versions() -> None:
    """Warn once, in one line, of installed libraries outside the ranges that ffnmem's own metadata gives.

    No refusal: most new versions work, and :func:`load` tries what it can; but one that renames an argument can also
    change numbers in silence. pip keeps to the ranges only until something else is upgraded.
    """
    found = []
    with suppress(PackageNotFoundError):  # ffnmem on a path, not installed, says nothing of ranges
        for needed in map(Requirement, requires("ffnmem") or ()):
            if needed.marker is None and not needed.specifier.contains(version(needed.name), prereleases=True):
                found.append(f"{needed.name} {version(needed.name)} (tested: {needed.specifier})")
    if found:
        warn(f"not tested with ffnmem {__version__}: {', '.join(found)}; results may be wrong")


ModelSource = Model | str | Path
"""A model, or what :func:`load` takes."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@checked
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
        source: ``"atlas"`` (embedded, offline); ``"smollm2"`` (once ``ffnmem get smollm2`` has got it); a local folder
            in Hugging Face layout; a GGUF file, or a folder with one; a Hugging Face id such as ``"gpt2"`` (asks the
            hub unless cached); a loaded Hugging Face model, which is copied and stays as it is; or a
            ``TransformerBridge``, which is borrowed with its hooks, weights, tokenizer, device and dtype.
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
    warn_of_untested_versions()
    wanted = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    torch_dtype = DTYPES[check_choice("dtype", wanted, DTYPES)]
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
        check_in_memory(source.original_model, name)
        check_plain(source.original_model, name)
        check_weights(source.original_model, name)
        model = Model(source.original_model, source.tokenizer, name, prepend_bos, bridge=pass_caches(source))
        if not model.layout.described:
            check_undescribed(model)
        return model
    hf_model: Any
    if isinstance(source, torch.nn.Module):
        source = getattr(source, "_orig_mod", source)  # of one that torch.compile wrapped
        config: Any = getattr(source, "config", None)
        if config is None:
            raise UnsupportedModelError(f"{type(source).__name__} is no Hugging Face model: it has no config")
        origin = str(getattr(config, "_name_or_path", ""))
        name = origin or type(source).__name__
        check_in_memory(source, name)
        check_plain(source, name)
        tokenizer = tokenizer if tokenizer is not None else find_tokenizer(origin, name)
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
    with foreign(UnsupportedModelError, f"{name} ({type(hf_model).__name__}) has no embedding that can be found"):
        rows = int(hf_model.get_input_embeddings().weight.shape[0])
    check_ids(tokenizer, name, rows)
    hf_model = hf_model.to(choose_device(device, hf_model)).eval()
    check_weights(hf_model, name)
    if torch_dtype == torch.float64:
        widen(hf_model)
    if type(hf_model).__name__ in DESCRIBED:
        model = Model(hf_model, copy_tokenizer(tokenizer, name), name, prepend_bos)
    else:  # which has parts that only TransformerLens has names for
        bridge = boot(hf_model, tokenizer, name, torch_dtype)
        model = Model(bridge.original_model, copy_tokenizer(tokenizer, name), name, prepend_bos, bridge)
    if torch_dtype == torch.float64:
        for block in model.layout.blocks:
            bound_masks(block.attention, model.layout.architecture.mask_leaves_out)
    check_runs(model)
    if not model.layout.described:
        check_undescribed(model)
    return model


TRIED = "The capital of France is Paris, and 2 + 2 = 4."
"""A text of ordinary tokens: a model may have a row of zeros for its first one, a pad."""


def check_runs(model: Model) -> None:
    """Raise UnsupportedModelError where a model does not run, ModelError where what it gives is no number.

    In half precision, or by a number of its config that no tensor's shape depends on.
    """
    who, dtype = f"{model.name} ({model.architecture})", str(model.dtype).removeprefix("torch.")
    positions = model.numbers.n_ctx
    if not isinstance(positions, int) or positions < 1:
        raise ModelError(f"{who} reads {quoted(positions)} positions, says its config")
    ids = model.ids_of(TRIED)
    ids = (model.begun(ids) if model.prepend_bos else ids)[:positions] or [0]
    tokens, wrote = torch.tensor([ids], device=model.device), dict[int, Tensor]()
    written = [(block.project_out, keeper(wrote, layer)) for layer, block in enumerate(model.layout.blocks)]
    ran = foreign(UnsupportedModelError, f"{who} does not run in {dtype}", lambda: model.advice)
    with torch.no_grad(), ran, listening(outputs=written):
        final = model.layout.body(input_ids=tokens, use_cache=False).last_hidden_state
    model.check_finite(model.logits_of(final), wrote)


def choose_device(device: str | torch.device | None, model: Any) -> torch.device:
    if device is not None:
        try:
            chosen = torch.device(device)
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError, TypeError) as error:
            name = str(device)
            known = name.partition(":")[0] in ("cpu", "cuda", "mps", "meta")
            why = f"not available here: {str(error).splitlines()[0]}" if known else "unknown: cpu or cuda"
            raise InputError(f"device {quoted(name)} is {why}") from None
        if chosen.type in ("mps", "meta"):
            lacks = "float64, in which the sums are taken" if chosen.type == "mps" else "numbers"
            raise InputError(f"device {quoted(str(device))} has no {lacks}: use 'cpu' or 'cuda'")
        return chosen
    large = sum(p.numel() for p in model.parameters()) > 50_000_000
    if large and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")
