"""Several emulated hosts on this machine, joined by links of a given rate: what is asked for, and if it can be had.

The agent makes them (hosts.py) and starts one torchrun on each, as on real machines: --nnodes, --node-rank.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from ddp_lab.errors import InputError
from ddp_lab.launch import hosts
from ddp_lab.launch.job import Interrupted
from ddp_lab.limits import read_text

MOST_HOSTS = 8
LOWEST, HIGHEST = 10**5, 3 * 10**10
"""Rates of a link, in bit/s. Above, the token bucket's own numbers end; no machine here gets so far without it."""

LONGEST_DELAY = 10**6
"""Of a packet, in microseconds."""

SETTINGS = Path("/proc/sys")
TRY = 15  # seconds for an attempt to emulate hosts; it takes 0.4
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PREFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)}
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"


@dataclass(frozen=True)
class Cluster:
    """`nodes` hosts with `nproc` ranks each; `rate` of a link in bit/s, None for no limit; `delay` in microseconds."""

    nodes: int
    nproc: int
    rate: int | None = None
    delay: int = 0

    def host(self, rank: int) -> int:
        """The host of a rank: torchrun numbers ranks by --node-rank, here the number of the host."""
        return rank // self.nproc

    def options(self, host: int) -> list[str]:
        """torchrun's options on a host, as one would type them there."""
        own = ["--nnodes", str(self.nodes), "--node-rank", str(host), "--nproc-per-node", str(self.nproc)]
        return [*own, "--master-addr", hosts.address(0)]

    def __str__(self) -> str:
        """Such as `2 emulated hosts, joined at 1 Gbit/s`."""
        links = f"joined at {spoken(self.rate)}" if self.rate else "joined without a limit"
        wait = f", {self.delay / 1000:g} ms apart" if self.delay else ""
        return f"{self.nodes} emulated hosts, {links}{wait}"


def of(nodes: int, nproc: int, link: str | int | None, delay: str | None) -> Cluster | None:
    """The cluster that was asked for, None for this machine alone. InputError if it cannot be had."""
    if isinstance(nodes, bool) or not isinstance(nodes, Integral):
        raise InputError(f"nodes={nodes!r} is not a whole number. Write nodes=2.")
    if not 1 <= nodes <= MOST_HOSTS:
        raise InputError(f"nodes={nodes}: a run has 1 to {MOST_HOSTS} hosts.")
    for name, value in (("link", link), ("delay", delay)):
        if nodes == 1 and value is not None:
            raise InputError(f"{name}={value!r} is for several hosts, and there is one. Write nodes=2 as well.")
    if nodes == 1:
        return None
    cluster = Cluster(
        int(nodes), nproc, None if link is None else rate(link), 0 if delay is None else microseconds(delay)
    )
    if why := why_not(bool(cluster.delay)):
        raise InputError(f"nodes={nodes}: {why}")
    return cluster


def rate(link: str | int) -> int:
    """A rate in tc's notation, in bit/s: "1gbit", "200mbit", "1.5gbit", "50mbps" (bytes), "1gibit", 10**9."""
    found = re.fullmatch(_NUMBER + r"(?:([kmgt]i?)?(bit|bps))?\s*", str(link).lower()) if _plain(link) else None
    if found is None:
        raise InputError(f"link={link!r} is no rate. Write one such as link='1gbit' or '200mbit', as tc has them.")
    value = float(found[1]) * _PREFIXES[found[2] or ""] * (8 if found[3] == "bps" else 1)
    if not LOWEST <= value <= HIGHEST:
        raise InputError(
            f"link={link!r} is out of range: {spoken(LOWEST)} to {spoken(HIGHEST)}. Without link there is no limit."
        )
    return round(value)


def microseconds(delay: str) -> int:
    """A time in tc's notation: "20ms", "500us", "0.1s"."""
    found = (
        re.fullmatch(_NUMBER + r"(us|usecs?|ms|msecs?|s|secs?)\s*", delay.lower()) if isinstance(delay, str) else None
    )
    if found is None:
        raise InputError(f"delay={delay!r} is no time. Write one such as delay='20ms'.")
    value = float(found[1]) * {"u": 1, "m": 10**3, "s": 10**6}[found[2][0]]
    if not 1 <= value <= LONGEST_DELAY:
        raise InputError(f"delay={delay!r} is out of range: 1us to {LONGEST_DELAY // 10**6}s. Leave it out for none.")
    return round(value)


def spoken(bits: float) -> str:
    """A rate as people write it: `1 Gbit/s`, `200 Mbit/s`."""
    unit, name = next((unit, name) for unit, name in ((10**9, "Gbit"), (10**6, "Mbit"), (1000, "kbit")) if bits >= unit)
    return f"{bits / unit:g} {name}/s"


def _plain(link: object) -> bool:
    return isinstance(link, (str, Integral)) and not isinstance(link, bool)


def why_not(delay: bool = False) -> str:
    """Why hosts cannot be emulated here (`delay`: with delays), and what to do about it; "" where they can."""
    if sys.platform != "linux":
        return "emulated hosts need Linux and its network namespaces; everything else runs here."
    problem = _attempt()
    if "pyroute2" in problem:
        return "emulated hosts need the package pyroute2, which is not installed here. `pip install pyroute2`."
    if problem:
        return f"emulated hosts need network namespaces, which this machine forbids ({problem}). {cure()}"
    if delay and _attempt("delay"):
        return "delay needs netem, which the kernel of this machine has not. Leave delay out."
    return ""


_worked: set[tuple[str, ...]] = set()


def _attempt(*arguments: str) -> str:
    """What hosts.py says when it is tried: "" if all is well, which it is then tried no more."""
    if arguments in _worked:
        return ""
    command = [sys.executable, str(Path(__file__).with_name("hosts.py"))]
    try:
        with tempfile.TemporaryDirectory() as folder:  # here: what is killed in the midst of it removes none
            done = subprocess.run(
                [*command, folder, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRY
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted while it was tried whether this machine can emulate hosts.") from None
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"{type(error).__name__} when it was tried"
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if not said and not done.returncode:
        _worked.add(arguments)
        return ""
    return said[-1] if said else f"exit code {done.returncode}"


def cure() -> str:
    """What allows network namespaces where a setting of the system forbids them."""
    switches = {  # settings of the kernel that forbid it, and the value with which they allow it
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu from 24.04
        "kernel.unprivileged_userns_clone": ("0", "1"),  # Debian before 11
        "user.max_user_namespaces": ("0", "10000"),  # RHEL
        "user.max_net_namespaces": ("0", "10000"),  # of who forbids these alone
    }
    for name, (forbids, allows) in switches.items():
        if read_text(SETTINGS / name.replace(".", "/")) == forbids:
            return f"`sudo sysctl -w {name}={allows}` allows them until the next boot."
    return "In Docker: `docker run --security-opt seccomp=unconfined --cap-add SYS_ADMIN`."
