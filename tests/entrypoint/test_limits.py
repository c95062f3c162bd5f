"""Limits of the system on processes, threads and open files."""

from __future__ import annotations

import errno
import os

import pytest

from entrypoint import errors

MET = {
    "fork": (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
    "a thread": (RuntimeError("can't start new thread"), "ulimit -u"),
    "gloo's threads": (RuntimeError("Resource temporarily unavailable"), "ulimit -u"),
    "a file": (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "model.safetensors"), "ulimit -n"),
    "a library's file": (RuntimeError("unable to open: Too many open files (24)"), "ulimit -n"),
}
OTHERS = (
    RuntimeError("shapes differ"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    ValueError("Too many open files"),
)


@pytest.mark.parametrize(("error", "option"), MET.values(), ids=MET)
def test_a_limit_that_was_met_is_a_want_of_resources_with_the_option_that_lifts_it(
    error: Exception, option: str
) -> None:
    failure = errors.resource_limit_failure(error)
    assert failure
    assert (failure.code, failure.found) == (71, str(error))
    assert option in failure.fix


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_another_error_is_no_limit(error: Exception) -> None:
    assert errors.resource_limit_failure(error) is None
