import contextlib
import socket
import ssl
import threading
import time
from email.utils import formatdate

import pytest

from fedgraph.commands.deployment.connection import check_port_free, check_superlink, host_and_port
from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.federation.grids.local_flower import free_port, process
from fedgraph.federation.grids.programs import flower_environment, past_proxies, program
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
            "not trusted: .*certificate.*; the server's certificate is from another authority",
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
            r"the clock of this machine is 3[56]\d\d s ahead of that of the server .*: synchronise it over the network",
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
    with pytest.raises(RunError, match="does not use TLS|cannot reach"):
        check_superlink(listen(), made.authority)
    with pytest.raises(RunError, match="speaks TLS: give --root-certificates"):
        check_superlink(listen(made), None)
    check_superlink(listen(), None)
    with pytest.raises(RunError, match="is not a certificate of an authority"):
        check_superlink("127.0.0.1:1", made.key)


# ---- proxies

ELSEWHERE = "127.0.0.2"
"""An address that is not one of this machine's usual names, so that a proxy leads there."""


@pytest.fixture
def proxy(monkeypatch):
    """``proxy(answer)``: the port of a proxy that relays connections, or gives this answer to all who come.

    ``asked`` are the first lines of what it was sent. The variables for proxies of this machine are not there.
    """
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    ended, threads, sockets = threading.Event(), [], []

    def start(answer=None):
        listening = socket.create_server(("127.0.0.1", 0))
        listening.settimeout(0.1)
        sockets.append(listening)

        def relay(source, target):
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        def serve_one(came):
            # A body of bytes may come with the headers.
            first = came.recv(65536).decode("latin-1")
            if not first:
                came.close()
                return
            start.asked.append(first.splitlines()[0])
            if answer is not None:
                came.sendall(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
                came.close()
                return
            to = socket.create_connection(host_and_port(first.split()[1]))
            came.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=relay, args=(to, came))
            back.start()
            relay(came, to)
            back.join()
            came.close()
            to.close()

        def serve():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError, OSError):
                    came, _ = listening.accept()
                    came.settimeout(5)
                    serve_one(came)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return listening.getsockname()[1]

    start.asked = []
    yield start
    ended.set()
    for thread, listening in zip(threads, sockets, strict=True):
        thread.join()
        listening.close()


def test_the_check_goes_through_the_proxy_that_flower_goes_through(tmp_path, listen, proxy, monkeypatch):
    made = make_test_credentials(tmp_path, [ELSEWHERE], [])
    address, port = listen(made, host=ELSEWHERE, clock=0), proxy()
    monkeypatch.setenv("https_proxy", f"http://someone:secret@127.0.0.1:{port}")
    assert check_superlink(address, made.authority).proxy == f"127.0.0.1:{port} (https_proxy)"
    assert proxy.asked == [f"CONNECT {address} HTTP/1.1"]
    # And so do the checks of certificate and clock.
    other = make_test_credentials(tmp_path / "other", [ELSEWHERE], [])
    with pytest.raises(RunError, match=rf"{address} through the proxy 127.0.0.1:{port} \(https_proxy\) is not trusted"):
        check_superlink(address, other.authority)
    with pytest.raises(RunError, match="the clock of this machine is"):
        check_superlink(listen(made, host=ELSEWHERE, clock=1000), made.authority)
    assert len(proxy.asked) == 3


@pytest.mark.process
def test_flower_goes_the_same_way(tmp_path, listen, proxy, monkeypatch):
    """Its SuperNode asks the proxy that the check has asked; and processes on this machine do not."""
    address, port = listen(host=ELSEWHERE), proxy("403 Forbidden")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    with pytest.raises(RunError, match="got 403 Forbidden instead"):
        check_superlink(address, None)
    command = [program("flower-supernode"), "--insecure", "--superlink", address, "--port", str(free_port())]
    with process(command, flower_environment(tmp_path), tmp_path / "log"):
        deadline = time.monotonic() + 120
        while len(proxy.asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert [first.split()[1].startswith(f"http://{address}/") for first in proxy.asked[:2]] == [True, True]
    assert not any("127.0.0.1" in first for first in proxy.asked)


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("answer", ["403 Forbidden", "407 Proxy Authentication Required"])
def test_a_proxy_that_refuses_is_named_without_its_password(tmp_path, listen, proxy, monkeypatch, variable, answer):
    made = make_test_credentials(tmp_path, [ELSEWHERE], [])
    address, port = listen(made, host=ELSEWHERE), proxy(answer)
    monkeypatch.setenv(variable, f"http://someone:secret@127.0.0.1:{port}")
    with pytest.raises(
        RunError, match=rf"through the proxy 127.0.0.1:{port} \({variable}\): {answer}; .*no_proxy=127"
    ) as e:
        check_superlink(address, made.authority)
    assert "secret" not in str(e.value)


def test_an_answer_of_the_proxy_is_not_one_of_the_server(listen, proxy, monkeypatch):
    address, port = listen(host=ELSEWHERE), proxy("502 Bad Gateway")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    with pytest.raises(RunError, match="got 502 Bad Gateway instead of a reply of the server"):
        check_superlink(address, None)


def test_a_proxy_that_is_not_there(tmp_path, proxy, monkeypatch):
    made = make_test_credentials(tmp_path, [ELSEWHERE], [])
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RunError, match=r"through the proxy 127.0.0.1:\d+ \(https_proxy\): .*; is the proxy running\?"):
        check_superlink(f"{ELSEWHERE}:8000", made.authority)
    monkeypatch.setenv("https_proxy", "ftp://127.0.0.1:1")
    with pytest.raises(RunError, match="the proxy set in the environment cannot be used"):
        check_superlink(f"{ELSEWHERE}:8000", made.authority)


def test_no_proxy_and_this_machine_are_reached_directly(tmp_path, listen, proxy, monkeypatch):
    made = make_test_credentials(tmp_path, [ELSEWHERE, "127.0.0.1"], [])
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy('403 Forbidden')}")
    assert check_superlink(listen(made), made.authority).proxy == ""
    monkeypatch.setenv("no_proxy", f"example, {ELSEWHERE}")
    assert check_superlink(listen(made, host=ELSEWHERE), made.authority).proxy == ""
    assert proxy.asked == []


def test_a_variable_that_flower_does_not_heed_is_named(proxy, monkeypatch):
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    with pytest.raises(RunError, match="grpc_proxy is set, but Flower ignores it: set https_proxy"):
        check_superlink(f"{ELSEWHERE}:{free_port()}", None)


def test_processes_of_flower_on_this_machine_talk_past_proxies(proxy, monkeypatch):
    assert "no_proxy" not in flower_environment()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert flower_environment()["no_proxy"] == "127.0.0.1,localhost,::1"
    assert past_proxies({"NO_PROXY": "a.b,localhost"}) == "a.b,localhost,127.0.0.1,::1"
    assert past_proxies({"no_proxy": "x", "NO_PROXY": "a.b"}) == "x,127.0.0.1,localhost,::1"


def test_a_port_in_use_is_said(listen):
    host, port = host_and_port(listen())
    with pytest.raises(RunError, match=rf"the node cannot listen on port {port} of 127.0.0.1: it is in use. .* --port"):
        check_port_free(host, port, "the node")
    check_port_free("127.0.0.1", free_port(), "the node")


def test_addresses():
    assert host_and_port("superlink.example:8000") == ("superlink.example", 8000)
    assert host_and_port("[::1]:80") == ("::1", 80)
    for wrong in ("superlink", "superlink:", ":80", "superlink:http"):
        with pytest.raises(RunError, match="must be host:port"):
            host_and_port(wrong)
