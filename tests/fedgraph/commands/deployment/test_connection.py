import socket
import ssl
import threading

import pytest

from fedgraph.commands.deployment.connection import check_superlink, host_and_port
from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.federation.grids.local_flower import free_port
from fedgraph.support.errors import RunError


@pytest.fixture
def listen():
    """``listen(credentials)``: the address of a server that shakes hands, with TLS where it has credentials."""
    ended, threads, sockets = threading.Event(), [], []

    def start(made=None, family=socket.AF_INET, host="127.0.0.1"):
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
                    (context.wrap_socket(came, server_side=True) if context else came).close()
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
