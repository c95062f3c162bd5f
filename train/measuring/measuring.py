"""One checkpoint's evaluation, from a World to its exit code: the numbers that its training measured, on any world."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, Pulse, World
from train.checkpoint import checkpoint, snapshot
from train.checkpoint.checkpoint import Committed
from train.data import catalog, digest, onehost
from train.data.loader import Loader, open_loader
from train.data.sets import Samples, Sets
from train.evaluation.evaluation import Measured, evaluate, largest, shares, within
from train.measuring import partial, trained, whole
from train.measuring.chosen import Chosen, standing
from train.measuring.trained import Facts
from train.measuring.verdict import AVERAGED, TRAINED, Verdict
from train.models import networks
from train.ranks import runtime
from train.ranks.runtime import Runtime
from train.settings.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model's tensors by name; averaged: over steps (train.ema_decay)."""

    tensors: Mapping[str, Tensor]
    averaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of the data is measured, on the held-out side of `sets`. words: the same for people. all: every image of
    it. notes: what makes the numbers other than they look."""

    sets: Sets
    words: str
    all: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The training side: an evaluation does not read it."""

    labels: Tensor
    stored: tuple[int, ...]

    def read(self, samples: Samples) -> Tensor:
        """[0, *stored]."""
        return torch.empty((0, *self.stored), dtype=torch.uint8)


def run(
    config: RunConfig,
    chosen: Chosen,
    world: World,
    environ: MutableMapping[str, str],
    *,
    as_json: bool,
    all_: bool = False,
    pulse: Pulse | None = None,
) -> int:
    """Measure as one rank; rank 0 writes the result to stdout. Returns the exit code (OK). all_: every image of the
    data, not the held-out side alone.

    Raises:
        Failure: whatever keeps the checkpoint from being measured.
    """
    ready = runtime.start(config, world, environ, accumulation=1)
    chosen = ready.shared(lambda: chosen)  # tasks look at different moments: a training may go on meanwhile
    pulse = pulse or Pulse()
    pulse.beat("data")
    config = replace(config, data=replace(config.data, cache=None))  # it would be filled with the training images too
    part = opened_part(config, chosen, ready, all_=all_)
    sets = part.sets
    for note in part.notes if ready.is_main else ():
        sys.stderr.write(f"WARNING: {note}\n")
    weights = read(chosen)
    net = prepared(config, sets, weights, ready)
    held_out = len(sets.held_out.labels)
    with within(largest(held_out, config.eval.batch_size)):
        loader = opened(config, sets, ready, pulse)
        mine = shares(held_out, config.eval.batch_size, world)
        measured = evaluate(net, pulse.each("evaluation", loader.evaluate(mine)), ready, classes=len(sets.classes))
    if ready.is_main:
        verdict = _verdict(config, chosen, part, ready, measured, averaged=weights.averaged, loader=loader.kind)
        sys.stdout.write((verdict.as_json() if as_json else verdict.as_text()) + "\n")
        sys.stdout.flush()
    ready.barrier()
    ready.close()
    return int(ExitCode.OK)


def opened_part(config: RunConfig, chosen: Chosen, ready: Runtime, *, all_: bool) -> Part:
    """Open the data, and hold it against the other ranks' and the training's.

    Raises:
        Failure: DATA for other classes than the model was trained on, and for ranks that see different data; NO_INPUT
            where nothing is held out, and as `catalog.open_sets`.
    """
    before = trained.of(chosen)
    sets = catalog.open_sets(trained.unclaimed(config.data, before))
    told = digest.facts(sets, config.data.root)
    digest.refuse_others(told, config.data.name, ready.gathered)
    there = Facts(**told | {"data": config.data, "classes": tuple(sets.classes)})
    if before is not None:
        sets = partial.of(sets, before.classes)
        trained.refuse_other_classes(before, replace(there, classes=sets.classes))
    sets = whole.of(sets) if all_ else sets
    if not len(sets.held_out.labels):
        raise _nothing_held_out(config)
    notes = trained.notes(before, there, whole=all_) if before is not None else ()
    return Part(sets=sets, words=there.measured(whole=all_), all=all_, notes=notes)


