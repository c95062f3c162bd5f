"""Batches in memory are drawn as a training sees them, and when a bench asks for them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from benches import quick

from train.bench import feed, paced, sides
from train.bench.paced import Side


def test_batches_never_end() -> None:
    drawn = [batch for _, batch in islice(feed.drawn(4, 8, 8), 5)]
    assert {tuple(batch.images.shape) for batch in drawn} == {(4, 3, 8, 8)}


def test_a_bench_leads_it(tmp_path: Path) -> None:
    words = sides.command("feed", "--batch", "4", "--samples", "8", "--size", "8")
    side = Side(name="feed", command=words, environ=quick(tmp_path).variables())
    with paced.started(quick(tmp_path), side) as (fed,):
        fed.steps = 3
        assert fed.block() > 0
        assert fed.facts["batch"] == 4
