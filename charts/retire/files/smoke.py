"""`helm test`: the API serves a model, and the registry answers a reader and refuses its writes."""

import os
import sys
import time

import httpx
import redis


def served_model() -> str:
    """Name of the first served model; raises while the API does not answer."""
    answer = httpx.get(os.environ["API"] + "/v1/models", timeout=5)
    if answer.status_code == 401:
        return "(asks for a token)"
    return answer.raise_for_status().json()["data"][0]["id"]


def asked_registry() -> str:
    """Whether the reader's password, certificate and rights are in order."""
    with redis.Redis.from_url(os.environ["REGISTRY"], socket_timeout=5) as registry:
        registry.ping()
        try:
            registry.set("retire:smoke", "1")
        except redis.exceptions.NoPermissionError:
            return "answers; a reader may not write"
    raise SystemExit("registry: the reader's user may write; check its ACL rules")


def until(deadline: float, ask) -> str:
    """Ask again until there is an answer; the last refusal ends the test."""
    while True:
        try:
            return ask()
        except (httpx.HTTPError, redis.exceptions.RedisError, OSError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{ask.__name__}: {error}")
            time.sleep(1)


deadline = time.monotonic() + float(os.environ["TIMEOUT_S"])
print("registry:", until(deadline, asked_registry))
print("model:", until(deadline, served_model))
