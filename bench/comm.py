"""This module measures how long ranks need to exchange numbers, by size, and fits alpha + beta x bytes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.estimates import exact
from bench.measurements import Measurement, Row, Series, Target, reported_row
from bench.processes import BenchOptions, module_command, run_ranks
from entrypoint import ExitCode, Failure, Plan, make_plan, shell_command

KB, MB = 1000, 1_000_000
# The last is the size of the gradients of the reference network: 17.2 million numbers.
SIZES: Final = (1 * KB, 10 * KB, 100 * KB, 1 * MB, 4 * MB, 16 * MB, 68_701_776)
LIMIT_S: Final = 600.0
Points = Sequence[tuple[float, float]]


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the arguments of this benchmark."""
    group.add_argument("--sizes", metavar="BYTES,...", type=_parse_sizes, help="how much each rank sends")


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Measure each operation; yield alpha and beta of each, and one plot. Only rank 0's task has results.

    Raises:
        Failure: PEER, if the ranks do not come to an end; NODE, if numbers were wrong.
    """
    plan = _plan(options)
    if plan.world.world_size == 1:
        target = Target(what="all-reduce, broadcast, gather")
        yield Row(number="comm", target=target, missing="needs two ranks: several GPUs, or --procs-per-node 2")
        return
    result = _exchange(options, plan)
    if result is not None:
        yield from report(result)


def report(result: Mapping[str, Any]) -> Iterator[Measurement]:
    """Turn the file that rank 0 wrote into rows and a plot."""
    facts = {"ranks": result["ranks"], "nodes": result["nodes"], "device": result["device"]}
    lines: dict[str, Points] = {}
    fits: dict[str, Points] = {}
    for name, points in result["seconds"].items():
        alpha, beta = fit_line(points)
        lines[name] = [(size / MB, seconds * 1e6) for size, seconds in points]
        fits[f"{name}: fit"] = [(size / MB, (alpha + beta * size) * 1e6) for size, _ in points]
        coefficients = (("alpha", "time of an exchange without bytes", alpha), ("beta", "time per MB", beta * MB))
        for letter, what, value in coefficients:
            yield reported_row(f"{name} {letter}", f"{name}: {what}", exact(value * 1e6), unit="µs", **facts)
    nodes = f"{result['nodes']} node{'s' * (result['nodes'] != 1)}"
    yield Series(
        name="comm",
        title=f"Time to exchange numbers, {result['ranks']} ranks on {nodes}",
        x="MB from each rank",
        y="µs",
        lines=lines | fits,
        dashed=tuple(fits),
        log_x=True,
        log_y=True,
    )


def fit_line(points: Points) -> tuple[float, float]:
    """Fit (alpha in s, beta in s per byte) to (bytes, s) by least squares of relative errors, neither below 0."""
    weights = [(1 / seconds**2, size, seconds) for size, seconds in points]
    sum_w, sum_wx = sum(w for w, _, _ in weights), sum(w * x for w, x, _ in weights)
    sum_wxx = sum(w * x * x for w, x, _ in weights)
    sum_wy, sum_wxy = sum(w * y for w, _, y in weights), sum(w * x * y for w, x, y in weights)
    determinant = sum_w * sum_wxx - sum_wx * sum_wx
    if determinant <= 0:  # one size
        return sum_wy / sum_w, 0.0
    alpha = (sum_wxx * sum_wy - sum_wx * sum_wxy) / determinant
    beta = (sum_w * sum_wxy - sum_wx * sum_wy) / determinant
    if alpha < 0:
        return 0.0, sum_wxy / sum_wxx
    return (alpha, beta) if beta > 0 else (sum_wy / sum_w, 0.0)


def _plan(options: BenchOptions) -> Plan:
    """The launch as requested; without a request, two ranks on a CPU."""
    plan = make_plan(options.environ, options.launch)
    if plan.world.world_size > 1 or plan.device != "cpu" or options.launch.procs_per_node:
        return plan
    return make_plan(options.environ, replace(options.launch, procs_per_node=2))


def _exchange(options: BenchOptions, plan: Plan) -> Mapping[str, Any] | None:
    """Run the ranks of this task; return what rank 0 wrote, if rank 0 belongs to this task."""
    result, logs = options.scratch / "exchange.json", options.scratch / "logs"
    sizes = getattr(options.arguments, "sizes", None) or (SIZES[:2] if options.quick else SIZES)
    words = ["--result", str(result), "--timeout", f"{LIMIT_S:g}", "--sizes", *map(str, sizes)]
    command = module_command("train.distributed.allreduce_check", *words)
    code = run_ranks(plan, command, options.environ, logs=logs, limit_s=LIMIT_S)
    if code:
        raise Failure(
            "the ranks did not exchange their numbers",
            found=f"exit code {code}",
            fix=f"the lines above say why; look at the network with `{shell_command('entrypoint show')}`",
            code=ExitCode(code) if code in set(ExitCode) else ExitCode.PEER,
        )
    return json.loads(result.read_text()) if result.exists() else None


def _parse_sizes(text: str) -> list[int]:
    """Raises ValueError."""
    sizes = [int(word) for word in text.split(",")]
    if min(sizes) < 4:
        raise ValueError
    return sizes
