"""What this machine offers and what that changes: `lab.machine()` and `python -m ddp_lab doctor`.

Nothing here imports torch or touches a device: versions come from the installed packages' metadata, GPUs
from `ddp_lab.gpus`.
"""

import functools
import html
import os
import platform
import re
import shutil
import sys
import textwrap
from pathlib import Path

from ddp_lab import gpus
from ddp_lab.limits import GIB, RANK_MEMORY, cores, memory

# The torch that every statement of the course was asserted on; pyproject.toml has the same pin and wins.
TORCH = ">=2.14.1,<2.15"
MOST_RANKS = 8  # a course of small models learns nothing from more
SETUP = "python3 scripts/lab.py"
SHORT = 32  # characters of what was found that stay on one line


def machine(full=False):
    """Look at this machine, and meanwhile make ready for warm runs. Returns what examine() finds."""
    from ddp_lab.launch import warm

    warm.begin()
    return examine(full)


def examine(full=False):
    """Look at this machine. Returns a `Report`; as a cell's last line it shows itself.

    The short report has what a notebook depends on, and whatever is wrong. `full=True` adds the tools, the
    disk and the rest, as `python -m ddp_lab doctor` prints them.
    """
    rows = [*_system(), *_hardware(), *_software(), *_ranks(), *_room(), *(_tools() if full else [])]
    shown = [_public(row) for row in rows if full or row["brief"] or not row["ok"]]
    return Report(shown, full, stoppers=[row["item"] for row in rows if row["stops"]])


class Report:
    """What was found: `.rows` (dicts of item, found, means, cure, ok), `.fit`, `.stoppers`, `.full`.

    `ok` is False where something is missing, and then `cure` says what to do. Such a row only narrows the
    course, unless its item is in `.stoppers`. `.fit` says whether the course can run here at all.
    """

    def __init__(self, rows, full=False, stoppers=()):
        self.rows, self.full, self.stoppers = rows, full, list(stoppers)

    @property
    def fit(self):
        return not self.stoppers

    def _summary(self):
        if self.stoppers:
            return f"This machine cannot run the course yet. In the way: {', '.join(self.stoppers)}."
        more = "" if self.full else " In detail: `lab.machine(full=True)`."
        return "This machine can run the course." + more

    def _mark(self, row):
        return "ok" if row["ok"] else "STOP" if row["item"] in self.stoppers else "note"

    def __str__(self):
        items = max(len(row["item"]) for row in self.rows)
        found = min(SHORT, max(len(row["found"]) for row in self.rows))
        lines = []
        for row in self.rows:
            left = _wrap(row["found"], found)
            right = _wrap(row["means"], 100 - 4 - items - found - 6)
            for n in range(max(len(left), len(right))):
                first = f"{self._mark(row):4}  {row['item']:{items}}" if n == 0 else " " * (6 + items)
                lines.append(f"{first}  {_get(left, n):{found}}  {_get(right, n)}".rstrip())
            if row["cure"]:
                lines += textwrap.wrap(
                    "cure: " + row["cure"],
                    100,
                    initial_indent=" " * 6,
                    subsequent_indent=" " * 12,
                    **_WHOLE_WORDS,
                )
        return "\n".join([*lines, "", self._summary()])

    __repr__ = __str__

    def _repr_html_(self):
        # Colours come from the page, so that light and dark themes both work; only the signs have one, of a
        # middle lightness. The resets undo JupyterLab's own table style (right-aligned, striped, small).
        cell = "text-align:left;vertical-align:top;padding:2px 14px 2px 0;background:none;border:0"
        rows = []
        for row in self.rows:
            sign, colour = _SIGNS[mark := self._mark(row)]
            means = html.escape(row["means"])
            wrap = "nowrap" if len(row["found"]) <= SHORT else "normal;overflow-wrap:anywhere"  # a path may be long
            found = f"font-weight:bold;max-width:18em;white-space:{wrap}"
            if row["cure"]:
                means += f"<br><b>Cure:</b> {_code(row['cure'])}"
            rows.append(
                f'<tr style="background:none">'
                f'<td style="{cell};color:{colour};font-weight:bold" title="{mark}">{sign}</td>'
                f'<td style="{cell};white-space:nowrap">{html.escape(row["item"])}</td>'
                f'<td style="{cell};{found}">{html.escape(row["found"])}</td>'
                f'<td style="{cell}">{means}</td></tr>'
            )
        return (
            f'<table style="border-collapse:collapse;border:0;margin:0;font-size:inherit">'
            f"<tbody>{''.join(rows)}</tbody></table>"
            f'<div style="padding-top:4px">{_code(self._summary())}</div>'
        )


def versions_note():
    """One sentence naming the pinned and the installed torch where they differ, else None.

    For a statement that fails: under another torch it may have met a change of torch, not a mistake.
    """
    here, pin = _version("torch"), torch_pin()
    if here is None or _inside(here, pin):
        return None
    return f"Every statement of this course was asserted on torch {pin}; here is torch {here}."


