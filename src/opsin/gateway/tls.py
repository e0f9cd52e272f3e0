"""Whether certificate and key can be served, judged before anything listens. uvicorn does the serving."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from opsin.core.problems import Problem
from opsin.gateway.config import GatewayConfig

_SETTINGS = ("gateway.ssl_certfile", "gateway.ssl_keyfile", "gateway.ssl_keyfile_password")


def tls_problems(config: GatewayConfig) -> Iterator[Problem]:
    """What is wrong with the pair, if HTTPS is wanted at all."""
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            yield Problem("--ssl-keyfile: a key alone serves nothing; add --ssl-certfile", _SETTINGS)
        return
    named = (("--ssl-certfile", config.ssl_certfile), ("--ssl-keyfile", config.ssl_keyfile))
    missing = [f"{flag} {path}: there is no such file" for flag, path in named if path and not path.is_file()]
    for text in missing or _pair_problems(config):
        yield Problem(text, _SETTINGS)


def _pair_problems(config: GatewayConfig) -> Iterator[str]:
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True  # without an answer OpenSSL would ask the terminal, and the start would hang
        return config.ssl_keyfile_password.get_secret_value() if config.ssl_keyfile_password else ""

    assert config.ssl_certfile is not None, "the caller has looked"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password)
    except ssl.SSLError as error:
        if asked:
            yield "--ssl-keyfile: the key is encrypted, and --ssl-keyfile-password is missing or does not open it"
        elif error.reason == "KEY_VALUES_MISMATCH":
            yield "--ssl-keyfile: the key does not belong to the certificate in --ssl-certfile"
        else:
            yield "--ssl-certfile, --ssl-keyfile: not a PEM certificate chain and its PEM key"
    except OSError as error:
        yield f"--ssl-certfile, --ssl-keyfile: cannot be read: {error.strerror}"
