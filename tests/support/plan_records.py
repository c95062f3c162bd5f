"""Plans the launch in thousands of environments and prints each world or refusal as JSON.

A change that moves code of the planner changes none of them; one that means to, lists those that it changes:

python tests/support/plan_records.py > before.json              in a checkout of the old code
python tests/support/plan_records.py --against before.json      in one of the new: ends with 1 where anything differs

The environments are the captured ones, those of tests/support/synthetic.py, families.py and bad/environs.py, each of
them with one variable changed, and mixtures of two or three of them, drawn from a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import synthetic
from bad import environs
from captures import read_captures
from families import FAMILIES
from machines import captured, fake_gpus, machine

from entrypoint.errors import Failure
from entrypoint.handover import Handover
from entrypoint.job import job_info_from_environ
from entrypoint.launchers import current_job_key, detect_allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation
from entrypoint.platforms import SAGEMAKER_HOST_FILE

MIXTURES = 8_000
CHANGES = ("", "0", "1", "3", "99", "-1", "x")
# Nothing of the launch: a captured environment has dozens of them, and changing one changes nothing.
KEPT_AS_THEY_ARE = re.compile(
    r"PATH|HOME|PWD|LANG|TERM|USER|LOGNAME|SHELL|SHLVL|_|LC_.*|SLURM_(CLUSTER_NAME|CONF|.*UID|.*GID|.*USER.*|.*DIR|.*TIME"
    r"|.*PARTITION|.*ACCOUNT|JOB_NAME|.*ADDR|.*PORT|TOPOLOGY.*|PRIO.*|.*UMASK|WORKING.*|SCRIPT.*|.*HOST)|.*CONTAINER.*"
)
Source = tuple[dict[str, str], dict[str, str]]  # an environment, and the host files of its machine


def gather_sources() -> dict[str, Source]:
    """Name -> environment and host files."""
    sources: dict[str, Source] = {f"{name}.env": (environ, {}) for name, environ in read_captures().items()}
    for name, value in vars(synthetic).items():
        if isinstance(value, dict) and value and all(isinstance(each, str) for each in value.values()):
            sources[f"synthetic {name}"] = (value, {})
    for name, (environ, files, _) in synthetic.SCRIPTS.items():
        sources[f"script {name}"] = (environ, files)
    for name, source in synthetic.ONE_NODE_SCRIPTS.items():
        sources[f"script of one node {name}"] = source
    for name, environ in synthetic.ONE_NODE_TASKS.items():
        sources[f"one node {name}"] = (environ, {})
    for name, family in FAMILIES.items():
        sources |= {f"family {name} {shape}": (environ, {}) for shape, environ in family.shapes.items()}
        sources[f"past {name}"] = family.past
    for case in environs.CASES:
        sources[f"bad {case.id}"] = (dict(case.environ), dict(case.machine.get("host_files", {})))
    sources["sagemaker's file"] = (synthetic.SAGEMAKER_BARE, {SAGEMAKER_HOST_FILE: synthetic.RESOURCE_CONFIG})
    for ranks, per_node in ((1, 1), (2, 1), (2, 2), (4, 2), (16, 8)):
        sources[f"torchrun {ranks} {per_node}"] = (synthetic.torchrun_rank(ranks - 1, ranks, per_node), {})
        sources[f"by hand {ranks} {per_node}"] = (by_hand(synthetic.torchrun_rank(ranks - 1, ranks, per_node)), {})
    pods = ({"JOB_COMPLETION_INDEX": "0"}, {"JOB_COMPLETION_INDEX": "1"}, {"VC_TASK_INDEX": "1", "VC_WORKER_NUM": "2"})
    sources |= {f"pod {number}": (environ, {}) for number, environ in enumerate(pods)}
    return sources


def by_hand(environ: Mapping[str, str]) -> dict[str, str]:
    """What NVIDIA's enroot hook or a script exports of torchrun's variables."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: environ[name] for name in names}


