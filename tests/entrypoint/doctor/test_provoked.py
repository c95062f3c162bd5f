"""Every finding that is not ok has a test that provokes it: read from the code, so that a new one is missed here."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sick import PLACES

ROOT = Path(__file__).parents[3]
DOCTOR, TESTS = ROOT / "entrypoint/doctor", ROOT / "tests"
MAKERS = r"(warn|fail|graded|failure_finding|make_finding)$|^\(?fail if"
HERE = "entrypoint/doctor/"
# What NVML, NCCL and the kernel's lists of fast networks tell is made up: none of it is in this machine.
MADE_UP = {
    "gpu.torch_findings warn driver: does not report which CUDA it supports": (
        "test_driver.py::test_a_driver_without_its_cuda_library_is_not_taken_for_an_old_one",
    ),
    "gpu.torch_findings warn driver: no torch is installed": ("test_driver.py::test_gpus_without_torch_are_a_warning",),
    "gpu.torch_findings fail driver: is a build for the CPU only": (
        "test_driver.py::test_a_cpu_build_beside_gpus_is_a_failure",
    ),
    "gpu.torch_findings fail driver: the driver is too old": (
        "test_driver.py::test_each_driver_and_gpu_runs_an_image_or_is_shown_the_one_that_runs",
    ),
    "gpu.torch_findings fail architecture": (
        "test_driver.py::test_a_gpu_without_code_is_named_with_its_compute_capability",
    ),
    "gpu.rtx_40_findings fail direct copies": (
        "test_gpus.py::test_direct_copies_that_do_not_work_are_found_before_nccl_hangs",
    ),
    "gpu.gpu_findings warn gpus": ("test_gpus.py::test_gpus_that_are_all_hidden_are_a_warning",),
    "gpu._gpu_problems fail ecc: a broken row of its memory could not be replaced": (
        "test_gpus.py::test_each_trouble_is_named_with_its_gpu",
    ),
    "gpu._gpu_problems fail ecc: uncorrected memory errors": ("test_gpus.py::test_each_trouble_is_named_with_its_gpu",),
    "gpu._gpu_problems warn ecc: broken memory is replaced only at the next reset": (
        "test_gpus.py::test_each_trouble_is_named_with_its_gpu",
    ),
    "gpu._gpu_problems warn throttling": ("test_gpus.py::test_each_trouble_is_named_with_its_gpu",),
    "gpu._gpu_problems warn gpu memory: programs": ("test_gpus.py::test_each_trouble_is_named_with_its_gpu",),
    "gpu._gpu_problems fail compute mode: refuses compute programs (mode PROHIBITED": (
        "test_gpus.py::test_each_trouble_is_named_with_its_gpu",
    ),
    "gpu.gpu_findings warn gpu kinds": ("test_gpus.py::test_gpus_that_differ_are_named",),
    "gpu.gpu_findings warn peer access": ("test_gpus.py::test_peer_access_is_told_of_several_gpus",),
    "fabric.fabric_finding make_finding fabric": (
        "test_fabric.py::test_a_device_without_its_file_names_the_option",
        "test_fabric.py::test_a_missing_library_is_named",
    ),
    "fabric.memlock_finding make_finding fabric": ("test_fabric.py::test_too_little_locked_memory_is_named",),
    "full._transport_findings make_finding transport": ("test_full.py::test_tcp_beside_a_fast_network_is_a_failure",),
    "full.check_gpu_pairs fail pairs: the all-reduce fails between these pairs of GPUs": (
        "test_full.py::test_pairs_that_do_not_exchange_are_named",
    ),
    "full.check_gpu_pairs warn pairs: the all-reduce works for each pair of GPUs, but not for all together": (
        "test_full.py::test_pairs_that_all_exchange_are_a_warning",
    ),
    "runner.run_check warn name": ("test_running.py::test_a_check_that_breaks_says_so",),  # a bug of ours
}
# The others really happen: in a place of tests/support/sick.py, or in the test that is named.
FOR_REAL = {
    "host.cores_finding warn cores: no core of its own for": ("one core",),
    "host.cores_finding warn cores: a program that counts cores starts threads that are throttled": (
        "half a core's time",
    ),
    "host.cores_finding warn cores: they take turns": ("a thousand data workers",),
    "examine._check_plan warn plan": ("half a torchrun set",),
    "full.allreduce_findings fail all-reduce: the ranks were not done in time": (
        "test_full.py::test_ranks_that_are_not_done_hang",
    ),
    "full.allreduce_findings fail all-reduce": ("test_full.py::test_a_node_that_does_not_come_is_named_for_real",),
    "host.check_shared_memory fail shared memory: cannot be used": ("no /dev/shm",),
    "host.shared_memory_finding graded shared memory": ("a tiny /dev/shm", "docker's /dev/shm"),
    "host.check_memory graded memory": ("too little memory", "little memory"),
    "host.check_open_files graded open files": ("very few open files", "few open files"),
    "host.check_threads fail threads: more threads could be started": ("few threads",),
    "network.check_own_name warn own name: does not resolve on this host itself": ("a host without its name",),
    "network.check_interface_variable fail interface": ("an interface that is not here",),
    "network._check_master failure_finding master": ("a master without a name",),
    "network._check_master fail master: and this host has no route to it": (
        "test_names.py::test_a_cut_link_is_no_route",
    ),
    "network._check_forwarded_address warn master: and a connection to it did not arrive here": (
        "test_names.py::test_a_master_address_of_another_machine_is_a_warning_on_rank_0s",
    ),
    "network._loopback_master_finding warn master: if rank 0 is on another machine, it cannot be reached": (
        "test_names.py::test_another_machine_that_knows_the_masters_name_as_loopback_is_warned",
    ),
    "network._loopback_master_finding warn master: and no network interface leads to another machine": (
        "test_names.py::test_a_master_that_no_network_joins_to_another_machine_is_warned",
    ),
    "network.check_port failure_finding port": ("test_names.py::test_a_taken_port_is_a_failure",),
    "network.check_route fail way": ("test_names.py::test_packets_that_a_firewall_drops_are_not_answered",),
    "network.check_route fail way: no route to": ("test_names.py::test_a_master_that_is_down_has_no_route",),
    "paths.check_home fail home": ("nowhere to write",),
    "paths.check_home warn home": ("no home", "no TMPDIR"),
    "paths.check_caches warn caches: cannot be written": ("a cache out of reach",),
    "paths.free_space_finding fail output: has room for only": ("no more files",),
    "paths.free_space_finding graded output": ("almost no space", "little space"),
    "paths._unwritable_output_finding fail output": (
        "a read-only output folder",
        "another user's output folder",
        "a full disk",
        "renames that are refused",
        "syncs that fail",
    ),
    "paths._unwritable_output_finding warn output: a run would go to a temporary folder and may be lost": (
        "a read-only working directory",
    ),
    "paths._unwritable_output_finding failure_finding output": (
        "cluster/test_doctor.py::test_an_output_folder_that_is_not_bound_is_named",
    ),
    "runner.timeout_findings fail name": ("test_names.py::test_a_name_service_that_hangs_keeps_nobody_waiting",),
    "runner.run_check failure_finding name": (
        "GPUs where there are none",
        "no package that counts GPUs",
        "a driver of another version",
        "a container that has lost its GPUs",
        "no library of the driver",
        "a fabric manager that does not run",
    ),
    "variables.host_python_findings warn host python": (
        "PYTHONPATH",
        "PYTHONHOME",
        "packages of the user",
        "conda's libraries",
    ),
    "variables.variable_findings warn variables": ("ACCELERATE_MIXED_PRECISION", "NCCL_P2P_DISABLE", "OMP_PROC_BIND"),
}
TABLE: Mapping[str, tuple[str, ...]] = MADE_UP | FOR_REAL


def made() -> Iterator[str]:
    """Each place in the code where such a finding is made: module.function, maker, name, and its own words."""
    for path in sorted(DOCTOR.glob("*.py")):
        tree = ast.parse(path.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                maker = ast.unparse(call.func)
                if re.search(MAKERS, maker) and path.stem != "context":
                    maker = "make_finding" if " if " in maker else maker
                    said = ast.unparse(call.args[0]).strip("'") if maker == "graded" else _said(call, constants(tree))
                    yield from [f"{path.stem}.{function.name} {maker} {said}"] * (2 if maker == "graded" else 1)


def constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives a name."""
    findings = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {ast.unparse(node.targets[0]): str(ast.literal_eval(node.value)) for node in findings}


