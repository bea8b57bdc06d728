"""The core: versions, contracts, the scope state machine, alignment, certificates, invariants.

Pure standard library; no IO, clock, thread or randomness. Time, ids and randomness are arguments.
"""
