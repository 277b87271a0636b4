"""What every rank runs first: torchrun starts `python -u rank.py script.py ...` or `... rank.py -m module ...`.

It forks under a guard, and the child becomes the learner's script: `__main__`, `sys.argv` and `sys.path[0]` are what
plain Python gives. Around it stand an error file, an answer where it stands, and an end without teardown.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file: it must hide nobody's modules

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib.util
import io
import itertools
import os
import signal
import threading
import time
import traceback
import types
from pathlib import Path

if importlib.util.find_spec("ddp_lab") is None:  # used from a folder, not installed
    sys.path.append(str(Path(__file__).parents[2]))

from ddp_lab.launch import guard, processes


def main() -> None:
    """The process that torchrun started: guards a child that runs the script, and ends as the child did."""
    folder = Path(os.environ.pop("DDP_LAB_RUN_DIR")) / f"rank{os.environ['RANK']}"
    os.environ["DDP_LAB_RANK_DIR"] = str(folder)
    agent = int(os.environ.pop("DDP_LAB_AGENT"))
    guard.leave_like(guard.run_guarded(lambda: run(sys.argv[1:], folder), folder, agent))


def run(target: list[str], folder: Path) -> None:
    """Be the script `target` (path or `-m module`, then its arguments); never returns."""
    stand_by(folder)
    code = 0
    try:
        program, namespace = _load(target)
        exec(program, namespace)
    except SystemExit as stop:
        code = _exit_code(stop)
        if code:
            _report(stop, folder, code, show=False)
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        _report(error, folder, code)
    leave(code)


def stand_by(folder: Path) -> None:
    """Be ready to say where this rank stands: stacks and unfinished collective on request, stacks alone on SIGUSR1."""
    # Opened once and kept: they are written from signal handlers, and when the disk or the memory may be at an end.
    stacks = open(folder / "stacks.txt", "ab", buffering=0)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=open(folder / "crash.txt", "ab", buffering=0), all_threads=False)
    os.mkfifo(folder / "ask", 0o600)
    threading.Thread(target=_answer, args=(folder, stacks), name="ddp_lab", daemon=True).start()
    # Last: from here on the kernel may ask and signal.
    who = {"rank": processes.identity(), "main_thread": threading.main_thread().ident}
    guard.write_whole(folder / "rank.json", who)


def _answer(folder: Path, stacks: io.FileIO) -> None:
    """For each line written to the pipe `ask`, dump all stacks, then write the unfinished collective."""
    from ddp_lab.meters import recorder

    # Read and write, so that the pipe never ends when the kernel closes its side.
    with open(os.open(folder / "ask", os.O_RDWR), "rb", buffering=0) as asked:
        while question := asked.read(64):
            faulthandler.dump_traceback(stacks, all_threads=True)
            answer = {"question": question.decode().strip(), "unfinished": recorder.unfinished()}
            guard.write_whole(folder / "collective.json", answer)  # after the dump, and so the sign that it is whole


def _load(target: list[str]) -> tuple[types.CodeType, dict]:
    """The program and the fresh `__main__` it runs in, as `python script.py` or `python -m module` sets them up."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if target[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(target[1])
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        sys.argv = [spec.origin, *target[2:]]
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(target[0])))
        main.__file__ = os.path.abspath(target[0])
        sys.argv = list(target)
    source = Path(main.__file__).read_bytes()
    return compile(source, main.__file__, "exec", dont_inherit=True), main.__dict__


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _report(error: BaseException, folder: Path, code: int, show: bool = True) -> None:
    """Write `error.json`, then (unless Python shows none either) the traceback to stderr, our own frames left out."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    error = error.with_traceback(tb)
    frames = _frames(error)
    if isinstance(error, SyntaxError) and error.filename:
        frames.append({"file": error.filename, "line": error.lineno or 0, "function": "", "code": error.text or ""})
    text = _shown(error).encode(errors="replace") if show else b""
    _flush()
    report = {
        "time_ns": time.time_ns(),
        "type": type(error).__name__,
        "message": _message(error),
        "frames": frames,
        "origins": [{"type": type(e).__name__, "message": _message(e), "frames": _frames(e)} for e in _origins(error)],
        "code": code,
        # Where in stderr the traceback will stand. The kernel shows it once, in the error, and so skips it there.
        "shown": [size := _size(2), size + len(text)],
    }
    guard.write_whole(folder / "error.json", report)
    _write_all(2, text)


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
    with contextlib.redirect_stderr(text):
        sys.excepthook(type(error), error, error.__traceback__)
    return text.getvalue()


def _message(error: BaseException) -> str:
    try:
        return error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as broken:
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the script closed it, or the disk is full


def _flush_files() -> None:
    """Write out the files that the script has left open, which the interpreter's teardown would do."""
    kinds = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}
    everything = gc.get_objects()  # some 300,000: gone through without a step of Python's for each
    files = list(itertools.compress(everything, map(kinds.__contains__, map(type, everything))))
    for file in sorted(files, key=lambda file: type(file) is not io.TextIOWrapper):  # they go to the buffers below
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def leave(code: int) -> None:
    """End as Python ends: other threads waited for, exit handlers run, all flushed; but without the interpreter's
    teardown, in which torch 2.14 aborts some healthy DDP processes.
    """
    threading._shutdown()  # what Py_FinalizeEx calls first
    atexit._run_exitfuncs()
    _flush()
    _flush_files()
    ctypes.CDLL(None).fflush(None)  # what C and C++ printed
    os._exit(code)


if __name__ == "__main__":
    main()
