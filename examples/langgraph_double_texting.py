"""Double texting in LangGraph: the user texts again while the graph still answers.

    python examples/langgraph_double_texting.py [http://127.0.0.1:8000]

Each conversation is a scope with the policy ``interrupt``. The second text commits the next version
first; the answer under way ends with ``Superseded``, and its node stores what the user has seen.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import uuid
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from openai import AsyncOpenAI

from retire.client import AsyncRetire, AsyncScope, Superseded
from retire.protocol.contract import Policy

URL = "http://127.0.0.1:8000"


class Conversation(TypedDict):
    """What the graph remembers. Each node adds messages."""

    messages: Annotated[list[dict[str, str]], operator.add]
    superseded: bool


def graph_of(scope: AsyncScope, model: str, seen: asyncio.Event) -> Any:
    """One node that answers; ``seen`` is set once the user has seen a few chunks."""

    async def answer(state: Conversation) -> dict[str, Any]:
        parts: list[str] = []
        superseded = False
        try:
            stream = await scope.chat(state["messages"], model=model, max_tokens=2048)
            async for chunk in stream:
                parts.append(chunk.text)
                if len(parts) > 5:
                    seen.set()
        except Superseded:
            superseded = True  # no failure: what was delivered is what the user has seen
        message = {"role": "assistant", "content": "".join(parts)}
        return {"messages": [message], "superseded": superseded}

    graph = StateGraph(Conversation)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


async def talk(url: str) -> tuple[Conversation, Conversation, Any]:
    """Two texts, the second while the first is answered; both states and the receipt."""
    async with AsyncRetire(url) as retire:
        model = await first_model(url)
        scope = retire.scope(f"chat-{uuid.uuid4().hex[:8]}", on_new_input=Policy.INTERRUPT)
        seen = asyncio.Event()
        graph = graph_of(scope, model, seen)

        history = [{"role": "user", "content": "Plan a day in Lisbon."}]
        first = asyncio.create_task(graph.ainvoke({"messages": history, "superseded": False}))
        await seen.wait()  # the user reads, and texts again
        again = [*history, {"role": "user", "content": "Sorry, I meant Porto."}]
        second = await graph.ainvoke({"messages": again, "superseded": False})

        receipt = (await scope.get()).raw["receipts"][0]
        return await first, second, receipt


async def first_model(url: str) -> str:
    """The model that the server serves."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as openai:
        return (await openai.models.list()).data[0].id


def main() -> None:
    """Show who saw what."""
    first, second, receipt = asyncio.run(talk(sys.argv[1] if len(sys.argv) > 1 else URL))
    print("first answer superseded:", first["superseded"])
    print("the user had seen:", first["messages"][-1]["content"])
    print("second answer:", second["messages"][-1]["content"])
    print(
        f"receipt: {receipt['from_version']} -> {receipt['to_version']}, "
        f"{receipt['certified_tokens']} tokens inherited"
    )


if __name__ == "__main__":
    main()
