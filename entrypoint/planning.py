"""The first call of every front door: a plan, from the environment and what this machine is."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.detect import detect
from entrypoint.host import read_machine
from entrypoint.options import Options
from entrypoint.plan import Plan, plan


def make_plan(environ: Mapping[str, str], options: Options) -> Plan:
    """What this task will start, from the environment and this machine.

    Raises:
        Failure: where launching would train wrongly, hang, or cannot work.
    """
    machine = read_machine(environ, gpus=options.device != "cpu")
    return plan(detect(environ, options, machine), options, machine, environ)
