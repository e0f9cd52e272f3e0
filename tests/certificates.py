"""Self-signed certificates for loopback, made by OpenSSL's command line."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, *options: str) -> tuple[Path, Path]:
    """Certificate and key as PEM files; ``options`` say how the key is encrypted, by default not at all."""
    folder.mkdir(exist_ok=True)
    chain, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(chain), *(options or ("-nodes",))),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return chain, key
