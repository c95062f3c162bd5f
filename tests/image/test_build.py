"""The recipe, built anew: behind a proxy that reads along in HTTPS, and with the same result as before."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import BUILD, Image, call, mounted
from interception import Authority, Proxy, intercepting
from machines import REPOSITORY

pytestmark = pytest.mark.timeout(900)

NAME = "train-behind-a-proxy:test"
# No layer is left over; chroot works on every machine.
OPTIONS = {
    "podman": ("--layers=false", "--isolation=chroot", "--network=host"),
    "docker": ("--no-cache", "--network=host"),
}
PASSWORD = "a-builders-password"
# Of the dependencies only the one that is built here; what an engine mounts is not the image's.
LIST = """
find / -xdev \\( -path '*/site-packages/*' ! -path '*/h11*' -o -path /opt/train-image \\) -prune -o -type f -print0 |
grep -zvE '^/(proc|sys|dev|run)/|^/etc/(hosts|hostname|resolv.conf)$|^/opt/image.json$' | xargs -0 sha256sum"""
TWICE = """
for folder in /tmp/a /tmp/b; do
  sh /source/image/project.sh /source /tmp/built a-revision && mv /tmp/built $folder
done
diff -r /tmp/a /tmp/b && find /tmp/b -name '*.pyc' | grep -q trainer && echo same"""
Done = subprocess.CompletedProcess[str]
FETCH = "import sys, urllib.request as web; web.urlopen(sys.argv[1] + '/debian/dists/trixie/InRelease', timeout=60)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site's proxy, its mirror, and a copy of the recipe with one small dependency."""

    image: Image
    proxy: Proxy
    mirror: str
    recipe: Path
    base: str

    def build(self, stage: str, *options: str) -> Done:
        """Build a stage by this proxy."""
        address = f"http://builder:{PASSWORD}@127.0.0.1:{self.proxy.port}"
        arguments = {"https_proxy": address, "http_proxy": address, "MIRROR": self.mirror, "BASE": self.base}
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        engine = (self.image.engine, "build", *OPTIONS[self.image.engine], "--target", stage, "--tag", NAME)
        return call(*engine, *given, *options, str(self.recipe), seconds=800)


@pytest.fixture(scope="module")
def site(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site without another way to the world."""
    if image.engine not in OPTIONS:
        pytest.skip(f"machine: {image.engine} only, with which this is not tried")
    recipe = tmp_path_factory.mktemp("recipe")
    shutil.copytree(REPOSITORY / "image", recipe / "image")
    shutil.copy(REPOSITORY / "Containerfile", recipe)
    lock = (REPOSITORY / "requirements.lock").read_text()
    (recipe / "requirements.lock").write_text(re.findall(r"^h11==(?:.*\\\n)*.*\n", lock, re.M)[0])
    base = call(str(BUILD), "base").stdout.split()[-1]
    with intercepting(Authority.made(tmp_path_factory.mktemp("authority"))) as proxy:
        yield Site(image=image, proxy=proxy, mirror=mirror(), recipe=recipe, base=base)


def mirror() -> str:
    """This machine's Debian mirror, by HTTPS."""
    shown = call("bash", "-c", f"source {REPOSITORY}/tools/debian-mirror.sh && mirror").stdout
    return re.sub(r"^https?://(.*)/debian/?\s*$", r"https://\1", shown)


@pytest.fixture(scope="module")
def built(site: Site) -> Iterator[Site]:
    """The layers that download, built with the authority as a secret."""
    done = site.build("dependencies", "--secret", f"id=ca.crt,src={site.proxy.authority.certificate}")
    assert done.returncode == 0, done.stdout[-3000:]
    yield site
    call(site.image.engine, "rmi", NAME)


def test_a_proxy_that_nobody_vouched_for_is_refused_at_the_first_step(site: Site) -> None:
    done = site.build("system")
    assert (done.returncode != 0, "ertificate" in done.stdout) == (True, True), done.stdout[-3000:]


def test_debians_packages_come_through_the_proxy(built: Site) -> None:
    host = built.mirror.removeprefix("https://")
    assert [line for line in built.proxy.read if re.match(rf"{re.escape(host)} \S*/tini_\S+\.deb", line)]


def test_wheels_come_through_the_proxy(built: Site) -> None:
    assert [line for line in built.proxy.read if re.search(r"/h11-[^/]+\.whl", line)]


def test_no_trace_of_proxy_authority_and_mirror_is_in_the_file_system(built: Site) -> None:
    certificate = built.proxy.authority.certificate.read_text().splitlines()[5]
    words = (certificate, PASSWORD, f"127.0.0.1:{built.proxy.port}", built.mirror)
    wanted = [word for given in words for word in ("-e", given)]
    places = ("/etc", "/opt/train-image", "/run", "/tmp", "/root", "/usr/local", "/var")
    assert started(built, "grep", "-rlsF", *wanted, *places).stdout == ""


def test_no_trace_of_proxy_and_authority_is_in_the_history(built: Site) -> None:
    shown = "".join(
        call(built.image.engine, *words, NAME).stdout for words in (("history", "--no-trunc"), ("inspect",))
    )
    assert "dependencies.sh" in shown
    assert not re.search(rf"{PASSWORD}|CERTIFICATE|:{built.proxy.port}", shown)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_container_trusts_the_authority_only_when_it_is_mounted_and_named(built: Site, trusted: bool) -> None:
    place = (f"--volume={built.proxy.authority.certificate}:/ca.crt:ro", "--env=SSL_CERT_FILE=/ca.crt")
    address = f"--env=https_proxy=http://127.0.0.1:{built.proxy.port}"
    given = (address, *(place if trusted else ()))
    done = started(built, "/opt/venv/bin/python", "-c", FETCH, built.mirror, options=given)
    assert (done.returncode, "CERTIFICATE_VERIFY_FAILED" in done.stdout) == (0 if trusted else 1, not trusted), (
        done.stdout
    )


def test_the_same_packages_make_the_same_files(built: Site, image: Image) -> None:
    new, old = (started(built, "sh", "-c", LIST, name=name).stdout.splitlines() for name in (NAME, image.name))
    if packages(new) != packages(old):
        pytest.skip(
            "machine: Debian has published newer packages since the image was built; a snapshot would keep them"
        )
    assert len(new) > 5000
    others = sorted(set(new) - set(old))
    assert others == []


def test_the_projects_layer_is_the_same_when_somebody_with_settings_builds_it_again(
    image: Image, tmp_path: Path
) -> None:
    for name in re.findall(r"^!(.*)", (REPOSITORY / ".dockerignore").read_text(), re.M):
        taken = REPOSITORY / name
        (shutil.copytree if taken.is_dir() else shutil.copy)(taken, tmp_path / name)
    (tmp_path / "launch" / "site.env").write_text("export SBATCH_ACCOUNT=the_builders_own\n")
    ended = image.run("sh", "-c", TWICE, options=("--user=0", mounted(tmp_path, "/source")), seconds=300)
    assert ended.code == 0, ended.output
    assert "same" in ended.output


def packages(lines: list[str]) -> list[str]:
    """What dpkg knows of each package: the list of its files, and their sums."""
    return [line for line in lines if re.search(r" /var/lib/dpkg/(info/.*(list|md5sums)|status)$", line)]


def started(site: Site, *words: str, name: str = NAME, options: tuple[str, ...] = ()) -> Done:
    """Run words as root in an image that was built here."""
    engine = (site.image.engine, "run", "--rm", "--network=host", "--user=0", "--entrypoint=", *site.image.options)
    return call(*engine, *options, name, *words, seconds=180)
