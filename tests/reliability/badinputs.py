"""`make badinputs`: every bad input of tests/support/bad to the program, one line of JSON each."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import raising  # noqa: E402
import trials  # noqa: E402
from bad import case, mutations, tables  # noqa: E402


def met(facts: dict[str, object]) -> Iterator[trials.Trial]:
    """Each case once; at the end `facts` says which places were hit."""
    hit: set[str] = set()
    shown: Counter[str] = Counter()
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        for one in tables.cases():
            outcome = case.meet(one, case.emptied(Path(folder, "work")))
            hit |= set(outcome.made)
            shown[outcome.place] += 1
            yield case.trial(one, outcome)
        for one in mutations.cases(seed=int(os.environ.get("SEED") or 0), number=int(os.environ.get("N") or 200)):
            outcome = case.meet(one, case.emptied(Path(folder, "work")))
            changed += 1
            if mutations.stumbled(outcome.code, outcome.text, outcome.written):
                yield case.trial(one, outcome)
    wanted = raising.places().keys() - tables.UNREACHED.keys()
    facts |= {
        "random_changes": changed,
        "places": len(raising.places()),
        "out_of_reach": len(tables.UNREACHED),
        "places_hit": len(hit & wanted),
        "not_hit": sorted(wanted - hit),
        "most_per_place": max(shown.values()),
    }


def main() -> int:
    """Print them; the exit code is 1 where one was answered wrongly, or a place was left out."""
    facts: dict[str, object] = {}
    code = trials.run("badinputs", met(facts), reached=facts)
    return code or int(bool(facts["not_hit"]))


if __name__ == "__main__":
    sys.exit(main())