def torch_pin():
    """The range of torch versions that the installed ddp-lab requires, as in pyproject.toml."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        needs = metadata.requires("ddp-lab") or []
    except metadata.PackageNotFoundError:  # run from a checkout without being installed
        needs = []
    pins = [need.specifier for need in map(Requirement, needs) if need.name == "torch" and need.specifier]
    # The specifier sorts its parts by itself; the lower bound first is what people write.
    return ",".join(sorted(map(str, pins[0]), key=lambda part: part[0] != ">")) if pins else TORCH


def sensible_ranks():
    """How many ranks run here at full speed: one per core, or per GPU with two or more, as memory carries."""
    devices = gpus.count()
    room = memory()[0] // RANK_MEMORY
    return max(1, min(devices if devices > 1 else cores(), room, MOST_RANKS))


# Rows. Each function returns those of one subject.


def _row(item, found, means, cure="", *, brief=False, stops=False):
    return {
        "item": item,
        "found": found,
        "means": means,
        "cure": cure,
        "ok": not cure,
        "brief": brief,
        "stops": stops,
    }


def _public(row):
    return {key: row[key] for key in ("item", "found", "means", "cure", "ok")}


def _system():
    name = f"{platform.system()} {platform.machine()}"
    if sys.platform == "win32":
        means = "Windows itself cannot run torchrun with gloo as the course does; Linux inside it can."
        yield _row(
            "system",
            name,
            means,
            "In PowerShell: `wsl --install`. Then clone and start inside WSL.",
            stops=True,
        )
    elif sys.platform == "darwin":
        yield _row("system", name, "All on the CPU with gloo; what needs Linux is skipped by name.")
    else:
        yield _row("system", name, "Everything works here.")
    python = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        cure = f"Start with another one: `python3.12 scripts/lab.py`. This one is {sys.executable}."
        yield _row("Python", python, "Torch has wheels for Python 3.10 to 3.14.", cure)
    else:
        yield _row("Python", python, f"This one runs the ranks too: {_home_short(sys.executable)}")


def _hardware():
    n = cores()
    means = "Shared out among the ranks on the CPU."
    if n == 1:
        means = "Two ranks take turns on it: same results, longer waits."
    yield _row("cores", str(n), means, brief=True)

    available, total = memory()
    found = f"{_size(available)} free of {_size(total)}"
    if total < 2 * GIB:
        means = "Two ranks and the notebook need about 2 GiB."
        cure = "Give the container or virtual machine more memory, or use another machine."
        yield _row("memory", found, means, cure, brief=True, stops=True)
    elif available < 2 * GIB:
        means = "Little is free: a rank may be killed (SIGKILL) when it runs out."
        yield _row("memory", found, means, "Close other programs and notebooks' kernels.", brief=True)
    else:
        means = f"A rank of the course takes about {_size(RANK_MEMORY)}."
        yield _row("memory", found, means, brief=True)

    yield _gpu_row()


def _gpu_row():
    seen, there = gpus.visible(), gpus.installed()
    row = functools.partial(_row, "GPUs", brief=True)
    if problem := gpus.problem():
        means = f"Everything runs on the CPU, for {problem}."
        return row("not usable", means, "See what `nvidia-smi` says in a terminal; a reboot often cures it.")
    if not there:
        return row("none", "Everything runs on the CPU with gloo; a run that needs GPUs is skipped by name.")
    if not seen:
        value = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return row("none visible", f'{len(there)} hidden by CUDA_VISIBLE_DEVICES="{value}": runs are on the CPU.')
    names = ", ".join(dict.fromkeys(gpu.name for gpu in seen))
    sizes = {gpu.memory for gpu in seen}
    size = f", {sizes.pop() / 1024:.0f} GiB" if len(sizes) == 1 and None not in sizes else ""
    if len(seen) == 1:
        means = "A run of one rank uses it. Two nccl ranks cannot share a GPU: larger runs are on the CPU."
    else:
        means = f"A run of up to {len(seen)} ranks has a GPU for each; a larger one is on the CPU."
    return row(f"{len(seen)} × {names}{size}", means)


def _software():
    torch, pin = _version("torch"), torch_pin()
    row = functools.partial(_row, "torch", brief=True)
    if torch is None:
        means = f"The course cannot start without it. This Python is {_home_short(sys.executable)}"
        cure = f"`{SETUP}` installs it. In a notebook: Kernel, Change Kernel, take the project's. "
        yield row("missing", means, cure + f'By hand: `pip install "torch{pin}"`.', stops=True)
        return
    build = "CUDA" if _has_nccl() else "other" if re.search(r"\+(rocm|xpu)", torch) else "CPU"
    found = torch if "+" in torch else f"{torch} ({build} build)"  # 2.14.1+cu130 says it by itself
    if note := versions_note():
        means = note + " A statement that fails may have met a change in torch."
        yield row(found, means, f'`pip install "torch{pin}"`, or go on with that in mind.')
    else:
        yield row(found, f"Within {pin}, on which every statement of the course was asserted.")

    vision = _version("torchvision")
    if vision is None:
        yield _row("torchvision", "missing", "Larger datasets and models need it.", "`pip install torchvision`")
    else:
        yield _row("torchvision", vision, "For larger datasets; the digits come with the course.")

    yield _backend_row(build)


def _backend_row(build):
    row = functools.partial(_row, "backends", brief=True)
    devices = gpus.count()
    if build == "CUDA" and devices:
        return row("nccl, gloo", "nccl between GPUs, gloo between CPU processes.")
    if build == "CUDA":
        return row("gloo", "Ranks on the CPU talk through it. (nccl is there too but has no GPU to work on.)")
    if build == "CPU" and devices:
        cure = f"`{SETUP} --clean`, then `{SETUP}`; it takes the CUDA wheels where there is a driver."
        return row("gloo", "The GPUs stay idle: this torch is a build for the CPU alone, without nccl.", cure)
    if build == "CPU":
        return row("gloo", "Ranks on the CPU talk through it. This torch has no nccl, which only GPUs need.")
    return row("gloo", "Ranks on the CPU talk through it. Of GPUs the course knows NVIDIA's only.")


def _ranks():
    n = sensible_ranks()
    if n == 1:
        means = "Runs of 2 to 4 ranks work and take turns: same results, longer waits."
    elif gpus.count() > 1:
        means = "One per GPU."
    else:
        means = "One per core. Runs of more ranks work and take turns: same results, longer waits."
    yield _row("ranks", f"{n} at full speed", means, brief=True)


def _room():
    if sys.platform == "linux" and Path("/dev/shm").is_dir():
        size = shutil.disk_usage("/dev/shm").total
        means = "DataLoader workers and nccl pass data through /dev/shm."
        if size < GIB // 2:
            means += ' When it is full, a worker dies of "Bus error".'
            yield _row("shared memory", _size(size), means, "In Docker: `docker run --shm-size=2g`.")
        else:
            yield _row("shared memory", _size(size), means)

    from .launch import folders

    home = folders.home()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < GIB:
        means = "A run's output and results go to the disk; a full one fails runs."
        yield _row(
            "disk",
            f"{_size(free)} free",
            means,
            "Make room, or set DDP_LAB_HOME to a folder on another disk.",
        )
    else:
        yield _row("disk", f"{_size(free)} free", "Plenty: the runs of a notebook take megabytes.")
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        yield _row("runs kept in", _home_short(home), "The newest of each notebook; DDP_LAB_HOME moves them.")
    else:
        cure = "Set DDP_LAB_HOME to a folder that you may write to, before starting Jupyter."
        yield _row(
            "runs kept in",
            _home_short(home),
            "It cannot be written to, so no run can start.",
            cure,
            stops=True,
        )


def _tools():
    from .launch import cluster

    item, skips = "emulated hosts", "the lessons on several machines skip their runs, by name."
    if sys.platform != "linux":
        yield _row(item, "no", f"Only Linux has network namespaces: {skips}")
    elif cluster.why_not():
        yield _row(item, "no", f"No network namespaces: {skips}", cluster.cure())
    else:
        delays = "" if cluster.why_not(delay=True) == "" else " (Without delays: its kernel has no netem.)"
        yield _row(item, "yes", f"Several machines, joined by links of a given rate, fit on this one.{delays}")

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser:
        yield _row("chromium", browser, "The project's own tests drive notebooks with it.")
    else:
        means = "Only the project's own browser tests need it; the course does not."
        yield _row("chromium", "missing", means, "`sudo apt install chromium`, if you want to run those tests.")


# Facts


def _version(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _inside(version, pin):
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(pin).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _has_nccl():
    """Whether the installed torch is a CUDA build: its version says so, or it brought nccl along."""
    from importlib import metadata

    torch = _version("torch") or ""
    if "+" in torch:
        return "+cu" in torch
    needs = metadata.requires("torch") or []
    return any(_version(re.match(r"[\w.-]+", need)[0]) for need in needs if need.startswith("nvidia-nccl"))


# Words

_SIGNS = {"ok": ("✓", "#2e9e5b"), "note": ("!", "#cf7f00"), "STOP": ("✗", "#e0503c")}
_WHOLE_WORDS = {"break_on_hyphens": False}  # an option such as --shm-size stays in one piece


def _wrap(text, width):
    return textwrap.wrap(text, width, **_WHOLE_WORDS)


def _get(lines, n):
    return lines[n] if n < len(lines) else ""


def _size(size):
    if size < GIB:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.0f} GiB" if size >= 10 * GIB else f"{size / GIB:.1f} GiB"


def _home_short(path):
    """The path with the user's home written as ~."""
    path, home = str(path), str(Path.home())
    return "~" + path[len(home) :] if path.startswith(home + os.sep) else path


def _code(text):
    """Escaped text; what stands between backticks becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
