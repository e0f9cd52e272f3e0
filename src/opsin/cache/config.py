"""Where pictures are kept between requests, how much of them and for how long. Knows no tier and no environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from opsin.cache.tombstones import TOMBSTONE_TTL_S


class CacheConfig(BaseModel):
    """Sizes are bytes, times seconds. Nothing is written to disk or sent to Redis unless that is configured."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    memory_bytes: int = Field(default=64 * 2**20, ge=0)
    """Of this process, for pictures from URLs, rendered and scaled pictures; 0 keeps none."""
    dir: Path | None = None
    """Folder for the same on disk, of this process alone; files are readable by its user only."""
    dir_bytes: int = Field(default=2**30, ge=0)
    """Of that folder, uploaded files apart."""
    max_bytes_per_tenant: int | None = Field(default=None, ge=1)
    """What one tenant may keep in each tier; a full one loses its own oldest. Default: all of memory or folder, and
    256 MiB of Redis."""
    max_value_bytes: int = Field(default=32 * 2**20, ge=1)
    """A larger value is kept in memory only."""
    ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds after which what is kept goes."""
    url_ttl_s: float = Field(default=60.0, ge=0)
    """How long at most a picture from a URL is used without asking its server again; less where the server says so."""
    tombstone_ttl_s: float = Field(default=TOMBSTONE_TTL_S, gt=0)
    """How long a deleted picture is kept out of all caches, work in flight included; not less than
    gateway.request_timeout_s."""
    redis_timeout_s: float = Field(default=0.5, gt=0)
    """For one call; Redis slower than that is a miss."""
    file_ttl_s: float = Field(default=24 * 3600.0, gt=0)
    """Seconds after which an uploaded file goes, unless its upload asks for less."""
    file_bytes: int = Field(default=256 * 2**20, ge=0)
    """Of uploaded files in memory or on disk, all tenants together; one more is refused. 0: no uploads."""
    max_file_bytes_per_tenant: int = Field(default=128 * 2**20, ge=0)
    """Of one tenant's uploaded files."""
    max_files_per_tenant: int = Field(default=1000, ge=0)
    """How many that may be: the list of them is read with each upload."""
