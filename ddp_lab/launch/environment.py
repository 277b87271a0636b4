"""The environment of a run: the kernel's own, without what would mislead the ranks."""

from __future__ import annotations

import os
import sys
import tempfile

from ddp_lab import limits

# What another launcher, an earlier cell or the kernel itself may have left behind.
_STALE = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "DDP_LAB_RANK_DIR", "DDP_LAB_RUN_DIR"),
    *("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "PYTEST_CURRENT_TEST", "PYTHONSTARTUP"),
}
_STALE_PREFIXES = ("PET_", "TORCHELASTIC_", "JPY_")


def clean() -> dict[str, str]:
    """The kernel's environment without stale settings of launchers, notebooks and colours."""
    env = {k: v for k, v in os.environ.items() if k not in _STALE and not k.startswith(_STALE_PREFIXES)}
    # torch sets this in a kernel that trains, to the folder that each rank would take by itself. Passed on, it would be
    # a change of what torch reads while it is loaded, and each run after it would start cold.
    folder, name = os.path.split(env.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if name.startswith("torchinductor_") and folder == tempfile.gettempdir():
        del env["TORCHINDUCTOR_CACHE_DIR"]
    env["MPLBACKEND"] = "Agg"  # the kernel's own draws into cells
    return env


def clean_path() -> dict[str, str]:
    """As clean(), with this kernel's own `python` and `torchrun` first on the PATH, venv active or not."""
    env = clean()
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    return env


def of_ranks(nproc: int, interface: str | None = None) -> dict[str, str]:
    """The environment of `nproc` ranks on this machine, without the learner's own settings. `interface`: over which
    they talk, by default the loopback.
    """
    env = clean()
    env["OMP_NUM_THREADS"] = str(max(1, limits.cores() // nproc))
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if interface:
            env[name] = interface
        env.setdefault(name, loopback)
    return env
