"""`python -m ddp_lab doctor`: what this machine offers for the course, and what to do about what it lacks."""

import argparse
import sys


def main(argv=None):
    """Exit code 0 if the machine can run the course, 2 if not or if the command is unknown."""
    parser = argparse.ArgumentParser(prog="python -m ddp_lab", description="DDP Lab's own commands.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("doctor", help="report what this machine offers, what it means, and cures")
    if parser.parse_args(argv).command is None:
        parser.print_help()
        return 0

    from ddp_lab.doctor import SETUP, examine

    try:
        report = examine(full=True)
    except ModuleNotFoundError as missing:
        print(f"{sys.executable} has no {missing.name}: the course is not installed for this Python.")
        print(f"cure: `{SETUP}` installs it in .venv; then `.venv/bin/python -m ddp_lab doctor`.")
        return 2
    print(report)
    return 0 if report.fit else 2


if __name__ == "__main__":
    sys.exit(main())
