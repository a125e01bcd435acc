"""``ffnmem lens``: passes over a corpus, what they left."""

from __future__ import annotations

import ffnmem as fm

from ..show.records import emit
from .guard import note
from .options import (
    Corpus,
    CorpusReading,
    Count,
    EditFile,
    NewFile,
    Output,
    Seed,
    TextChoice,
    option_group,
)
from .progress import show_progress


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
