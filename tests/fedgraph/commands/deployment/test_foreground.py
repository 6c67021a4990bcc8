"""Flower's programs in the foreground: ended with this one, and started again when their executor has ended."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest

from fedgraph.commands.deployment import foreground

PROGRAM = """#!{python}
import os, subprocess, time
print(os.getpid(), file=open({started!r}, "a"))
executor = subprocess.Popen([{executor!r}])
time.sleep(600)
"""
# It ends with its program, and after a minute if that ended before it could look.
EXECUTOR = """#!{python}
import os, time
parent, end = os.getppid(), time.monotonic() + 60
while os.getppid() == parent and time.monotonic() < end:
    time.sleep(0.1)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program with an executor, found on the path; the file has a line with its process for each start."""
    started, executor = tmp_path / "started", tmp_path / "flower-superexec"
    texts = {executor: EXECUTOR, tmp_path / "flower-pretended": PROGRAM}
    for path, text in texts.items():
        path.write_text(text.format(python=sys.executable, started=str(started), executor=str(executor)))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(foreground, "_LOOK_SECONDS", 0.05)
    return started


def starts(file):
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def executor_of(pid):
    return next((each for each in psutil.Process(pid).children() if "superexec" in " ".join(each.cmdline())), None)


def ran(act):
    """Run the program while ``act`` does something to it; returns its status."""
    acting = threading.Thread(target=act)
    acting.start()
    try:
        return foreground.run_to_the_end(["flower-pretended"], os.environ)
    finally:
        acting.join()


def test_a_program_whose_executor_has_ended_is_started_again(program, monkeypatch, capfd):
    monkeypatch.setattr(foreground, "_SOON_SECONDS", 0.0)

    def act():
        until(lambda: starts(program))
        until(lambda: executor_of(starts(program)[0]))
        time.sleep(0.3)
        executor_of(starts(program)[0]).kill()
        until(lambda: len(starts(program)) == 2)
        assert not psutil.pid_exists(starts(program)[0])
        os.kill(starts(program)[1], signal.SIGKILL)

    assert ran(act) == -signal.SIGKILL
    said = capfd.readouterr().err
    assert said.count("the executor of flower-pretended has ended, without which no app runs here: starting it") == 1


def test_what_it_leaves_behind_is_ended(tmp_path, monkeypatch):
    child, program = tmp_path / "child", tmp_path / "flower-leaving"
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    program.write_text(
        f"#!{sys.executable}\nimport subprocess\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', {stubborn!r}], stdout=subprocess.PIPE)\n"
        f"child.stdout.readline()\nprint(child.pid, file=open({str(child)!r}, 'w'))\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(foreground, "_GRACE_SECONDS", 0.2)
    assert foreground.run_to_the_end(["flower-leaving"], os.environ) == 0
    until(lambda: not psutil.pid_exists(left := int(child.read_text())) or psutil.Process(left).status() == "zombie")


def test_it_is_not_started_again_and_again(program):
    def act():
        until(lambda: starts(program))
        until(lambda: executor_of(starts(program)[0]))
        time.sleep(0.3)
        executor_of(starts(program)[0]).kill()

    assert ran(act) == 1
    assert len(starts(program)) == 1


def test_a_signal_ends_it_and_the_end_of_its_executor_is_none_of_a_fault(program, capfd):
    def act():
        until(lambda: starts(program))
        until(lambda: executor_of(starts(program)[0]))
        time.sleep(0.3)
        executor = executor_of(starts(program)[0])
        os.kill(os.getpid(), signal.SIGTERM)
        executor.kill()

    assert ran(act) == -signal.SIGTERM
    assert "executor" not in capfd.readouterr().err
