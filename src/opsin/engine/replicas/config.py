"""How requests are shared out among replicas, and when one is left alone. Knows no replica."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RoutingConfig(BaseModel):
    """Policy over replicas of one model; without several it has nothing to decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sticky: bool = Field(
        default=True,
        description="a picture, else the beginning of a conversation, goes where it went before, as its caches are "
        "there; off: always to the replica with the least to do",
    )
    load_bound: float = Field(
        default=1.25,
        ge=1,
        allow_inf_nan=False,
        description="how far above the mean a replica may be loaded before what belongs there goes elsewhere",
    )
    eject_after: int = Field(default=3, ge=1, description="failures in a row after which a replica is left alone")
    eject_s: float = Field(default=5.0, gt=0, description="for so long; twice as long each time that it fails again")
    max_eject_s: float = Field(default=120.0, gt=0, description="at most so long")
    max_retries: int = Field(
        default=2, ge=0, description="other replicas to ask for a request that one has certainly not begun"
    )

    @model_validator(mode="after")
    def _grows(self) -> RoutingConfig:
        if self.max_eject_s < self.eject_s:
            raise ValueError(f"max_eject_s ({self.max_eject_s:g}) should not be less than eject_s ({self.eject_s:g})")
        return self
