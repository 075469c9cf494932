"""`gpuwarden replay`: judge a trace, and show what would have been done, under the rules of its time or under others."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.cli.parser import Parser

HELP = """
Judges a trace with the same code as the daemon, as fast as possible. Prints what changed, when and why, and when this node
would have been taken out of scheduling or brought back, whatever the `mode`. It takes no action, and reads and writes only the
trace and the files that you name. Without --config it uses the rules of the recording and the default policy. A trace has no
other nodes, so the breaker counts a pool of one.

A damaged trace is judged up to the damage, which is reported. Gaps without readings are judged as in the daemon,
up to 28 hours in total. Further gaps are judged in one step each, with a message.

exit code: 0; 65 when the trace is damaged, of a newer format or not a trace; 66 when it cannot be read

examples:
  gpuwarden replay node7.trace
  gpuwarden replay node7.trace --config strict.toml --json | jq 'select(.kind == "raised")'
  gpuwarden replay node7.trace --config now.toml --diff next.toml
"""

MAIN = "gpuwarden.cli.replay_main"


def arguments(parser: Parser) -> None:
    parser.add_argument("trace", metavar="F", type=Path, help="a trace, written by `gpuwarden record`, or a black box")
    parser.add_argument("--config", metavar="F", type=Path, help="judge with this configuration")
    parser.add_argument(
        "--diff",
        metavar="F2",
        type=Path,
        help="print the differences that this configuration makes: < only without it, > only with it",
    )
    parser.add_json()
