"""What a command must not load: every module costs whoever asks one question of one prompt."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("transformer_lens", "matplotlib", "sklearn", "datasets", "wandb", "scipy.stats", "ray", "ffnmem.scanning")
CODE = """
import json, sys
import ffnmem as fm
model = fm.load("atlas")
capture = fm.capture(model, "The Eiffel Tower is located in the city of", logits=True)
fm.attribute(capture, " Paris", " Rome").neurons
fm.attribute_paths(capture, " Paris").components
with fm.intervene(model, {(3, 17): 0.0}):
    fm.capture(model, "The")
from ffnmem.cli.attribute_tables import heading
print(json.dumps([name for name in sys.argv[1:] if name in sys.modules]))
model.bridge
print(json.dumps("transformer_lens" in sys.modules))
"""


def test_heavy_modules_stay_out() -> None:
    """TransformerLens alone takes four seconds, for those who never asked for it."""
    found = subprocess.run([sys.executable, "-c", CODE, *HEAVY], capture_output=True, text=True, check=True)
    loaded, asked = map(json.loads, found.stdout.splitlines())
    assert loaded == []
    assert asked is True  # or the list above would be empty whatever was loaded
