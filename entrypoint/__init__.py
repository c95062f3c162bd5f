"""From a scheduler's environment to N running processes. `train` may import the names offered here, and no others."""

from entrypoint import network
from entrypoint.binds import unseen
from entrypoint.console import shield
from entrypoint.errors import ExitCode, Failure
from entrypoint.launch import make_plan, run_plan
from entrypoint.options import Options, add_launch_arguments, options_from
from entrypoint.plan import Plan
from entrypoint.world import World, from_environ

__all__ = [
    "ExitCode",
    "Failure",
    "Options",
    "Plan",
    "World",
    "add_launch_arguments",
    "from_environ",
    "make_plan",
    "network",
    "options_from",
    "run_plan",
    "shield",
    "unseen",
]
