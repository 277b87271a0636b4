"""A job: one agent and all it starts, followed from start to end by the kernel's main thread."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ddp_lab.errors import InputError, LabError
from ddp_lab.launch import folders, processes, stacks, traffic, warm
from ddp_lab.launch.failures import describe_hang, read_json
from ddp_lab.launch.output import Progress, Screen, Tail, say

_POLL = 0.02  # seconds between two looks at the output
_VITALS = 1.0  # seconds between two looks at CPU time and I/O
_BUSY = 0.05  # of a core: more is a sign of life
_CHATTER = 1000  # bytes a second over TCP that are none: nccl's own threads ask the store for news all the time
_PATIENCE = 1.5  # seconds that a job gets to stop by itself
_ANSWER = 0.5  # seconds that a rank gets to say where it stands


class Interrupted(LabError, KeyboardInterrupt):
    """The learner stopped a run. The message says where each rank stood; `.run` is what there is of it."""

    run = None


@dataclass
class Expiry:
    """A clock has run out: which ("stall" or "timeout"), and where each rank stood."""

    reason: str
    limit: float
    where: list[dict]
    dumps: dict[int, str] = field(default_factory=dict)


class Job:
    """`work` is what the agent is to do: {"kind": "torchrun", "options": [...], "argv": [...]}, with options for each
    host {"kind": "hosts", "options": [[...], ...], "rate": .., "delay": .., "argv": [...]}, or without any
    {"kind": "command", "argv": [...]}. `server` forks the agent; None starts it cold, and so does a server that has
    just gone, unless the start is to be `warm_only`.
    """

    def __init__(
        self,
        folder: Path,
        work: dict,
        env: dict[str, str],
        ranks: int,
        server: warm.Server | None = None,
        warm_only: bool = False,
    ):
        self.folder = folder
        self.ranks = range(ranks)
        self.expiry: Expiry | None = None
        self._of_ranks = work["kind"] != "command"
        self._env = env | {"DDP_LAB_RUN_DIR": str(folder)}
        self._server, self._warm_only = server, warm_only
        self._agent: subprocess.Popen | warm.Agent | None = None
        (folder / "agent.json").write_text(json.dumps(work))

    def start(self) -> None:
        """Start the agent. Only follow() does: an interrupt that came before it would leave the job to itself.
        Raises InputError where the start is to be warm and cannot.
        """
        with open(self.folder / "agent.log", "wb") as log:
            if self._server is not None:
                try:
                    self._agent = self._server.fork(self.folder, self._env, log.fileno())
                    return
                except OSError as error:
                    warm.drop()
                    if self._warm_only:
                        raise InputError(f"warm=True: {error}. Run it again: a new server is started.") from None
                    say(f"cold start: {error}")
            # In a session of its own, so that an interrupt from a terminal reaches the kernel alone.
            self._agent = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("agent.py")), str(self.folder), str(os.getpid())],
                stdin=subprocess.PIPE,  # the lifeline
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    @property
    def code(self) -> int | None:
        """The agent's exit code; None while it runs."""
        return self._agent.poll() if self._agent else None

    def wait(self, seconds: float) -> None:
        """Return when the agent has ended, or after some seconds: at once in the first case if it can tell."""
        if isinstance(self._agent, warm.Agent):
            self._agent.wait(seconds)
        else:
            time.sleep(seconds)

    def streams(self, rank: int) -> list[Tail]:
        """The tails of a rank's stdout and stderr. Its last traceback is left out: the error shows it."""
        error = self.folder / f"rank{rank}" / "error.json"

        def hidden() -> tuple[int, int]:
            return tuple((read_json(error) or {}).get("shown", (0, 0)))

        return [
            Tail(lambda: folders.stream(self.folder, rank, "stdout")),
            Tail(lambda: folders.stream(self.folder, rank, "stderr"), hidden),
        ]

    def written(self) -> int:
        """Bytes of records, progress and saved objects so far: more of them is a sign of life."""
        total = 0
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                total += sum(f.stat().st_size for f in os.scandir(self.folder / f"rank{rank}") if f.is_file())
                total += sum(f.stat().st_size for f in os.scandir(self.folder / f"rank{rank}" / "saved"))
        return total

    def vitals(self) -> dict[int, tuple[float, int]]:
        """For each process of the ranks, or of the agent before they are there: CPU seconds, bytes of I/O."""
        import psutil

        starts = [known[0] for rank in self.ranks if (known := self._identities(rank).get("child"))]
        found = {}
        for pid in starts or [self._agent.pid]:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(pid)
                for process in [top, *top.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        cpu = process.cpu_times()
                        found[process.pid] = (cpu.user + cpu.system, _io(process))
        return found

    def where(self, insist: bool = True) -> tuple[list[dict], dict[int, str]]:
        """Where each rank stands now (see stacks.place, with `rank`), and the whole dump of each rank's stacks.

        Nothing for another command: only what rank.py has begun can say. `insist`: a rank that does not answer is
        made to by a signal, for which it must be about to be stopped.
        """
        if not self._of_ranks:
            return [], {}
        question = str(time.monotonic_ns())
        asked = {rank: self._ask(rank, question) for rank in self.ranks}
        deadline = time.monotonic() + _ANSWER
        spots, dumps = [], {}
        for rank, start in asked.items():
            if start is None:
                ended = read_json(self.folder / f"rank{rank}" / "exit.json") is not None
                spot = stacks.place([], None) | {"function": "has ended" if ended else "not started yet"}
            else:
                answer = self._answer(rank, question, deadline)
                if answer is None and insist:
                    self._make_dump(rank)
                dumps[rank] = stacks.of_script(_read_from(self.folder / f"rank{rank}" / "stacks.txt", start))
                main_thread = (read_json(self.folder / f"rank{rank}" / "rank.json") or {}).get("main_thread")
                spot = stacks.place(stacks.frames(dumps[rank], main_thread), (answer or {}).get("unfinished"))
            spots.append({"rank": rank} | spot)
        return spots, dumps

    def expire(self, reason: str, limit: float) -> None:
        """Note that a clock ran out and where each rank stood."""
        where, dumps = self.where()
        self.expiry = Expiry(reason, limit, where, dumps)

    def stop(self) -> None:
        """End the job and all its processes, and return when they are gone. Harmless when it has ended."""
        if self._agent is None:
            return
        with contextlib.suppress(OSError, ValueError):
            # A child that the learner has forked in the kernel may hold the pipe too: closing is not enough.
            self._agent.stdin.write(b"stop")
            self._agent.stdin.close()
        deadline = time.monotonic() + _PATIENCE
        while self.running and time.monotonic() < deadline:
            self.wait(_POLL)
        if self.running:
            self._agent.kill()  # nobody has waited for it, so the pid is still its own
            with contextlib.suppress(subprocess.TimeoutExpired):  # the system holds it, in the midst of I/O
                self._agent.wait(_PATIENCE)
        # The guards see their parent go and end their ranks: they get a moment, then it is done for them.
        left = [known for rank in self.ranks for known in self._identities(rank).values() if known]
        deadline = time.monotonic() + _ANSWER
        while any(processes.alive(who) for who in left) and time.monotonic() < deadline:
            time.sleep(_POLL)
        for rank in self.ranks:
            known = self._identities(rank)
            if known.get("child"):
                processes.end_session(tuple(known["child"]))
            if known.get("guard"):
                processes.send(tuple(known["guard"]), signal.SIGKILL)

    def _identities(self, rank: int) -> dict[str, processes.Identity | None]:
        return read_json(self.folder / f"rank{rank}" / "guard.json") or {}

    def _ask(self, rank: int, question: str) -> int | None:
        """Ask a living rank for its stacks and its collective; returns where in stacks.txt the answer will begin."""
        place = self.folder / f"rank{rank}"
        known = read_json(place / "rank.json")
        if known is None or not processes.alive(tuple(known["rank"])):
            return None
        start = _size(place / "stacks.txt")
        with contextlib.suppress(OSError):  # the pipe's reader has just ended
            pipe = os.open(place / "ask", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, f"{question}\n".encode())
            os.close(pipe)
        return start

    def _answer(self, rank: int, question: str, deadline: float) -> dict | None:
        """What the rank answers by then, None if it does not."""
        while True:
            answer = read_json(self.folder / f"rank{rank}" / "collective.json") or {}
            if answer.get("question") == question:
                return answer
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _make_dump(self, rank: int) -> None:
        """Have a rank dump its stacks where native code holds the interpreter's lock, so that no thread can answer."""
        place = self.folder / f"rank{rank}"
        who = tuple((read_json(place / "rank.json") or {}).get("rank", (0, 0)))
        if not processes.handles(who, signal.SIGUSR1):  # it has become another program: the signal would end it
            return
        start = _size(place / "stacks.txt")
        processes.send(who, signal.SIGUSR1)
        deadline = time.monotonic() + _ANSWER
        before, dump = None, ""
        while time.monotonic() < deadline and not (dump == before and stacks.is_whole(dump)):
            time.sleep(0.02)
            before, dump = dump, _read_from(place / "stacks.txt", start)


def follow(jobs: list[Job], screen: Screen, progress: Progress, timeout: float | None, stall: float | None) -> None:
    """Start the jobs, show them while they run, end those whose clocks run out (see Job.expiry). Afterwards nothing
    is left. Raises Interrupted, after stopping them, when the learner interrupts.
    """
    began = time.monotonic()
    pulse = _Pulse(jobs, began)
    spots = None
    with _interrupts_noted() as interrupts:
        try:
            for job in jobs:
                job.start()
            while running := [job for job in jobs if job.running]:
                heard = screen.update(progress.text())
                now = time.monotonic()
                pulse.look(now, heard)
                if interrupts:
                    spots = [spot for job in running for spot in job.where()[0]]
                    break
                if timeout is not None and now - began >= timeout:
                    reason, limit = "timeout", timeout
                elif stall is not None and pulse.stopped(now, stall):
                    reason, limit = "stall", stall
                else:
                    running[0].wait(_POLL)
                    continue
                for job in running:
                    job.expire(reason, limit)
                break
        finally:
            _end(jobs, screen, progress)
        if interrupts and spots is None:  # while a clock was stopping the jobs
            spots = [spot for job in jobs if job.expiry for spot in job.expiry.where]
    if spots is not None:
        _, stood, table = describe_hang("stall", 0, spots).partition(" Where each rank stood:")
        seconds = time.monotonic() - began
        raise Interrupted(f"interrupted after {seconds:.1f} s; nothing of the run is left.{stood}{table}")


def _end(jobs: list[Job], screen: Screen, progress: Progress) -> None:
    for job in jobs:
        job.stop()
    while screen.update(progress.text()):
        pass
    screen.update(progress.text(), last=True)
    screen.close()
    progress.close()


class _Pulse:
    """Tells whether jobs still give signs of life."""

    def __init__(self, jobs: list[Job], now: float):
        self._jobs = jobs
        self._sign = self._worked = self._looked = self._asked = now
        self._vitals: dict[int, tuple[float, int]] = {}
        self._written = self._carried = 0
        self._stood, self._since = None, now

    def look(self, now: float, heard: bool) -> None:
        """Take in what has happened since the last look."""
        if heard:
            self._sign = now
        if now - self._looked < _VITALS:
            return
        written, vitals = self._read()
        grown = {pid: (v[0] - old[0], v[1] - old[1]) for pid, v in vitals.items() if (old := self._vitals.get(pid))}
        if written != self._written or any(io > 0 for _, io in grown.values()) or vitals.keys() - self._vitals.keys():
            self._sign = now
        carried, elapsed = traffic.of(vitals), now - self._looked
        busy = sum(cpu for cpu, _ in grown.values()) > _BUSY * elapsed
        if busy or carried - self._carried > _CHATTER * elapsed:
            self._worked = now
        self._written, self._vitals, self._carried, self._looked = written, vitals, carried, now

    def _read(self) -> tuple[int, dict[int, tuple[float, int]]]:
        """What the jobs have written so far, and their vitals."""
        written = sum(job.written() for job in self._jobs)
        return written, {pid: v for job in self._jobs for pid, v in job.vitals().items()}

    def stopped(self, now: float, stall: float) -> bool:
        """Whether there was no sign of life for `stall` seconds."""
        if now - self._sign < stall:
            return False
        if now - self._worked >= stall:
            return True
        # Silent but busy: it computes or downloads, unless all ranks spin in collectives that none will finish.
        if now - self._asked < max(1.0, stall / 2):
            return False
        self._asked = now
        spots = [spot for job in self._jobs if job.running for spot in job.where(insist=False)[0]]
        self._written, asked = self._read()  # who answers reads and writes, which is no sign of life
        self._vitals |= {pid: (self._vitals[pid][0], asked[pid][1]) for pid in self._vitals.keys() & asked.keys()}
        if not spots or not all(spot["collective"] for spot in spots):
            return False
        # In backward only time tells a bucket that nobody will finish from one that goes on behind the computing.
        stood = [(spot["line"], spot["collective"], spot["number"]) for spot in spots]
        if stood != self._stood:
            self._stood, self._since = stood, now
        return all(spot["stuck"] for spot in spots) or now - self._since >= stall


@contextlib.contextmanager
def _interrupts_noted():
    """Note interrupts in the list that is given, instead of a KeyboardInterrupt anywhere: in the midst of starting
    or ending processes (think of a second press of the button) it would leave some.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # interrupts come to the main thread only
        return
    old = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, old or signal.SIG_DFL)  # None: a handler that Python cannot put back


def _io(process) -> int:
    try:
        counters = process.io_counters()
    except Exception:  # macOS has none; some containers hide them
        return 0
    return getattr(counters, "read_chars", counters.read_bytes) + getattr(counters, "write_chars", counters.write_bytes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, start: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
