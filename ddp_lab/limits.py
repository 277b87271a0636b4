"""What this process may use: cores and memory, a container's limits included."""

import math
import os
import re
from pathlib import Path

GIB = 2**30
# Host memory of a rank that has run a backward pass through DDP, measured on CPU: 0.4 GiB of its own and
# a share of torch's libraries.
RANK_MEMORY = GIB // 2
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores():
    """How many cores this process may use: its affinity, and a container's quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroups("cpu"):
        v1 = read_text(folder / "cpu.cfs_quota_us") + " " + read_text(folder / "cpu.cfs_period_us")
        quota, _, period = (read_text(folder / "cpu.max") or v1).partition(" ")
        if quota.isdecimal() and period.isdecimal():  # no quota: "max" in v2, -1 in v1
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def memory():
    """(available, total) bytes of memory for this process, a container's limit included."""
    import psutil

    ram = psutil.virtual_memory()
    available, total = ram.available, ram.total
    for folder in _cgroups("memory"):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal() and int(limit) < ram.total:
            # The kernel gives file cache back on demand, so it is not in the way.
            stat = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "memory.stat"), re.M))
            cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            free = int(limit) - int(used) + int(cache)
            available, total = min(available, max(free, 0)), min(total, int(limit))
    return available, total


def read_text(path):
    """The content of a small system file without outer blanks; "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cgroups(controller):
    """This process's cgroup folder for a controller (v2, v1) and all above it: any limit of theirs binds."""
    for line in read_text(OWN_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = CGROUPS / controllers  # v2 has one tree for all controllers and leaves the name empty
        own = base / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if base in (folder, *folder.parents))
