"""Mutual TLS 1.3 over a socket, without ever waiting: what a stream or a relay stands on.

A ring has a certificate authority (CA) of its own. Each end shows a certificate of that CA and asks
for one; a client verifies in addition that the certificate is for the name or address that it
dialled. Bytes are encrypted in memory (ssl.MemoryBIO) and moved with large reads and writes, since
OpenSSL on a socket of its own would make two calls into the kernel for every 16 KiB.

Sizes are bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ringline import settings
from ringline.errors import CallerError

__all__ = ["PLAIN", "TlsFiles", "TlsSocket", "in_words"]

#: read from the kernel, and encrypted, at once.
_CIPHERTEXT: Final = 128 * 1024
_PLAINTEXT: Final = 128 * 1024
#: X509_V_ERR_* of OpenSSL, x509_vfy.h.
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
_UNKNOWN_ISSUER: Final = (2, 18, 19, 20, 21)
_CLOCK: Final = "or one of the two clocks is wrong"
#: what the other end says of our certificate, by the names that OpenSSL has for its alerts.
_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate and got none",
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses our certificate: it is not of the CA that it trusts",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"it refuses our certificate: it has expired, {_CLOCK}",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses our certificate: it is not valid there, or not for "
    "the name that was dialled",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it refuses our certificate: it is not meant for this",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses our certificate",
    "TLSV1_ALERT_ACCESS_DENIED": "it refuses our certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it does not speak the TLS of this end",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
}

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files; all empty: no TLS.

    Attributes:
        cert: our certificate; key: its private key.
        ca: certificate of the CA whose certificates we accept.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""

    def __bool__(self) -> bool:
        return bool(self.cert)

    @classmethod
    def chosen(cls, cert: str = "", key: str = "", ca: str = "") -> TlsFiles:
        """What flags say, else what the environment says; all three or none.

        Raises:
            CallerError: one is missing.
        """
        files = tuple(map(str, (cert, key, ca)))
        if not any(files):
            files = settings.tls_files()
        if any(files) and not all(files):
            missing = [
                f"--tls-{name} ({variable})"
                for name, variable, file in zip(
                    ("cert", "key", "ca"), settings.TLS_VARIABLES, files, strict=True
                )
                if not file
            ]
            verb = "is" if len(missing) == 1 else "are"
            raise CallerError(
                f"TLS needs a certificate, its key and the CA: {' and '.join(missing)} "
                f"{verb} missing; `ringline certs` makes them"
            )
        return cls(*files)

    def client_context(self) -> ssl.SSLContext:
        """For a connection that we open; read from the files now, so a renewed one counts at once.

        Raises:
            CallerError: a file cannot be used.
        """
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def server_context(self) -> ssl.SSLContext:
        """For connections that others open: they have to show a certificate.

        Raises:
            CallerError: a file cannot be used.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a ticket would look like a reply that nobody asked for
        return context

    def check(self) -> str:
        """Whether our own certificate would be accepted by our own CA; until when it is valid.

        Raises:
            CallerError: a file cannot be used, or the certificate would be refused; says why.
        """
        client, server = self.client_context(), self.server_context()
        client.check_hostname = False
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = client.wrap_bio(back, there)
        theirs = server.wrap_bio(there, back, server_side=True)
        try:
            for end in (ours, theirs, ours, theirs):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLError as error:
            raise CallerError(
                f"the certificate {self.cert} cannot be used with the CA {self.ca}: "
                f"{in_words(error)}"
            ) from None
        return str((ours.getpeercert() or {}).get("notAfter", ""))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for what, file in (("certificate", self.cert), ("key", self.key), ("CA", self.ca)):
            _check_readable(what, file)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise CallerError(
                f"the certificate {self.cert} and the key {self.key} cannot be used ({reason}): "
                "they have to be PEM files that belong together, the key without a pass phrase"
            ) from None
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise CallerError(
                f"the CA {self.ca} cannot be used ({error.reason}): it has to be a PEM file with "
                "a certificate"
            ) from None
        return context


#: no TLS, whatever the environment says.
PLAIN: Final = TlsFiles()


def _check_readable(what: str, file: str) -> None:
    try:
        with open(file, "rb"):
            return
    except OSError as error:
        raise CallerError(f"the TLS {what} {file} cannot be read: {error.strerror}") from None


def _no_password() -> str:
    raise ValueError("it has a pass phrase")


