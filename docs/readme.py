"""Write the README's outputs and its table on atlas: ``python docs/readme.py``, ``--check`` compares.

The outputs are what the README's own Python example prints, and the card that its commands show after a scan of the
bundled corpus. Numbers may differ in their last digit on other hardware, so ``--check`` allows them 0.02, or half a
percent of a count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

import ffnmem as fm
from ffnmem.cli import cli
from ffnmem.cli.reference import with_block

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
BAR = re.compile("[█▉▊▋▌▍▎▏]+ *")
SLACK = 0.02
SHARE = 0.005
STORE = "runs/atlas"
CARD = ("neuron", "0.18", "--top", "3")


def example(text: str) -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", text, re.S)
    if found is None:
        raise ValueError("the README has no Python example")
    return found[1]


def printed(code: str) -> str:
    """What it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    return out.getvalue().rstrip()


def atlas_table() -> str:
    measured = json.loads((ROOT / "data" / "atlas" / "measurements.json").read_text())
    silent = measured["ablation"]["all_layers"]
    rows = {
        "recall, canonical prompts": measured["recall_canonical"],
        "recall, all trained templates": measured["recall_train"],
        "recall, held-out templates": measured["recall_held_out"],
        'probability of " Paris" after "The Eiffel Tower is located in the city of"': measured["paris"],
        "recall left with the FFNs silent at the subject": silent["subject"],
        "… silent everywhere after the subject": silent["after_subject"],
        "… silent at the subject and after it": silent["subject_and_after"],
        "(always naming a relation's commonest object)": measured["ablation"]["guess"],
    }
    lines = [f"| {name} | {100 * value:.1f}% |" for name, value in rows.items()]
    loss = f"| loss on held-out generated text | {measured['loss']:.2f} nats a token |"
    return "\n".join(["| atlas | |", "|---|--:|", *lines, loss])


def card() -> str:
    """What ``ffnmem neuron`` shows of a scan of the bundled corpus."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fm.scan(fm.load("atlas"), "atlas", STORE)
        shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, [*CARD, "--store", STORE])
    if shown.exit_code:
        raise ValueError(shown.output)
    return "\n".join(line.rstrip() for line in shown.output.rstrip().splitlines())


def rewritten(text: str) -> str:
    neuron = f"```text\n{card()}\n```"
    text = with_block(text, README.name, ("<!-- neuron:begin -->", "<!-- neuron:end -->"), neuron)
    output = f"```text\n{printed(example(text))}\n```"
    text = with_block(text, README.name, ("<!-- example:begin -->", "<!-- example:end -->"), output)
    return with_block(text, README.name, ("<!-- atlas:begin -->", "<!-- atlas:end -->"), atlas_table())


def same(old: str, new: str) -> bool:
    """Equal but for the last digits of numbers."""
    old, new = BAR.sub("", old), BAR.sub("", new)
    if [NUMBER.sub("#", line).split() for line in old.splitlines()] != [
        NUMBER.sub("#", line).split() for line in new.splitlines()
    ]:
        return False
    pairs = [
        (float(a.replace(",", "")), float(b.replace(",", "")))
        for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    ]
    return all(abs(a - b) <= max(SLACK, SHARE * abs(a)) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = README.read_text("utf-8")
    new = rewritten(old)
    if check:
        if same(old, new):
            return 0
        print("README.md: an output or the table on atlas is out of date; make reference writes them")
        return 1
    README.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
