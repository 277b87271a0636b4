"""The GPUs that a process started from here would see, found without touching them.

CUDA itself is not asked: initialising it in the notebook's kernel would fix CUDA_VISIBLE_DEVICES for the
whole session, take some hundred MB of GPU memory and make the kernel unfit to fork. `nvidia-smi` lists the
GPUs; CUDA_VISIBLE_DEVICES is applied here by the rules of the CUDA programming guide (section 5.2.1.1) and,
where the guide is silent (repeated entries, mixed kinds), as torch counts.
"""

import csv
import functools
import os
import re
import shutil
import subprocess
from typing import NamedTuple

# The first call after boot loads the driver, which takes seconds on a machine with many GPUs.
TIMEOUT = 10  # seconds


class GPU(NamedTuple):
    """One device. `index` is nvidia-smi's (bus order; CUDA's may differ) and None for a MIG slice."""

    index: int | None
    uuid: str
    name: str
    memory: int | None  # MiB; None where nvidia-smi does not tell (MIG, unified memory)


def visible(env=None):
    """The GPUs that a process with the environment `env` (default: ours) would see, as a list of `GPU`.

    Empty without `nvidia-smi`. nvidia-smi runs once per process; `env` is read at every call.
    """
    gpus, _ = _installed()
    return choose(gpus, (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")).gpus


def count(env=None):
    """How many GPUs `visible(env)` finds."""
    return len(visible(env))


def installed():
    """All GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says."""
    return list(_installed()[0])


def problem():
    """Why nvidia-smi is there and yet told nothing (one line), or None."""
    return _installed()[1]


@functools.cache
def _installed():
    """(tuple of GPU, problem or None), from one call of nvidia-smi."""
    if not (program := shutil.which("nvidia-smi")):
        return (), None
    query = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return (), f"nvidia-smi gave no answer in {TIMEOUT} seconds"
    except OSError as error:
        return (), f"nvidia-smi does not start: {error.strerror}"
    if answer.returncode != 0:
        words = (answer.stdout + answer.stderr).strip().splitlines() or [f"exit code {answer.returncode}"]
        return (), f"nvidia-smi says: {words[0]}"
    rows = csv.reader(answer.stdout.splitlines(), skipinitialspace=True)
    return tuple(_gpu(row) for row in rows if len(row) == 4 and row[0].isdecimal()), None


def _gpu(row):
    index, uuid, name, memory = (field.strip() for field in row)
    return GPU(int(index), uuid, name, int(memory) if memory.isdecimal() else None)


class Choice(NamedTuple):
    """What CUDA_VISIBLE_DEVICES leaves: the GPUs in the order of `cuda:0`, `cuda:1`, ...; for each a note ("" where all
    is as one expects); and why no others are visible ("" where every entry of the mask has been taken).
    """

    gpus: list[GPU]
    notes: list[str]
    end: str


def choose(gpus, mask):
    """What a value of CUDA_VISIBLE_DEVICES leaves of `gpus`, a list of GPU: a Choice. `mask`: None if it is not set."""
    if mask is None:
        return Choice(list(gpus), [""] * len(gpus), "")
    if not mask:
        return Choice([], [], "the mask is empty: no GPU is visible")
    kind = mask[:4] if mask.startswith(("GPU-", "MIG-")) else ""  # the first entry's kind holds for all
    found, notes = [], []
    for entry in mask.split(","):
        gpu, note = _pick(gpus, entry, kind)
        if gpu is None:
            return Choice(found, notes, note)
        if gpu in found:
            return Choice([], [], f"{entry!r} names a GPU a second time: none at all is visible{_AS_TORCH}")
        if kind == "MIG-" and found:
            return Choice(found, notes, f"{entry!r} is a second MIG slice: a process sees one")
        found.append(gpu)
        notes.append(note)
    return Choice(found, notes, "")


_AS_TORCH = " (as torch counts; CUDA's guide does not say)"


def _pick(gpus, entry, kind):
    """(the GPU that one entry names, a note on it), or (None, why it ends the list)."""
    hidden = "it and all that follow are hidden"
    if kind == "MIG-":
        # nvidia-smi's query lists no MIG slices, so a name is taken on trust where there is a GPU to slice.
        if gpus and entry.startswith(kind):
            return GPU(None, entry, "MIG slice", None), "a MIG slice, taken on trust"
        return None, f"{entry!r} is no MIG slice as the first is: {hidden}{_AS_TORCH}"
    if kind == "GPU-":
        matches = [gpu for gpu in gpus if entry.startswith(kind) and gpu.uuid.startswith(entry)]
        if len(matches) == 1:
            return matches[0], ""
        if matches:  # an abbreviation must be unique
            return None, f"{entry!r} begins the UUIDs of {len(matches)} GPUs: {hidden}{_AS_TORCH}"
        if not entry.startswith(kind):
            return None, f"{entry!r} is no UUID as the first is: {hidden}{_AS_TORCH}"
        return None, f"{entry!r} is the UUID of no GPU: {hidden}{_AS_TORCH}"
    number = _number(entry)
    gpu = next((gpu for gpu in gpus if number is not None and gpu.index == number), None)
    if gpu is None:
        return None, f"{entry!r} is the index of no GPU: {hidden}"
    plain = entry == str(gpu.index)
    return gpu, "" if plain else f"{entry!r} is read as {gpu.index}{_AS_TORCH}"


def _number(entry):
    """The whole number that an entry begins with, None for none. As torch reads it: "1x" is 1, and "-0" is 0."""
    try:
        return int(re.match(r"[+-]?\d+|", entry.strip())[0])
    except ValueError:  # nothing, or thousands of digits, which Python does not read
        return None
