"""``JacobianLens``: what a write to the residual stream comes to be at its end, on average over a text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
import transformers
from einops import rearrange
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from .._version import __version__
from ..core.checked_files import Form, HeadedTensors, write_tensors
from ..core.errors import (
    FileError,
    HookError,
    InputError,
    ModelError,
    listed,
    perhaps,
    quoted,
)
from ..core.files import check_destination, make_folder, user_path
from ..core.folders import Kind
from ..core.progress import Progress, log
from ..core.resources import EMBEDDED, cache_folder, embedded_folder
from ..core.types import (
    JACOBIAN,
    LENSES,
    LOGIT,
    ContextLength,
    Count,
    Division,
    NewFile,
    NonNegative,
    ResultFile,
    Seed,
    Texts,
    checked,
)
from ..corpus.batches import Batch, Sequences, padded
from ..corpus.excerpts import Excerpt, Selection, TextSettings
from ..corpus.packing import pack
from ..corpus.passes import (
    CHECKPOINT_SECONDS,
    CORPUS,
    MANIFEST,
    STATE,
    Checkpoint,
    Statistic,
    go_on,
    remove_partial,
    workplace,
)
from ..corpus.sources import open_corpus
from ..corpus.tokenizing import tokenizer_hash
from ..models.hooks import OnTensor, listening
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..show.result import Result
from .published_lenses import METADATA, is_published, read_published, write_published

# The file of a lens, and where one is found by its name.

SHIPPED = "jacobian_lens.safetensors"
KIND = "ffnmem jacobian lens"
DTYPES = {"float32": torch.float32, "float16": torch.float16}
FORM = Form(KIND, 1, "Jacobian lens: make one with vocabulary.jacobian_lens (ffnmem lens)")
TEXT = ("tokens", "sequences", "context", "prepend_bos", "corpus", "corpus_hash")
FIELDS = ("model", "fingerprint", "tokenizer_hash", "d_model", *TEXT)
MAKE = "ffnmem lens CORPUS --model MODEL, or vocabulary.jacobian_lens(model, corpus), makes one"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class JacobianLens(Result):
    """J_l = E[Σ_{t′ ≥ t} ∂h_final,t′/∂h_l,t]: a write v to the residual stream above layer l, as it arrives at the end.

    h_final goes into the final norm. The mean is over texts and positions t; what a write does to all later positions
    is summed. A value's tokens through it: W_U diag(γ_f) J_l v, see :func:`ffnmem.project`. The last layer's is the
    identity: there it is the logit lens. Made by :func:`ffnmem.vocabulary.jacobian_lens`.

    Attributes:
        matrices: by layer, J ``[d_model, d_model]`` in float32; none for the last layer. A published lens may leave
            out more.
        n_layers: of the model, the last one included. d_model: its width.
        errors: by layer, the standard error of J relative to ‖J‖ (Frobenius), from how sequences differ; NaN where one
            sequence was read. The last layer's is 0.
        model: the name of the model. fingerprint: its weights. tokenizer_hash: of what made the tokens.
        tokens, sequences: of text that were read; no BOS, pads or special tokens. ``sequences`` of a published lens:
            its prompts, of which it does not tell the tokens (None).
        context: the longest sequence in tokens, BOS included. prepend_bos: whether sequences had one. None where a
            published lens does not say.
        corpus, corpus_hash: which text.
        provenance: how it was made.
        of_unedited: whether it may be used for the same weights with edits applied, see :func:`load_lens`.

    Source: Gurnee et al. 2026, "Verbalizable Representations Form a Global Workspace in Language Models"
    (transformer-circuits.pub/2026/workspace); TransformerLens' ``tools.analysis.JacobianLens`` is the same on the
    residual stream, for the positions that it takes.
    """

    heading = "model text"
    tables: ClassVar = {"layers": "layer relative_error norm identity"}

    matrices: Mapping[int, Float[Tensor, "d_model d_model"]] = field(repr=False)
    n_layers: int
    d_model: int
    errors: tuple[float, ...]
    model: str
    fingerprint: str
    tokenizer_hash: str
    tokens: int | None
    sequences: int
    context: int | None
    prepend_bos: bool | None
    corpus: str
    corpus_hash: str
    provenance: Mapping[str, Any]
    of_unedited: bool = False

    # -- what it does ----------------------------------------------------------------------------------------------

    def apply(self, vectors: Float[Tensor, "*rows d_model"], layer: int) -> Float[Tensor, "*rows d_model"]:
        """J v of each row, taken in float64 and rounded to the rows' type: writes above a layer as they arrive.

        Raises InputError: a layer that it has not, rows of another width, or writes too large for scores of them.
        """
        if not 0 <= layer < self.n_layers:
            raise InputError(f"layer {layer} is not in this lens of {self.model}, which has 0 to {self.n_layers - 1}")
        if vectors.shape[-1] != self.d_model:
            raise InputError(f"this lens of {self.model} takes rows of {self.d_model} numbers, not {vectors.shape[-1]}")
        if layer == self.n_layers - 1:
            return vectors
        if layer not in self.matrices:
            raise InputError(f"this lens of {self.model} has no layer {layer}, only {listed([*self.matrices])}")
        matrix = self.matrices[layer].to(vectors.device).double()
        found = (vectors.double() @ matrix.T).to(vectors.dtype)
        if not bool(found.square().sum(-1).isfinite().all()):
            dtype = str(found.dtype).removeprefix("torch.")
            raise InputError(f"this lens of {self.model} makes writes of layer {layer} too large for {dtype}: {MAKE}")
        return found

    def check(self, model: Model) -> None:
        """Raise ModelError unless it is of these weights; or of these before their edits, where that was asked for."""
        if self.fingerprint == model.fingerprint:
            return
        if self.fingerprint == model.unedited_fingerprint:
            if self.of_unedited:
                return
            raise ModelError(
                f"this lens is of {model.name} without the edits that are applied to it: "
                "load_lens(model, edited=True) takes it all the same, jacobian_lens makes another one"
            )
        raise ModelError(
            f"this lens is of {self.model} with other weights or in another dtype ({self.fingerprint}), not of "
            f"{model.name} in {str(model.dtype).removeprefix('torch.')} ({model.fingerprint}): {MAKE}"
        )

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> pd.DataFrame:
        """Of each layer's matrix: its standard error relative to it, its norm over that of the identity, and the share
        of its square that is a multiple of the identity, all there is to it in the logit lens."""
        found = []
        for layer in (*self.matrices, self.n_layers - 1):
            size, share = 1.0, 1.0
            if layer < self.n_layers - 1:
                matrix = self.matrices[layer].double()
                square = float(matrix.square().sum())
                size = (square / self.d_model) ** 0.5
                share = float(matrix.diagonal().sum()) ** 2 / self.d_model / square
            found.append({"layer": layer, "relative_error": self.errors[layer], "norm": size, "identity": share})
        frame = pd.DataFrame(found)
        frame.attrs["provenance"] = dict(self.provenance)
        return frame

    @property
    def text(self) -> str:
        """How much of which text was read."""
        if self.tokens is None:
            return f"{self.sequences:,} prompts of {self.corpus}"
        return f"{self.tokens:,} tokens of {self.corpus}"

    # -- keeping it ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, dtype: str = "float32") -> Path:
        """Write a safetensors file, whole or not at all: a matrix a layer, and a header that says all the rest.

        Args:
            path: the file. dtype: ``"float32"``, or ``"float16"`` at half the size.

        Raises: FileError: a file that cannot be written. InputError: another dtype, or numbers too large for it.
        """
        kind = DTYPES[dtype]
        target = check_destination(path)
        matrices = {layer: matrix.to(kind) for layer, matrix in self.matrices.items()}
        self.check_finite(matrices, dtype)
        arrays = {str(layer): matrix.numpy() for layer, matrix in matrices.items()}
        write_tensors(target, self.header(), arrays, sort_keys=True)
        return target

    def header(self) -> dict[str, Any]:
        """All but the matrices, as plain values."""
        return {
            "kind": KIND,
            "schema": FORM.schema,
            "ffnmem": __version__,
            **{name: getattr(self, name) for name in FIELDS},
            "layers": self.n_layers,
            "errors": [None if np.isnan(error) else error for error in self.errors],
            "provenance": dict(self.provenance),
        }

    def publish(self, path: str | Path, dtype: Literal["float32", "float16"] = "float16") -> Path:
        """Write the torch file that other programs read: those of Gurnee et al., TransformerLens, Neuronpedia.

        It has tensors and plain values alone. ``metadata`` says all that this lens does, by which :func:`load_lens`
        knows the weights that it is of.

        Args:
            path: the file, named ``.pt`` by custom. dtype: of the matrices.

        Raises: FileError: a file that cannot be written. InputError: another dtype, or numbers too large for it.
        """
        target = check_destination(path)
        matrices = {layer: matrix.to(DTYPES[dtype]) for layer, matrix in self.matrices.items()}
        self.check_finite(matrices, dtype)
        about = {**self.header(), "target_layer": self.n_layers - 1}
        write_published(target, matrices, self.d_model, self.sequences, about)
        return target

    def check_finite(self, matrices: Mapping[int, Tensor], dtype: str) -> None:
        if not all(bool(matrix.isfinite().all()) for matrix in matrices.values()):
            raise InputError(f"this lens of {self.model} has numbers that {dtype} cannot hold: save it in float32")

    @staticmethod
    def load(path: str | Path) -> JacobianLens:  # type: ignore[override]  # it holds no model
        """Open a file; a layer is read, and checked, when it is first asked for. Raises FileError."""
        given = user_path(path)
        if given.is_file() and is_published(given):
            raise FileError(
                f"{path} is a published lens, which does not name its weights: load_lens(model, FILE) reads it"
            )
        matrices = Matrices(given)
        return JacobianLens.of(matrices, matrices.file.header)

    @staticmethod
    def of(matrices: Mapping[int, Tensor], header: Mapping[str, Any]) -> JacobianLens:
        """The lens of matrices and a :meth:`header`."""
        return JacobianLens(
            matrices=matrices,
            n_layers=header["layers"],
            errors=tuple(float("nan") if error is None else float(error) for error in header["errors"]),
            provenance=header["provenance"],
            **{name: header[name] for name in FIELDS},
        )


class Matrices(Mapping[int, Tensor]):
    """The matrices of a file, each read and checked when it is first asked for, and then kept."""

    def __init__(self, path: Path) -> None:
        self.file = HeadedTensors(path, FORM, f"there is no Jacobian lens at {path}: {MAKE}")
        self.layers = sorted(int(name) for name in self.file.shapes)
        self.kept: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise KeyError(layer)
        if layer not in self.kept:
            self.kept[layer] = torch.from_numpy(self.file.array(str(layer)).astype(np.float32))
        return self.kept[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


Lens = JacobianLens | str | Path
"""How functions that read values are given a lens: see :func:`load_lens`."""


def lens_file(fingerprint: str) -> Path:
    """Where the lens of a model is kept that was made without naming a file."""
    return cache_folder("lenses") / f"{fingerprint}.safetensors"


def kept_lens(model: Model) -> JacobianLens | None:
    """The lens that ships with a model, or was made and kept: of its weights as they are, else as they were before
    edits. None where there is none."""
    for fingerprint in dict.fromkeys((model.fingerprint, model.unedited_fingerprint)):
        path = lens_file(fingerprint)
        if path.is_file():
            return JacobianLens.load(path)
        for name in EMBEDDED:
            shipped = JacobianLens.load(embedded_folder(name) / SHIPPED)
            if shipped.fingerprint == fingerprint:
                return shipped
    return None


@checked
def load_lens(model: Model, source: Lens = JACOBIAN, *, edited: bool = False) -> JacobianLens | None:
    """The lens to read a model's values with.

    Args:
        model: from :func:`ffnmem.load`.
        source: ``"jacobian"``: the one that ships with these weights, or that :func:`jacobian_lens` made and kept;
            a file, ours or a published one (:func:`published_lens`), or a lens; ``"logit"``: none.
        edited: take the lens of the weights as they were before the edits that the model now holds. An edit changes
            the Jacobians of the layers below it a little; what it writes itself is read as any other value is.

    Raises:
        InputError: no lens of these weights is there. ModelError: one of other weights, or of these before their edits.
        FileError: no such file, or a damaged one.
    """
    if source == LOGIT:
        return None
    if not isinstance(source, JacobianLens | str | Path):
        raise InputError(f"lens must be 'logit', 'jacobian', a Jacobian lens or its file, not {quoted(source)}")
    if isinstance(source, JacobianLens):
        found = source
    elif source == JACOBIAN:
        kept = kept_lens(model)
        if kept is None:
            raise InputError(f"there is no Jacobian lens of {model.name} ({model.fingerprint}) yet: {MAKE}")
        found = kept
    else:
        if isinstance(source, str) and source == Path(source).stem and not user_path(source).exists():
            near = perhaps(source, LENSES)  # a word, by its looks no file's name
            raise InputError(f"lens {quoted(source)} is unknown{near}: choose 'logit', 'jacobian' or a lens' file")
        path = user_path(source)
        found = published_lens(model, path) if path.exists() and is_published(path) else JacobianLens.load(path)
    if edited:
        found = replace(found, of_unedited=True)
    found.check(model)
    return found


def published_lens(model: Model, path: Path) -> JacobianLens:
    """A lens that another program published (:mod:`.published_lenses`), for the model that it is said to be of.

    Nothing in such a file tells weights from others: only their width and number of layers are checked, and it counts
    as one of the weights without edits. How well its matrices are known is not said (NaN). One that
    :meth:`JacobianLens.publish` wrote says all that it said.
    """
    found = read_published(path)
    matrices, about = found["J"], found[METADATA]
    if about.get("kind") == KIND:
        FORM.check_version(path, about)
        try:
            lens = JacobianLens.of(matrices, about)
            fits = all(0 <= layer < lens.n_layers - 1 for layer in matrices) and len(lens.errors) == lens.n_layers
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits or lens.d_model != found["d_model"]:
            raise FileError(f"{path} is damaged: what {METADATA} says is not of its matrices")
        return lens
    if found["d_model"] != model.d_model:
        raise ModelError(
            f"{path} is a lens of a model of width {found['d_model']}, not {model.d_model} as {model.name}"
        )
    last = about.get("target_layer", model.n_layers - 1)
    beyond = [layer for layer in matrices if not 0 <= layer < model.n_layers - 1]
    if beyond or last != model.n_layers - 1:
        what = f"has matrices of layers {listed(beyond)}" if beyond else f"leads to layer {quoted(last)}"
        raise ModelError(f"{path} {what}: no lens of {model.name}, which needs layers below {model.n_layers - 1} to it")
    header = {
        "model": model.name,
        "fingerprint": model.unedited_fingerprint,
        "tokenizer_hash": tokenizer_hash(model),
        "d_model": model.d_model,
        "tokens": None,
        "sequences": found["n_prompts"],
        "context": None,
        "prepend_bos": None,
        "corpus": str(about.get("corpus", path.name)),
        "corpus_hash": "",
        "layers": model.n_layers,
        "errors": [*[None] * (model.n_layers - 1), 0.0],
    }
    provenance = {**model.provenance().to_dict(), "published": path.name, "n_prompts": found["n_prompts"]}
    plain = {name: value for name, value in about.items() if isinstance(value, str | int | float | bool)}
    return JacobianLens.of(matrices, {**header, "provenance": {**plain, **provenance}})


def name_of(lens: JacobianLens | None) -> str:
    """What a table's column says of a lens."""
    return LOGIT if lens is None else JACOBIAN


