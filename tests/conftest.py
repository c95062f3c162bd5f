"""Sets up every test: its tier, an environment without launchers, an empty working folder, and honest skips."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from entrypoint.platforms import VARIABLES

ROOT = Path(__file__).parents[1]
# Tests in these folders use real engines, or read documents and source text and run nothing (lint: `make lint`).
# Elsewhere a test is in the tier "test", or in "slow" if it is marked so.
FOLDERS = {"image", "cluster", "reliability", "lint"}

# A skip may stay a skip under REQUIRE_ALL=1 only for what a machine cannot be given: its reason begins with one of
# these words.
EXCUSED = ("gpu:", "shared data:", "machine:")
LAUNCHERS = ("SLURM", "OMPI_", "PMI", "PET_", "MPI_", "TORCHELASTIC", "ENTRYPOINT_", "ACCELERATE_", "GROUP_", "ROLE_")
# Set by libraries when they are first used, whichever test that is; taken back, or a later test's processes would have
# them too.
LIBRARIES_OWN = {"TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
CONTRACT = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests of the tree are run: see CONTRIBUTING.md."""
    parser.addoption("--tier", help="only tests of these tiers, such as `test` or `image,cluster`")
    parser.addoption(
        "--share", help="K/N: of these, those marked every_run and the K-th of N equal parts of the others"
    )


def cache_home() -> Path:
    """Where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def tier(item: pytest.Item) -> str:
    """The tier that a test belongs to."""
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    if folder in FOLDERS:
        return folder
    return "slow" if item.get_closest_marker("slow") else "test"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read the folders of tiers that are not asked for."""
    asked = (config.getoption("--tier") or ",".join(FOLDERS)).split(",")
    is_left_out = collection_path.parent == ROOT / "tests" and collection_path.name in FOLDERS.difference(asked)
    return is_left_out or None


def in_share(item: pytest.Item, share: str) -> bool:
    """Whether this share has the test. Files of tests that start engines stay whole: they share what they started."""
    part, parts = map(int, share.split("/"))
    group = item.get_closest_marker("together")
    name = group.args[0] if group else item.path.name if tier(item) in ("image", "cluster") else item.nodeid
    return item.get_closest_marker("every_run") is not None or zlib.crc32(name.encode()) % parts == part % parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --tier and --share leave out."""
    tiers, share = config.getoption("--tier"), config.getoption("--share")
    kept = [item for item in items if not tiers or tier(item) in tiers.split(",")]
    kept = [item for item in kept if not share or in_share(item, share)]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Tests decide what they see of launchers and signals: what the caller's shell holds does not count."""
    if coverage.Coverage.current():  # in `make test-all`: which test runs which line
        config.pluginmanager.register(importlib.import_module("mutants"))
    # `nohup` and `command &` in a script ignore these, and every process that a test starts would ignore them too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    storage = Path(os.environ.get("TESTBED_CACHE") or cache_home() / "train-image") / "storage.conf"
    if storage.exists():  # tests/testbed made it: the images of the tests, which no other build changes
        os.environ["CONTAINERS_STORAGE_CONF"] = str(storage)
    for name in [name for name in os.environ if name.startswith(LAUNCHERS) or name in CONTRACT | VARIABLES]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs torch in an environment without it."""
    if item.get_closest_marker("needs_torch") and not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed")


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


@pytest.fixture(scope="session")
def _working_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("working-folder")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(_working_folder: Path) -> Iterator[None]:
    """An empty working folder that stays empty; no changed variables, no running threads."""
    _take_back()
    variables, threads = dict(os.environ), set(threading.enumerate())
    os.chdir(_working_folder)
    yield
    os.chdir(ROOT)
    _take_back()
    written = os.listdir(_working_folder)
    assert not written, f"the test wrote into its working folder instead of tmp_path: {written}"
    changed = {name for name in {**variables, **os.environ} if variables.get(name) != os.environ.get(name)}
    left = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    assert not changed - {"PYTEST_CURRENT_TEST"}, f"the test left variables changed: {changed}"
    assert not left, f"the test left threads running: {left}"
