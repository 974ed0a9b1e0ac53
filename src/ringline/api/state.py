"""How the engine is doing, and what happened to it lately: values for people and pages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Condition", "EngineState", "LogEntry"]


class Condition(StrEnum):
    """What can be expected of the engine now."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine's condition.

    Attributes:
        condition: starting, ready, lost (it will be started again) or stopping.
        why: a sentence, where there is something to say.
        loaded: share of the model that is loaded, 0 to 1.
    """

    condition: Condition
    why: str = ""
    loaded: float = 0.0


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Something that happened.

    Attributes:
        level: info, warning or error.
        text: a sentence.
        time: seconds since 1970.
    """

    level: str
    text: str
    time: float = field(default_factory=time.time)
