"""What `ringline api` is started with. Times are seconds."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass, field
from pathlib import PurePath

from ringline.api.origins import Origins
from ringline.engine.process.messages import EngineSpec

__all__ = ["ApiOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """The server's options.

    Attributes:
        spec: which engine answers.
        host, port: where it listens; port 0 takes a free one.
        api_keys: one of them has to come with each request; empty: nobody is asked.
        origins: whose pages may use it beside its own.
        alias: the model's name for clients; "": the name of its file.
        grace: how long requests under way may take when the server is asked to end.
        hang: an engine that has not answered for so long is started again.
    """

    spec: EngineSpec
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    origins: Origins = field(default_factory=Origins)
    alias: str = ""
    grace: float = 30.0
    hang: float = 30.0

    @property
    def model_id(self) -> str:
        """The model's name for clients."""
        return self.alias or PurePath(self.spec.model).stem

    @property
    def room(self) -> int:
        """How many texts can be under way and wait; any number where the queue has no bound."""
        queue = self.spec.queue
        return sys.maxsize if queue is None else self.spec.parallel + queue

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
