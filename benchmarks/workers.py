"""Run cases in child processes, each with a limit of time and of memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmarks.compare import Outcome

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    """How the cases are run.

    Attributes:
        converter: Name of the converter, or None to run the originals alone.
        with_inputs: Whether the converter is given example inputs.
        timeout: Seconds for one case.
        memory: Largest resident MiB of a child.
        recycle: Cases that one child runs before a fresh one takes over.
    """

    converter: str | None = "safemodules"
    with_inputs: bool = True
    timeout: float = 900.0
    memory: float = 12_000.0
    recycle: int = 20


def run_case(name: str, options: Options) -> Outcome:
    """Run one case in this process; an error becomes an outcome."""
    from benchmarks.cases import load_case
    from benchmarks.compare import check_repeatable, compare
    from benchmarks.converters import make_converter

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = load_case(name)
            if options.converter is None:
                outcome = check_repeatable(case)
            else:
                converter = make_converter(options.converter)
                outcome = compare(case, converter, with_inputs=options.with_inputs)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error).splitlines() or [""])[0][:300]
        place = f"{Path(where.filename).name}:{where.lineno}"
        detail = f"{type(error).__name__}: {text} ({place})"
        trace = tuple(traceback.format_exc().splitlines())
        outcome = Outcome(name, "crashed", detail, differences=trace)
    return replace(outcome, peak_mib=peak_mib())


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _serve(connection: Connection, options: Options) -> None:
    """Run the cases whose names arrive until None arrives."""
    import torch

    torch.set_num_threads(1)
    while (name := connection.recv()) is not None:
        connection.send(run_case(name, options))


class _Worker:
    """One child process and the case it is running."""

    def __init__(self, options: Options) -> None:
        context = multiprocessing.get_context("spawn")
        self.options = options
        self.connection, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, options), daemon=True)
        self._process.start()
        child.close()
        self.served = 0
        self.case: str | None = None
        self._started = 0.0

    def submit(self, case: str) -> None:
        self.case = case
        self.served += 1
        self._started = time.monotonic()
        self.connection.send(case)

    def receive(self) -> Outcome:
        """The outcome that is waiting; that of a dead child is a crash."""
        assert self.case is not None
        try:
            outcome: Outcome = self.connection.recv()
        except EOFError:
            self._process.join()
            detail = f"the process ended with code {self._process.exitcode}"
            outcome = Outcome(self.case, "crashed", detail)
        self.case = None
        return outcome

    def over_limit(self) -> Outcome | None:
        """The outcome of a case that is over one of the limits."""
        assert self.case is not None
        seconds = time.monotonic() - self._started
        if seconds > self.options.timeout:
            return Outcome(self.case, "timeout", f"stopped after {seconds:.0f} s")
        resident = self.resident_mib()
        if resident > self.options.memory:
            return Outcome(self.case, "memory", f"stopped at {resident:.0f} MiB")
        return None

    def resident_mib(self) -> float:
        """Resident memory now; 0 where the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def worn(self) -> bool:
        """Whether a fresh child should take over."""
        many = self.served >= self.options.recycle
        return many or not self._process.is_alive() or self.resident_mib() > 4_000

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def run_cases(names: Sequence[str], options: Options, jobs: int = 1) -> Iterator[Outcome]:
    """Yield the outcome of every case as it comes.

    Args:
        names: Names of the cases.
        options: How they are run.
        jobs: Number of child processes at a time; each uses one thread.
    """
    # Children read it before they import torch.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    queue = deque(names)
    workers: list[_Worker] = []
    try:
        while queue or any(worker.case for worker in workers):
            _feed(workers, queue, options, jobs)
            busy = [worker for worker in workers if worker.case]
            ready = set(wait([worker.connection for worker in busy], timeout=POLL_SECONDS))
            for worker in busy:
                outcome = worker.receive() if worker.connection in ready else worker.over_limit()
                if outcome is None:
                    continue
                if worker.case or worker.worn:
                    worker.stop()
                    workers.remove(worker)
                yield outcome
    finally:
        for worker in workers:
            worker.stop()


def _feed(workers: list[_Worker], queue: deque[str], options: Options, jobs: int) -> None:
    """Give every idle child a case; start children while there are too few."""
    while len(workers) < min(jobs, len(queue) + sum(w.case is not None for w in workers)):
        workers.append(_Worker(options))
    for worker in workers:
        if worker.case is None and queue:
            worker.submit(queue.popleft())
