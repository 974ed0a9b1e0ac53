"""The command line of the fuzzer; exit code 0 where there was no fault."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import Limits, replay, run_campaign
from tests.fuzz.cases import Case
from tests.fuzz.frames import run_frames


def main() -> int:
    """Run or replay."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="play the cases of a seed")
    run.add_argument("-n", type=int, default=10_000, help="mutated graphs; default: %(default)s")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for failures")
    again = commands.add_parser("replay", help="play a case that was written down")
    again.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "replay":
        case, outcome = Case.load(options.file), replay(options.file)
        print("\n".join([*case.notes, f"-> {outcome.end}: {outcome.why} {outcome.said}"]))
        return 0
    frames = run_frames(options.seed)
    print(frames.text(), flush=True)
    report = run_campaign(options.seed, Limits(options.n), options.out)
    print(report.text())
    return int(bool(report.faults or frames.faults))


if __name__ == "__main__":
    sys.exit(main())
