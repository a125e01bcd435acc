"""What docs/smollm2.md says of SmolLM2, and the text that ``make real`` reads.

``prose FILE`` writes English prose that every Python has: paragraphs of its language reference, some 20,000 tokens.
``bos FACTS`` says, for each beginning of a text, how many facts of FACTS (known_1000.json, or any file that
``fm.load_facts`` reads) the model answers right with its likeliest token. ``identities`` says how far the sums of
memories are from the model, and how long it loads. ``recall FACTS`` traces and silences facts that it knows: 100 are
drawn, and of these the first ``--limit`` of a shuffle, so that fewer are a random part of more; a folder goes on.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from common import seconds

import ffnmem as fm
from ffnmem.facts.listing import draw_facts
from ffnmem.tracing.places import positions_by_group

BEGINNINGS = ("", "<|im_start|>", "<|endoftext|>")
PROMPT = "The Eiffel Tower is located in the city of"
CHARACTERS = 90_000
BATCH = 64


def paragraphs() -> Iterator[str]:
    """The prose of Python's reference: neither code nor lists nor headings."""
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            text = " ".join(paragraph.split())
            if paragraph[:1].isalpha() and len(text) > 120 and text.endswith("."):
                yield text


def prose(file: Path) -> None:
    kept: list[str] = []
    for text in paragraphs():
        if sum(map(len, kept)) > CHARACTERS:
            break
        kept.append(text)
    file.write_text("\n\n".join(kept) + "\n")
    print(f"{file}: {len(kept)} paragraphs of Python's reference")


@torch.no_grad()
def bos(path: Path, limit: int | None) -> None:
    """Facts of one length are one batch, so nothing is padded."""
    model, facts = fm.load("smollm2"), list(fm.load_facts(path))[:limit]
    tokenizer, hf = model.tokenizer, model.hf_model

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    print(f"{len(facts):,} facts of {path.name}")
    print(f"{'beginning':<16}{'target first':>14}{'mean P(target)':>16}{'P( Paris)':>12}")
    for beginning in BEGINNINGS:
        groups: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for fact in facts:
            tokens = ids(beginning + fact.prompt.format(fact.subject))
            groups[len(tokens)].append((tokens, ids(" " + fact.target_true.strip())[0]))
        first, total = 0, 0.0
        for group in groups.values():
            for start in range(0, len(group), BATCH):
                rows, wanted = zip(*group[start : start + BATCH], strict=True)
                target = torch.tensor(wanted)
                found = hf(torch.tensor(rows), use_cache=False, logits_to_keep=1).logits[:, -1].softmax(-1)
                first += int((found.argmax(-1) == target).sum())
                total += float(found.gather(1, target[:, None]).sum())
        paris = hf(torch.tensor([ids(beginning + PROMPT)])).logits[0, -1].softmax(-1)[ids(" Paris")[0]]
        print(f"{beginning or 'none':<16}{first:>14,}{total / len(facts):>16.3f}{float(paris):>12.3f}", flush=True)


@torch.no_grad()
def identities() -> None:
    loads = [seconds(lambda: fm.load("smollm2")) for _ in range(3)]
    model = fm.load("smollm2")
    capture = fm.capture(model, PROMPT)
    worst = 0.0
    for layer in range(model.n_layers):
        summed = capture.coefficients[layer].double() @ model.ffn[layer].values.double()
        out = capture.ffn_out[layer].double()
        worst = max(worst, float((summed - out).norm() / out.norm()))
    print(f"load: {statistics.median(loads):.1f} s, the median of 3, on {torch.get_num_threads()} threads")
    print(f"memories − a layer's output, relative, the worst of {model.n_layers} layers: {worst:.1e}")
    print(f"attribute {fm.attribute(capture, ' Paris').error:.1e}, attribute_paths ", end="")
    print(f"{fm.attribute_paths(capture, ' Paris').error:.1e} (logits)")


DRAWN = 100
BANDS = (slice(0, 4), slice(4, 9), slice(9, 15), slice(15, 20), slice(20, 30))


def known_in_random_order(model: fm.Model, path: Path) -> tuple[list[fm.Fact], float]:
    """Facts that the model knows, and three standard deviations of the embeddings of their subjects."""
    known = fm.facts.filter_known(model, fm.load_facts(path), known_by="first").facts
    chosen = draw_facts(known, DRAWN, seed=0)
    noise = fm.tracing.noise_scale(model, chosen)
    random.Random(1).shuffle(chosen)
    return chosen, noise


