"""`ringline doctor`: would a ring over these nodes run, and what is in its way?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.engine.doctor.examine import examine
from ringline.engine.doctor.findings import Finding, Grade, would_run
from ringline.errors import CallerError
from ringline.net.endpoint import parse_endpoints
from ringline.net.tls import TlsFiles

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    rpc: Annotated[
        str,
        typer.Option(
            "--rpc", help="Nodes, host:port, separated by commas, in the order of the stages."
        ),
    ],
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at each node and at each way between two, and say what to do where something is wrong.

    A line a check: ok, warning or problem, then what was found, then what to do. Checked are names,
    connections, versions, extension levels, round trips, throughput, memory, one small computation
    compared with this machine's CPU, and whether each node gets through to each other one. Exit
    code 0: a ring over these nodes would run, warnings or not; 1: it would not.
    """
    endpoints = parse_endpoints(rpc)
    if not endpoints:
        raise CallerError("--rpc names no node: give one or more as host:port, with commas")
    findings = examine(endpoints, TlsFiles.chosen(tls_cert, tls_key, tls_ca))
    if as_json:
        print(json.dumps(_as_json(findings), indent=2))
    else:
        for finding in findings:
            print(finding.line())
        print(_verdict(findings))
    raise typer.Exit(0 if would_run(findings) else 1)


def _as_json(findings: list[Finding]) -> dict[str, object]:
    return {"would_run": would_run(findings), "findings": [asdict(f) for f in findings]}


def _verdict(findings: list[Finding]) -> str:
    """The last line: whether a ring would run."""
    grades = [finding.grade for finding in findings]
    problems, warnings = grades.count(Grade.PROBLEM), grades.count(Grade.WARNING)
    if problems:
        return f"a ring over these nodes would not run: {_count(problems, 'problem')}"
    if warnings:
        return f"a ring over these nodes would run, with {_count(warnings, 'warning')}"
    return "a ring over these nodes would run"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
