"""The collectives that this process issues: counted as they are called, by torch's own hooks on its process groups."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable

from ddp_lab import worker

FILE = "collectives.jsonl"
"""In the folder of a counted rank: a line for each row."""

_HOOK = 0xDD9  # the id of our hook in each group

# As they are called in Python. Others are what torch's name is in lower case.
_NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all"}


class CollectiveMeter:
    """Records, while it is entered, each collective that this process issues, in order:

        with CollectiveMeter() as meter:
            loss.backward()
        assert [row["op"] for row in meter.rows] == ["all_reduce"]

    `.rows`: one dict for each call, noted when it is issued (one that is asynchronous need not have finished):

    - op: "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
      "barrier", "send", "recv". A variant counts as what it is a variant of: all_gather_single as all_gather.
    - group: the description of its process group, "default_pg" for the default one; its name where it has none.
    - numel, bytes: elements of the tensors that this rank hands in (for recv: of its buffer), and their bytes. 0 for
      a barrier, and for a rank that hands in nothing, as the others of a scatter. Of a sparse tensor: values and,
      among the bytes, indices.
    - dtype: "float32", "int64", ... as torch prints it; "" where there is no tensor.
    - peer: for send and recv the global rank of the other side, None for a recv from any, and in a group that was
      destroyed before its first call; None for all others.

    Complex tensors are counted as torch hands them on: most ops see two real numbers for each complex one (3 of
    complex64 are 6 of float32); reduce, gather and reduce_scatter see them as they are. The bytes are the same.

    It changes no result. Meters nest, and each has its own rows: `meter.rows = []` begins anew. There is no buffer
    that could overflow.

    An object collective is two rows or three, as torch makes it of tensors: sizes, then bytes of pickles. Not seen:
    monitored_barrier, what makes or ends groups, and all of a backend written in Python (a ProcessGroup of its own),
    which go past the hooks; what other processes of this rank issue (DataLoader workers, mp.spawn, forks).

    RuntimeError where this torch has no such hooks (they came with torch 2.14).
    """

    def __init__(self):
        self.rows: list[dict] = []

    def __enter__(self) -> CollectiveMeter:
        begin(self._take)
        return self

    def __exit__(self, *_) -> None:
        end(self._take)

    def _take(self, row: dict) -> None:
        self.rows.append(row)  # looked up each time: `meter.rows = []` begins anew

    def table(self) -> str:
        """What was counted, as text: a line for each op, group, and dtype, in order of the first."""
        calls, numbers, sizes = Counter(), Counter(), Counter()
        for row in self.rows:
            kind = row["op"], row["group"], row["dtype"]
            calls[kind] += 1
            numbers[kind] += row["numel"]
            sizes[kind] += row["bytes"]
        lines = [("op", "group", "dtype", "calls", "numel", "bytes")]
        lines += [(*kind, str(calls[kind]), f"{numbers[kind]:,}", f"{sizes[kind]:,}") for kind in calls]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                text.ljust(width) if i < 3 else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


_sinks: list[Callable[[dict], object]] = []
_lock = threading.RLock()
_watched = weakref.WeakSet()  # the groups with our hook, also those that torch has forgotten meanwhile
_ours = _torchs = None  # what stands in the place of torch's own function while we watch, and what stood there


def begin(sink: Callable[[dict], object]) -> None:
    """From now on hand each row to `sink`, on the thread that issues the collective."""
    global _sinks
    with _lock:
        if not _sinks:
            _watch_all()
        _sinks = [*_sinks, sink]


def end(sink: Callable[[dict], object]) -> None:
    """Undo one begin() of this sink, if there is one left."""
    global _sinks
    with _lock:
        left = list(_sinks)  # a new list: the old one may be gone through at this moment
        with contextlib.suppress(ValueError):
            left.remove(sink)
        last = _sinks and not left
        _sinks = left
        if last:
            _leave_all()


def _watch_all() -> None:
    """Put our hook on the groups that there are, and on each that is made from now on."""
    global _ours, _torchs
    import torch
    from torch.distributed import distributed_c10d as c10d

    if not hasattr(torch.distributed.ProcessGroup, "register_pre_hook") or not hasattr(c10d, "_register_process_group"):
        raise RuntimeError(
            f"torch {torch.__version__} has no hooks on process groups, by which collectives are counted; 2.14 has."
        )
    before = c10d._register_process_group

    def register(name, group):
        before(name, group)  # no global: another tool may have kept this function, and call it whenever it likes
        with _lock:
            if _sinks:
                _watch(group, name)

    try:
        for group, name in list(c10d._world.pg_names.items()):
            _watch(group, name)
    except BaseException:
        _leave_all()
        raise
    c10d._register_process_group, _ours, _torchs = register, register, before


def _leave_all() -> None:
    global _ours, _torchs
    from torch.distributed import distributed_c10d as c10d

    if _ours is not None and c10d._register_process_group is _ours:  # else another tool has put its own around ours
        c10d._register_process_group = _torchs
    _ours = _torchs = None
    for group in list(_watched):
        with contextlib.suppress(RuntimeError):
            group.unregister_pre_hook(_HOOK)
    _watched.clear()


def _watch(group, name: str) -> None:
    if group in _watched:
        return
    shown = group.group_desc if group.group_desc not in ("", "undefined") else name
    # The hook belongs to the group and must not hold it: a group lives as long as anything holds it.
    group.register_pre_hook(_HOOK, functools.partial(_note, shown, {}, weakref.ref(group)))
    _watched.add(group)


def _after_fork() -> None:
    """A child is not this rank: its collectives go nowhere, and least of all into the rank's file."""
    global _lock, _sinks
    _lock = threading.RLock()  # another thread may have held it
    if _sinks:
        _sinks = []
        _leave_all()


