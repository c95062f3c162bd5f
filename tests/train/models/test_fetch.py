"""`train weights fetch` brings a published file whole and compared, or says which file to bring."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import servers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from servers import Handler, serving

from entrypoint import Failure
from train.data.download import StatusLine
from train.models import fetch, pretrained
from train.models.pretrained import PublishedWeights

TENSORS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.zeros(2)}
SAFETENSORS = save(TENSORS)
SHA256 = hashlib.sha256(SAFETENSORS).hexdigest()


def torch_file() -> bytes:
    stream = io.BytesIO()
    torch.save({"state_dict": TENSORS}, stream)
    return stream.getvalue()


def published(*addresses: str) -> PublishedWeights:
    """Made-up weights at these addresses."""
    return replace(pretrained.find_published("resnet18"), addresses=addresses)


def bring(entry: PublishedWeights, folder: Path, mirror: str | None = None) -> Path:
    return fetch.fetch_weights(entry, folder, mirror=mirror, status=StatusLine(io.StringIO()))


def hub(named: str = SHA256) -> servers.Behaviour:
    """A server that redirects to the file, and names its sha256, as the hub does."""

    def answer(handler: Handler, body: bytes) -> None:
        if "/cdn/" in handler.path:
            return servers.whole(handler, body)
        location = f"{handler.server.url}/cdn/{handler.path.rpartition('/')[2]}"
        return handler.head(302, Location=location, X_Linked_Etag=f'"{named}"', Content_Length=0)

    return answer


def test_a_torch_file_is_compared_with_the_hash_in_its_name_and_kept_as_safetensors(tmp_path: Path) -> None:
    body = torch_file()
    name = f"resnet18-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    with serving({name: body}, servers.whole) as server:
        path = bring(published(f"{server.url}/{name}"), tmp_path / "w")
    assert path == tmp_path / "w/resnet18.IMAGENET1K_V1.safetensors"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert all(torch.equal(tensor, TENSORS[key]) for key, tensor in load_file(path).items())
    record = pretrained.read_record(path, "small_cnn")
    assert record == pretrained.find_published("resnet18").record
    with safe_open(path, framework="pt") as file:
        assert hashlib.sha256(body).hexdigest() in file.metadata()[pretrained.RECORD_KEY]


def test_the_hubs_file_is_compared_with_the_hash_that_the_hub_names(tmp_path: Path) -> None:
    with serving({"model.safetensors": SAFETENSORS}, hub()) as server:
        assert bring(published(f"{server.url}/model.safetensors"), tmp_path).is_file()
        server.behaviour = hub("0" * 64)
        with pytest.raises(Failure, match="not the published file") as caught:
            bring(published(f"{server.url}/model.safetensors"), tmp_path / "other")
    assert caught.value.code == 65


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    with serving({"model.safetensors": SAFETENSORS}, servers.whole) as server:
        entry = published(f"{server.url}/model.safetensors")
        assert bring(entry, tmp_path) == bring(entry, tmp_path)
        assert len(server.asked) == 1


OTHER_MODEL = save(TENSORS, pretrained.find_published("resnet50").record.to_metadata("https://host/x", SHA256))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"garbage", "damaged"),
        (b"", "damaged"),
        (SAFETENSORS[:-4], "damaged"),
        (b"<html>log in</html>" * 9, "damaged"),
        (save({}), "damaged"),
        (OTHER_MODEL, "it holds resnet50.IMAGENET1K_V2"),
    ],
    ids=["garbage", "empty", "cut", "page", "no-tensor", "other-model"],
)
def test_what_is_there_but_cannot_be_used_is_fetched_again(tmp_path: Path, content: bytes, problem: str) -> None:
    with serving({"model.safetensors": SAFETENSORS}, servers.whole) as server:
        entry = published(f"{server.url}/model.safetensors")
        path, console = tmp_path / entry.file_name, io.StringIO()
        path.write_bytes(content)
        assert fetch.fetch_weights(entry, tmp_path, mirror=None, status=StatusLine(console)) == path
    assert f"{path} is there, but {problem}" in console.getvalue()
    assert load_file(path).keys() == TENSORS.keys()


def test_weights_that_somebody_copied_there_are_left_as_they_are(tmp_path: Path) -> None:
    entry = published("http://127.0.0.1:9/model.safetensors")
    (tmp_path / entry.file_name).write_bytes(SAFETENSORS)  # without a record
    assert bring(entry, tmp_path).read_bytes() == SAFETENSORS


def test_the_next_address_is_asked_where_the_first_has_nothing(tmp_path: Path) -> None:
    with serving({"b.safetensors": SAFETENSORS}, servers.whole) as server:
        assert bring(published(f"{server.url}/a.safetensors", f"{server.url}/b.safetensors"), tmp_path).is_file()


def test_a_mirror_replaces_the_published_folder(tmp_path: Path) -> None:
    body = torch_file()
    name = f"resnet18-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    with serving({name: body}, servers.whole) as server:
        assert bring(published(f"http://127.0.0.1:9/none/{name}"), tmp_path, mirror=server.url).is_file()


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("forbidden", 66),
        ("server_error", 66),
        ("closes_at_once", 66),
        ("stops_half_way", 66),
        ("talks_rubbish", 66),
        ("wrong_file", 65),
        ("login_page", 65),
        ("nothing", 65),
    ],
)
def test_a_file_that_does_not_come_whole_leaves_nothing_and_says_what_to_bring(
    tmp_path: Path, behaviour: str, code: int
) -> None:
    name = f"resnet18-{SHA256[:8]}.safetensors"
    with serving({name: SAFETENSORS}, getattr(servers, behaviour)) as server, pytest.raises(Failure) as caught:
        bring(published(f"{server.url}/{name}"), tmp_path)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
    assert (
        "python -c \"import torch, torchvision; torch.save(torchvision.models.get_model('resnet18'" in caught.value.fix
    )
    assert "train weights fetch resnet18.IMAGENET1K_V1" in caught.value.fix
    assert str(tmp_path) in caught.value.fix


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("")
    with pytest.raises(Failure) as caught:
        bring(published("http://127.0.0.1:9/model.safetensors"), tmp_path / "w")
    assert caught.value.code == 73


def test_the_command_fetches_timms_weights_from_the_hub_and_says_how_to_use_them(tmp_path: Path) -> None:
    with serving({"model.safetensors": SAFETENSORS}, hub()) as server:
        command = [sys.executable, "-m", "train", "weights", "fetch", "timm/test_resnet"]
        environ = {**os.environ, "HF_ENDPOINT": server.url, "PYTHONPATH": os.getcwd(), "no_proxy": "*"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert server.asked[0] == "/pub/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    assert done.returncode == 0, done.stderr
    assert "-m train model.name=timm/test_resnet model.weights=timm/test_resnet.r160_in1k" in done.stdout
    assert SHA256 in done.stderr
    assert (tmp_path / "weights/timm-test_resnet.r160_in1k.safetensors").is_file()


def test_a_file_with_a_damaged_record_is_fetched_again(tmp_path: Path) -> None:
    entry = published("https://example.invalid/model.safetensors")
    (tmp_path / entry.file_name).write_bytes(save(TENSORS, {pretrained.RECORD_KEY: "{}"}))
    with serving({"model.safetensors": SAFETENSORS}, servers.whole) as server:
        path = bring(entry, tmp_path, mirror=server.url)
    assert pretrained.read_record(path, "small_cnn") == entry.record
