"""The ledger: what was really run and checked, one JSON line each, in the file $DDP_LAB_LEDGER (if set)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path


def write(event: str, **fields: object) -> None:
    """Append `{"event": event, "notebook": ..., **fields}`; nothing where no ledger is asked for."""
    path = os.environ.get("DDP_LAB_LEDGER")
    if not path:
        return
    line = json.dumps({"event": event, "notebook": notebook(), **fields}) + "\n"
    # One write to a file opened for appending: several kernels may share a ledger.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def notebook() -> str:
    """The name of the notebook (or script) that this kernel works for, without folder and suffix."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    candidates = [
        (getattr(shell, "user_ns", None) or {}).get("__vsc_ipynb_file__"),
        os.environ.get("JPY_SESSION_NAME"),
        os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[0],
        getattr(sys.modules.get("__main__"), "__file__", None),
    ]
    for name in candidates:
        if name:
            stem = Path(name).stem
            return re.sub(r"[^\w.-]+", "_", stem) if stem != "ipykernel_launcher" else "session"
    return "session"
