"""What the operator commands a pod's launcher: a level, not an event; see docs/architecture.md."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass
class Command:
    """What the operator wants, by the annotation that the kubelet shows as a file."""

    action: str
    generation: int = 0
    mode: str = "overlap"
    tf_config: str | None = None
    timeout_s: float = 120.0
    request: int = 0  # which stop of the job a `save` is for

    @classmethod
    def parse(cls, text: str) -> Command:
        """Raises ValueError."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("action") not in ("prepare", "switch", "run", "save", "stop"):
            raise ValueError(f"no such command: {text[:200]}")
        if raw["action"] == "stop":
            return cls("stop")
        tf_config = raw.get("tf_config")
        if (
            isinstance(raw.get("generation"), bool)
            or not isinstance(raw.get("generation"), int)
            or raw["generation"] < 0
        ):
            raise ValueError(f"generation: {raw.get('generation')!r}")
        if tf_config is not None and not isinstance(tf_config, str):
            raise ValueError("tf_config is no text")
        if raw.get("mode", "overlap") not in ("overlap", "spare"):
            raise ValueError(f"mode: {raw['mode']!r}")
        return cls(
            raw["action"],
            raw["generation"],
            raw.get("mode", "overlap"),
            tf_config,
            float(raw.get("timeout_s") or 120.0),
            int(raw.get("request") or 0),
        )
