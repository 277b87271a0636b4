"""torch's flight recorder: the collectives this process has issued, as torch itself noted them."""

from __future__ import annotations

import pickle
import sys


def entries() -> list[dict]:
    """The recorder's entries of this process, oldest first; [] where torch.distributed is not loaded.

    The dump is a private name of torch's, used in this one place. A torch without it gives [].
    """
    torch = sys.modules.get("torch")
    c10d = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    dump = getattr(c10d, "_dump_fr_trace", None)
    if dump is None:
        return []
    # The pickle was made by this very process a moment ago: nothing foreign is loaded.
    return pickle.loads(dump(includeStackTraces=False)).get("entries", [])


def unfinished() -> dict | None:
    """The newest collective that has not finished: `name`, `backend`, `number` counted from 1 within its group,
    `group`. None where all are finished or nothing was recorded.
    """
    # gloo leaves `state` at "scheduled" for ever; `retired` is what tells the end.
    for entry in reversed(entries()):
        if not entry.get("retired"):
            backend, _, name = entry["profiling_name"].rpartition(":")
            return {
                "name": name,
                "backend": backend,
                "number": entry.get("collective_seq_id", 0),
                "group": entry.get("process_group", ("", ""))[-1],
            }
    return None
