"""From a scheduler's environment to N running processes. `train` may import the names offered here, and no others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrypoint import gauges, network
    from entrypoint.binds import fleeting, unseen
    from entrypoint.cgroups import processors
    from entrypoint.children import die_with_parent
    from entrypoint.console import shield
    from entrypoint.doctor.brief import look_around
    from entrypoint.errors import ExitCode, Failure
    from entrypoint.folding import say, say_help
    from entrypoint.hang import Limits
    from entrypoint.hangwatch import Care
    from entrypoint.launch import run_plan
    from entrypoint.limits import met
    from entrypoint.options import Options, add_launch_arguments, options_from
    from entrypoint.plan import Plan
    from entrypoint.planning import make_plan
    from entrypoint.pulse import REPEAT_S, Pulse, attach
    from entrypoint.redaction import redact, redact_value, redact_words
    from entrypoint.resident import hold
    from entrypoint.threads import begin_thread
    from entrypoint.world import World, from_environ

__all__ = [
    "REPEAT_S",
    "Care",
    "ExitCode",
    "Failure",
    "Limits",
    "Options",
    "Plan",
    "Pulse",
    "World",
    "add_launch_arguments",
    "attach",
    "begin_thread",
    "die_with_parent",
    "fleeting",
    "from_environ",
    "gauges",
    "hold",
    "look_around",
    "make_plan",
    "met",
    "network",
    "options_from",
    "processors",
    "redact",
    "redact_value",
    "redact_words",
    "run_plan",
    "say",
    "say_help",
    "shield",
    "unseen",
]

# Each is loaded when it is first asked for: `entrypoint show` starts no process, and a rank starts none either.
PLACES = {
    "binds": ("fleeting", "unseen"),
    "cgroups": ("processors",),
    "children": ("die_with_parent",),
    "console": ("shield",),
    "doctor.brief": ("look_around",),
    "errors": ("ExitCode", "Failure"),
    "folding": ("say", "say_help"),
    "hang": ("Limits",),
    "hangwatch": ("Care",),
    "launch": ("run_plan",),
    "limits": ("met",),
    "options": ("Options", "add_launch_arguments", "options_from"),
    "plan": ("Plan",),
    "planning": ("make_plan",),
    "pulse": ("REPEAT_S", "Pulse", "attach"),
    "redaction": ("redact", "redact_value", "redact_words"),
    "resident": ("hold",),
    "threads": ("begin_thread",),
    "world": ("World", "from_environ"),
}
PLACE = {name: module for module, names in PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """PEP 562: what a module here offers, loaded now and kept."""
    if name not in PLACE:  # a module of this package is found by the import itself
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{PLACE[name]}"), name)
    return value
