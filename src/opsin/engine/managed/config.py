"""What an operator may set about an engine that opsin starts. Knows no engine."""

from __future__ import annotations

import shlex

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ManagedOptions(BaseModel):
    """How the program of an engine is started, watched and ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str | None = Field(
        default=None, description="what to start, as a shell reads it: 'taskset -c 1 /venv/bin/vllm'"
    )
    arguments: tuple[str, ...] = Field(
        default=(), description="words for the engine; flags that opsin does not know are added to them"
    )
    container: bool = Field(
        default=False, description="ramalama: run the engine in its container, not as a process of this machine"
    )
    start_timeout_s: float = Field(
        default=1800.0, gt=0, description="for the engine to load, compile and answer a picture"
    )
    stop_timeout_s: float = Field(
        default=15.0, ge=0, description="for the engine to leave by itself; then it is killed"
    )

    @field_validator("program")
    @classmethod
    def _readable(cls, program: str | None) -> str | None:
        if program is not None and not shlex.split(program):  # which raises ValueError for an open quotation
            raise ValueError("should be a program, with words before its own if need be")
        return program

    @property
    def program_words(self) -> tuple[str, ...]:
        """The program and the words before its own; empty: its usual name."""
        return tuple(shlex.split(self.program or ""))
