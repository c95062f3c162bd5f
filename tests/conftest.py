"""What every test gets: an environment without launchers, a check that it leaves none behind, and honest skips."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

# A skip may stay a skip under REQUIRE_ALL=1 only for what a machine cannot be given: its reason begins with one of
# these words.
EXCUSED = ("gpu:", "shared data:", "machine:")
LAUNCHERS = ("SLURM", "OMPI_", "PMI", "PET_", "MPI_", "TORCHELASTIC", "ENTRYPOINT_", "ACCELERATE_", "GROUP_", "ROLE_")
# Set by libraries when they are first used, whichever test that is; taken back, or a later test's processes would have
# them too.
LIBRARIES_OWN = {"TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
CONTRACT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def pytest_configure(config: pytest.Config) -> None:
    """Tests decide what they see of launchers: what the caller's shell holds does not count."""
    for name in [name for name in os.environ if name.startswith(LAUNCHERS) or name in CONTRACT]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With REQUIRE_ALL=1 a skip is a failure, unless the machine excuses it."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and os.environ.get("REQUIRE_ALL") == "1" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not reason.startswith(EXCUSED):
            report.outcome, report.longrepr = "failed", f"REQUIRE_ALL=1, and skipped: {reason}"


def _take_back() -> None:
    for name in LIBRARIES_OWN:
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """No changed variables, no running threads."""
    _take_back()
    variables, threads = dict(os.environ), set(threading.enumerate())
    yield
    _take_back()
    changed = {name for name in {**variables, **os.environ} if variables.get(name) != os.environ.get(name)}
    left = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    assert not changed - {"PYTEST_CURRENT_TEST"}, f"the test left variables changed: {changed}"
    assert not left, f"the test left threads running: {left}"
