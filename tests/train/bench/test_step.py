"""Time of a step beside scripts that do the same by hand."""

from __future__ import annotations
