"""The registry: versions, participants, leases, quotas and events in Valkey/Redis."""
