"""Runs to read."""

import pytest

import fedgraph


@pytest.fixture
def ran(digits_tables, run_experiment):
    def run(method="sfl", **data):
        tables = {**digits_tables, "experiment": {**digits_tables["experiment"], "method": method}}
        tables["data"] = {**digits_tables["data"], **data}
        return fedgraph.load_run(run_experiment(tables).path)

    return run
