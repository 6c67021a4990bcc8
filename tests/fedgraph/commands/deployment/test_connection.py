import socket
import ssl
import threading
import time
from email.utils import formatdate

import pytest

from fedgraph.commands.deployment.connection import check_superlink, host_and_port
from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.federation.grids.local_flower import free_port
from fedgraph.support.errors import RunError


@pytest.fixture
def listen():
    """``listen(credentials)``: the address of a server that shakes hands, with TLS where it has credentials.

    With a ``clock`` it also answers a question, and tells the time, in seconds ahead of the true one.
    """
    ended, threads, sockets = threading.Event(), [], []

    def start(made=None, family=socket.AF_INET, host="127.0.0.1", clock=None):
        listening = socket.create_server((host, 0), family=family)
        listening.settimeout(0.1)
        sockets.append(listening)
        context = None
        if made is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(made.certificate, made.key)

        def serve():
            while not ended.is_set():
                try:
                    came, _ = listening.accept()
                except TimeoutError:
                    continue
                try:
                    came = context.wrap_socket(came, server_side=True) if context else came
                    if clock is not None and came.recv(1000):
                        date = formatdate(time.time() + clock, usegmt=True)
                        came.sendall(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
                    came.close()
                except OSError:
                    came.close()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"{host}:{listening.getsockname()[1]}"

    yield start
    ended.set()
    for thread, listening in zip(threads, sockets, strict=True):
        thread.join()
        listening.close()


def test_a_server_of_the_authority_is_trusted(tmp_path, listen):
    made = make_test_credentials(tmp_path, ["127.0.0.1"], [])
    check_superlink(listen(made), made.authority)
    check_superlink(listen(), None)


@pytest.mark.parametrize(
    ("hosts", "days", "other", "message"),
    [
        (
            ["127.0.0.1"],
            30,
            True,
            "not to be trusted: .*certificate.*; the server's certificate is of another authority",
        ),
        (["127.0.0.1"], -1, False, "certificate has expired; ask the operator of the server for a new one"),
        (["superlink.example"], 30, False, "the server's certificate is for other names"),
    ],
)
def test_a_server_that_is_not_to_be_trusted(tmp_path, listen, hosts, days, other, message):
    made = make_test_credentials(tmp_path / "own", hosts, [], days)
    authority = make_test_credentials(tmp_path / "other", hosts, []).authority if other else made.authority
    with pytest.raises(RunError, match=message):
        check_superlink(listen(made), authority)


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        (
            -3600,
            r"the clock of this machine is 3[56]\d\d s ahead of that of the server .*: have it set over the network",
        ),
        (
            1000,
            r"is (99\d|100\d) s behind that of the server .*, which refuses nodes more than 5 s ahead or 300 s behind",
        ),
        (-15, r"s ahead of that of the server"),
    ],
)
def test_a_clock_with_which_the_server_would_refuse_the_node(tmp_path, listen, clock, message):
    made = make_test_credentials(tmp_path, ["127.0.0.1"], [])
    with pytest.raises(RunError, match=message):
        check_superlink(listen(made, clock=clock), made.authority)


@pytest.mark.parametrize("clock", [0, -3, 200])
def test_a_clock_that_is_good_enough(tmp_path, listen, clock):
    made = make_test_credentials(tmp_path, ["127.0.0.1"], [])
    check_superlink(listen(made, clock=clock), made.authority)


def test_nobody_there_no_tls_and_no_certificate(tmp_path, listen):
    made = make_test_credentials(tmp_path, ["127.0.0.1"], [])
    with pytest.raises(RunError, match="cannot reach the server 127.0.0.1:"):
        check_superlink(f"127.0.0.1:{free_port()}", made.authority)
    with pytest.raises(RunError, match="does not speak TLS|cannot reach"):
        check_superlink(listen(), made.authority)
    with pytest.raises(RunError, match="is no certificate of an authority"):
        check_superlink("127.0.0.1:1", made.key)


def test_addresses():
    assert host_and_port("superlink.example:8000") == ("superlink.example", 8000)
    assert host_and_port("[::1]:80") == ("::1", 80)
    for wrong in ("superlink", "superlink:", ":80", "superlink:http"):
        with pytest.raises(RunError, match="is not of the form host:port"):
            host_and_port(wrong)
