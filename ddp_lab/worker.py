"""The rank's side: hand numbers, arrays and figures to the notebook that started the run.

    from ddp_lab import worker
    worker.log(step=step, loss=loss)                # one record, written at once
    worker.save("weights", model.state_dict())      # one object, under a name
    worker.progress(step + 1, steps, loss=loss)     # one live bar

Under the course's launcher these go to files in the run's folder and come back as
`run.ranks[r].records`, `run.frame()` and `run.ranks[r].saved`. Under bare `torchrun` or `python` nothing
is kept: `log` prints its record as a JSON line, `save` prints what it was given, `progress` prints a line
now and then on rank 0.

This module imports neither torch nor numpy nor matplotlib: an object of theirs can only be here if the
script has imported them already, so it looks them up in `sys.modules`.
"""

import json
import operator
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["log", "progress", "save"]

RANK_DIR = "DDP_LAB_RANK_DIR"  # set for each rank by the launcher; without it a run is bare
LOG_LIMIT = 10_000  # numbers in one array: more makes records slow to write and tables slow to read
ONE = "__one__"  # the name of the only array in a file which holds one array and not a dict of them
SUFFIXES = (".json", ".npz", ".safetensors", ".png")


def log(**values):
    """Write one record, at once and whole: `worker.log(step=3, loss=loss)`.

    Values are numbers, texts, None, lists, tuples or dicts of them, numpy scalars and arrays, torch tensors
    (any device, with or without gradient; one without dimensions becomes a number, others a list). NaN is
    fine. As in JSON, tuples come back as lists, and keys of dicts as texts. What is written survives the
    end of the process, even by SIGKILL. Safe in threads and in DataLoader workers.

    TypeError names the value that cannot be stored, and nothing is written; OSError if the disk is full.
    """
    line = _json(values, "worker.log") + "\n"
    if RANK_DIR in os.environ:
        append(_path("records.jsonl"), line, "worker.log")
    else:
        _print(line, sys.stdout)


def save(name, obj):
    """Keep one object under `name`; the notebook reads it as `run.ranks[rank].saved[name]`.

    A tensor or a dict of tensors (a state dict) becomes a .safetensors file, a numpy array or a dict of
    arrays .npz, a matplotlib figure .png, and whatever `log` could store .json. Nothing is ever pickled.
    A second object of the same name replaces the first.

    ValueError for a name that is no plain file name, TypeError for an object of no such kind, OSError if
    the disk is full.
    """
    _check_name(name)
    what, suffix, content = _encode(name, obj)
    if RANK_DIR not in os.environ:
        _print(f"saved {name}: {what} (kept only under ddp_lab)\n", sys.stdout)
        return
    folder = Path(os.environ[RANK_DIR], "saved")
    aside = folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
    try:
        folder.mkdir(exist_ok=True)
        aside.write_bytes(content)
        os.replace(aside, folder / (name + suffix))  # so a reader never sees half an object
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise _no_write(error, "worker.save", folder) from None
    for other in SUFFIXES:
        if other != suffix:
            (folder / (name + other)).unlink(missing_ok=True)


def progress(i, n, **values):
    """Say that `i` of `n` steps are done: `worker.progress(step + 1, steps, loss=loss)`.

    The notebook shows one bar with the rate, the time left and the latest values. Cheap enough for every
    step: at most ten reports a second are passed on, and always the first and the last. Errors as in `log`.
    """
    try:
        i, n = operator.index(i), operator.index(n)
    except TypeError:
        raise TypeError(f"worker.progress: {i!r} of {n!r}: give two whole numbers, done and all") from None
    values = _json(values, "worker.progress")
    if RANK_DIR in os.environ:
        if _due(i, n):
            line = f'{{"i": {i}, "n": {n}, "time": {time.time()}, "values": {values}}}\n'
            append(_path("progress.jsonl"), line, "worker.progress")
    elif os.environ.get("RANK", "0") == "0" and _tenth_passed(i, n):
        shown = "".join(f"  {key} {_short(value)}" for key, value in json.loads(values).items())
        _print(f"{i} of {n}{shown}\n", sys.stderr)  # stdout is for the script's own lines and records


# ---- what can be stored, and how


REFUSED = (TypeError, ValueError, RecursionError)  # what json raises: unknown kind, circle, too deep


def _json(values, caller):
    """A dict as JSON text, or a TypeError that names the key at fault."""
    try:
        return _dumps(values)
    except REFUSED as error:
        reason = f"{caller}: {error}"
    for key, value in values.items():  # once more, one by one: only when it has failed
        try:
            _dumps(value)
        except REFUSED as error:
            reason = f"{caller}: {key} cannot be stored: {error}"
            break
    raise TypeError(reason)


def _dumps(value):
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:  # half characters, as in names of files that are not UTF-8, need escapes
        text = json.dumps(value, default=_plain)
    return text


def _plain(value):
    """`value` as something that json knows; TypeError with the type and the cure otherwise."""
    kind = type(value).__name__
    if _is(value, "torch", "Tensor") or _is(value, "numpy", "ndarray"):
        size = value.numel() if _is(value, "torch", "Tensor") else value.size
        if size > LOG_LIMIT:
            raise TypeError(
                f"a {kind} of {size:,} numbers is too large for a record (at most {LOG_LIMIT:,}); "
                f"use a summary such as .mean(), or worker.save() it whole"
            )
        try:
            return value.tolist()
        except Exception as error:  # sparse and meta tensors
            raise TypeError(f"a {kind} whose values cannot be read ({str(error).splitlines()[0]})") from None
    if _is(value, "numpy", "generic"):
        item = value.item()
        return float(item) if type(item) is type(value) else item  # a long double's item is itself
    if callable(getattr(value, "state_dict", None)):
        raise TypeError(f"a {kind} is no number, text, list or array; worker.save() its .state_dict()")
    cure = {
        "complex": "store its .real and .imag",
        "set": "use sorted(...)",
        "frozenset": "use sorted(...)",
        "bytes": "use .decode() or .hex()",
        "Figure": "worker.save() the figure under a name of its own",
    }.get(kind, "use str(...), or the numbers in it")
    raise TypeError(f"a {kind} is no number, text, list or array; {cure}")


