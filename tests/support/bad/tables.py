"""All bad inputs, by theme, and the places of the code that no input of one machine without a GPU reaches."""

from __future__ import annotations

from bad import commands, configs, datasets, environs, fetching, folders, meeting, own, reports, saved, using
from bad.case import Case

THEMES: dict[str, list[Case]] = {
    "config": configs.CASES,
    "environ": environs.CASES,
    "command": commands.CASES,
    "data": datasets.CASES,
    "own": own.CASES,
    "saved": saved.CASES,
    "fetch": fetching.CASES,
    "rank": meeting.CASES,
    "folder": folders.CASES,
    "report": reports.CASES,
    "using": using.CASES,
}
# Place -> why no case is there. What is meant is tested elsewhere, by name.
UNREACHED: dict[str, str] = {
    "entrypoint/doctor/brief.py:_refuse": "a GPU's driver: tests/entrypoint/doctor/test_brief.py",
    "entrypoint/hangwatch.py:_hang": "a rank that hangs: tests/entrypoint/test_hangwatch.py, make detect",
    "entrypoint/hangwatch.py:_no_word": "a rank that hangs: tests/entrypoint/test_hangwatch.py, make detect",
    "entrypoint/host.py:_gpu": "a GPU that is lost: tests/entrypoint/test_host.py",
    "entrypoint/limits.py:met": "a user without processes or threads left: tests/entrypoint/test_limits.py",
    "entrypoint/supervise.py:_death": "a rank that ends without a word: tests/entrypoint/test_supervise.py",
    "train/bench/comm.py:_exchanged": "ranks that end: tests/train/bench/test_comm.py",
    "train/bench/exchange.py:check": "numbers that come wrong: tests/train/bench/test_exchange.py",
    "train/bench/once.py:done": "a measured process that ends: tests/train/bench/test_once.py",
    "train/bench/paced.py:_gone": "a measured process that ends: tests/train/bench/test_paced.py",
    "train/bench/paced.py:_start": "a measured process that hangs: tests/train/bench/test_paced.py",
    "train/bench/paced.py:ask": "a measured process that ends: tests/train/bench/test_paced.py",
    "train/bench/paced.py:ask#2": "a measured process that ends: tests/train/bench/test_paced.py",
    "train/bench/paced.py:one_json": "a measured process that ends: tests/train/bench/test_paced.py",
    "train/bench/paced.py:one_json#2": "a measured process that ends: tests/train/bench/test_paced.py",
    "train/bench/traced.py:calls": "a start that strace does not see: tests/train/bench/test_traced.py",
    "train/commands/bench.py:stop": "a signal: tests/train/commands/test_bench.py",
    "train/commands/predicting.py:_whole": "a full disk below stdout: tests/train/commands/test_predicting.py",
    "train/commands/stopping.py:stopper": "a signal: tests/train/commands/test_stopping.py",
    "train/data/arrays.py:_told#4": "where torch or zipfile meets a cut file's end: tests/train/data/test_arrays.py",
    "train/data/cached.py:_looked_at": "a file that goes away: tests/train/data/test_cached.py",
    "train/data/imagefolder.py:refuse": "a folder that is another user's: tests/train/data/test_imagefolder.py",
    "train/data/inmemory.py:_raise_first": "two ranks: tests/train/data/test_inmemory.py",
    "train/data/onehost.py:first": "two ranks: tests/train/data/test_onehost.py",
    "train/data/pools.py:_received": "data workers that die: tests/train/data/test_pools.py",
    "train/data/pools.py:share": "a full /dev/shm: tests/train/data/test_pools.py, make chaos row 41",
    "train/data/sharing.py:refuse_small": "a small /dev/shm: tests/train/data/test_sharing.py, make chaos row 41",
    "train/evaluation/evaluation.py:within": "a GPU's memory: tests/train/evaluation/test_evaluation.py",
    "train/fetching/fetch.py:_raise_what_failed": "two processes that fetch: tests/train/fetching/test_fetch.py",
    "train/front/requeued.py:_refuse_without_checkpoints": "a requeued job: tests/train/front/test_requeued.py",
    "train/front/requeued.py:look": "a requeued job: tests/train/front/test_requeued.py, make chaos row 66",
    "train/inspection/stages.py:_stepped": "a GPU's memory: tests/train/inspection/test_stages.py",
    "train/models/networks.py:_named#3": "a model that is built in vain: tests/train/models/test_networks.py",
    "train/models/weightfile.py:read#3": "another user: tests/train/models/test_weightfile.py",
    "train/ranks/device.py:choose_device#2": "a GPU that fails: tests/train/ranks/test_device.py",
    "train/ranks/devicefaults.py:understood": "a GPU's memory: tests/train/ranks/test_devicefaults.py",
    "train/ranks/rendezvous.py:_refuse_rival": "two machines: tests/test_two_machines.py",
    "train/ranks/rendezvous.py:_serve": "two processes as rank 0: tests/train/ranks/test_rendezvous.py",
    "train/ranks/replicas.py:compare": "two ranks: tests/train/ranks/test_replicas.py, make chaos row 13",
    "train/ranks/runtime.py:same_weights": "two ranks: tests/train/ranks/test_runtime.py",
    "train/record/claim.py:_refuse": "two machines that are both number 0: tests/train/record/test_claim.py",
    "train/record/claim.py:refuse_lost": "a start that takes over: tests/train/record/test_claim.py",
    "train/record/starts.py:refuse_in_vain": "four starts of a job: tests/train/record/test_starts.py",
    "train/run/compiling.py:compiled": "a model that is not compiled: tests/train/run/test_compiling.py",
    "train/run/compiling.py:_told": "what the compiler cannot do: tests/train/run/test_compiling.py",
    "train/run/bell.py:_stand_by": "a deaf main thread: tests/train/run/test_bell.py",
    "train/run/elsewhere.py:notes": "another machine's numbers: tests/train/run/test_elsewhere.py",
    "train/run/exact.py:__init__": "a model of the user's: tests/train/run/test_exact.py",
    "train/run/exact.py:refuse_hidden_state": "a model of the user's: tests/train/run/test_exact.py",
    "train/run/fitting.py:_refuse_none": "a GPU's memory: tests/train/run/test_fitting.py",
    "train/run/health.py:refuse_bad_statistics": "statistics that overflow: tests/train/run/test_health.py",
    "train/run/health.py:sound#2": "a loss that jumps twice: tests/train/run/test_rollback.py",
    "train/run/linetimes.py:load": "a package that is missing: tests/train/run/test_linetimes.py",
    "train/run/onefolder.py:refuse_apart": "two machines: tests/train/run/test_onefolder.py",
    "train/run/rollback.py:_last": "a loss that jumps: tests/train/run/test_rollback.py",
    "train/run/saving.py:settle": "weights that overflow: tests/train/run/test_health.py",
    "train/smoke/__main__.py:leave": "ranks that hang: tests/train/smoke/test_main.py",
    "train/smoke/exchange.py:compare": "numbers that come wrong: tests/train/smoke/test_exchange.py",
    "train/smoke/exchange.py:exchange": "a rank that is lost: tests/train/smoke/test_exchange.py",
    "train/using/given.py:_refuse_shut": "another user: tests/train/using/test_given.py",
    "train/worker.py:abandon": "a deaf main thread; a bug of ours: tests/train/test_worker.py",
    "train/worker.py:main": "a user without threads left: tests/train/test_worker.py",
    "train/worker.py:run": "a bug of ours, the only one with a traceback: tests/train/test_worker.py",
    "train/worker.py:understood": "sys.exit in a user's code: tests/train/test_worker.py",
    "train/worker.py:understood#2": "torch that cannot be loaded: tests/train/test_worker.py",
}
MOST = 10  # cases that end at one place: a figure is no proof where one check is asked a hundred times


def cases() -> list[Case]:
    """All of them."""
    return [case for theme in THEMES.values() for case in theme]