def _said(call: ast.Call, known: Mapping[str, str]) -> str:
    """`name: words`, the words being the longest piece of the text that is written out here."""
    name = ast.unparse(call.args[0]).strip("'")
    pieces = [node.value for node in ast.walk(call.args[1]) if isinstance(node, ast.Constant)]
    longest = max((piece.strip(" :;,()'") for piece in pieces if isinstance(piece, str)), key=len, default="")
    return known.get(name, name) + (f": {longest}" if longest else "")


def defined_in(name: str) -> set[str]:
    path = next(path for path in (TESTS / HERE / name, TESTS / name) if path.exists())
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_each_finding_of_the_code_is_in_the_table() -> None:
    assert Counter(made()).keys() == TABLE.keys()


def test_a_finding_that_is_made_in_two_places_has_two_tests() -> None:
    short = {key: number for key, number in Counter(made()).items() if len(TABLE[key]) < number}
    assert not short


@pytest.mark.parametrize("key", TABLE)
def test_what_the_table_names_is_there(key: str) -> None:
    for provoker in TABLE[key]:
        path, _, test = provoker.partition("::")
        assert test in defined_in(path) if test else path in PLACES, provoker


def test_each_place_is_in_the_table_or_another_way_to_the_same() -> None:
    named = {provoker for provokers in TABLE.values() for provoker in provokers}
    told = {PLACES[name].name for name in named & PLACES.keys()}
    assert {place.name for place in PLACES.values()} <= told
