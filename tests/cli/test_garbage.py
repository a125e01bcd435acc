"""The search for garbage: seldom while a process sets itself up, as usual for its work, and as it was elsewhere."""

from __future__ import annotations

import gc
import subprocess
import sys

from ffnmem.cli.guard import SELDOM, USUAL, collect_as_usual

CODE = """
import gc, json
from ffnmem import cli
from ffnmem.cli.options import ModelChoice, fm
found = []
def load(*args, **options):
    found.append(gc.get_threshold())
    return "a model"
fm.load = load
def attribute(tokens):
    ModelChoice().load()
    found.append((gc.get_threshold(), gc.get_freeze_count() > 1000))
cli.run = attribute
try:
    cli.main()
except SystemExit:
    print(json.dumps([found, gc.isenabled()]))
"""


def test_a_command() -> None:
    """Work that makes much garbage must not do so with searches that are seldom."""
    found = subprocess.run([sys.executable, "-c", CODE, "facts"], capture_output=True, text=True, check=True).stdout
    assert found.split() == f"[[{list(SELDOM)}, [{list(USUAL)}, true]], true]".split()


def test_in_another_process() -> None:
    """A notebook's or a test's own objects are not to be kept for ever."""
    before = gc.get_freeze_count()
    collect_as_usual()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (USUAL, before)
