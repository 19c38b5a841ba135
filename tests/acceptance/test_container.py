"""The container images: Podman builds them, and runs the service with the restrictions of deploy/compose.yaml.

No registry is used. The base image is a small Debian with Python, made with mmdebstrap. It stays in a folder for
temporary files, so that the next run does not make it again.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from programs import need, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["forewarn"]
SUITE, PYTHON = "bookworm", "3.11"
"""The release of Debian in the base image, and its Python."""

# crun does not run where a second hierarchy of cgroups is mounted beside the first.
PODMAN = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec podman "$@"'

INSIDE = """
import errno, os, urllib.request
request = urllib.request.Request(
    "http://127.0.0.1/metadata/scheduledevents?api-version=2020-07-01", headers={"Metadata": "true"})
print(urllib.request.urlopen(request, timeout=30).read().decode())
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print("user", status["Uid"].split()[0], "capabilities", int(status["CapEff"], 16), int(status["NoNewPrivs"]))
for folder in ("/", "/opt/forewarn", "/etc"):
    try:
        open(folder + "/new", "w")
    except OSError as error:
        print(folder, errno.errorcode[error.errno])
"""
KUBECTL = """#!/bin/sh
echo "kubectl $*"
"""


class Podman:
    """Podman with its own storage, and only what it can do on machines without systemd and cgroups."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        places = {"--root": "storage", "--runroot": "run", "--tmpdir": "tmp"}
        self._options = [f"{option}={folder / name}" for option, name in places.items()]
        self._options += ["--cgroup-manager=cgroupfs", "--events-backend=none", "--log-level=fatal"]
        self.limits = ["--cgroups=disabled"]
        for name, limit in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            number = min(4096, resource.getrlimit(limit)[1] % 2**63)
            self.limits.append(f"--ulimit={name}={number}:{number}")

    def command(self, *arguments: str | Path) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", PODMAN, "podman", *self._options, *map(str, arguments)]

    def __call__(self, *arguments: str | Path, expected: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            env={**os.environ, "TMPDIR": str(self._folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expected, f"{arguments}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def build(self, file: Path, name: str, *options: str | Path, context: Path = ROOT) -> None:
        self("build", "--format=docker", "--pull-never", "--network=none", "-f", file, "-t", name, *options, context)

    def run(self, *arguments: str | Path, expected: int = 0) -> str:
        return self("run", *self.limits, "--network=none", *arguments, expected=expected)

    def start_service(self, name: str) -> None:
        """Start the service as compose.yaml says, with the metadata service at port 80. Return when it is ready."""
        options = [
            "--read-only" if COMPOSE["read_only"] else "",
            *(f"--tmpfs={each}" for each in COMPOSE["tmpfs"]),
            *(f"--cap-drop={each}" for each in COMPOSE["cap_drop"]),
            *(f"--security-opt={each.removesuffix(':true')}" for each in COMPOSE["security_opt"]),
            f"--volume={COMPOSE['volumes'][0]}",
            f"--volume={ROOT / 'examples' / 'demo.toml'}:{COMPOSE['environment']['FOREWARN_FLEET']}:ro",
            f"--env=FOREWARN_FLEET={COMPOSE['environment']['FOREWARN_FLEET']}",
            "--env=FOREWARN_METADATA=127.0.0.1:80",
            "--sysctl=net.ipv4.ip_unprivileged_port_start=80",
        ]
        self.run("--detach", f"--name={name}", *filter(None, options), "localhost/forewarn")
        with subprocess.Popen(self.command("logs", "--follow", name), stdout=subprocess.PIPE, text=True) as log:
            assert log.stdout is not None
            lines = []
            for line in log.stdout:
                lines.append(line)
                if line.startswith("Try in another"):
                    log.kill()
                    return
        pytest.fail("".join(lines))


@pytest.fixture
def podman() -> Iterator[Podman]:
    need("podman", "crun", "mmdebstrap")
    need_root()
    # A short path: sockets in it have a maximum length.
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        podman = Podman(Path(folder))
        try:
            yield podman
        finally:
            podman("rm", "--all", "--force", "--time=0")


def base_image() -> Path:
    """Return the file system of the base image, as an archive. Make it if it is missing."""
    folder = Path(tempfile.gettempdir()) / f"forewarn-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} belongs to another user"
    archive = folder / f"{SUITE}.tar"
    if not archive.exists():
        new = folder / f"{os.getpid()}.tar"
        options = ["--variant=essential", "--include=python3,python3-venv,passwd", "--dpkgopt=force-unsafe-io"]
        options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
        command = ["mmdebstrap", "--quiet", *options, SUITE, str(new)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
        new.rename(archive)
    return archive


def download_packages(folder: Path) -> None:
    """Download what the build installs, with the configuration of pip on this machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["postgresql"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"], *extra]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={PYTHON}"]
    done = subprocess.run(
        [*pip, "--dest", str(folder), *wanted], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_images_work_with_all_restrictions(podman: Podman, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    download_packages(wheels)
    podman("import", base_image(), "localhost/base")
    podman.build(
        ROOT / "deploy" / "Containerfile",
        "localhost/forewarn",
        "--build-arg=BASE=localhost/base",
        "--build-arg=PIP_NO_INDEX=1",
        "--build-arg=PIP_FIND_LINKS=/wheels",
        f"--volume={wheels}:/wheels:ro",
    )
    check_service(podman)
    check_agent_image(podman, tmp_path)


def check_service(podman: Podman) -> None:
    podman.start_service("first")
    shown = podman("exec", "first", "python3", "-c", INSIDE).splitlines()
    assert shown == [
        '{"DocumentIncarnation":0,"Events":[]}',
        "user 8169 capabilities 0 1",
        "/ EROFS",
        "/opt/forewarn EROFS",
        "/etc EROFS",
    ]
    podman("healthcheck", "run", "first")
    podman("exec", "first", "forewarn", "vm", "restart", "web-0")
    podman("stop", "--time=60", "first")
    assert podman("inspect", "--format={{.State.ExitCode}}", "first").strip() == "0", "SIGTERM did not stop it"
    podman("rm", "first")
    podman.start_service("second")
    assert '"EventType":"Reboot"' in podman("exec", "second", "python3", "-c", INSIDE)


def check_agent_image(podman: Podman, folder: Path) -> None:
    """Build the image for Kubernetes with a kubectl that prints its arguments."""
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    (folder / "Containerfile").write_text("FROM scratch\nCOPY kubectl /bin/kubectl\n")
    podman.build(folder / "Containerfile", "localhost/kubectl", context=folder)
    podman.build(
        ROOT / "deploy" / "kubernetes" / "Containerfile",
        "localhost/forewarn-agent",
        "--build-arg=FOREWARN=localhost/forewarn",
        "--build-arg=KUBECTL=localhost/kubectl",
    )
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "agent.yaml").read_text())
    policy = next(each["data"]["agent.toml"] for each in manifests if each["kind"] == "ConfigMap")
    (folder / "agent.toml").write_text(policy)
    restricted = ["--rm", "--read-only", "--cap-drop=all", f"--volume={folder}/agent.toml:/etc/forewarn/agent.toml:ro"]
    shown = podman.run(*restricted, "localhost/forewarn-agent", "check", "/etc/forewarn/agent.toml")
    assert "short pause" in shown
    drain = ["--entrypoint=kubernetes-drain", "--env=FOREWARN_ACTION=prepare", "--env=NODE=node-1"]
    assert "kubectl drain node-1 " in podman.run(*restricted, *drain, "localhost/forewarn-agent")
