"""Whether an excluded node may be restored now, and if not, why. Pure. `exclusion.py` has all the rules."""

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
"""Advice for findings that may end while their cause remains. Other repairs, such as a GPU reset, show in the readings.
"""
DAY = 86_400.0
ONLY_A_PERSON = "only a person restores it (gpuwarden restore)"


@dataclass(frozen=True, slots=True)
class WayBack:
    """The rules for restoring the node, applied to one moment of a decision. `answers` collects those of features'
    requirements.
    """

    state: PolicyState
    seen: Situation
    settings: Settings
    now: Stamp
    answers: dict[str, Answer]

    def requirements(self) -> Mapping[str, Requirement]:
        """Return the requirements of features; none in mode observe, in which nothing is restored."""
        return self.state.requirements if self.settings.enforce else {}

    def _applying(self) -> Mapping[str, Requirement]:
        """Return the requirements that apply to this exclusion, and store their answers."""
        applying = {name: requirement for name, requirement in self.requirements().items() if requirement.applies}
        self.answers.update({name: requirement.answer(self.seen, self.now) for name, requirement in applying.items()})
        return applying

    def bars(self, hold: Hold) -> str:
        """Why this exclusion may not be lifted yet, or not without a person; "" if it may."""
        if why := self._needs_person(hold):
            return "; ".join((f"{why}: {ONLY_A_PERSON}", *self._standing_of_requirements(hold)))
        settings = self.settings
        if self._outlived(hold) and self.now.boottime < settings.horizon:
            return f"its end was announced before this boot: it comes back when the machine has been up for {settings.horizon:.0f} s"
        if not self.clean():
            if forced := overridden(self.state, self.seen.verdict):
                ids = ids_of(forced)
                return f"{ids}: overridden, but still active: it comes back when they have ended, or by gpuwarden restore --force"
            return f"it comes back after {settings.restore_passes} clean passes in a row, {self.state.clean} so far"
        if hold.by_failure and self._elapsed(hold) < settings.restore_after:
            return f"it comes back when it has been out for {settings.restore_after:.0f} s"
        return next((text for name in self._applying() if (text := self.answers[name].text)), "")

    def _standing_of_requirements(self, hold: Hold) -> list[str]:
        """Return the status of each requirement, for the person who decides on the restoration."""
        if hold.why is Why.OPERATOR or not self.clean():
            return []
        return [requirement.standing(self.seen, self.now) for requirement in self._applying().values()]

    def _needs_person(self, hold: Hold) -> str:
        if hold.why is Why.OPERATOR:
            return "an operator excluded it"
        if self.state.person:
            return next(filter(None, self.state.person.values()), "it was excluded for what needs an operator")
        if hold.why is Why.TERMINATION and not (self.called_off(hold) or self._outlived(hold)):
            return "its end was announced in an earlier boot"
        if not hold.by_failure:
            return ""
        lately = [wall for wall in self.state.returns if self.now.wall - DAY < wall <= self.now.wall]
        return f"it came back {len(lately)} times within a day" if len(lately) >= self.settings.restores_per_day else ""

    def clean(self) -> bool:
        """True after `restore_passes` consecutive clean passes."""
        return self.state.clean >= self.settings.restore_passes

    def _outlived(self, hold: Hold) -> bool:
        """True if the announced end was a reboot or a migration to another host, and this is the same machine after it.

        A source's notice excludes the node at most `horizon` before the end, so a boot that has lasted longer began
        after the end. An end that is still to come is announced again. Only an operator calls off an operator's notice.
        """
        return hold.outlived and not hold.released and not self._meant_now(hold)

    def called_off(self, hold: Hold) -> bool:
        """True if the exclusion is for an end of this machine that was withdrawn or called off. Holds only while no
        notice is imminent.
        """
        return hold.why is Why.TERMINATION and (hold.released or self._meant_now(hold))

    def _meant_now(self, hold: Hold) -> bool:
        """True if the exclusion's reason names this boot and instance: if no notice is imminent, the end was called
        off.
        """
        boot = self.seen.boot_id
        return bool(reasons.boot_name(boot)) and hold.reason == reasons.termination(boot, self.seen.instance)

    def _elapsed(self, hold: Hold) -> float:
        if hold.boot_id == self.seen.boot_id:
            return self.now.boottime - hold.at.boottime
        return self.now.wall - hold.at.wall

    def replaces(self, node_state: NodeState) -> bool:
        """True if the termination in force names another machine, which this healthy one has replaced."""
        boot, instance = reasons.boot_name(self.seen.boot_id), reasons.instance_name(self.seen.instance)
        others = bool(node_state.boot and boot and node_state.boot != boot)
        others = others and bool(node_state.instance and instance and node_state.instance != instance)
        return node_state.why is Why.TERMINATION and others and self.seen.ready and self.state.clean > 0

    def would(self, name: str) -> Hold | None:
        """The hold that mode enforce would have; None in mode enforce, and if there would be none."""
        would = self.state.would.get(name)
        if self.settings.enforce or would is None or would.act is Act.RESTORE:
            return None
        released = (
            would.why is Why.TERMINATION and imminent(self.state.notices, self.settings.horizon, self.now) is None
        )
        return Hold(actuator=name, why=would.why, reason=would.reason, at=would.at, boot_id="", released=released)

    def shown_again(self, name: str, node_state: NodeState) -> Lifted | None:
        """The exclusion that was lifted last, if the scheduler shows it again."""
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