def interval(values: Sequence[float]) -> str:
    """Mean and 95% interval over facts, in percent."""
    numbers = 100 * np.array(values)
    error = 1.96 * numbers.std(ddof=1) / len(numbers) ** 0.5
    return f"{numbers.mean():5.1f} ({numbers.mean() - error:.1f} to {numbers.mean() + error:.1f}), n {len(numbers)}"


def at_last_subject(traces: fm.tracing.Traces, kind: str) -> np.ndarray:
    """Indirect effects ``[facts, n_layers]`` at the last subject token, of the facts that go on after it."""
    found = []
    for trace in traces.traces:
        places = positions_by_group(trace.subject, len(trace.tokens))["last subject"]
        found += [trace.indirect(kind)[:, place] for place in places]
    return np.stack(found)


def print_shares(silenced: fm.tracing.Silencings) -> None:
    """The mean share of the answer's probability that is lost, by group and band of windows."""
    kind = silenced.silencings[0].kinds[0]
    for group in silenced.groups["group"].unique():
        for band in BANDS:
            shares = [
                float((one.loss(kind)[band, column] / one.clean).mean())
                for one in silenced.silencings
                for column, place in enumerate(one.places)
                if place.name == group
            ]
            print(f"share lost, {group}, windows {band.start}-{band.stop - 1}".ljust(58), interval(shares))


def recall(path: Path, limit: int, samples: int, out: Path, traces_only: bool) -> None:
    model = fm.load("smollm2")
    facts, noise = known_in_random_order(model, path)
    folder = out / "traces"
    traces = fm.tracing.trace_facts(model, facts[:limit], out=folder, samples=samples, noise=noise)
    print(traces.to_markdown())
    fm.plots.figure(traces).savefig(folder.with_suffix(".png"), dpi=110)
    for name in ("clean", "corrupted", "total"):
        print(name.ljust(58), interval([getattr(trace, name) for trace in traces.traces]))
    ffn, attention = (at_last_subject(traces, kind) for kind in ("ffn", "attention"))
    for words, values in (
        ("FFNs at the last subject token, mean of windows 0-9", ffn[:, :10].mean(axis=1)),
        ("attention there", attention[:, :10].mean(axis=1)),
        ("FFNs - attention there", (ffn - attention)[:, :10].mean(axis=1)),
        ("FFNs there, mean of windows 10-19", ffn[:, 10:20].mean(axis=1)),
        (
            "state of the last token, layer 23 - layer 22",
            [t.indirect()[23, -1] - t.indirect()[22, -1] for t in traces.traces],
        ),
    ):
        print(words.ljust(58), interval(values))
    if traces_only:
        return
    for words, kind, window in (
        ("without-ffn", "ffn", None),
        ("without-attention", "attention", None),
        ("without-ffn-of-one-layer", "ffn", 1),
    ):
        kept = out / f"{words}-{limit}.safetensors"
        if kept.exists():
            silenced = fm.tracing.Silencings.load(kept)
        else:
            silenced = fm.tracing.trace_facts(model, facts[:limit], way="silence", kinds=(kind,), window=window)
            silenced.save(kept)
        print(silenced.to_markdown())
        print_shares(silenced)
        fm.plots.figure(silenced).savefig(out / f"{words}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prose").add_argument("file", type=Path)
    begins = commands.add_parser("bos")
    begins.add_argument("facts", type=Path)
    begins.add_argument("--limit", type=int, help="only so many facts, the first of the file")
    commands.add_parser("identities")
    recalled = commands.add_parser("recall")
    recalled.add_argument("facts", type=Path)
    recalled.add_argument("--limit", type=int, default=DRAWN, help=f"at most {DRAWN}")
    recalled.add_argument("--samples", type=int, default=10)
    recalled.add_argument("--out", type=Path, required=True)
    recalled.add_argument("--traces-only", action="store_true", help="silence nothing")
    given = parser.parse_args()
    if given.command == "prose":
        prose(given.file)
    elif given.command == "bos":
        bos(given.facts, given.limit)
    elif given.command == "recall":
        recall(given.facts, given.limit, given.samples, given.out, given.traces_only)
    else:
        identities()


if __name__ == "__main__":
    main()