def of_another_rank(environ: Mapping[str, str], job: str) -> dict[str, str]:
    """An environment that a rank of ours has handed on."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node07"}
    handover = Handover(launch_id=job, job=job, added=("OMP_NUM_THREADS",))
    return {**environ, **rank, "ENTRYPOINT_DEVICE": "cpu", **handover.to_environ()}


def gather_cases(sources: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    """All environments to plan for, each with a name of its own."""
    yield from sources.items()
    for name, (environ, files) in sources.items():
        if ".env" in name and "26.05" not in name:
            continue  # the other versions of Slurm differ in few variables
        for variable in environ:
            if KEPT_AS_THEY_ARE.fullmatch(variable):
                continue
            yield f"{name} without {variable}", ({key: environ[key] for key in environ if key != variable}, files)
            draw = random.Random(f"{name} {variable}")
            value = draw.choice(CHANGES)
            yield f"{name} {variable}={value}", (environ | {variable: value}, files)
        repeats = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
        if all(variable in environ for variable in repeats.values()):
            hook = {each: environ[variable] for each, variable in repeats.items()}
            hook |= {"MASTER_ADDR": "node01", "MASTER_PORT": "29500"}
            yield f"{name} and enroot's hook", (environ | hook, files)
        for job in ("", current_job_key(environ), "slurm:6.0.0"):
            yield f"{name} in a rank of {job!r}", (of_another_rank(environ, job), files)
    names = sorted(sources)
    for number in range(MIXTURES):
        draw = random.Random(number)
        environ, files = {}, {}
        for name in draw.sample(names, draw.choice((2, 2, 3))):
            variables = list(sources[name][0].items())
            if draw.random() < 0.5:
                variables = draw.sample(variables, draw.randint(min(1, len(variables)), len(variables)))
            environ |= dict(variables)
            files |= sources[name][1]
        if draw.random() < 0.1:
            environ["MASTER_PORT"] = draw.choice(("tcp://10.0.0.1:1234", "31000", "0"))
        if draw.random() < 0.1:
            environ["MASTER_ADDR"] = draw.choice(("localhost", "10.0.0.9", "node02"))
        yield f"mixture {number}", (environ, files)


def record(environ: Mapping[str, str], options: LaunchOptions, here: Machine) -> Any:
    """The allocation and the plan, or the refusal."""
    try:
        allocation = detect_allocation(environ, options, here)
        plan = asdict(plan_allocation(allocation, options, here, environ))
    except Failure as failure:
        return f"{failure.code} {failure}"
    launch_id = "local" if allocation.launcher == "local" and not options.nodes else allocation.launch_id
    ports = plan["ports"] if allocation.master_port else "derived"  # from the launch id, which is compared
    plan |= {"launch_id": launch_id, "ports": ports, "world": plan["world"] | {"master_port": ports}}
    plan["sources"] = {name: source or None for name, source in sorted(plan["sources"].items())}
    facts = replace(allocation, launch_id=launch_id, sources={}, warnings=())
    return {"plan": plan, "allocation": {name: value for name, value in asdict(facts).items() if name not in plan}}


def record_all() -> dict[str, Any]:
    """Name of the environment -> what is planned there on a node with and without GPUs, and the scheduler's job."""
    records: dict[str, Any] = {}
    for name, (environ, texts) in gather_cases(gather_sources()):
        files = {each: text for each, text in texts.items() if each.startswith("/") or environ.get(each)}
        info = job_info_from_environ(environ)
        records[name] = {
            "cpu": record(environ, LaunchOptions(device="cpu"), machine(host_files=files)),
            "cuda": record(environ, LaunchOptions(), machine(host_files=files, gpus=fake_gpus(4), hostname="node02")),
            "job": info and asdict(info),
            "key": current_job_key(environ),
        }
    for name, (environ, files) in {"nothing": ({}, {}), "step": (captured("per-gpu/task-3@node02"), {})}.items():
        for options in (LaunchOptions(nodes=2, node_rank=1, master_addr="a"), LaunchOptions(procs_per_node=2)):
            records[f"{name} {options}"] = record(environ, options, machine(host_files=files))
        hidden = machine(hidden_job={"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"})
        records[f"{name} hidden"] = record(environ, LaunchOptions(), hidden)
    return json.loads(json.dumps(records, sort_keys=True, default=list))


def main(argv: list[str]) -> int:
    """Print the records, or those that differ from an earlier file of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="FILE", type=Path, help="records of another checkout")
    arguments = parser.parse_args(argv)
    records = record_all()
    if not arguments.against:
        json.dump(records, sys.stdout, indent=0, sort_keys=True)
        return 0
    before = json.loads(arguments.against.read_text())
    differing = [name for name in sorted({*before, *records}) if before.get(name) != records.get(name)]
    for name in differing:
        print(f"{name}\n  before {json.dumps(before.get(name))}\n  now    {json.dumps(records.get(name))}")
    print(f"{len(differing)} of {len(records)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
