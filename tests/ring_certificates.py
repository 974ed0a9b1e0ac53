"""The certificates of a ring for tests, made as `ringline certs` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringline.net.certificates import make_authority, make_certificate
from ringline.net.tls import TlsFiles
from ringline.settings import TLS_VARIABLES


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        make_authority(folder, name=folder.name, days=10)
        return cls(folder)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def machine(
        self,
        name: str = "machine",
        hosts: Sequence[str] = ("127.0.0.1", "::1", "localhost"),
        *,
        days: int = 5,
        trusts: Authority | None = None,
    ) -> TlsFiles:
        """The files of a machine; negative days: expired. It trusts its own CA, or another."""
        made = make_certificate(self.folder, name, hosts, days=days, force=True)
        return TlsFiles(str(made.certificate), str(made.key), (trusts or self).ca)


def flags(files: TlsFiles) -> list[str]:
    """The files as flags of a command."""
    return [f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}"]


def variables(files: TlsFiles) -> dict[str, str]:
    """The files as settings of the environment."""
    return dict(zip(TLS_VARIABLES, (files.cert, files.key, files.ca), strict=True))
