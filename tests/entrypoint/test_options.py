"""Command line over ENTRYPOINT_* over the file."""

from __future__ import annotations

import argparse

import pytest

from entrypoint.errors import Failure
from entrypoint.options import LaunchOptions, add_launch_arguments, parse_launch_options


def parse(line: str = "", environ: dict[str, str] | None = None, **file: object) -> LaunchOptions:
    parser = argparse.ArgumentParser()
    add_launch_arguments(parser)
    return parse_launch_options(parser.parse_args(line.split()), environ or {}, **file)  # type: ignore[arg-type]


def test_nothing_asked_leaves_everything_open() -> None:
    assert parse() == LaunchOptions()


def test_the_command_line_wins_over_the_variable_over_the_file() -> None:
    environ = {"ENTRYPOINT_DEVICE": "cuda", "ENTRYPOINT_PROCS_PER_NODE": "3"}
    options = parse("--device cpu", environ, device="auto", procs_per_node=2)
    assert (options.device, options.procs_per_node) == ("cpu", 3)


def test_the_file_counts_where_nothing_else_is_said() -> None:
    assert parse(device="cpu", procs_per_node=2) == LaunchOptions(device="cpu", procs_per_node=2)


def test_auto_on_the_command_line_lifts_the_files_number() -> None:
    assert parse("--procs-per-node auto", procs_per_node=2).procs_per_node is None


def test_a_port_range_is_read() -> None:
    assert parse(environ={"ENTRYPOINT_PORT_RANGE": "30000-30009"}).port_range == (30000, 30009)


def test_an_empty_master_address_is_no_address() -> None:
    with pytest.raises(Failure, match="--master-addr missing"):
        parse_launch_options(
            argparse.Namespace(
                device=None, procs_per_node=None, nodes="2", node_rank="0", master_addr="", master_port=None
            ),
            {},
        )


def test_machines_by_hand_are_read_together() -> None:
    options = parse("--nodes 2 --node-rank 1 --master-addr a --master-port 4000")
    assert (options.nodes, options.node_rank, options.master_addr, options.master_port) == (2, 1, "a", 4000)


@pytest.mark.parametrize(
    ("line", "environ", "named"),
    [
        ("--device gpu", {}, "--device"),
        ("", {"ENTRYPOINT_DEVICE": "tpu"}, "ENTRYPOINT_DEVICE"),
        ("--procs-per-node 0", {}, "--procs-per-node"),
        ("--procs-per-node two", {}, "--procs-per-node"),
        ("--procs-per-node 1000000", {}, "--procs-per-node"),
        ("--nodes 2 --node-rank 0 --master-addr a --master-port 70000", {}, "--master-port"),
        ("", {"ENTRYPOINT_PROCS_PER_NODE": "-1"}, "ENTRYPOINT_PROCS_PER_NODE"),
        ("", {"ENTRYPOINT_PORT_RANGE": "9-10"}, "ENTRYPOINT_PORT_RANGE"),
        ("--nodes 2", {}, "--node-rank, --master-addr"),
        ("--nodes 2 --node-rank 2 --master-addr a", {}, "--node-rank"),
        ("--master-port 4000", {}, "--nodes"),
        ("", {"ENTRYPOINT_PORT_RANGE": "\u00b2-\u00b3"}, "ENTRYPOINT_PORT_RANGE"),
        ("--nodes x --node-rank 0 --master-addr a", {}, "--nodes"),
    ],
)
def test_a_bad_value_is_refused_by_its_source(line: str, environ: dict[str, str], named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        parse(line, environ)
    assert caught.value.code == 64
    assert caught.value.fix
