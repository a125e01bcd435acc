"""``ffnmem moment`` and ``lens``: passes over a corpus, what they left."""

from __future__ import annotations

import ffnmem as fm

from ..core.number_text import format_bytes
from ..show.records import emit
from .guard import note
from .options import (
    Corpus,
    CorpusReading,
    Count,
    EditFile,
    Layers,
    NewFile,
    Output,
    Seed,
    Shard,
    TextChoice,
    option_group,
)
from .progress import noting, show_progress


@option_group
class MomentText(CorpusReading):
    """The text of a second moment, as the library's arguments of it.

    Attributes:
        tokens: Stop after so many tokens; ten times d_mlp go most of the way.
        shard: Only the I-th of N parts of the text.
    """

    tokens: Count | None = None
    shard: Shard = (0, 1)


def moment(
    corpus: Corpus = "atlas",
    /,
    *,
    out: EditFile,
    layer: Layers | None = None,
    text: MomentText = MomentText(),
    model: TextChoice = TextChoice(),
    output: Output = Output(),
) -> None:
    """Read text for what editors need: C = E[m mᵀ] of every layer.

    Reads CORPUS once and writes the second moments of the coefficients of every layer into a file, for --moment of
    ffnmem edit and ffnmem evaluate. The one of atlas ships with it.

    The pass can be stopped at any moment: the same command goes on where it was. How much text is enough: rank below
    d_mlp is too little, twice d_mlp tokens are enough.

    Examples
      ffnmem moment texts.jsonl --text body --tokens 20000 -o moments.safetensors
      ffnmem moment atlas --layer 0 --tokens 500 -o first.safetensors --json

    --csv has layer, count, trace, condition, rank, effective_rank; --json these, the text and the provenance.

    Args:
        out: The file to write: FILE.safetensors.
        layer: Of this layer only (repeatable).
    """
    loaded = model.load()
    widths = [
        loaded.ffn[name].d_mlp
        for name in (range(loaded.n_layers) if layer is None else {loaded.layer(n) for n in layer})
    ]
    size = format_bytes(sum(8 * width * (width + 1) / 2 for width in widths))  # packed triangles in float64
    with show_progress() as report:
        report = noting(f"will write about {size} into {out}", "moment", report)
        moments = fm.editing.second_moment(loaded, corpus, out, layers=layer, progress=report, **vars(text))
    emit(moments, output.form, sheet=lambda: moments.sheet(moments.to_frame(), out))
    note(f"wrote {out}")


@option_group
class LensText(CorpusReading):
    """The text of a lens, as the library's arguments of it.

    Attributes:
        batch_tokens: Tokens of a page of text, pads included; time and memory grow with it, the error falls with its
            square root.
        pages: How many pages the rows of a matrix share.
    """

    batch_tokens: Count = 2048
    pages: Count = 16
    seed: Seed = 0


def lens(
    corpus: Corpus = "atlas",
    /,
    *,
    out: EditFile | None = None,
    half: bool = False,
    export: NewFile | None = None,
    text: LensText = LensText(),
    model: TextChoice = TextChoice(),
    output: Output = Output(),
) -> None:
    """Fit a Jacobian lens for a model, for --lens jacobian.

    Takes the Jacobians of a model's last residual stream by that above every layer, on average over CORPUS, for --lens
    of ffnmem project, neuron and report. The one of atlas ships with it.

    It takes as many backward passes as the model is wide (d_model), each over one page of text, and can be stopped at
    any moment: the same command goes on where it was. Of each layer the table has the error (a standard error relative
    to the matrix), the norm over that of the identity, and the share of its square that is a multiple of the identity,
    all there is to it in the logit lens.

    Examples
      ffnmem lens texts.jsonl --text body --model gpt2
      ffnmem lens atlas --batch-tokens 256 -o lens.safetensors --json
      ffnmem lens atlas --export atlas_jacobian_lens.pt

    --csv has layer, error, norm, identity; --json these and the provenance.

    Args:
        out: The file to write: FILE.safetensors. [default: one in the cache, where --lens jacobian finds it]
        half: Write float16, half the size.
        export: Also write the lens as other programs publish theirs, which --lens reads too: FILE.pt, in float16.
    """
    loaded = model.load()
    with show_progress() as report:
        fitted = fm.vocabulary.jacobian_lens(
            loaded, corpus, out, dtype="float16" if half else "float32", progress=report, **vars(text)
        )
    if export is not None:
        note(f"wrote {fitted.publish(export)}")
    emit(fitted, output.form)
    note(f"wrote {out}" if out is not None else f"kept for {loaded.name} ({loaded.fingerprint})")
