"""Measuring on a dask cluster: worker processes on this machine."""

import os
import signal
import time

import pytest

pytest.importorskip("distributed", reason="dask.distributed is not installed")

from distributed import Client, LocalCluster

from luminal_lab.errors import SearchError
from luminal_lab.runtime import dask_cluster
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.dask_cluster import DaskCluster, WorkerWarning, client_of
from luminal_lab.search import Budget, Database, search
from tests.runtime.distributed_jobs import POISON, job, spoiled_batch
from tests.runtime.processes import until
from tests.search.models import saturated

# What follows from times, such as who wins and who is measured beyond the most promising,
# differs between two searches in one process too.
SAME = ["region", "instances", "rank", "genome", "kernels", "reason", "rule"]
KILLED = 3
pytestmark = [
    pytest.mark.usefixtures("c_compiler"),
    # Of the library itself, when workers are killed and clusters closed.
    pytest.mark.filterwarnings("default:::distributed"),
    pytest.mark.filterwarnings("default::RuntimeWarning"),
]


@pytest.fixture(scope="module")
def client():
    # One more than these tests kill: on a busy machine a nanny may give up on a new worker.
    options = {"n_workers": KILLED + 1, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as made:
        yield made


def reasons(executor, jobs, **options) -> list[str]:
    with CpuTarget(executor=executor) as target:
        return [m.reason for m in target.measure(jobs, **options)]


def pids(client) -> set[int]:
    """The processes of the workers that are there."""
    return set(client.run(os.getpid, on_error="ignore").values())


def test_a_client_and_its_executor_are_recognised(client):
    assert client_of(client) is client
    assert client_of(client.get_executor()) is client
    assert client_of(object()) is None


def test_a_search_gives_what_it_gives_here_even_when_a_worker_is_killed(client):
    egraph = saturated("layernorm")
    with CpuTarget() as target:
        here = search(egraph, Budget("quick"), 0, target, database=Database(":memory:"))
    killed = []

    def kill(event):
        if event.stage == "measure" and event.done == 2 and not killed:
            killed.append(min(pids(client)))
            os.kill(killed[0], signal.SIGKILL)

    with CpuTarget(executor=client) as target:
        there = search(egraph, Budget("quick"), 0, target, kill, database=Database(":memory:"))
    assert killed
    assert there.table()[SAME].equals(here.table()[SAME])
    assert all(r.measurement.ok for r in there.records.values())
    assert there.rejected == here.rejected


def test_a_poisoned_job_kills_two_workers_and_no_more(client, monkeypatch):
    monkeypatch.setattr(dask_cluster, "measure_batch", spoiled_batch)
    before = pids(client)
    assert reasons(client, [job(n) for n in (31, POISON, 32, 33)]) == ["", "crashed", "", ""]
    assert len(before - pids(client)) <= 2


def test_workers_on_other_machines_are_left_out(client, monkeypatch):
    addresses = [f"tcp://127.0.0.1:{port}" for port in (1, 2)]
    target = CpuTarget(executor=client)
    wanted = target.fingerprint()
    mixed = {addresses[0]: wanted, addresses[1]: "another chip"}
    monkeypatch.setattr(client, "run", lambda *args: dict(mixed))
    cluster = DaskCluster(client, target.threads, wanted)
    with pytest.warns(WorkerWarning, match="1 of 2 workers"):
        cluster.choose()
    executor = cluster._executor
    assert executor._kwargs["workers"] == [addresses[0]]
    mixed[addresses[0]] = "a third chip"
    with pytest.raises(SearchError, match=r"a third chip(.|\n)*another chip"):
        cluster.choose()


def test_without_workers_this_machine_goes_on(monkeypatch):
    from luminal_lab.runtime import distribute

    monkeypatch.setattr(distribute, "_PATIENCE", 0.5)
    options = {"n_workers": 0, "dashboard_address": None}
    with (
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
        pytest.warns(WorkerWarning, match="no workers left"),
    ):
        assert reasons(client, [job(41), job(42)]) == ["", ""]


def test_a_deadline_cancels_what_waits(client):
    jobs = [job(n) for n in range(200, 300)]
    got = reasons(client, jobs, deadline=time.monotonic() + 1.0)
    assert len(got) < 100
    assert until(lambda: not any(client.processing().values()))
