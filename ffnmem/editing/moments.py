"""``SecondMoment``: C = E[m mᵀ] of every layer, as packed triangles, made, joined and kept in one file."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .._version import __version__
from ..core.checked_files import Form, HeadedTensors, write_tensors
from ..core.errors import InputError, ModelError, OutOfRangeError, check_number, counted, listed, quoted
from ..core.files import check_destination, user_path
from ..core.neuron_names import LayerName
from ..core.resources import EMBEDDED, embedded_folder
from ..core.types import checked
from ..corpus.tokenizing import tokenizer_hash
from ..models.model import Model
from ..show.result import Result
from .given import read_sums

# Sums of outer products of rows with themselves: only the blocks above the diagonal are computed and kept.

BLOCK = 256  # columns of one block: 62% of the square's work at 1,024, 54% at 3,072
CHUNK = 1024  # rows of one product


class TriangleSums:
    """Σ m mᵀ over rows m, added up in float64.

    Products of float32 rows (or of half precision ones, made float32) are float32 over at most CHUNK rows, where the
    device computes float32 in full, and float64 elsewhere. Each entry of the mean is then off by at most γ·mean|mᵢmⱼ|
    with γ = CHUNK·2⁻²⁴/(1 − CHUNK·2⁻²⁴) = 6.1e-5, whatever the number of rows; some 1e-7 in practice.

    Args:
        width: of the rows.
        device: where the sums lie.
        exact: all products in float64.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu", exact: bool = False) -> None:
        self.width = width
        self.exact = exact or not full_float32(torch.device(device))
        self.starts = range(0, width, BLOCK)
        self.blocks = [
            torch.zeros(min(BLOCK, width - start), width - start, dtype=torch.float64, device=device)
            for start in self.starts
        ]

    def add(self, rows: Float[Tensor, "rows width"]) -> None:
        """Add the outer products of these rows with themselves."""
        kind = torch.float64 if self.exact or rows.dtype == torch.float64 else torch.float32
        for first in range(0, len(rows), CHUNK):
            x = rows[first : first + CHUNK].to(kind)
            for start, block in zip(self.starts, self.blocks, strict=True):
                block += x[:, start : start + BLOCK].T @ x[:, start:]

    def is_finite(self) -> bool:
        """Whether every row so far was finite, which the diagonal shows."""
        return all(bool(torch.diagonal(block).isfinite().all()) for block in self.blocks)

    def packed(self) -> Float64[Tensor, " triangle"]:
        """The upper triangle, row by row, in a tensor of its own on the CPU."""
        return torch.cat([block[upper(block)] for block in self.blocks]).cpu()

    def load(self, packed: Float[Tensor, " triangle"]) -> None:
        """Go on from a triangle."""
        taken = 0
        for block in self.blocks:
            mask = upper(block)
            count = int(mask.sum())
            block[mask] = packed[taken : taken + count].to(block)
            taken += count


def upper(block: Float[Tensor, "rows columns"]) -> Tensor:
    """True on and above the diagonal of a block whose first column is that of its first row."""
    return torch.ones(block.shape, dtype=torch.bool, device=block.device).triu()


def square(packed: Float[Tensor, " triangle"], width: int) -> Float64[Tensor, "width width"]:
    """The whole symmetric matrix of a triangle, in float64."""
    matrix = torch.zeros(width, width, dtype=torch.float64)
    matrix[upper(matrix)] = packed.double()
    matrix += matrix.triu(1).T
    return matrix


