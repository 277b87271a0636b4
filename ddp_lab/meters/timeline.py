"""What a traced run leaves: when each rank computed and communicated, on one clock, read from its ranks' traces."""

from __future__ import annotations

import bisect
import functools
import gc
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddp_lab.meters.tracing import FILE, MARK, unquoted

KINDS = ("forward", "backward", "communication", "optimizer")
COLUMNS = ["rank", "step", "kind", "name", "bytes", "begin", "end"]

_FORWARD = "DistributedDataParallel.forward"
_NODE = "autograd::engine::evaluate_function: "
_UPDATE = "Optimizer.step#"
_GLOO = "gloo:"

_MOST_PROCESSES = 100  # of a rank in the trace of all: itself and its GPUs

# Bytes of an element, by what the profiler calls its type, on gloo (of C++) and on nccl.
_SIZES = {
    "bool": 1, "unsigned char": 1, "signed char": 1, "short int": 2, "int": 4, "long int": 8, "c10::Half": 2,
    "c10::BFloat16": 2, "float": 4, "double": 8, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Half": 2, "BFloat16": 2, "Float": 4,
    "Double": 8,
}  # fmt: skip
_NCCL = {"allreduce": "all_reduce", "allgather": "all_gather", "_allgather_base": "all_gather",
         "_reduce_scatter_base": "reduce_scatter", "all_to_allv": "all_to_all"}  # fmt: skip


class Span:
    """Something that took time, on a thread or a GPU: an event of the profiler's. Times in µs since 1970."""

    def __init__(self, event: dict, base: float):
        self.name: str = event["name"]
        self.category: str = event.get("cat", "")
        self.process, self.thread = event.get("pid"), event.get("tid")
        self.args: dict = event.get("args", {})
        self.begin: float = event["ts"] + base
        self.end: float = self.begin + event.get("dur", 0)