def describe_lens(lens: JacobianLens | None) -> str:
    """What a table's provenance says of a lens: its name, its text, and whether the model had no edits then."""
    if lens is None:
        return LOGIT
    before = ", before the edits" if lens.of_unedited else ""
    seed = f", seed {lens.provenance['seed']}" if "seed" in lens.provenance else ", published"
    return f"{JACOBIAN} ({lens.text}{seed}{before})"


# The Jacobians themselves.


def streams(
    layers: PlainLayers, tokens: Int[Tensor, "rows pos"], lengths: Int64[np.ndarray, " rows"]
) -> list[Float[Tensor, "rows pos d_model"]]:
    """The residual stream above every layer, in one graph that begins above the first. Raises HookError."""
    found: dict[int, Tensor] = {}

    def keep(layer: int, x: Tensor) -> None:
        found[layer] = x if x.requires_grad else x.requires_grad_()  # the first: nothing below has a gradient

    readers = [*(part.whole for part in layers.parts[1:]), layers.final_norm]
    into: list[tuple[Any, OnTensor]] = [(module, partial(keep, layer)) for layer, module in enumerate(readers)]
    with listening(into), torch.enable_grad():
        own = layers.model.own_positions(lengths, tokens.shape[1])
        layers.body(input_ids=tokens, use_cache=False, **own)
    if len(found) != len(layers):
        raise HookError(f"{layers.model.name}: only {len(found)} of {len(layers)} layers ran")
    return [found[layer] for layer in range(len(layers))]