def _encode(name, obj):
    """(what it is in words, suffix, bytes) of an object to be saved."""
    parts = obj if isinstance(obj, Mapping) and obj else {ONE: obj}
    if all(_is(part, "torch", "Tensor") for part in parts.values()):
        return _describe("tensor", parts), ".safetensors", _safetensors(name, parts)
    if all(_is(part, "numpy", "ndarray") for part in parts.values()):
        return _describe("array", parts), ".npz", _npz(name, parts)
    if _is(obj, "matplotlib.figure", "Figure"):
        return "figure", ".png", _png(obj)
    try:
        content = _dumps(obj).encode()
    except REFUSED as error:
        raise TypeError(f"worker.save: {name} cannot be stored: {error}") from None
    return f"{type(obj).__name__}, {len(content):,} bytes of JSON", ".json", content


def _describe(kind, arrays):
    shapes = [f"{tuple(array.shape)} {str(array.dtype).replace('torch.', '')}" for array in arrays.values()]
    return f"{kind} {shapes[0]}" if ONE in arrays else f"{len(arrays)} {kind}s"


def _safetensors(name, tensors):
    from safetensors.torch import save

    # Copies, since the format refuses tied weights (two names of one memory) and views with gaps.
    try:
        plain = {str(key): tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        return save(plain)
    except (RuntimeError, NotImplementedError, ValueError, KeyError) as error:
        raise TypeError(f"worker.save: {name} holds a tensor that cannot be stored: {error}") from None


def _npz(name, arrays):
    import io
    import zipfile

    from numpy.lib import format

    content = io.BytesIO()
    # Not numpy.savez, which takes the names as keywords and has "file" for itself.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for key, array in arrays.items():
            if array.dtype.hasobject:
                raise TypeError(
                    f"worker.save: {name} holds an array of Python objects, which only a pickle could store; "
                    f"convert it with .astype(float) or .tolist()"
                )
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                format.write_array(member, array, allow_pickle=False)
    return content.getvalue()


def _png(figure):
    import io

    content = io.BytesIO()
    figure.savefig(content, format="png", bbox_inches="tight")
    return content.getvalue()


def _is(value, module, name):
    """isinstance() of a class in a module which may not have been imported."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def _check_name(name):
    if not isinstance(name, str):
        raise TypeError(f"worker.save: the name is {name!r}; give a text first, then the object")
    forbidden = any(char in "/\\:\0\n" for char in name)
    if not name or forbidden or name.startswith(".") or len(name.encode(errors="replace")) > 150:
        raise ValueError(f"worker.save: {name!r} cannot be a file's name; use a plain word such as 'weights'")


# ---- where it goes


def _path(name):
    return os.path.join(os.environ[RANK_DIR], name)


_descriptors = {}  # path -> open descriptor, and what it was opened on: so a record costs one write


def append(path, line, caller):
    """Add a whole line to a file of this rank's folder by one write, or nothing. OSError names the caller."""
    data = line.encode()
    written = 0
    try:
        file = _open(path)
        try:
            while written < len(data):  # more than one round only where the disk is filling up
                written += os.write(file, data[written:])
        finally:
            if 0 < written < len(data):
                _take_back(file, written)
    except OSError as error:
        raise _no_write(error, caller, path) from None


def _open(path):
    """The descriptor of a file. The script may have closed it, and have a file of its own under that number by now."""
    file, opened = _descriptors.get(path, (-1, None))
    if opened is None or _identity(file) != opened:
        file = _out_of_the_way(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        _descriptors[path] = file, _identity(file)
    return file


def _identity(file):
    try:
        found = os.fstat(file)
    except OSError:  # closed
        return None
    return found.st_dev, found.st_ino


def _out_of_the_way(file):
    """The same file under a number that no script closes because it thinks it its own, as 3 or 4."""
    import fcntl  # not on Windows, where a script may still run bare

    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500)
    except OSError:  # this process may not have so many
        return file
    os.close(file)
    return high


def _take_back(file, written):
    """Cut off a piece of a line, unless another process has already written behind it."""
    if os.lseek(file, 0, os.SEEK_CUR) == os.fstat(file).st_size:
        os.ftruncate(file, os.fstat(file).st_size - written)
    else:
        os.write(file, b"\n")


def _no_write(error, caller, path):
    text = f"{caller} could not write to {path}: {error.strerror}; nothing of this call was kept"
    return OSError(error.errno, text)


def _print(line, stream):
    """One write call, so that lines of ranks which share a terminal stay whole (also with python -u)."""
    try:
        stream.write(line)
    except UnicodeEncodeError:  # a terminal without UTF-8
        stream.write(line.encode("ascii", "backslashreplace").decode())
    stream.flush()


_last = {"time": 0.0, "i": None}


def _due(i, n):
    """Whether a report should be passed on: first, last, or a tenth of a second after the one before."""
    now = time.monotonic()
    first = _last["i"] is None or i < _last["i"]  # a smaller i than before: a new bar begins
    due = first or i >= n or now - _last["time"] >= 0.1
    _last["i"] = i
    if due:
        _last["time"] = now
    return due


def _tenth_passed(i, n):
    before, _last["i"] = _last["i"], i
    return before is None or i < before or i >= n or 10 * i // n > 10 * before // n


def _short(value):
    return f"{value:.4g}" if isinstance(value, float) else value
