"""A coding agent with an unmodified OpenAI SDK: the session is the scope, sub-agents are children.

    python examples/coding_agent_headers.py [http://127.0.0.1:8000]

The user changes the task while the agent and its sub-agent work. One call, sent with
``x-retire-on-new-input: interrupt``, ends both and starts the new task as their successor.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, OpenAI

URL = "http://127.0.0.1:8000"


@dataclass
class Answer:
    """What one call came to."""

    versions: list[str] = field(default_factory=list)  # of each chunk
    text: str = ""
    superseded_by: str | None = None  # the version that is current now


def start(
    openai: OpenAI, model: str, task: str, headers: dict[str, str], *, most: int = 3000
) -> Any:
    """A tagged stream of at most so many tokens; nothing else is special about it."""
    return openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": task}],
        stream=True,
        max_tokens=most,
        extra_headers=headers,
    )


def take(stream: Any, answer: Answer, chunks: int | None = None) -> Answer:
    """Read on, to the end when ``chunks`` is None. A superseded stream has simply ended."""
    try:
        for chunk in stream:
            answer.versions.append(chunk.model_extra["retire"]["version"])
            if chunk.choices:
                answer.text += chunk.choices[0].delta.content or ""
            if len(answer.versions) == chunks:
                break
    except APIError as error:
        if error.code != "superseded":
            raise
        answer.superseded_by = error.body["current"]  # type: ignore[index]
    return answer


def work(url: str) -> dict[str, Answer]:
    """The agent and its sub-agent work; the user changes the task."""
    session = f"session-{uuid.uuid4().hex[:8]}"
    agent = {"x-retire-scope": session}
    reviewer = {"x-retire-scope": f"{session}/reviewer", "x-retire-parent": session}
    revision = agent | {"x-retire-on-new-input": "interrupt"}
    # The SDK must not send by itself what was superseded; our 409s say so too.
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai:
        model = openai.models.list().data[0].id
        old = start(openai, model, "Port the parser to Rust.", agent)
        writing = take(old, Answer(), chunks=4)
        sub = start(openai, model, "Review the port of the parser.", reviewer)
        reviewing = take(sub, Answer(), chunks=4)

        new = start(openai, model, "Port the lexer to Rust instead.", revision, most=200)
        return {
            "new task": take(new, Answer()),
            "old task": take(old, writing),
            "sub-agent": take(sub, reviewing),
        }


def main() -> None:
    """Show what became of each."""
    for name, answer in work(sys.argv[1] if len(sys.argv) > 1 else URL).items():
        end = f"superseded, {answer.superseded_by} is current" if answer.superseded_by else "done"
        print(f"{name}: version {answer.versions[0]}, {len(answer.versions)} chunks, {end}")


if __name__ == "__main__":
    main()