def jacobian_row(
    stream: Sequence[Float[Tensor, "rows pos d_model"]], counted: Bool[Tensor, "rows pos"], dimension: int
) -> Float[Tensor, "layers rows d_model"]:
    """Of every layer but the last, Σ_t Σ_{t′ ≥ t} ∂h_final,t′[dimension]/∂h_l,t by sequence: one way back.

    Args:
        stream: of :func:`streams`. counted: the positions t and t′ that count.
    """
    final = stream[-1]
    wanted = torch.zeros_like(final)
    wanted[..., dimension] = counted.to(final.dtype)
    gradients = torch.autograd.grad(final, list(stream[:-1]), wanted, retain_graph=True)
    kept = rearrange(counted, "rows pos -> rows pos 1")
    return torch.stack([(gradient.detach() * kept).double().sum(1) for gradient in gradients])


class PageTexts(Excerpt):
    """Pages of sequences that are drawn at random, no two alike before all were drawn.

    Args:
        sequences, settings: of the text. pages: how many. rows: sequences of each. seed: of the draw.
    """

    def __init__(self, sequences: Sequences, settings: TextSettings, pages: int, rows: int, seed: int) -> None:
        super().__init__(sequences, settings)
        order = np.random.default_rng([seed, len(sequences)]).permutation(len(sequences))
        self.numbers: Int64[np.ndarray, "pages rows"] = np.resize(order, (pages, min(rows, len(order))))

    @property
    def n_tokens(self) -> int:
        return sum(self.sequences.locate(int(number))[2] for number in self.numbers.ravel())

    def made_by(self) -> dict[str, Any]:
        return {**super().made_by(), "sequences": self.numbers.tolist()}

    def n_content(self) -> int:
        """Tokens that count; those of a sequence that several pages have once."""
        return int(Selection(self.sequences, self.settings, np.unique(self.numbers)).token_counts.sum())

    def batches(self) -> Iterator[tuple[Batch, bool]]:
        for numbers in self.numbers:
            texts = [self.sequences.sequence_tokens(number) for number in numbers.tolist()]
            order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
            yield padded([texts[index] for index in order], numbers[order]), False


