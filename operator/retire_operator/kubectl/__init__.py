"""``kubectl retire``: ServingScopes from the command line. Talks to the API server only."""
