"""What a model says of itself in its config: read without its weights, for questions that need none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError, UnsupportedModelError, quoted
from ..resources import EMBEDDED
from .architectures import DESCRIBED, Architecture
from .loading import ask_hub, explain, locate, model_path, quiet


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
    from huggingface_hub.errors import StrictDataclassError

    if hasattr(source, "model_type") and hasattr(source, "to_dict"):
        return str(getattr(source, "_name_or_path", "") or source.model_type), source
    if not isinstance(source, str | Path | Mapping):
        raise InputError(f"{type(source).__name__} names no model: give a Model, a name, a folder or a config")
    if isinstance(source, Mapping) and not isinstance(source.get("model_type"), str):
        raise ModelError(f"the config names no model_type ({quoted(source.get('model_type'))})")
    name, path, local = ("", "", True) if isinstance(source, Mapping) else place_of(source)
    with quiet():
        try:
            if isinstance(source, Mapping):
                name = str(source.get("model_type"))
                config = transformers.AutoConfig.for_model(**source)
            else:
                config = transformers.AutoConfig.from_pretrained(path, local_files_only=local, trust_remote_code=False)
        except StrictDataclassError as error:  # says in several lines which field is wrong
            raise ModelError(f"the config of {name} cannot be read: {' '.join(str(error).split())[:200]}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise explain(error, name, local) from None
    return name, config


def place_of(source: str | Path) -> tuple[str, str, bool]:
    """As :func:`locate`, for a config alone: whatever weights lie beside it, even pickled ones, stay closed."""
    path = model_path(source)
    if str(source) not in EMBEDDED and (path / "config.json").is_file():
        return str(source), str(path), True
    name, where, local = locate(source)
    return name, where, local or config_is_cached(where) or ask_hub(name)


def config_is_cached(name: str) -> bool:
    """Whether a hub model's config is on this disk already, so that no network is needed."""
    import huggingface_hub

    try:
        return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no valid id
        return False


def class_name(config: Any) -> str:
    """The Hugging Face class of decoders with this config; empty if there is none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    return str(CLASSES.get(config.model_type, ""))


def described(config: Any) -> Architecture | None:
    """The description of the architecture that a config is of, or None."""
    return DESCRIBED.get(class_name(config))


def stated_activation(config: Any, found: Architecture) -> str:
    """The activation as the config states it; raises UnsupportedModelError if it does not."""
    if found.activation.startswith("= "):
        return found.activation.removeprefix("= ")
    stated = getattr(config, found.activation, None)
    if not isinstance(stated, str):
        raise UnsupportedModelError(f"the config of this {config.model_type} has no {found.activation}")
    return stated
