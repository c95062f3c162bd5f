"""Findings, and what a refusal becomes."""

from __future__ import annotations

from entrypoint.doctor.context import fail, failure_finding, num_failed, ok, warn
from entrypoint.errors import ExitCode, Failure


def test_only_failures_count_as_failed() -> None:
    assert num_failed([ok("a", "x"), warn("b", "x", "y"), fail("c", "x", "y"), fail("d", "x", "y")]) == 2


def test_a_refusal_keeps_what_was_found_and_its_fix() -> None:
    failure = Failure("no GPU", found="NVML shows none", fix="--nv", code=ExitCode.NODE)
    assert failure_finding("plan", failure) == fail("plan", "no GPU (NVML shows none)", "--nv")


def test_what_is_ok_needs_no_fix() -> None:
    assert ok("a", "x").fix == ""
