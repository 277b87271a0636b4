"""Emulated hosts: processes with a network stack and a host name of their own, joined by links of a given rate.

All of it is the system's own (Linux): a user namespace, so that no root is needed and nothing of the machine changes;
in it a network namespace with a bridge, the switch; and for each host another one, joined to the switch by a veth pair
with a token bucket at both ends. The namespaces end with the last process in them.

`python hosts.py FOLDER [delay]` tries it (`delay`: with delays too), with its files in FOLDER: it prints why it does
not work here, or nothing.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the folder of this file: it must hide nobody's modules

import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

BURST = 256 << 10
"""Bytes that pass a token bucket at once. With less it does not reach 1 Gbit/s: segments of 64 KiB come several at a
time, and the bucket is filled at the timer's ticks.
"""

_QUEUE = 0.05  # seconds that a packet waits for tokens at most
INTERFACE = "eth0"
"""A host's end of its link."""

_PORT, _SWITCH = "port{}", "switch"
_NEWNS, _NEWUTS, _NEWUSER, _NEWNET = 0x20000, 0x4000000, 0x10000000, 0x40000000  # linux/sched.h
_BIND = 0x1000  # sys/mount.h
_FINE = b"."


def name(host: int) -> str:
    """The name of a host, as socket.gethostname() has it there."""
    return f"host{host}"


def address(host: int) -> str:
    """The IPv4 address of a host in the emulated network."""
    return f"10.77.0.{host + 1}"


class Network:
    """The switch: this process moves into namespaces of its own, which its children share. It must have one thread.

    `rate` of each link in bit/s, None for no limit; `delay` of each packet in microseconds, from host to host.
    `folder`: where the file goes that stands for /etc/hosts. Raises OSError where the system forbids it.
    """

    def __init__(self, hosts: int, folder: Path, rate: int | None = None, delay: int = 0):
        self._rate, self._delay = rate, delay
        self._names = folder / "hosts"
        self._kept: list[int] = []  # namespaces: with a host's own would go its port, and the port's counters
        # Names for the addresses as torch's IPv6 sockets see them, too.
        own = [f"{form}{address(host)} {name(host)}" for form in ("", "::ffff:") for host in range(hosts)]
        self._names.write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *own, ""]))
        user, group = os.geteuid(), os.getegid()
        _unshare(_NEWUSER | _NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with _netlink() as net:
            net.link("set", index=1, state="up")
            # Without snooping it does not go out for multicast routers: as in _silence().
            net.link("add", ifname=_SWITCH, kind="bridge", br_forward_delay=0, br_mcast_snooping=0)
            _silence(net, _SWITCH)
            net.link("set", index=socket.if_nametoindex(_SWITCH), state="up")

    def start(self, host: int, main: Callable[[], int]) -> int:
        """Fork a host, in which `main` runs and returns its exit code. Returns its pid. Raises OSError where a part of
        it cannot be had.
        """
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                self._be_host(host, theirs, parent)
                code = main()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code & 0xFF)
        theirs.close()
        with ours:
            _hear(ours)  # it has its namespaces
            self._kept.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            self._plug(host, pid)
            ours.send(_FINE)
            _hear(ours)  # its end of the link is up
        return pid

    def _plug(self, host: int, pid: int) -> None:
        port = _PORT.format(host)
        with _netlink() as net:
            net.link("add", ifname=port, kind="veth", peer={"ifname": INTERFACE, "net_ns_pid": pid})
            _silence(net, port)
            net.link("set", index=socket.if_nametoindex(port), master=socket.if_nametoindex(_SWITCH), state="up")
            self._shape(net, port)

    def _be_host(self, host: int, switch: socket.socket, parent: int) -> None:
        from ddp_lab.launch import processes

        processes.die_with_parent(parent)
        with switch:
            try:
                _unshare(_NEWNET | _NEWUTS | _NEWNS)
                socket.sethostname(name(host))
                if os.path.exists("/etc/hosts"):
                    _bind(self._names, "/etc/hosts")
                switch.send(_FINE)
                _hear(switch)  # the cable is in
                with _netlink() as net:
                    net.link("set", index=1, state="up")
                    index = socket.if_nametoindex(INTERFACE)
                    _silence(net, INTERFACE)
                    net.addr("add", index=index, address=address(host), prefixlen=24)
                    net.link("set", index=index, state="up")
                    self._shape(net, INTERFACE, delay=self._delay)
                switch.send(_FINE)
            except Exception as error:
                switch.send(f"{name(host)}: {error}".encode())
                os._exit(1)

    def _shape(self, net, interface: str, delay: int = 0) -> None:
        index, parent = socket.if_nametoindex(interface), {}
        if delay:
            net.tc("add", "netem", index, handle=0x10000, delay=delay, limit=100_000)
            parent = {"parent": 0x10001}
        if self._rate:
            rate = self._rate // 8
            wait = f"{_QUEUE * 1000:.0f}ms"
            net.tc("add", "tbf", index, handle=0x20000, rate=rate, burst=BURST, latency=wait, **parent)

    def wire(self) -> list[dict]:
        """What has gone over each host's interface so far: host, interface, sent, received (bytes, with headers)."""
        counters = {}
        for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
            interface, _, numbers = line.partition(":")
            counters[interface.strip()] = numbers.split()
        ports = [counters[_PORT.format(host)] for host in range(len(self._kept))]
        return [  # what the port has received, the host has sent
            {"host": host, "interface": INTERFACE, "sent": int(port[0]), "received": int(port[8])}
            for host, port in enumerate(ports)
        ]


def _hear(other: socket.socket) -> None:
    said = other.recv(1 << 12)
    if said != _FINE:
        raise OSError(said.decode() or "it has ended")


def _netlink():
    from pyroute2 import IPRoute

    return IPRoute()


def _silence(net, interface: str) -> None:
    """Give an interface no IPv6 address. It would announce it for seconds, and ask for routers: bytes in wire() that no
    rank has sent, and a sign of life to whoever looks for one.
    """
    if not os.path.exists("/proc/self/net/if_inet6"):
        return  # a kernel without IPv6, which would refuse it
    no_address = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]})]}
    net.link("set", index=socket.if_nametoindex(interface), IFLA_AF_SPEC=no_address)


def _unshare(what: int) -> None:
    _call("unshare", what)


def _bind(file: Path, over: str) -> None:
    _call("mount", os.fsencode(file), over.encode(), None, ctypes.c_ulong(_BIND), None)


def _call(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def attempt(folder: Path, delay: bool) -> str:
    """Emulate two hosts that exchange a byte, in this process, which is of no other use afterwards. Returns "" where it
    worked, else why not.
    """

    def listen() -> int:
        with socket.create_server((address(0), 1000)) as server:
            server.settimeout(5)
            os.write(told[1], b".")
            with server.accept()[0] as link:
                return int(link.recv(1) != b".")

    def call() -> int:
        os.read(told[0], 1)
        with socket.create_connection((address(0), 1000), timeout=5) as link:
            link.send(b".")
        return 0

    told = os.pipe()
    try:
        network = Network(2, folder, rate=10**9, delay=1000 * delay)
        pids = [network.start(0, listen), network.start(1, call)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if codes == [0, 0] else "two emulated hosts could not reach each other"


if __name__ == "__main__":
    signal.alarm(10)
    print(attempt(Path(sys.argv[1]), "delay" in sys.argv[2:]))
