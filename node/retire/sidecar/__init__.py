"""The node's sidecar: registry agent, lease keeper, mailbox writer and transition driver."""
