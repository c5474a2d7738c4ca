"""The command line: ``python -m cudamem_testing COMMAND``. Parsing only. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cudamem_testing", description="Memory tests for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="what can be measured on this machine")
    parser.parse_args(arguments)
    from cudamem_testing.report.doctor import examine

    print("\n".join(examine().lines(header=False)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