class JacobianSums(Statistic):
    """Rows of every layer's J as far as they are taken, what they may be off by, and the text of each."""

    def __init__(self, n_layers: int, d_model: int) -> None:
        super().__init__(
            {
                "rows": np.zeros((n_layers - 1, d_model, d_model)),
                "variances": np.zeros((n_layers - 1, d_model)),
            }
        )

    def add_row(
        self, dimension: int, found: Float[Tensor, "layers rows d_model"], counts: Int[Tensor, " rows"]
    ) -> None:
        """Take in :func:`jacobian_row` and how many positions counted in each sequence.

        The mean over positions is a ratio of sums over sequences; so is its variance (Cochran 1977, §6.4).
        """
        total, n = counts.sum(), len(counts)
        mean = found.sum(1) / total
        self.arrays["rows"][:, dimension] = mean.cpu().numpy()
        off = found - rearrange(counts.double(), "rows -> rows 1") * rearrange(mean, "layer d_model -> layer 1 d_model")
        variance = off.square().sum((1, 2)) / total**2 * (n / (n - 1) if n > 1 else float("nan"))
        self.arrays["variances"][:, dimension] = variance.cpu().numpy()


# `jacobian_lens`: one way back for each dimension of h_final, over a page of text.

PARTIAL = Kind(MANIFEST, "ffnmem jacobian lens under way", 1, "the lens", subfolders=(CORPUS,))
PAGES = 16
BATCH_TOKENS = 2048


