"""What bars the return of a node that is excluded: one question about one moment. Pure. `exclusion.py` has the rules as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwarden.health.model import Advice, Finding
from gpuwarden.policy import reasons
from gpuwarden.policy.events import Lifted
from gpuwarden.policy.model import Act, NodeState, Settings, Why
from gpuwarden.policy.notices import imminent
from gpuwarden.policy.preconditions import same
from gpuwarden.policy.requirement import Answer, Requirement
from gpuwarden.policy.situation import Situation, overridden
from gpuwarden.policy.state import Hold, PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NEEDS_PERSON = frozenset({Advice.INSPECT_HARDWARE, Advice.CONTACT_SUPPORT})
"""Advice whose finding may go away while its cause stays. That a configuration was mended, or a GPU reset, shows by itself."""
DAY = 86_400.0
ONLY_A_PERSON = "only a person restores it (gpuwarden restore)"


@dataclass(frozen=True, slots=True)
class WayBack:
    """The way back at one moment of a decision. `answers` takes what requirements of features say."""

    state: PolicyState
    seen: Situation
    settings: Settings
    now: Stamp
    answers: dict[str, Answer]

    def requirements(self) -> Mapping[str, Requirement]:
        """Return what features demand before a return: nothing in mode observe, in which nothing returns."""
        return self.state.requirements if self.settings.enforce else {}

    def _applying(self) -> Mapping[str, Requirement]:
        """Note the answers of those that demand something of this exclusion, and return these."""
        applying = {name: requirement for name, requirement in self.requirements().items() if requirement.applies}
        self.answers.update({name: requirement.answer(self.seen, self.now) for name, requirement in applying.items()})
        return applying

    def bars(self, hold: Hold) -> str:
        """Why what we hold may not be lifted without a person, or not yet; "" if it may."""
        if why := self._needs_person(hold):
            return "; ".join((f"{why}: {ONLY_A_PERSON}", *self._standing_of_requirements(hold)))
        settings = self.settings
        if self._outlived(hold) and self.now.boottime < settings.horizon:
            return f"its end was announced before this boot: it comes back when the machine has been up for {settings.horizon:.0f} s"
        if not self.clean():
            if forced := overridden(self.state, self.seen.verdict):
                ids = ids_of(forced)
                return f"{ids}: overridden, and still active, so that it comes back when that has ended, or by gpuwarden restore --force"
            return f"it comes back after {settings.restore_passes} clean passes in a row, {self.state.clean} so far"
        if hold.by_failure and self._elapsed(hold) < settings.restore_after:
            return f"it comes back when it has been out for {settings.restore_after:.0f} s"
        return next((text for name in self._applying() if (text := self.answers[name].text)), "")

    def _standing_of_requirements(self, hold: Hold) -> list[str]:
        """Return where the requirements stand while the node waits for a person, who must know it."""
        if hold.why is Why.OPERATOR or not self.clean():
            return []
        return [requirement.standing(self.seen, self.now) for requirement in self._applying().values()]

    def _needs_person(self, hold: Hold) -> str:
        if hold.why is Why.OPERATOR:
            return "an operator excluded it"
        if self.state.person:
            return next(filter(None, self.state.person.values()), "it was excluded for what needs a person")
        if hold.why is Why.TERMINATION and not (hold.released or self._meant_now(hold) or self._outlived(hold)):
            return "its end was announced in an earlier boot"
        if not hold.by_failure:
            return ""
        lately = [wall for wall in self.state.returns if self.now.wall - DAY < wall <= self.now.wall]
        return f"it came back {len(lately)} times within a day" if len(lately) >= self.settings.restores_per_day else ""

    def clean(self) -> bool:
        """True after so many healthy passes in a row that they are no accident."""
        return self.state.clean >= self.settings.restore_passes

    def _outlived(self, hold: Hold) -> bool:
        """True if the announced end was a reboot, or a move to another host, and this is the same machine after it.

        What a source announced was at most `horizon` away, so that a boot that has lasted for longer came after it. An end that is
        still to come is announced again. What an operator announced is an operator's to call off.
        """
        return hold.outlived and not hold.released and not self._meant_now(hold)

    def _meant_now(self, hold: Hold) -> bool:
        """True if the exclusion is for an end of this very boot, so that the end was called off if none is imminent."""
        boot = self.seen.boot_id
        return bool(reasons.boot_name(boot)) and hold.reason == reasons.termination(boot, self.seen.instance)

    def _elapsed(self, hold: Hold) -> float:
        if hold.boot_id == self.seen.boot_id:
            return self.now.boottime - hold.at.boottime
        return self.now.wall - hold.at.wall

    def replaces(self, node_state: NodeState) -> bool:
        """True if the termination that stands was another machine's, which this one has replaced, and this one is
        healthy.
        """
        boot, instance = reasons.boot_name(self.seen.boot_id), reasons.instance_name(self.seen.instance)
        others = bool(node_state.boot and boot and node_state.boot != boot)
        others = others and bool(node_state.instance and instance and node_state.instance != instance)
        return node_state.why is Why.TERMINATION and others and self.seen.ready and self.state.clean > 0

    def would(self, name: str) -> Hold | None:
        """The exclusion that would be held if mode observe did not prevent it."""
        would = self.state.would.get(name)
        if self.settings.enforce or would is None or would.act is Act.RESTORE:
            return None
        released = (
            would.why is Why.TERMINATION and imminent(self.state.notices, self.settings.horizon, self.now) is None
        )
        return Hold(actuator=name, why=would.why, reason=would.reason, at=would.at, boot_id="", released=released)

    def shown_again(self, name: str, node_state: NodeState) -> Lifted | None:
        """The exclusion that was lifted last, if the scheduler shows it once more."""
        before = self.state.restored.get(name)
        again = (
            before is not None and not node_state.suffix and same(before.reason or "", before.since or 0.0, node_state)
        )
        return before if again else None


def ids_of(findings: Sequence[Finding]) -> str:
    more = f" and {len(findings) - 3} more" if len(findings) > 3 else ""
    return ", ".join(str(finding.key) for finding in findings[:3]) + more


def not_confirmed(findings: Sequence[Finding]) -> str:
    return f"{ids_of(findings)}: remembered from before gpuwarden started, not confirmed yet by its collector and the kernel log"
