"""The collectives that this process issues: counted as they are called, by torch's own hooks on its process groups."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable

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
    - peer: for send and recv the global rank of the other side, None for a recv from any; None for all others.

    It changes no result. Meters nest, and each has its own rows. There is no buffer that could overflow.

    An object collective is two rows or three, as torch makes it of tensors: sizes, then bytes of pickles. Not seen:
    monitored_barrier and what makes or ends groups, which go past the hooks; what other processes of this rank issue
    (DataLoader workers, mp.spawn).

    RuntimeError where this torch has no such hooks (they came with torch 2.14).
    """

    def __init__(self):
        self.rows: list[dict] = []

    def __enter__(self) -> CollectiveMeter:
        begin(self.rows.append)
        return self

    def __exit__(self, *_) -> None:
        end(self.rows.append)

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
_register = None  # torch's own, while ours stands in its place


def begin(sink: Callable[[dict], object]) -> None:
    """From now on hand each row to `sink`, on the thread that issues the collective."""
    global _sinks
    with _lock:
        if not _sinks:
            _watch_all()
        _sinks = [*_sinks, sink]


def end(sink: Callable[[dict], object]) -> None:
    """Undo one begin() of this sink."""
    global _sinks
    with _lock:
        left = list(_sinks)  # a new list: the old one may be gone through at this moment
        left.remove(sink)
        _sinks = left
        if not _sinks:
            _leave_all()


def _watch_all() -> None:
    """Put our hook on the groups that there are, and on each that is made from now on."""
    global _register
    import torch
    from torch.distributed import distributed_c10d as c10d

    if not hasattr(torch.distributed.ProcessGroup, "register_pre_hook") or not hasattr(c10d, "_register_process_group"):
        raise RuntimeError(
            f"torch {torch.__version__} has no hooks on process groups, by which collectives are counted; 2.14 has."
        )
    _register = c10d._register_process_group

    def register(name, group):
        _register(name, group)
        _watch(group)

    c10d._register_process_group = register
    for group in c10d._world.pg_map:
        _watch(group)


def _leave_all() -> None:
    from torch.distributed import distributed_c10d as c10d

    c10d._register_process_group = _register
    for group in c10d._world.pg_map:
        with contextlib.suppress(RuntimeError):
            group.unregister_pre_hook(_HOOK)


def _watch(group) -> None:
    # The hook belongs to the group and must not hold it: a group lives as long as anything holds it.
    name = group.group_name
    shown = group.group_desc if group.group_desc not in ("", "undefined") else name
    group.register_pre_hook(_HOOK, lambda args: _note(args, name, shown))


def _note(args, name: str, shown: str) -> None:
    op = _op(args.name)
    tensors = args.output_tensors if op == "recv" else args.input_tensors
    numel = size = 0
    for tensor in tensors:
        if tensor.is_sparse:
            values, indices = tensor._values(), tensor._indices()
            numel, size = numel + values.numel(), size + values.nbytes + indices.nbytes
        else:
            numel, size = numel + tensor.numel(), size + tensor.numel() * tensor.element_size()
    row = {
        "op": op,
        "group": shown,
        "numel": numel,
        "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        "bytes": size,
        "peer": _peer(name, args.root) if op in ("send", "recv") else None,
    }
    for sink in _sinks:
        sink(row)


@functools.cache
def _op(name) -> str:
    """What the hooks call a collective (an enum, slow to ask for its name), as it is called in Python."""
    return _NAMES.get(name.name, name.name.lower())


def _peer(name: str, root: int) -> int | None:
    """The global rank of a rank in the group of this name; None for "any"."""
    from torch.distributed import distributed_c10d as c10d

    return None if root < 0 else c10d.get_global_rank(c10d._resolve_process_group(name), root)


def count_into(folder: str) -> None:
    """From now on write each row into the folder's FILE, at once, so that it survives however the process ends.
    `at` is the size of the rank's records by then: what it logs next comes behind it.

    Where a row cannot be written, the call that it is about raises OSError: a table with rows missing would tell lies.
    """
    records, rows = (os.path.join(folder, name) for name in ("records.jsonl", FILE))
    file = os.open(rows, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(row: dict) -> None:
        try:
            at = os.stat(records).st_size
        except FileNotFoundError:  # nothing is logged yet
            at = 0
        line = (json.dumps(row | {"at": at}) + "\n").encode()
        try:
            cut = os.write(file, line) < len(line)
        except OSError as error:
            raise OSError(error.errno, f"count=True could not write to {rows}: {error.strerror}") from None
        if cut:
            raise OSError(errno.ENOSPC, f"count=True could not write all of a row to {rows}: the disk is full")

    begin(write)
