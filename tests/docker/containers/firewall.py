"""The packet filter and the bridge, which an engine changes, as they were before."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
BRIDGE = "docker0"


@contextmanager
def restored(notes: Path) -> Iterator[None]:
    """Put rules, forwarding and bridge back as they were when the block was entered.

    What was there is noted in a folder; notes that are left of a process that was killed are obeyed first.
    """
    if (notes / "complete").exists():
        _put_back(notes)
    notes.mkdir(exist_ok=True)
    (notes / "rules").write_text(_call("iptables-save"))
    (notes / "forwarding").write_text(FORWARDING.read_text())
    (notes / "complete").touch()
    try:
        yield
    finally:
        _put_back(notes)


def _put_back(notes: Path) -> None:
    rules = (notes / "rules").read_text()
    if Path("/sys/class/net", BRIDGE).exists():
        _call("ip", "link", "delete", BRIDGE)
    # Tables that were there are replaced as a whole; the others are emptied.
    for table in set(re.findall(r"^\*(\w+)", _call("iptables-save"), re.MULTILINE)):
        if f"*{table}\n" not in rules:
            _call("iptables", "--table", table, "--flush")
            _call("iptables", "--table", table, "--delete-chain")
            if table == "filter":
                _call("iptables", "--policy", "FORWARD", "ACCEPT")
    _call("iptables-restore", input=rules)
    FORWARDING.write_text((notes / "forwarding").read_text())
    (notes / "complete").unlink()


def _call(*command: str, input: str | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, input=input).stdout
