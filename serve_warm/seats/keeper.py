# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats for the next replicas: a serving replica asks its raylet for workers in advance.

Ray has no public API to ask for workers. All private Ray names used here are in `Raylet`, each with
the file and version in which the name was seen. If a name is missing, no seats are kept, and each
start works as it does without seats. A worker must not import Ray's modules before it knows that it
is a seat, so the Ray names that a worker needs are in `records` and `preload`.

`PrestartWorkers` always starts new workers, however many workers already exist
(HandlePrestartWorkers in src/ray/raylet/node_manager.cc). Ray gives a replica a worker that has the
same runtime_env, and that belongs to the same job or to no job. A seat belongs to no job, because
Ray ends a job's idle workers when the job's driver has exited, but replicas outlive their driver.
After a worker's keep-alive time, Ray ends the worker if the node has more idle workers than free
CPUs (TryKillingIdleWorkers in src/ray/raylet/worker_pool.cc). So a `SeatKeeper` counts seats by the
files that the seats write.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import ray

from serve_warm._redaction import describe_error
from serve_warm.config import Seats
from serve_warm.errors import ServeWarmError, WarmupFailed
from serve_warm.node import boot_s
from serve_warm.private_apis import module_names
from serve_warm.private_apis.ray_raylet import Address, address_of_raylet, prestart_workers
from serve_warm.seats import preload
from serve_warm.seats import use as seat_use
from serve_warm.seats.records import (
    TICKET_S,
    KeeperLock,
    Seat,
    SeatFolder,
    SeatRequest,
    SeatUse,
    free_memory_bytes,
    is_one_starting,
    is_stopped,
    is_taken,
    kill,
    lives,
)

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Seconds between two counts of the seats. Counting reads a small folder."""

RENEW_S = 60.0
"""A seat is replaced this many seconds before its keep-alive time ends, but not before two thirds
of its keep-alive time have passed."""

RECORD_S = 60.0
"""Seconds for a seat to write the result of its imports, counted from the limit of the imports."""

TAKEN_PAUSE_S = 5.0
"""Seconds to wait before replacing a taken seat. The imports of the next seat would slow down the
start that uses the taken seat. On two busy cores, the passes of such a start took nearly twice as
long (MiniLM, level 3, two rounds)."""

STOPPED_S = 10.0
"""A seat that is stopped (SIGSTOP) for this many seconds is ended. Ray does not notice that a
worker is stopped, and the start of a replica that gets this worker would wait without a limit."""

STEADY_S = 30.0
"""A seat that has waited for this many seconds, or that was taken, shows that seats can be kept."""

STARTING_LIMIT_S = 15.0
"""Maximum seconds to wait for another worker to start. A worker takes 2 to 4 s to start on
two cores."""

LIMIT_OF_LOSSES = 5
"""After losing this many seats in a row, a `SeatKeeper` requests no more seats."""

PAUSE_S = 2.0
"""Seconds to wait after the first lost seat. The wait doubles with each consecutive loss."""

RPC_LIMIT_S = 10.0

SPARE = 1.5
"""The memory that must be free for a seat, as a multiple of the seat's own memory."""

SEAT_BYTES = 400_000_000
"""Memory in bytes assumed for the first seat: torch and transformers (docs/guides/seats.md)."""


class SeatsUnavailable(Exception):
    """This version of Ray cannot start seats; the error text says why."""


class SeatsDelayed(Exception):
    """The raylet did not answer, but might answer next time."""


class WorkerSource(Protocol):
    """A source of new workers: the raylet, or a stand-in."""

    def ask(self, many: int, *, keep_alive_s: float) -> None:
        """Start this many workers and return at once.

        Raises:
            SeatsUnavailable: this source can never start workers.
            SeatsDelayed: this source could not start workers this time.
        """