def in_words(error: OSError) -> str:
    """What an error of TLS means, in words that follow the name of the other end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error)
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection in the handshake of TLS"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _ALERTS.get(reason, f"TLS failed ({reason or error})")
    return error.strerror or str(error)


def _verification(error: ssl.SSLCertVerificationError) -> str:
    """Why we refuse the other end's certificate."""
    code, message = error.verify_code, error.verify_message
    if code == _EXPIRED:
        return f"its certificate has expired, {_CLOCK}"
    if code == _NOT_YET_VALID:
        return f"its certificate is not valid yet, {_CLOCK}"
    if code in _UNKNOWN_ISSUER:
        return "its certificate is not of the CA that we trust (--tls-ca)"
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        text = message.rstrip(".").partition(", ")[2] or message
        return f"its certificate is for another name: {text}"
    return f"its certificate is refused ({message})"


class TlsSocket:
    """A non-blocking socket with TLS on it, used like a socket.

    Where it would have to wait it raises BlockingIOError. As with a socket, what was not taken has
    to be offered again, the same bytes first: they may be encrypted already.

    One thread may read while another one writes. `_lock` guards the state of TLS, which both
    change; it is held across calls into OpenSSL and the kernel that never wait.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin; handshake() does the rest.

        Args:
            sock: connected; ours from now on.
            context: see TlsFiles.
            server_side: whether the other end has dialled.
            name: the host name or address that was dialled, which the certificate must have.
        """
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=name
        )
        self._received = memoryview(bytearray(_CIPHERTEXT))
        self._unsent = memoryview(b"")
        #: bytes that are encrypted and not yet reported as sent.
        self._owed = 0

    def handshake(self) -> bool:
        """Take the handshake as far as it goes now; whether it is over.

        Raises:
            ssl.SSLError: it failed; the other end is told. OSError: the connection is lost.
        """
        with self._lock:
            try:
                while True:
                    try:
                        self._tls.do_handshake()
                        return self._push()
                    except ssl.SSLWantReadError:
                        self._push()
                        self._pull()
            except BlockingIOError:
                return False
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._push()
                raise

    @property
    def unsent(self) -> bool:
        """Whether encrypted bytes wait until the kernel takes them."""
        return bool(self._unsent) or self._outgoing.pending > 0

    def peer_name(self) -> str:
        """The common name of the other end's certificate, "" where it has none."""
        subject: Any = (self._tls.getpeercert() or {}).get("subject", ())
        entries = dict(entry for group in subject for entry in group)
        return str(entries.get("commonName", ""))

    def pending(self) -> int:
        """Bytes, plain or encrypted, that poll() does not know of."""
        return self._tls.pending() + self._incoming.pending

    def recv_into(self, target: memoryview) -> int:
        """Read what is there, at most the size of `target`; 0 at the end.

        Raises:
            BlockingIOError: nothing is there. OSError: the connection is lost, or was refused.
        """
        done = 0
        with self._lock:
            while done < len(target):
                try:
                    count = self._tls.read(len(target) - done, target[done:])
                except ssl.SSLWantReadError:
                    if done:
                        break
                    self._pull()
                    continue
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    break
                if not count:
                    break
                done += int(count)
        return done

    def sendmsg(self, parts: Sequence[Bytes]) -> int:
        """Send some of what the parts hold, in order; how many bytes.

        Raises:
            BlockingIOError: the kernel does not take it now. OSError: the connection is lost.
        """
        with self._lock:
            if not self._owed:
                if not self._push():
                    raise BlockingIOError
                self._owed = self._encrypt(parts)
            if not self._push():
                raise BlockingIOError
            sent, self._owed = self._owed, 0
            return sent

    def end_writing(self) -> None:
        """Say that nothing more comes, and go on reading.

        Raises:
            OSError: the connection is lost.
        """
        with self._lock:
            self._say_goodbye()
            self._socket.shutdown(socket.SHUT_WR)

    def fileno(self) -> int:
        """The file descriptor of the socket below."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """End the connection below."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Say goodbye if that needs no waiting, and close."""
        with contextlib.suppress(OSError, ValueError):
            if self._lock.acquire(blocking=False):
                try:
                    self._say_goodbye()
                finally:
                    self._lock.release()
        self.forget()

    def forget(self) -> None:
        """Close our copy of the socket and say nothing: another process has it."""
        self._socket.close()

    def _say_goodbye(self) -> None:
        """Send close_notify, not waiting for an answer; unwrap() would eat what is not read yet."""
        if not self._owed and not self.pending():
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        self._push()

    def _encrypt(self, parts: Sequence[Bytes]) -> int:
        done = 0
        for part in parts:
            piece = memoryview(part)[: _PLAINTEXT - done]
            if len(piece):
                done += self._tls.write(piece)
            if done == _PLAINTEXT:
                break
        return done

    def _pull(self) -> None:
        """Take encrypted bytes from the kernel; raises BlockingIOError where there are none."""
        count = self._socket.recv_into(self._received)
        if count:
            self._incoming.write(self._received[:count])
        else:
            self._incoming.write_eof()

    def _push(self) -> bool:
        """Give encrypted bytes to the kernel; whether it has taken all."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return False
