"""From a scheduler's environment to N running processes. `train` may import the names offered here, and no others."""

from entrypoint.errors import ExitCode, Failure
from entrypoint.world import World

__all__ = ["ExitCode", "Failure", "World"]