@checked
def jacobian_lens(
    model: Model,
    texts: Texts,
    out: ResultFile = None,
    *,
    page_tokens: Count = BATCH_TOKENS,
    pages: Count = PAGES,
    context: ContextLength | None = None,
    prepend_bos: bool | None = None,
    seed: Seed = 0,
    half: bool = False,
    export: NewFile = None,
    text: str = "text",
    documents: Division | None = None,
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> JacobianLens:
    """Fit a Jacobian lens for a model, for --lens jacobian.

    Takes the Jacobians of a model's last residual stream by that above every layer, on average over a text: what a
    value comes to say by the end, for --lens of project, neuron and report. The one of atlas ships with it.

    It takes as many backward passes as the model is wide, each over one page of text, and can be stopped at any moment:
    the same call goes on where it was.

    Note:
        J_l = E[Σ_{t′ ≥ t} ∂h_final,t′/∂h_l,t]. Row i of every layer's J is one backward pass from the i-th dimension of
        h_final at all positions of a page of text at once: the texts are causal, so that the gradient at t is the sum
        over t′ ≥ t. Rows take the pages in turn. BOS, pads and special tokens count neither as t nor as t′. The same
        bytes are written wherever it was stopped.

    Args:
        model: from :func:`ffnmem.load`. Hooks on its bridge are not seen; its weights are.
        texts: a file, folder, glob, ``"atlas"`` (bundled), ``"hf:name"``, texts, or a packed corpus.
        out: the file to write: FILE.safetensors. [default: one in the cache, where --lens jacobian finds it] In Python,
            what is needed to go on lies beside it meanwhile, in ``OUT.partial``.
        page_tokens: of a page, pads included: as many sequences as fit in at their longest. The lens' error falls with
            the square root of it, and time and memory grow with it.
        pages: how many the rows share. Each costs a forward pass; with more, no row is better known, but what one
            page has of its own is not in all of them.
        context: the longest sequence in tokens, BOS included. [default: 128, or what the model reads]
        prepend_bos: put BOS before each sequence; default: the model's own convention.
        seed: of the draw of the sequences.
        half: write float16, half the size.
        export: also write the lens as other programs publish theirs, which --lens reads too: FILE.pt, in float16.
        text: the field of a record that is its text, see :func:`ffnmem.corpus.open_corpus`.
        documents: what is a document of a .txt file: what blank lines separate, a line, or all of it.
        checkpoint_seconds: between checkpoints.
        progress: called as ("lens", done, total) in backward passes.

    Raises:
        InputError: settings that cannot be, a corpus without text, a model with one layer. FileError: a file that holds
        something else, a damaged corpus. UnsupportedModelError: a model under an intervention.

    Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace), whose program goes d_model times back through
    each of some hundred texts.

    Example:
        $ ffnmem lens texts.jsonl --text body --model gpt2
        $ ffnmem lens atlas --page-tokens 256 -o lens.safetensors --json
        $ ffnmem lens atlas --export atlas_jacobian_lens.pt
    """
    settings = TextSettings.checked(model, context, prepend_bos, page_tokens)
    count = min(pages, model.d_model)
    if model.n_layers < 2:
        raise InputError(f"{model.name} has one layer, whose values the logit lens reads as they arrive")
    if out is None:
        make_folder(lens_file(model.fingerprint).parent, parents=True)  # the first thing in the cache, maybe
    target = check_destination(lens_file(model.fingerprint) if out is None else out)
    finished = JacobianLens.load(target) if target.exists() else None
    with workplace(target, PARTIAL) as folder:
        packed = pack(open_corpus(texts, text=text, documents=documents), model, folder / CORPUS)
        sequences = settings.sequences(packed)
        if not len(sequences):
            raise InputError(f"{packed.source} has no text to read")
        drawn = PageTexts(sequences, settings, count, max(1, settings.batch_tokens // settings.context), seed)
        made_by = {**drawn.made_by(), "fingerprint": model.fingerprint, "dtype": str(model.dtype)}
        provenance = model.provenance(
            settings.prepend_bos,
            corpus=packed.source,
            corpus_hash=packed.hash,
            context=settings.context,
            tokens=drawn.n_content(),
            sequences=int(np.unique(drawn.numbers).size),
            batch_tokens=settings.batch_tokens,
            pages=count,
            seed=seed,
            transformers=transformers.__version__,  # whose code the Jacobians are of
        ).to_dict()
        if finished is not None:
            check_same(finished, provenance, target)
        else:
            sums = JacobianSums(model.n_layers, model.d_model)
            measure(model, drawn, sums, go_on(folder / STATE, [sums], made_by, checkpoint_seconds), progress)
            lens = lens_of(model, sums, provenance, tokenizer_hash(model))
            lens.save(target, "float16" if half else "float32")
    remove_partial(folder)
    found = JacobianLens.load(target)
    log.info("wrote %s", target)
    if export is not None:
        log.info("wrote %s", found.publish(export))
    return found


def measure(
    model: Model,
    texts: PageTexts,
    sums: JacobianSums,
    checkpoint: Checkpoint,
    progress: Progress | None,
) -> None:
    """Take the rows that are still missing, those of one page after another."""
    layers, count = PlainLayers(model), len(texts.numbers)
    saved, done = time.monotonic(), 0
    stream: list[Tensor] = []
    for number, page in enumerate(texts.pages()):
        rows = range(number, model.d_model, count)
        left, done = rows[max(0, checkpoint.pages - done) :], done + len(rows)
        if not left:
            continue
        tokens = torch.from_numpy(page.batch.tokens).to(model.device)
        counted = torch.from_numpy(page.mask).to(model.device).reshape(tokens.shape)
        counts = counted.sum(1)
        if not int(counts.sum()):
            raise InputError(f"{texts.sequences.packed.source} has no text but special tokens in a page")
        stream = []  # one page's graph at a time
        stream = streams(layers, tokens, page.batch.lengths)
        for at, dimension in enumerate(left, start=done - len(left) + 1):
            found = jacobian_row(stream, counted, dimension)
            if not bool(found.isfinite().all()):
                raise InputError(f"the gradients of {model.name} are not finite in row {dimension} of its Jacobians")
            sums.add_row(dimension, found, counts)
            if progress is not None:
                progress("lens", at, model.d_model)
            if time.monotonic() - saved > checkpoint.every:
                checkpoint.save(at)
                saved = time.monotonic()


def lens_of(model: Model, sums: JacobianSums, provenance: Mapping[str, Any], tokenizer: str) -> JacobianLens:
    """The lens of all rows."""
    matrices = sums.arrays["rows"]
    squares = np.square(matrices).sum((1, 2))
    errors = np.sqrt(sums.arrays["variances"].sum(1) / squares)
    return JacobianLens(
        matrices={layer: torch.from_numpy(matrix.astype(np.float32)) for layer, matrix in enumerate(matrices)},
        n_layers=model.n_layers,
        d_model=model.d_model,
        errors=(*errors.tolist(), 0.0),
        model=model.name,
        fingerprint=model.fingerprint,
        tokenizer_hash=tokenizer,
        provenance=provenance,
        **{name: provenance[name] for name in TEXT},
    )


def check_same(found: JacobianLens, provenance: Mapping[str, Any], path: Path) -> None:
    """Raise FileError if a file holds another lens than this call makes."""
    names = ("fingerprint", "corpus_hash", "context", "prepend_bos", "batch_tokens", "pages", "seed")
    differ = [
        f"{name} {quoted(found.provenance.get(name))}, not {quoted(provenance[name])}"
        for name in names
        if found.provenance.get(name) != provenance[name]
    ]
    if differ:
        raise FileError(f"{path} holds another lens ({'; '.join(differ)}): name another file, or remove it")
