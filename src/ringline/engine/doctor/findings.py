"""What a check has found: one line for people, a value for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Finding", "Grade", "would_run"]


class Grade(StrEnum):
    """How bad it is: a ring runs with warnings, and does not run with a problem."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        grade: how bad it is.
        subject: what it is about: an endpoint, or `endpoint -> endpoint`.
        check: which check, in one word that programs may rely on.
        text: what was found.
        advice: what to do about it; "" where it is well.
        facts: what was measured: times are seconds, sizes bytes.
    """

    grade: Grade
    subject: str
    check: str
    text: str
    advice: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    def line(self) -> str:
        """The finding in one line."""
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.grade:<8} {self.subject}: {self.check}: {self.text}{advice}"


def would_run(findings: Sequence[Finding]) -> bool:
    """Whether a ring would run in spite of all that was found."""
    return not any(finding.grade is Grade.PROBLEM for finding in findings)
