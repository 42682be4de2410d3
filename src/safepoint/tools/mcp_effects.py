"""What the tools of a server leave in the world: as the user says, or else as the server hints.

    readOnlyHint     pure           a cut call is run again on resume, and stops at no safe point before effects
    destructiveHint  irreversible   a cut call is never run again by itself
    idempotentHint   idempotent     a cut call is run again on resume
    none of them     effectful      a cut call is never run again by itself

The first that is set wins. A tool that destroys and may be repeated counts as one that destroys: to stop before it
matters more than to repeat it. By the protocol an unset destructiveHint means true; most servers set none, so here it
means that nothing is known. Hints are a server's own word. Who does not trust it says the effects here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from safepoint.tools.options import Effect, EffectLike, ToolOptions

if TYPE_CHECKING:
    from mcp_types import ToolAnnotations

McpEffect: TypeAlias = EffectLike | Mapping[str, EffectLike] | None


@dataclass(frozen=True, slots=True)
class Effects:
    """`every`: of all tools; `named`: of single ones, by the server's names. What neither says, the hints say."""

    every: Effect | None = None
    named: Mapping[str, Effect] = field(default_factory=dict[str, Effect])

    @classmethod
    def parse(cls, effect: McpEffect) -> Effects:
        if effect is None:
            return cls()
        if isinstance(effect, Mapping):
            return cls(named={name: _parsed(each) for name, each in effect.items()})
        return cls(every=_parsed(effect))

    def check_names(self, offered: Iterable[str]) -> None:
        names = list(offered)
        if missing := sorted(set(self.named) - set(names)):
            raise ValueError(f"effect={{{missing[0]!r}: …}}: the server has no tool {missing[0]!r}, it has {names}")

    def of(self, name: str, hints: ToolAnnotations | None) -> Effect:
        return self.named.get(name) or self.every or hinted(hints)


def hinted(hints: ToolAnnotations | None) -> Effect:
    """What the hints say, as drawn above."""
    if hints is None:
        return Effect.EFFECTFUL
    if hints.read_only_hint:
        return Effect.PURE
    if hints.destructive_hint:
        return Effect.IRREVERSIBLE
    return Effect.IDEMPOTENT if hints.idempotent_hint else Effect.EFFECTFUL


def _parsed(effect: EffectLike) -> Effect:
    return ToolOptions.parse(effect=effect).effect
