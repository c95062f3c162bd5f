"""What ranks need to exchange numbers, by size, under whatever launcher this is: alpha + beta x bytes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from entrypoint import ExitCode, Failure, HangTimeouts, Plan, SupervisionPolicy, make_plan, run_plan
from train.bench import pairs, rows, sides
from train.bench.options import Options
from train.bench.rows import Found, Row, Series, Target

KB, MB = 1000, 1_000_000
# To the gradients of the reference network: 17.2 million numbers.
SIZES: Final = (1 * KB, 10 * KB, 100 * KB, 1 * MB, 4 * MB, 16 * MB, 68_701_776)
LIMIT_S: Final = 600.0
Points = Sequence[tuple[float, float]]


def arguments(group: argparse._ArgumentGroup) -> None:
    """What only this bench takes."""
    group.add_argument("--sizes", metavar="BYTES,...", type=_sizes, help="how much each rank sends")


def run(options: Options) -> Iterator[Found]:
    """A line for each operation, the fit beside it, and its two numbers. Only the task of rank 0 has something to say.

    Raises:
        Failure: PEER, where the ranks do not come to an end; NODE, where numbers came wrong.
    """
    plan = _plan(options)
    if plan.world.world_size == 1:
        target = Target(what="all-reduce, broadcast, gather")
        yield Row(number="comm", target=target, missing="needs two ranks: several GPUs, or --procs-per-node 2")
        return
    told = _exchanged(options, plan)
    if told is not None:
        yield from reported(told)


def reported(told: Mapping[str, Any]) -> Iterator[Found]:
    """What rank 0 has left, as a plot and as figures."""
    where = {"ranks": told["ranks"], "nodes": told["nodes"], "device": told["device"]}
    lines: dict[str, Points] = {}
    fits: dict[str, Points] = {}
    for name, points in told["seconds"].items():
        alpha, beta = fitted(points)
        lines[name] = [(size / MB, seconds * 1e6) for size, seconds in points]
        fits[f"{name}: fit"] = [(size / MB, (alpha + beta * size) * 1e6) for size, _ in points]
        for letter, what, value in (("alpha", "time without bytes", alpha), ("beta", "time of a MB", beta * MB)):
            yield rows.figure(f"{name} {letter}", f"{name}: {what}", pairs.exactly(value * 1e6), unit="µs", **where)
    title = f"Time to exchange numbers, {told['ranks']} ranks on {told['nodes']} node{'s' * (told['nodes'] != 1)}"
    yield Series(
        name="comm",
        title=title,
        x="MB from each rank",
        y="µs",
        lines=lines | fits,
        dashed=tuple(fits),
        log_x=True,
        log_y=True,
    )


def fitted(points: Points) -> tuple[float, float]:
    """(alpha in s, beta in s per byte) of (bytes, s): the least squares of relative errors, neither below 0."""
    weights = [(1 / seconds**2, size, seconds) for size, seconds in points]
    total, sized = sum(w for w, _, _ in weights), sum(w * x for w, x, _ in weights)
    squared = sum(w * x * x for w, x, _ in weights)
    timed, both = sum(w * y for w, _, y in weights), sum(w * x * y for w, x, y in weights)
    spread = total * squared - sized * sized
    if spread <= 0:  # one size
        return timed / total, 0.0
    alpha, beta = (squared * timed - sized * both) / spread, (total * both - sized * timed) / spread
    if alpha < 0:
        return 0.0, both / squared
    return (alpha, beta) if beta > 0 else (timed / total, 0.0)


def _plan(options: Options) -> Plan:
    """As asked for; two ranks on a CPU where nothing was."""
    plan = make_plan(options.environ, options.launch)
    if plan.world.world_size > 1 or plan.device != "cpu" or options.launch.procs_per_node:
        return plan
    return make_plan(options.environ, replace(options.launch, procs_per_node=2))


def _exchanged(options: Options, plan: Plan) -> Mapping[str, Any] | None:
    """Run the ranks of this task; what rank 0 found, where it is of this task."""
    result, logs = options.scratch / "exchange.json", options.scratch / "logs"
    sizes = getattr(options.own, "sizes", None) or (SIZES[:2] if options.quick else SIZES)
    command = sides.command("exchange", "--result", str(result), "--sizes", *map(str, sizes))
    limits = HangTimeouts(start=LIMIT_S, step=LIMIT_S, evaluation=LIMIT_S, save=LIMIT_S, data=LIMIT_S)
    care = SupervisionPolicy(limits=limits, errors=logs, blame=lambda failure, rank, host, step: None)
    code = run_plan(plan, command, options.environ, log_dir=logs, foreign=False, care=care)
    if code:
        fix = "the lines above say why; look at the network with `entrypoint show`"
        raise Failure("the ranks did not exchange their numbers", found=f"exit code {code}", fix=fix, code=_code(code))
    return json.loads(result.read_text()) if result.exists() else None


def _code(number: int) -> ExitCode:
    return ExitCode(number) if number in set(ExitCode) else ExitCode.PEER


def _sizes(text: str) -> list[int]:
    sizes = [int(word) for word in text.split(",")]
    if min(sizes) < 4:
        raise ValueError
    return sizes
