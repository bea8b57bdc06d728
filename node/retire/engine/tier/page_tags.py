"""Digests of KV pages at the speed of memory: a keyed multilinear hash, on the pages' own device.

``tag(page) = sum(key[i] * word[i]) mod 2**64`` over its 32-bit words, with secret odd 64-bit keys.
Two different pages get one tag with probability at most 2**-31 over the keys; pages that differ in
one word never do (Carter and Wegman 1979; Lemire and Kaser, "Strongly universal string hashing is
fast", 2014). A cryptographic hash on the host would take longer than the transfer that it guards;
what an attacker could do by writing to this process's memory is no subject of it.
"""

from __future__ import annotations

import secrets

import torch

WORD_BYTES = 4


def secret_keys(words: int, device: torch.device) -> torch.Tensor:
    """``words`` odd 64-bit keys, fresh ones at every call. Shape ``[words]``, int64."""
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    keys = torch.randint(low, high, (words,), generator=generator, dtype=torch.int64)
    return (keys | 1).to(device)


def tags(pages: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One tag a row. ``pages``: ``[rows, n]`` contiguous, of ``4 * len(keys)`` bytes a row."""
    words = pages.view(torch.int32).to(torch.int64)
    return words.mul_(keys).sum(dim=1)
