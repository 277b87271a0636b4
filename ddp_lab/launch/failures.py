"""How a run failed: the first cause picked from what every rank left behind, and the errors that tell it."""

from __future__ import annotations

import json
import linecache
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from ddp_lab.errors import LabError
from ddp_lab.launch import stacks

# What a rank says when another one has gone: never the cause, however early it comes.
_ECHOES = {
    r"Connection closed by peer|Connection reset by peer|Broken pipe|pair closure|Socket closed|recvValue failed": (
        "its peer closed the connection"
    ),
    r"Timed out waiting \d+ms|wait timeout after \d+ms|failed to pass monitoredBarrier|Timed out after \d+ seconds": (
        "it waited for the others in vain"
    ),
    r"remote process (exited|has terminated)|ncclRemoteError|NCCL communicator was aborted": ("its peer has gone"),
}

_SIGNALS = {
    signal.SIGKILL: "was killed (SIGKILL), often for memory",
    signal.SIGSEGV: "crashed in native code (SIGSEGV)",
    signal.SIGABRT: "was aborted by native code (SIGABRT)",
    signal.SIGTERM: "was told to stop (SIGTERM)",
}


_LONGEST_MESSAGE = 20_000  # characters of an error's message that a cell shows


class RankError(LabError, RuntimeError):
    """A rank failed. `.run`, `.rank`, `.file` and `.line` (None where no line is known) say where."""

    def __init__(self, message: str, run=None, rank: int | None = None, file: str | None = None, line=None):
        super().__init__(message)
        self.run, self.rank, self.file, self.line = run, rank, file, line


class CommandError(RankError):
    """A command run by lab.command ended with an exit code other than 0, or by a signal."""


class HangError(LabError, RuntimeError):
    """A clock of the run expired. `.run`, `.reason` ("stall" or "timeout"), `.where` (a list of dicts rank, file, line,
    function, collective) and `.stacks` (rank -> the whole dump of its stacks).
    """

    def __init__(self, message: str, run=None, reason="stall", where=(), whole: dict[int, str] | None = None):
        super().__init__(message)
        self.run, self.reason, self.where, self.stacks = run, reason, list(where), whole or {}


class LaunchError(LabError, RuntimeError):
    """torchrun itself ended before any rank had failed. `.run` is what there is of the run."""

    def __init__(self, message: str, run=None):
        super().__init__(message)
        self.run = run


class ExpectationError(LabError, AssertionError):
    """A run was expected to fail and did not. `.run` is that run."""

    def __init__(self, message: str, run=None):
        super().__init__(message)
        self.run = run


@dataclass
class Failure:
    """How one rank ended: `code` as in subprocess, None if unknown; `stopped`: it was told to before it ended."""

    rank: int
    code: int | None
    time_ns: int
    stopped: bool
    error: dict | None
    """What the rank wrote about its exception: type, message, frames (outermost first)."""
    crash: str
    """What faulthandler wrote when the process crashed."""

    @property
    def ended_well(self) -> bool:
        return self.code == 0

    @property
    def echo(self) -> str | None:
        """In words, if this is what follows when another rank has failed."""
        if self.error is None:
            return "it was stopped with it" if self.stopped else None
        return next((words for texts, words in _ECHOES.items() if re.search(texts, self.error["message"])), None)

    @property
    def frames(self) -> list[dict]:
        if self.error:
            return self.error["frames"]
        return stacks.frames(self.crash, None)[::-1]

    @property
    def place(self) -> dict | None:
        """The innermost frame of the learner's own code."""
        return _place(self.frames)

    @property
    def what(self) -> str:
        """The error as one line: type and message, or how the process ended."""
        if self.error and self.error["type"] == "SystemExit":
            return f"SystemExit: {self.error['message']}"
        if self.error:
            return f"{self.error['type']}: {self.error['message']}".rstrip(": ")
        if self.code is not None and self.code < 0:
            return _SIGNALS.get(-self.code) or f"was ended by signal {-self.code}{_name(-self.code)}"
        if self.code is None:
            return "left no sign of how it ended"
        return f"ended with exit code {self.code} and no exception (os._exit?)"


def _place(frames: list[dict]) -> dict | None:
    own = [frame for frame in frames if not stacks.is_library(frame["file"])]
    return (own or frames or [None])[-1]


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # real-time signals have no names
        return ""


def read(folder: Path, rank: int) -> Failure:
    """How a rank ended, from the files in its folder."""
    place = folder / f"rank{rank}"
    end = read_json(place / "exit.json") or {}
    error = read_json(place / "error.json")
    try:
        crash = (place / "crash.txt").read_text(errors="replace")
    except OSError:
        crash = ""
    when = error["time_ns"] if error else end.get("time_ns", 0)
    return Failure(rank, end.get("code"), when, end.get("stopped", False), error, crash)


