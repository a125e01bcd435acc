"""Write what the README and the manual show as output: ``python docs/outputs.py [PAGE …]``, ``--check`` compares.

An output stands between ``<!-- output:begin -->`` and ``<!-- output:end -->``, and what made it in the block before:
Python, or ``ffnmem`` commands, of which the last one's output is shown. The blocks of a page are run in their order, in
one namespace and one folder; a block with ``<!-- run -->`` behind it is run, too, and what it prints is not shown.
Numbers may differ in their last digit on other hardware, so ``--check`` allows them 0.02, or half a percent of a count.
The table on atlas comes from the measurements beside the model.

Blocks that name ``smollm2`` need that model, which is got once from the package index. Where it cannot be had they, and
the Python behind them on their page, are left as they are, and a line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from ffnmem.cli import run_captured
from ffnmem.core.errors import MissingExtraError, ModelError
from ffnmem.models import get

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks" / "planted"))  # pages run in folders of their own
PAGES = (
    "README.md",
    "docs/guide/answers.md",
    "docs/guide/causal.md",
    "docs/guide/circuits.md",
    "docs/guide/compare.md",
    "docs/guide/concepts.md",
    "docs/guide/contrast.md",
    "docs/guide/auditing.md",
    "docs/guide/editing.md",
    "docs/guide/evaluation.md",
    "docs/guide/tracing.md",
    "docs/guide/prompts.md",
    "docs/guide/tokens.md",
    "docs/guide/neurons.md",
    "docs/guide/scanning.md",
    "docs/guide/site.md",
    "docs/guide/describing.md",
    "docs/guide/connections.md",
    "docs/guide/interventions.md",
    "docs/guide/atlas.md",
    "docs/howto/own_facts.md",
    "docs/howto/own_measure.md",
    "docs/howto/own_editor.md",
    "docs/howto/cluster.md",
    "docs/howto/gpt2_xl.md",
)
ATLAS = "docs/guide/atlas.md"
SHOWN = re.compile(
    r"^```(?P<kind>python|bash)\n(?P<code>(?:(?!```).*\n)*)```\n\n"
    r"(?:(?P<silent><!-- run -->)|<!-- output:begin -->\n(?:.*\n)*?<!-- output:end -->)",
    re.M,
)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
BAR = re.compile("[█▉▊▋▌▍▎▏]+ *")
EDITED = re.compile(r"\bedited [0-9a-f]{12}\b")  # the fingerprint of weights that were computed here
REAL = "smollm2"
SLACK = 0.02
SHARE = 0.005


def with_outputs(text: str, page: str, lacking: str = "") -> str:
    """A page with the output of every block that shows one, run again; ``lacking``: why there is no real model."""
    names: dict[str, Any] = {"__name__": "manual"}
    left = dict.fromkeys(("python", "bash"), 0)

    def run(found: re.Match[str]) -> str:
        kind, code = found["kind"], found["code"]
        if lacking and (REAL in code or (kind == "python" and left[kind])):  # names pass from one Python to the next
            left[kind] += 1
            return found[0]
        made = printed(code, names) if kind == "python" else last_shown(code)
        if found["silent"]:
            return found[0]
        return f"```{kind}\n{code}```\n\n<!-- output:begin -->\n```text\n{made}\n```\n<!-- output:end -->"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        made, count = SHOWN.subn(run, text)
    if count != text.count("<!-- output:begin -->") + text.count("<!-- run -->"):
        raise ValueError(f"{page}: an output:begin or run does not stand right behind a block of Python or of commands")
    if sum(left.values()):
        print(f"{page}: {sum(left.values())} of {count} outputs were not made again: {lacking}")
    return made


def real_model() -> str:
    """Get the real model, unless it is there; why it cannot be had, or nothing."""
    try:
        get(REAL)
    except (MissingExtraError, ModelError) as error:
        return str(error)
    return ""


def printed(code: str, names: dict[str, Any]) -> str:
    """What Python prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "manual", "exec"), names)
    return out.getvalue().rstrip()


def last_shown(commands: str) -> str:
    """What the last of some commands shows on a terminal of 80 columns."""
    for line in commands.replace("\\\n", " ").splitlines():
        _, *arguments = shlex.split(line, comments=True)
        with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
            status, out, err = run_captured(arguments)
        if status:
            raise ValueError(f"{line}: {out}{err}")
    return "\n".join(line.rstrip() for line in out.rstrip().splitlines())


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


def rewritten(page: str, text: str, lacking: str) -> str:
    if page == ATLAS:
        first, last = "<!-- atlas:begin -->", "<!-- atlas:end -->"
        text = f"{text.partition(first)[0]}{first}\n{atlas_table()}\n{last}{text.partition(last)[2]}"
    return with_outputs(text, page, lacking)


def same(old: str, new: str) -> bool:
    """Equal but for the last digits of numbers, and for fingerprints of edited weights."""
    old, new = (EDITED.sub("", BAR.sub("", page)) for page in (old, new))
    if [NUMBER.sub("#", line).split() for line in old.splitlines()] != [
        NUMBER.sub("#", line).split() for line in new.splitlines()
    ]:
        return False
    pairs = [
        (float(a.replace(",", "")), float(b.replace(",", "")))
        for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    ]
    # Equal first: what a hash has of an e may be infinite as a number.
    return all(a == b or abs(a - b) <= max(SLACK, SHARE * abs(a)) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=PAGES, help="default: all that show outputs")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where an output is out of date")
    options = parser.parse_args()
    check, late = options.check, []
    olds = {page: (ROOT / page).read_text("utf-8") for page in options.pages}
    lacking = real_model() if any(REAL in old for old in olds.values()) else ""
    for page, old in olds.items():
        new = rewritten(page, old, lacking)
        if check and not same(old, new):
            late.append(page)
        elif not check:
            (ROOT / page).write_text(new, "utf-8")
    if late:
        print(f"an output is out of date in {', '.join(late)}; make reference writes them")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
