"""This module writes a network as a torch.export file and as an ONNX file.

Each written file is loaded again, and its outputs are compared with the network's.
"""

from __future__ import annotations

import io
import json
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train import files
from train.data.shape import Shape

if TYPE_CHECKING:
    from torch.export import ExportedProgram  # with torch's compiler

INPUT_NAME, OUTPUT_NAME, BATCH_DIMENSION = "images", "logits", "batch"
ONNX_OPSET: Final = 18  # the version that torch's ONNX functions are written for
MAX_ONNX_BYTES: Final = 2**31 - 1  # of one protobuf message
COMPARED_BATCH_SIZES: Final = (1, 5)
# The largest difference between two outputs, divided by the largest output, or by 1 if no output is larger.
TOLERANCE: Final = 1e-4
MAX_REASON_CHARACTERS: Final = 300  # of an exporter's error
WITHOUT_FORMAT_FIX: Final = "leave {name} out of --format; model.safetensors needs no exporter"

RunsNetwork = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A file format for a network with its weights.

    exporter: its name in errors. file: the file's name in the folder. encode: the file's content, with metadata in it
    where the format has a place for it. load: reads the file as a function from images to scores. facts: what
    model.json says about the file.
    """

    exporter: str
    file: str
    encode: Callable[[ExportedProgram, Mapping[str, str]], bytes]
    load: Callable[[Path], RunsNetwork]
    facts: Mapping[str, Any] = field(default_factory=dict)


def _encode_torch(program: ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=dict(metadata))
    return buffer.getvalue()


def _load_torch(path: Path) -> RunsNetwork:
    return torch.export.load(path).module()


def _encode_onnx(program: ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    _refuse_large_network(program)
    written = torch.onnx.export(
        program,
        dynamo=True,
        input_names=[INPUT_NAME],
        output_names=[OUTPUT_NAME],
        opset_version=ONNX_OPSET,
        verbose=False,
    )
    if written is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    written.model.metadata_props.update(metadata)
    return bytes(written.model_proto.SerializeToString())


def _load_onnx(path: Path) -> RunsNetwork:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT_NAME], {INPUT_NAME: images.numpy()})[0])

    return run


def _refuse_large_network(program: ExportedProgram) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    if size > MAX_ONNX_BYTES:
        raise Failure(
            "the network is too large for one ONNX file",
            found=f"{files.format_bytes(size)} of weights",
            expected=f"at most {files.format_bytes(MAX_ONNX_BYTES)}",
            fix=WITHOUT_FORMAT_FIX.format(name="onnx"),
            code=ExitCode.USAGE,
        )


FORMATS: Final[Mapping[str, FileFormat]] = {
    "torch": FileFormat(exporter="torch.export", file="model.pt2", encode=_encode_torch, load=_load_torch),
    "onnx": FileFormat(
        exporter="torch.onnx.export",
        file="model.onnx",
        encode=_encode_onnx,
        load=_load_onnx,
        facts={"opset": ONNX_OPSET},
    ),
}


def encode_network(
    network: nn.Module, shape: Shape, formats: Sequence[str], metadata: Mapping[str, Any]
) -> dict[str, bytes]:
    """The content of each format's file, by the file's name. Nothing that an exporter prints is shown.

    network: in evaluation mode, on the CPU. metadata: JSON values, which are written into the files as text.

    Raises:
        Failure: USAGE if an exporter refuses the network, with its reason.
    """
    texts = {name: json.dumps(value) for name, value in metadata.items()}
    encoded, program = dict[str, bytes](), None
    for name in formats:
        if program is None:
            with _explain_exporter_errors(network, "torch", name):
                example = torch.zeros(COMPARED_BATCH_SIZES[-1], *shape.input)
                # For any number of images.
                sizes = ({0: torch.export.Dim(BATCH_DIMENSION)},)
                program = torch.export.export(network, (example,), dynamic_shapes=sizes)
        with _explain_exporter_errors(network, name, name):
            encoded[FORMATS[name].file] = FORMATS[name].encode(program, texts)
    return encoded


@contextmanager
def _explain_exporter_errors(network: nn.Module, exporter: str, name: str) -> Iterator[None]:
    """Translate any error of an exporter into a Failure. name: the format that was requested."""
    try:
        with _hide_output():
            yield
    except (Failure, MemoryError):
        raise
    except Exception as error:
        raise Failure(
            f"{FORMATS[exporter].exporter} cannot write this network",
            found=_describe_reason(error, network),
            fix=WITHOUT_FORMAT_FIX.format(name=name),
            code=ExitCode.USAGE,
        ) from error


def _describe_reason(error: Exception, network: nn.Module) -> str:
    """One line: the last line of the network's own code that ran, and the error that came first."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    text = " ".join(f"{type(first).__name__}: {first}".split())
    name = type(network).__module__
    file = None if name.startswith("torch.") else getattr(sys.modules.get(name), "__file__", None)  # as Sequential's
    lines = [
        f"{frame.filename}, line {frame.lineno}: "
        for frame in traceback.extract_tb(first.__traceback__)
        if file is not None and Path(frame.filename).parent == Path(file).parent
    ]
    return files.shorten_name("".join(lines[-1:]) + text, MAX_REASON_CHARACTERS)


@contextmanager
def _hide_output() -> Iterator[None]:
    """Drop what exporters print, log and warn about."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def compare_files(network: nn.Module, shape: Shape, formats: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Load each format's file in `folder`, and compare its outputs with the network's for random images.

    Returns:
        What model.json says about each file, by its name.

    Raises:
        Failure: USAGE if the outputs differ by more than TOLERANCE, or if the file cannot be loaded or run.
    """
    facts = {}
    for name, file in ((name, FORMATS[name]) for name in formats):
        generator, differences = torch.Generator().manual_seed(0), list[float]()
        with _explain_exporter_errors(network, name, name), torch.no_grad(), torch.random.fork_rng(devices=[]):
            loaded = file.load(folder / file.file)
            for batch_size in COMPARED_BATCH_SIZES:
                images = torch.randn(batch_size, *shape.input, generator=generator)
                differences.append(_largest_difference(loaded(images.clone()), network(images.clone())))
        largest = max(differences, key=lambda difference: (math.isnan(difference), difference))
        if not largest <= TOLERANCE:
            raise Failure(
                f"the network in {file.file} gives other outputs than the network that was trained",
                found=f"a difference of {largest:.1e} for random images",
                expected=f"at most {TOLERANCE:.0e}, measured in units of the largest output, or of 1 if that is larger",
                fix=f"{WITHOUT_FORMAT_FIX.format(name=name)}; a network that draws random numbers cannot be compared",
                code=ExitCode.USAGE,
            )
        compared = {
            "batch_sizes": [*COMPARED_BATCH_SIZES],
            "largest_difference": largest,
            "tolerance": TOLERANCE,
        }
        facts[file.file] = {"format": name, **file.facts, "compared": compared}
    return facts


def _largest_difference(output: Tensor, expected: Tensor) -> float:
    """The largest difference, divided by the largest expected output, or by 1. NaN if an output is not finite."""
    if output.shape != expected.shape:
        return math.inf
    return float((output - expected).abs().max() / expected.abs().max().clamp(min=1))