class Trace:
    """The trace of one rank.

    `events`: as they stand in the file. `base`: µs since 1970 to be added to their times, less `zero`, which is the
    same for all ranks: a float cannot tell nanoseconds apart over so many years.
    ValueError for a file that is no whole trace: a table without its rows would tell lies.
    """

    def __init__(self, path: Path, zero: int | None = None):
        try:
            content = json.loads(path.read_bytes())
            self.events: list[dict] = content["traceEvents"]
            nanoseconds = content["baseTimeNanoseconds"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole trace: {type(error).__name__}: {error}") from None
        self.zero = nanoseconds if zero is None else zero
        self.base = (nanoseconds - self.zero) / 1000
        own = (e for e in self.events if e.get("ph") == "X" and isinstance(e.get("pid"), int))
        # Ranges of the CPU come again on a GPU's side, as far as it was at what they had put there.
        self.spans = [Span(e, self.base) for e in own if e.get("cat") != "gpu_user_annotation"]
        self.spans.sort(key=lambda span: (span.begin, -span.end))

    def marks(self, name: str) -> list[Span]:
        """The ranges of ours that begin so."""
        return [span for span in self.spans if span.name.startswith(MARK + name)]

    def clock_error(self) -> float:
        """By how many µs the profiler's times may differ from the system's clock, by all places where it was read.

        Each leaves a stretch open in which the difference lies. What they have in common is that of one difference for
        the whole run; where they have nothing in common, the difference changes, and the widest stretch counts.
        """
        low, high, worst = -math.inf, math.inf, 0.0
        marks = iter(self.marks("clock"))
        for before, after in zip(marks, marks, strict=False):
            now = (int(after.name.split()[-1]) - self.zero) / 1000
            low, high = max(low, before.end - now), min(high, after.begin - now)
            worst = max(worst, now - before.end, after.begin - now)
        return max(-low, high) if low <= high < math.inf else worst

    def rows(self) -> list[dict]:
        """Rows of kind, name, bytes, begin, end (µs, as the spans'), step; in the order of their beginnings."""
        rows = [*self._computing(), *self._communication()]
        rows.sort(key=lambda row: row["begin"])
        ends = [(span.begin, unquoted(span.name.removeprefix(MARK + "step "))) for span in self.marks("step ")]
        if not ends:  # it has logged no step
            updates = sorted(row["at"] for row in rows if row["kind"] == "optimizer")
            ends = [(at, number) for number, at in enumerate(updates)]
        for row in rows:
            after = bisect.bisect_left(ends, row.pop("at"), key=lambda end: end[0])
            row["step"] = ends[after][1] if after < len(ends) else None
        return rows

    def _computing(self) -> Iterator[dict]:
        nodes = [span for span in self.spans if span.name.startswith(_NODE)]
        waits = _outermost(self.marks("wait"))
        passes = _outermost(self.marks("backward"))
        updates = [span for span in self.spans if span.name.startswith(_UPDATE)]
        forwards = [span for span in self.spans if span.name == _FORWARD]
        for call in passes:
            if not (inside := _begun(nodes, call.begin, call.end)):
                continue
            whole = min(node.begin for node in inside), max(node.end for node in inside)
            threads = {node.thread for node in inside}
            holes = [(self._asked(wait), wait.end) for wait in _begun(waits, *whole) if wait.thread in threads]
            on_gpu = self._on_gpu(inside)
            for begin, end in [on_gpu] if on_gpu else _without(whole, holes):
                yield _row("backward", "backward", begin, end, call.begin)
        for inside in [[span] for span in forwards] or self._linked(passes, updates):
            begin, end = self._on_gpu(inside) or (inside[0].begin, max(span.end for span in inside))
            name = "forward" if len(inside) > 1 else inside[0].name
            yield _row("forward", name, begin, end, inside[0].begin)
        for span in updates:
            name = span.name.removeprefix(_UPDATE).removesuffix(".step")
            yield _row("optimizer", name, *(self._on_gpu([span]) or (span.begin, span.end)), span.begin)

    def _asked(self, wait: Span) -> float:
        """When a wait began: with the call of the collective, if that is what the thread did last before."""
        before = self._ended.get(wait.thread, [])
        last = bisect.bisect_right(before, wait.begin, key=lambda span: span.end) - 1
        return before[last].begin if last >= 0 and before[last].name.startswith("c10d::") else wait.begin

    @functools.cached_property
    def _ended(self) -> dict[int, list[Span]]:
        """Of each thread the operators, in the order of their ends."""
        found: dict[int, list[Span]] = {}
        for span in sorted(self.spans, key=lambda span: span.end):
            if span.category == "cpu_op":
                found.setdefault(span.thread, []).append(span)
        return found

    def _linked(self, passes: list[Span], updates: list[Span]) -> list[list[Span]]:
        """The operators which a backward pass has gone back to, as they were called between two passes or updates."""
        links = {(e["tid"], e["ts"] + self.base) for e in self.events if e.get("cat") == "fwdbwd" and e["ph"] == "s"}
        linked = [span for span in self.spans if span.category == "cpu_op" and (span.thread, span.begin) in links]
        cuts = sorted(span.begin for span in (*passes, *updates))
        return [list(own) for _, own in itertools.groupby(linked, lambda span: bisect.bisect(cuts, span.begin))]

    def _communication(self) -> Iterator[dict]:
        for span in self.spans:
            if span.name.startswith(_GLOO):
                row = _row("communication", span.name.removeprefix(_GLOO), span.begin, span.end, span.begin)
                yield row | {"bytes": _bytes(span.args)}
            elif span.category == "kernel" and span.name.startswith("nccl"):
                name = span.args.get("Collective name", span.name)
                at = self._launches.get(span.args.get("correlation"), span).begin
                each = _SIZES.get(span.args.get("dtype"))
                size = each and "In msg nelems" in span.args and span.args["In msg nelems"] * each
                yield _row("communication", _NCCL.get(name, name), span.begin, span.end, at) | {"bytes": size or None}

    @functools.cached_property
    def _launches(self) -> dict[int, Span]:
        """By the numbers of what runs on a GPU: the calls that have put it there."""
        calls = (span for span in self.spans if span.category in ("cuda_runtime", "cuda_driver"))
        return {span.args["correlation"]: span for span in calls if "correlation" in span.args}

    @functools.cached_property
    def _on_gpus(self) -> list[tuple[Span, Span]]:
        """(the call that has put it there, it) of all that computes or copies on a GPU, in the order of the calls."""
        found = (
            (self._launches[number], span)
            for span in self.spans
            if span.category in ("kernel", "gpu_memcpy", "gpu_memset") and not span.name.startswith("nccl")
            if (number := span.args.get("correlation")) in self._launches
        )
        return sorted(found, key=lambda pair: pair[0].begin)

    def _on_gpu(self, spans: list[Span]) -> tuple[float, float] | None:
        """From when to when a GPU was at what was put there in these ranges; None if nothing was."""
        found = []
        for span in spans:
            start = bisect.bisect_left(self._on_gpus, span.begin, key=lambda pair: pair[0].begin)
            for call, work in self._on_gpus[start:]:
                if call.begin > span.end:
                    break
                if call.thread == span.thread:
                    found.append(work)
        return (min(work.begin for work in found), max(work.end for work in found)) if found else None


def table(folder: Path, ranks: int):
    """The rows of all ranks in COLUMNS as a pandas table, sorted by their beginnings; None if no rank has left a trace.

    begin and end in seconds, from 0 on. `attrs["clock_error"]`: seconds; `attrs["clock"]`: what that means.
    """
    import pandas

    traces = _traces(folder, ranks)
    if not traces:
        return None
    rows = [{"rank": rank, **row} for rank, trace in traces.items() for row in trace.rows()]
    zero = min((row["begin"] for row in rows), default=0.0)
    for row in rows:
        row["begin"], row["end"] = (row["begin"] - zero) / 1e6, (row["end"] - zero) / 1e6
    rows.sort(key=lambda row: row["begin"])
    found = pandas.DataFrame(rows, columns=COLUMNS)
    # Built as it is, a column of whole numbers and None would be one of floats.
    steps = pandas.Series([pandas.NA if row["step"] is None else row["step"] for row in rows], dtype="object")
    found = found.assign(bytes=found["bytes"].astype("Int64"), step=steps.convert_dtypes())
    found.attrs["clock_error"] = max(trace.clock_error() for trace in traces.values()) / 1e6
    found.attrs["clock"] = (
        "the profiler's time of each rank, compared with the clock that all processes of this machine share at the "
        "beginning, at each logged step and at the end: no rank is off by more than clock_error (seconds)"
    )
    return found


def overlap(rows, first: int) -> float | None:
    """The share of the time of communication in which the same rank computed a backward pass; None without any."""
    import pandas

    hidden = whole = 0.0
    for _, own in rows.groupby("rank"):
        steps = [None if pandas.isna(step) is True else step for step in own["step"]]  # a step may be a list
        named = []
        for step in steps:
            if step is not None and step not in named:
                named.append(step)
        spans = list(zip(steps, own["kind"], zip(own["begin"], own["end"], strict=True), strict=True))
        moving = _union(pair for step, kind, pair in spans if kind == "communication" and step in named[first:])
        computing = _union(pair for _, kind, pair in spans if kind == "backward")
        whole += sum(end - begin for begin, end in moving)
        hidden += _shared(moving, computing)
    return hidden / whole if whole else None


def merge(folder: Path, ranks: int, name: str) -> Path | None:
    """Write one trace of all ranks, for https://ui.perfetto.dev: a process for each rank, on one clock. None if no rank
    has left one.
    """
    traces = _traces(folder, ranks)
    if not traces:
        return None
    zero = min((trace.spans[0].begin for trace in traces.values() if trace.spans), default=0.0)
    events = [event for rank, trace in traces.items() for event in _renamed(rank, trace, zero, name)]
    path = folder / FILE
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    return path


def _renamed(rank: int, trace: Trace, zero: float, name: str) -> Iterator[dict]:
    """The events of a rank as they stand in the trace of all."""
    processes: dict[int, int] = {}  # the rank itself, then its GPUs: a number for each that no other rank has
    own = next((span.process for span in trace.spans if span.name.startswith(MARK)), None)
    processes[own] = rank * _MOST_PROCESSES
    for event in trace.events:
        if not isinstance(event.get("pid"), int):  # the profiler about itself
            continue
        device, pid = event["pid"], processes.setdefault(event["pid"], rank * _MOST_PROCESSES + len(processes))
        event = event | {"pid": pid, "ts": event["ts"] + trace.base - zero}
        if "id" in event:  # of arrows, which would lead from rank to rank
            event["id"] = f"{rank}.{event['id']}"
        if event["name"] == "process_name" and event["ph"] == "M":
            gpu = "" if device == own else f" GPU {device}"
            event["args"] = {"name": f"rank {rank}{gpu} ({name})"}
        if event["name"] == "process_sort_index" and event["ph"] == "M":
            event["args"] = {"sort_index": pid}
        yield event


def _traces(folder: Path, ranks: int) -> dict[int, Trace]:
    """Of the ranks that have left one."""
    found: dict[int, Trace] = {}
    collects = gc.isenabled()
    gc.disable()  # it would go through all that is read again and again: seven times the time
    try:
        for rank in range(ranks):
            path = folder / f"rank{rank}" / FILE
            if path.exists():
                found[rank] = Trace(path, next(iter(found.values())).zero if found else None)
    finally:
        if collects:
            gc.enable()
    return found


def _row(kind: str, name: str, begin: float, end: float, at: float) -> dict:
    """`at`: when the rank asked for it, which tells its step."""
    return {"kind": kind, "name": name, "bytes": None, "begin": begin, "end": end, "at": at}


def _bytes(args: dict) -> int | None:
    """Of the tensors that a collective on gloo was given; None where the profiler does not say."""
    kinds, shapes = args.get("Input type", []), args.get("Input Dims", [])
    sizes = [_SIZES.get(kind) for kind in kinds]
    if not sizes or len(kinds) != len(shapes) or None in sizes:
        return None
    return sum(size * math.prod(shape) for size, shape in zip(sizes, shapes, strict=True))


def _begun(spans: list[Span], begin: float, end: float) -> list[Span]:
    """Those of these spans, sorted by their beginnings, that begin in this time."""
    start = bisect.bisect_left(spans, begin, key=lambda span: span.begin)
    return spans[start : bisect.bisect_right(spans, end, key=lambda span: span.begin)]


def _outermost(spans: Iterable[Span]) -> list[Span]:
    """Without those that lie in another of the same thread."""
    found, ends = [], {}
    for span in spans:
        if span.begin >= ends.get(span.thread, -math.inf):
            found.append(span)
            ends[span.thread] = span.end
    return found


def _without(whole: tuple[float, float], holes: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """What is left of a time without these."""
    begin, last = whole
    for since, until in _union(holes):
        if since > begin:
            yield begin, since
        begin = max(begin, until)
    if last > begin:
        yield begin, last


def _shared(one: list[tuple[float, float]], two: list[tuple[float, float]]) -> float:
    """How long both go on at once; each as _union() gives it."""
    shared, i, k = 0.0, 0, 0
    while i < len(one) and k < len(two):
        shared += max(0.0, min(one[i][1], two[k][1]) - max(one[i][0], two[k][0]))
        if one[i][1] < two[k][1]:
            i += 1
        else:
            k += 1
    return shared


def _union(pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, sorted, and none of them twice."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(pairs):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
