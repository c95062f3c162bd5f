"""`train bench NAME...` measures the user's own machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def handle(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `train bench`."""
    from bench import __main__ as command  # no other command of `train` needs it

    return command.run_command(command.TRAIN_BENCH, argv, environ)
