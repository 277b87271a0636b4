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

    def __init__(self, folder: Path, name: str, command: str, ranks: int, seconds: float, count: bool = False):
        self.dir = folder
        self.name = name
        self.command = command
        self.seconds = seconds
        self.ranks = [Rank(folder, rank) for rank in range(ranks)]
        self.error: Exception | None = None
        self._count = count

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
            raise InputError(self._why_uncounted())
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

    def _why_uncounted(self) -> str:
        if not self._count:
            return f"the collectives of {self.name} were not counted. Run it with count=True (%%torchrun --count)."
        text = f"no rank of {self.name} got so far that its collectives could be counted."
        if self.error is None:
            return text
        return f"{text} It ended with {type(self.error).__name__}: {str(self.error).partition(chr(10))[0]}"

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
