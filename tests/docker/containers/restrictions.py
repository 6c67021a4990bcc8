"""What ``docker/README.md`` says that a container may not do, tried in one."""

from __future__ import annotations

from containers.project import Project

TRIED = """
test "$(id -u)" = 10001 || echo "the user is $(id -u)"
grep -q '^CapBnd:.0000000000000000' /proc/self/status || echo "it has capabilities"
grep -q '^NoNewPrivs:.1' /proc/self/status || echo "it may gain privileges"
for place in / /opt /var/lib/fedgraph; do
    touch $place/written 2>/dev/null && echo "it can write to $place"
done
touch /tmp/written || echo "it cannot write to /tmp"
"""


def broken(project: Project, service: str) -> list[str]:
    """Return what a container of ours can do although it must not, or cannot although it must."""
    return project.execute(service, "sh", "-c", TRIED).splitlines()
