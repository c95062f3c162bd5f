"""From a scheduler's environment to N running processes. `train` may import the names offered here, and no others."""

from entrypoint import network
from entrypoint.binds import unseen
from entrypoint.children import die_with_parent
from entrypoint.console import shield
from entrypoint.errors import ExitCode, Failure
from entrypoint.hang import Limits
from entrypoint.hangwatch import Care
from entrypoint.launch import make_plan, run_plan
from entrypoint.limits import met
from entrypoint.options import Options, add_launch_arguments, options_from
from entrypoint.plan import Plan
from entrypoint.pulse import Pulse, attach
from entrypoint.resident import hold
from entrypoint.world import World, from_environ

__all__ = [
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
    "die_with_parent",
    "from_environ",
    "hold",
    "make_plan",
    "met",
    "network",
    "options_from",
    "run_plan",
    "shield",
    "unseen",
]
