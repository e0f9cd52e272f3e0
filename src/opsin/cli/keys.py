"""``opsin keys``: makes, lists and revokes API keys. A running server sees the change within a second."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from opsin import tenancy
from opsin.cli.flags import add_flags, read
from opsin.core.errors import ConfigError
from opsin.names import Flag, Group
from opsin.tenants.keys import NO_LIMITS, ApiKey, Limits, new_key
from opsin.tenants.store import KeyStore, StoreUnreachable

_WHERE = Group(
    "where keys are kept; stated once in opsin.toml, no command needs it",
    (Flag("gateway.api_keys_file"), Flag("gateway.api_keys_in_redis"), Flag("redis_url")),
)
_EXAMPLES = """\
opsin keys create acme --api-keys-file keys.jsonl --expires 90d --image-tokens-per-minute 100000
opsin keys create ops --api-keys-file keys.jsonl --admin
opsin keys list --api-keys-file keys.jsonl
opsin serve --api-keys-file keys.jsonl"""
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}


def add(command: argparse.ArgumentParser) -> None:
    """Its three commands."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = _EXAMPLES
    commands = command.add_subparsers(dest="_what", required=True, metavar="COMMAND")
    create = _command(commands.add_parser("create", help="make a key and print it, once"), "TENANT")
    create.add_argument("_tenant", metavar="TENANT", help="whose key it is; all keys of a tenant see the same data")
    create.add_argument("--expires", dest="_lifetime_s", type=lifetime_s, metavar="TIME", help="from now: 12h, 90d")
    create.add_argument("--admin", dest="_admin", action="store_true", help="may use the routes of admins too")
    limits = create.add_argument_group(
        "limits of the tenant for who sends this key; default: those of its newest key, else of --tenant-limits"
    )
    for name, field in Limits.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        limits.add_argument(flag, dest=f"_{name}", type=limit, metavar="N", help=field.description)
    listed = _command(commands.add_parser("list", help="every key by its id, never the key itself"), "")
    listed.add_argument("--json", dest="_json", action="store_true", help="print keys as JSON")
    revoke = _command(commands.add_parser("revoke", help="let keys open nothing any more"), "ID…")
    revoke.add_argument("_ids", nargs="+", metavar="ID", help="as 'opsin keys list' shows them")
    for one in (create, listed, revoke):
        add_flags(one, _WHERE)


def run(args: argparse.Namespace) -> int:
    """Runs one of them; returns the exit status."""
    settings = read(args).checked()
    store = tenancy.key_store(settings)
    if store is None:
        raise ConfigError("where are the keys? --api-keys-file FILE, or --redis-url URL --api-keys-in-redis")
    try:
        return asyncio.run(_run(args, store))
    except StoreUnreachable as error:
        raise ConfigError(str(error)) from None


async def _run(args: argparse.Namespace, store: KeyStore) -> int:
    try:
        match args._what:
            case "create":
                return await _create(args, store)
            case "list":
                return _show(await store.all(), as_json=args._json)
            case _:
                return await _revoke(args._ids, store)
    finally:
        await store.close()


async def _create(args: argparse.Namespace, store: KeyStore) -> int:
    stated = Limits(**{name: getattr(args, f"_{name}") for name in Limits.model_fields})
    last = await store.newest(args._tenant, time.time())
    limits = stated.over(last.limits) if last else stated
    key, kept = new_key(args._tenant, lifetime_s=args._lifetime_s, admin=args._admin, limits=limits)
    await store.add(kept)
    print(key)
    print(f"opsin: key {kept.id} of {kept.tenant}; it is kept nowhere, so store it now", file=sys.stderr)
    if last and (taken := _limits(last.limits, without=stated)):
        print(f"opsin: limits as those of key {last.id}: {', '.join(taken)}", file=sys.stderr)
    return 0


async def _revoke(ids: Sequence[str], store: KeyStore) -> int:
    status = 0
    for key_id in ids:
        key = await store.remove(key_id)
        told = f"no key {key_id}" if key is None else f"revoked {key.id} of {key.tenant}"
        print(f"opsin: {told}", file=sys.stderr)
        status = status or int(key is None)
    return status


def _show(keys: Sequence[ApiKey], *, as_json: bool) -> int:
    if as_json:
        shown = [key.model_dump(mode="json", exclude={"digest"}, exclude_none=True) for key in keys]
        print(json.dumps(shown))
        return 0
    table = Table(
        Column("id", no_wrap=True),
        Column("tenant", overflow="fold"),
        "admin",
        Column("created,\nexpires (UTC)", no_wrap=True),
        Column("limits", min_width=max(map(len, Limits.model_fields)), overflow="fold"),
    )
    now = time.time()
    for key in keys:
        limits = "\n".join(_limits(key.limits))
        expires = "never" if key.expires is None else _date(key.expires)
        if key.has_expired(now):
            expires += "\nexpired"
        times = f"{_date(key.created)}\n{expires}"
        table.add_row(key.id, escape(key.tenant), "yes" if key.admin else "", times, limits)
    Console().print(table)
    return 0


def _limits(limits: Limits, without: Limits = NO_LIMITS) -> list[str]:
    """One by one, but those that ``without`` has too."""
    left_out = without.model_dump(exclude_none=True)
    return [f"{name} {value}" for name, value in limits.model_dump(exclude_none=True).items() if name not in left_out]


def limit(text: str) -> int:
    """At least 1. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no limit: a whole number, at least 1; without the flag it is that of the tenant's newest key"
        )
    return int(text)


def lifetime_s(text: str) -> int:
    """``90d``, ``12h``, ``30m`` in seconds. Raises argparse.ArgumentTypeError."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 30m, 12h and 90d are")
    return int(found[1]) * _UNITS_S[found[2]]


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _command(command: argparse.ArgumentParser, words: str) -> argparse.ArgumentParser:
    command.usage = " ".join(filter(None, (command.prog, words, "[flags, see --help]")))
    command.allow_abbrev = False
    command.set_defaults(_parser=command)
    return command
