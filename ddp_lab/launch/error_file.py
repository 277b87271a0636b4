"""error.json: what a rank leaves about the exception that ended it, and the same on its stderr."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import sys
import time
import traceback
from pathlib import Path

from ddp_lab.launch import guard


class Report:
    """Made when the rank begins. Keeps back what writing takes when descriptors or memory are at their end."""

    def __init__(self, folder: Path):
        self._path = folder / "error.json"
        self._rank = os.getpid()
        self._reserve = [open(os.devnull), open(os.devnull), mmap.mmap(-1, 8 << 20)]

    def write(self, error: BaseException, code: int, ours: str) -> None:
        """Write error.json, then (for what Python shows one) the traceback to stderr. Frames of the file `ours`, which
        ran the script, are left out.
        """
        for kept in self._reserve:
            kept.close()
        self._reserve.clear()
        tb = error.__traceback__
        while tb is not None and tb.tb_frame.f_code.co_filename == ours:
            tb = tb.tb_next
        error = error.with_traceback(tb)
        text = b"" if isinstance(error, SystemExit) else _shown(error).encode(errors="replace")
        if os.getpid() == self._rank:  # a child that the script forked only prints
            guard.write_whole(self._path, _content(error, code, len(text)))
        _write_all(2, text)


def _content(error: BaseException, code: int, shown: int) -> dict:
    frames = _frames(error)
    if isinstance(error, SyntaxError) and error.filename:
        frames.append({"file": error.filename, "line": error.lineno or 0, "function": "", "code": error.text or ""})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script closed it, or the disk is full
            stream.flush()
    size = _size(2)
    return {
        "time_ns": time.time_ns(),
        "type": type(error).__name__,
        "message": _message(error),
        "frames": frames,
        "origins": [{"type": type(e).__name__, "message": _message(e), "frames": _frames(e)} for e in _origins(error)],
        "code": code,
        # Where in stderr the traceback will stand. The kernel shows it once, in the error, and so skips it there.
        "shown": [size, size + shown],
    }


def _frames(error: BaseException) -> list[dict]:
    return [
        {"file": f.filename, "line": f.lineno, "function": f.name, "code": f.line or ""}
        for f in traceback.extract_tb(error.__traceback__)
    ]


def _origins(error: BaseException) -> list[BaseException]:
    """What an error came from (`raise ... from`, or raised while another was being dealt with), the nearest first."""
    found = [error]
    while len(found) < 6:
        last = found[-1]
        origin = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if origin is None or origin in found:
            break
        found.append(origin)
    return found[1:]


def _shown(error: BaseException) -> str:
    """What Python, or the hook that the script has set (torch.distributed sets one), prints of an error."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            sys.excepthook(type(error), error, error.__traceback__)
        return text.getvalue()
    except BaseException:  # the script's hook fails in its turn: Python falls back, too
        with contextlib.suppress(BaseException):
            return "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return f"{type(error).__name__}\n"


def _message(error: BaseException) -> str:
    """The error's own text with the notes that were added to it; below it the errors of a group, a line each."""
    try:
        parts = [error.msg if isinstance(error, SyntaxError) else str(error), *getattr(error, "__notes__", [])]
        for one in getattr(error, "exceptions", None) or []:  # an ExceptionGroup, as asyncio's TaskGroup raises it
            own = "\n".join("  " + line for line in f"{type(one).__name__}: {_message(one)}".splitlines())
            place = _frames(one)
            parts.append(own + (f"  ({Path(place[-1]['file']).name}:{place[-1]['line']})" if place else ""))
        return "\n".join(map(str, parts))
    except BaseException as broken:
        return f"(its message cannot be shown: {type(broken).__name__})"


def _size(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_size
    except OSError:
        return 0


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # the script closed its stderr, or the disk is full: error.json has the error