class Raylet:
    """This node's raylet, which can start workers with the runtime_env of this process."""

    def __init__(self, address: Address) -> None:
        host, port, self._runtime_env = address
        # An IPv6 address also has colons.
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @classmethod
    def of_worker(cls) -> Raylet:
        """Return this worker's raylet. Call this on a thread on which Ray calls user code.

        Raises:
            SeatsUnavailable: this version of Ray does not expose the raylet's address.
        """
        try:
            return cls(address_of_raylet())
        except (ImportError, AttributeError, RuntimeError) as error:
            raise SeatsUnavailable(
                f"Ray {ray.__version__} does not expose the raylet's address: {error}"
            ) from error

    def ask(self, many: int, *, keep_alive_s: float) -> None:
        """Start workers that have this runtime_env and belong to no job."""
        try:
            grpc: Any = importlib.import_module("grpc")
            ask = prestart_workers(
                self._address,
                self._runtime_env,
                many,
                keep_alive_s=keep_alive_s,
                limit_s=RPC_LIMIT_S,
            )
        except (ImportError, AttributeError, ValueError) as error:
            text = f"Ray {ray.__version__} has no PrestartWorkers: {error}"
            raise SeatsUnavailable(text) from error
        never = (
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.PERMISSION_DENIED,
        )
        try:
            ask()
        except grpc.RpcError as error:
            code = error.code()
            text = f"the raylet answered PrestartWorkers with {code.name}"
            raise (SeatsUnavailable if code in never else SeatsDelayed)(text) from error
        except (OSError, ValueError) as error:  # files of TLS or of the token
            raise SeatsUnavailable(f"no channel to the raylet: {error}") from error


class ReplicaSeats:
    """The seat on which this replica started, if any, and the seats kept for other replicas."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Prepare this process to be a replica. Create this object before anything else uses torch.

        Raises:
            WarmupFailed: a source file of the app changed after the seat had imported it, or an
                import initialized CUDA in the seat and Ray then chose other GPUs. Serve starts
                another replica.
        """
        # Read these variables before code of the app can change them.
        has_hook = preload.has_hook()
        folder = preload.seat_folder() or SeatFolder.of_worker(sys.argv)
        self._folder = folder if has_hook else None
        self._omp_threads = environ.get(preload.OMP)
        self.began_on_one = preload.early_imports() is not None
        is_on_wrong_gpu = seat_use.is_on_wrong_gpu(environ)
        self._use = seat_use.take(environ)
        self._keeper: SeatKeeper | None = None
        stale = seat_use.find_stale_code()
        if stale:
            raise WarmupFailed(
                stale,
                hint="Serve starts another replica; deploy new code in a new working_dir or image",
                stage="PENDING",
            )
        if is_on_wrong_gpu:
            raise WarmupFailed(
                "an import initialized CUDA in this seat, before Ray chose the GPU of this replica",
                hint="remove the module that initializes CUDA from warmup.seats.imports",
                stage="PENDING",
            )

    def keep(self, settings: Seats, *, application: str, deployment: str) -> None:
        """Keep seats for the next replicas. Call this on a thread on which Ray calls user code."""
        if self._keeper is not None or self._use.problem or not settings.count:
            return
        found = new_keeper(
            settings,
            deployment=f"{application}#{deployment}",
            folder=self._folder,
            omp_threads=self._omp_threads,
        )
        if isinstance(found, str):
            self._use = replace(self._use, problem=found)
            logger.warning("seats: this replica keeps no seats: %s", found)
        else:
            self._keeper = found
            found.begin()

    def use(self, settings: Seats) -> SeatUse | None:
        """Return the record for the report; None if seats are neither configured nor used."""
        if not settings.count and not self.began_on_one:
            return None
        use = replace(self._use, count=settings.count)
        if use.hit and (missing := seat_use.find_missing(settings.imports)):
            note = f"the seat had not imported {', '.join(missing)}"
            use = replace(use, note="; ".join([*([use.note] if use.note else []), note]))
        return use if self._keeper is None else self._keeper.describe(use)


OF_REPLICAS = (module_names.SERVE_REPLICA, module_names.SERVE_CONTROLLER)
"""Modules that Ray imports when a worker becomes a replica (2.53 to 2.60)."""