def read(chosen: Chosen) -> Weights:
    """The averaged weights where the checkpoint has them, else those of its step. Raises Failure (DATA)."""
    found = Committed(path=chosen.path, step=chosen.contents.step, contents=chosen.contents)
    tensors, _ = checkpoint.load(found, (AVERAGED, TRAINED))
    if TRAINED not in tensors:
        raise _unfit(chosen.path.name, f"no {TRAINED}{snapshot.SUFFIX} in it", "the weights of a model")
    average = tensors.get(AVERAGED, {})
    return Weights(tensors={**tensors[TRAINED], **average}, averaged=bool(average))


def prepared(config: RunConfig, sets: Sets, weights: Weights, ready: Runtime) -> nn.Module:
    """The network with these weights, on the device and in the run's precision.

    Raises:
        Failure: DATA where the weights are another network's, as for another number of classes.
    """
    own = replace(config.model, weights=None)  # what the training began with may be gone
    net = networks.build(own, classes=len(sets.classes), shape=sets.shape, seed=config.run.seed)
    if wrong := _differences(net.state_dict(), weights.tensors):
        there, ours = f"{len(sets.classes)} classes, pictures of {list(sets.shape.input)}", "; ".join(wrong[:3])
        raise _unfit("the checkpoint", ours, f"a network for the data: {there}")
    net.load_state_dict(dict(weights.tensors))
    return ready.accelerator.prepare_model(net, evaluation_mode=True)  # type: ignore[no-any-return]


def opened(config: RunConfig, sets: Sets, ready: Runtime, pulse: Pulse | None = None) -> Loader:
    """The loader of the held-out side alone."""
    nothing = Nothing(labels=torch.empty(0, dtype=torch.int64), stored=tuple(sets.shape.stored))
    sets = replace(sets, training=nothing)
    seed, host = config.run.seed, onehost.host(ready.world, ready.gathered)
    return open_loader(sets, config.data, seed=seed, device=ready.device, cores=host.cores(), pulse=pulse, host=host)


def _verdict(
    config: RunConfig, chosen: Chosen, part: Part, ready: Runtime, measured: Measured, *, averaged: bool, loader: str
) -> Verdict:
    return Verdict(
        checkpoint=str(chosen.path),
        step=chosen.contents.step,
        weights=AVERAGED if averaged else TRAINED,
        standing=standing(chosen.path),
        measured=part.words,
        all=part.all,
        notes=part.notes,
        world_size=ready.world.world_size,
        device=ready.device.type,
        precision=ready.precision,
        data=config.data.name,
        loader=loader,
        left_out=len(part.sets.held_out.labels) - measured.result.samples,
        classes=part.sets.classes,
        result=measured.result,
        confusion=None if measured.confusion is None else measured.confusion.tolist(),
    )


def _differences(ours: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """What is missing, too much, or of another shape, the last layer first: there the classes show."""
    shapes = [
        f"{name}: {list(saved[name].shape)} in the checkpoint, {list(tensor.shape)} for this data"
        for name, tensor in reversed(list(ours.items()))
        if name in saved and saved[name].shape != tensor.shape
    ]
    missing = [f"{name} is not in the checkpoint" for name in ours if name not in saved]
    return [*shapes, *missing, *(f"{name} is not in the network" for name in saved if name not in ours)]


def _unfit(what: str, found: str, expected: str) -> Failure:
    return Failure(
        f"{what} does not fit",
        found=found,
        expected=expected,
        fix="measure it on data with the classes and the size that it was trained with: data.root, data.image_size",
        code=ExitCode.DATA,
    )


def _nothing_held_out(config: RunConfig) -> Failure:
    return Failure(
        "there is no held-out image to measure",
        found=f"data.name={config.data.name}, data.val_fraction={config.data.val_fraction:g}",
        fix="measure every image with --all, or give data with a val or test side, or another data.val_fraction",
        code=ExitCode.NO_INPUT,
    )
