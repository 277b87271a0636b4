"""What a run leaves: a Run with what every rank printed, logged and saved, and how it looks in a notebook."""

from __future__ import annotations

import contextlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

from ddp_lab.errors import InputError, LabError
from ddp_lab.launch import counted, folders, stacks
from ddp_lab.launch.failures import read_json
from ddp_lab.launch.output import rank_color, text_color
from ddp_lab.launch.saved import Saved


class RunGoneError(LabError, FileNotFoundError):
    """The folder of a run has been removed, and its results with it."""


class Rank:
    """What one rank left. Texts are read from the run's folder when they are asked for."""

    def __init__(self, folder: Path, rank: int):
        self.rank = rank
        self._folder = folder

    @property
    def stdout(self) -> str:
        """All that the rank wrote to stdout; bytes that are no UTF-8 come as U+FFFD."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All that the rank wrote to stderr."""
        return self._stream("stderr")

    @property
    def records(self) -> list[dict]:
        """What worker.log() was given, in order."""
        found = []
        for line in self._text("records.jsonl").split("\n"):  # not splitlines(): a text may hold other separators
            with contextlib.suppress(ValueError):  # a full disk may have cut it
                found.append(json.loads(line))
        return found

    @property
    def saved(self) -> Mapping:
        """What worker.save() was given, by name."""
        self._check()
        return Saved(self._folder / f"rank{self.rank}" / "saved")

    @property
    def exitcode(self) -> int | None:
        """As in subprocess: negative for a signal. None if the rank never ran."""
        self._check()
        return (read_json(self._folder / f"rank{self.rank}" / "exit.json") or {}).get("code")

    @property
    def stack(self) -> str:
        """The stacks of all threads, as they were dumped when the run hung or was interrupted; else ""."""
        return stacks.of_script(self._text("stacks.txt"))

    def __repr__(self) -> str:
        return f"<rank {self.rank}: exit code {self.exitcode}, {len(self.records)} records>"

    def _check(self) -> None:
        if not self._folder.is_dir():
            raise RunGoneError(
                f"the folder of this run, {self._folder}, is gone (the {folders.KEPT} newest of a notebook are kept). "
                "Run the cell again."
            )

    def _stream(self, name: str) -> str:
        self._check()
        path = folders.stream(self._folder, self.rank, name)
        return path.read_bytes().decode(errors="replace") if path else ""  # no translation of \r: bars stay bars

    def _text(self, name: str) -> str:
        self._check()
        try:
            return (self._folder / f"rank{self.rank}" / name).read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return ""


