"""Carries out the prompt of an automation as one conversation on the agent server of this box.

Inputs are the files beside this one (prompt.txt and, if repositories were asked for, repos_config.json) and the environment
of the run. The workspace reports to the automation service how it ended when it is left.
"""

import json
import os
import shlex
import sys
import urllib.request
import uuid
from pathlib import Path

from openhands.sdk import Conversation
from openhands.sdk.hooks import HookConfig
from openhands.sdk.workspace import RemoteWorkspace
from openhands.tools.preset.default import get_default_agent
from openhands.workspace import OpenHandsCloudWorkspace

HERE = Path(__file__).resolve().parent


def report_phase(text: str) -> None:
    """Tells the service what the run is doing. The run does not depend on it."""
    url = os.environ.get("AUTOMATION_PHASE_URL")
    key = os.environ.get("AUTOMATION_CALLBACK_API_KEY") or os.environ.get("OPENHANDS_API_KEY")
    if not url or not key:
        return
    request = urllib.request.Request(
        url,
        data=json.dumps({"phase": text}).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except (OSError, ValueError) as error:
        print(f"phase not reported: {error}", file=sys.stderr)


def open_workspace() -> RemoteWorkspace:
    """Connects to the agent server of this box, with the user's account where the box is one of OpenHands Cloud."""
    cloud, key = os.environ.get("OPENHANDS_CLOUD_API_URL"), os.environ.get("OPENHANDS_API_KEY")
    if cloud and key:
        return OpenHandsCloudWorkspace(
            local_agent_server_mode=True, cloud_api_url=cloud, cloud_api_key=key, working_dir=str(HERE)
        )
    return RemoteWorkspace(
        host=os.environ["AGENT_SERVER_URL"],
        api_key=os.environ.get("SESSION_API_KEY") or None,
        working_dir=os.environ.get("WORKSPACE_BASE") or str(HERE),
    )


def clone(workspace: RemoteWorkspace) -> tuple[list[str], str]:
    """Clones what was asked for; returns where it lies and what to tell the agent about it."""
    config = HERE / "repos_config.json"
    if not config.exists():
        return [], ""
    report_phase("Cloning repositories")
    result = workspace.clone_repos(json.loads(config.read_text()), target_dir=workspace.working_dir)
    if result.failed_repos:
        raise RuntimeError("could not clone " + ", ".join(result.failed_repos))
    folders = [str(mapping.local_path) for mapping in result.repo_mappings.values()]
    return folders, workspace.get_repos_context(result.repo_mappings)


def make_agent(workspace: RemoteWorkspace, folders: list[str]):
    """The standard agent with the model, tools and skills of the user."""
    llm = workspace.get_llm(profile_name=os.environ.get("AUTOMATION_MODEL") or None)
    _, context = workspace.load_skills_from_agent_server(project_dirs=folders or None)
    more = {"agent_context": context}
    if servers := workspace.get_mcp_config():
        more["mcp_config"] = servers
    return get_default_agent(llm=llm, cli_mode=True).model_copy(update=more)


def first_message(about_repos: str) -> str:
    """The prompt, with the repositories and the event it is about."""
    parts = [(HERE / "prompt.txt").read_text()]
    if about_repos:
        parts.append(about_repos)
    payload = json.loads(os.environ.get("AUTOMATION_EVENT_PAYLOAD") or "{}")
    if payload.get("event") is not None:
        parts.append("This run was started by an event:\n" + json.dumps(payload["event"], indent=2))
    for turn in payload.get("follow_up_turns") or []:
        parts.append(turn if isinstance(turn, str) else json.dumps(turn))
    return "\n\n".join(parts)


def hooks() -> HookConfig:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'finish_tool_hook.py'))}"
    return HookConfig.from_dict(
        {"PreToolUse": [{"matcher": "finish", "hooks": [{"type": "command", "command": command, "timeout": 20}]}]}
    )


def main() -> None:
    with open_workspace() as workspace:
        folders, about_repos = clone(workspace)
        report_phase("Starting the agent")
        conversation = Conversation(
            agent=make_agent(workspace, folders),
            workspace=workspace,
            conversation_id=uuid.UUID(known) if (known := os.environ.get("AUTOMATION_CONVERSATION_ID")) else None,
            hook_config=hooks(),
            delete_on_close=False,
        )
        try:
            secrets = workspace.get_secrets(agent_profile_id=os.environ.get("AUTOMATION_AGENT_PROFILE_ID") or None)
            if secrets:
                conversation.update_secrets(secrets)
            conversation.send_message(first_message(about_repos))
            report_phase("Agent is working")
            conversation.run()
        finally:
            conversation.close()


if __name__ == "__main__":
    main()
