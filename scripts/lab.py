#!/usr/bin/env python3
"""Sets the course up in .venv and opens it in JupyterLab. Needs Python 3.10 to 3.14 and nothing installed.

    python3 scripts/lab.py                  set up what is missing, open JupyterLab on the first notebook
    python3 scripts/lab.py --check          set up, say what this machine offers, and stop
    python3 scripts/lab.py --clean          remove what this command made

Exit code: 0 fine, 1 a step failed, 2 bad usage or a machine that will not do, 130 interrupted.
"""

import _python  # noqa: F401, I001  first: it stops with a line under a Python that cannot read the rest
import argparse
import getpass
import os
import socket
import subprocess
import sys

import _setup
from _setup import ROOT, Stop, say

NOTEBOOK = "notebooks/00_start_here.ipynb"


def arguments(argv=None):
    text = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=text[0], epilog=text[-1], allow_abbrev=False)
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    parser.add_argument("--port", type=int, help="JupyterLab's port (default: 8888 or the next free one)")
    parser.add_argument("--torch-index", metavar="URL", help="take torch and torchvision from this index")
    parser.add_argument("--check", action="store_true", help="set up, print the machine report, stop")
    parser.add_argument("--clean", action="store_true", help="remove what this command made, stop")
    options = parser.parse_args(argv)
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port {options.port}: a port is a number from 1 to 65535")
    if options.torch_index and not options.torch_index.startswith(("http://", "https://", "file://")):
        parser.error(f"--torch-index {options.torch_index}: an address begins with https://, http:// or file://")
    return options


def free(port):
    """Whether JupyterLab can listen on this port."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(wanted):
    """The port to use. Raises Stop if the wanted one is taken."""
    if wanted:
        if not free(wanted):
            raise Stop(f"port {wanted} is taken (or not yours to use): give another --port, or none", 2)
        return wanted
    port = next(filter(free, range(8888, 8988)), None)
    if port is None:
        raise Stop("ports 8888 to 8987 are all taken: give a free one with --port", 2)
    return port


def tunnel(port, connection):
    """The line to type on one's own computer; None unless this machine is worked on over ssh.

    connection: the value of SSH_CONNECTION, "client port server port".
    """
    words = (connection or "").split()
    if len(words) != 4:
        return None
    return f"ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{words[2]}"


def jupyter(port, browser):
    """JupyterLab's command line."""
    command = [str(_setup.python()), "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}",
               f"--LabApp.default_url=/lab/tree/{NOTEBOOK}", "--ServerApp.ip=127.0.0.1",
               f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:  # as in most containers; Jupyter refuses root unless told
        command.append("--allow-root")
    return command


def run():
    options = arguments()
    if options.clean:
        _setup.clean()
        return 0
    if options.check:
        _setup.prepare(torch_index=options.torch_index)
        report = [_setup.python(), "-m", "ddp_lab", "doctor"]
        return 2 if subprocess.run(report, env=_setup.environment()).returncode else 0
    if not (ROOT / NOTEBOOK).exists():
        raise Stop(f"{NOTEBOOK} is missing from {ROOT}: is this a whole checkout?", 2)
    choose_port(options.port)  # before the long part
    _setup.prepare(torch_index=options.torch_index)
    port = choose_port(options.port)
    line = tunnel(port, os.environ.get("SSH_CONNECTION"))
    if line:
        say(f"a remote machine: on your own computer run\n    {line}\nand open the address below there")
    browser = not options.no_browser and (not line or "DISPLAY" in os.environ)
    say(f"starting JupyterLab on port {port}; Ctrl-C, twice, ends it")
    command = jupyter(port, browser)
    os.chdir(ROOT)
    os.execve(command[0], command, _setup.environment())  # Ctrl-C, output and exit code are JupyterLab's own


if __name__ == "__main__":
    sys.exit(_setup.main(run))
