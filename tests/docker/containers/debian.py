"""What this machine's package managers are told: where Debian's packages are, and which indices pip asks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def is_debian() -> bool:
    """Return whether this is Debian, whose packages an engine can be made of."""
    release = Path("/etc/os-release")
    return release.exists() and "ID=debian" in release.read_text().split()


def mirror() -> str:
    """Return the address of the first package source that apt is configured with."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0]


def install(*packages: str) -> None:
    """Install what is missing of some packages on this machine."""
    missing = [name for name in packages if not _is_installed(name)]
    if missing:
        _call("apt-get", "update", "-qq")
        _call("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def unpack(suite: str, packages: list[str], target: Path, variant: str = "minbase") -> None:
    """Make a folder, or a .tar file, of packages of a suite and of what they depend on.

    They are set up and ready to run but with the variant ``extract``, which only unpacks them.
    """
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
    included = f"--include={','.join(packages)}"
    _call("mmdebstrap", "--quiet", f"--variant={variant}", included, *without, suite, str(target), mirror())


def pip_settings() -> dict[str, str]:
    """Return the settings of pip on this machine that say where packages are."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if not equals or key not in ("index-url", "extra-index-url", "trusted-host", "find-links"):
            continue
        # Variables of the environment count more than files.
        if key not in found or section == ":env:":
            found[key] = ast.literal_eval(value)
    # An index that lies on this machine's disk is out of a container's reach; folders of wheels are offered to it.
    for key in ("index-url", "extra-index-url"):
        found[key] = " ".join(address for address in found.get(key, "").split() if address.startswith("http"))
    return {key: value for key, value in found.items() if value}


def _is_installed(package: str) -> bool:
    asked = ["dpkg-query", "-W", "-f", "${Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.endswith("ok installed")


def _call(*command: str) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}"
