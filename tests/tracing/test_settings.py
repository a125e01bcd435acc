"""What a trace can be asked for."""

from __future__ import annotations
