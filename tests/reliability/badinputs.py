"""`make badinputs`: every bad input of tests/support/bad to the program, one line of JSON each."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import trials  # noqa: E402
from bad import case, mutations, tables  # noqa: E402


def met() -> Iterator[trials.Trial]:
    """Each case once, then random changes of files and environments, of which those that are answered wrongly."""
    with tempfile.TemporaryDirectory() as folder:
        for one in tables.cases():
            yield case.trial(one, case.meet(one, case.emptied(Path(folder, "work"))))
        for one in mutations.cases(seed=int(os.environ.get("SEED") or 0), number=int(os.environ.get("N") or 200)):
            outcome = case.meet(one, case.emptied(Path(folder, "work")))
            if mutations.stumbled(outcome.code, outcome.text, outcome.written):
                yield case.trial(one, outcome)


def main() -> int:
    """Print them; the exit code is 1 where one was answered wrongly."""
    return trials.run("badinputs", met())


if __name__ == "__main__":
    sys.exit(main())