def diagonal(packed: Float[Tensor, " triangle"], width: int) -> Float64[Tensor, " width"]:
    """The diagonal of a triangle, in float64."""
    rows = torch.arange(width)
    return packed[rows * width - rows * (rows - 1) // 2].double()


def full_float32(device: torch.device) -> bool:
    """Whether a product of float32 matrices is one: TF32 and bfloat16, which may be switched on, drop 2⁻¹²."""
    x = torch.full((64, 64), 1 + 2.0**-12, device=device)
    return bool(((x @ x).double() / 64 - (1 + 2.0**-12) ** 2).abs().max() < 1e-5)


# `SecondMoment`: C = E[m mᵀ] of every layer's coefficients, what edits ask of it, and its file.
#
# The file is one safetensors file: a packed triangle a layer, each with a checksum, and a header that says all the
# rest.

RIDGE = 1e-6  # of the mean diagonal
NULL = 2e-2  # AlphaEdit's threshold
KEPT = 8  # square matrices kept, 8·d_mlp² bytes each: 75 MB for GPT-2 small
SHIPPED = "second_moments.safetensors"
SCHEMA = 1
KIND = "ffnmem second moment"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FORM = Form(KIND, SCHEMA, "second moment: make one with second_moment")
FIELDS = ("model", "fingerprint", "tokenizer_hash", "layers", "widths", "count", "context", "prepend_bos")


@dataclass(frozen=True)
class Part:
    """Text that a second moment has seen.

    Attributes:
        corpus_hash: of the whole corpus, see :class:`ffnmem.corpus.packed.Packed`.
        source: its name.
        ranges: the numbers of the sequences seen, as ascending (first, end) with the end left out.
    """

    corpus_hash: str
    source: str
    ranges: tuple[tuple[int, int], ...]

    def overlaps(self, other: Part) -> bool:
        """Whether both hold a sequence of one corpus."""
        return self.corpus_hash == other.corpus_hash and any(
            max(a, c) < min(b, d) for a, b in self.ranges for c, d in other.ranges
        )


@checked
@dataclass(frozen=True, eq=False, repr=False)
class SecondMoment(Result):
    """C_l = E[m mᵀ], m the coefficients of layer l, over the tokens of a text.

    Made by :func:`second_moment`; one that was made elsewhere comes in by :meth:`of`.

    Attributes:
        model: the name of the model, fingerprint: its weights.
        tokenizer_hash: of the tokenizer that made the tokens.
        layers, widths: the layers it holds, and d_mlp of each.
        count: tokens seen; no BOS, pads or special tokens.
        context: the longest sequence in tokens, BOS included. prepend_bos: whether sequences had one.
        parts: which text.
        provenance: how it was made.

    Source: Meng et al. 2022 (2202.05262), equation 2: C = KKᵀ "uncentered covariance of keys"; Kohonen 1972.
    """

    model: str
    fingerprint: str
    tokenizer_hash: str
    layers: tuple[int, ...]
    widths: tuple[int, ...]
    count: int
    context: int
    prepend_bos: bool
    parts: tuple[Part, ...]
    provenance: Mapping[str, Any]
    sums: Mapping[int, Tensor] = field(repr=False)
    """Σ m mᵀ by layer: the upper triangle, row by row."""
    _conditions: dict[int, float] = field(default_factory=dict, repr=False)
    _ranks: dict[int, Sequence[Any]] = field(default_factory=dict, repr=False)
    """By layer rank and effective rank, where they are known."""
    _kept: dict[tuple[Any, ...], Tensor] = field(default_factory=dict, repr=False)

    heading = "model count context prepend_bos"
    tables: ClassVar = {"layers": "layer neurons trace condition rank effective_rank"}

    @classmethod
    def of(
        cls,
        model: Model,
        given: Mapping[LayerName, Tensor | np.ndarray | str | Path],
        count: int | None = None,
        *,
        corpus: str = "given",
    ) -> SecondMoment:
        """A second moment that was made elsewhere, for a model as it is now.

        Args:
            model: whose coefficients it is of.
            given: by layer, C = E[m mᵀ] ``[d_mlp, d_mlp]``, not centred; or the .npz file of the layer that
                ``layer_stats`` of ROME's program (and those after it) writes, which has Σ m mᵀ and the count.
            count: of how many tokens the matrices are the mean; of files their own.
            corpus: what to call the text.

        Returns: One whose ``context`` and ``prepend_bos`` are the model's own, for nobody says what they were. Its
            numbers count as float64's where they are given so: see :meth:`condition`.

        Raises: InputError: no layers, one of them twice, other counts, a matrix of another shape, or with numbers that
            no second moment has. FileError: a file that cannot be read, or that does not fit. OutOfRangeError: a layer
            that the model has not.
        """
        found = {}
        for name, one in given.items():
            layer = model.layer(name)
            if layer in found:
                raise InputError(f"layer {layer} is given twice: give it once")
            found[layer] = read_sums(one, layer, model.ffn[layer].d_mlp, count)
        if not found:
            raise InputError("no layer is given: give at least one, such as {5: matrix}")
        layers = tuple(sorted(found))
        counts = {found[layer][1] for layer in layers}
        if len(counts) > 1:
            each = listed([f"{seen:,} in layer {layer}" for layer, (_, seen, _) in found.items()])
            raise InputError(f"layers are of other numbers of tokens ({each}): give those of one text")
        (seen,), sums = counts, {layer: found[layer][0][upper(found[layer][0])] for layer in layers}
        about = hashlib.sha256(f"{seen}:{layers}".encode())
        for triangle in sums.values():
            about.update(triangle.numpy().tobytes())
        exact = all(kind == torch.float64 for _, _, kind in found.values())
        part = Part(about.hexdigest()[:32], corpus, ((0, 1),))
        return moment_of(model, sums, seen, part, exact, model.n_ctx, model.prepend_bos)

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def corpus_hash(self) -> str:
        """The hash of the corpus; of several corpora, all of them joined by ``+``."""
        return "+".join(dict.fromkeys(part.corpus_hash for part in self.parts))

    def width(self, layer: int) -> int:
        """d_mlp of a layer; raises OutOfRangeError for one that is not here."""
        if layer not in self.layers:
            held = listed(self.layers)
            raise OutOfRangeError(
                f"layer {layer} is not in this second moment of {self.model}, which has {held}: "
                f"{how_to_make(self.model, [layer])}"
            )
        return self.widths[self.layers.index(layer)]

    def check(self, model: Model, layers: Iterable[int] = ()) -> None:
        """Raise ModelError unless this was made for these weights, or for these without the edits applied to them; it
        says how one of ``layers`` is made."""
        if self.fingerprint not in (model.unedited_fingerprint, model.fingerprint):
            raise ModelError(
                f"this second moment is of {self.model} with other weights or in another dtype ({self.fingerprint}), "
                f"not of {model.name} in {str(model.dtype).removeprefix('torch.')} ({model.fingerprint}): "
                f"{how_to_make(model.name, layers)}"
            )

    def matrix(self, layer: int) -> Float64[Tensor, "d_mlp d_mlp"]:
        """C of a layer, a new tensor on the CPU."""
        width = self.width(layer)
        return square(self.sums[layer], width) / self.count

    def mean_diagonal(self, layer: int) -> float:
        """c̄, the mean diagonal of C of a layer: the mean neuron's second moment, of which ridges are shares."""
        return float(diagonal(self.sums[layer], self.width(layer)).mean()) / self.count

    # -- solving -------------------------------------------------------------------------------------------------

    def solve(
        self, layer: int, keys: Float[Tensor, "n d_mlp"], ridge: float = RIDGE, neurons: range | None = None
    ) -> Float64[Tensor, "n d_mlp"]:
        """(C + ridge·c̄·I)⁻¹ k for each row k of ``keys``, in float64 on their device; c̄ is the mean diagonal of C.

        The Cholesky factor is kept, so that further calls are cheap. The ridge makes C invertible where text was
        short or a neuron never fires; at its default, directions that carry more than a millionth of the mean neuron's
        second moment are hardly touched. With fewer tokens than neurons it does not help: rounding is larger than it.

        Args:
            layer: one of :attr:`layers`.
            keys: coefficient vectors, one a row.
            ridge: relative to the mean diagonal, at least 0.
            neurons: solve with these neurons' rows and columns of C alone, and their part of k; 0 for all others.

        Raises:
            InputError: keys of another width, a ridge below 0, or C + ridge that is not positive definite.
            OutOfRangeError: a layer that is not here.
        """
        width = self.width(layer)
        if keys.ndim != 2 or keys.shape[-1] != width:
            raise InputError(f"keys of layer {layer} are [n, {width}], one a row, not {list(keys.shape)}")
        factor = self.factor(layer, ridge, neurons).to(keys.device)
        some = slice(None) if neurons is None else slice(neurons.start, neurons.stop)
        found = torch.zeros_like(keys, dtype=torch.float64)
        found[:, some] = torch.cholesky_solve(keys.detach().double()[:, some].T, factor).T
        return found

    def rarity(
        self, layer: int, keys: Float[Tensor, "n d_mlp"], ridge: float = RIDGE, neurons: range | None = None
    ) -> Float64[Tensor, " n"]:
        """How rare keys are on text: kᵀC⁻¹k/d_mlp, 1 on average over text.

        Of keys that C was not made of this is n/(n − d_mlp − 1) times as large on average, n being C's tokens, as if
        they were normally distributed; that is taken off. NaN where n is no larger than d_mlp + 1, which tells nothing.

        Args:
            layer, keys, ridge, neurons: as of :meth:`solve`, which raises what it does.

        Source: the mean of an inverse Wishart matrix.
        """
        width = self.width(layer) if neurons is None else len(neurons)
        share = 1.0 - (width + 1) / self.count
        if share <= 0:
            return torch.full((len(keys),), math.nan, dtype=torch.float64, device=keys.device)
        return share * (keys.double() * self.solve(layer, keys, ridge, neurons)).sum(1) / width

    def factor(
        self, layer: int, ridge: float = RIDGE, neurons: range | None = None
    ) -> Float64[Tensor, "neurons neurons"]:
        """The lower Cholesky factor of C + ridge·c̄·I of all neurons or some; kept: do not change it.

        Raises as :meth:`solve`.
        """
        share = check_number("ridge", ridge)
        if not 0 <= share < math.inf:
            raise InputError(f"ridge must be at least 0 and finite, not {quoted(ridge)}")

        def make() -> Tensor:
            matrix = self.matrix(layer)
            mean = torch.diagonal(matrix).mean()
            torch.diagonal(matrix).add_(share * mean)
            if neurons is not None:
                matrix = matrix[neurons.start : neurons.stop, neurons.start : neurons.stop]
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if int(failed) or not float(mean) > 0:
                raise InputError(
                    f"the second moment of layer {layer} with ridge {share:g} is not positive definite after "
                    f"{self.count} tokens for {self.width(layer)} neurons: give more text, or a larger ridge"
                )
            return factor

        return self.kept(("factor", layer, share, neurons), make)

    def null_projection(self, layer: int, threshold: float = NULL) -> Float64[Tensor, "d_mlp d_mlp"]:
        """P, which projects on the eigenvectors of C whose eigenvalue is below ``threshold``; kept: do not change it.

        The threshold is absolute, in squared coefficients, as published; what counts as small differs between models.

        Source: AlphaEdit, Fang et al. 2024 (2410.02355), section 3.2; its program takes U of C's singular value
        decomposition at singular values below 2e-2, which are C's eigenvectors, and P = U Uᵀ.
        """
        below = check_number("threshold", threshold)

        def make() -> Tensor:
            eigenvalues, vectors = torch.linalg.eigh(self.matrix(layer))
            small = vectors[:, eigenvalues < below]
            return small @ small.T

        return self.kept(("null", layer, below), make)

    def kept(self, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        """What an earlier call made, or a new one; the oldest of more than KEPT goes."""
        if key not in self._kept:
            made = make()
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = made
        return self._kept[key]

    # -- figures -------------------------------------------------------------------------------------------------

    def condition(self, layer: int) -> float:
        """The largest eigenvalue of C over the smallest, no ridge; inf where C is singular up to rounding.

        Computed before anything was rounded, if the file was saved in float32.
        """
        if layer not in self._conditions:
            self._conditions[layer], *self._ranks[layer] = self.measure(layer)
        return self._conditions[layer]

    def measure(self, layer: int) -> tuple[float, int, float]:
        """Condition, rank and effective rank, which take a while of a wide layer."""
        eigenvalues = self.eigenvalues(layer)
        noise, least = self.noise(eigenvalues), float(eigenvalues[0])
        condition = float(eigenvalues[-1]) / least if least > noise else math.inf
        effective = float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())
        return condition, int((eigenvalues > noise).sum()), effective

    def eigenvalues(self, layer: int) -> Float64[Tensor, " d_mlp"]:
        """The eigenvalues of C, ascending."""
        return self.kept(("eigenvalues", layer), lambda: torch.linalg.eigvalsh(self.matrix(layer)))

    def noise(self, eigenvalues: Float64[Tensor, " d_mlp"]) -> float:
        """The size below which an eigenvalue is rounding: of the products, unless they were float64's."""
        if self.provenance.get("products") == "float64":
            return float(eigenvalues[-1]) * len(eigenvalues) * torch.finfo(torch.float64).eps
        return float(eigenvalues[-1]) * torch.finfo(torch.float32).eps

    @property
    def verdict(self) -> str:
        """Whether the text is enough, where that is known."""
        read = f"{counted(self.count, 'token')} of {listed([*dict.fromkeys(part.source for part in self.parts)])}"
        widths = dict(zip(self.layers, self.widths, strict=True))
        short = [layer for layer, (rank, _) in self._ranks.items() if rank < widths[layer]]
        if short:
            which = f"{'layer' if len(short) == 1 else 'layers'} {listed(sorted(short))}"
            return f"{read} are too few: in {which} the rank is below the number of neurons."
        return f"{read} are enough: every layer has full rank." if len(self._ranks) == len(self.layers) else f"{read}."

    @property
    def count_layers(self) -> int:
        return len(self.layers)

    def shown_layers(self, top: int | None) -> pd.DataFrame:
        """By layer the trace of C, its condition and its rank (eigenvalues above rounding). The effective rank is
        (Σλ)²/Σλ², the number of equal eigenvalues that would spread as much. Of all rows these are computed; of the
        first ones they are there where they are known, as of what :func:`second_moment` wrote.
        """
        rows = []
        for layer, width in [*zip(self.layers, self.widths, strict=True)][:top]:
            if top is None and layer not in self._ranks:
                condition, *self._ranks[layer] = self.measure(layer)
                self._conditions.setdefault(layer, condition)
            rank, effective = self._ranks.get(layer, (None, None))
            rows.append(
                {
                    "layer": layer,
                    "neurons": width,
                    "count": self.count,
                    "trace": float(diagonal(self.sums[layer], width).sum()) / self.count,
                    "condition": self._conditions.get(layer),
                    "rank": rank,
                    "effective_rank": effective,
                }
            )
        frame = pd.DataFrame(rows)
        frame.attrs["provenance"] = dict(self.provenance)
        return frame

    # -- joining and keeping -------------------------------------------------------------------------------------

    @staticmethod
    def merge(moments: Sequence[SecondMoment]) -> SecondMoment:
        """Join second moments of different text, as if all of it had been read at once.

        The result does not depend on their order; how merges are nested changes float64 rounding only.

        Raises: InputError: none given, other weights, layers or settings, or text that two of them hold.
        """
        if not moments:
            raise InputError("no second moments to merge: give at least one")
        ordered = sorted(moments, key=lambda m: [(part.corpus_hash, part.ranges) for part in m.parts])
        first = ordered[0]
        names = ("fingerprint", "tokenizer_hash", "layers", "widths", "context", "prepend_bos")
        for place, other in enumerate(ordered[1:], start=1):
            both = {name: (getattr(first, name), getattr(other, name)) for name in names}
            differ = [f"{name} {mine} and {theirs}" for name, (mine, theirs) in both.items() if mine != theirs]
            if differ:
                raise InputError(f"second moments that cannot be merged: {'; '.join(differ)}")
            for part in other.parts:
                if any(part.overlaps(seen) for earlier in ordered[:place] for seen in earlier.parts):
                    raise InputError(f"two second moments hold the same text of {part.source}: it would count twice")
        count = sum(moment.count for moment in ordered)
        sums = {layer: torch.zeros_like(first.sums[layer], dtype=torch.float64) for layer in first.layers}
        for layer, total in sums.items():
            for moment in ordered:
                total += moment.sums[layer]
        return replace(
            first,
            count=count,
            parts=join_parts(part for moment in ordered for part in moment.parts),
            provenance={**first.provenance, "tokens": count},
            sums=sums,
            _conditions={},
            _ranks={},
            _kept={},
        )

    def save(self, path: str | Path, dtype: Literal["float64", "float32"] = "float64") -> Path:
        """Write a safetensors file, whole or not at all: packed triangles, and a header that says all the rest.

        Args:
            path: the file. dtype: ``"float64"``, or ``"float32"`` at half the size.

        Raises: FileError: a file that cannot be written. InputError: another dtype.
        """
        target = check_destination(path)
        conditions = {str(layer): self.condition(layer) for layer in self.layers}
        finite = {layer: found if found < math.inf else None for layer, found in conditions.items()}
        header = {
            "kind": KIND,
            "schema": SCHEMA,
            "ffnmem": __version__,
            **{name: getattr(self, name) for name in FIELDS},
            "parts": [[part.corpus_hash, part.source, part.ranges] for part in self.parts],
            "provenance": dict(self.provenance),
            "conditions": finite,
            "ranks": self._ranks,
        }
        arrays = {str(layer): self.sums[layer].to(DTYPES[dtype]).numpy() for layer in self.layers}
        write_tensors(target, header, arrays, sort_keys=True)
        return target

    @staticmethod
    def load(path: str | Path) -> SecondMoment:  # type: ignore[override]  # it holds no model
        """Open a file; a layer is read, and checked, when it is first asked for. Raises FileError."""
        place = user_path(path)
        file = HeadedTensors(place, FORM, f"there is no second moment at {place}: make one with second_moment")
        header = file.header
        values: dict[str, Any] = {name: tuple(v) if isinstance(v := header[name], list) else v for name in FIELDS}
        parts = tuple(Part(h, s, tuple((a, b) for a, b in ranges)) for h, s, ranges in header["parts"])
        conditions = {int(k): math.inf if v is None else float(v) for k, v in header["conditions"].items()}
        ranks = {int(layer): found for layer, found in header.get("ranks", {}).items()}
        known: dict[str, Any] = {"_conditions": conditions, "_ranks": ranks}
        return SecondMoment(**values, parts=parts, provenance=header["provenance"], sums=FileSums(file), **known)


def moment_of(
    model: Model,
    sums: Mapping[int, Tensor],
    count: int,
    part: Part,
    exact: bool,
    context: int,
    prepend_bos: bool,
    **settings: Any,
) -> SecondMoment:
    """The second moment of a model's coefficients, as the model is now.

    Args:
        sums: triangles by layer, ascending. count: of tokens in them. part: which text. exact: whether products were
            float64. context, prepend_bos: of its sequences. settings: what else the provenance has.
    """
    return SecondMoment(
        model=model.name,
        fingerprint=model.fingerprint,
        tokenizer_hash=tokenizer_hash(model),
        layers=tuple(sums),
        widths=tuple(model.ffn[layer].d_mlp for layer in sums),
        count=count,
        context=context,
        prepend_bos=prepend_bos,
        parts=(part,),
        provenance=model.provenance(
            prepend_bos,
            corpus=part.source,
            corpus_hash=part.corpus_hash,
            context=context,
            tokens=count,
            **settings,
            products="float64" if exact else "float32",
        ).to_dict(),
        sums=sums,
    )


def how_to_make(name: str, layers: Iterable[int] = ()) -> str:
    """The command that makes the second moment of a model of that name: of some layers, by default of all."""
    which = "".join(f" --layers {layer}" for layer in layers)
    return (
        f"ffnmem moment atlas --model {shlex.quote(name)}{which} -o moment.safetensors makes one, better of more "
        "text in place of atlas; pass it as moment= or --moment"
    )


def load_second_moment(
    source: SecondMoment | str | Path | None, model: Model, layers: Iterable[int] = ()
) -> SecondMoment:
    """The second moment to edit a model with.

    Args:
        source: one in memory, a file, ``"atlas"`` for the shipped one, or None for the shipped one of these weights.
        model: the model to edit.
        layers: to say in what is raised how one of them is made; default all.

    Raises:
        InputError: None, and nothing ships for these weights. ModelError: one of other weights.
        FileError: no such file, or a damaged one.
    """
    if source is None:
        found = next((m for m in map(load_shipped, EMBEDDED) if m.fingerprint == model.unedited_fingerprint), None)
        if found is None:
            raise InputError(
                f"{model.name} ({model.fingerprint}) comes without a second moment: {how_to_make(model.name, layers)}"
            )
        return found
    if isinstance(source, SecondMoment):
        moment = source
    else:
        moment = load_shipped(str(source)) if str(source) in EMBEDDED else SecondMoment.load(source)
    moment.check(model, layers)
    return moment


def load_shipped(name: str) -> SecondMoment:
    """The second moment that ships with an embedded model; raises FileError."""
    return SecondMoment.load(embedded_folder(name) / SHIPPED)


def join_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part a corpus, its ranges ascending and as few as can be."""
    by_corpus: dict[str, Part] = {}
    for part in parts:
        seen = by_corpus.get(part.corpus_hash)
        ranges = part.ranges if seen is None else (*seen.ranges, *part.ranges)
        by_corpus[part.corpus_hash] = replace(part if seen is None else seen, ranges=join_ranges(ranges))
    return tuple(by_corpus[key] for key in sorted(by_corpus))


def join_ranges(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Disjoint ranges in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return tuple(found)


class FileSums(Mapping[int, Tensor]):
    """The triangles of a file, each read and checked when it is asked for."""

    def __init__(self, file: HeadedTensors) -> None:
        self.file = file

    def __getitem__(self, layer: int) -> Tensor:
        return torch.from_numpy(self.file.array(str(layer)))

    def __iter__(self) -> Iterator[int]:
        return iter(self.file.header["layers"])

    def __len__(self) -> int:
        return len(self.file.header["layers"])
