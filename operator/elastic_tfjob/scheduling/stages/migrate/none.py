"""No migration."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.round import Round


@dataclass(frozen=True, slots=True)
class NoMigration:
    def migrate(self, round_: Round) -> None:
        return