def read_json(path: Path) -> dict | None:
    """The content of a JSON file, None where there is none that can be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def root_cause(ends: list[Failure]) -> Failure | None:
    """The first rank that failed of itself; else the first echo; None if every rank ended well."""
    failed = [end for end in ends if not end.ended_well]
    return min(failed, key=lambda end: (end.echo is not None, end.time_ns or float("inf"), end.rank), default=None)


def describe(cause: Failure, ends: list[Failure]) -> str:
    """The report on a failed run: who, where, the lines of code, the error; then a line for each other rank."""
    place = cause.place
    head = f"rank {cause.rank} "
    if cause.error is None:
        head += cause.what
        if place:
            head += f" in {Path(place['file']).name}, line {place['line']}"
    elif place:
        head += f"failed in {Path(place['file']).name}, line {place['line']}"
        if place["function"] and place["function"] != "<module>":
            head += f" ({place['function']})"
    else:
        head += "failed"
    stopped = [
        end.rank for end in ends if end is not cause and not end.ended_well and end.error is None and end.stopped
    ]
    if stopped:
        head += f"; {_ranks(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped with it"
    parts = [head]
    if place:
        parts.append(_calls(cause) + excerpt(place))
    if cause.error:
        what = cause.what
        if len(what) > _LONGEST_MESSAGE:
            what = f"{what[:_LONGEST_MESSAGE]} … ({len(what):,} characters)"
        parts.append("\n".join([what, *map(_origin, cause.error.get("origins", []))]))
    others = [_other(end) for end in ends if end is not cause and end.rank not in stopped]
    left = [end.rank for end in ends if end.ended_well]
    if cause.echo and left:
        others.append(f"Usual cause: {_ranks(left)} made fewer collectives than the others, which waited in vain.")
    parts.append("\n".join([*others, f"Whole logs: lab.last_run().ranks[{cause.rank}].stderr"]))
    return "\n\n".join(parts)


def _origin(error: dict) -> str:
    """A line for an error that led to the one that is reported."""
    place = _place(error["frames"])
    where = f" ({Path(place['file']).name}, line {place['line']})" if place else ""
    first = next(iter(error["message"].splitlines()), "")
    return f"caused by {error['type']}: {first}".rstrip(": ") + where


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def _other(end: Failure) -> str:
    if end.ended_well:
        return f"rank {end.rank}: had ended by itself, without an error."
    if end.echo:
        return f"rank {end.rank}: {end.echo} (follows from the above)."
    return f"rank {end.rank}: {end.what.splitlines()[0]}"


def _calls(cause: Failure) -> str:
    """The learner's frames on the way to the failing one, a line each; those of libraries are left out."""
    own = [frame for frame in cause.frames if not stacks.is_library(frame["file"])][:-1]
    return "".join(f"  {Path(f['file']).name}:{f['line']} in {f['function']}: {_code(f)}\n" for f in own[-4:])


def _code(frame: dict) -> str:
    return (frame.get("code") or linecache.getline(frame["file"], frame["line"])).strip()


def excerpt(frame: dict, before: int = 2) -> str:
    """The failing line of a source file with an arrow, and the lines before it."""
    linecache.checkcache(frame["file"])
    lines = []
    for number in range(max(1, frame["line"] - before), frame["line"] + 1):
        code = linecache.getline(frame["file"], number).rstrip()
        lines.append(f"{'  →' if number == frame['line'] else '   '} {number:4d} | {code}")
    return "\n".join(lines)


def describe_hang(reason: str, limit: float, where: list[dict]) -> str:
    """The report on a run that a clock has stopped: a table of where each rank stood, and the usual cause."""
    if reason == "timeout":
        head = (
            f"the run took longer than its timeout of {limit:g} s and was stopped. "
            f"If it needs more: timeout={2 * limit:g}, or None for no limit."
        )
    else:
        head = f"no sign of life for {limit:g} s; the run was stopped."
    if not where:
        return head
    rows = [("rank", "where", "in", "waiting in")]
    for spot in where:
        number = f" (its {_ordinal(spot['number'])} collective)" if spot["number"] and spot["collective"] else ""
        rows.append(
            (
                str(spot["rank"]),
                f"{spot['file']}:{spot['line']}" if spot["file"] else "unknown",
                spot["function"] or "",
                f"{spot['collective']}{number}" if spot["collective"] else "–",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    table = "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    last = "\n".join(filter(None, [_usual_cause(where), "Whole stacks: lab.last_run().ranks[r].stack"]))
    return "\n\n".join([f"{head} Where each rank stood:", table, last])


def _usual_cause(where: list[dict]) -> str:
    waiting = {spot["collective"] for spot in where if spot["collective"]}
    outside = [spot["rank"] for spot in where if not spot["collective"]]
    if len(waiting) > 1:
        return (
            "The ranks wait for each other in different calls.\n"
            "Usual cause: a collective under `if rank == 0:`, or a rank that left a loop before the others."
        )
    if waiting and outside:
        return f"The others wait for {_ranks(outside)}, which is not in a collective."
    numbers = {spot["number"] for spot in where}
    if waiting and len(numbers) > 1:
        return (
            "The ranks wait in the same call, but have not made equally many:\n"
            "one of them has skipped one, or made one too many."
        )
    return ""


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