def imports_of_seat(settings: Seats, loaded: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a seat imports, given the modules that a serving replica has loaded.

    The app's modules come first. If the app's modules change settings before they import torch, the
    seat must do the same.
    """
    names = set(loaded)
    wanted = [*settings.imports]
    if "torch" in names:
        wanted.append("torch")
    wanted += [name for name in OF_REPLICAS if name in names]
    # A package that the app uses may import only Dynamo, as transformers does. Then nothing
    # compiles.
    wanted += [name for name in (module_names.DYNAMO, module_names.COMPILE_FX) if name in names]
    wanted += sorted(name for name in names if name.startswith("serve_warm."))
    return tuple(dict.fromkeys(wanted))


class SeatKeeper:
    """Keeps `count` seats for one deployment on this node, until a problem occurs.

    At any time, only one of the deployment's replicas on a node keeps seats, in one thread. It is
    safe to call `describe` on any thread.
    """

    def __init__(
        self,
        *,
        deployment: str,
        settings: Seats,
        source: WorkerSource,
        folder: SeatFolder,
        omp_threads: str | None,
        imports: Sequence[str],
    ) -> None:
        self._deployment = deployment
        self._settings = settings
        self._source = source
        self._folder = folder
        self._lock = KeeperLock(folder, deployment)
        self._wanted = SeatRequest(
            deployment=deployment,
            imports=tuple(imports),
            omp_threads=omp_threads,
            limit_s=settings.import_deadline_s,
            paths=tuple(path for path in sys.path if isinstance(path, str)),
        )
        self._starting_since_s: float | None = None
        self._since_s = boot_s()
        self._seat_bytes = SEAT_BYTES
        self._errors_until_s = 0.0
        self._asked: dict[str, float] = {}
        """Tickets of the workers that have not arrived yet, with the times of the requests."""
        self._known: dict[int, Seat] = {}
        self._stopped_since: dict[int, float] = {}
        """Stopped seats by pid, with the times of the first looks that saw them stopped."""
        self._losses = 0
        self._has_lost = False
        """Whether this look has counted a loss."""
        self._lost_at_s = 0.0
        self._not_before_s = 0.0
        self._seen_waiting = False
        self._waiting: int | None = None
        self._problem = ""

    def begin(self) -> None:
        """Start the keeper's thread, and return at once."""
        threading.Thread(target=self._run, name="serve_warm-seats", daemon=True).start()

    def describe(self, use: SeatUse) -> SeatUse:
        """Return `use`, extended with the state of the seats for the next starts."""
        waiting = self._waiting
        if waiting is not None:
            # A start may have taken a seat since the last look.
            known = [seat for seat in self._known.values() if seat.state == "waiting"]
            waiting = min(waiting, sum(lives(seat) and not is_taken(seat) for seat in known))
        return replace(use, waiting=waiting, problem=self._problem)

    def _run(self) -> None:
        while not self._problem:
            self.look()
            time.sleep(PERIOD_S)

    def look(self) -> None:
        """Count the seats once, and request missing seats. Does nothing after a problem.

        Raises nothing. A folder that cannot be read or written counts as a lost seat, as does an
        unexpected error.
        """
        if self._problem or boot_s() < self._errors_until_s:
            return
        self._has_lost = False
        try:
            self._look()
        except OSError as error:
            self._fail(f"the seat folder: {error}")
        except ServeWarmError as error:  # other users could change its files
            self._stop(f"no seats: {error}")
        # The keeper's thread outlives each error, which may pass. Without the thread, the lock
        # would stay taken, so that no other replica of this node could keep seats.
        except Exception as error:
            logger.info("seats: unexpected error", exc_info=True)
            self._fail(f"looking for seats failed: {describe_error(error)}")

    def _fail(self, why: str) -> None:
        """Count a look that failed as a loss, and let others keep seats until the next look."""
        self._withdraw()
        self._release()  # a missing folder is recreated later
        self._lose(why)
        self._errors_until_s = self._not_before_s

    def _look(self) -> None:
        if not self._lock.is_held():
            self._withdraw()
            self._release()
            if not self._lock.take():
                return
        living = self._count()
        if self._problem:
            return
        self._waiting = sum(seat.state == "waiting" for seat in living)
        known = [seat.memory_bytes for seat in living if seat.memory_bytes]
        self._seat_bytes = max(known, default=self._seat_bytes)
        if boot_s() < self._not_before_s:
            return
        missing = self._missing(living)
        if missing <= 0:
            self._starting_since_s = None
            return
        if self._waits_for_a_start():
            return
        if (many := min(missing, self._affordable(living))) > 0:
            self._ask(many)

    def _waits_for_a_start(self) -> bool:
        """Return whether a worker with this runtime_env is starting. If so, seats must wait.

        Ray starts a worker for a replica that finds no seat. If Ray started a seat's worker at the
        same time, the replica could take the seat's ticket and import at low priority. The other
        worker would then have imported nothing, and a later replica could get this worker instead
        of a seat.
        """
        if not is_one_starting(sys.argv):
            self._starting_since_s = None
            return False
        if self._starting_since_s is None:
            self._starting_since_s = boot_s()
        return boot_s() - self._starting_since_s < STARTING_LIMIT_S

    def _release(self) -> None:
        """Let another replica keep seats."""
        self._waiting = None
        self._lock.release()

    def _withdraw(self) -> None:
        """Take open tickets back, because this keeper no longer counts their seats."""
        for ticket in self._asked:
            with contextlib.suppress(OSError):
                self._folder.withdraw(ticket)
        self._asked = {}

    def _count(self) -> list[Seat]:
        """Return the live usable seats, and record which have arrived, were taken or were lost."""
        seats = {
            seat.pid: seat for seat in self._folder.seats() if seat.deployment == self._deployment
        }
        gone = [seat for seat in seats.values() if not lives(seat)]
        useless = [seat for seat in seats.values() if seat.state in ("failed", "hung", "cuda")]
        for seat in useless:
            # Causes of failures that an earlier keeper's tickets led to may be fixed by now.
            if seat.offered_boot_s >= self._since_s:
                self._stop(f"a seat cannot be used ({seat.state}): {seat.note}")
        for seat in gone:
            self._folder.remove(seat)
            if self._is_fresh(seat) and seat not in useless:
                self._lose(f"the worker of a seat ended while the seat was {seat.state}")
        gone += self._give_up_stuck([seat for seat in seats.values() if seat not in gone])
        living = [seat for seat in seats.values() if seat not in gone and seat not in useless]
        self._settle_tickets({seat.ticket for seat in seats.values()})
        for seat in [seat for seat in living if seat.state == "waiting" and is_taken(seat)]:
            self._folder.remove(seat)
            living.remove(seat)
            del seats[seat.pid]
        self._end_stopped(living)
        taken = [seat for pid, seat in self._known.items() if pid not in seats and lives(seat)]
        if taken:
            self._not_before_s = max(self._not_before_s, boot_s() + TAKEN_PAUSE_S)
        waiting = [seat for seat in living if seat.state == "waiting"]
        self._seen_waiting = self._seen_waiting or bool(waiting)
        # A seat from before the last loss does not show that the cause has gone away.
        steady = [seat for seat in waiting if self._waited_s(seat) > STEADY_S]
        if any(seat.began_boot_s > self._lost_at_s for seat in [*steady, *taken]):
            self._losses = 0
        self._known = {seat.pid: seat for seat in living}
        return living

    def _end_stopped(self, living: Sequence[Seat]) -> None:
        """End seats that stay stopped. The next look counts them as lost."""
        stopped = {seat.pid: seat for seat in living if is_stopped(seat)}
        since = {pid: self._stopped_since.get(pid, boot_s()) for pid in stopped}
        for pid, seat in stopped.items():
            if boot_s() - since[pid] > STOPPED_S:
                logger.warning("seats: ended a seat that was stopped for %.0f s", STOPPED_S)
                kill(seat)
        self._stopped_since = since

    def _settle_tickets(self, claimed: set[str]) -> None:
        """Forget requests that a seat has answered, and requests that are too old."""
        for ticket in claimed:
            self._asked.pop(ticket, None)
        for ticket, at_s in [*self._asked.items()]:
            if boot_s() - at_s <= TICKET_S:
                continue
            del self._asked[ticket]
            if self._folder.withdraw(ticket):
                self._lose(f"Ray started no worker for the seat within {TICKET_S:.0f} s")
            else:
                self._lose("a worker took the ticket of a seat, but wrote no state file")

    def _missing(self, living: Sequence[Seat]) -> int:
        count = self._settings.count
        fresh = [seat for seat in living if self._is_fresh(seat)]
        # Ray may keep seats whose time is up. Never have more than twice the configured number.
        most = 2 * count - len(living) - len(self._asked)
        missing = min(count - len(fresh) - len(self._asked), most)
        if not self._seen_waiting:
            # The first seat shows whether the imports work.
            importing = any(seat.state == "importing" for seat in living)
            missing = min(missing, 0 if importing or self._asked else 1)
        return missing

    def _give_up_stuck(self, living: Sequence[Seat]) -> list[Seat]:
        """Return the seats whose imports, or whose workers, should have ended long ago."""
        limit_s = self._settings.import_deadline_s + RECORD_S
        stuck = [
            seat
            for seat in living
            if seat.state == "importing" and boot_s() - seat.began_boot_s > limit_s
        ]
        for seat in stuck:
            self._folder.remove(seat)
            self._lose(f"a seat did not record the end of its imports within {limit_s:.0f} s")
        return stuck

    def _is_fresh(self, seat: Seat) -> bool:
        """Return whether a seat is too young to need a replacement."""
        keep_s = self._settings.keep_alive_s
        lead_s = min(RENEW_S, keep_s / 3)
        return seat.state == "importing" or self._waited_s(seat) < keep_s - lead_s

    def _waited_s(self, seat: Seat) -> float:
        return boot_s() - seat.began_boot_s - seat.import_s

    def _affordable(self, living: Sequence[Seat]) -> int:
        """Return how many more seats fit into the free memory."""
        free, held = free_memory_bytes(), self._seat_bytes
        if free is None:
            return self._settings.count
        # These seats will need memory that is still free now.
        growing = len(self._asked) + sum(seat.state == "importing" for seat in living)
        many = int(free // (SPARE * held))
        if not many:
            text = f"{free / 1e6:.0f} MB of memory are free, but a seat takes {held / 1e6:.0f} MB"
            self._lose(text)
        return many - growing

    def _ask(self, many: int) -> None:
        # Ray counts from the start of the worker.
        keep_alive_s = self._settings.keep_alive_s + self._settings.import_deadline_s
        at_s = boot_s()
        tickets: list[str] = []
        with contextlib.ExitStack() as offered:
            for _ in range(many):
                tickets.append(self._folder.offer(self._wanted))
                offered.callback(self._folder.withdraw, tickets[-1])
            try:
                self._source.ask(many, keep_alive_s=keep_alive_s)
            except SeatsUnavailable as error:
                self._stop(str(error))
                return
            except SeatsDelayed as error:
                self._lose(str(error))
                return
            offered.pop_all()
        self._asked.update(dict.fromkeys(tickets, at_s))

    def _lose(self, why: str) -> None:
        """Count a loss. Several losses in one look count as one, because they have one cause."""
        if self._has_lost:
            logger.info("seats: %s", why)
            return
        self._has_lost = True
        self._losses += 1
        self._lost_at_s = boot_s()
        pause_s = PAUSE_S * 2 ** (self._losses - 1)
        self._not_before_s = max(self._not_before_s, self._lost_at_s + pause_s)
        if self._losses >= LIMIT_OF_LOSSES:
            self._stop(f"{why}, {self._losses} times in a row")
        else:
            logger.info("seats: %s", why)

    def _stop(self, why: str) -> None:
        if not self._problem:
            self._problem = why
            logger.warning("seats: this replica will no longer keep seats: %s", why)
        self._withdraw()
        self._release()


def new_keeper(
    settings: Seats, *, deployment: str, folder: SeatFolder | None, omp_threads: str | None
) -> SeatKeeper | str:
    """Return the keeper for this replica's deployment, or the reason why seats cannot be kept.

    Call this on a thread on which Ray calls user code.
    """
    if not preload.has_hook():
        return f"the runtime_env does not have the env_vars {preload.hook_environment()}"
    if folder is None:
        return "this process is not a Ray worker"
    try:
        source = Raylet.of_worker()
    except SeatsUnavailable as error:
        return str(error)
    return SeatKeeper(
        deployment=deployment,
        settings=settings,
        source=source,
        folder=folder,
        omp_threads=omp_threads,
        imports=imports_of_seat(settings, tuple(sys.modules)),
    )
