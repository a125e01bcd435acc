"""GGUF files, as llama.cpp writes them: dequantised by transformers and the package ``gguf``, never executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import (
    InputError,
    MissingExtraError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    listed,
    quoted,
)
from ..core.foreign import foreign
from .architectures import DESCRIBED
from .configs import check_counts, class_name, model_path, quiet

SUFFIX = ".gguf"
UNSCALED, UNSCALED_BY = ("none", None), (0, 1, None)


def gguf_file(source: str | Path) -> Path | None:
    """The GGUF file that a path names, or that its folder holds in place of a Hugging Face model; None where none is.

    Raises ModelNotFoundError for a folder with several.
    """
    path = model_path(source)
    if path.suffix.lower() == SUFFIX and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX and file.is_file())
    if len(found) > 1:
        names = listed([file.name for file in found], 3)
        raise ModelNotFoundError(f"{source} holds {len(found)} GGUF files ({names}): name one of them")
    return found[0] if found else None


class GgufHeader:
    """What a GGUF file says of itself, read before a model is made of it.

    Attributes:
        architecture: as llama.cpp names it, ``"llama"``.
        quantization: of most of its weights, ``"Q4_1"``; ``"F16"`` and ``"F32"`` are floating point.
        add_bos: whether its tokenizer puts a beginning-of-sequence token before a text; None where it does not say.
        n_weights: the numbers in all of its tensors.
        rotated: the dimensions of a head that its rotary positions turn; None where it does not say.

    Raises:
        MissingExtraError: the package ``gguf`` is not installed. ModelError: no GGUF file, or a damaged one.
        UnsupportedModelError: positions that transformers would read as others.
    """

    def __init__(self, file: Path, name: str) -> None:
        try:
            import gguf
        except ImportError:
            raise MissingExtraError(f"{name} needs the package gguf: pip install 'ffnmem[gguf]'") from None

        with foreign(ModelError, f"{name} is no GGUF file that can be read"):
            reader = gguf.GGUFReader(file)

            def said(field: str) -> Any:
                found = reader.get_field(field)
                return None if found is None else found.contents()

            self.architecture, bos = said("general.architecture"), said("tokenizer.ggml.add_bos_token")
            rope = f"{self.architecture}.rope"
            scaling, self.rotated = said(f"{rope}.scaling.type"), said(f"{rope}.dimension_count")
            # Of what older converters wrote, without a type, llama.cpp reads either as linear scaling.
            factors = [said(f"{rope}.{name}") for name in ("scaling.factor", "scale_linear")]
            weights: Counter[str] = Counter()
            for tensor in reader.tensors:
                weights[tensor.tensor_type.name] += int(tensor.n_elements)
            tensors = {tensor.name for tensor in reader.tensors}
        if not weights or not isinstance(self.architecture, str):
            raise ModelError(f"{name} holds no model: it has {len(tensors)} tensors of {quoted(self.architecture)}")
        self.n_weights = sum(weights.values())
        self.quantization = max(weights, key=weights.__getitem__)
        self.add_bos = None if bos is None else bool(bos)
        # Which transformers leaves out without a word: every position would be turned by other angles.
        linear = scaling is None and any(factor not in UNSCALED_BY for factor in factors)
        if "rope_freqs.weight" in tensors or scaling not in UNSCALED or linear:
            raise UnsupportedModelError(
                f"{name} scales its rotary positions, which transformers does not read from GGUF: load the model's "
                "Hugging Face checkpoint"
            )

    @property
    def notes(self) -> dict[str, Any]:
        """What a config made of it says in its field ``ffnmem``, there and wherever the model is saved."""
        bos = {} if self.add_bos is None else {"prepend_bos": self.add_bos}
        return {"quantization": self.quantization, **bos}


def gguf_config(file: Path, name: str, header: GgufHeader) -> Any:
    """The Hugging Face config of a GGUF file; raises UnsupportedModelError for an architecture not described."""
    import transformers

    with quiet(), foreign(UnsupportedModelError, f"{name} ({quoted(header.architecture)}) is not read by transformers"):
        config = transformers.AutoConfig.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )
    if class_name(config) not in DESCRIBED:
        raise UnsupportedModelError(
            f"{name} is of {quoted(header.architecture)}, an architecture that is not described"
        )
    check_counts(config.to_dict(), name)
    return config


def check_rotated(empty: Any, name: str, header: GgufHeader) -> None:
    """Raise UnsupportedModelError for rotary positions of so many dimensions that transformers turns others.

    ``empty``: the model of the file's config, without numbers.
    """
    turned = {2 * buffer.shape[0] for path, buffer in empty.named_buffers() if path.endswith("rotary_emb.inv_freq")}
    if header.rotated is not None and turned and turned != {header.rotated}:
        raise UnsupportedModelError(
            f"{name} turns {quoted(header.rotated)} dimensions of a head by its rotary positions, but transformers "
            f"reads from GGUF that it is {listed(sorted(turned))}: load the model's Hugging Face checkpoint"
        )


def open_gguf_tokenizer(file: Path, name: str) -> Any:
    """The tokenizer in a GGUF file; raises InputError."""
    import transformers

    GgufHeader(file, name)
    with quiet(), foreign(InputError, f"{name} has no tokenizer that can be read"):
        # It may read the tokenizer_config.json beside the file, and that can name code.
        return transformers.AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )


@contextmanager
def no_bar() -> Iterator[None]:
    """No bar of transformers' for the tensors, which its own switch for bars leaves on."""
    from transformers import modeling_gguf_pytorch_utils as reading

    shown = reading.tqdm
    reading.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        reading.tqdm = shown


def unquantized(model: Any, empty: Any) -> Any:
    """The same weights in a model that does not call itself quantised: transformers refuses to save one that does.

    ``empty``: of the same config, without numbers.
    """
    for own, found in zip(empty.modules(), model.modules(), strict=True):
        own._parameters.update(found._parameters)
        own._buffers.update(found._buffers)
    empty.tie_weights()
    return empty
