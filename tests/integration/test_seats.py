# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: replicas that begin on a seat, and starts for which there is none that is of use."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration import seat_apps
from serve_warm.seats import preload

if TYPE_CHECKING:
    from conftest import App, Cluster

pytestmark = pytest.mark.ray


def seat(app: App) -> dict[str, Any]:
    found: dict[str, Any] = app.report()["seat"]
    return found


def has_one_waiting(app: App) -> bool:
    said = seat(app)
    assert not said["problem"], said["problem"]
    return said["waiting"] == 1


def test_a_replica_begins_on_the_seat_that_another_one_keeps(cluster: Cluster):
    """The same fingerprint, threads and answer; another seat comes in place of the one taken."""
    (first,) = cluster.start({"first": seat_apps.bound("hit")}).values()
    first.ready()
    wait_until("a seat waits", lambda: has_one_waiting(first))

    (second,) = cluster.start({"second": seat_apps.bound("hit")}).values()
    second.ready()
    reports = [app.report() for app in (first, second)]
    processes = [app.call("process") for app in (first, second)]
    wait_until("the next seat waits", lambda: has_one_waiting(first))
    cluster.delete({"first": first, "second": second})

    plain, seated = reports
    assert (plain["seat"]["hit"], plain["seat"]["miss"]) == (False, "none")
    assert (seated["seat"]["hit"], seated["seat"]["miss"]) == (True, "")
    assert seated["seat"]["memory_bytes"] > 100_000_000
    assert seated["fingerprint"] == plain["fingerprint"] or plain["fingerprint"] is None
    assert seated["spans"][0]["name"] == "imports"
    assert len({each["pid"] for each in processes}) == 2
    assert {each["threads"] for each in processes} == {1}


@pytest.mark.stress
@pytest.mark.long
def test_more_replicas_than_seats(cluster: Cluster):
    """One replica starts on the seat, the others without a seat. All report which."""
    path, name = "integration.seat_apps:scaled", "Adder"
    config = {"warmup": {"seats": {"count": 1}}}
    app = cluster.configure(path, name, config)
    app.ready()
    wait_until("a seat waits", lambda: has_one_waiting(app))

    cluster.configure(path, name, config, name=app.name, num_replicas=3)

    def all_three() -> Any:
        found = {report["replica"]: report for report in (app.report() for _ in range(20))}
        return found if len(found) == 3 else None

    reports = wait_until("three replicas answer", all_three)
    answers = {app.call("answer") for _ in range(10)}
    cluster.delete({"app": app})

    seats = [report["seat"] for report in reports.values()]
    assert len(answers) == 1
    assert sum(each["hit"] for each in seats) >= 1
    assert {each["miss"] for each in seats if not each["hit"]} <= {"none"}
    assert sum(each["waiting"] is not None for each in seats) == 1


@pytest.mark.stress
@pytest.mark.long
def test_another_runtime_env_has_no_use_of_a_seat(cluster: Cluster):
    """A deployment without the hook has no use for a seat either. Each start reports this."""
    (first,) = cluster.start({"first": seat_apps.bound("env")}).values()
    first.ready()
    wait_until("a seat waits", lambda: has_one_waiting(first))

    others = cluster.start(
        {
            "changed": seat_apps.bound("env", more={"CHANGED": "1"}),
            "unhooked": seat_apps.bound("env", hook=False),
        }
    )
    used = {name: seat(app.ready()) for name, app in others.items()}
    still = seat(first)["waiting"]
    cluster.delete({"first": first, **others})

    assert used["changed"]["miss"] == "none"
    assert used["unhooked"]["miss"] == "no_hook"
    assert "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR" in used["unhooked"]["problem"]
    assert still == 1


@pytest.mark.long
@pytest.mark.stress
@pytest.mark.timeout(2400)  # 20 s a start beside other work
def test_a_hundred_starts_leave_nothing_behind(cluster: Cluster):
    """Every start but the first uses a seat. Processes stop growing at the tenth."""
    (keeping,) = cluster.start({"keeping": seat_apps.bound("many")}).values()
    keeping.ready()
    misses, processes = [], []
    for number in range(100):
        wait_until("a seat waits", lambda: has_one_waiting(keeping))
        (app,) = cluster.start({"next": seat_apps.bound("many", count=0)}).values()
        used = app.ready().report()["seat"] or {"hit": False, "miss": "not on a seat"}
        misses += [(number, used["miss"])] if not used["hit"] else []
        cluster.delete({"next": app})
        wait_until("the replica ends", lambda app=app: app.status()[0] == "NOT_STARTED")
        processes.append(len(workers()))
    cluster.delete({"keeping": keeping})

    assert misses == []
    assert max(processes[10:]) <= max(processes[:10]) + 1


def workers() -> list[str]:
    """Return the processes of this machine that are workers of a Ray."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "cmdline").read_bytes().startswith(b"ray::"):
                found.append(process.name)
    return found


@pytest.mark.long
@pytest.mark.parametrize("optimized", ["0", pytest.param("1", marks=pytest.mark.stress)])
def test_modes_that_an_import_set_are_those_of_a_plain_start(cluster: Cluster, optimized: str):
    """On the thread of `__init__` and of requests, which a throughput-optimized Serve shares."""
    variables = {
        **preload.hook_environment(),
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": optimized,
        "CASE": f"modes {optimized}",
    }
    module = "integration.seat_modes_app"
    begin = partial(
        cluster.configure,
        f"{module}:app",
        "Modal",
        {"warmup": {"seats": {"count": 1, "imports": [module]}}},
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": variables}},
    )
    app = begin()
    app.ready()
    wait_until("a seat waits", lambda: has_one_waiting(app))
    begin(name=app.name, num_replicas=2)

    def both() -> Any:
        found = {said["hit"]: said["threads"] for said in (app.call("told") for _ in range(10))}
        return found if len(found) == 2 else None

    threads = wait_until("a replica begins on the seat", both)
    cluster.delete({"app": app})

    assert [each["denormals"] for each in threads[False]] == [0.0] * 3
    assert [each["autocast"] for each in threads[False]] == [optimized == "1"] * 2 + [False]
    assert threads[True] == threads[False]