os.register_at_fork(after_in_child=_after_fork)


def _note(shown: str, peers: dict[int, int], group: weakref.ref, args) -> None:
    """Hand a row to each sink: the hook of a group. `peers` is empty until its first call: its ranks by global ones."""
    if not _sinks:
        return
    if not peers:  # read now: torch knows them after it has registered a group, and only until the group is destroyed
        peers.update(_global_ranks(group()))
    number = args.name.value
    op = _ops.get(number) or _op(args.name)
    tensors = args.output_tensors if op == "recv" else args.input_tensors
    numel = size = 0
    for tensor in tensors:
        if tensor.is_sparse:
            values, indices = tensor._values(), tensor._indices()
            numel, size = numel + values.numel(), size + values.nbytes + indices.nbytes
        else:
            numel, size = numel + tensor.numel(), size + tensor.nbytes
    row = {
        "op": op,
        "group": shown,
        "numel": numel,
        "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        "bytes": size,
        "peer": peers.get(args.root) if op in ("send", "recv") else None,
    }
    for sink in _sinks:
        sink(row)


_ops: dict[int, str] = {}  # by value: what the hooks hand in is an enum, slow to hash and to ask for its name


def _op(name) -> str:
    """What the hooks call a collective, as it is called in Python."""
    return _ops.setdefault(name.value, _NAMES.get(name.name, name.name.lower()))


def _global_ranks(group) -> dict[int, int]:
    """The global rank of each rank in a group; of a group that is destroyed nothing."""
    from torch.distributed import distributed_c10d as c10d

    return {inside: rank for rank, inside in c10d._world.pg_group_ranks.get(group, {}).items()}


def count_into(folder: str | os.PathLike) -> None:
    """From now on write each row into the folder's FILE, at once, so that it survives however the process ends.
    `at` is the size of the rank's records by then: what it logs next comes behind it.

    Where a row cannot be written, the call that it is about raises OSError: a table with rows missing would tell lies.
    """
    records, rows = (os.path.join(folder, name) for name in ("records.jsonl", FILE))

    def write(row: dict) -> None:
        try:
            at = os.stat(records).st_size
        except FileNotFoundError:  # nothing is logged yet
            at = 0
        worker.append(rows, json.dumps(row | {"at": at}) + "\n", "count=True")

    worker.append(rows, "", "count=True")  # the file says that this rank is counted
    begin(write)
