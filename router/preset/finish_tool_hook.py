"""Lets the agent finish only with a result: what it says when it finishes is what is stored of the run.

The agent server calls this before the finish tool with the event as JSON on standard input. Exit code 2 sends the text on
standard error back to the agent, which then has to finish again.
"""

import json
import sys

REFUSE = 2


def main() -> int:
    try:
        event = json.load(sys.stdin)
    except ValueError:
        return 0
    given = event.get("tool_input") or {}
    message = given.get("message")
    if "message" not in given or isinstance(message, str) and message.strip():
        return 0
    print("Finish with a message that says what was done and what came of it.", file=sys.stderr)
    return REFUSE


if __name__ == "__main__":
    sys.exit(main())
