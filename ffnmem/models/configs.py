"""What a model says of itself in its config: read without its weights, for questions that need none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError, UnsupportedModelError, listed, quoted
from ..foreign import foreign, reason_of
from ..resources import EMBEDDED
from .architectures import DESCRIBED, Architecture
from .sources import ask_hub, locate, model_path, quiet

CONFIG = "config.json"
LIMITS = (
    (re.compile(r"(layers?|labels|heads?|attention_types)$"), 10_000),
    (re.compile(r"(positions|position_embeddings|seq_len|seq_length|n_ctx)$"), 1 << 24),
)
"""Fields by which Hugging Face makes objects or tables, however many they ask for, and what no model goes beyond."""
UNUSUAL = 10_000  # times the usual value


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
    if hasattr(source, "model_type") and hasattr(source, "to_dict"):
        return str(getattr(source, "_name_or_path", "") or source.model_type), source
    if isinstance(source, Mapping):
        if not isinstance(source.get("model_type"), str):
            raise ModelError(f"the config names no model_type ({quoted(source.get('model_type'))})")
        return str(source["model_type"]), config_of_dict(source)
    if not isinstance(source, str | Path):
        raise InputError(f"{type(source).__name__} names no model: give a Model, a name, a folder or a config")
    name, path, local = place_of(source)
    return name, open_config(name, path, local)


def open_config(name: str, path: str, local: bool) -> Any:
    """The Hugging Face config of a folder or hub id: what is in the file is looked at before anything is made of it.

    Raises ModelError, naming the file and, where it can be told, the field.
    """
    import transformers

    def unusual() -> str:
        return unusual_fields(read_json(file))

    with quiet(), foreign(ModelError, f"{name}: no config.json that can be read"):
        file = Path(transformers.utils.cached_file(path, CONFIG, local_files_only=local))
    check_counts(read_json(file), f"{name}: {CONFIG}")
    with quiet(), foreign(ModelError, f"{name}: {CONFIG} cannot be read", unusual):
        return transformers.AutoConfig.from_pretrained(path, local_files_only=local, trust_remote_code=False)


def config_of_dict(fields: Mapping[str, Any]) -> Any:
    """The Hugging Face config of a dict as in ``config.json``; raises ModelError."""
    import transformers

    name = f"the config of {quoted(fields['model_type'])}"
    check_counts(fields, name)
    with quiet(), foreign(ModelError, f"{name} cannot be read", lambda: unusual_fields(fields)):
        return transformers.AutoConfig.for_model(**fields)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; raises ModelError, naming the file, where there is none."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is no JSON that can be read: {reason_of(error)}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds {quoted(found)}, not a JSON object")
    return found


def check_counts(fields: Mapping[str, Any], where: str) -> None:
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


def unusual_fields(fields: Mapping[str, Any]) -> str:
    """The fields that are of another kind than in a config that nobody touched, or 0 or less where that one's is more.

    They may be right; a message about a config that failed names them as the likely reason.
    """
    import transformers

    kind = fields.get("model_type")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if not isinstance(kind, str) or kind not in known:
        return ""
    try:
        with quiet(), foreign(ModelError, kind):
            usual = transformers.AutoConfig.for_model(kind).to_dict()
    except ModelError:  # of a kind that cannot be made without more
        return ""
    found = [
        f"{field} is {quoted(value)} (usually {quoted(usual[field])})"
        for field, value in fields.items()
        if usual.get(field) is not None and not field.endswith("_id") and is_unusual(value, usual[field])
    ]
    return f"; {listed(found, 3)}" if found else ""


def is_unusual(value: Any, usual: Any) -> bool:
    """Whether a field's value is of another kind than the usual one, or no positive number where that is one."""
    if isinstance(usual, bool) or not isinstance(usual, int | float):
        return not isinstance(value, type(usual))
    if isinstance(value, bool) or not isinstance(value, int if isinstance(usual, int) else int | float):
        return True
    return usual > 0 and not 0 < value < UNUSUAL * max(usual, 1)


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