class Run:
    """A run that has ended: `.ok .seconds .command` (as shown) `.dir .ranks .error` (None if it went well)."""

    def __init__(self, folder: Path, name: str, command: str, ranks: int, seconds: float, count=False, trace=False):
        self.dir = folder
        self.name = name
        self.command = command
        self.seconds = seconds
        self.ranks = [Rank(folder, rank) for rank in range(ranks)]
        self.error: Exception | None = None
        self._count, self._trace = count, trace

    @property
    def ok(self) -> bool:
        """Whether every rank ended by itself, with exit code 0."""
        return self.error is None

    def frame(self):
        """All records as a long pandas table: rank, step, name, value; one row for each logged value but `step`.

        `step` is what was logged as step, else the number of the record in its rank, counted from 0.
        """
        import pandas

        rows = [
            (rank.rank, record.get("step", number), name, value)
            for rank in self.ranks
            for number, record in enumerate(rank.records)
            for name, value in record.items()
            if name != "step"
        ]
        return pandas.DataFrame(rows, columns=["rank", "step", "name", "value"])

    @property
    def collectives(self):
        """The collectives that all ranks have issued, of a run with count=True: a pandas table, a row for each call.

        Columns: rank, step, group, op, numel, dtype, bytes, peer; all but the first two as in the rows of
        meters.collectives.CollectiveMeter. `step` is that of the rank's next worker.log(step=...), <NA> after the last.
        A rank that ended before it could count has no rows. InputError if nothing was counted.
        """
        import pandas

        self.ranks[0]._check()
        rows, missing = [], 0
        for rank in self.ranks:
            try:
                rows += counted.rows(self.dir, rank.rank)
            except FileNotFoundError:
                missing += 1
        if missing == len(self.ranks):
            raise InputError(self._why_not(self._count, "collectives", "counted", "count"))
        table = pandas.DataFrame(rows, columns=counted.COLUMNS).astype({"peer": "Int64"}).convert_dtypes()
        return table.assign(step=table["step"].fillna(pandas.NA))  # None is left where steps are of several kinds

    @property
    def wire(self):
        """What went over the emulated hosts' interfaces, from the run's first packet to its last: a pandas table, a row
        for each host. Columns: host, interface, sent, received (bytes, headers and acknowledgements included).
        InputError for a run without several hosts, or one that was stopped before it could say.
        """
        import pandas

        self.ranks[0]._check()
        found = read_json(self.dir / "wire.json")
        if found is None:
            raise InputError(
                f"{self.name} has no account of what went over its links. Run it on several hosts: nodes=2 "
                "(%%torchrun --nodes 2); one that is stopped leaves none."
            )
        return pandas.DataFrame(found["wire"])

    def timeline(self):
        """When each rank computed and communicated, of a run with trace=True: a pandas table, a row for each stretch.

        - rank, step: the step of the rank's next worker.log(step=...), as in `collectives`, <NA> after the last. A rank
          that has logged no step at all: the number of its optimizer steps before, from 0 on.
        - kind, name: "forward" (DistributedDataParallel.forward; of a rank without DDP the operators that a backward
          pass has gone back to), "backward" (from the first node of autograd's graph to the last), "communication"
          (a row for each bucket, or other collective: all_reduce, broadcast, ...), "optimizer" (SGD, Adam, ...).
        - bytes: of the tensors that a collective was given; <NA> in other rows.
        - begin, end: seconds on a clock that all ranks share, 0 at the first row. By how much the ranks' clocks may be
          apart is measured in each run: `table.attrs["clock_error"]`, in seconds.

        Where a rank waits for a collective it does not compute: "backward" is interrupted there, and ends with its last
        node. loss.backward() goes on: DDP waits in it for the buckets that are still under way, which is the gap before
        "optimizer". Not all can be seen: a communication begins when one of gloo's threads takes it up, not when it is
        asked for; it includes waiting for ranks that come later; in DDP its end may lie some ms behind the moment at
        which the rank goes on, as gloo notes it afterwards. A thread that the system has taken off its core counts
        as computing. The profiler slows down what it records. What happens on GPUs has the GPU's times (which no test
        on a GPU has seen yet).

        A rank that was killed, or left by os._exit, has no rows. InputError if nothing was traced.
        """
        from ddp_lab.meters import timeline

        self.ranks[0]._check()
        return self._traced(timeline.table(self.dir, len(self.ranks)))

    def overlap(self, first: int = 2, rank: int | None = None) -> float:
        """The share of the time of communication in which the same rank computed its backward pass: 0 to 1.

        Of all ranks together, or of one `rank`. A rank's steps count from its `first` on, whatever they are called: DDP
        has all gradients in one bucket in its first step, and makes its buckets anew in its second. Buckets that
        travel at once count once. InputError if these steps have no communication, or nothing was traced.
        """
        from ddp_lab.meters import timeline

        rows = self.timeline()
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise InputError(f"overlap: first={first!r} is no number of steps. Write first=2, or leave it out.")
        if rank is not None:
            if rank not in [one.rank for one in self.ranks]:
                raise InputError(f"overlap: there is no rank {rank!r} in a run of {plural(len(self.ranks), 'rank')}.")
            rows = rows[rows["rank"] == rank]
        share = timeline.overlap(rows, first)
        if share is None:
            raise InputError(
                f"overlap: {self.name} has no communication from its step {first} on (counted from 0). Let it train "
                "for more steps, or give a smaller first."
            )
        return share

    def merged_trace(self) -> Path:
        """The traces of all ranks in one file, with a process for each rank: open it at https://ui.perfetto.dev.

        It stands in the run's folder, and has all that torch's profiler has recorded. InputError if that is nothing.
        """
        from ddp_lab.meters import timeline

        self.ranks[0]._check()
        return self._traced(timeline.merge(self.dir, len(self.ranks), self.name))

    def _traced(self, found):
        if found is None:
            raise InputError(self._why_not(self._trace, "times", "traced", "trace"))
        return found

    def _why_not(self, asked: bool, what: str, done: str, option: str) -> str:
        """Why there is nothing that was counted or traced, and the cure."""
        if not asked:
            return f"the {what} of {self.name} were not {done}. Run it with {option}=True (%%torchrun --{option})."
        text = f"no rank of {self.name} got so far that its {what} could be {done}."
        if self.error is None:
            return text
        first = str(self.error).partition("\n")[0].removesuffix(" Where each rank stood:")
        return f"{text} It ended with {type(self.error).__name__}: {first}"

    def __repr__(self) -> str:
        try:
            return "\n".join([f"{self.name} · {self._facts()}", *(f"  {rank!r}" for rank in self.ranks)])
        except RunGoneError as gone:
            return f"{self.name}: {gone}"

    def _repr_html_(self) -> str:
        try:
            columns = "".join(_column(rank) for rank in self.ranks[:8])
            more = f"<p>and {len(self.ranks) - 8} more ranks in <code>run.ranks</code></p>" if self.ranks[8:] else ""
            facts = html.escape(self._facts())
        except RunGoneError as gone:
            return f"<pre>{html.escape(f'{self.name}: {gone}')}</pre>"
        across = min(len(self.ranks), 4)
        line = "1px solid var(--jp-border-color2, #c8ced6)"
        return (
            f'<div style="border:{line};border-radius:6px;max-width:60em">'
            f'<div style="padding:.4em 1em;border-bottom:{line}"><b>{html.escape(self.name)}</b>&ensp;{facts}</div>'
            f'<div style="display:grid;grid-template-columns:repeat({across},1fr);gap:1em;padding:.6em 1em">'
            f"{columns}</div>{more}</div>"
        )

    def _facts(self) -> str:
        count = sum(len(rank.records) for rank in self.ranks)
        parts = [plural(len(self.ranks), "rank"), f"{self.seconds:.1f} s", "ok" if self.ok else "failed"]
        return " · ".join([*parts, plural(count, "record")])


_latest: list[Run] = []


def remember(run: Run) -> None:
    """Make this the run that last_run() gives."""
    _latest[:] = [run]


def last_run() -> Run:
    """The run that ended last in this kernel, also one that failed. InputError before the first."""
    if not _latest:
        raise InputError("no run has ended in this kernel yet.")
    return _latest[0]


def plural(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _column(rank: Rank) -> str:
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line)[:200] for line in rank.stdout.splitlines()[-12:]]
    body = html.escape("\n".join(lines)) or '<span style="opacity:.6">printed nothing</span>'
    look = "margin:.2em 0;background:none;overflow-x:auto;white-space:pre;font-size:var(--jp-code-font-size,13px)"
    return (
        f'<div style="min-width:0"><b style="color:{text_color(rank_color(rank.rank))}">rank {rank.rank}</b>'
        f'<pre style="{look}">{body}</pre></div>'
    )
