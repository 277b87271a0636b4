"""What processes have sent and received over TCP: a download into memory shows in no other count of Linux."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable

# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_INET_DIAG_INFO, _ALL_STATES = 2, 0xFFF
_HEADER, _MESSAGE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=4B48s5I"), struct.Struct("=HH")
_BYTES = struct.Struct("=QQ")
_BYTES_AT = 120  # of tcpi_bytes_acked, then tcpi_bytes_received, in struct tcp_info


def of(pids: Iterable[int]) -> int:
    """Bytes that the open TCP connections of these processes have carried, both ways, or the interfaces of the emulated
    hosts that they run on; 0 where nothing tells.
    """
    pids = list(pids)
    mine = set().union(*map(_inodes, pids))
    if not mine:
        return 0
    try:
        return sum(carried for inode, carried in _connections() if inode in mine) + _on_other_hosts(pids)
    except (OSError, AttributeError, struct.error):  # another system, or one that forbids to ask
        return 0


def _on_other_hosts(pids: list[int]) -> int:
    """What the interfaces of the network namespaces of these processes have carried, our own left out."""
    hosts = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            hosts[os.readlink(f"/proc/{pid}/ns/net")] = pid
    hosts.pop(os.readlink("/proc/self/ns/net"), None)
    carried = 0
    for pid in hosts.values():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/dev") as table:
            rows = [line.partition(":")[2].split() for line in table if ":" in line]
            carried += sum(int(row[0]) + int(row[8]) for row in rows)
    return carried


def _inodes(pid: int) -> set[int]:
    """The sockets that a process has open, by their inodes."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _connections():
    """Yield (inode, bytes carried) of all TCP connections that this process may see."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
            diag.settimeout(1)
            body = struct.pack("=4BI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
            diag.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
            while data := diag.recv(1 << 20):
                while len(data) >= _HEADER.size:
                    size, kind = _HEADER.unpack_from(data)[:2]
                    if kind in (_DONE, _ERROR):
                        break
                    yield _read(data[_HEADER.size : size])
                    data = data[size + 3 & ~3 :]
                else:
                    continue
                break


def _read(message: bytes) -> tuple[int, int]:
    inode, at = _MESSAGE.unpack_from(message)[-1], _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INET_DIAG_INFO and size >= _ATTRIBUTE.size + _BYTES_AT + _BYTES.size:
            return inode, sum(_BYTES.unpack_from(message, at + _ATTRIBUTE.size + _BYTES_AT))
        at += max(size + 3 & ~3, _ATTRIBUTE.size)
    return inode, 0
