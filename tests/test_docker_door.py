"""The door of docker/nginx.conf before a real SuperLink: nodes come through, and nobody who would submit runs."""

import contextlib
import subprocess
import threading
import time

import httpx
import pytest
import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedgraph.commands.deployment.server_command import register_nodes
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import connection_file, free_port
from fedgraph.federation.grids.programs import flower_environment, program
from fedgraph.runs.folder import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine
from fedgraph.support.errors import RunError

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@contextlib.contextmanager
def door(superlink, credentials, lets_through):
    """A TLS-terminating proxy with the rules of nginx.conf before ``superlink``; yields its address and what it saw."""
    seen = []
    behind = httpx.AsyncClient(verify=str(credentials.authority), timeout=600)

    async def answer(request):
        path = request.scope["raw_path"].decode() + (f"?{request.url.query}" if request.url.query else "")
        passes = lets_through(request.method, path)
        seen.append((request.method, path, passes))
        if not passes:
            return Response(status_code=403)
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        asked = behind.build_request(
            request.method, f"https://{superlink}{path}", headers=headers, content=await request.body()
        )
        found = await behind.send(asked, stream=True)
        kept = {name: value for name, value in found.headers.items() if name not in HOP_BY_HOP}
        return StreamingResponse(found.aiter_raw(), found.status_code, kept)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PUT", "DELETE"])])
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            log_level="warning",
            ssl_certfile=str(credentials.certificate),
            ssl_keyfile=str(credentials.key),
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}", seen
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_nodes_work_through_the_door_and_runs_and_keys_do_not_pass(digits_tables, tmp_path, lets_through):
    sites = ["client-0", "client-1"]
    digits_tables["data"]["clients"] = 2
    digits_tables["experiment"] |= {"method": "fedavg", "rounds": 1, "wait": 180}
    del digits_tables["graph"], digits_tables["sfl"]
    with FederationOnThisMachine(tmp_path / "federation", sites) as federation:
        own = federation.credentials
        digits_tables["clients"] = {"expect": sites, "public-keys": str(own.public_keys)}
        with door(federation.address, own, lets_through) as (address, seen):
            assert httpx.get(f"https://{address}/health", verify=str(own.authority)).status_code == 200
            for site in sites:
                federation.start_node(site, {"clients": site}, superlink=address)
            folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
            log = federation.run(folder)
            assert folder.is_finished, log[-4000:]
            assert ("POST", "/v1/fleet/push-messages", True) in seen

            with pytest.raises(RunError, match="client-0"):
                register_nodes(own.public_keys, address, own.authority, Console(quiet=True))
            assert ("POST", "/v1/control/register-node", False) in seen
            connection_file(tmp_path / "stranger", address, own.authority)
            submitted = subprocess.run(
                [program("flwr"), "run", str(federation.folder / "app"), "here"],
                env=flower_environment(tmp_path / "stranger"), capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert submitted.returncode != 0, submitted.stdout
            assert ("POST", "/v1/control/start-run", False) in seen
            assert not [path for _, path, passed in seen if passed and not path.startswith(("/v1/fleet/", "/health"))]
